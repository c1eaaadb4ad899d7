//! What is going on, for people: a snapshot that anybody can watch.

use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};
use tokio::sync::watch;
use whimbrel_core::Measure;
pub use whimbrel_report::dashboard::RunState;

/// Evaluations kept in a snapshot; when there are more, every second one goes.
const ROWS_MAX: usize = 2048;
/// Exchanges in the participation strip.
const STRIP_MAX: usize = 60;
/// What is being done while no client is waited for.
const RUNNING: &str = "running";
/// Lines of the log.
const LINES_MAX: usize = 200;

/// Why a message or a connection was refused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Refusal {
    /// A token that no invitation has.
    WrongToken,
    /// An invitation that was not redeemed in time.
    Expired,
    /// An invitation that another certificate has used.
    Replayed,
    /// A client that may not take part any more.
    Revoked,
    /// A name that is taken, is none, or is not the invitation's.
    Name,
    /// A certificate that no invitation is bound to.
    UnknownCertificate,
    /// Too many wrong tokens in a minute.
    TooManyEnrolments,
    /// A client that comes back again and again.
    TooManySessions,
    /// Too many connections.
    TooManyConnections,
    /// No TLS 1.3, or no HTTP/2 in it.
    Handshake,
    /// No certificate was shown.
    NoCertificate,
    /// A certificate of an authority that the coordinator does not know.
    UnknownAuthority,
    /// A certificate that cannot be taken: expired, or for something else.
    BadCertificate,
    /// Nothing was said in time.
    Silent,
    /// A peer of another protocol version.
    Version,
    /// A client of another run.
    WrongRun,
    /// A client whose state is older than what was acknowledged to it.
    Behind,
    /// A client to which more was acknowledged than the coordinator knows of.
    Ahead,
    /// A frame out of order, or bytes that are no message.
    Malformed,
    /// A message beyond its bound.
    TooLarge,
    /// An upload that stopped half-way, or came too slowly.
    Stalled,
    /// A client that sends and does not read what it is sent.
    NotReading,
    /// An upload for an exchange that is closed.
    Late,
    /// An unsolicited upload.
    NotAsked,
    /// An upload that was there already.
    Duplicate,
    /// An upload that the method refused: wrong shape, numbers that are not finite.
    Invalid,
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::WrongToken => "no invitation has this token",
            Self::Expired => "this invitation has expired: ask for a new one",
            Self::Replayed => "this invitation was used with another key",
            Self::Revoked => "this client was revoked",
            Self::Name => "this name is taken, or the invitation is for another one",
            Self::UnknownCertificate => "this certificate belongs to no client of the run",
            Self::TooManyEnrolments => "too many wrong tokens; try again in a minute",
            Self::TooManySessions => "too many sessions in a minute",
            Self::TooManyConnections => "too many connections",
            Self::Handshake => "no TLS 1.3 handshake",
            Self::NoCertificate => "no certificate was shown",
            Self::UnknownAuthority => "a certificate of an unknown authority",
            Self::BadCertificate => "a certificate that cannot be taken, such as one that expired",
            Self::Silent => "nothing was said in time",
            Self::Version => "another version of the protocol",
            Self::WrongRun => "this client belongs to another run",
            Self::Behind => "the client's state is not the one that was acknowledged to it",
            Self::Ahead => {
                "the coordinator lost state: it acknowledged to this client more than it knows of, as \
                 after it was restored from an older copy"
            }
            Self::Malformed => "frames out of order, or bytes that are no message",
            Self::TooLarge => "a message beyond its bound",
            Self::Stalled => "an upload stopped half-way, or came too slowly",
            Self::NotReading => "it does not read what it is sent",
            Self::Late => "the exchange is closed",
            Self::NotAsked => "this upload was not requested",
            Self::Duplicate => "this upload was there already",
            Self::Invalid => "the method refused the upload",
        })
    }
}

/// The exchange under way.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize)]
pub struct Open {
    /// How many clients are asked.
    pub asked: u32,
    /// How many were heard.
    pub heard: u32,
    /// How many are enough at the deadline.
    pub quorum: u32,
    /// When the deadline is, in seconds since 1970.
    pub closes: Option<f64>,
}

/// The form of `status.json`.
pub const VERSION: u32 = 1;

/// The snapshot.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Status {
    /// Of the file's form.
    pub version: u32,
    /// The job's name.
    pub job: String,
    /// Where the run stands.
    pub phase: RunState,
    /// What is being done, in words: waiting for whom, paused and why, finished.
    pub state: String,
    /// The stage's name.
    pub stage: String,
    /// Its number, from zero, and how many there are.
    pub stage_index: u32,
    /// How many stages there are.
    pub stages: u32,
    /// Rounds done in this stage.
    pub round: u32,
    /// Rounds that the last stage will have, where the job says so.
    pub rounds_total: Option<u32>,
    /// When the coordinator was started, in seconds since 1970.
    pub started: f64,
    /// When the last round of the last stage will be done at the present pace; seconds from now.
    pub eta_s: Option<f64>,
    /// Rounds per second over the last ones.
    pub rounds_per_second: Option<f64>,
    /// Seconds that the last round took.
    pub round_seconds: Option<f64>,
    /// Bytes of the log since the last checkpoint.
    pub log_bytes: u64,
    /// Bytes that are free where the run is kept.
    pub disk_free: Option<u64>,
    /// The method's messages of this stage, without what broken connections repeated.
    pub bytes_up: u64,
    /// The same for the way down.
    pub bytes_down: u64,
    /// Both ways, for evaluations alone.
    pub bytes_eval: u64,
    /// The exchange under way.
    pub open: Option<Open>,
    /// What the figures of evaluations are.
    pub measures: Vec<Measure>,
    /// Evaluations so far (thinned out where there are many), as in `metrics.jsonl`.
    pub rows: Vec<serde_json::Value>,
    /// Everyone invited, by name.
    pub clients: BTreeMap<String, ClientStatus>,
    /// The last exchanges, oldest first.
    pub strip: VecDeque<Exchanged>,
    /// How many messages and connections were refused, by reason.
    pub refused: BTreeMap<Refusal, u64>,
    /// The last lines of the log, oldest first.
    pub log: VecDeque<Line>,
    /// Whether the job is over.
    pub finished: bool,
}

/// One client.
#[derive(Clone, Debug, Default, Serialize)]
pub struct ClientStatus {
    /// Its number, once it has one.
    pub id: Option<u32>,
    /// Whether there is a connection.
    pub connected: bool,
    /// Where it connected from last.
    pub address: String,
    /// How often its connection ended, in this process.
    pub disconnects: u64,
    /// `expected`, `dead` or `revoked`.
    pub standing: String,
    /// When it was last heard from, in seconds since 1970.
    pub last_seen: Option<f64>,
    /// Rounds in which its upload was accepted; enrolments and openings do not count.
    pub rounds: u64,
    /// Seconds from the last question to its answer.
    pub latency_s: Option<f64>,
    /// Rounds that went on without it because it was not connected, by this process.
    pub missed: u64,
    /// Uploads refused by this process.
    pub refused: u64,
    /// Rows that it stated when it enrolled in this stage, where the method remembers them.
    pub rows: Option<u64>,
    /// Bytes that it sent in this stage, as the method counts them: over all clients they are the run's.
    pub bytes_up: u64,
    /// The same for the way down.
    pub bytes_down: u64,
    /// Bytes of messages received from it by this process, refused ones included.
    pub received: u64,
    /// Bytes of messages sent to it by this process, repeated ones included.
    pub sent: u64,
}

/// One exchange of the strip.
#[derive(Clone, Debug, Serialize)]
pub struct Exchanged {
    /// Its stage.
    pub stage: u32,
    /// The round; none for an opening.
    pub round: Option<u32>,
    /// Who was asked, by number.
    pub cohort: Vec<u32>,
    /// Whose upload was accepted, in ascending order.
    pub accepted: Vec<u32>,
}

/// A line of the log.
#[derive(Clone, Debug, Serialize)]
pub struct Line {
    /// Seconds since 1970.
    pub time: f64,
    /// How bad it is.
    pub level: Level,
    /// What happened.
    pub text: String,
}

/// How bad a line of the log is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Level {
    /// As it should be.
    Info,
    /// Worth a look.
    Warn,
    /// Wrong.
    Error,
}

/// Where the snapshot is made; cheap to clone.
#[derive(Clone)]
pub struct Board(watch::Sender<Status>);

impl Board {
    /// A board for a job of that name.
    pub fn new(job: &str) -> Self {
        let (version, job) = (VERSION, job.into());
        let status = Status { version, job, started: now(), ..Status::default() };
        Self(watch::Sender::new(status))
    }

    /// Sees every change.
    pub fn watch(&self) -> watch::Receiver<Status> {
        self.0.subscribe()
    }

    /// Changes the snapshot.
    pub fn change(&self, change: impl FnOnce(&mut Status)) {
        self.0.send_modify(change);
    }

    /// Changes one client's part.
    pub fn client(&self, name: &str, change: impl FnOnce(&mut ClientStatus)) {
        self.change(|status| change(status.clients.entry(name.into()).or_default()));
    }

    /// Keeps only these clients.
    pub fn forget(&self, known: &BTreeSet<&str>) {
        self.0.send_if_modified(|status| {
            let before = status.clients.len();
            status.clients.retain(|name, _| known.contains(&name[..]));
            status.clients.len() != before
        });
    }

    /// Says what is being done; a repeated sentence is not logged again.
    pub fn state(&self, phase: RunState, text: impl Into<String>) {
        let text = text.into();
        if self.0.borrow().state != text {
            match phase {
                RunState::Failed => self.log(Level::Error, &text),
                RunState::Paused => self.log(Level::Warn, &text),
                RunState::Waiting | RunState::Running | RunState::Done => {
                    self.log(Level::Info, &text)
                }
            }
            self.change(|status| status.state = text);
        }
        self.change(|status| status.phase = phase);
    }

    /// Adds a line to the log.
    pub fn line(&self, text: &str) {
        self.log(Level::Info, text);
    }

    /// Adds a line about something that should not be.
    pub fn warn(&self, text: &str) {
        self.log(Level::Warn, text);
    }

    fn log(&self, level: Level, text: &str) {
        match level {
            Level::Info => tracing::info!("{text}"),
            Level::Warn => tracing::warn!("{text}"),
            Level::Error => tracing::error!("{text}"),
        }
        let line = Line { time: now(), level, text: text.into() };
        self.change(|status| push(&mut status.log, line, LINES_MAX));
    }

    /// Counts a refusal.
    pub fn refuse(&self, why: Refusal) {
        self.change(|status| *status.refused.entry(why).or_default() += 1);
    }

    /// Adds an exchange to the strip.
    pub fn exchanged(&self, exchanged: Exchanged) {
        self.change(|status| {
            if let Some(round) = exchanged.round {
                status.round = round;
            }
            if status.phase == RunState::Waiting {
                // The clients waited for have come, or are no longer waited for.
                status.phase = RunState::Running;
                status.state = RUNNING.into();
            }
            status.open = None;
            if exchanged.round.is_some() {
                let took_part = |c: &&mut ClientStatus| {
                    c.id.is_some_and(|id| exchanged.accepted.binary_search(&id).is_ok())
                };
                status.clients.values_mut().filter(took_part).for_each(|c| c.rounds += 1);
            }
            push(&mut status.strip, exchanged, STRIP_MAX);
        });
    }

    /// Adds an evaluation.
    pub fn row(&self, row: serde_json::Value) {
        self.change(|status| {
            if status.rows.len() == ROWS_MAX {
                let mut at = 0;
                status.rows.retain(|_| {
                    at += 1;
                    at % 2 == 0
                });
            }
            status.rows.push(row);
        });
    }

    /// Writes `status.json`, which `whimbrel status` reads. Not made durable: it is about now.
    pub fn write(&self, folder: &Path) -> std::io::Result<()> {
        static WRITING: Mutex<()> = Mutex::new(());
        let _alone = WRITING.lock().unwrap_or_else(PoisonError::into_inner);
        let text = serde_json::to_string(&*self.0.borrow()).expect("a status is plain data");
        let (beside, path) = (folder.join("status.json.tmp"), folder.join("status.json"));
        let written = std::fs::write(&beside, text).and_then(|()| std::fs::rename(&beside, &path));
        if written.is_ok() || !path.exists() {
            return written;
        }
        // On a full disk the old file has room for what matters now.
        let _ = std::fs::remove_file(&beside);
        let mut short = self.0.borrow().clone();
        (short.rows, short.strip, short.log) = Default::default();
        let text = serde_json::to_string(&short).expect("a status is plain data");
        let mut file = std::fs::OpenOptions::new().write(true).open(&path)?;
        std::io::Write::write_all(&mut file, text.as_bytes())?;
        file.set_len(text.len() as u64)
    }
}

/// Seconds since 1970.
pub fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |d| d.as_secs_f64())
}

fn push<T>(queue: &mut VecDeque<T>, item: T, most: usize) {
    if queue.len() == most {
        queue.pop_front();
    }
    queue.push_back(item);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_has_the_rounds_that_it_took_part_in() {
        let board = Board::new("rounds");
        for (name, id) in [("east", 0), ("west", 1)] {
            board.client(name, |c| c.id = Some(id));
        }
        for (round, accepted) in [(None, vec![0, 1]), (Some(1), vec![0, 1]), (Some(2), vec![1])] {
            board.exchanged(Exchanged { stage: 0, round, cohort: vec![0, 1], accepted });
        }
        let status = board.watch().borrow().clone();
        assert_eq!((status.clients["east"].rounds, status.clients["west"].rounds), (1, 2));
    }

    #[test]
    fn nobody_is_said_to_be_waited_for_once_the_round_is_over() {
        let board = Board::new("late");
        board.state(RunState::Waiting, "fit: late joiners: waiting for `east`");
        let (cohort, accepted) = (vec![0], vec![0]);
        board.exchanged(Exchanged { stage: 0, round: Some(1), cohort, accepted });
        let status = board.watch().borrow().clone();
        assert_eq!((status.phase, status.state.as_str()), (RunState::Running, RUNNING));
    }

    #[test]
    fn a_snapshot_stays_small_however_long_the_job_runs() {
        let board = Board::new("long");
        for round in 0..10_000u32 {
            board.row(serde_json::json!({ "round": round }));
            board.line("a line");
            let (cohort, accepted) = (vec![0], vec![0]);
            board.exchanged(Exchanged { stage: 0, round: Some(round), cohort, accepted });
        }
        let status = board.watch().borrow().clone();
        assert!(status.rows.len() <= ROWS_MAX && status.rows.len() >= ROWS_MAX / 2);
        assert_eq!(status.rows.last().unwrap()["round"], 9999);
        assert_eq!((status.strip.len(), status.log.len()), (STRIP_MAX, LINES_MAX));
    }
}
