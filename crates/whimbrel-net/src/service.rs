//! The gRPC service of one connection: enrolment and the frames of its session.

use crate::events::{Event, Link, Order, SharedState};
use crate::frames::{Assembly, Parcel, chunks, to_client};
use crate::invitation::Fingerprint;
use crate::limits::Limits;
use crate::proto::{self, Kind, client_frame, federation_server, server_frame};
use crate::registry::{Redeemed, Redeemer, Standing};
use crate::relay::{PATH, read_path};
use crate::status::{Refusal, now};
use crate::upload_memory::Reservation;
use crate::{DECLINED, PROTOCOL};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep, timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::codegen::Bytes;
use tonic::{Code, Request, Response, Status, Streaming};
use whimbrel_core::text::printable;

/// Minimal average rate of an upload.
pub(crate) const UPLOAD_BYTES_PER_SECOND_MIN: u64 = 16 << 10;

/// Capacity of the queue of outgoing frames.
const FRAMES_AHEAD: usize = 4;

type Frames = mpsc::Sender<Result<proto::ServerFrame, Status>>;

/// The service of one connection.
pub struct ConnectionService {
    pub shared: Arc<SharedState>,
    /// The client certificate of the TLS handshake.
    pub certificate: Fingerprint,
    pub address: String,
    /// Number of calls under way; a connection without calls is soon closed.
    pub calls: Arc<AtomicU32>,
}

#[tonic::async_trait]
impl federation_server::Federation for ConnectionService {
    async fn enrol(
        &self,
        request: Request<proto::EnrolRequest>,
    ) -> Result<Response<proto::EnrolReply>, Status> {
        let _call = CallGuard::new(&self.calls);
        let caller = self.caller(&request).map_err(|why| self.refuse(why))?;
        let request = request.into_inner();
        if request.version != PROTOCOL {
            return Err(self.refuse(Refusal::Version));
        }
        if !self.shared.may_enrol(&self.address) {
            return Err(self.refuse(Refusal::TooManyEnrolments));
        }
        let shared = self.shared.clone();
        // The audit line is part of the task, since this call ends when its connection breaks.
        let token = request.token.clone();
        let redeem = move || {
            let Caller { certificate, via, address } = caller;
            let by = Redeemer {
                certificate: &certificate,
                name: &request.name,
                address: &address,
                via: via.as_deref(),
                is_relay: request.relay,
            };
            let redeemed = shared.registry.redeem(&request.token, &by);
            if let Ok(Redeemed::Client(name)) = &redeemed {
                shared.audit.note("enrolled", name, &address);
                shared.board.client(name, |c| c.enrolled = true);
                shared.board.line(&format!("`{name}` redeemed its invitation from {address}"));
            }
            redeemed
        };
        let redeemed = tokio::task::spawn_blocking(redeem).await;
        match redeemed.map_err(|e| Status::internal(e.to_string()))? {
            Ok(Redeemed::Client(name) | Redeemed::Again(name)) => {
                self.shared.enrolled(&self.address);
                let (run, offer) = (self.shared.run.clone().into(), self.shared.offer.clone());
                Ok(Response::new(proto::EnrolReply { run, name, offer }))
            }
            Ok(Redeemed::Refused(why)) => match self.shared.registry.invited(&token) {
                Some(name) => Err(self.refuse_client(why, &name)),
                None => Err(self.refuse(why)),
            },
            // The list could not be written; the client may retry.
            Err(error) => Err(Status::unavailable(error.to_string())),
        }
    }

    type SessionStream = ReceiverStream<Result<proto::ServerFrame, Status>>;

    async fn session(
        &self,
        request: Request<Streaming<proto::ClientFrame>>,
    ) -> Result<Response<Self::SessionStream>, Status> {
        let caller = self.caller(&request).map_err(|why| self.refuse(why))?;
        let name = self.client(&caller).map_err(|why| self.refuse_caller(why, &caller))?;
        let (shared, client) = (self.shared.clone(), name.clone());
        let (certificate, address) = (caller.certificate, caller.address.clone());
        let changed = move || {
            if let Ok(true) = shared.registry.changed(&client, &certificate, &address) {
                shared.audit.note("certificate-changed", &client, &address);
            }
        };
        let _ = tokio::task::spawn_blocking(changed).await;
        if !self.shared.may_begin(&name) {
            self.shared.board.refuse(Refusal::TooManySessions);
            return Err(status(Refusal::TooManySessions));
        }
        let (frames, out) = mpsc::channel(FRAMES_AHEAD);
        let address = caller.address;
        let session = Session { shared: self.shared.clone(), name, address, frames };
        let call = CallGuard::new(&self.calls);
        tokio::spawn(async move {
            session.run(request.into_inner()).await;
            drop(call);
        });
        Ok(Response::new(ReceiverStream::new(out)))
    }
}

/// The client of a call.
struct Caller {
    certificate: Fingerprint,
    /// The relay that authenticated it; `None` on a direct connection.
    via: Option<String>,
    /// Its own address, or that of the outermost relay.
    address: String,
}

impl ConnectionService {
    /// The certificate of this connection, or the one that relays vouch for.
    fn caller<T>(&self, request: &Request<T>) -> Result<Caller, Refusal> {
        if !request.metadata().contains_key(PATH) {
            let address = self.address.clone();
            return Ok(Caller { certificate: self.certificate, via: None, address });
        }
        let path = read_path(request.metadata())?;
        let (certificate, relays) = path.split_first().ok_or(Refusal::Malformed)?;
        let outermost = [self.certificate].into_iter();
        let relays: Vec<Fingerprint> = outermost.chain(relays.iter().rev().copied()).collect();
        let via = self.shared.registry.relay_of(&relays)?;
        let address = format!("{} via {}", self.address, via.as_deref().unwrap_or_default());
        Ok(Caller { certificate: *certificate, via, address })
    }

    /// The name of a caller that may take part.
    fn client(&self, caller: &Caller) -> Result<String, Refusal> {
        match self.shared.registry.holder(&caller.certificate) {
            None => Err(Refusal::UnknownCertificate),
            Some(entry) if entry.is_relay() => Err(Refusal::Role),
            Some(entry) if entry.standing == Standing::Revoked => Err(Refusal::Revoked),
            Some(entry) if entry.via != caller.via => Err(Refusal::Path),
            Some(entry) => Ok(entry.name),
        }
    }

    fn refuse(&self, why: Refusal) -> Status {
        self.shared.refuse_unauthenticated(why, &self.address);
        status(why)
    }

    /// Refuses the caller by its name, if its certificate has one.
    fn refuse_caller(&self, why: Refusal, caller: &Caller) -> Status {
        match self.shared.registry.holder(&caller.certificate) {
            Some(entry) => self.refuse_client(why, &entry.name),
            None => self.refuse(why),
        }
    }

    /// Refuses a client by its name; too many attempts in a minute are only counted.
    fn refuse_client(&self, why: Refusal, name: &str) -> Status {
        if self.shared.may_begin(name) {
            self.shared.refuse(why, name);
            return status(why);
        }
        self.refuse(why)
    }
}

/// The gRPC status of a refusal. A client stops on a failed precondition or denied permission, and
/// reconnects after all others.
pub(crate) fn status(why: Refusal) -> Status {
    match why {
        Refusal::TooManyEnrolments | Refusal::TooManyConnections | Refusal::TooManySessions => {
            Status::resource_exhausted(why.to_string())
        }
        Refusal::Version | Refusal::WrongRun | Refusal::Behind | Refusal::Ahead => {
            Status::failed_precondition(why.to_string())
        }
        Refusal::Malformed | Refusal::TooLarge => Status::invalid_argument(why.to_string()),
        Refusal::Silent | Refusal::Stalled | Refusal::NotReading => {
            Status::deadline_exceeded(why.to_string())
        }
        _ => Status::permission_denied(why.to_string()),
    }
}

/// Counts a call while it lives.
pub(crate) struct CallGuard(Arc<AtomicU32>);

impl CallGuard {
    pub(crate) fn new(calls: &Arc<AtomicU32>) -> Self {
        calls.fetch_add(1, Ordering::Relaxed);
        Self(calls.clone())
    }
}

impl Drop for CallGuard {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A client's session from hello to its end.
struct Session {
    shared: Arc<SharedState>,
    name: String,
    address: String,
    frames: Frames,
}

/// End of a session.
#[derive(Debug, PartialEq)]
enum End {
    /// The client left, or the connection broke.
    Gone,
    /// The coordinator disconnects the client.
    Cut(Refusal),
}

impl From<Refusal> for End {
    fn from(why: Refusal) -> Self {
        Self::Cut(why)
    }
}

/// The library's message about a body that ends within a frame.
const CUT_SHORT: &str = "Unexpected EOF decoding stream.";

/// Distinguishes malformed frames, which violate the protocol, from a broken connection. An error of
/// the connection has a source. A stream that was reset, as by a client stopped during an upload,
/// has none and looks like a truncated body.
fn why_unread(status: &Status) -> End {
    let is_broken = std::error::Error::source(status).is_some() || status.message() == CUT_SHORT;
    match status.code() {
        _ if is_broken => End::Gone,
        Code::OutOfRange => End::Cut(Refusal::TooLarge),
        Code::Internal => End::Cut(Refusal::Malformed),
        _ => End::Gone,
    }
}

impl Session {
    async fn run(self, mut incoming: Streaming<proto::ClientFrame>) {
        let hello = match self.hello(&mut incoming).await {
            Ok(hello) => hello,
            Err(End::Gone) => return,
            Err(End::Cut(why)) => return self.cut(why).await,
        };
        let (link, orders) = self.shared.link();
        let (session, overrun) = (link.session, link.overrun());
        match self.arrive(hello, link).await {
            Some(Ok(())) => {
                let end = tokio::select! {
                    end = self.listen(&mut incoming) => end,
                    () = self.speak(orders, session) => End::Gone,
                    () = overrun.notified() => End::Cut(Refusal::NotReading),
                };
                if let End::Cut(why) = end {
                    self.tell(Event::Violation { name: self.name.clone() }).await;
                    self.cut(why).await;
                }
            }
            Some(Err(why)) => self.cut(why).await,
            None => {}
        }
        // In any case, since the coordinator was told of this connection.
        self.tell(Event::Left { name: self.name.clone(), session }).await;
    }

    async fn hello(
        &self,
        incoming: &mut Streaming<proto::ClientFrame>,
    ) -> Result<proto::Hello, End> {
        let first = timeout(self.shared.limits.first_frame, incoming.message()).await;
        let frame = first.map_err(|_| Refusal::Silent)?.map_err(|status| why_unread(&status))?;
        let hello = match frame.map(|f| f.frame) {
            Some(Some(client_frame::Frame::Hello(hello))) => hello,
            Some(_) => return Err(End::Cut(Refusal::Malformed)),
            None => return Err(End::Gone),
        };
        match hello {
            hello if hello.version != PROTOCOL => Err(End::Cut(Refusal::Version)),
            hello if hello.run != self.shared.run => Err(End::Cut(Refusal::WrongRun)),
            hello => Ok(hello),
        }
    }

    /// Announces the client to the coordinator and sends its verdict; `None` if the coordinator or
    /// the connection has ended.
    async fn arrive(&self, hello: proto::Hello, link: Link) -> Option<Result<(), Refusal>> {
        let (reply, answer) = oneshot::channel();
        let next = hello.next_certificate;
        self.tell(Event::Arrived {
            name: self.name.clone(),
            link,
            address: self.address.clone(),
            committed: hello.committed.map(Into::into),
            staged: hello.staged.map(Into::into),
            reply,
        })
        .await;
        let verdict = match answer.await.ok()? {
            Ok(verdict) => verdict.into(),
            Err(why) => return Some(Err(why)),
        };
        if let Err(why) = self.bind_next(next).await {
            return Some(Err(why));
        }
        let next_certificate = self.shared.next_certificate.map(|next| next.to_vec());
        let next_certificate = next_certificate.unwrap_or_default().into();
        let heartbeat_ms = self.shared.limits.heartbeat.as_millis() as u32;
        let welcome = proto::Welcome { verdict, heartbeat_ms, next_certificate };
        self.send(server_frame::Frame::Welcome(welcome)).await.ok()?;
        Some(Ok(()))
    }

    /// Binds the client's announced certificate before it is welcomed.
    async fn bind_next(&self, next: Bytes) -> Result<(), Refusal> {
        if next.is_empty() {
            return Ok(());
        }
        let next = Fingerprint::try_from(&next[..]).map_err(|_| Refusal::Malformed)?;
        let (shared, name) = (self.shared.clone(), self.name.clone());
        let announced = tokio::task::spawn_blocking(move || shared.registry.announce(&name, &next));
        let Ok(Ok(is_new)) = announced.await else { return Err(Refusal::Replayed) };
        if is_new {
            self.shared.audit.note("certificate-announced", &self.name, &self.address);
        }
        Ok(())
    }

    /// Reads frames until the client leaves or violates the protocol.
    async fn listen(&self, incoming: &mut Streaming<proto::ClientFrame>) -> End {
        let mut has_failed = false;
        loop {
            let patience = 3 * self.shared.limits.heartbeat;
            let frame = match timeout(patience, incoming.message()).await {
                Err(_) | Ok(Ok(None)) => return End::Gone,
                Ok(Err(status)) => return why_unread(&status),
                Ok(Ok(Some(frame))) => frame,
            };
            self.shared.board.client(&self.name, |c| c.last_seen = Some(now()));
            match frame.frame {
                Some(client_frame::Frame::Heartbeat(_)) => {}
                Some(client_frame::Frame::Upload(upload)) => {
                    if let Err(end) = self.upload(upload, incoming).await {
                        return end;
                    }
                }
                // A client reports its failure once.
                Some(client_frame::Frame::Failed(_)) if has_failed => {
                    return End::Cut(Refusal::Malformed);
                }
                Some(client_frame::Frame::Failed(failed)) => {
                    has_failed = true;
                    let reason = printable(&failed.reason);
                    self.tell(Event::Failed { name: self.name.clone(), reason }).await;
                }
                // The coordinator records it and then closes the session.
                Some(client_frame::Frame::Bye(bye)) => {
                    let name = self.name.clone();
                    let event = if bye.over {
                        Event::Finished { name }
                    } else if bye.reason == DECLINED {
                        Event::Declined { name }
                    } else {
                        Event::Withdrew { name }
                    };
                    self.tell(event).await;
                }
                Some(client_frame::Frame::Hello(_) | client_frame::Frame::Chunk(_)) | None => {
                    return End::Cut(Refusal::Malformed);
                }
            }
        }
    }

    /// Receives one upload.
    async fn upload(
        &self,
        upload: proto::Upload,
        incoming: &mut Streaming<proto::ClientFrame>,
    ) -> Result<(), End> {
        let kind = upload.kind();
        let at = upload.at.ok_or(Refusal::Malformed)?.into();
        let bound = self.shared.bound(kind).ok_or(Refusal::Malformed)?;
        if upload.bytes > bound {
            return Err(End::Cut(Refusal::TooLarge));
        }
        let mut assembly = Assembly::new(kind, at, upload.bytes);
        let mut memory = self.shared.upload_memory.reserve();
        let Limits { stall, turn, upload: longest, .. } = self.shared.limits;
        // Time that the client takes, without its waits for memory.
        let pace = Duration::from_secs(upload.bytes / UPLOAD_BYTES_PER_SECOND_MIN);
        let mut patience = longest.min(stall + pace);
        while !assembly.is_whole() {
            let begun = Instant::now();
            let chunk = self.chunk(incoming, &memory, stall.min(patience)).await?;
            patience = patience.saturating_sub(begun.elapsed());
            let Some(data) = chunk else { continue };
            let capacity = assembly.capacity_with(&data).map_err(|_| Refusal::Malformed)?;
            memory.grow(capacity as u64, data.len() as u64, turn).await;
            assembly.add(&data).map_err(|_| Refusal::Malformed)?;
        }
        let bytes = assembly.into_bytes();
        self.shared.board.client(&self.name, |c| c.received += bytes.len() as u64);
        let name = self.name.clone();
        self.tell(Event::Upload { name, kind, at, bytes, memory }).await;
        Ok(())
    }

    /// The next chunk of an upload; `None` for a heartbeat.
    async fn chunk(
        &self,
        incoming: &mut Streaming<proto::ClientFrame>,
        memory: &Reservation,
        patience: Duration,
    ) -> Result<Option<Bytes>, End> {
        let next = tokio::select! {
            next = incoming.message() => next,
            () = sleep(patience) => return Err(End::Cut(Refusal::Stalled)),
            () = memory.overdue() => return Err(End::Cut(Refusal::Stalled)),
        };
        match next.map_err(|status| why_unread(&status))?.map(|f| f.frame) {
            None => Err(End::Gone),
            Some(Some(client_frame::Frame::Chunk(chunk))) => Ok(Some(chunk.data)),
            Some(Some(client_frame::Frame::Heartbeat(_))) => Ok(None),
            Some(_) => Err(End::Cut(Refusal::Malformed)),
        }
    }

    /// Carries out orders until one closes the connection, or nothing can be sent.
    async fn speak(&self, mut orders: mpsc::Receiver<Order>, session: u64) {
        loop {
            let order = timeout(self.shared.limits.heartbeat, orders.recv()).await;
            let sent = match order {
                Ok(None) => return,
                Err(_) => self.send(server_frame::Frame::Heartbeat(proto::Heartbeat {})).await,
                Ok(Some(Order::Task { kind, at, client, bytes })) => {
                    self.task(kind, at, client, bytes, session).await
                }
                Ok(Some(Order::Ack { kind, at, result })) => {
                    let reason = result.err().map(|why| why.to_string()).unwrap_or_default();
                    let (kind, at) = (kind.into(), Some(at.into()));
                    let ack = proto::Ack { kind, at, accepted: result.is_ok(), reason };
                    self.send(server_frame::Frame::Ack(ack)).await
                }
                Ok(Some(Order::Close { reason, over })) => {
                    let _ = self.send(server_frame::Frame::Bye(proto::Bye { reason, over })).await;
                    return;
                }
            };
            if sent.is_err() {
                return;
            }
        }
    }

    async fn task(
        &self,
        kind: Kind,
        at: whimbrel_engine::StepId,
        client: u32,
        message: Parcel,
        session: u64,
    ) -> Result<(), ()> {
        let bytes = message.len() as u64;
        let task = proto::Task { kind: kind.into(), at: Some(at.into()), client, bytes };
        self.send(server_frame::Frame::Task(task)).await?;
        for chunk in chunks(&message) {
            self.send(server_frame::Frame::Chunk(chunk)).await?;
        }
        self.shared.board.client(&self.name, |c| c.sent += bytes);
        self.tell(Event::Sent { name: self.name.clone(), session }).await;
        Ok(())
    }

    /// Queues a frame; fails if the connection is stalled or closed.
    async fn send(&self, frame: server_frame::Frame) -> Result<(), ()> {
        let sent = self.frames.send(Ok(to_client(frame)));
        timeout(self.shared.limits.stall, sent).await.map_err(|_| ())?.map_err(|_| ())
    }

    async fn cut(&self, why: Refusal) {
        self.shared.refuse(why, &self.name);
        self.shared.board.client(&self.name, |c| c.refused += 1);
        // A client that does not read is not waited for.
        let reads = why != Refusal::NotReading;
        let patience = if reads { self.shared.limits.stall } else { Duration::ZERO };
        let _ = timeout(patience, self.frames.send(Err(status(why)))).await;
    }

    /// Reports to the coordinator, if it still runs.
    async fn tell(&self, event: Event) {
        let _ = self.shared.events.send(event).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::StreamBody;
    use hyper::body::Frame;
    use std::io;
    use tonic::codec::Codec;
    use tonic_prost::ProstCodec;

    /// The end of reading these bytes, after which the connection may break.
    async fn read(bytes: &'static [u8], breaks: bool) -> End {
        let data = Ok(Frame::data(Bytes::from_static(bytes)));
        let broken = breaks.then(|| Err(io::Error::from(io::ErrorKind::ConnectionReset)));
        let frames = [data].into_iter().chain(broken);
        let decoder = ProstCodec::<proto::ServerFrame, proto::ClientFrame>::default().decoder();
        let body = StreamBody::new(tokio_stream::iter(frames));
        let mut incoming = Streaming::new_request(decoder, body, None, Some(1000));
        loop {
            match incoming.message().await {
                Ok(Some(_)) => {}
                Ok(None) => return End::Gone,
                Err(status) => return why_unread(&status),
            }
        }
    }

    #[tokio::test]
    async fn a_broken_connection_is_not_a_violation() {
        let heartbeat = &[0, 0, 0, 0, 2, 0x22, 0];
        for length in 0..=heartbeat.len() {
            assert_eq!(read(&heartbeat[..length], false).await, End::Gone, "ends at {length}");
            assert_eq!(read(&heartbeat[..length], true).await, End::Gone, "breaks at {length}");
        }
        for breaks in [false, true] {
            let malformed = End::Cut(Refusal::Malformed);
            assert_eq!(read(&[0, 0, 0, 0, 2, 0xff, 0xff], breaks).await, malformed);
            assert_eq!(read(&[7, 0, 0, 0, 0], breaks).await, malformed);
            assert_eq!(read(&[1, 0, 0, 0, 0], breaks).await, malformed);
            let too_large = End::Cut(Refusal::TooLarge);
            assert_eq!(read(&[0, 0xff, 0xff, 0xff, 0xff, 1], breaks).await, too_large);
        }
    }
}
