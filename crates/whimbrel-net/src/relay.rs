//! A relay: one connection to the coordinator for the clients of a site.
//!
//! A relay authenticates its clients as a coordinator does and forwards the frames of their sessions
//! on its own connection, one call each. It names a client by the certificate of its handshake
//! ([`PATH`]); the coordinator accepts that name only from the relay through which the client was
//! invited. Messages, acknowledgements and their order are those of direct connections, so a tree of
//! relays ends in the star's bits. A relay holds no state of a run: after a crash, clients connect
//! again and continue with the steps that they have stored.

use crate::client::link::{ConnectError, Connection, Sender};
use crate::client::{self, Client};
use crate::events::{PerMinute, host};
use crate::invitation::Fingerprint;
use crate::limits::{FRAME_BYTES_MAX, Limits, connections_by_descriptors};
use crate::listen::{Host, Party, listen};
use crate::proto::federation_client::FederationClient;
use crate::proto::{self, federation_server};
use crate::registry::unhex;
use crate::service::{CallGuard, status};
use crate::status::Refusal;
use crate::tls::server_config;
use std::collections::HashMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio_stream::{Stream, StreamExt};
use tonic::metadata::{AsciiMetadataValue, MetadataMap};
use tonic::{Code, Request, Response, Status, Streaming};
use whimbrel_core::text::printable;
use whimbrel_core::wire::hex;
use whimbrel_core::{Error, Result};
use whimbrel_engine::checkpoint::private_file;

/// Metadata of a forwarded call: fingerprints of the certificates that relays have authenticated, in
/// hexadecimal and separated by commas, the client's first.
pub const PATH: &str = "whimbrel-path";
/// Maximal number of certificates in [`PATH`].
pub const PATH_MAX: usize = 8;
/// File of the certificates that the coordinator has admitted through this relay. A lost line costs a
/// client one more connection.
const ADMITTED: &str = "admitted";
/// Period of checking the request to stop.
const TICK: Duration = Duration::from_millis(100);

/// Reads [`PATH`].
pub fn read_path(metadata: &MetadataMap) -> Result<Vec<Fingerprint>, Refusal> {
    let mut values = metadata.get_all(PATH).iter();
    let (Some(path), None) = (values.next(), values.next()) else {
        return Err(Refusal::Malformed);
    };
    let path = path.to_str().map_err(|_| Refusal::Malformed)?;
    let certificate = |text: &str| {
        let certificate = unhex(text);
        if hex(&certificate) == text { Ok(certificate) } else { Err(Refusal::Malformed) }
    };
    match path.split(',').map(certificate).collect::<Result<Vec<_>, _>>()? {
        path if path.len() > PATH_MAX => Err(Refusal::Malformed),
        path => Ok(path),
    }
}

/// Settings of a relay.
pub struct Setup {
    /// Its enrolment with the coordinator, or with a relay nearer to it.
    pub client: client::Setup,
    pub limits: Limits,
    /// Authority of its clients' certificates.
    pub client_ca: Option<PathBuf>,
}

/// A relay that has enrolled.
pub struct Relay {
    state: Arc<RelayState>,
    tls: Arc<rustls::ServerConfig>,
}

impl Relay {
    /// Opens the folder and enrols once; `None` if it was told to stop.
    pub async fn start(setup: Setup) -> Result<Option<Self>> {
        let Setup { client, limits, client_ca } = setup;
        let admitted = Admitted::open(&client.folder);
        let client = Client::new(client::Setup { is_relay: true, ..client })?;
        let Some(enrolled) = client.enrol().await? else { return Ok(None) };
        tracing::info!("enrolled as relay `{}`", enrolled.name);
        let tls = server_config(client.identity(), client_ca.as_deref())?;
        let connections = limits.connections.min(connections_by_descriptors());
        let limits = Limits { connections, ..limits };
        let (link, refused) = Default::default();
        let state = RelayState { client, link, limits, refused, admitted };
        Ok(Some(Self { state: Arc::new(state), tls }))
    }

    /// Fingerprint of the certificate that its clients' invitations contain.
    pub fn fingerprint(&self) -> Fingerprint {
        self.state.client.identity().fingerprint()
    }

    /// Forwards calls until it is told to stop.
    pub async fn run(self, listener: std::net::TcpListener) -> Result<()> {
        let fault = |e| Error::internal(format!("the listener cannot be used: {e}"));
        listener.set_nonblocking(true).map_err(fault)?;
        let listener = TcpListener::from_std(listener).map_err(fault)?;
        let state = self.state.clone();
        let stopped = async {
            while !state.client.is_stopped() {
                tokio::time::sleep(TICK).await;
            }
        };
        tokio::select! {
            () = listen(listener, self.tls, self.state.clone()) => {}
            () = stopped => {}
        }
        Ok(())
    }
}

/// State that the connections of a relay share.
pub struct RelayState {
    client: Client,
    link: tokio::sync::Mutex<Link>,
    limits: Limits,
    /// Refused tokens per host, counted here because all clients of a relay share its host.
    refused: PerMinute,
    admitted: Admitted,
}

/// The connection to the coordinator, opened by the first call and again after a break.
#[derive(Default)]
struct Link {
    connection: Option<Connection>,
    /// Whether the last attempt failed.
    is_away: bool,
}

impl RelayState {
    /// A handle of the connection to the coordinator.
    async fn coordinator(&self) -> Result<FederationClient<Sender>, Status> {
        let mut link = self.link.lock().await;
        if let Some(open) = link.connection.as_ref().filter(|open| !open.sender.is_closed()) {
            return Ok(open.client.clone());
        }
        // The relay's own refusal may end; its clients try again.
        let connected = self.client.connect().await.map_err(|error| match error {
            ConnectError::Transient(what) | ConnectError::WrongCertificate(what) => what,
            ConnectError::Permanent(error) => error.to_string(),
        });
        match (connected, link.is_away) {
            (Err(what), is_away) => {
                if !is_away {
                    tracing::warn!("the coordinator cannot be reached, and clients wait: {what}");
                }
                link.is_away = true;
                let what = format!("the relay does not reach the coordinator: {what}");
                Err(Status::unavailable(what))
            }
            (Ok(connection), was_away) => {
                if was_away {
                    tracing::info!("the coordinator is reached again");
                }
                link.is_away = false;
                Ok(link.connection.insert(connection).client.clone())
            }
        }
    }
}

impl Host for RelayState {
    type Service = RelayService;

    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn party(&self, certificate: &Fingerprint) -> Party {
        self.admitted.party(certificate)
    }

    fn service(
        self: Arc<Self>,
        certificate: Fingerprint,
        address: String,
        calls: Arc<AtomicU32>,
    ) -> RelayService {
        RelayService { relay: self, certificate, address, calls }
    }

    fn refuse(&self, why: Refusal, address: &str) {
        tracing::debug!(who = %address, "refused: {why}");
    }
}

/// The service of one client's connection.
pub struct RelayService {
    relay: Arc<RelayState>,
    certificate: Fingerprint,
    address: String,
    calls: Arc<AtomicU32>,
}

impl RelayService {
    /// The call for the coordinator: this content, and the path with this connection's certificate.
    fn forwarded<T>(&self, metadata: &MetadataMap, content: T) -> Result<Request<T>, Status> {
        let mut path = if metadata.contains_key(PATH) {
            read_path(metadata).map_err(|why| status(why, None))?
        } else {
            Vec::new()
        };
        path.push(self.certificate);
        if path.len() > PATH_MAX {
            return Err(status(Refusal::Malformed, None));
        }
        let path: Vec<String> = path.iter().map(|certificate| hex(certificate)).collect();
        let value = AsciiMetadataValue::try_from(path.join(","));
        let mut request = Request::new(content);
        request.metadata_mut().insert(PATH, value.map_err(|_| status(Refusal::Malformed, None))?);
        Ok(request)
    }
}

#[tonic::async_trait]
impl federation_server::Federation for RelayService {
    async fn enrol(
        &self,
        request: Request<proto::EnrolRequest>,
    ) -> Result<Response<proto::EnrolReply>, Status> {
        let _call = CallGuard::new(&self.calls);
        let (metadata, _, content) = request.into_parts();
        let (is_own, is_relay) = (!metadata.contains_key(PATH), content.relay);
        let request = self.forwarded(&metadata, content)?;
        let (refused, host) = (&self.relay.refused, host(&self.address));
        if is_own && refused.count(host, 0) >= self.relay.limits.enrolments_per_minute {
            return Err(status(Refusal::TooManyEnrolments, None));
        }
        let reply = self.relay.coordinator().await?.enrol(request).await;
        if is_own && reply.as_ref().is_err_and(|why| why.code() == Code::PermissionDenied) {
            refused.count(host, 1);
        }
        let reply = reply?.into_inner();
        if is_own {
            let party = if is_relay { Party::Relay } else { Party::Client };
            self.relay.admitted.add(self.certificate, party);
            tracing::info!("`{}` enrolled from {}", printable(&reply.name), self.address);
        }
        Ok(Response::new(reply))
    }

    type SessionStream = Forwarded;

    async fn session(
        &self,
        request: Request<Streaming<proto::ClientFrame>>,
    ) -> Result<Response<Forwarded>, Status> {
        let call = CallGuard::new(&self.calls);
        let (metadata, _, frames) = request.into_parts();
        let is_own = !metadata.contains_key(PATH);
        // A broken or malformed stream ends the call to the coordinator.
        let request = self.forwarded(&metadata, frames.map_while(Result::ok))?;
        let coordinator = self.relay.coordinator().await?;
        let mut coordinator = coordinator.max_decoding_message_size(FRAME_BYTES_MAX);
        let frames = coordinator.session(request).await?.into_inner();
        if is_own {
            self.relay.admitted.add(self.certificate, Party::Client);
        }
        Ok(Response::new(Forwarded { frames, _call: call }))
    }
}

/// The frames of a session to its client.
pub struct Forwarded {
    frames: Streaming<proto::ServerFrame>,
    _call: CallGuard,
}

impl Stream for Forwarded {
    type Item = Result<proto::ServerFrame, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        Pin::new(&mut self.frames).poll_next(context)
    }
}

/// Certificates that the coordinator has admitted through this relay.
struct Admitted {
    file: PathBuf,
    parties: Mutex<HashMap<Fingerprint, Party>>,
}

impl Admitted {
    /// Reads the file; lines of another form are ignored.
    fn open(folder: &Path) -> Self {
        let file = folder.join(ADMITTED);
        let text = std::fs::read_to_string(&file).unwrap_or_default();
        let line = |line: &str| match line.split_once(' ') {
            Some(("client", certificate)) => Some((unhex(certificate), Party::Client)),
            Some(("relay", certificate)) => Some((unhex(certificate), Party::Relay)),
            _ => None,
        };
        let parties = Mutex::new(text.lines().filter_map(line).collect());
        Self { file, parties }
    }

    fn party(&self, certificate: &Fingerprint) -> Party {
        let parties = self.parties.lock().unwrap_or_else(PoisonError::into_inner);
        parties.get(certificate).copied().unwrap_or(Party::Unauthenticated)
    }

    /// Adds a certificate unless it is known.
    fn add(&self, certificate: Fingerprint, party: Party) {
        let mut parties = self.parties.lock().unwrap_or_else(PoisonError::into_inner);
        if parties.contains_key(&certificate) {
            return;
        }
        parties.insert(certificate, party);
        let word = if party == Party::Relay { "relay" } else { "client" };
        let file = private_file().create(true).append(true).open(&self.file);
        let line = format!("{word} {}\n", hex(&certificate));
        if let Err(error) = file.and_then(|mut file| file.write_all(line.as_bytes())) {
            tracing::warn!(%error, "{} is not written", self.file.display());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> Result<Vec<Fingerprint>, Refusal> {
        let mut metadata = MetadataMap::new();
        metadata.append(PATH, text.parse().unwrap());
        read_path(&metadata)
    }

    #[test]
    fn a_path_has_its_exact_form() {
        let one = hex(&[0xab; 32]);
        assert_eq!(path(&one), Ok(vec![[0xab; 32]]));
        assert_eq!(path(&format!("{one},{one}")).map(|path| path.len()), Ok(2));
        let long = vec![one.clone(); PATH_MAX + 1].join(",");
        let upper = one.to_uppercase();
        for wrong in
            ["", ",", "ab", &one[1..], &format!("{one},"), &format!("{one} "), &upper, &long]
        {
            assert_eq!(path(wrong), Err(Refusal::Malformed), "{wrong:?}");
        }
        let mut twice = MetadataMap::new();
        twice.append(PATH, one.parse().unwrap());
        twice.append(PATH, one.parse().unwrap());
        assert_eq!(read_path(&twice), Err(Refusal::Malformed));
        assert_eq!(read_path(&MetadataMap::new()), Err(Refusal::Malformed));
    }

    #[test]
    fn admitted_certificates_are_known_to_the_next_process() {
        let folder = tempfile::tempdir().unwrap();
        let admitted = Admitted::open(folder.path());
        admitted.add([1; 32], Party::Client);
        admitted.add([2; 32], Party::Relay);
        admitted.add([2; 32], Party::Client);
        // The end of a line that a crash cut off.
        let file = private_file().append(true).open(folder.path().join(ADMITTED));
        file.unwrap().write_all(b"client 0303").unwrap();
        let again = Admitted::open(folder.path());
        let parties = [1, 2, 3].map(|byte| again.party(&[byte; 32]));
        assert_eq!(parties, [Party::Client, Party::Relay, Party::Unauthenticated]);
    }
}
