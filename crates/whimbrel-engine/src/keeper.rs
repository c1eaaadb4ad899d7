//! Storage of the state that must survive the process of a run.
//!
//! A simulator may lose its last seconds and recompute them. A coordinator may not, because its
//! clients rely on every acknowledged exchange. So each exchange passes [`Keeper::exchange`] after
//! it is closed and before it is acknowledged, and the keeper writes nothing, a checkpoint at
//! intervals ([`Folder`]), or a durable [`Change`](crate::runner_state::Change) each time.

use crate::checkpoint::{Checkpoint, Store};
use crate::journal::{Line, Naming};
use crate::metrics::Latest;
use crate::runner::{Done, Runner};
use std::path::Path;
use std::time::{Duration, Instant};
use whimbrel_core::{ClientId, Error, Measure, Result};

/// Stores the state of a run.
pub trait Keeper {
    /// The checkpoint of an earlier process; called once, before anything else.
    fn resume(&mut self) -> Result<Option<Checkpoint>>;
    /// Seconds that earlier processes spent.
    fn seconds_before(&self) -> f64;
    /// A stage was opened; `fresh` if it did not resume a checkpoint.
    fn opened(&mut self, fresh: bool, snapshot: &Snapshot<'_>) -> Result<()>;
    /// These clients joined; the line of the next exchange lists them. A keeper that does not write
    /// every exchange need not write this.
    fn joined(&mut self, _joined: &[ClientId], _moment: &Snapshot<'_>) -> Result<()> {
        Ok(())
    }
    /// An exchange is closed and not yet acknowledged. An error ends the run before the
    /// acknowledgement; a keeper that can wait for disk space waits.
    fn exchange(&mut self, done: &Done, snapshot: &Snapshot<'_>) -> Result<()>;
    /// A round was evaluated from the answers of these clients; the snapshot has its figures.
    fn evaluated(&mut self, answered: &[ClientId], snapshot: &Snapshot<'_>) -> Result<()>;
    /// The stage is over or was interrupted, as the snapshot states.
    fn left(&mut self, snapshot: &Snapshot<'_>) -> Result<()>;
    /// The arithmetic failed: metrics and journal are kept up to there, the state is not.
    fn failed(&mut self) -> Result<()>;
}

/// A snapshot of a run.
pub struct Snapshot<'a> {
    /// The current stage, from zero.
    pub stage: u32,
    pub runner: &'a dyn Runner,
    pub progress: Progress,
    pub latest: Option<&'a Latest>,
    /// Declarations of the figures of the stage's evaluations.
    pub measures: &'a [Measure],
    pub(crate) without_clients: &'a dyn Fn() -> Result<Checkpoint>,
}

/// The state of the loop between exchanges.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Progress {
    pub evaluated: Option<u32>,
    /// The best objective so far, and the number of evaluations since.
    pub patience: Option<(f64, u32)>,
    /// Number of uploads accepted in the last round.
    pub accepted: u32,
    /// Whether the stage is over.
    pub finished: bool,
}

impl Snapshot<'_> {
    /// The journal's line of a stage that begins.
    pub fn stage_line(&self, naming: &mut Naming) -> Line {
        let enrolled = self.runner.state().machine.enrolled();
        let names = naming.next(&enrolled, &|| self.runner.names());
        Line::stage_begin(self.stage, &enrolled).naming(names)
    }

    /// The journal's line of an exchange.
    pub fn exchange_line(&self, done: &Done, naming: &mut Naming) -> Line {
        let there = done.joined.iter().chain(&done.cohort);
        Line::exchange(self.stage, done).naming(naming.next(there, &|| self.runner.names()))
    }

    /// Everything needed to resume.
    pub fn checkpoint(&self) -> Result<Checkpoint> {
        let mut checkpoint = self.without_clients()?;
        let state = self.runner.state();
        checkpoint.runner.clients = state.save_clients(0..state.clients.len());
        Ok(checkpoint)
    }

    /// The checkpoint without client states, which [`Store::save`] takes from the runner.
    pub fn without_clients(&self) -> Result<Checkpoint> {
        (self.without_clients)()
    }
}

/// Stores nothing.
pub struct Nowhere;

impl Keeper for Nowhere {
    fn resume(&mut self) -> Result<Option<Checkpoint>> {
        Ok(None)
    }

    fn seconds_before(&self) -> f64 {
        0.0
    }

    fn opened(&mut self, _: bool, _: &Snapshot<'_>) -> Result<()> {
        Ok(())
    }

    fn exchange(&mut self, _: &Done, _: &Snapshot<'_>) -> Result<()> {
        Ok(())
    }

    fn evaluated(&mut self, _: &[ClientId], _: &Snapshot<'_>) -> Result<()> {
        Ok(())
    }

    fn left(&mut self, _: &Snapshot<'_>) -> Result<()> {
        Ok(())
    }

    fn failed(&mut self) -> Result<()> {
        Ok(())
    }
}

/// Writes journal, metrics and, every few seconds, a checkpoint to a run's folder.
pub struct Folder {
    store: Store,
    resumed: Option<Checkpoint>,
    seconds_before: f64,
    naming: Naming,
    saver: Saver,
}

impl Folder {
    /// Creates empty files.
    pub fn create(folder: &Path, checkpoint_every: Duration) -> Result<Self> {
        let store = Store::create(folder)?;
        let saver = Saver::new(checkpoint_every);
        let (seconds_before, naming) = (0.0, Naming::default());
        Ok(Self { store, resumed: None, seconds_before, naming, saver })
    }

    /// Resumes the folder's checkpoint, or creates empty files without one.
    pub fn resume(folder: &Path, checkpoint_every: Duration) -> Result<Self> {
        if !Store::has_checkpoint(folder) {
            return Self::create(folder, checkpoint_every);
        }
        let (store, checkpoint) = Store::resume(folder)?;
        Ok(Self {
            store,
            resumed: Some(checkpoint),
            seconds_before: last_seconds(folder),
            naming: naming_of(folder)?,
            saver: Saver::new(checkpoint_every),
        })
    }
}

impl Keeper for Folder {
    fn resume(&mut self) -> Result<Option<Checkpoint>> {
        Ok(self.resumed.take())
    }

    fn seconds_before(&self) -> f64 {
        self.seconds_before
    }

    fn opened(&mut self, fresh: bool, snapshot: &Snapshot<'_>) -> Result<()> {
        self.saver = Saver::new(self.saver.every);
        self.store.declare(snapshot.measures)?;
        if fresh {
            self.store.record(&snapshot.stage_line(&mut self.naming))?;
        }
        Ok(())
    }

    fn exchange(&mut self, done: &Done, snapshot: &Snapshot<'_>) -> Result<()> {
        self.store.record(&snapshot.exchange_line(done, &mut self.naming))?;
        if self.saver.is_due() {
            self.saver.save(&mut self.store, snapshot)?;
        }
        Ok(())
    }

    fn evaluated(&mut self, answered: &[ClientId], snapshot: &Snapshot<'_>) -> Result<()> {
        let Some(Latest { row, .. }) = snapshot.latest else { return Ok(()) };
        self.store.record(&Line::evaluation(snapshot.stage, row.round, answered))?;
        self.store.evaluated(row)
    }

    fn left(&mut self, snapshot: &Snapshot<'_>) -> Result<()> {
        self.store.save(&snapshot.without_clients()?, Some(snapshot.runner.state()))
    }

    fn failed(&mut self) -> Result<()> {
        self.store.flush()
    }
}

/// The schedule of checkpoints: they take at most a tenth of the time.
struct Saver {
    every: Duration,
    last: Instant,
    cost: Duration,
}

impl Saver {
    fn new(every: Duration) -> Self {
        Self { every, last: Instant::now(), cost: Duration::ZERO }
    }

    fn is_due(&self) -> bool {
        // Zero means after every exchange, whatever it costs.
        let spacing =
            if self.every.is_zero() { self.every } else { self.every.max(self.cost * 10) };
        self.last.elapsed() >= spacing
    }

    fn save(&mut self, store: &mut Store, snapshot: &Snapshot<'_>) -> Result<()> {
        let begin = Instant::now();
        store.save(&snapshot.without_clients()?, Some(snapshot.runner.state()))?;
        self.cost = begin.elapsed();
        self.last = Instant::now();
        Ok(())
    }
}

/// The ids that the journal in a run's folder has named.
pub fn naming_of(folder: &Path) -> Result<Naming> {
    let path = folder.join("journal");
    let text = std::fs::read_to_string(&path).map_err(|e| Error::storage(path.display(), e))?;
    Naming::after(&text)
}

/// The seconds of the last row in a run's folder.
pub fn last_seconds(folder: &Path) -> f64 {
    let text = std::fs::read_to_string(folder.join("metrics.jsonl")).unwrap_or_default();
    let row = text.lines().last().and_then(|l| serde_json::from_str::<serde_json::Value>(l).ok());
    row.and_then(|r| r.get("seconds").and_then(serde_json::Value::as_f64)).unwrap_or(0.0)
}
