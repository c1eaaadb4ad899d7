//! One session of a client: hello, tasks, uploads, acknowledgements.

use super::link::{Connection, Unreachable, chain};
use super::store::ClientStore;
use crate::PROTOCOL;
use crate::frames::{Assembly, Parcel, chunks, to_server};
use crate::invitation::Fingerprint;
use crate::limits::{FRAME_BYTES_MAX, message_bytes_max};
use crate::proto::{self, Kind, client_frame, server_frame};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::mpsc::{self, error::TrySendError};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Status, Streaming};
use whimbrel_core::text::printable;
use whimbrel_core::{Error, Result};
use whimbrel_engine::client::StepId;

/// Frames waiting for the connection to take them.
const FRAMES_AHEAD: usize = 4;
/// How long the first answer may take.
const WELCOME: Duration = Duration::from_secs(60);
/// How often a client looks whether it is to stop.
const TICK: Duration = Duration::from_millis(100);
/// Between two tries on a full disk.
const RETRY: Duration = Duration::from_secs(1);
/// Acknowledgements that wait for a computation to end. A coordinator has one for each upload, and a
/// client that computes has few uploads whose fate it does not know.
const ACKS_AHEAD: usize = 64;
/// How long the last words may take.
const GOODBYE: Duration = Duration::from_secs(5);

/// How a session ended.
pub(super) enum End {
    /// The model is there, and whether the coordinator knows.
    Delivered {
        /// It does.
        known: bool,
    },
    /// The job is over.
    Over(String),
    /// The client was told to stop.
    Stopped,
    /// The connection is gone, before the coordinator had said welcome.
    Lost(String),
    /// The connection is gone, after that.
    Welcomed(String),
}

type Frames = mpsc::Sender<proto::ClientFrame>;
type Answer = (ClientStore, Result<Option<Vec<u8>>>);

/// A task whose bytes are all there.
struct Task {
    kind: Kind,
    at: StepId,
    client: u32,
    message: Vec<u8>,
}

/// Takes part until the connection ends. Errors are those that another try would meet again.
pub(super) async fn session(
    mut connection: Connection,
    greeting: Greeting,
    mut store: ClientStore,
    stop: &Arc<AtomicBool>,
) -> Result<(ClientStore, End)> {
    let mut opened = match open(&mut connection, greeting, &store).await {
        Ok(opened) => opened,
        Err(Unreachable::Never(error)) => return Err(error),
        Err(Unreachable::Later(what) | Unreachable::Impostor(what)) => {
            return Ok((store, End::Lost(what)));
        }
    };
    store.pin(&opened.welcome.next_certificate)?;
    store.learn(opened.welcome.verdict())?;
    let heartbeat = Duration::from_millis(u64::from(opened.welcome.heartbeat_ms.max(10)));
    let mut talk = Talk {
        frames: opened.frames,
        heartbeat,
        message_bytes: store.message_bytes(),
        store: Some(store),
        queue: Vec::new(),
        busy: None,
        sending: None,
        stop: stop.clone(),
    };
    let end = talk.run(&mut opened.incoming).await;
    if let Some(sending) = talk.sending.take() {
        sending.abort();
    }
    // What is being computed is finished and kept: its fate is asked for when the client is back.
    let mut failure = None;
    if let Some((_, _, handle)) = talk.busy.take() {
        let (store, answer) = joined(handle.await)?;
        talk.store = Some(store);
        failure = answer.err();
    }
    let store = talk.store.take().ok_or_else(|| Error::internal("the state is gone"))?;
    match (end?, failure) {
        // Nothing was lost on the full disk: the step is computed again when the client is back.
        (End::Stopped, Some(Error::Storage { .. })) => Ok((store, End::Stopped)),
        (_, Some(error)) => Err(error),
        (end, None) => Ok((store, end)),
    }
}

/// Tells the coordinator that this client has the model; false where it may not have heard it.
pub(super) async fn farewell(
    connection: &mut Connection,
    greeting: Greeting,
    store: &ClientStore,
) -> bool {
    match open(connection, greeting, store).await {
        Ok(mut opened) => say_goodbye(&opened.frames, &mut opened.incoming).await,
        // A coordinator that does not know this client does not wait for it either.
        Err(Unreachable::Never(_)) => true,
        Err(Unreachable::Later(_) | Unreachable::Impostor(_)) => false,
    }
}

/// What a client says first, beside where it stands.
pub(super) struct Greeting {
    /// The run.
    pub run: Vec<u8>,
    /// The certificate that it will show later.
    pub next_certificate: Option<Fingerprint>,
}

impl Greeting {
    /// Without a change of certificates.
    pub fn plain(run: &[u8]) -> Self {
        Self { run: run.to_vec(), next_certificate: None }
    }
}

/// A session that the coordinator has welcomed.
struct Opened {
    frames: Frames,
    incoming: Streaming<proto::ServerFrame>,
    welcome: proto::Welcome,
}

async fn open(
    connection: &mut Connection,
    Greeting { run, next_certificate }: Greeting,
    store: &ClientStore,
) -> Result<Opened, Unreachable> {
    let (frames, outgoing) = mpsc::channel(FRAMES_AHEAD);
    let (committed, staged) = store.standing();
    let hello = proto::Hello {
        version: PROTOCOL,
        run: run.into(),
        committed: committed.map(Into::into),
        staged: staged.map(Into::into),
        next_certificate: next_certificate.map(|next| next.to_vec()).unwrap_or_default().into(),
    };
    let later = |what: &str| Unreachable::Later(what.into());
    let hello = frames.send(to_server(client_frame::Frame::Hello(hello))).await;
    hello.map_err(|_| later("the connection broke"))?;
    let opening = async {
        let outgoing = ReceiverStream::new(outgoing);
        let client = connection.client.clone();
        let mut client = client.max_decoding_message_size(FRAME_BYTES_MAX);
        let response = client.session(outgoing).await.map_err(unreachable)?;
        let mut incoming = response.into_inner();
        match incoming.message().await.map_err(unreachable)?.and_then(|f| f.frame) {
            Some(server_frame::Frame::Welcome(welcome)) => Ok((incoming, welcome)),
            _ => Err(later("the coordinator did not say welcome")),
        }
    };
    // A machine that went away without a word must not be waited for.
    let opened = timeout(WELCOME, opening).await;
    let (incoming, welcome) = opened.map_err(|_| later("the coordinator does not answer"))??;
    Ok(Opened { frames, incoming, welcome })
}

/// Says that the model is here, and waits for the coordinator to note it; false where the
/// connection went away before.
async fn say_goodbye(frames: &Frames, incoming: &mut Streaming<proto::ServerFrame>) -> bool {
    let bye = proto::Bye { reason: "delivered".into(), over: true };
    let talk = async {
        frames.send(to_server(client_frame::Frame::Bye(bye))).await.ok()?;
        loop {
            match incoming.message().await.ok()??.frame? {
                server_frame::Frame::Bye(bye) => return Some(bye.over),
                _ => continue,
            }
        }
    };
    timeout(GOODBYE, talk).await.ok().flatten().unwrap_or(false)
}

/// A status that another try would meet again ends the client; all others are a lost connection.
fn lost(status: Status) -> Result<End> {
    match unreachable(status) {
        Unreachable::Never(error) => Err(error),
        Unreachable::Later(what) | Unreachable::Impostor(what) => Ok(End::Lost(what)),
    }
}

/// What a refused call means.
pub(super) fn unreachable(status: Status) -> Unreachable {
    let what = format!("the coordinator refused: {}", printable(status.message()));
    match status.code() {
        Code::PermissionDenied | Code::Unauthenticated | Code::FailedPrecondition => {
            Unreachable::Never(Error::peer(what))
        }
        Code::Unimplemented => Unreachable::Never(Error::peer("this is no coordinator")),
        _ => Unreachable::Later(format!("the connection broke: {}", causes(&status))),
    }
}

/// What the status says and what caused it.
fn causes(status: &Status) -> String {
    match std::error::Error::source(status) {
        None => printable(status.message()),
        Some(cause) => printable(&chain(cause)),
    }
}

fn joined(result: Result<Answer, tokio::task::JoinError>) -> Result<Answer> {
    result.map_err(|e| Error::internal(format!("a computation did not end: {e}")))
}

/// The session after its welcome.
struct Talk {
    frames: Frames,
    heartbeat: Duration,
    /// The longest message that is taken.
    message_bytes: u64,
    /// None while it computes.
    store: Option<ClientStore>,
    /// What was learned while it computed.
    queue: Vec<Learned>,
    busy: Option<(Kind, StepId, JoinHandle<Answer>)>,
    /// An upload on its way; while it is, frames are read on. False where it did not get through.
    sending: Option<JoinHandle<bool>>,
    stop: Arc<AtomicBool>,
}

enum Learned {
    Ack(Kind, StepId, bool),
    Task(Task),
}

impl Talk {
    async fn run(&mut self, incoming: &mut Streaming<proto::ServerFrame>) -> Result<End> {
        let mut assembly: Option<(Assembly, u32)> = None;
        let mut heard = Instant::now();
        let mut spoken = Instant::now();
        loop {
            self.go_on()?;
            if self.stop.load(Ordering::Relaxed) {
                return Ok(End::Stopped);
            }
            if heard.elapsed() > 3 * self.heartbeat {
                return Ok(End::Welcomed("the coordinator fell silent".into()));
            }
            if spoken.elapsed() >= self.heartbeat / 2 {
                spoken = Instant::now();
                let beat = to_server(client_frame::Frame::Heartbeat(proto::Heartbeat {}));
                // Where there is no room, an upload is on its way and says as much.
                if let Err(TrySendError::Closed(_)) = self.frames.try_send(beat) {
                    return Ok(End::Welcomed("the connection broke".into()));
                }
            }
            let frame = tokio::select! {
                frame = incoming.message() => frame,
                answer = computed(&mut self.busy) => {
                    let (kind, at, answer) = answer;
                    let (store, answer) = joined(answer)?;
                    self.store = Some(store);
                    let answer = match answer {
                        Ok(answer) => answer,
                        Err(error) => {
                            self.fail(&error).await;
                            return Err(error);
                        }
                    };
                    let Some(bytes) = answer else {
                        let known = say_goodbye(&self.frames, incoming).await;
                        return Ok(End::Delivered { known });
                    };
                    self.answer(kind, at, bytes);
                    continue;
                }
                through = sent(&mut self.sending) => match through {
                    true => continue,
                    false => return Ok(End::Welcomed("the connection broke".into())),
                },
                () = sleep(TICK) => continue,
            };
            heard = Instant::now();
            let frame = match frame {
                Ok(Some(frame)) => frame.frame,
                Ok(None) => {
                    return Ok(End::Welcomed("the coordinator closed the connection".into()));
                }
                Err(status) => {
                    return Ok(match lost(status)? {
                        End::Lost(what) => End::Welcomed(what),
                        end => end,
                    });
                }
            };
            match frame {
                Some(server_frame::Frame::Task(task)) => {
                    let at = task.at.ok_or_else(out_of_order)?.into();
                    if assembly.is_some() {
                        return Err(out_of_order());
                    }
                    self.check_length(task.kind(), task.bytes)?;
                    let begun = Assembly::new(task.kind(), at, task.bytes);
                    assembly = Some((begun, task.client));
                }
                Some(server_frame::Frame::Chunk(chunk)) => {
                    let (whole, _) = assembly.as_mut().ok_or_else(out_of_order)?;
                    whole.add(&chunk.data).map_err(Error::peer)?;
                }
                Some(server_frame::Frame::Ack(ack)) => {
                    let at = ack.at.ok_or_else(out_of_order)?.into();
                    if !ack.accepted {
                        tracing::warn!("an upload was refused: {}", printable(&ack.reason));
                    }
                    self.learn(Learned::Ack(ack.kind(), at, ack.accepted))?;
                }
                Some(server_frame::Frame::Heartbeat(_)) => {}
                Some(server_frame::Frame::Bye(bye)) if bye.over => {
                    return Ok(End::Over(printable(&bye.reason)));
                }
                Some(server_frame::Frame::Bye(bye)) => {
                    return Ok(End::Welcomed(printable(&bye.reason)));
                }
                Some(server_frame::Frame::Welcome(_)) | None => return Err(out_of_order()),
            }
            if let Some((whole, client)) = assembly.take_if(|(a, _)| a.is_whole()) {
                let (kind, at) = (whole.kind, whole.at);
                let message = whole.into_bytes();
                self.learn(Learned::Task(Task { kind, at, client, message }))?;
            }
        }
    }

    /// Refuses a message beyond what was offered before any of it is there.
    fn check_length(&self, kind: Kind, bytes: u64) -> Result<()> {
        match message_bytes_max(kind, self.message_bytes) {
            most if bytes > most => Err(Error::peer(format!(
                "the coordinator announces a message of {bytes} bytes, and {most} were offered \
                 as the most"
            ))),
            _ => Ok(()),
        }
    }

    /// Keeps what was learned until nothing is being computed or uploaded. Only the newest task is
    /// worth its work: its sender has closed what it asked for before.
    fn learn(&mut self, learned: Learned) -> Result<()> {
        if let Learned::Task(_) = learned {
            self.queue.retain(|earlier| !matches!(earlier, Learned::Task(_)));
        }
        self.queue.push(learned);
        match self.queue.len() {
            0..=ACKS_AHEAD => Ok(()),
            _ => Err(Error::peer("the coordinator acknowledges what was never uploaded")),
        }
    }

    /// Works off what was learned, as far as nothing is being computed or uploaded.
    fn go_on(&mut self) -> Result<()> {
        while self.busy.is_none() && self.sending.is_none() && !self.queue.is_empty() {
            let store = self.store.as_mut().ok_or_else(|| Error::internal("the state is away"))?;
            match self.queue.remove(0) {
                Learned::Ack(kind, at, accepted) => store.acknowledged(kind, at, accepted),
                Learned::Task(task) => {
                    let store = self.store.take();
                    let mut store = store.ok_or_else(|| Error::internal("the state is away"))?;
                    let (kind, at) = (task.kind, task.at);
                    let stop = self.stop.clone();
                    let handle = tokio::task::spawn_blocking(move || {
                        let answer = insist(&mut store, &task, &stop);
                        (store, answer)
                    });
                    self.busy = Some((kind, at, handle));
                }
            }
        }
        Ok(())
    }

    /// Begins to upload an answer.
    fn answer(&mut self, kind: Kind, at: StepId, bytes: Vec<u8>) {
        let message = Parcel::from(tonic::codegen::Bytes::from(bytes));
        let bytes = message.len() as u64;
        let upload = proto::Upload { kind: kind.into(), at: Some(at.into()), bytes };
        // No limit on how long it may take: as long as the coordinator is heard from, it is the
        // one to say when an upload is too slow.
        let frames = self.frames.clone();
        self.sending = Some(tokio::spawn(async move {
            let head = to_server(client_frame::Frame::Upload(upload));
            let mut through = frames.send(head).await.is_ok();
            let mut chunks = chunks(&message);
            while through && let Some(chunk) = chunks.next() {
                through = frames.send(to_server(client_frame::Frame::Chunk(chunk))).await.is_ok();
            }
            through
        }));
    }

    /// Tells the coordinator why this client stops.
    async fn fail(&self, error: &Error) {
        let reason = error.to_string();
        self.send(to_server(client_frame::Frame::Failed(proto::Failed { reason }))).await;
        let leaving = proto::Heartbeat {};
        // Frames leave in order: with room for the whole queue, the first has left.
        for _ in 0..=FRAMES_AHEAD {
            self.send(to_server(client_frame::Frame::Heartbeat(leaving))).await;
        }
    }

    async fn send(&self, frame: proto::ClientFrame) -> bool {
        matches!(timeout(3 * self.heartbeat, self.frames.send(frame)).await, Ok(Ok(())))
    }
}

/// Works, and tries again for as long as the disk is full and the client is not to stop.
fn insist(store: &mut ClientStore, task: &Task, stop: &AtomicBool) -> Result<Option<Vec<u8>>> {
    loop {
        match store.work(task.kind, task.at, task.client, &task.message) {
            Err(error @ Error::Storage { .. })
                if is_full_disk(&error) && !stop.load(Ordering::Relaxed) =>
            {
                tracing::warn!("paused: {error}; trying again");
                std::thread::sleep(RETRY);
            }
            other => return other,
        }
    }
}

/// Whether space will help. An error of storage keeps the system's words: they are compared with
/// those that the system has for a full disk and for a used-up quota.
fn is_full_disk(error: &Error) -> bool {
    let Error::Storage { what, .. } = error else { return false };
    (1..256).map(io::Error::from_raw_os_error).any(|e| {
        let full = matches!(e.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded);
        full && e.to_string() == *what
    })
}

/// The computation under way; never, where there is none.
async fn computed(
    busy: &mut Option<(Kind, StepId, JoinHandle<Answer>)>,
) -> (Kind, StepId, Result<Answer, tokio::task::JoinError>) {
    match busy {
        None => std::future::pending().await,
        Some((kind, at, handle)) => {
            let answer = handle.await;
            let done = (*kind, *at, answer);
            *busy = None;
            done
        }
    }
}

/// Whether the upload under way got through; never, where there is none.
async fn sent(sending: &mut Option<JoinHandle<bool>>) -> bool {
    match sending {
        None => std::future::pending().await,
        Some(handle) => {
            let through = handle.await.unwrap_or(false);
            *sending = None;
            through
        }
    }
}

fn out_of_order() -> Error {
    Error::peer("the coordinator sent frames out of order")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn talk() -> Talk {
        Talk {
            frames: mpsc::channel(1).0,
            heartbeat: Duration::ZERO,
            message_bytes: 100,
            store: None,
            queue: Vec::new(),
            busy: None,
            sending: None,
            stop: Arc::default(),
        }
    }

    #[test]
    fn a_coordinator_that_floods_a_busy_client_takes_no_memory() {
        let mut talk = talk();
        let at = StepId::enrolment(0);
        for step in 0..1000 {
            let (kind, message) = (Kind::Exchange, vec![0; 100]);
            let task = Task { kind, at: StepId::exchange(0, step), client: 0, message };
            talk.learn(Learned::Task(task)).unwrap();
        }
        let [Learned::Task(task)] = &talk.queue[..] else { panic!("more than one task") };
        assert_eq!(task.at, StepId::exchange(0, 999));
        for _ in 1..ACKS_AHEAD {
            talk.learn(Learned::Ack(Kind::Exchange, at, true)).unwrap();
        }
        let error = talk.learn(Learned::Ack(Kind::Exchange, at, true)).unwrap_err().to_string();
        assert!(error.contains("acknowledges what was never uploaded"), "{error}");
        let refuses = |kind, bytes| talk.check_length(kind, bytes).is_err();
        assert!(!refuses(Kind::Exchange, 100) && refuses(Kind::Exchange, 101));
        assert!(!refuses(Kind::Deliver, 1 << 30) && refuses(Kind::Deliver, 1 + (1 << 30)));
    }

    #[test]
    fn only_a_full_disk_is_waited_for() {
        let full = io::Error::from(io::ErrorKind::StorageFull);
        let mut codes = (1..256).map(io::Error::from_raw_os_error);
        let of_system = codes.find(|e| e.kind() == full.kind()).unwrap();
        assert!(is_full_disk(&Error::storage("slot-a", of_system)));
        assert!(!is_full_disk(&Error::storage("slot-a", "it has version 1, this program reads 2")));
        assert!(!is_full_disk(&Error::storage("x", io::Error::from_raw_os_error(13))));
        assert!(!is_full_disk(&Error::data("no rows")));
    }
}
