//! Runs a job's stages one after the other, with evaluations, checkpoints and early stops.

use crate::checkpoint::{Checkpoint, Earlier, Store};
use crate::journal::Entry;
use crate::keys::StageKeys;
use crate::metrics::Row;
use crate::participation::{Faults, Participation};
use crate::simulator::{Done, Federation, Simulator, Tally, Traffic};
use rayon::prelude::*;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use whimbrel_core::method::{Artifact, Metric};
use whimbrel_core::{ClientData, DynMethod, Error, Result};

/// One link in a job's chain: initialise, estimate constants, fit.
pub struct Stage {
    /// What it is called in messages.
    pub name: &'static str,
    /// The method that runs it.
    pub method: Box<dyn DynMethod>,
    /// Who takes part.
    pub participation: Participation,
    /// What goes wrong on purpose.
    pub faults: Faults,
    /// Evaluate every so many rounds; none for a stage without metrics.
    pub evaluate_every: Option<u32>,
    /// When to stop early.
    pub stopping: Stopping,
}

/// When a stage ends before its budget is spent.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Stopping {
    /// Once `||h||^2` is at most this.
    pub field_norm2: Option<f64>,
    /// Once the excess loss is at most this.
    pub excess_loss: Option<f64>,
    /// Once the objective has not improved for so many evaluations.
    pub patience: Option<u32>,
    /// A decrease of the objective below this share of it is no improvement.
    pub tolerance: f64,
}

/// Builds stage after stage; each may use what the ones before it delivered.
pub trait Chain {
    /// How many stages.
    fn len(&self) -> usize;
    /// Whether there is none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Builds one stage.
    fn build(&self, index: usize, delivered: &[Artifact]) -> Result<Stage>;
}

/// Where and how long a run may work.
pub struct Limits<'a> {
    /// The run's folder; none keeps nothing on disk.
    pub folder: Option<&'a Path>,
    /// Go on from the folder's checkpoint, where it has one.
    pub resume: bool,
    /// At least so long between checkpoints.
    pub checkpoint_every: Duration,
    /// Set by whoever wants the run to save its state and stop.
    pub interrupt: &'a AtomicBool,
}

/// Who watches a run.
pub trait Observer {
    /// A stage begins.
    fn stage(&mut self, _name: &str, _index: usize, _of: usize) {}
    /// An exchange is done.
    fn exchange(&mut self, _done: &Done) {}
    /// A round was evaluated.
    fn row(&mut self, _row: &Row) {}
}

/// How a run ended.
#[derive(Clone, PartialEq, Debug)]
pub enum Ending {
    /// The method was done.
    Finished,
    /// A stopping rule of the job was met.
    Early(String),
    /// Interrupted; the state is saved.
    Interrupted,
    /// The arithmetic failed; rows and journal up to there are kept.
    Failed(Error),
}

/// What a run leaves.
pub struct Outcome {
    /// How it ended.
    pub ending: Ending,
    /// What each stage delivered; the last one is the model. Empty where the run was
    /// interrupted before there was one.
    pub delivered: Vec<Artifact>,
    /// Client names, by id.
    pub names: Vec<String>,
    /// Bytes and rounds of each client.
    pub tallies: Vec<Tally>,
    /// Each client's own loss at the last evaluation.
    pub losses: Vec<Option<f64>>,
    /// Bytes of all stages.
    pub traffic: Traffic,
    /// Rounds of the last stage.
    pub rounds: u32,
    /// The last evaluation.
    pub last: Option<Row>,
    /// Seconds, those before a resume included.
    pub seconds: f64,
}

/// Runs the chain over these clients (sorted by name; a client's id is its rank).
pub fn run(
    chain: &dyn Chain,
    clients: Vec<(String, ClientData)>,
    seed: u64,
    limits: &Limits<'_>,
    observer: &mut dyn Observer,
) -> Result<Outcome> {
    let (mut store, mut resumed) = match limits.folder {
        Some(folder) if limits.resume && Store::has_checkpoint(folder) => {
            let (store, checkpoint) = Store::resume(folder)?;
            (Some(store), Some(checkpoint))
        }
        Some(folder) => (Some(Store::create(folder)?), None),
        None => (None, None),
    };
    let seconds_before = limits.folder.filter(|_| resumed.is_some()).map_or(0.0, last_seconds);
    let clock = Instant::now();
    let first = resumed.as_ref().map_or(0, |c| c.stage as usize);
    let mut delivered = resumed.as_ref().map_or_else(Vec::new, |c| c.delivered.clone());
    let mut earlier = resumed.as_ref().map_or_else(Earlier::default, |c| c.earlier.clone());
    let names: Vec<String> = clients.iter().map(|(name, _)| name.clone()).collect();
    let mut clients = Some(clients);
    for index in first..chain.len() {
        let stage = chain.build(index, &delivered)?;
        observer.stage(stage.name, index, chain.len());
        let last = index + 1 == chain.len();
        let federation = bind(&stage, &mut clients, last)?;
        let mut work = Work {
            stage: &stage,
            index: index as u32,
            last,
            keys: StageKeys::new(seed, index as u32),
            federation: &federation,
            delivered: &delivered,
            earlier: &earlier,
            limits,
            clock,
            seconds_before,
        };
        let result = work.run(store.as_mut(), resumed.take(), observer)?;
        let traffic = result.traffic;
        let stage_is_over = matches!(result.ending, Ending::Finished | Ending::Early(_));
        match result.artifact {
            Some(artifact) if !last && stage_is_over => {
                delivered.push(artifact);
                earlier = Earlier { traffic, tallies: result.tallies };
            }
            artifact => {
                if artifact.is_none() && result.ending == Ending::Interrupted {
                    delivered.clear();
                }
                delivered.extend(artifact);
                return Ok(Outcome {
                    ending: result.ending,
                    delivered,
                    names,
                    tallies: result.tallies,
                    losses: result.losses,
                    traffic,
                    rounds: result.rounds,
                    last: result.last,
                    seconds: seconds_before + clock.elapsed().as_secs_f64(),
                });
            }
        }
    }
    Err(Error::internal("a job without stages was run"))
}

/// Binds everyone's data for a stage; the last stage takes the tables over, client by client.
fn bind(
    stage: &Stage,
    clients: &mut Option<Vec<(String, ClientData)>>,
    last: bool,
) -> Result<Federation> {
    let one = |name: &str, data: &ClientData| {
        stage.method.bind(data).map_err(|e| match e {
            Error::Data { what, .. } => Error::data(format!("client `{name}`: {what}")),
            other => other,
        })
    };
    let bound: Vec<(String, _)> = if last {
        let all = clients.take().unwrap_or_default();
        all.into_par_iter()
            .map(|(name, data)| one(&name, &data).map(|bound| (name, bound)))
            .collect::<Result<_>>()?
    } else {
        let all = clients.as_deref().unwrap_or_default();
        all.par_iter()
            .map(|(name, data)| one(name, data).map(|bound| (name.clone(), bound)))
            .collect::<Result<_>>()?
    };
    let (names, data) = bound.into_iter().unzip();
    Ok(Federation { names, data })
}

/// One stage under way.
struct Work<'a> {
    stage: &'a Stage,
    index: u32,
    last: bool,
    keys: StageKeys,
    federation: &'a Federation,
    delivered: &'a [Artifact],
    earlier: &'a Earlier,
    limits: &'a Limits<'a>,
    clock: Instant,
    seconds_before: f64,
}

/// How one stage ended.
struct StageResult {
    ending: Ending,
    artifact: Option<Artifact>,
    tallies: Vec<Tally>,
    losses: Vec<Option<f64>>,
    traffic: Traffic,
    rounds: u32,
    last: Option<Row>,
}

/// What evaluations have shown so far.
#[derive(Default)]
struct Progress {
    evaluated: Option<u32>,
    patience: Option<(f64, u32)>,
    losses: Vec<Option<f64>>,
    last: Option<Row>,
    accepted: u32,
}

impl Work<'_> {
    fn run(
        &mut self,
        mut store: Option<&mut Store>,
        resumed: Option<Checkpoint>,
        observer: &mut dyn Observer,
    ) -> Result<StageResult> {
        let method = &*self.stage.method;
        let (participation, faults) = (self.stage.participation.clone(), self.stage.faults.clone());
        let mut progress = Progress::default();
        let mut was_over = false;
        let mut simulator = match resumed {
            Some(checkpoint) => {
                progress.evaluated = checkpoint.evaluated;
                progress.patience = checkpoint.patience;
                progress.accepted = checkpoint.accepted;
                was_over = checkpoint.finished;
                let saved = &checkpoint.simulation;
                Simulator::load(method, self.federation, self.keys, participation, faults, saved)?
            }
            None => Simulator::start(method, self.federation, self.keys, participation, faults)?,
        };
        let mut saver = Saver::new(self.limits.checkpoint_every);
        let mut ending = loop {
            if was_over {
                break Ending::Finished;
            }
            match self.advance(&mut simulator, &mut progress, store.as_deref_mut(), observer) {
                Ok(None) => {}
                Ok(Some(ending)) => break ending,
                Err(error @ Error::Numerical { .. }) => break Ending::Failed(error),
                Err(error) => return Err(error),
            }
            if let Some(store) = store.as_deref_mut()
                && saver.is_due()
            {
                saver.save(store, || self.checkpoint(&simulator, &progress, false))?;
            }
        };
        let failed = matches!(ending, Ending::Failed(_));
        if progress.last.is_none() && self.stage.evaluate_every.is_some() && !failed {
            // Resumed after its last evaluation: the figures are made again and not counted again.
            let (metrics, losses) = simulator.evaluate_uncounted()?;
            progress.losses = losses;
            progress.last = Some(self.row(&simulator, metrics, progress.accepted));
        }
        if was_over && let Some(reason) = self.stops(&progress) {
            ending = Ending::Early(reason);
        }
        if let Some(store) = store {
            store.flush()?;
            if !failed {
                let finished = ending != Ending::Interrupted;
                store.save(&self.checkpoint(&simulator, &progress, finished)?)?;
            }
        }
        // A stage that was interrupted may have nothing to deliver yet.
        let artifact = method.artifact(simulator.machine().server());
        let artifact = match ending {
            Ending::Failed(_) => None,
            Ending::Interrupted => artifact.ok().filter(|_| self.last),
            Ending::Finished | Ending::Early(_) => Some(artifact?),
        };
        Ok(StageResult {
            ending,
            artifact,
            tallies: self.earlier.with(simulator.tallies()),
            losses: progress.losses,
            traffic: self.traffic(&simulator),
            rounds: simulator.machine().round(),
            last: progress.last,
        })
    }

    /// Evaluates where due, then runs one exchange; an ending when there is nothing more to do.
    fn advance(
        &self,
        simulator: &mut Simulator<'_>,
        progress: &mut Progress,
        mut store: Option<&mut Store>,
        observer: &mut dyn Observer,
    ) -> Result<Option<Ending>> {
        let round = simulator.machine().round();
        let due = self.stage.evaluate_every.is_some_and(|every| {
            match simulator.machine().next_is_round() {
                Ok(Some(true)) => round.is_multiple_of(every.max(1)),
                Ok(None) => true,
                _ => false,
            }
        });
        if due && progress.evaluated != Some(round) {
            self.evaluate(simulator, progress, store.as_deref_mut(), observer)?;
            if let Some(reason) = self.stops(progress) {
                return Ok(Some(Ending::Early(reason)));
            }
        }
        if self.limits.interrupt.load(Ordering::Relaxed) {
            return Ok(Some(Ending::Interrupted));
        }
        let Some(done) = simulator.step()? else { return Ok(Some(Ending::Finished)) };
        if done.round.is_some() {
            progress.accepted = done.accepted.len() as u32;
        }
        if let Some(store) = store {
            store.record(&Entry::new(self.index, &done))?;
        }
        observer.exchange(&done);
        Ok(None)
    }

    fn evaluate(
        &self,
        simulator: &mut Simulator<'_>,
        progress: &mut Progress,
        store: Option<&mut Store>,
        observer: &mut dyn Observer,
    ) -> Result<()> {
        let (metrics, losses) = simulator.evaluate()?;
        let row = self.row(simulator, metrics, progress.accepted);
        if let Some(store) = store {
            store.evaluated(&row)?;
        }
        observer.row(&row);
        progress.evaluated = Some(row.round);
        progress.losses = losses;
        if let Some(objective) = row.number("objective") {
            let tolerance = self.stage.stopping.tolerance;
            progress.patience = Some(match progress.patience {
                Some((best, since)) if objective >= best - tolerance * best.abs() => {
                    (best, since + 1)
                }
                _ => (objective, 0),
            });
        }
        progress.last = Some(row);
        Ok(())
    }

    fn row(&self, simulator: &Simulator<'_>, metrics: Vec<Metric>, clients: u32) -> Row {
        Row {
            round: simulator.machine().round(),
            metrics,
            traffic: self.traffic(simulator),
            clients,
            seconds: self.seconds_before + self.clock.elapsed().as_secs_f64(),
        }
    }

    fn stops(&self, progress: &Progress) -> Option<String> {
        let stopping = &self.stage.stopping;
        let last = |name| progress.last.as_ref().and_then(|row| row.number(name));
        for (limit, name, words) in [
            (stopping.field_norm2, "field_norm2", "||h||^2"),
            (stopping.excess_loss, "excess_loss", "the excess loss"),
        ] {
            if let (Some(limit), Some(value)) = (limit, last(name))
                && value <= limit
            {
                return Some(format!("{words} = {value:.2e} is at most {limit:.2e}"));
            }
        }
        if let (Some(patience), Some((best, since))) = (stopping.patience, progress.patience)
            && since >= patience
        {
            return Some(format!("the objective has stayed at {best:.8} for {since} evaluations"));
        }
        None
    }

    fn checkpoint(
        &self,
        simulator: &Simulator<'_>,
        progress: &Progress,
        finished: bool,
    ) -> Result<Checkpoint> {
        Ok(Checkpoint {
            stage: self.index,
            delivered: self.delivered.to_vec(),
            earlier: self.earlier.clone(),
            simulation: simulator.save()?,
            evaluated: progress.evaluated,
            patience: progress.patience,
            accepted: progress.accepted,
            finished,
        })
    }

    fn traffic(&self, simulator: &Simulator<'_>) -> Traffic {
        let own = simulator.traffic();
        Traffic {
            up: self.earlier.traffic.up + own.up,
            down: self.earlier.traffic.down + own.down,
            eval: self.earlier.traffic.eval + own.eval,
        }
    }
}

/// Spaces checkpoints out: never more than a tenth of the time goes into them.
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

    fn save(&mut self, store: &mut Store, make: impl FnOnce() -> Result<Checkpoint>) -> Result<()> {
        let begin = Instant::now();
        store.save(&make()?)?;
        self.cost = begin.elapsed();
        self.last = Instant::now();
        Ok(())
    }
}

/// The seconds of the last kept row.
fn last_seconds(folder: &Path) -> f64 {
    let text = std::fs::read_to_string(folder.join("metrics.jsonl")).unwrap_or_default();
    let row = text.lines().last().and_then(|l| serde_json::from_str::<serde_json::Value>(l).ok());
    row.and_then(|r| r.get("seconds").and_then(serde_json::Value::as_f64)).unwrap_or(0.0)
}
