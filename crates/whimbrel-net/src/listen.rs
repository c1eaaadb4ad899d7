//! Acceptance of connections: TLS handshakes and limits on silent and unauthenticated peers.

use crate::client::link::chain;
use crate::client::link::{RELAY_CALLS_MAX, RELAY_STREAM_WINDOW_BYTES, RELAY_WINDOW_BYTES};
use crate::events::SharedState;
use crate::invitation::Fingerprint;
use crate::limits::{FRAME_BYTES_MAX, Limits};
use crate::places::{Permit, Places};
use crate::proto::federation_server::{Federation, FederationServer};
use crate::service::{ConnectionService, UPLOAD_BYTES_PER_SECOND_MIN};
use crate::status::Refusal;
use crate::tls::{fingerprint, refusal};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use rustls::ServerConfig;
use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, ReadBuf, ReadHalf, join, split};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tonic::codegen::http::{Request, Response};
use tonic::codegen::{BoxFuture, Service};
use tonic::{Code, Status};
use whimbrel_core::Error;

/// Concurrent calls of one connection: a session, and a repeated enrolment.
const CALLS_MAX: u32 = 4;
/// Concurrent connections of one client or relay, which needs one, and another after a break.
const CONNECTIONS_OF_ONE: usize = 8;
/// Memory for unread frames of a client.
const WINDOW_BYTES: u32 = 1 << 20;
/// Memory for unread frames of an unauthenticated connection: one enrolment fits.
const UNAUTHENTICATED_WINDOW_BYTES: u32 = 64 << 10;
/// Bytes of an enrolment: token, name and version.
const ENROL_BYTES_MAX: usize = 1 << 10;
/// Duration of a full window at the minimal rate of uploads: the answer to a ping may wait behind
/// that many bytes.
const WINDOW_TIME: Duration =
    Duration::from_secs(WINDOW_BYTES as u64 / UPLOAD_BYTES_PER_SECOND_MIN);
/// Pause when the system has no more file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The server behind a listener.
pub trait Host: Send + Sync + 'static {
    type Service: Federation;

    fn limits(&self) -> &Limits;

    /// The party that a certificate belongs to.
    fn party(&self, certificate: &Fingerprint) -> Party;

    /// The service of one connection; `calls` counts the calls under way.
    fn service(
        self: Arc<Self>,
        certificate: Fingerprint,
        address: String,
        calls: Arc<AtomicU32>,
    ) -> Self::Service;

    /// Counts and records a refusal of an unauthenticated connection.
    fn refuse(&self, why: Refusal, address: &str);
}

/// The other end of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Party {
    /// It may only enrol; also a revoked one.
    Unauthenticated,
    Client,
    Relay,
}

impl Party {
    /// Windows of a stream and of the connection, maximal calls, maximal bytes of a message.
    fn limits(self) -> (u32, u32, u32, usize) {
        match self {
            Self::Unauthenticated => {
                let window = UNAUTHENTICATED_WINDOW_BYTES;
                (window, window, 1, ENROL_BYTES_MAX)
            }
            Self::Client => (WINDOW_BYTES, WINDOW_BYTES, CALLS_MAX, FRAME_BYTES_MAX),
            Self::Relay => {
                let (stream, connection) = (RELAY_STREAM_WINDOW_BYTES, RELAY_WINDOW_BYTES);
                (stream, connection, RELAY_CALLS_MAX, FRAME_BYTES_MAX)
            }
        }
    }
}

impl Host for SharedState {
    type Service = ConnectionService;

    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn party(&self, certificate: &Fingerprint) -> Party {
        match self.registry.holder(certificate) {
            Some(entry) if self.registry.list().barred(&entry).is_some() => Party::Unauthenticated,
            Some(entry) if entry.is_relay() => Party::Relay,
            Some(_) => Party::Client,
            None => Party::Unauthenticated,
        }
    }

    fn service(
        self: Arc<Self>,
        certificate: Fingerprint,
        address: String,
        calls: Arc<AtomicU32>,
    ) -> ConnectionService {
        ConnectionService { shared: self, certificate, address, calls }
    }

    fn refuse(&self, why: Refusal, address: &str) {
        self.refuse_unauthenticated(why, address);
    }
}

/// Turns a bound listener into one of the runtime.
pub(crate) fn into_async(
    listener: std::net::TcpListener,
    runtime: &Runtime,
) -> whimbrel_core::Result<TcpListener> {
    let _inside = runtime.enter();
    let made = listener.set_nonblocking(true).and_then(|()| TcpListener::from_std(listener));
    made.map_err(|e| Error::internal(format!("the listener cannot be used: {e}")))
}

/// Accepts connections until the task is dropped.
pub async fn listen<H: Host>(listener: TcpListener, tls: Arc<ServerConfig>, host: Arc<H>) {
    let acceptor = TlsAcceptor::from(tls);
    let places = Arc::new(Semaphore::new(host.limits().connections));
    // Half of all connections may be unauthenticated, and half of those from one host.
    let most = (host.limits().connections / 2).max(2);
    let unauthenticated = Places::new(most, most / 2);
    let known = Places::new(usize::MAX, CONNECTIONS_OF_ONE);
    loop {
        let (stream, address) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        match places.clone().try_acquire_owned() {
            Err(_) => {
                let address = address.to_string();
                host.refuse(Refusal::TooManyConnections, &address);
            }
            Ok(place) => {
                let (acceptor, host, known) = (acceptor.clone(), host.clone(), known.clone());
                let permit = unauthenticated.admit(address.ip());
                let address = address.to_string();
                tokio::spawn(async move {
                    let _place = place;
                    let evicted = permit.evicted();
                    let why = tokio::select! {
                        ended = connection(stream, &address, acceptor, &host, permit, &known) => ended,
                        () = evicted.notified() => Err(Refusal::TooManyConnections),
                    };
                    if let Err(why) = why {
                        host.refuse(why, &address);
                    }
                });
            }
        }
    }
}

/// Serves one connection to its end.
async fn connection<H: Host>(
    stream: TcpStream,
    address: &str,
    acceptor: TlsAcceptor,
    host: &Arc<H>,
    permit: Permit<IpAddr>,
    known: &Arc<Places<Fingerprint>>,
) -> Result<(), Refusal> {
    let _ = stream.set_nodelay(true);
    // A connection that closes without a byte is a probe, not an attack.
    let limits = host.limits();
    let first = timeout(limits.handshake, stream.peek(&mut [0; 1])).await;
    if matches!(first.map_err(|_| Refusal::Silent)?, Ok(0) | Err(_)) {
        return Ok(());
    }
    let tls = timeout(limits.handshake, acceptor.accept(stream)).await;
    let tls = tls.map_err(|_| Refusal::Silent)?.map_err(|error| refusal(&error))?;
    let session = tls.get_ref().1;
    let certificate = session.peer_certificates().and_then(|chain| chain.first());
    let certificate = fingerprint(certificate.ok_or(Refusal::Handshake)?);
    if session.alpn_protocol() != Some(b"h2") {
        return Err(Refusal::Handshake);
    }
    // A client gives its permit back, so that unauthenticated connections cannot evict it. Others
    // may enrol, which needs little memory.
    let party = host.party(&certificate);
    let permit = (party == Party::Unauthenticated).then_some(permit);
    let own = permit.is_none().then(|| known.admit(certificate));
    let (stream_window, window, calls_max, message_max) = party.limits();
    let calls = Arc::new(AtomicU32::new(0));
    let service = host.clone().service(certificate, address.into(), calls.clone());
    let service = FederationServer::new(service).max_decoding_message_size(message_max);
    let service = Counted { service, host: host.clone(), address: address.into() };
    let mut http = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
    http.timer(TokioTimer::new())
        .max_concurrent_streams(calls_max)
        .max_header_list_size(8 << 10)
        .initial_stream_window_size(stream_window)
        .initial_connection_window_size(window)
        .max_send_buf_size(stream_window as usize)
        .max_frame_size((64 << 10).min(stream_window))
        .keep_alive_interval(Some(limits.heartbeat))
        .keep_alive_timeout(2 * limits.heartbeat + WINDOW_TIME);
    let violated = Arc::new(AtomicBool::new(false));
    let (tls, write) = split(tls);
    let checked = PrefaceChecked { tls, read: 0, violated: violated.clone() };
    let served = http
        .serve_connection(TokioIo::new(join(checked, write)), TowerToHyperService::new(service));
    let result = tokio::select! {
        result = served => result,
        () = evicted(own.as_ref()) => return Err(Refusal::TooManyConnections),
        // A relay connects again when a client calls.
        () = idle(&calls, limits.first_frame) => {
            return if party == Party::Relay { Ok(()) } else { Err(Refusal::Silent) };
        }
    };
    if let Err(error) = &result {
        tracing::debug!(%address, error = %chain(error), "a connection ended");
    }
    // Bytes other than HTTP/2, or malformed frames of an unauthenticated peer.
    let malformed = result.is_err_and(|e| permit.is_some() && !is_broken(&e));
    if violated.load(Ordering::Relaxed) || malformed {
        return Err(Refusal::Malformed);
    }
    Ok(())
}

/// The incoming half of a connection, which checks the HTTP/2 preface. The HTTP library cannot distinguish a shorter and
/// wrong beginning from a broken connection.
struct PrefaceChecked {
    tls: ReadHalf<TlsStream<TcpStream>>,
    /// Bytes of the preface read so far.
    read: usize,
    violated: Arc<AtomicBool>,
}

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

impl AsyncRead for PrefaceChecked {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.tls).poll_read(context, buffer);
        let expected = &PREFACE[self.read..];
        let arrived = &buffer.filled()[before..];
        let both = expected.len().min(arrived.len());
        if expected[..both] != arrived[..both] {
            self.violated.store(true, Ordering::Relaxed);
        }
        self.read += both;
        read
    }
}

/// Whether the connection broke without a violation of the protocol.
fn is_broken(error: &hyper::Error) -> bool {
    let mut cause: Option<&dyn std::error::Error> = Some(error);
    while let Some(error) = cause {
        if error.is::<std::io::Error>() {
            return true;
        }
        cause = error.source();
    }
    false
}

/// Counts calls that the gRPC library refuses: unknown paths and malformed requests. Streams are
/// read, and counted, in [`crate::service`].
struct Counted<S, H> {
    service: S,
    host: Arc<H>,
    address: String,
}

impl<S: Clone, H> Clone for Counted<S, H> {
    fn clone(&self) -> Self {
        let Self { service, host, address } = self;
        Self { service: service.clone(), host: host.clone(), address: address.clone() }
    }
}

impl<S, H: Host, B, R> Service<Request<B>> for Counted<S, H>
where
    S: Service<Request<B>, Response = Response<R>, Error: Send>,
    S::Future: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = BoxFuture<S::Response, S::Error>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.service.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let answer = self.service.call(request);
        let (host, address) = (self.host.clone(), self.address.clone());
        Box::pin(async move {
            let answer = answer.await?;
            let why = match Status::from_header_map(answer.headers()).map(|status| status.code()) {
                Some(Code::OutOfRange) => Some(Refusal::TooLarge),
                Some(Code::Internal | Code::Unimplemented) => Some(Refusal::Malformed),
                _ => None,
            };
            if let Some(why) = why {
                host.refuse(why, &address);
            }
            Ok(answer)
        })
    }
}

/// Completes when another connection has taken this one's place; never without a permit.
async fn evicted<K: PartialEq>(permit: Option<&Permit<K>>) {
    match permit {
        Some(permit) => permit.evicted().notified().await,
        None => std::future::pending().await,
    }
}

/// Completes when a connection has had no call at two consecutive checks.
async fn idle(calls: &AtomicU32, period: Duration) {
    let mut quiet = 0;
    while quiet < 2 {
        sleep(period / 2).await;
        quiet = if calls.load(Ordering::Relaxed) == 0 { quiet + 1 } else { 0 };
    }
}
