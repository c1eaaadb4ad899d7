//! A connection to the coordinator.

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

/// Name lookup, TCP and TLS together.
const CONNECT: Duration = Duration::from_secs(20);
const WINDOW_BYTES: u32 = 4 << 20;

/// Where a coordinator is, and how it is recognised.
#[derive(Clone, Debug)]
pub struct Target {
    /// `host:port`.
    pub address: String,
    /// The certificates of which it must show one.
    pub pins: Vec<Fingerprint>,
}

/// An open connection; dropping it closes it.
pub struct Connection {
    /// Calls go through it.
    pub client: FederationClient<Sender>,
    /// Requests that are no calls of the protocol can be made with it.
    pub sender: Sender,
    /// What the coordinator said of the own certificate.
    pub refusal: Refused,
    driver: AbortHandle,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

/// Why there is no connection.
pub enum Unreachable {
    /// It may be there later.
    Later(String),
    /// Somebody else is there, with another certificate.
    Impostor(String),
    /// It will never be right.
    Never(Error),
}

/// Whether the coordinator does not take the own certificate. In TLS 1.3 that is said after the
/// client's end of the handshake, so that it comes while the first call is made.
#[derive(Clone, Default)]
pub struct Refused(Arc<OnceLock<AlertDescription>>);

impl Refused {
    /// Why there is no connection, where it was said; otherwise what it looked like.
    pub fn or(&self, what: Unreachable) -> Unreachable {
        match self.0.get().and_then(|alert| certificate_refused(*alert)) {
            None => what,
            Some(why) => Unreachable::Never(Error::peer(format!(
                "the coordinator refuses this client's certificate: {why}; a certificate of the \
                 authority that it asks for can be brought with --cert and --key"
            ))),
        }
    }

    fn notice(&self, error: &io::Error) {
        let inner = error.get_ref().and_then(|e| e.downcast_ref::<rustls::Error>());
        if let Some(rustls::Error::AlertReceived(alert)) = inner {
            let _ = self.0.set(*alert);
        }
    }
}

/// Connects, shows the own certificate and checks the coordinator's.
pub async fn connect(target: &Target, identity: &Identity) -> Result<Connection, Unreachable> {
    let config = client_config(identity, &target.pins).map_err(Unreachable::Never)?;
    let later = |what: String| Unreachable::Later(format!("{}: {what}", target.address));
    let shake = async {
        let stream = TcpStream::connect(&target.address).await.map_err(|e| later(e.to_string()))?;
        let _ = stream.set_nodelay(true);
        // The name is not checked: the certificate itself is pinned.
        let name = ServerName::try_from("whimbrel.invalid").expect("a valid name");
        let tls = TlsConnector::from(config).connect(name, stream).await;
        tls.map_err(|e| match is_wrong_certificate(&e) {
            true => Unreachable::Impostor(format!("{}: {e}", target.address)),
            false => later(chain(&e)),
        })
    };
    let tls = match timeout(CONNECT, shake).await {
        Ok(shaken) => shaken?,
        Err(_) => return Err(later("no answer".into())),
    };
    let mut http = http2::Builder::new(TokioExecutor::new());
    http.timer(TokioTimer::new())
        .initial_stream_window_size(WINDOW_BYTES)
        .initial_connection_window_size(WINDOW_BYTES)
        .max_frame_size(64 << 10);
    let refusal = Refused::default();
    let tls = Watched { tls, refusal: refusal.clone() };
    let begun = http.handshake(TokioIo::new(tls)).await;
    let (sender, driver) = begun.map_err(|e| refusal.or(later(chain(&e))))?;
    let driver = tokio::spawn(async move {
        if let Err(error) = driver.await {
            tracing::debug!("the connection ended: {}", chain(&error));
        }
    });
    let origin = Uri::from_static("https://whimbrel.invalid");
    let sender = Sender(sender);
    let client = FederationClient::with_origin(sender.clone(), origin)
        .max_decoding_message_size(OFFER_BYTES_MAX + 1024);
    Ok(Connection { client, sender, refusal, driver: driver.abort_handle() })
}

fn is_wrong_certificate(error: &std::io::Error) -> bool {
    let inner = error.get_ref().and_then(|e| e.downcast_ref::<rustls::Error>());
    matches!(inner, Some(rustls::Error::InvalidCertificate(_)))
}

/// An error with everything that caused it, without the pages that libraries name in their messages.
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

/// A TLS connection that notices why the other end closed it.
struct Watched {
    tls: TlsStream<TcpStream>,
    refusal: Refused,
}

impl Watched {
    /// What is written on a connection that the other end has closed fails before its last words
    /// are read.
    fn broken(&mut self, context: &mut Context<'_>, error: io::Error) -> io::Error {
        let mut space = [0; 64];
        let mut buffer = ReadBuf::new(&mut space);
        if let Poll::Ready(Err(last)) = Pin::new(&mut self.tls).poll_read(context, &mut buffer) {
            self.refusal.notice(&last);
        }
        error
    }
}

impl AsyncRead for Watched {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let read = Pin::new(&mut self.tls).poll_read(context, buffer);
        if let Poll::Ready(Err(error)) = &read {
            self.refusal.notice(error);
        }
        read
    }
}

impl AsyncWrite for Watched {
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

/// Hands requests to the connection.
#[derive(Clone)]
pub struct Sender(SendRequest<Body>);

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
    fn an_error_names_no_page_of_a_library() {
        let inner =
            "peer closed connection without sending TLS close_notify: https://docs.rs/x#eof";
        let error = io::Error::new(io::ErrorKind::UnexpectedEof, inner);
        assert_eq!(chain(&error), "peer closed connection without sending TLS close_notify");
    }
}
