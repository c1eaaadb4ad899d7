//! Status snapshot of a run for operators.

use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};
use tokio::sync::watch;
use whimbrel_core::Measure;
use whimbrel_engine::checkpoint::private_file;
pub use whimbrel_report::dashboard::RunState;

/// Maximal evaluations in a snapshot; beyond it, every second one is dropped.
const ROWS_MAX: usize = 2048;
/// Exchanges in the participation strip.
const STRIP_MAX: usize = 60;
/// State text while no client is pending.
const RUNNING: &str = "running";
/// Lines of the log in a snapshot.
const LINES_MAX: usize = 200;

/// Reason of a refused message or connection. The texts explain the variants.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Refusal {
    WrongToken,
    Expired,
    Replayed,
    Revoked,
    RelayRevoked,
    Fixed,
    Name,
    UnknownCertificate,
    Path,
    Role,
    TooManyEnrolments,
    TooManySessions,
    TooManyConnections,
    Handshake,
    NoCertificate,
    UnknownAuthority,
    BadCertificate,
    Silent,
    Version,
    WrongRun,
    Behind,
    Ahead,
    Malformed,
    TooLarge,
    Stalled,
    NotReading,
    Late,
    NotAsked,
    Duplicate,
    Invalid,
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::WrongToken => "no invitation has this token",
            Self::Expired => "this invitation has expired: ask for a new one",
            Self::Replayed => "this invitation was used with another key",
            Self::Revoked => "this client was revoked",
            Self::RelayRevoked => "a relay on the path of this client was revoked",
            Self::Fixed => {
                "nobody joins a masked job after its first stage has begun: sums with and without a \
                 client reveal its part"
            }
            Self::Name => "this name is taken or invalid, or the invitation is for another one",
            Self::UnknownCertificate => "this certificate belongs to no client of the run",
            Self::Path => "the connection came through another relay than the invitation names",
            Self::Role => {
                "an invitation of a relay is for `whimbrel relay`, and that of a client for `whimbrel \
                 join`"
            }
            Self::TooManyEnrolments => "too many refused invitations; try again in a minute",
            Self::TooManySessions => "too many sessions in a minute",
            Self::TooManyConnections => "too many connections",
            Self::Handshake => "the TLS 1.3 handshake failed",
            Self::NoCertificate => "the client sent no certificate",
            Self::UnknownAuthority => "the certificate's authority is unknown",
            Self::BadCertificate => "the certificate is invalid or expired",
            Self::Silent => "the connection was silent for too long",
            Self::Version => "the protocol version differs",
            Self::WrongRun => "this client belongs to another run",
            Self::Behind => "the client's state is older than its last acknowledgement",
            Self::Ahead => {
                "the coordinator lost state: it acknowledged steps to this client that it no longer \
                 has, as after restoring an older copy"
            }
            Self::Malformed => "a malformed message, or frames out of order",
            Self::TooLarge => "a message exceeds its maximal size",
            Self::Stalled => "an upload stopped or was too slow",
            Self::NotReading => "the client does not read its messages",
            Self::Late => "the exchange is closed",
            Self::NotAsked => "this upload was not requested",
            Self::Duplicate => "this upload was received before",
            Self::Invalid => "the method refused the upload",
        })
    }
}

/// The exchange under way.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize)]
pub struct Open {
    /// Number of clients in the cohort.
    pub asked: u32,
    /// Number of answers.
    pub heard: u32,
    /// Number of answers that suffice at the deadline.
    pub quorum: u32,
    /// The deadline, in seconds since 1970.
    pub closes: Option<f64>,
}

/// Format version of `status.json`.
pub const VERSION: u32 = 1;

/// The snapshot.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Status {
    pub version: u32,
    pub job: String,
    pub phase: RunState,
    /// Current activity: pending clients, the reason of a pause, or the result.
    pub state: String,
    pub stage: String,
    /// Index of the stage, from zero.
    pub stage_index: u32,
    pub stages: u32,
    /// Completed rounds of this stage.
    pub round: u32,
    /// Rounds of the last stage, if the job fixes them.
    pub rounds_total: Option<u32>,
    /// Start of the coordinator, in seconds since 1970.
    pub started: f64,
    /// Estimated seconds until the end of the last stage.
    pub eta_s: Option<f64>,
    /// Rate of the last rounds.
    pub rounds_per_second: Option<f64>,
    /// Duration of the last round.
    pub round_seconds: Option<f64>,
    /// Epsilon so far and delta, under differential privacy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub epsilon_spent: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delta: Option<f64>,
    /// Parts of messages that clients withheld in this stage, if there are any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub withheld: Option<u64>,
    /// Number of clients and fingerprint of the roster, under masks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub roster: Option<String>,
    /// Bytes of the log since the last checkpoint.
    pub log_bytes: u64,
    /// Free bytes on the run's disk.
    pub disk_free: Option<u64>,
    /// Bytes of the method's messages in this stage, without repetitions after broken connections.
    pub bytes_up: u64,
    pub bytes_down: u64,
    /// Bytes of evaluations, in both directions.
    pub bytes_eval: u64,
    pub open: Option<Open>,
    /// Declarations of the evaluations' metrics.
    pub measures: Vec<Measure>,
    /// Evaluations as in `metrics.jsonl`, thinned if there are many.
    pub rows: Vec<serde_json::Value>,
    /// All invited clients, by name.
    pub clients: BTreeMap<String, ClientStatus>,
    /// The last exchanges, oldest first.
    pub strip: VecDeque<PastExchange>,
    /// Number of refused messages and connections, by reason.
    pub refused: BTreeMap<Refusal, u64>,
    /// The last lines of the log, oldest first.
    pub log: VecDeque<Line>,
    /// Whether the job is over.
    pub finished: bool,
}

/// One client.
#[derive(Clone, Debug, Default, Serialize)]
pub struct ClientStatus {
    pub id: Option<u32>,
    pub connected: bool,
    /// Whether it has redeemed its invitation.
    pub enrolled: bool,
    /// Address of its last connection.
    pub address: String,
    /// Number of ended connections in this process.
    pub disconnects: u64,
    /// `expected`, `dead` or `revoked`.
    pub standing: String,
    /// Time of its last frame, in seconds since 1970.
    pub last_seen: Option<f64>,
    /// Rounds with an accepted upload; enrolments and openings do not count.
    pub rounds: u64,
    /// Seconds from the last request to its answer.
    pub latency_s: Option<f64>,
    /// Rounds of this process that asked it and closed without its upload.
    pub missed: u64,
    /// Uploads refused by this process.
    pub refused: u64,
    /// Whether it has received the coordinator's announced certificate; `None` without one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub told: Option<bool>,
    /// Whether it has the model.
    pub finished: bool,
    /// Rows stated at the stage's enrolment, if the method keeps them.
    pub rows: Option<u64>,
    /// Bytes of its messages in this stage, as in the run's total.
    pub bytes_up: u64,
    pub bytes_down: u64,
    /// Bytes received by this process, including refused messages.
    pub received: u64,
    /// Bytes sent by this process, including repetitions.
    pub sent: u64,
}

/// A closed exchange in the participation strip.
#[derive(Clone, Debug, Serialize)]
pub struct PastExchange {
    pub stage: u32,
    /// `None` for an opening.
    pub round: Option<u32>,
    /// Ids of the cohort, ascending.
    pub cohort: Vec<u32>,
    /// Ids with an accepted upload, ascending.
    pub accepted: Vec<u32>,
}

/// A line of the log.
#[derive(Clone, Debug, Serialize)]
pub struct Line {
    /// Seconds since 1970.
    pub time: f64,
    pub level: Level,
    pub text: String,
}

/// Severity of a line of the log.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Level {
    Info,
    Warn,
    Error,
}

/// The status board, which holds the snapshot; cheap to clone.
#[derive(Clone)]
pub struct Board(watch::Sender<Status>);

impl Board {
    pub fn new(job: &str) -> Self {
        let (version, job) = (VERSION, job.into());
        let status = Status { version, job, started: now(), ..Status::default() };
        Self(watch::Sender::new(status))
    }

    pub fn watch(&self) -> watch::Receiver<Status> {
        self.0.subscribe()
    }

    pub fn change(&self, change: impl FnOnce(&mut Status)) {
        self.0.send_modify(change);
    }

    /// Changes the status of one client.
    pub fn client(&self, name: &str, change: impl FnOnce(&mut ClientStatus)) {
        self.change(|status| change(status.clients.entry(name.into()).or_default()));
    }

    /// Notes a client's new connection; a return is logged.
    pub fn connected(&self, name: &str, address: &str) {
        if self.0.borrow().clients.get(name).is_some_and(|c| c.disconnects > 0) {
            self.line(&format!("`{name}` returned from {address}"));
        }
        self.client(name, |c| (c.connected, c.address) = (true, address.into()));
    }

    /// Notes the end of a client's connection; it is logged unless the run is over.
    pub fn disconnected(&self, name: &str, is_over: bool) {
        self.client(name, |c| {
            c.connected = false;
            c.disconnects += 1;
        });
        if !is_over {
            self.warn(&format!("`{name}` is disconnected"));
        }
    }

    /// Removes all other clients.
    pub fn forget(&self, known: &BTreeSet<&str>) {
        self.0.send_if_modified(|status| {
            let before = status.clients.len();
            status.clients.retain(|name, _| known.contains(&name[..]));
            status.clients.len() != before
        });
    }

    /// Sets the current activity; an unchanged text is not logged again.
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

    /// Adds a warning to the log.
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

    /// Adds an exchange to the participation strip.
    pub fn exchanged(&self, exchanged: PastExchange) {
        self.change(|status| {
            if let Some(round) = exchanged.round {
                status.round = round;
            }
            if status.phase == RunState::Waiting {
                // No client is pending any more.
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

    /// Writes `status.json`, which `whimbrel status` reads; not made durable.
    pub fn write(&self, folder: &Path) -> std::io::Result<()> {
        static WRITING: Mutex<()> = Mutex::new(());
        let _alone = WRITING.lock().unwrap_or_else(PoisonError::into_inner);
        let text = serde_json::to_string(&*self.0.borrow()).expect("a status is plain data");
        let (beside, path) = (folder.join("status.json.tmp"), folder.join("status.json"));
        let written = private_file().write(true).create(true).truncate(true).open(&beside);
        let written = written
            .and_then(|mut file| std::io::Write::write_all(&mut file, text.as_bytes()))
            .and_then(|()| std::fs::rename(&beside, &path));
        if written.is_ok() || !path.exists() {
            return written;
        }
        // On a full disk, the old file has room for a shortened snapshot.
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
    fn rounds_count_accepted_uploads() {
        let board = Board::new("rounds");
        for (name, id) in [("east", 0), ("west", 1)] {
            board.client(name, |c| c.id = Some(id));
        }
        for (round, accepted) in [(None, vec![0, 1]), (Some(1), vec![0, 1]), (Some(2), vec![1])] {
            board.exchanged(PastExchange { stage: 0, round, cohort: vec![0, 1], accepted });
        }
        let status = board.watch().borrow().clone();
        assert_eq!((status.clients["east"].rounds, status.clients["west"].rounds), (1, 2));
    }

    #[test]
    fn departures_and_returns_are_events() {
        let board = Board::new("events");
        board.connected("east", "10.0.0.1:9");
        board.disconnected("east", false);
        board.connected("east", "10.0.0.2:9");
        board.disconnected("east", true);
        let status = board.watch().borrow().clone();
        let log: Vec<&str> = status.log.iter().map(|line| line.text.as_str()).collect();
        assert_eq!(log, ["`east` is disconnected", "`east` returned from 10.0.0.2:9"]);
        assert_eq!(status.clients["east"].disconnects, 2);
    }

    #[test]
    fn no_client_is_pending_after_the_round() {
        let board = Board::new("late");
        board.state(RunState::Waiting, "fit: late joiners: waiting for `east`");
        let (cohort, accepted) = (vec![0], vec![0]);
        board.exchanged(PastExchange { stage: 0, round: Some(1), cohort, accepted });
        let status = board.watch().borrow().clone();
        assert_eq!((status.phase, status.state.as_str()), (RunState::Running, RUNNING));
    }

    #[test]
    fn the_size_of_a_snapshot_is_bounded() {
        let board = Board::new("long");
        for round in 0..10_000u32 {
            board.row(serde_json::json!({ "round": round }));
            board.line("a line");
            let (cohort, accepted) = (vec![0], vec![0]);
            board.exchanged(PastExchange { stage: 0, round: Some(round), cohort, accepted });
        }
        let status = board.watch().borrow().clone();
        assert!(status.rows.len() <= ROWS_MAX && status.rows.len() >= ROWS_MAX / 2);
        assert_eq!(status.rows.last().unwrap()["round"], 9999);
        assert_eq!((status.strip.len(), status.log.len()), (STRIP_MAX, LINES_MAX));
    }
}
