//! The dashboard: a read-only page for people, and the same figures for Prometheus, over HTTP.
//!
//! Whoever asks shows a token: the link that is printed carries it, and the first visit turns it
//! into a cookie that scripts cannot read. A scraper sends it as `Authorization: Bearer`.

use crate::status::{self, Board, now};
use crate::tls::random;
use hyper::body::Bytes;
use hyper::header::{ALLOW, AUTHORIZATION, CONTENT_TYPE, COOKIE, HeaderValue, LOCATION, SET_COOKIE};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use subtle::ConstantTimeEq;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};
use whimbrel_core::{Error, Result};
use whimbrel_report::dashboard::{
    ASSETS, ClientState, ClientStatus, HEADERS, LogLine, OpenExchange, Sample, Status, metrics_text,
};

/// Visitors at the same time.
const CONNECTIONS_MAX: usize = 64;
/// How long a request may take to arrive, and a connection to live.
const HEADERS_IN: Duration = Duration::from_secs(5);
const LIFE: Duration = Duration::from_secs(300);
/// How long to rest when the system has no more file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Clients listed on the page.
const CLIENTS_MAX: usize = 500;
/// The cookie that holds the token.
const COOKIE_NAME: &str = "whimbrel";

/// What the page says about the job beside its course.
#[derive(Clone, Debug, Default)]
pub struct About {
    /// The method's kind.
    pub method: String,
    /// The model, in words.
    pub model: String,
    /// The program's version.
    pub version: String,
}

/// The page's server side.
pub struct Dashboard {
    board: Board,
    about: About,
    /// None where anybody who reaches the port may look.
    token: Option<String>,
}

impl Dashboard {
    /// A dashboard of this board, behind a new token unless it is `open` to everyone.
    pub fn new(board: Board, about: About, open: bool) -> Result<Self> {
        let token = if open { None } else { Some(new_token()?) };
        Ok(Self { board, about, token })
    }

    /// The link that opens the page.
    pub fn link(&self, address: SocketAddr) -> String {
        match &self.token {
            Some(token) => format!("http://{address}/?token={token}"),
            None => format!("http://{address}/"),
        }
    }

    /// Answers until the task is dropped.
    pub async fn serve(self, listener: TcpListener) {
        let page = Arc::new(self);
        let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
        loop {
            let Ok((stream, _)) = listener.accept().await else {
                sleep(ACCEPT_PAUSE).await;
                continue;
            };
            // A visitor too many is closed without a word.
            let Ok(place) = places.clone().try_acquire_owned() else { continue };
            let page = page.clone();
            tokio::spawn(async move {
                let _place = place;
                let answer = service_fn(move |request: Request<hyper::body::Incoming>| {
                    let page = page.clone();
                    async move { Ok::<_, Infallible>(page.answer(&request)) }
                });
                let served = hyper::server::conn::http1::Builder::new()
                    .timer(TokioTimer::new())
                    .header_read_timeout(HEADERS_IN)
                    .max_buf_size(16 << 10)
                    .serve_connection(TokioIo::new(stream), answer);
                let _ = timeout(LIFE, served).await;
            });
        }
    }

    fn answer<B>(&self, request: &Request<B>) -> Response<Full> {
        let mut response = self.route(request);
        for (name, value) in HEADERS {
            response.headers_mut().insert(name, HeaderValue::from_static(value));
        }
        response
    }

    fn route<B>(&self, request: &Request<B>) -> Response<Full> {
        if request.method() != Method::GET && request.method() != Method::HEAD {
            let mut refused = plain(StatusCode::METHOD_NOT_ALLOWED, "this page can only be read\n");
            refused.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
            return refused;
        }
        let path = request.uri().path();
        if path == "/healthz" {
            return plain(StatusCode::OK, "ok\n");
        }
        if let Some(token) = query_token(request.uri().query()) {
            return if self.opens(token) { self.let_in(token) } else { stranger() };
        }
        if !self.knows(request) {
            return stranger();
        }
        match path {
            "/status.json" => {
                let text = serde_json::to_string(&self.view()).expect("a status is plain data");
                typed("application/json", text)
            }
            "/metrics" => typed("text/plain; version=0.0.4", metrics_text(&self.view())),
            _ => match ASSETS.iter().find(|asset| asset.path == path) {
                Some(asset) => typed(asset.media_type, asset.content),
                None => plain(StatusCode::NOT_FOUND, "there is no such page\n"),
            },
        }
    }

    /// Puts the token into a cookie, and takes it out of the address bar.
    fn let_in(&self, token: &str) -> Response<Full> {
        let mut response = plain(StatusCode::SEE_OTHER, "");
        let cookie = format!("{COOKIE_NAME}={token}; HttpOnly; SameSite=Strict; Path=/");
        if let Ok(cookie) = HeaderValue::from_str(&cookie) {
            response.headers_mut().insert(SET_COOKIE, cookie);
        }
        response.headers_mut().insert(LOCATION, HeaderValue::from_static("/"));
        response
    }

    fn opens(&self, shown: &str) -> bool {
        match &self.token {
            None => true,
            Some(token) => token.as_bytes().ct_eq(shown.as_bytes()).into(),
        }
    }

    fn knows<B>(&self, request: &Request<B>) -> bool {
        if self.token.is_none() {
            return true;
        }
        let text = |name| request.headers().get_all(name).iter().filter_map(|v| v.to_str().ok());
        let cookies = text(COOKIE).flat_map(|line| line.split(';'));
        let mut shown = cookies
            .filter_map(|pair| pair.trim().strip_prefix(COOKIE_NAME)?.strip_prefix('='))
            .chain(text(AUTHORIZATION).filter_map(|v| v.strip_prefix("Bearer ")));
        shown.any(|token| self.opens(token))
    }

    fn view(&self) -> Status {
        view(&self.board.watch().borrow(), &self.about)
    }
}

/// The coordinator's snapshot as the page shows it.
fn view(status: &status::Status, about: &About) -> Status {
    let now = now();
    let listed = status.clients.iter().take(CLIENTS_MAX);
    Status {
        job: status.job.clone(),
        method: about.method.clone(),
        model: about.model.clone(),
        version: about.version.clone(),
        state: status.phase.into(),
        message: status.message.clone(),
        stage: status.stage_index,
        stages: status.stages,
        stage_name: status.stage.clone(),
        round: status.round,
        rounds: status.rounds_total,
        exchange: status.open.as_ref().map(|open| OpenExchange {
            cohort: open.asked,
            answered: open.heard,
            quorum: open.quorum,
            deadline_s: open.closes.map(|at| (at - now).max(0.0)),
        }),
        seconds: (now - status.started).max(0.0),
        seconds_left: status.eta_s,
        bytes_up: status.bytes_up,
        bytes_down: status.bytes_down,
        bytes_eval: status.bytes_eval,
        series: status.rows.iter().map(sample).collect(),
        clients: listed.map(|(name, client)| row(name, client, status, now)).collect(),
        clients_more: status.clients.len().saturating_sub(CLIENTS_MAX) as u64,
        refused: status.refused.iter().map(|(why, n)| (why.to_string(), *n)).collect(),
        log: status.log.iter().map(line).collect(),
    }
}

fn sample(row: &serde_json::Value) -> Sample {
    let number = |key: &str| row.get(key).and_then(serde_json::Value::as_f64);
    let bytes = |key: &str| (number(key).unwrap_or(0.0) / 8.0) as u64;
    Sample {
        round: number("round").unwrap_or(0.0) as u32,
        seconds: number("seconds").unwrap_or(0.0),
        objective: number("objective"),
        field_norm2: number("field_norm2"),
        excess_loss: number("excess_loss"),
        bytes_up: bytes("bits_up"),
        bytes_down: bytes("bits_down"),
    }
}

fn row(
    name: &str,
    client: &status::ClientStatus,
    status: &status::Status,
    now: f64,
) -> ClientStatus {
    let state = match (client.standing.as_str(), client.connected, client.last_seen) {
        ("revoked", ..) => ClientState::Revoked,
        ("dead", ..) => ClientState::Dead,
        (_, true, _) => ClientState::Connected,
        (_, false, Some(_)) => ClientState::Away,
        (_, false, None) => ClientState::Invited,
    };
    let mark = |exchanged: &status::Exchanged| match client.id {
        Some(id) if exchanged.accepted.contains(&id) => 'y',
        Some(id) if exchanged.cohort.contains(&id) => 'n',
        _ => '.',
    };
    ClientStatus {
        name: name.into(),
        state,
        last_seen_s: client.last_seen.map(|at| (now - at).max(0.0)),
        rounds: client.accepted as u32,
        bytes_up: client.received,
        bytes_down: client.sent,
        refused: client.refused,
        strip: status.strip.iter().map(mark).collect(),
    }
}

fn line(line: &status::Line) -> LogLine {
    let day = line.time.max(0.0) as u64 % 86_400;
    LogLine {
        time: format!("{:02}:{:02}:{:02}", day / 3600, day / 60 % 60, day % 60),
        level: line.level.into(),
        text: line.text.clone(),
    }
}

type Full = http_body_util::Full<Bytes>;

fn typed(media_type: &'static str, content: impl Into<Bytes>) -> Response<Full> {
    let mut response = Response::new(Full::new(content.into()));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(media_type));
    response
}

fn plain(status: StatusCode, text: &'static str) -> Response<Full> {
    let mut response = typed("text/plain; charset=utf-8", text);
    *response.status_mut() = status;
    response
}

fn stranger() -> Response<Full> {
    plain(StatusCode::UNAUTHORIZED, "open the link that the coordinator printed\n")
}

fn query_token(query: Option<&str>) -> Option<&str> {
    query?.split('&').find_map(|pair| pair.strip_prefix("token="))
}

fn new_token() -> Result<String> {
    let bytes: [u8; 24] = random()?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}
