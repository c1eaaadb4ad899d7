//! Runs a job's stages one after the other, with evaluations, checkpoints and early stops.

use crate::checkpoint::{Checkpoint, Earlier};
use crate::keeper::{Keeper, Moment, Progress};
use crate::keys::StageKeys;
use crate::metrics::{Latest, Row};
use crate::participation::{Faults, Participation};
use crate::runner::{Carrier, Done, Opening, Runner, Step, Tally, Traffic};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;
use whimbrel_core::declare::{Better, Measure, Role};
use whimbrel_core::method::{Artifact, Metric};
use whimbrel_core::{DynMethod, Error, Result};

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
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Stopping {
    /// Once the measure of this key is at or beyond this limit, on its better side.
    pub limits: Vec<(&'static str, f64)>,
    /// Once the declared objective has not improved for so many evaluations.
    pub patience: Option<u32>,
    /// A change of the objective below this share of it is no improvement.
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

/// Who watches a run.
pub trait Observer {
    /// A stage begins.
    fn stage(&mut self, _stage: &Stage, _index: usize, _of: usize) {}
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
    /// What the figures of evaluations are.
    pub measures: Vec<Measure>,
    /// Seconds, those before a resume included.
    pub seconds: f64,
}

impl Outcome {
    /// The declared objective at the last evaluation.
    pub fn objective(&self) -> Option<f64> {
        let declared = self.measures.iter().find(|m| m.role == Role::Objective)?;
        self.last.as_ref()?.number(&declared.key)
    }
}

/// Runs the chain over whoever the carrier reaches.
pub fn run_with(
    chain: &dyn Chain,
    carrier: &mut dyn Carrier,
    keeper: &mut dyn Keeper,
    seed: u64,
    interrupt: &AtomicBool,
    observer: &mut dyn Observer,
) -> Result<Outcome> {
    let mut resumed = keeper.resume()?;
    let seconds_before = keeper.seconds_before();
    let clock = Instant::now();
    let first = resumed.as_ref().map_or(0, |c| c.stage as usize);
    let mut delivered = resumed.as_ref().map_or_else(Vec::new, |c| c.delivered.clone());
    let mut earlier = resumed.as_ref().map_or_else(Earlier::default, |c| c.earlier.clone());
    for index in first..chain.len() {
        let stage = chain.build(index, &delivered)?;
        observer.stage(&stage, index, chain.len());
        let last = index + 1 == chain.len();
        let measures = match stage.evaluate_every {
            Some(_) => stage.method.measures(),
            None => Vec::new(),
        };
        let work = Work {
            stage: &stage,
            measures: &measures,
            index: index as u32,
            last,
            delivered: &delivered,
            earlier: &earlier,
            interrupt,
            clock,
            seconds_before,
        };
        let resumed = resumed.take();
        let runner = carrier.open(Opening {
            stage: &stage,
            index: index as u32,
            last,
            keys: StageKeys::new(seed, index as u32),
            delivered: &delivered,
            saved: resumed.as_ref().map(|checkpoint| &checkpoint.simulation),
        })?;
        let result = work.run(runner, resumed.as_ref(), keeper, observer)?;
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
                    names: result.names,
                    tallies: result.tallies,
                    losses: result.losses,
                    traffic,
                    rounds: result.rounds,
                    last: result.last,
                    measures,
                    seconds: seconds_before + clock.elapsed().as_secs_f64(),
                });
            }
        }
    }
    Err(Error::internal("a job without stages was run"))
}

/// One stage under way.
struct Work<'a> {
    stage: &'a Stage,
    measures: &'a [Measure],
    index: u32,
    last: bool,
    delivered: &'a [Artifact],
    earlier: &'a Earlier,
    interrupt: &'a AtomicBool,
    clock: Instant,
    seconds_before: f64,
}

/// How one stage ended.
struct StageResult {
    ending: Ending,
    artifact: Option<Artifact>,
    names: Vec<String>,
    tallies: Vec<Tally>,
    losses: Vec<Option<f64>>,
    traffic: Traffic,
    rounds: u32,
    last: Option<Row>,
}

/// What this process has seen of the stage.
#[derive(Default)]
struct Seen {
    progress: Progress,
    latest: Option<Latest>,
    stopped: Option<String>,
}

impl Work<'_> {
    fn run(
        &self,
        mut runner: Box<dyn Runner<'_> + '_>,
        resumed: Option<&Checkpoint>,
        keeper: &mut dyn Keeper,
        observer: &mut dyn Observer,
    ) -> Result<StageResult> {
        let runner = &mut *runner;
        let mut seen = Seen::default();
        if let Some(checkpoint) = resumed {
            seen.progress = checkpoint.progress();
            seen.latest.clone_from(&checkpoint.latest);
            seen.stopped.clone_from(&checkpoint.stopped);
        }
        let was_over = seen.progress.finished;
        self.at(runner, &seen, |moment| keeper.opened(resumed.is_none(), moment))?;
        let ending = loop {
            if was_over {
                break seen.stopped.clone().map_or(Ending::Finished, Ending::Early);
            }
            match self.advance(runner, &mut seen, keeper, observer) {
                Ok(None) => {}
                Ok(Some(ending)) => break ending,
                Err(error @ Error::Numerical { .. }) => break Ending::Failed(error),
                Err(error) => return Err(error),
            }
        };
        let failed = matches!(ending, Ending::Failed(_));
        if failed {
            keeper.failed()?;
        } else {
            seen.progress.finished = ending != Ending::Interrupted;
            if let Ending::Early(reason) = &ending {
                seen.stopped = Some(reason.clone());
            }
            self.at(runner, &seen, |moment| keeper.left(moment))?;
        }
        // A stage that was interrupted may have nothing to deliver yet.
        let artifact = self.stage.method.artifact(runner.machine().server());
        let artifact = match ending {
            Ending::Failed(_) => None,
            Ending::Interrupted => artifact.ok().filter(|_| self.last),
            Ending::Finished | Ending::Early(_) => Some(artifact?),
        };
        let (last, losses) = seen.latest.map(|latest| (latest.row, latest.losses)).unzip();
        Ok(StageResult {
            ending,
            artifact,
            names: runner.names(),
            tallies: self.earlier.with(runner.tallies()),
            losses: losses.unwrap_or_default(),
            traffic: self.traffic(runner),
            rounds: runner.machine().round(),
            last,
        })
    }

    /// Evaluates where due, then runs one exchange; an ending when there is nothing more to do.
    fn advance<'m>(
        &self,
        runner: &mut dyn Runner<'m>,
        seen: &mut Seen,
        keeper: &mut dyn Keeper,
        observer: &mut dyn Observer,
    ) -> Result<Option<Ending>> {
        let round = runner.machine().round();
        let due =
            self.stage.evaluate_every.is_some_and(|every| match runner.machine().next_is_round() {
                Ok(Some(true)) => round.is_multiple_of(every.max(1)),
                Ok(None) => true,
                _ => false,
            });
        if due && seen.progress.evaluated != Some(round) {
            self.evaluate(runner, seen, keeper, observer)?;
        }
        // An earlier process may have kept this round's evaluation and not lived to stop.
        if due && let Some(reason) = self.stops(seen) {
            return Ok(Some(Ending::Early(reason)));
        }
        if self.interrupt.load(Ordering::Relaxed) {
            return Ok(Some(Ending::Interrupted));
        }
        let done = match runner.step()? {
            Step::Exchanged(done) => done,
            Step::Over => return Ok(Some(Ending::Finished)),
            Step::Interrupted => return Ok(Some(Ending::Interrupted)),
        };
        if done.round.is_some() {
            seen.progress.accepted = done.accepted.len() as u32;
        }
        self.at(runner, seen, |moment| keeper.exchange(&done, moment))?;
        runner.acknowledge()?;
        observer.exchange(&done);
        Ok(None)
    }

    fn evaluate<'m>(
        &self,
        runner: &mut dyn Runner<'m>,
        seen: &mut Seen,
        keeper: &mut dyn Keeper,
        observer: &mut dyn Observer,
    ) -> Result<()> {
        let Some(evaluated) = runner.evaluate()? else { return Ok(()) };
        let row = self.row(runner, evaluated.metrics, seen.progress.accepted);
        seen.progress.evaluated = Some(row.round);
        let declared = self.measures.iter().find(|measure| measure.role == Role::Objective);
        if let Some(measure) = declared
            && let Some(objective) = row.number(&measure.key)
        {
            let sign = if measure.better == Better::Up { -1.0 } else { 1.0 };
            let tolerance = self.stage.stopping.tolerance;
            seen.progress.patience = Some(match seen.progress.patience {
                Some((best, since)) if sign * objective >= sign * best - tolerance * best.abs() => {
                    (best, since + 1)
                }
                _ => (objective, 0),
            });
        }
        seen.latest = Some(Latest { row: row.clone(), losses: evaluated.losses });
        self.at(runner, seen, |moment| keeper.evaluated(&evaluated.answered, moment))?;
        observer.row(&row);
        Ok(())
    }

    fn row<'m>(&self, runner: &dyn Runner<'m>, metrics: Vec<Metric>, clients: u32) -> Row {
        Row {
            round: runner.machine().round(),
            figures: metrics.into_iter().map(Into::into).collect(),
            traffic: self.traffic(runner),
            clients,
            seconds: self.seconds_before + self.clock.elapsed().as_secs_f64(),
        }
    }

    fn stops(&self, seen: &Seen) -> Option<String> {
        let stopping = &self.stage.stopping;
        let last = |key: &str| seen.latest.as_ref().and_then(|latest| latest.row.number(key));
        for (key, limit) in &stopping.limits {
            let Some(measure) = self.measures.iter().find(|m| m.key == *key) else { continue };
            let Some(value) = last(key) else { continue };
            let (is_reached, words) = match measure.better {
                Better::Up => (value >= *limit, "is at least"),
                Better::Down | Better::Neither => (value <= *limit, "is at most"),
            };
            if is_reached {
                return Some(format!("{} = {value:.2e} {words} {limit:.2e}", measure.name));
            }
        }
        if let (Some(patience), Some((best, since))) = (stopping.patience, seen.progress.patience)
            && since >= patience
        {
            return Some(format!("the objective has stayed at {best:.8} for {since} evaluations"));
        }
        None
    }

    /// Shows a keeper the run as it stands.
    fn at<'m>(
        &self,
        runner: &dyn Runner<'m>,
        seen: &Seen,
        show: impl FnOnce(&Moment<'_>) -> Result<()>,
    ) -> Result<()> {
        let progress = seen.progress;
        let checkpoint = || {
            Ok(Checkpoint {
                stage: self.index,
                delivered: self.delivered.to_vec(),
                earlier: self.earlier.clone(),
                simulation: runner.save()?,
                evaluated: progress.evaluated,
                patience: progress.patience,
                accepted: progress.accepted,
                finished: progress.finished,
                stopped: seen.stopped.clone(),
                latest: seen.latest.clone().map(|mut latest| {
                    latest.row.seconds = 0.0;
                    latest
                }),
            })
        };
        show(&Moment {
            stage: self.index,
            machine: runner.machine(),
            names: &|| runner.names(),
            tallies: runner.tallies(),
            traffic: runner.traffic(),
            progress,
            latest: seen.latest.as_ref(),
            measures: self.measures,
            checkpoint: &checkpoint,
        })
    }

    fn traffic<'m>(&self, runner: &dyn Runner<'m>) -> Traffic {
        let own = runner.traffic();
        Traffic {
            up: self.earlier.traffic.up + own.up,
            down: self.earlier.traffic.down + own.down,
            eval: self.earlier.traffic.eval + own.eval,
        }
    }
}
