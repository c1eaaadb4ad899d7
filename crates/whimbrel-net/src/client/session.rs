//! One session of a client: hello, tasks, uploads, acknowledgements.

use super::link::{ConnectError, Connection, chain};
use super::progress::Progress;
use super::store::ClientStore;
use crate::durable_run::is_full_disk;
use crate::frames::{Assembly, Parcel, chunks, to_server};
use crate::invitation::Fingerprint;
use crate::limits::{FRAME_BYTES_MAX, message_bytes_max};
use crate::proto::{self, Kind, client_frame, server_frame};
use crate::tls::Identity;
use crate::{DECLINED, PROTOCOL};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::mpsc::{self, error::TrySendError};
use tokio::task::{JoinError, JoinHandle};
use tokio::time::{Instant, sleep, timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Status, Streaming};
use whimbrel_core::text::printable;
use whimbrel_core::{Error, Result};
use whimbrel_engine::client::StepId;

/// Capacity of the queue of outgoing frames.
const FRAMES_AHEAD: usize = 4;
/// Longest wait for the welcome.
const WELCOME: Duration = Duration::from_secs(60);
/// Period of checking the request to stop.
const TICK: Duration = Duration::from_millis(100);
/// Pause between two attempts on a full disk.
const RETRY: Duration = Duration::from_secs(1);
/// Maximal acknowledgements that wait for a computation. A coordinator sends one for each upload,
/// and a client that computes has few unacknowledged uploads.
const ACKS_AHEAD: usize = 64;
/// Longest wait for the coordinator's farewell.
const GOODBYE: Duration = Duration::from_secs(5);

/// End of a session.
pub(super) enum End {
    /// The model is stored; `known` if the coordinator has recorded it.
    Delivered { known: bool },
    /// The job is over, for the reason that the coordinator states.
    Over(String),
    /// The client was told to stop.
    Stopped,
    /// The connection ended before the coordinator's welcome.
    NotWelcomed(String),
    /// The connection ended after the welcome.
    Lost(String),
}

type Frames = mpsc::Sender<proto::ClientFrame>;
/// The last accepted step, and the staged step.
type Standing = (Option<StepId>, Option<StepId>);

/// A complete task.
struct Task {
    kind: Kind,
    at: StepId,
    client: u32,
    message: Vec<u8>,
}

/// The result of a task, and the store that computed it.
struct Computed {
    store: ClientStore,
    kind: Kind,
    at: StepId,
    answer: Result<Option<Vec<u8>>>,
}

/// Takes part until the connection ends. Errors are permanent.
pub(super) async fn session(
    mut connection: Connection,
    greeting: &mut Greeting,
    mut store: ClientStore,
    stop: &Arc<AtomicBool>,
) -> Result<(ClientStore, End)> {
    let mut opened = match open(&mut connection, greeting.clone(), store.standing()).await {
        Ok(opened) => opened,
        Err(ConnectError::Permanent(error)) => return Err(error),
        Err(ConnectError::Transient(what) | ConnectError::WrongCertificate(what)) => {
            return Ok((store, End::NotWelcomed(what)));
        }
    };
    // The coordinator has bound the announced certificate: the next connection uses it.
    if let Some(folder) = greeting.new_key.take() {
        Identity::adopt_next(&folder)?;
        greeting.next_certificate = None;
    }
    store.pin(&opened.welcome.next_certificate)?;
    store.learn(opened.welcome.verdict())?;
    let heartbeat = Duration::from_millis(u64::from(opened.welcome.heartbeat_ms.max(10)));
    let message_bytes = store.message_bytes();
    let mut active =
        ActiveSession::new(opened.frames, heartbeat, message_bytes, Some(store), stop.clone());
    let end = active.run(&mut opened.incoming).await;
    if let Some(sending) = active.sending.take() {
        sending.abort();
    }
    // A computation is completed and stored; its outcome is asked for in the next session.
    let mut failure = None;
    if let Some(handle) = active.computing.take() {
        let computed = joined(handle.await)?;
        active.store = Some(computed.store);
        failure = computed.answer.err();
    }
    let store = active.store.take().ok_or_else(no_state)?;
    match (end?, failure) {
        // Nothing was lost on the full disk: the step is computed again in the next session.
        (End::Stopped, Some(Error::Storage { .. })) => Ok((store, End::Stopped)),
        (_, Some(error)) => Err(error),
        (end, None) => Ok((store, end)),
    }
}

/// Tells the coordinator the reason for which this client ends; false if it may not know.
pub(super) async fn farewell(
    connection: &mut Connection,
    greeting: Greeting,
    standing: Standing,
    reason: Farewell,
) -> bool {
    match open(connection, greeting, standing).await {
        Ok(mut opened) => say_goodbye(&opened.frames, &mut opened.incoming, reason).await,
        // A coordinator that refuses this client does not wait for it.
        Err(ConnectError::Permanent(_)) => true,
        Err(ConnectError::Transient(_) | ConnectError::WrongCertificate(_)) => false,
    }
}

/// The reason for which a client ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Farewell {
    HasModel,
    /// It withdraws from the run.
    Leaves,
    /// It does not take part for now.
    Declines,
}

/// Content of a hello beside the client's state.
#[derive(Clone, Default)]
pub(super) struct Greeting {
    pub run: Vec<u8>,
    /// The client's future certificate.
    pub next_certificate: Option<Fingerprint>,
    /// The folder whose generated key it replaces.
    pub new_key: Option<PathBuf>,
}

/// A welcomed session.
struct Opened {
    frames: Frames,
    incoming: Streaming<proto::ServerFrame>,
    welcome: proto::Welcome,
}

async fn open(
    connection: &mut Connection,
    Greeting { run, next_certificate, .. }: Greeting,
    (committed, staged): Standing,
) -> Result<Opened, ConnectError> {
    let (frames, outgoing) = mpsc::channel(FRAMES_AHEAD);
    let hello = proto::Hello {
        version: PROTOCOL,
        run: run.into(),
        committed: committed.map(Into::into),
        staged: staged.map(Into::into),
        next_certificate: next_certificate.map(|next| next.to_vec()).unwrap_or_default().into(),
    };
    let transient = |what: &str| ConnectError::Transient(what.into());
    let hello = frames.send(to_server(client_frame::Frame::Hello(hello))).await;
    hello.map_err(|_| transient(BROKEN))?;
    let opening = async {
        let outgoing = ReceiverStream::new(outgoing);
        let client = connection.client.clone();
        let mut client = client.max_decoding_message_size(FRAME_BYTES_MAX);
        let response = client.session(outgoing).await.map_err(connect_error)?;
        let mut incoming = response.into_inner();
        match incoming.message().await.map_err(connect_error)?.and_then(|f| f.frame) {
            Some(server_frame::Frame::Welcome(welcome)) => Ok((incoming, welcome)),
            _ => Err(transient("the coordinator sent no welcome")),
        }
    };
    let opened = timeout(WELCOME, opening).await;
    let (incoming, welcome) =
        opened.map_err(|_| transient("the coordinator does not answer"))??;
    Ok(Opened { frames, incoming, welcome })
}

/// Announces the reason, and waits until the coordinator has recorded it; false if the connection
/// ended before.
async fn say_goodbye(
    frames: &Frames,
    incoming: &mut Streaming<proto::ServerFrame>,
    reason: Farewell,
) -> bool {
    let word = match reason {
        Farewell::HasModel => "delivered",
        Farewell::Leaves => "left",
        Farewell::Declines => DECLINED,
    };
    let bye = proto::Bye { reason: word.into(), over: reason == Farewell::HasModel };
    let goodbye = async {
        frames.send(to_server(client_frame::Frame::Bye(bye))).await.ok()?;
        loop {
            if let server_frame::Frame::Bye(bye) = incoming.message().await.ok()??.frame? {
                return Some(bye.over);
            }
        }
    };
    timeout(GOODBYE, goodbye).await.ok().flatten().unwrap_or(false)
}

/// The meaning of a refused call.
pub(super) fn connect_error(status: Status) -> ConnectError {
    let what = format!("the coordinator refused: {}", printable(status.message()));
    match status.code() {
        Code::PermissionDenied | Code::Unauthenticated | Code::FailedPrecondition => {
            ConnectError::Permanent(Error::peer(what))
        }
        Code::Unimplemented => {
            ConnectError::Permanent(Error::peer("the server is not a coordinator"))
        }
        _ => {
            let cause = std::error::Error::source(&status).map(chain);
            let cause = printable(cause.as_deref().unwrap_or(status.message()));
            ConnectError::Transient(format!("{BROKEN}: {cause}"))
        }
    }
}

const BROKEN: &str = "the connection broke";

/// A session after its welcome.
struct ActiveSession {
    frames: Frames,
    heartbeat: Duration,
    /// Maximal bytes of a message.
    message_bytes: u64,
    /// `None` during a computation.
    store: Option<ClientStore>,
    /// A task that is being received, and the client's id in it.
    assembly: Option<(Assembly, u32)>,
    /// Input received during a computation or an upload.
    queue: Vec<Input>,
    computing: Option<JoinHandle<Computed>>,
    /// An upload under way; its result tells whether it was sent.
    sending: Option<JoinHandle<bool>>,
    progress: Progress,
    stop: Arc<AtomicBool>,
}

/// Input that changes the store.
enum Input {
    Ack(Kind, StepId, bool),
    Task(Task),
}

impl ActiveSession {
    fn new(
        frames: Frames,
        heartbeat: Duration,
        message_bytes: u64,
        store: Option<ClientStore>,
        stop: Arc<AtomicBool>,
    ) -> Self {
        let (assembly, queue, computing, sending) = (None, Vec::new(), None, None);
        let progress = Progress::new(store.as_ref().map_or(0, ClientStore::sent));
        Self {
            frames,
            heartbeat,
            message_bytes,
            store,
            assembly,
            queue,
            computing,
            sending,
            progress,
            stop,
        }
    }

    async fn run(&mut self, incoming: &mut Streaming<proto::ServerFrame>) -> Result<End> {
        let (mut received, mut sent) = (Instant::now(), Instant::now());
        loop {
            self.process_queue()?;
            if self.stop.load(Ordering::Relaxed) {
                return Ok(End::Stopped);
            }
            if received.elapsed() > 3 * self.heartbeat {
                return Ok(End::Lost("the coordinator fell silent".into()));
            }
            if sent.elapsed() >= self.heartbeat / 2 {
                sent = Instant::now();
                let beat = to_server(client_frame::Frame::Heartbeat(proto::Heartbeat {}));
                // A full queue means that an upload is being sent, which serves as a heartbeat.
                if let Err(TrySendError::Closed(_)) = self.frames.try_send(beat) {
                    return Ok(End::Lost(BROKEN.into()));
                }
            }
            let frame = tokio::select! {
                frame = incoming.message() => frame,
                computed = finished(&mut self.computing) => {
                    match self.computed(joined(computed)?, incoming).await? {
                        Some(end) => return Ok(end),
                        None => continue,
                    }
                }
                sent = finished(&mut self.sending) => {
                    if sent.unwrap_or(false) {
                        continue;
                    }
                    return Ok(End::Lost(BROKEN.into()));
                }
                () = sleep(TICK) => continue,
            };
            received = Instant::now();
            let frame = match frame.map_err(connect_error) {
                Ok(Some(frame)) => frame.frame.ok_or_else(out_of_order)?,
                Ok(None) => return Ok(End::Lost("the coordinator closed the connection".into())),
                Err(ConnectError::Permanent(error)) => return Err(error),
                Err(ConnectError::Transient(what) | ConnectError::WrongCertificate(what)) => {
                    return Ok(End::Lost(what));
                }
            };
            if let Some(end) = self.handle(frame)? {
                return Ok(end);
            }
        }
    }

    /// Begins to upload an answer; without one, the model was delivered and the session ends.
    async fn computed(
        &mut self,
        Computed { store, kind, at, answer }: Computed,
        incoming: &mut Streaming<proto::ServerFrame>,
    ) -> Result<Option<End>> {
        self.store = Some(store);
        match answer {
            Ok(Some(bytes)) => {
                self.upload(kind, at, bytes);
                Ok(None)
            }
            Ok(None) => {
                let known = say_goodbye(&self.frames, incoming, Farewell::HasModel).await;
                Ok(Some(End::Delivered { known }))
            }
            Err(error) => {
                self.fail(&error).await;
                Err(error)
            }
        }
    }

    /// Handles one frame; returns the end of the session if the coordinator ends it.
    fn handle(&mut self, frame: server_frame::Frame) -> Result<Option<End>> {
        match frame {
            server_frame::Frame::Task(task) => {
                let at = task.at.ok_or_else(out_of_order)?.into();
                if self.assembly.is_some() {
                    return Err(out_of_order());
                }
                self.check_length(task.kind(), task.bytes)?;
                let begun = Assembly::new(task.kind(), at, task.bytes);
                self.assembly = Some((begun, task.client));
            }
            server_frame::Frame::Chunk(chunk) => {
                let (assembly, _) = self.assembly.as_mut().ok_or_else(out_of_order)?;
                assembly.add(&chunk.data).map_err(Error::peer)?;
            }
            server_frame::Frame::Ack(ack) => {
                let at = ack.at.ok_or_else(out_of_order)?.into();
                if !ack.accepted {
                    tracing::warn!("an upload was refused: {}", printable(&ack.reason));
                }
                self.enqueue(Input::Ack(ack.kind(), at, ack.accepted))?;
            }
            server_frame::Frame::Heartbeat(_) => {}
            server_frame::Frame::Bye(bye) => {
                let reason = printable(&bye.reason);
                return Ok(Some(if bye.over { End::Over(reason) } else { End::Lost(reason) }));
            }
            server_frame::Frame::Welcome(_) => return Err(out_of_order()),
        }
        if let Some((whole, client)) = self.assembly.take_if(|(a, _)| a.is_whole()) {
            let (kind, at) = (whole.kind, whole.at);
            let message = whole.into_bytes();
            self.enqueue(Input::Task(Task { kind, at, client, message }))?;
        }
        Ok(None)
    }

    /// Refuses a message that is longer than offered, when it is announced.
    fn check_length(&self, kind: Kind, bytes: u64) -> Result<()> {
        match message_bytes_max(kind, self.message_bytes) {
            most if bytes > most => Err(Error::peer(format!(
                "the coordinator announces a message of {bytes} bytes, and the offer allows {most}"
            ))),
            _ => Ok(()),
        }
    }

    /// Queues input until no computation and no upload is under way. A new task replaces a queued
    /// one, whose exchange is closed.
    fn enqueue(&mut self, input: Input) -> Result<()> {
        if let Input::Task(_) = input {
            self.queue.retain(|earlier| !matches!(earlier, Input::Task(_)));
        }
        self.queue.push(input);
        match self.queue.len() {
            0..=ACKS_AHEAD => Ok(()),
            _ => Err(Error::peer("the coordinator acknowledges uploads that were never sent")),
        }
    }

    /// Processes queued input while no computation and no upload is under way.
    fn process_queue(&mut self) -> Result<()> {
        while self.computing.is_none() && self.sending.is_none() && !self.queue.is_empty() {
            match self.queue.remove(0) {
                Input::Ack(kind, at, accepted) => {
                    let store = self.store.as_mut().ok_or_else(no_state)?;
                    store.acknowledged(kind, at, accepted);
                }
                Input::Task(task) => {
                    let mut store = self.store.take().ok_or_else(no_state)?;
                    let stop = self.stop.clone();
                    self.computing = Some(tokio::task::spawn_blocking(move || {
                        let answer = work(&mut store, &task, &stop);
                        Computed { store, kind: task.kind, at: task.at, answer }
                    }));
                }
            }
        }
        Ok(())
    }

    /// Begins to upload an answer, without a time limit: the coordinator disconnects slow clients.
    fn upload(&mut self, kind: Kind, at: StepId, bytes: Vec<u8>) {
        let message = Parcel::from(tonic::codegen::Bytes::from(bytes));
        let bytes = message.len() as u64;
        let at_now = self.store.as_ref().and_then(ClientStore::progress);
        let withheld = self.store.as_ref().map_or(0, ClientStore::withheld);
        self.progress.say(at_now, bytes, withheld);
        let upload = proto::Upload { kind: kind.into(), at: Some(at.into()), bytes };
        let frames = self.frames.clone();
        self.sending = Some(tokio::spawn(async move {
            let head = client_frame::Frame::Upload(upload);
            let chunks = chunks(&message).map(client_frame::Frame::Chunk);
            for frame in [head].into_iter().chain(chunks) {
                if frames.send(to_server(frame)).await.is_err() {
                    return false;
                }
            }
            true
        }));
    }

    /// Reports to the coordinator why this client stops.
    async fn fail(&self, error: &Error) {
        let failed = client_frame::Frame::Failed(proto::Failed { reason: told(error) });
        // Frames leave in order: once heartbeats have filled the queue, the report has left.
        let beat = client_frame::Frame::Heartbeat(proto::Heartbeat {});
        for frame in [failed].into_iter().chain(vec![beat; FRAMES_AHEAD + 1]) {
            let _ = timeout(3 * self.heartbeat, self.frames.send(to_server(frame))).await;
        }
        // The task of the connection still has to write them.
        sleep(FLUSH).await;
    }
}

/// Time for the connection to write the report of a failure before the process ends.
const FLUSH: Duration = Duration::from_millis(250);

/// The reason of a failure for the coordinator. Errors of rows and arithmetic may contain values,
/// which stay here.
fn told(error: &Error) -> String {
    match error {
        Error::Data { .. } | Error::Numerical { .. } => {
            "its rows or their arithmetic failed; its own log has the reason".to_owned()
        }
        _ => error.to_string(),
    }
}

/// Computes an answer, and retries while the disk is full.
fn work(store: &mut ClientStore, task: &Task, stop: &AtomicBool) -> Result<Option<Vec<u8>>> {
    loop {
        match store.work(task.kind, task.at, task.client, &task.message) {
            Err(error) if is_full_disk(&error) && !stop.load(Ordering::Relaxed) => {
                tracing::warn!("paused: {error}; retrying");
                std::thread::sleep(RETRY);
            }
            other => return other,
        }
    }
}

/// The result of the running task, which is removed; pending for ever without a task.
async fn finished<T>(running: &mut Option<JoinHandle<T>>) -> Result<T, JoinError> {
    let Some(handle) = running else { return std::future::pending().await };
    let result = handle.await;
    *running = None;
    result
}

fn joined(result: Result<Computed, JoinError>) -> Result<Computed> {
    result.map_err(|e| Error::internal(format!("a computation did not end: {e}")))
}

fn no_state() -> Error {
    Error::internal("the client's state is in use")
}

fn out_of_order() -> Error {
    Error::peer("the coordinator sent frames out of order")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;

    #[test]
    fn the_queue_of_a_busy_client_is_bounded() {
        let (frames, stop) = (mpsc::channel(1).0, Arc::default());
        let mut active = ActiveSession::new(frames, Duration::ZERO, 100, None, stop);
        let at = StepId::enrolment(0);
        for step in 0..1000 {
            let (kind, message) = (Kind::Exchange, vec![0; 100]);
            let task = Task { kind, at: StepId::exchange(0, step), client: 0, message };
            active.enqueue(Input::Task(task)).unwrap();
        }
        let [Input::Task(task)] = &active.queue[..] else { panic!("more than one task") };
        assert_eq!(task.at, StepId::exchange(0, 999));
        for _ in 1..ACKS_AHEAD {
            active.enqueue(Input::Ack(Kind::Exchange, at, true)).unwrap();
        }
        let error = active.enqueue(Input::Ack(Kind::Exchange, at, true)).unwrap_err().to_string();
        assert!(error.contains("acknowledges uploads that were never sent"), "{error}");
        let refuses = |kind, bytes| active.check_length(kind, bytes).is_err();
        assert!(!refuses(Kind::Exchange, 100) && refuses(Kind::Exchange, 101));
        assert!(!refuses(Kind::Deliver, 1 << 30) && refuses(Kind::Deliver, 1 + (1 << 30)));
    }

    #[test]
    fn values_of_rows_stay_out_of_the_reasons_that_a_coordinator_is_told() {
        let value = "cell 17.25 of row 3";
        for error in [Error::data(value), Error::numerical(value)] {
            assert!(!told(&error).contains("17.25"), "{}", told(&error));
        }
        assert!(told(&Error::peer("exchange 3 is over")).contains("exchange 3 is over"));
    }

    #[test]
    fn only_a_full_disk_is_retried() {
        let full = io::Error::from(io::ErrorKind::StorageFull);
        let mut codes = (1..256).map(io::Error::from_raw_os_error);
        let of_system = codes.find(|e| e.kind() == full.kind()).unwrap();
        assert!(is_full_disk(&Error::storage("slot-a", of_system)));
        assert!(!is_full_disk(&Error::storage("slot-a", "it has version 1, this program reads 2")));
        assert!(!is_full_disk(&Error::storage("x", io::Error::from_raw_os_error(13))));
        assert!(!is_full_disk(&Error::data("no rows")));
    }
}
