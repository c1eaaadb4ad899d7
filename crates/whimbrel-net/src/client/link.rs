//! A connection to the coordinator.

use crate::client::proxy::{Proxy, TunnelError};
use crate::invitation::Fingerprint;
use crate::proto::federation_client::FederationClient;
use crate::tls::{Identity, certificate_refused, client_config};
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use rustls::AlertDescription;
use rustls::pki_types::ServerName;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::task::AbortHandle;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tonic::body::Body;
use tonic::codegen::Service;
use tonic::codegen::http::{Request, Response, Uri};
use whimbrel_core::{Error, Result};
use whimbrel_engine::OFFER_BYTES_MAX;

/// Longest duration of name lookup, TCP and TLS together.
const CONNECT: Duration = Duration::from_secs(20);
const WINDOW_BYTES: u32 = 4 << 20;
/// Windows of a relay's connection: all streams of [`RELAY_CALLS_MAX`] calls fit into that of the
/// connection, so that a client that does not read delays no other.
pub(crate) const RELAY_STREAM_WINDOW_BYTES: u32 = 128 << 10;
pub(crate) const RELAY_WINDOW_BYTES: u32 = RELAY_STREAM_WINDOW_BYTES * RELAY_CALLS_MAX;
/// Concurrent calls of a relay: sessions and enrolments of its clients.
pub(crate) const RELAY_CALLS_MAX: u32 = 4096;
/// Interval of pings on a relay's connection, and the longest wait for an answer.
const PING: Duration = Duration::from_secs(10);
const PING_ANSWER: Duration = Duration::from_secs(60);

/// Address and certificates of a coordinator.
#[derive(Clone, Debug)]
pub struct Target {
    /// `host:port`.
    pub address: String,
    /// Accepted certificates.
    pub pins: Vec<Fingerprint>,
    pub proxy: Option<Proxy>,
}

/// An open connection; dropping it closes it.
pub struct Connection {
    pub client: FederationClient<Sender>,
    /// For raw HTTP requests.
    pub sender: Sender,
    pub alert: CertificateAlert,
    driver: AbortHandle,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

/// The error of a failed connection.
pub enum ConnectError {
    /// Another attempt may succeed.
    Transient(String),
    /// The server has another certificate.
    WrongCertificate(String),
    /// Another attempt would fail likewise.
    Permanent(Error),
}

/// The coordinator's alert about the client's certificate. In TLS 1.3 it arrives after the client's
/// end of the handshake, during the first call.
#[derive(Clone, Default)]
pub struct CertificateAlert(Arc<OnceLock<AlertDescription>>);

impl CertificateAlert {
    /// The error of the alert, if one was received; otherwise `error`.
    pub fn or(&self, error: ConnectError) -> ConnectError {
        match self.0.get().and_then(|alert| certificate_refused(*alert)) {
            None => error,
            Some(why) => ConnectError::Permanent(Error::peer(format!(
                "the coordinator refuses this client's certificate: {why}; --cert and --key supply a \
                 certificate of the required authority"
            ))),
        }
    }

    fn record(&self, error: &io::Error) {
        let inner = error.get_ref().and_then(|e| e.downcast_ref::<rustls::Error>());
        if let Some(rustls::Error::AlertReceived(alert)) = inner {
            let _ = self.0.set(*alert);
        }
    }
}

/// Connects with a client's identity and checks the coordinator's certificate.
pub async fn connect(target: &Target, identity: &Identity) -> Result<Connection, ConnectError> {
    connect_with(target, identity, |http| {
        http.initial_stream_window_size(WINDOW_BYTES).initial_connection_window_size(WINDOW_BYTES);
    })
    .await
}

/// Connects a relay, whose connection carries many calls.
pub async fn connect_relay(
    target: &Target,
    identity: &Identity,
) -> Result<Connection, ConnectError> {
    connect_with(target, identity, |http| {
        http.initial_stream_window_size(RELAY_STREAM_WINDOW_BYTES)
            .initial_connection_window_size(RELAY_WINDOW_BYTES)
            .keep_alive_interval(PING)
            .keep_alive_timeout(PING_ANSWER);
    })
    .await
}

async fn connect_with(
    target: &Target,
    identity: &Identity,
    configure: impl FnOnce(&mut http2::Builder<TokioExecutor>),
) -> Result<Connection, ConnectError> {
    let config = client_config(identity, &target.pins).map_err(ConnectError::Permanent)?;
    let transient = |what: String| ConnectError::Transient(format!("{}: {what}", target.address));
    let shake = async {
        let stream = match target.proxy.as_ref().filter(|proxy| proxy.covers(&target.address)) {
            Some(proxy) => proxy.tunnel(&target.address).await.map_err(|e| match e {
                TunnelError::Transient(what) => ConnectError::Transient(what),
                TunnelError::Permanent(error) => ConnectError::Permanent(error),
            })?,
            None => {
                let stream = TcpStream::connect(&target.address).await;
                stream.map_err(|e| transient(e.to_string()))?
            }
        };
        let _ = stream.set_nodelay(true);
        // The certificate is pinned, so its name does not matter.
        let name = ServerName::try_from("whimbrel.invalid").expect("a valid name");
        let tls = TlsConnector::from(config).connect(name, stream).await;
        tls.map_err(|e| {
            if is_wrong_certificate(&e) {
                ConnectError::WrongCertificate(format!("{}: {e}", target.address))
            } else {
                transient(chain(&e))
            }
        })
    };
    let tls = match timeout(CONNECT, shake).await {
        Ok(shaken) => shaken?,
        Err(_) => return Err(transient("no answer".into())),
    };
    let mut http = http2::Builder::new(TokioExecutor::new());
    http.timer(TokioTimer::new()).max_frame_size(64 << 10);
    configure(&mut http);
    let alert = CertificateAlert::default();
    let tls = AlertRecorder { tls, alert: alert.clone() };
    let begun = http.handshake(TokioIo::new(tls)).await;
    let (sender, driver) = begun.map_err(|e| alert.or(transient(chain(&e))))?;
    let driver = tokio::spawn(async move {
        if let Err(error) = driver.await {
            tracing::debug!("the connection ended: {}", chain(&error));
        }
    });
    let origin = Uri::from_static("https://whimbrel.invalid");
    let sender = Sender(sender);
    let client = FederationClient::with_origin(sender.clone(), origin)
        .max_decoding_message_size(OFFER_BYTES_MAX + 1024);
    Ok(Connection { client, sender, alert, driver: driver.abort_handle() })
}

fn is_wrong_certificate(error: &std::io::Error) -> bool {
    let inner = error.get_ref().and_then(|e| e.downcast_ref::<rustls::Error>());
    matches!(inner, Some(rustls::Error::InvalidCertificate(_)))
}

/// An error with its causes, without the web addresses in messages of libraries.
pub fn chain(error: &dyn std::error::Error) -> String {
    let plain = |error: &dyn std::error::Error| {
        let text = error.to_string();
        text.split_once(": https://").map_or(text.clone(), |(before, _)| before.to_owned())
    };
    let mut text = plain(error);
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = plain(cause);
        if !text.contains(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        source = cause.source();
    }
    text
}

/// A TLS connection that records the alert with which the coordinator closed it.
struct AlertRecorder {
    tls: TlsStream<TcpStream>,
    alert: CertificateAlert,
}

impl AlertRecorder {
    /// Reads the alert after a failed write, which precedes the regular read.
    fn broken(&mut self, context: &mut Context<'_>, error: io::Error) -> io::Error {
        let mut space = [0; 64];
        let mut buffer = ReadBuf::new(&mut space);
        if let Poll::Ready(Err(last)) = Pin::new(&mut self.tls).poll_read(context, &mut buffer) {
            self.alert.record(&last);
        }
        error
    }
}

impl AsyncRead for AlertRecorder {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let read = Pin::new(&mut self.tls).poll_read(context, buffer);
        if let Poll::Ready(Err(error)) = &read {
            self.alert.record(error);
        }
        read
    }
}

impl AsyncWrite for AlertRecorder {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.tls).poll_write(context, bytes);
        written.map_err(|error| self.broken(context, error))
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.tls).poll_flush(context);
        flushed.map_err(|error| self.broken(context, error))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tls).poll_shutdown(context)
    }
}

/// Sends requests on the connection.
#[derive(Clone)]
pub struct Sender(SendRequest<Body>);

impl Sender {
    /// Whether the connection has ended.
    pub fn is_closed(&self) -> bool {
        self.0.is_closed()
    }
}

impl Service<Request<Body>> for Sender {
    type Response = Response<hyper::body::Incoming>;
    type Error = hyper::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        Box::pin(self.0.send_request(request))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_contain_no_web_addresses() {
        let inner =
            "peer closed connection without sending TLS close_notify: https://docs.rs/x#eof";
        let error = io::Error::new(io::ErrorKind::UnexpectedEof, inner);
        assert_eq!(chain(&error), "peer closed connection without sending TLS close_notify");
    }
}
