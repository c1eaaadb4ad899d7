//! A connection to the coordinator.

use crate::invitation::Fingerprint;
use crate::proto::federation_client::FederationClient;
use crate::tls::{Identity, client_config};
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use rustls::pki_types::ServerName;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::task::AbortHandle;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
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
    /// The certificate it must show.
    pub server: Fingerprint,
}

/// An open connection; dropping it closes it.
pub struct Connection {
    /// Calls go through it.
    pub client: FederationClient<Sender>,
    /// Requests that are no calls of the protocol can be made with it.
    pub sender: Sender,
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

/// Connects, shows the own certificate and checks the coordinator's.
pub async fn connect(target: &Target, identity: &Identity) -> Result<Connection, Unreachable> {
    let config = client_config(identity, target.server).map_err(Unreachable::Never)?;
    let later = |what: String| Unreachable::Later(format!("{}: {what}", target.address));
    let shake = async {
        let stream = TcpStream::connect(&target.address).await.map_err(|e| later(e.to_string()))?;
        let _ = stream.set_nodelay(true);
        // The name is not checked: the certificate itself is pinned.
        let name = ServerName::try_from("whimbrel.invalid").expect("a valid name");
        let tls = TlsConnector::from(config).connect(name, stream).await;
        tls.map_err(|e| match is_wrong_certificate(&e) {
            true => Unreachable::Impostor(format!("{}: {e}", target.address)),
            false => later(e.to_string()),
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
    let (sender, driver) =
        http.handshake(TokioIo::new(tls)).await.map_err(|e| later(e.to_string()))?;
    let driver = tokio::spawn(async move {
        if let Err(error) = driver.await {
            tracing::debug!(%error, "the connection ended");
        }
    });
    let origin = Uri::from_static("https://whimbrel.invalid");
    let sender = Sender(sender);
    let client = FederationClient::with_origin(sender.clone(), origin)
        .max_decoding_message_size(OFFER_BYTES_MAX + 1024);
    Ok(Connection { client, sender, driver: driver.abort_handle() })
}

fn is_wrong_certificate(error: &std::io::Error) -> bool {
    let inner = error.get_ref().and_then(|e| e.downcast_ref::<rustls::Error>());
    matches!(inner, Some(rustls::Error::InvalidCertificate(_)))
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
