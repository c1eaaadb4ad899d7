//! The dashboard over HTTP: a read-only page for operators, and metrics for Prometheus.
//!
//! Every request needs a token. The printed link contains it, and the first visit stores it in a
//! cookie that scripts cannot read. A scraper sends it as `Authorization: Bearer`.

use crate::listen::into_async;
use crate::status::{self, Board, Level, now};
use crate::tls::{random, sha256};
use hyper::body::Bytes;
use hyper::header::{
    ALLOW, AUTHORIZATION, CONTENT_TYPE, COOKIE, HeaderValue, LOCATION, SET_COOKIE,
};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use std::collections::{BTreeMap, VecDeque};
use std::convert::Infallible;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use subtle::ConstantTimeEq;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout};
use whimbrel_core::wire::hex;
use whimbrel_core::{Measure, Result};
use whimbrel_engine::checkpoint::write_privately;
use whimbrel_report::dashboard::{
    ASSETS, ClientState, ClientStatus, HEADERS, LogLine, OpenExchange, RunState, Sample, Status,
    metrics_text,
};

/// Concurrent connections.
const CONNECTIONS_MAX: usize = 64;
/// Maximal duration of reading a request's headers, and of a connection.
const HEADERS_IN: Duration = Duration::from_secs(5);
const LIFE: Duration = Duration::from_secs(300);
/// Pause when the system has no more file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Clients listed on the page.
const CLIENTS_MAX: usize = 500;
/// The cookie that holds the token.
const COOKIE_NAME: &str = "whimbrel";
/// The token's file in the run's folder.
const TOKEN_FILE: &str = "dashboard-token";
const TOKEN_BYTES: usize = 24;

/// Static description of the job.
#[derive(Clone, Debug, Default)]
pub struct About {
    pub method: String,
    pub model: String,
    /// The content of the clients' messages and their protection.
    pub privacy: String,
    pub version: String,
    /// Path of the report that the run will have.
    pub report: String,
}

/// The server of the dashboard.
pub struct Dashboard {
    board: Board,
    about: About,
    /// `None` for access without a token.
    token: Option<String>,
    token_file: Option<PathBuf>,
    visits: Arc<Visits>,
}

/// Requests for the status: a coordinator waits until open pages have shown its end.
#[derive(Default)]
pub struct Visits {
    last: Mutex<Option<Instant>>,
    shown: AtomicBool,
}

/// Time within which an open page asks again.
const PAGE_ASKS: Duration = Duration::from_secs(3);

impl Visits {
    fn note(&self, phase: RunState) {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
        if !matches!(phase, RunState::Waiting | RunState::Running) {
            self.shown.store(true, Ordering::Relaxed);
        }
    }

    /// Waits until a page that follows the run has shown its end, for three seconds at most.
    pub fn wait(&self) {
        let begun = Instant::now();
        let last = *self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let is_followed = last.is_some_and(|at| at.elapsed() < PAGE_ASKS);
        while is_followed && !self.shown.load(Ordering::Relaxed) && begun.elapsed() < PAGE_ASKS {
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

impl Dashboard {
    /// A dashboard protected by a token in the run's folder, so that the link stays valid after a
    /// restart. Without a folder no token is needed.
    pub fn new(board: Board, about: About, folder: Option<&Path>) -> Result<Self> {
        let token_file = folder.map(|folder| folder.join(TOKEN_FILE));
        let token = token_file.as_deref().map(kept_token).transpose()?;
        Ok(Self { board, about, token, token_file, visits: Arc::default() })
    }

    /// A server for probes: all else needs a token that nobody has.
    pub fn probes(board: Board) -> Result<Self> {
        let token = Some(hex(&random::<TOKEN_BYTES>()?));
        let (about, token_file, visits) = Default::default();
        Ok(Self { board, about, token, token_file, visits })
    }

    /// The token's file.
    pub fn token_file(&self) -> Option<&Path> {
        self.token_file.as_deref()
    }

    /// The link that opens the page.
    pub fn link(&self, address: SocketAddr) -> String {
        match &self.token {
            Some(token) => format!("http://{address}/?token={token}"),
            None => format!("http://{address}/"),
        }
    }

    /// Starts to serve requests on a runtime.
    pub fn start(self, listener: std::net::TcpListener, runtime: &Runtime) -> Result<Arc<Visits>> {
        let visits = self.visits.clone();
        runtime.spawn(self.serve(into_async(listener, runtime)?));
        Ok(visits)
    }

    async fn serve(self, listener: TcpListener) {
        let page = Arc::new(self);
        let mut open: VecDeque<AbortHandle> = VecDeque::new();
        loop {
            let Ok((stream, _)) = listener.accept().await else {
                sleep(ACCEPT_PAUSE).await;
                continue;
            };
            // Above the limit the oldest connection gives way: idle ones block nobody.
            open.retain(|task| !task.is_finished());
            if open.len() >= CONNECTIONS_MAX
                && let Some(oldest) = open.pop_front()
            {
                oldest.abort();
            }
            let page = page.clone();
            let task = tokio::spawn(async move {
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
            open.push_back(task.abort_handle());
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
            let mut refused = plain(StatusCode::METHOD_NOT_ALLOWED, "this page is read-only\n");
            refused.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
            return refused;
        }
        let path = request.uri().path();
        if path == "/healthz" {
            return plain(StatusCode::OK, "ok\n");
        }
        if path == "/readyz" {
            let (code, text) = match self.board.watch().borrow().phase {
                RunState::Waiting | RunState::Running | RunState::Done => {
                    (StatusCode::OK, "ready\n")
                }
                RunState::Paused => (StatusCode::SERVICE_UNAVAILABLE, "paused\n"),
                RunState::Failed => (StatusCode::SERVICE_UNAVAILABLE, "failed\n"),
            };
            return plain(code, text);
        }
        if let Some(token) = query_token(request.uri().query()) {
            return if self.accepts(token) { self.set_cookie(token) } else { unauthorized() };
        }
        if !self.is_authorized(request) {
            return unauthorized();
        }
        match path {
            "/status.json" => {
                let view = self.view();
                self.visits.note(view.state);
                let text = serde_json::to_string(&view).expect("a status is plain data");
                typed("application/json", text)
            }
            "/metrics" => typed("text/plain; version=0.0.4", metrics_text(&self.view())),
            _ => match ASSETS.iter().find(|asset| asset.path == path) {
                Some(asset) => typed(asset.media_type, asset.content),
                None => plain(StatusCode::NOT_FOUND, "page not found\n"),
            },
        }
    }

    /// Moves the token from the address bar into a cookie.
    fn set_cookie(&self, token: &str) -> Response<Full> {
        let mut response = plain(StatusCode::SEE_OTHER, "");
        let name = self.cookie_name();
        let cookie = format!("{name}={token}; HttpOnly; SameSite=Strict; Path=/");
        if let Ok(cookie) = HeaderValue::from_str(&cookie) {
            response.headers_mut().insert(SET_COOKIE, cookie);
        }
        response.headers_mut().insert(LOCATION, HeaderValue::from_static("/"));
        response
    }

    /// Browsers send cookies to every port of a host, so each run has its own cookie name, which does
    /// not reveal the token.
    fn cookie_name(&self) -> String {
        let token = self.token.as_deref().unwrap_or_default();
        let hash = sha256(format!("cookie {token}").as_bytes());
        format!("{COOKIE_NAME}-{}", hex(&hash[..6]))
    }

    fn accepts(&self, shown: &str) -> bool {
        match &self.token {
            None => true,
            Some(token) => token.as_bytes().ct_eq(shown.as_bytes()).into(),
        }
    }

    fn is_authorized<B>(&self, request: &Request<B>) -> bool {
        if self.token.is_none() {
            return true;
        }
        let text = |name| request.headers().get_all(name).iter().filter_map(|v| v.to_str().ok());
        let cookies = text(COOKIE).flat_map(|line| line.split(';'));
        let mut shown = cookies
            .filter_map(|pair| pair.trim().strip_prefix(&self.cookie_name())?.strip_prefix('='))
            .chain(text(AUTHORIZATION).filter_map(|v| v.strip_prefix("Bearer ")));
        shown.any(|token| self.accepts(token))
    }

    fn view(&self) -> Status {
        // A copy, so that rounds do not wait for the page.
        let snapshot = self.board.watch().borrow().clone();
        view(&snapshot, &self.about)
    }
}

/// The content of the page.
fn view(status: &status::Status, about: &About) -> Status {
    let now = now();
    let listed = status.clients.iter().take(CLIENTS_MAX);
    let measures: Vec<Measure> = status.measures.iter().filter(|m| m.headline).cloned().collect();
    Status {
        job: status.job.clone(),
        method: about.method.clone(),
        model: about.model.clone(),
        privacy: about.privacy.clone(),
        version: about.version.clone(),
        state: status.phase,
        // A normal activity is shown in the log only.
        message: match status.phase {
            RunState::Running => String::new(),
            _ => status.state.clone(),
        },
        report: match status.phase {
            RunState::Done | RunState::Failed => about.report.clone(),
            RunState::Waiting | RunState::Running | RunState::Paused => String::new(),
        },
        stage: status.stage_index,
        stages: status.stages,
        stage_name: status.stage.clone(),
        round: status.round,
        rounds: status.rounds_total.filter(|_| status.stage_index + 1 == status.stages),
        exchange: status.open.as_ref().map(|open| OpenExchange {
            cohort: open.asked,
            answered: open.heard,
            quorum: open.quorum,
            deadline_s: open.closes.map(|at| (at - now).max(0.0)),
        }),
        seconds: (now - status.started).max(0.0),
        seconds_left: status.eta_s,
        rounds_per_second: status.rounds_per_second,
        round_seconds: status.round_seconds,
        epsilon_spent: status.epsilon_spent,
        delta: status.delta,
        log_bytes: status.log_bytes,
        disk_free: status.disk_free,
        bytes_up: status.bytes_up,
        bytes_down: status.bytes_down,
        bytes_eval: status.bytes_eval,
        series: status.rows.iter().map(|row| sample(row, &measures)).collect(),
        measures,
        client_counts: counts(&status.clients),
        clients: listed.map(|(name, client)| row(name, client, status, now)).collect(),
        clients_more: status.clients.len().saturating_sub(CLIENTS_MAX) as u64,
        refused: status.refused.iter().map(|(why, n)| (why.to_string(), *n)).collect(),
        log: status.log.iter().map(line).collect(),
    }
}

fn sample(row: &serde_json::Value, measures: &[Measure]) -> Sample {
    let number = |key: &str| row.get(key).and_then(serde_json::Value::as_f64);
    let bytes = |key: &str| (number(key).unwrap_or(0.0) / 8.0) as u64;
    Sample {
        round: number("round").unwrap_or(0.0) as u32,
        seconds: number("seconds").unwrap_or(0.0),
        figures: measures
            .iter()
            .filter_map(|measure| Some((measure.key.to_string(), number(&measure.key)?)))
            .collect(),
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
    let state = client_state(client);
    let mark = |exchanged: &status::PastExchange| match client.id {
        // Both lists are sorted.
        Some(id) if exchanged.accepted.binary_search(&id).is_ok() => 'y',
        Some(id) if exchanged.cohort.binary_search(&id).is_ok() => 'n',
        _ => '.',
    };
    ClientStatus {
        name: name.into(),
        state,
        last_seen_s: client.last_seen.map(|at| (now - at).max(0.0)),
        rounds: client.rounds as u32,
        address: client.address.clone(),
        latency_s: client.latency_s,
        missed: client.missed,
        disconnects: client.disconnects,
        rows: client.rows,
        bytes_up: client.bytes_up,
        bytes_down: client.bytes_down,
        refused: client.refused,
        strip: status.strip.iter().map(mark).collect(),
    }
}

fn client_state(client: &status::ClientStatus) -> ClientState {
    match (client.standing.as_str(), client.connected, client.last_seen) {
        ("revoked", ..) => ClientState::Revoked,
        ("dead", ..) => ClientState::Dead,
        _ if client.finished => ClientState::Finished,
        (_, true, _) => ClientState::Connected,
        (_, false, Some(_)) => ClientState::Away,
        (_, false, None) => ClientState::Invited,
    }
}

fn counts(clients: &BTreeMap<String, status::ClientStatus>) -> [u64; 6] {
    let count = |state| clients.values().filter(|c| client_state(c) == state).count() as u64;
    ClientState::ALL.map(count)
}

fn line(line: &status::Line) -> LogLine {
    let day = line.time.max(0.0) as u64 % 86_400;
    LogLine {
        time: format!("{:02}:{:02}:{:02}", day / 3600, day / 60 % 60, day % 60),
        level: match line.level {
            Level::Info => "info",
            Level::Warn => "warn",
            Level::Error => "error",
        }
        .into(),
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

fn unauthorized() -> Response<Full> {
    plain(
        StatusCode::UNAUTHORIZED,
        "open the link that the coordinator printed, or send the token in the run's dashboard-token\n",
    )
}

fn query_token(query: Option<&str>) -> Option<&str> {
    query?.split('&').find_map(|pair| pair.strip_prefix("token="))
}

/// The token of a file; a new one if the file is missing or damaged.
fn kept_token(path: &Path) -> Result<String> {
    let whole = |text: &String| {
        text.len() == 2 * TOKEN_BYTES && text.bytes().all(|b| b.is_ascii_hexdigit())
    };
    if let Some(token) = fs::read_to_string(path).ok().filter(whole) {
        return Ok(token);
    }
    let bytes: [u8; TOKEN_BYTES] = random()?;
    let token = hex(&bytes);
    write_privately(path, token.as_bytes())?;
    Ok(token)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::{Open, PastExchange, Refusal};
    use hyper::header::HeaderName;

    fn page(folder: Option<&Path>) -> Dashboard {
        let board = Board::new("wards");
        board.state(RunState::Running, "stage 1 of 1: fit");
        board.client("<north>", |c| (c.id, c.connected) = (Some(0), true));
        board.client("south", |c| c.id = Some(1));
        let strip = |accepted: Vec<u32>| PastExchange {
            stage: 0,
            round: Some(1),
            cohort: vec![0, 1],
            accepted,
        };
        board.exchanged(strip(vec![0, 1]));
        board.exchanged(strip(vec![0]));
        board.refuse(Refusal::Late);
        board.change(|s| s.measures = vec![Measure::objective("")]);
        board.change(|s| (s.epsilon_spent, s.delta) = (Some(1.5), Some(1e-5)));
        board.row(
            serde_json::json!({ "round": 1, "objective": 2.5, "bits_up": 80, "bits_down": 16 }),
        );
        board.change(|s| s.open = Some(Open { asked: 2, heard: 1, ..Open::default() }));
        Dashboard::new(board, About::default(), folder).unwrap()
    }

    fn ask(page: &Dashboard, path: &str, header: Option<(HeaderName, String)>) -> Response<Full> {
        let mut request = Request::builder().uri(path);
        if let Some((name, value)) = header {
            request = request.header(name, value);
        }
        page.answer(&request.body(()).unwrap())
    }

    #[test]
    fn nothing_is_shown_without_the_token() {
        let folder = tempfile::tempdir().unwrap();
        let page = page(Some(folder.path()));
        let token = page.token.clone().unwrap();
        for path in
            ["/", "/app.js", "/status.json", "/metrics", "/nowhere", "/?token=wrong", "/?token="]
        {
            assert_eq!(ask(&page, path, None).status(), StatusCode::UNAUTHORIZED, "{path}");
        }
        let wrong = Some((AUTHORIZATION, format!("Bearer {token}x")));
        assert_eq!(ask(&page, "/metrics", wrong).status(), StatusCode::UNAUTHORIZED);
        let right = Some((AUTHORIZATION, format!("Bearer {token}")));
        assert_eq!(ask(&page, "/metrics", right).status(), StatusCode::OK);
        assert_eq!(ask(&page, "/healthz", None).status(), StatusCode::OK);
    }

    #[test]
    fn the_link_sets_a_cookie_that_opens_every_page() {
        let folder = tempfile::tempdir().unwrap();
        let page = page(Some(folder.path()));
        let link = page.link("127.0.0.1:7480".parse().unwrap());
        let entered = ask(&page, link.strip_prefix("http://127.0.0.1:7480").unwrap(), None);
        assert_eq!(
            (entered.status(), &entered.headers()[LOCATION]),
            (StatusCode::SEE_OTHER, &HeaderValue::from_static("/"))
        );
        let cookie = entered.headers()[SET_COOKIE].to_str().unwrap();
        assert!(cookie.contains("HttpOnly") && cookie.contains("SameSite=Strict"), "{cookie}");
        let cookie = format!("other=1; {}", cookie.split(';').next().unwrap());
        for asset in &ASSETS {
            let shown = ask(&page, asset.path, Some((COOKIE, cookie.clone())));
            assert_eq!(shown.status(), StatusCode::OK, "{}", asset.path);
            for (name, value) in HEADERS {
                assert_eq!(shown.headers()[name], value);
            }
        }
        // The link survives a restart, and only the owner can read it.
        assert_eq!(
            Dashboard::new(Board::new("wards"), About::default(), Some(folder.path()))
                .unwrap()
                .token,
            page.token
        );
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            let mode = fs::metadata(folder.path().join(TOKEN_FILE)).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600);
        }
    }

    /// Browsers send all cookies of a host to every port.
    #[test]
    fn a_cookie_is_valid_for_its_run_only() {
        let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let [one, other] = folders.each_ref().map(|folder| page(Some(folder.path())));
        let cookie = |page: &Dashboard| {
            let path = format!("/?token={}", page.token.as_deref().unwrap());
            let entered = ask(page, &path, None);
            let cookie = entered.headers()[SET_COOKIE].to_str().unwrap();
            cookie.split(';').next().unwrap().to_owned()
        };
        let (own, others) = (cookie(&one), cookie(&other));
        let name = |cookie: &str| cookie.split_once('=').unwrap().0.to_owned();
        assert_ne!(name(&own), name(&others), "one would replace the other");
        let status = |header: String| ask(&one, "/", Some((COOKIE, header))).status();
        assert_eq!(status(format!("{others}; {own}")), StatusCode::OK);
        assert_eq!(status(others), StatusCode::UNAUTHORIZED);
    }

    #[test]
    fn probes_report_health_without_a_token() {
        let folder = tempfile::tempdir().unwrap();
        let page = page(Some(folder.path()));
        for (phase, wanted) in [
            (RunState::Waiting, StatusCode::OK),
            (RunState::Running, StatusCode::OK),
            (RunState::Paused, StatusCode::SERVICE_UNAVAILABLE),
            (RunState::Failed, StatusCode::SERVICE_UNAVAILABLE),
            (RunState::Done, StatusCode::OK),
        ] {
            page.board.state(phase, "a state");
            assert_eq!(ask(&page, "/readyz", None).status(), wanted, "{phase:?}");
            assert_eq!(ask(&page, "/healthz", None).status(), StatusCode::OK);
        }
        let probes = Dashboard::probes(page.board.clone()).unwrap();
        let codes = ["/readyz", "/"].map(|path| ask(&probes, path, None).status().as_u16());
        assert_eq!(codes, [200, 401]);
    }

    #[test]
    fn a_crowd_of_silent_visitors_does_not_starve_probes() {
        use std::io::{Read, Write};
        let runtime = Runtime::new().unwrap();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        page(None).start(listener, &runtime).unwrap();
        let connect = || std::net::TcpStream::connect(address).unwrap();
        let crowd: Vec<_> = (0..3 * CONNECTIONS_MAX).map(|_| connect()).collect();
        let mut probe = connect();
        probe.write_all(b"GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        probe.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        drop(crowd);
    }

    #[test]
    fn the_page_is_read_only() {
        let request = Request::builder().method(Method::POST).uri("/").body(()).unwrap();
        assert_eq!(page(None).answer(&request).status(), StatusCode::METHOD_NOT_ALLOWED);
    }

    #[test]
    fn the_page_shows_the_status() {
        let shown = page(None).view();
        assert_eq!((shown.state, shown.message.as_str()), (RunState::Running, ""));
        let clients: Vec<(&str, ClientState, &str)> =
            shown.clients.iter().map(|c| (c.name.as_str(), c.state, c.strip.as_str())).collect();
        assert_eq!(
            clients,
            [("<north>", ClientState::Connected, "yy"), ("south", ClientState::Invited, "yn")]
        );
        let (row, open) = (&shown.series[0], shown.exchange.as_ref().unwrap());
        assert_eq!((row.bytes_up, row.bytes_down, open.answered), (10, 2, 1));
        assert_eq!((shown.epsilon_spent, shown.delta), (Some(1.5), Some(1e-5)));
        assert_eq!(shown.refused, [("the exchange is closed".to_string(), 1)]);
        assert!(metrics_text(&shown).contains("whimbrel_objective 2.5"));
    }
}
