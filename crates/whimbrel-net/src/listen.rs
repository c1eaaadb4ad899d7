//! The door to the network: connections, handshakes, and what a silent stranger may cost.

use crate::client::link::chain;
use crate::events::SharedState;
use crate::limits::FRAME_BYTES_MAX;
use crate::proto::federation_server::FederationServer;
use crate::service::{Door, UPLOAD_BYTES_PER_SECOND_MIN};
use crate::status::Refusal;
use crate::strangers::{Place, Strangers};
use crate::tls::{fingerprint, refusal};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use rustls::ServerConfig;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tonic::codegen::http::{Request, Response};
use tonic::codegen::{BoxFuture, Service};
use tonic::{Code, Status};

/// Calls of one connection at the same time: a session, and an enrolment that is asked again.
const CALLS_MAX: u32 = 4;
/// Memory for unread frames of one connection.
const WINDOW_BYTES: u32 = 1 << 20;
/// The same for one that no client has: enough for an invitation, in one call.
const STRANGER_WINDOW_BYTES: u32 = 64 << 10;
/// A token, a name and a version.
const ENROL_BYTES_MAX: usize = 1 << 10;
/// How long a full window takes at the slowest pace of an upload: so long may the answer to a ping
/// wait behind bytes that were sent before it.
const WINDOW_TIME: Duration =
    Duration::from_secs(WINDOW_BYTES as u64 / UPLOAD_BYTES_PER_SECOND_MIN);
/// How long to rest when the system has no more file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Takes connections until the task is dropped.
pub async fn listen(listener: TcpListener, tls: Arc<ServerConfig>, shared: Arc<SharedState>) {
    let acceptor = TlsAcceptor::from(tls);
    let places = Arc::new(Semaphore::new(shared.limits.connections));
    let strangers = Strangers::new(shared.limits.connections);
    loop {
        let (stream, address) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "a connection could not be taken");
                sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        match places.clone().try_acquire_owned() {
            Err(_) => shared.refuse(Refusal::TooManyConnections, &address.to_string(), true),
            Ok(place) => {
                let (acceptor, shared) = (acceptor.clone(), shared.clone());
                let stranger = strangers.enter(address.ip());
                let address = address.to_string();
                tokio::spawn(async move {
                    let _place = place;
                    let (needed, served) = (stranger.leave(), shared.clone());
                    tokio::select! {
                        () = connection(stream, &address, acceptor, shared, stranger) => {}
                        () = needed.notified() => {
                            served.refuse(Refusal::TooManyConnections, &address, true);
                        }
                    }
                });
            }
        }
    }
}

async fn connection(
    stream: TcpStream,
    address: &str,
    acceptor: TlsAcceptor,
    shared: Arc<SharedState>,
    stranger: Place,
) {
    let _ = stream.set_nodelay(true);
    // A connection that closes without a byte is a probe, not an attack.
    let mut first = [0; 1];
    match timeout(shared.limits.handshake, stream.peek(&mut first)).await {
        Ok(Ok(0) | Err(_)) => return,
        Ok(Ok(_)) => {}
        Err(_) => return shared.refuse(Refusal::Silent, address, true),
    }
    let tls = match timeout(shared.limits.handshake, acceptor.accept(stream)).await {
        Ok(Ok(tls)) => tls,
        Ok(Err(error)) => return shared.refuse(refusal(&error), address, true),
        Err(_) => return shared.refuse(Refusal::Silent, address, true),
    };
    let session = tls.get_ref().1;
    let certificate = session.peer_certificates().and_then(|chain| chain.first());
    let Some(certificate) = certificate.map(|c| fingerprint(c)) else {
        return shared.refuse(Refusal::Handshake, address, true);
    };
    if session.alpn_protocol() != Some(b"h2") {
        return shared.refuse(Refusal::Handshake, address, true);
    }
    // A client is no stranger any more; who is none yet may enrol, and needs little for that.
    let known = shared.registry.holder(&certificate).is_some();
    let (window, calls_max, message_max, stranger) = match known {
        true => {
            // Its place is given back now: no crowd of strangers pushes a client out.
            drop(stranger);
            (WINDOW_BYTES, CALLS_MAX, FRAME_BYTES_MAX, None)
        }
        false => (STRANGER_WINDOW_BYTES, 1, ENROL_BYTES_MAX, Some(stranger)),
    };
    let calls = Arc::new(AtomicU32::new(0));
    let door =
        Door { shared: shared.clone(), certificate, address: address.into(), calls: calls.clone() };
    let service = FederationServer::new(door).max_decoding_message_size(message_max);
    let service = Counted { service, shared: shared.clone(), address: address.into() };
    let mut http = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
    http.timer(TokioTimer::new())
        .max_concurrent_streams(calls_max)
        .max_header_list_size(8 << 10)
        .initial_stream_window_size(window)
        .initial_connection_window_size(window)
        .max_send_buf_size(window as usize)
        .max_frame_size((64 << 10).min(window))
        .keep_alive_interval(Some(shared.limits.heartbeat))
        .keep_alive_timeout(2 * shared.limits.heartbeat + WINDOW_TIME);
    let strange = Arc::new(AtomicBool::new(false));
    let greeted = Greeted { tls, greeting: 0, strange: strange.clone() };
    let served = http.serve_connection(TokioIo::new(greeted), TowerToHyperService::new(service));
    tokio::select! {
        result = served => {
            if let Err(error) = &result {
                tracing::debug!(%address, error = %chain(error), "a connection ended");
            }
            // Bytes that are no HTTP/2, however few; or frames that are none, of somebody who has
            // shown a certificate of its own making.
            let garbled = result.is_err_and(|e| stranger.is_some() && !is_broken(&e));
            if strange.load(Ordering::Relaxed) || garbled {
                shared.refuse(Refusal::Malformed, address, true);
            }
        }
        () = idle(&calls, shared.limits.first_frame) => {
            shared.refuse(Refusal::Silent, address, true);
        }
    }
}

/// A connection that notices whether it begins as HTTP/2 does. A library that is sent fewer bytes than
/// that, and then none, cannot tell them from a connection that broke.
struct Greeted {
    tls: TlsStream<TcpStream>,
    /// Bytes of the greeting that have come.
    greeting: usize,
    strange: Arc<AtomicBool>,
}

const GREETING: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

impl AsyncRead for Greeted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.tls).poll_read(context, buffer);
        let expected = &GREETING[self.greeting..];
        let come = &buffer.filled()[before..];
        let both = expected.len().min(come.len());
        if expected[..both] != come[..both] {
            self.strange.store(true, Ordering::Relaxed);
        }
        self.greeting += both;
        read
    }
}

impl AsyncWrite for Greeted {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.tls).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tls).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tls).poll_shutdown(context)
    }
}

/// Whether a connection broke, without a violation of the protocol.
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

/// Counts calls that the library itself turns away: unknown paths, and requests that are
/// none. Streams are read, and counted, in [`crate::service`].
#[derive(Clone)]
struct Counted<S> {
    service: S,
    shared: Arc<SharedState>,
    address: String,
}

impl<S, B, R> Service<Request<B>> for Counted<S>
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
        let (shared, address) = (self.shared.clone(), self.address.clone());
        Box::pin(async move {
            let answer = answer.await?;
            match Status::from_header_map(answer.headers()).map(|status| status.code()) {
                Some(Code::OutOfRange) => shared.refuse(Refusal::TooLarge, &address, true),
                Some(Code::Internal | Code::Unimplemented) => {
                    shared.refuse(Refusal::Malformed, &address, true);
                }
                _ => {}
            }
            Ok(answer)
        })
    }
}

/// Ends once a connection has had no call for the whole of two periods' looks.
async fn idle(calls: &AtomicU32, period: Duration) {
    let mut quiet = 0;
    while quiet < 2 {
        sleep(period / 2).await;
        quiet = if calls.load(Ordering::Relaxed) == 0 { quiet + 1 } else { 0 };
    }
}
