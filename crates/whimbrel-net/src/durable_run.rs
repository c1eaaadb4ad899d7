//! What a coordinator keeps: nothing that it acknowledged may be lost.
//!
//! A checkpoint, journal and metrics as in a simulation's folder, and beside them a log with every
//! exchange and evaluation since that checkpoint. An exchange is one record, made durable before
//! anybody hears of it. After a crash the checkpoint is read, journal and metrics are cut back to
//! it, and the log's records are applied on top. When the log has grown, a new checkpoint is made
//! and the log begins anew; a record that the checkpoint already holds is known by its numbers and
//! passed over.
//!
//! A full disk stops the job and does not end it: what could not be written is tried again until
//! there is space, or until the coordinator is told to stop.

use crate::inspection::Inspection;
use crate::status::{Board, RunState};
use crate::tls::own_alone;
use crate::wal::Wal;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use whimbrel_core::{ClientId, Error, Result, Wire, wire};
use whimbrel_engine::checkpoint::{Checkpoint, Store};
use whimbrel_engine::client::StepId;
use whimbrel_engine::journal::{Entry, Journal, Line, Naming};
use whimbrel_engine::keeper::{Keeper, Progress, Snapshot, last_seconds, naming_of};
use whimbrel_engine::metrics::Latest;
use whimbrel_engine::runner::{Done, Tally, Traffic};
use whimbrel_engine::runner_state::Change;

/// A log shorter than this is not worth a new checkpoint.
const LOG_BYTES_MIN: u64 = 8 << 20;
/// A log longer than this is, however long its records are.
const LOG_BYTES_MAX: u64 = 256 << 20;
/// Between two tries on a full disk.
const RETRY: Duration = Duration::from_millis(500);

/// A run's folder, as a coordinator keeps it.
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

/// A closed exchange.
#[derive(Debug, PartialEq)]
struct Exchanged {
    stage: u32,
    line: String,
    change: Change,
    tallies: Vec<(ClientId, Tally)>,
    traffic: Traffic,
    progress: Loop,
}

/// Clients joined before an exchange.
#[derive(Debug, PartialEq)]
struct Joined {
    stage: u32,
    change: Change,
    tallies: Vec<(ClientId, Tally)>,
    traffic: Traffic,
}

/// An evaluated round.
#[derive(Debug, PartialEq)]
struct Evaluated {
    stage: u32,
    exchanges: u32,
    /// Of the journal.
    answered: String,
    /// Of the metrics.
    line: String,
    latest: Latest,
    traffic: Traffic,
    progress: Loop,
}

/// [`Progress`] as bytes.
#[derive(Debug, PartialEq, Clone, Copy)]
struct Loop {
    evaluated: Option<u32>,
    patience: Option<(f64, u32)>,
    accepted: u32,
}

wire!(Exchanged { stage, line, change, tallies, traffic, progress });
wire!(Joined { stage, change, tallies, traffic });
wire!(Evaluated { stage, exchanges, answered, line, latest, traffic, progress });
wire!(Loop { evaluated, patience, accepted });

const EXCHANGED: u8 = 1;
/// What was 2 did not say who answered.
const EVALUATED: u8 = 3;
const JOINED: u8 = 4;

impl DurableRun {
    /// Begins with empty files.
    pub fn create(folder: &Path, board: Board, stop: Arc<AtomicBool>) -> Result<Self> {
        let store = Store::create(folder)?;
        own_alone(&folder.join("checkpoint"), 0o700)?;
        let wal = Wal::create(&wal_path(folder))?;
        let folder = folder.to_path_buf();
        let (checkpoint, seconds_before, naming) = (None, 0.0, Naming::default());
        Ok(Self { folder, store, wal, checkpoint, seconds_before, naming, board, stop })
    }

    /// Goes on where an earlier process stopped. It begins where no checkpoint was made and no
    /// exchange was closed: whatever clients sent until then they send again.
    pub fn resume(folder: &Path, board: Board, stop: Arc<AtomicBool>) -> Result<Self> {
        let inspection = Inspection::of(folder)?;
        inspection.whole(folder)?;
        if inspection.kept.is_none() {
            return Self::create(folder, board, stop);
        }
        own_alone(&folder.join("checkpoint"), 0o700)?;
        let (mut store, mut checkpoint) = Store::resume(folder)?;
        let path = wal_path(folder);
        let wal = match path.exists() {
            true => Wal::open(&path, |record| apply(record, &mut checkpoint, &mut store))?,
            false => Wal::create(&path)?,
        };
        store.flush()?;
        let (seconds_before, naming) = (last_seconds(folder), naming_of(folder)?);
        let (folder, checkpoint) = (folder.to_path_buf(), Some(checkpoint));
        Ok(Self { folder, store, wal, checkpoint, seconds_before, naming, board, stop })
    }

    /// The last accepted step of every client, from the journal and the clients of the stage under
    /// way.
    pub fn fates(&self) -> Result<BTreeMap<ClientId, StepId>> {
        let mut fates: BTreeMap<ClientId, StepId> = BTreeMap::new();
        let Some(checkpoint) = &self.checkpoint else { return Ok(fates) };
        for line in self.journal()?.lines() {
            match Line::parse(line)? {
                Line::Exchange(entry) => {
                    let at = StepId::exchange(entry.stage, entry.exchange);
                    fates.extend(entry.accepted_ids()?.into_iter().map(|id| (id, at)));
                }
                // All clients left, and their states were lost.
                Line::Repair(repair) => fates.retain(|_, at| at.stage != repair.stage),
                Line::StageBegin(_) | Line::Evaluation(_) => {}
            }
        }
        let begun = StepId::enrolment(checkpoint.stage);
        for id in checkpoint.runner.state.enrolled() {
            let last = fates.entry(id).or_insert(begun);
            *last = begun.max(*last);
        }
        Ok(fates)
    }

    /// The stage under way, from zero, and its rounds so far.
    pub fn stands_at(&self) -> Option<(u32, u32)> {
        self.checkpoint.as_ref().map(|kept| (kept.stage, kept.runner.state.round()))
    }

    /// The last stage in which the run was repaired.
    pub fn repaired(&self) -> Result<Option<u32>> {
        if self.checkpoint.is_none() {
            return Ok(None);
        }
        let mut repaired = None;
        for line in self.journal()?.lines() {
            if let Line::Repair(repair) = Line::parse(line)? {
                repaired = Some(repair.stage);
            }
        }
        Ok(repaired)
    }

    /// Who joined before the exchange under way: no line of the journal has them yet.
    pub fn joined(&self) -> Result<Vec<ClientId>> {
        let Some(checkpoint) = &self.checkpoint else { return Ok(Vec::new()) };
        let admitted = Journal::parse(&self.journal()?, checkpoint.stage)?.admitted();
        let enrolled = checkpoint.runner.state.enrolled().into_iter();
        Ok(enrolled.filter(|id| !admitted.contains(id)).collect())
    }

    /// The evaluations so far, as in `metrics.jsonl`.
    pub fn rows(&self) -> Vec<serde_json::Value> {
        let text = std::fs::read_to_string(self.folder.join("metrics.jsonl")).unwrap_or_default();
        text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    /// How many rounds of all stages accepted an upload of each client.
    pub fn rounds(&self) -> Result<BTreeMap<ClientId, u64>> {
        let mut rounds = BTreeMap::new();
        if self.checkpoint.is_some() {
            for entry in self.exchanges()?.iter().filter(|entry| entry.round.is_some()) {
                for id in entry.accepted_ids()? {
                    *rounds.entry(id).or_insert(0) += 1;
                }
            }
        }
        Ok(rounds)
    }

    fn journal(&self) -> Result<String> {
        let path = self.folder.join("journal");
        std::fs::read_to_string(&path).map_err(|e| Error::storage(path.display(), e))
    }

    /// The journal's exchanges, in order.
    fn exchanges(&self) -> Result<Vec<Entry>> {
        let mut exchanges = Vec::new();
        for line in self.journal()?.lines() {
            if let Line::Exchange(entry) = Line::parse(line)? {
                exchanges.push(entry);
            }
        }
        Ok(exchanges)
    }

    /// Tries until it is done, or until the coordinator is told to stop.
    fn insist(&mut self, mut work: impl FnMut(&mut Self) -> Result<()>) -> Result<()> {
        let (board, stop) = (self.board.clone(), self.stop.clone());
        insist(&board, &stop, || work(self))
    }

    fn save(&mut self, snapshot: &Snapshot<'_>) -> Result<()> {
        let checkpoint = snapshot.without_clients()?;
        self.insist(|run| run.store.save(&checkpoint, Some(snapshot.runner.state())))?;
        self.insist(|run| run.wal.reset())
    }

    /// Adds a line to journal or metrics. It is in the log already: a line that cannot be written
    /// now waits in memory and is written with the next checkpoint.
    fn later(&mut self, add: impl FnOnce(&mut Store) -> Result<()>) {
        if let Err(error) = add(&mut self.store) {
            self.board.warn(&format!("written later: {error}"));
        }
    }

    fn append<T: Wire>(&mut self, tag: u8, record: &T) -> Result<u64> {
        let mut bytes = vec![tag];
        record.put(&mut bytes);
        self.insist(|run| run.wal.append(&bytes))?;
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
        self.insist(|run| run.store.declare(snapshot.measures))?;
        if fresh {
            let line = snapshot.stage_line(&mut self.naming);
            self.later(|store| store.record(&line));
        }
        self.save(snapshot)
    }

    fn joined(&mut self, joined: &[ClientId], snapshot: &Snapshot<'_>) -> Result<()> {
        let record = Joined {
            stage: snapshot.stage,
            change: snapshot.runner.state().machine.change(joined)?,
            tallies: tallies_of(snapshot, joined),
            traffic: snapshot.runner.state().traffic,
        };
        self.append(JOINED, &record).map(drop)
    }

    fn exchange(&mut self, done: &Done, snapshot: &Snapshot<'_>) -> Result<()> {
        let line = snapshot.exchange_line(done, &mut self.naming);
        let record = Exchanged {
            stage: snapshot.stage,
            line: line.to_text(),
            change: snapshot.runner.state().machine.change(&done.accepted)?,
            tallies: tallies_of(snapshot, &done.cohort),
            traffic: snapshot.runner.state().traffic,
            progress: snapshot.progress.into(),
        };
        let bytes = self.append(EXCHANGED, &record)?;
        self.later(|store| store.record(&line));
        // A checkpoint has about the size of a record with everyone in it.
        if self.wal.bytes() > (32 * bytes).clamp(LOG_BYTES_MIN, LOG_BYTES_MAX) {
            self.save(snapshot)?;
        }
        Ok(())
    }

    fn evaluated(&mut self, answered: &[ClientId], snapshot: &Snapshot<'_>) -> Result<()> {
        let Some(latest) = snapshot.latest else { return Ok(()) };
        let line = format!("{}\n", serde_json::Value::Object(latest.row.to_json()));
        let answered = Line::evaluation(snapshot.stage, latest.row.round, answered);
        let record = Evaluated {
            stage: snapshot.stage,
            exchanges: snapshot.runner.state().machine.exchanges(),
            answered: answered.to_text(),
            line: line.clone(),
            latest: latest.clone(),
            traffic: snapshot.runner.state().traffic,
            progress: snapshot.progress.into(),
        };
        self.append(EVALUATED, &record)?;
        self.later(|store| store.record(&answered));
        self.later(|store| store.evaluated_line(&line));
        Ok(())
    }

    fn left(&mut self, snapshot: &Snapshot<'_>) -> Result<()> {
        self.save(snapshot)
    }

    fn failed(&mut self) -> Result<()> {
        self.insist(|run| run.store.flush())
    }
}

/// Bytes that are free where a run is kept.
#[cfg(unix)]
fn disk_free(folder: &Path) -> Option<u64> {
    let found = rustix::fs::statvfs(folder).ok()?;
    Some(found.f_bavail.saturating_mul(found.f_frsize))
}

#[cfg(not(unix))]
fn disk_free(_: &Path) -> Option<u64> {
    None
}

/// Tries until it is done, or until the coordinator is told to stop, and says on the board what
/// keeps it from being done.
pub fn insist<T>(
    board: &Board,
    stop: &AtomicBool,
    mut work: impl FnMut() -> Result<T>,
) -> Result<T> {
    let mut paused = false;
    loop {
        match work() {
            Err(error @ Error::Storage { .. }) => {
                let why = format!(
                    "paused, nothing is lost: {error}; going on as soon as it can be written"
                );
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
                    board.state(RunState::Running, "going on after a pause");
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

/// What a log's record adds to the other files.
pub(crate) trait Adds {
    /// A line of the journal.
    fn journal(&mut self, line: &Line) -> Result<()>;
    /// A line of the metrics.
    fn metrics(&mut self, line: &str) -> Result<()>;
}

impl Adds for Store {
    fn journal(&mut self, line: &Line) -> Result<()> {
        self.record(line)
    }

    fn metrics(&mut self, line: &str) -> Result<()> {
        self.evaluated_line(line)
    }
}

/// Applies a record to a checkpoint, unless the checkpoint was made after it.
pub(crate) fn apply(
    record: &[u8],
    checkpoint: &mut Checkpoint,
    files: &mut dyn Adds,
) -> Result<()> {
    let here = (checkpoint.stage, checkpoint.runner.state.exchanges());
    match record {
        [EXCHANGED, rest @ ..] => {
            let record = Exchanged::from_bytes(rest)?;
            let line = Line::parse(record.line.trim_end())?;
            let Line::Exchange(entry) = &line else {
                return Err(Error::peer("an exchange without its line"));
            };
            if (record.stage, entry.exchange) < here {
                return Ok(());
            }
            checkpoint.runner.state.apply(record.change)?;
            set_tallies(&mut checkpoint.runner.tallies, record.tallies);
            checkpoint.runner.traffic = record.traffic;
            record.progress.restore(checkpoint);
            files.journal(&line)
        }
        [JOINED, rest @ ..] => {
            let record = Joined::from_bytes(rest)?;
            if (record.stage, record.change.exchanges()) < here {
                return Ok(());
            }
            checkpoint.runner.state.join(record.change)?;
            set_tallies(&mut checkpoint.runner.tallies, record.tallies);
            checkpoint.runner.traffic = record.traffic;
            Ok(())
        }
        [EVALUATED, rest @ ..] => {
            let record = Evaluated::from_bytes(rest)?;
            let old = (record.stage, record.exchanges) < here
                || record.progress.evaluated == checkpoint.evaluated;
            if old {
                return Ok(());
            }
            checkpoint.runner.traffic = record.traffic;
            record.progress.restore(checkpoint);
            checkpoint.latest = Some(record.latest);
            files.journal(&Line::parse(record.answered.trim_end())?)?;
            files.metrics(&record.line)
        }
        _ => Err(Error::peer("a record of a kind that this program does not know")),
    }
}

impl From<Progress> for Loop {
    fn from(p: Progress) -> Self {
        Self { evaluated: p.evaluated, patience: p.patience, accepted: p.accepted }
    }
}

impl Loop {
    fn restore(self, checkpoint: &mut Checkpoint) {
        checkpoint.evaluated = self.evaluated;
        checkpoint.patience = self.patience;
        checkpoint.accepted = self.accepted;
    }
}

pub(crate) fn wal_path(folder: &Path) -> PathBuf {
    folder.join("checkpoint").join("log")
}
