//! A coordinator's durable state: no acknowledged step may be lost.
//!
//! A run has a checkpoint, a journal and metrics as in a simulation, and a log of the exchanges and
//! evaluations since the checkpoint. An exchange is one record, made durable before it is
//! acknowledged. After a crash, journal and metrics are truncated to the checkpoint and the log's
//! records are applied. A long log is replaced by a new checkpoint; records that the checkpoint
//! already contains are recognised by their numbers and skipped.
//!
//! A full disk pauses the job: writes are retried until there is space, or until the coordinator
//! is told to stop.

use crate::inspection::Inspection;
use crate::status::{Board, RunState};
use crate::tls::restrict_to_owner;
use crate::wal::Wal;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use whimbrel_core::{ClientId, Error, Result, Wire, wire};
use whimbrel_engine::checkpoint::{Checkpoint, Store};
use whimbrel_engine::client::StepId;
use whimbrel_engine::journal::{Journal, Line, Naming};
use whimbrel_engine::keeper::{Keeper, Progress, Snapshot, last_seconds, naming_of};
use whimbrel_engine::metrics::Latest;
use whimbrel_engine::runner::{Done, Tally, Traffic};
use whimbrel_engine::runner_state::Change;

/// A shorter log does not justify a new checkpoint.
const LOG_BYTES_MIN: u64 = 8 << 20;
/// A longer log always does.
const LOG_BYTES_MAX: u64 = 256 << 20;
/// Pause between two attempts on a full disk.
const RETRY: Duration = Duration::from_millis(500);

/// The durable state of a served run.
pub struct DurableRun {
    folder: PathBuf,
    store: Store,
    wal: Wal,
    checkpoint: Option<Checkpoint>,
    seconds_before: f64,
    naming: Naming,
    board: Board,
    stop: Arc<AtomicBool>,
}

/// The log's record of a closed exchange.
#[derive(Debug, PartialEq)]
struct ExchangeRecord {
    stage: u32,
    line: String,
    change: Change,
    tallies: Vec<(ClientId, Tally)>,
    traffic: Traffic,
    progress: ProgressRecord,
}

/// The record of clients that joined before an exchange.
#[derive(Debug, PartialEq)]
struct JoinRecord {
    stage: u32,
    change: Change,
    tallies: Vec<(ClientId, Tally)>,
    traffic: Traffic,
}

/// The record of an evaluated round.
#[derive(Debug, PartialEq)]
struct EvaluationRecord {
    stage: u32,
    exchanges: u32,
    /// Line of the journal.
    answered: String,
    /// Line of the metrics.
    line: String,
    latest: Latest,
    traffic: Traffic,
    progress: ProgressRecord,
}

/// The stored part of [`Progress`].
#[derive(Debug, PartialEq, Clone, Copy)]
struct ProgressRecord {
    evaluated: Option<u32>,
    patience: Option<(f64, u32)>,
    accepted: u32,
}

wire!(ExchangeRecord { stage, line, change, tallies, traffic, progress });
wire!(JoinRecord { stage, change, tallies, traffic });
wire!(EvaluationRecord { stage, exchanges, answered, line, latest, traffic, progress });
wire!(ProgressRecord { evaluated, patience, accepted });

const EXCHANGED: u8 = 1;
/// Tag 2 (retired) lacked respondents.
const EVALUATED: u8 = 3;
const JOINED: u8 = 4;

/// Acknowledgements of earlier processes.
#[derive(Default)]
pub struct History {
    /// The last accepted step of every client.
    pub accepted: BTreeMap<ClientId, StepId>,
    /// Clients that joined before the exchange under way, which the journal does not name yet.
    pub joined: Vec<ClientId>,
    /// The last stage that was repaired: its clients enrol again.
    pub repaired: Option<u32>,
    /// Number of rounds of all stages with an accepted upload, by client.
    pub rounds: BTreeMap<ClientId, u64>,
}

impl DurableRun {
    /// Creates the files of a new run.
    pub fn create(folder: &Path, board: Board, stop: Arc<AtomicBool>) -> Result<Self> {
        let store = Store::create(folder)?;
        restrict_to_owner(&folder.join("checkpoint"), 0o700)?;
        let wal = Wal::create(&wal_path(folder))?;
        let folder = folder.to_path_buf();
        let (checkpoint, seconds_before, naming) = (None, 0.0, Naming::default());
        Ok(Self { folder, store, wal, checkpoint, seconds_before, naming, board, stop })
    }

    /// Resumes a run. Without a checkpoint and a closed exchange it is created again, and clients
    /// repeat their uploads.
    pub fn resume(folder: &Path, board: Board, stop: Arc<AtomicBool>) -> Result<Self> {
        let inspection = Inspection::of(folder)?;
        inspection.whole(folder)?;
        if inspection.kept.is_none() {
            return Self::create(folder, board, stop);
        }
        restrict_to_owner(&folder.join("checkpoint"), 0o700)?;
        let (mut store, mut checkpoint) = Store::resume(folder)?;
        let path = wal_path(folder);
        let wal = if path.exists() {
            Wal::open(&path, |record| apply(record, &mut checkpoint)?.write(&mut store))?
        } else {
            Wal::create(&path)?
        };
        store.flush()?;
        let (seconds_before, naming) = (last_seconds(folder), naming_of(folder)?);
        let (folder, checkpoint) = (folder.to_path_buf(), Some(checkpoint));
        Ok(Self { folder, store, wal, checkpoint, seconds_before, naming, board, stop })
    }

    /// Reads the journal and the clients of the stage under way.
    pub fn history(&self) -> Result<History> {
        let mut history = History::default();
        let Some(checkpoint) = &self.checkpoint else { return Ok(history) };
        let path = self.folder.join("journal");
        let journal =
            std::fs::read_to_string(&path).map_err(|e| Error::storage(path.display(), e))?;
        for line in journal.lines() {
            match Line::parse(line)? {
                Line::Exchange(entry) => {
                    let at = StepId::exchange(entry.stage, entry.exchange);
                    for id in entry.accepted_ids()? {
                        history.accepted.insert(id, at);
                        if entry.round.is_some() {
                            *history.rounds.entry(id).or_default() += 1;
                        }
                    }
                }
                // All clients left, and their states were lost.
                Line::Repair(repair) => {
                    history.accepted.retain(|_, at| at.stage != repair.stage);
                    history.repaired = Some(repair.stage);
                }
                Line::StageBegin(_) | Line::Evaluation(_) => {}
            }
        }
        let admitted = Journal::parse(&journal, checkpoint.stage)?.admitted();
        let begun = StepId::enrolment(checkpoint.stage);
        for id in checkpoint.runner.state.enrolled() {
            let last = history.accepted.entry(id).or_insert(begun);
            *last = begun.max(*last);
            if !admitted.contains(&id) {
                history.joined.push(id);
            }
        }
        Ok(history)
    }

    /// The stage under way, from zero, and its rounds so far.
    pub fn position(&self) -> Option<(u32, u32)> {
        self.checkpoint.as_ref().map(|kept| (kept.stage, kept.runner.state.round()))
    }

    /// The lines of `metrics.jsonl`.
    pub fn rows(&self) -> Vec<serde_json::Value> {
        let text = std::fs::read_to_string(self.folder.join("metrics.jsonl")).unwrap_or_default();
        text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    fn retry(&mut self, mut work: impl FnMut(&mut Self) -> Result<()>) -> Result<()> {
        let (board, stop) = (self.board.clone(), self.stop.clone());
        retry_storage(&board, &stop, || work(self))
    }

    fn save(&mut self, snapshot: &Snapshot<'_>) -> Result<()> {
        let checkpoint = snapshot.without_clients()?;
        self.retry(|run| run.store.save(&checkpoint, Some(snapshot.runner.state())))?;
        self.retry(|run| run.wal.reset())
    }

    /// Adds a line to journal or metrics. The log holds it already: a line that cannot be written
    /// now stays in memory until the next checkpoint.
    fn add_line(&mut self, add: impl FnOnce(&mut Store) -> Result<()>) {
        if let Err(error) = add(&mut self.store) {
            self.board.warn(&format!("to be written later: {error}"));
        }
    }

    fn append<T: Wire>(&mut self, tag: u8, record: &T) -> Result<u64> {
        let mut bytes = vec![tag];
        record.put(&mut bytes);
        self.retry(|run| run.wal.append(&bytes))?;
        let (log_bytes, disk_free) = (self.wal.bytes(), disk_free(&self.folder));
        self.board.change(|s| (s.log_bytes, s.disk_free) = (log_bytes, disk_free));
        Ok(bytes.len() as u64)
    }
}

impl Keeper for DurableRun {
    fn resume(&mut self) -> Result<Option<Checkpoint>> {
        Ok(self.checkpoint.take())
    }

    fn seconds_before(&self) -> f64 {
        self.seconds_before
    }

    fn opened(&mut self, fresh: bool, snapshot: &Snapshot<'_>) -> Result<()> {
        self.retry(|run| run.store.declare(snapshot.measures))?;
        if fresh {
            let line = snapshot.stage_line(&mut self.naming);
            self.add_line(|store| store.record(&line));
        }
        self.save(snapshot)
    }

    fn joined(&mut self, joined: &[ClientId], snapshot: &Snapshot<'_>) -> Result<()> {
        let record = JoinRecord {
            stage: snapshot.stage,
            change: snapshot.runner.state().machine.change(joined)?,
            tallies: tallies_of(snapshot, joined),
            traffic: snapshot.runner.state().traffic,
        };
        self.append(JOINED, &record).map(drop)
    }

    fn exchange(&mut self, done: &Done, snapshot: &Snapshot<'_>) -> Result<()> {
        let line = snapshot.exchange_line(done, &mut self.naming);
        let record = ExchangeRecord {
            stage: snapshot.stage,
            line: line.to_text(),
            change: snapshot.runner.state().machine.change(&done.accepted)?,
            tallies: tallies_of(snapshot, &done.cohort),
            traffic: snapshot.runner.state().traffic,
            progress: snapshot.progress.into(),
        };
        let bytes = self.append(EXCHANGED, &record)?;
        self.add_line(|store| store.record(&line));
        // A checkpoint is about as large as a record with all clients.
        if self.wal.bytes() > (32 * bytes).clamp(LOG_BYTES_MIN, LOG_BYTES_MAX) {
            self.save(snapshot)?;
        }
        Ok(())
    }

    fn evaluated(&mut self, answered: &[ClientId], snapshot: &Snapshot<'_>) -> Result<()> {
        let Some(latest) = snapshot.latest else { return Ok(()) };
        let line = format!("{}\n", serde_json::Value::Object(latest.row.to_json()));
        let answered = Line::evaluation(snapshot.stage, latest.row.round, answered);
        let record = EvaluationRecord {
            stage: snapshot.stage,
            exchanges: snapshot.runner.state().machine.exchanges(),
            answered: answered.to_text(),
            line: line.clone(),
            latest: latest.clone(),
            traffic: snapshot.runner.state().traffic,
            progress: snapshot.progress.into(),
        };
        self.append(EVALUATED, &record)?;
        self.add_line(|store| store.record(&answered));
        self.add_line(|store| store.evaluated_line(&line));
        Ok(())
    }

    fn left(&mut self, snapshot: &Snapshot<'_>) -> Result<()> {
        self.save(snapshot)
    }

    fn failed(&mut self) -> Result<()> {
        self.retry(|run| run.store.flush())
    }
}

/// Free bytes on the run's disk.
#[cfg(unix)]
fn disk_free(folder: &Path) -> Option<u64> {
    let found = rustix::fs::statvfs(folder).ok()?;
    Some(found.f_bavail.saturating_mul(found.f_frsize))
}

#[cfg(not(unix))]
fn disk_free(_: &Path) -> Option<u64> {
    None
}

/// Whether an error is about a full disk or an exhausted quota. A storage error keeps only the
/// system's text, which is compared with those of these error codes.
pub fn is_full_disk(error: &Error) -> bool {
    let Error::Storage { what, .. } = error else { return false };
    (1..256).map(std::io::Error::from_raw_os_error).any(|e| {
        let full =
            matches!(e.kind(), std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded);
        full && e.to_string() == *what
    })
}

/// Retries a write until it succeeds or the coordinator is told to stop, and shows the obstacle on
/// the status board.
pub fn retry_storage<T>(
    board: &Board,
    stop: &AtomicBool,
    mut work: impl FnMut() -> Result<T>,
) -> Result<T> {
    let mut paused = false;
    loop {
        match work() {
            Err(error @ Error::Storage { .. }) => {
                let why = format!("paused, nothing is lost: {error}; retrying until it is written");
                board.state(RunState::Paused, why);
                paused = true;
                if stop.load(Ordering::Relaxed) {
                    return Err(error);
                }
                std::thread::sleep(RETRY);
            }
            Err(error) => return Err(error),
            Ok(done) => {
                if paused {
                    board.state(RunState::Running, "resumed after a pause");
                }
                return Ok(done);
            }
        }
    }
}

fn tallies_of(snapshot: &Snapshot<'_>, ids: &[ClientId]) -> Vec<(ClientId, Tally)> {
    let tallies = &snapshot.runner.state().tallies;
    ids.iter().filter_map(|id| Some((*id, *tallies.get(id.0 as usize)?))).collect()
}

fn set_tallies(tallies: &mut Vec<Tally>, moved: Vec<(ClientId, Tally)>) {
    for (id, tally) in moved {
        let at = id.0 as usize;
        if tallies.len() <= at {
            tallies.resize(at + 1, Tally::default());
        }
        tallies[at] = tally;
    }
}

/// Lines that a log's record adds to the journal and the metrics.
#[derive(Default)]
pub(crate) struct Added {
    pub journal: Option<Line>,
    pub metrics: Option<String>,
}

impl Added {
    pub fn write(self, store: &mut Store) -> Result<()> {
        if let Some(line) = &self.journal {
            store.record(line)?;
        }
        self.metrics.map_or(Ok(()), |line| store.evaluated_line(&line))
    }
}

/// Applies a record to a checkpoint, unless the checkpoint already contains it.
pub(crate) fn apply(record: &[u8], checkpoint: &mut Checkpoint) -> Result<Added> {
    let nothing = Added::default();
    let here = (checkpoint.stage, checkpoint.runner.state.exchanges());
    match record {
        [EXCHANGED, rest @ ..] => {
            let record = ExchangeRecord::from_bytes(rest)?;
            let line = Line::parse(record.line.trim_end())?;
            let Line::Exchange(entry) = &line else {
                return Err(Error::peer("an exchange without its line in the journal"));
            };
            if (record.stage, entry.exchange) < here {
                return Ok(nothing);
            }
            checkpoint.runner.state.apply(record.change)?;
            set_tallies(&mut checkpoint.runner.tallies, record.tallies);
            checkpoint.runner.traffic = record.traffic;
            record.progress.restore(checkpoint);
            Ok(Added { journal: Some(line), ..nothing })
        }
        [JOINED, rest @ ..] => {
            let record = JoinRecord::from_bytes(rest)?;
            if (record.stage, record.change.exchanges()) < here {
                return Ok(nothing);
            }
            checkpoint.runner.state.join(record.change)?;
            set_tallies(&mut checkpoint.runner.tallies, record.tallies);
            checkpoint.runner.traffic = record.traffic;
            Ok(nothing)
        }
        [EVALUATED, rest @ ..] => {
            let record = EvaluationRecord::from_bytes(rest)?;
            if (record.stage, record.exchanges) < here
                || record.progress.evaluated == checkpoint.evaluated
            {
                return Ok(nothing);
            }
            checkpoint.runner.traffic = record.traffic;
            record.progress.restore(checkpoint);
            checkpoint.latest = Some(record.latest);
            let journal = Some(Line::parse(record.answered.trim_end())?);
            Ok(Added { journal, metrics: Some(record.line) })
        }
        _ => Err(Error::peer("a record of an unknown kind")),
    }
}

impl From<Progress> for ProgressRecord {
    fn from(p: Progress) -> Self {
        Self { evaluated: p.evaluated, patience: p.patience, accepted: p.accepted }
    }
}

impl ProgressRecord {
    fn restore(self, checkpoint: &mut Checkpoint) {
        checkpoint.evaluated = self.evaluated;
        checkpoint.patience = self.patience;
        checkpoint.accepted = self.accepted;
    }
}

pub(crate) fn wal_path(folder: &Path) -> PathBuf {
    folder.join("checkpoint").join("log")
}
