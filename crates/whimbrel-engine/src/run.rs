//! Runs a job's stages one after the other, with evaluations, checkpoints and early stops.

use crate::checkpoint::{Checkpoint, Earlier};
pub use crate::ending::Ending;
use crate::keeper::{Keeper, Progress, Snapshot};
use crate::keys::StageKeys;
use crate::metrics::{Figure, Latest, Row};
use crate::participation::{Faults, Participation};
use crate::runner::{Carrier, Done, Protocol, Runner, Start, Step, Tally, Traffic};
use crate::simulator::Duty;
use crate::topology::Graphs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;
use whimbrel_core::decentralised::Decentralised;
use whimbrel_core::declare::{Better, Goal, Measure, Role};
use whimbrel_core::method::{Artifact, Declaration, Metric};
use whimbrel_core::text::counted;
use whimbrel_core::{Bound, ClientData, ClientId, DynMethod, Error, Result};

/// One stage of a job, such as initialisation, constants or the fit.
#[derive(Clone)]
pub struct Stage {
    /// The name in messages.
    pub name: &'static str,
    pub method: StageMethod,
    pub participation: Participation,
    pub faults: Faults,
    /// Rounds between evaluations; `None` for a stage without metrics.
    pub evaluate_every: Option<u32>,
    pub stopping: Stopping,
}

impl Stage {
    fn rules(&self) -> StageRules {
        let measures = self.evaluate_every.map(|_| self.method.declare().measures);
        StageRules {
            name: self.name,
            measures: measures.unwrap_or_default(),
            evaluate_every: self.evaluate_every,
            stopping: self.stopping.clone(),
        }
    }
}

/// A stage's method.
#[derive(Clone)]
pub enum StageMethod {
    /// A server with clients.
    Server(Arc<dyn DynMethod>),
    /// Neighbours without a server; all clients take part, and no message is lost.
    Neighbours(Arc<dyn Decentralised>, Graphs),
}

impl From<Arc<dyn DynMethod>> for StageMethod {
    fn from(method: Arc<dyn DynMethod>) -> Self {
        Self::Server(method)
    }
}

impl StageMethod {
    /// The method of a stage with a server.
    pub fn server(&self) -> Result<&Arc<dyn DynMethod>> {
        match self {
            Self::Server(method) => Ok(method),
            Self::Neighbours(..) => {
                Err(Error::config("this method has no server")
                    .hint("simulate it with `whimbrel run`"))
            }
        }
    }

    /// Checks and lays out one client's rows.
    pub fn bind(&self, data: &ClientData) -> Result<Bound> {
        match self {
            Self::Server(method) => method.bind(data),
            Self::Neighbours(method, _) => method.bind(data),
        }
    }

    /// Limits, disclosures and figures of the method.
    pub fn declare(&self) -> Declaration {
        match self {
            Self::Server(method) => method.declare(),
            Self::Neighbours(method, _) => method.declare(),
        }
    }
}

/// The rules of a stage for the loop, independent of its runner.
#[derive(Clone, PartialEq, Debug)]
pub struct StageRules {
    /// The name in messages.
    pub name: &'static str,
    /// Declarations of the figures of evaluations; empty for a stage without.
    pub measures: Vec<Measure>,
    /// Rounds between evaluations; `None` for a stage without metrics.
    pub evaluate_every: Option<u32>,
    pub stopping: Stopping,
}

/// Rules that end a stage before its budget is spent.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Stopping {
    /// Limits by the key of a measure: the stage ends once the measure is at least as good.
    pub limits: Vec<(&'static str, f64)>,
    /// The stage ends after this number of evaluations without an improvement of the objective.
    pub patience: Option<u32>,
    /// A smaller relative change of the objective does not count as an improvement.
    pub tolerance: f64,
    /// The limit behind the number of rounds, in a word, if it is not the job's.
    pub spent: Option<&'static str>,
    /// Rounds of the job that stages before have run.
    pub rounds_before: u32,
}

impl Stopping {
    /// The default of `tolerance` if `patience` is given.
    pub const TOLERANCE: f64 = 1e-9;
}

/// Builds one stage after the other from the artifacts of the stages before.
pub trait Chain {
    /// Number of stages.
    fn len(&self) -> usize;
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Builds a stage; refuses artifacts that the stages before cannot have delivered.
    fn build(&self, index: usize, delivered: &[Artifact]) -> Result<Stage>;
    /// The stage as far as the job alone determines it: clients take their limits from this one,
    /// whatever a coordinator delivers.
    fn expected(&self, index: usize) -> Result<Stage> {
        self.build(index, &vec![Artifact::default(); index])
    }
    /// Duties of clients, by id; clients beyond the end train.
    fn duties(&self) -> Vec<Duty> {
        Vec::new()
    }
}

/// Callbacks of a run.
pub trait Observer {
    /// A stage begins.
    fn stage(&mut self, _stage: &StageRules, _index: usize, _of: usize) {}
    /// An exchange is done.
    fn exchange(&mut self, _done: &Done) {}
    /// A round was evaluated.
    fn row(&mut self, _row: &Row) {}
    /// Whether the last stage ends here, as if its budget were spent: the run is finished, not
    /// interrupted.
    fn ends(&self) -> bool {
        false
    }
    /// Receives one client's personal artifact (model, weights, samples) after the run. Called once
    /// per client that has one, in id order, so that only one is in memory at a time; clients of a
    /// network keep theirs. An error ends the run; its last checkpoint is already saved, and a
    /// resumed run passes all artifacts again.
    fn client_artifact(&mut self, _name: &str, _artifact: Artifact) -> Result<()> {
        Ok(())
    }
}

/// Ignores everything.
impl Observer for () {}

/// The result of a run.
pub struct Outcome {
    pub ending: Ending,
    /// The artifacts of the stages; the last one is the model. Empty if the run was interrupted
    /// before there was one.
    pub delivered: Vec<Artifact>,
    /// Client names, by id.
    pub names: Vec<String>,
    /// Bytes and rounds of each client.
    pub tallies: Vec<Tally>,
    /// Each client's own figures at the last evaluation, by id.
    pub own: Vec<Vec<Figure>>,
    /// Bytes of all stages.
    pub traffic: Traffic,
    /// Rounds of the last stage.
    pub rounds: u32,
    /// Parts of messages that clients withheld in it.
    pub withheld: u64,
    /// Rounds of the job that stages before it have run.
    pub rounds_before: u32,
    pub last: Option<Row>,
    /// Declarations of the figures of evaluations.
    pub measures: Vec<Measure>,
    /// Seconds, including those before a resume.
    pub seconds: f64,
}

impl Outcome {
    /// The declared objective at the last evaluation.
    pub fn objective(&self) -> Option<f64> {
        let declared = self.measures.iter().find(|m| m.role == Role::Objective)?;
        self.last.as_ref()?.number(&declared.key)
    }
}

/// Runs the chain over the clients that the carrier reaches.
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
        let rules = stage.rules();
        observer.stage(&rules, index, chain.len());
        let last = index + 1 == chain.len();
        let work = StageRun {
            rules: &rules,
            index: index as u32,
            last,
            delivered: &delivered,
            earlier: &earlier,
            interrupt,
            clock,
            seconds_before,
        };
        let resumed = resumed.take();
        let start = Start {
            index: index as u32,
            last,
            keys: StageKeys::new(seed, index as u32),
            delivered: &delivered,
            saved: resumed.as_ref().map(|checkpoint| &checkpoint.runner),
        };
        let runner = carrier.open(&stage, &start)?;
        let result = work.run(runner, resumed.as_ref(), keeper, observer)?;
        let traffic = result.traffic;
        let stage_is_over = result.ending.is_over();
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
                    own: result.own,
                    traffic,
                    rounds: result.rounds,
                    withheld: result.withheld,
                    rounds_before: rules.stopping.rounds_before,
                    last: result.last,
                    measures: rules.measures,
                    seconds: seconds_before + clock.elapsed().as_secs_f64(),
                });
            }
        }
    }
    Err(Error::internal("a job without stages was run"))
}

/// One stage under way.
struct StageRun<'a> {
    rules: &'a StageRules,
    index: u32,
    last: bool,
    delivered: &'a [Artifact],
    earlier: &'a Earlier,
    interrupt: &'a AtomicBool,
    clock: Instant,
    seconds_before: f64,
}

/// The result of one stage.
struct StageResult {
    ending: Ending,
    artifact: Option<Artifact>,
    names: Vec<String>,
    tallies: Vec<Tally>,
    own: Vec<Vec<Figure>>,
    traffic: Traffic,
    rounds: u32,
    withheld: u64,
    last: Option<Row>,
}

/// The evaluations and stops of the stage so far.
#[derive(Default)]
struct Seen {
    progress: Progress,
    latest: Option<Latest>,
    stopped: Option<String>,
}

impl StageRun<'_> {
    fn run(
        &self,
        mut runner: Box<dyn Runner + '_>,
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
        self.at(runner, &seen, |snapshot| keeper.opened(resumed.is_none(), snapshot))?;
        let ending = loop {
            if was_over {
                break Ending::Stopped(seen.stopped.clone().unwrap_or_default());
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
            if let Ending::Stopped(reason) = &ending {
                seen.stopped = Some(reason.clone()).filter(|reason| !reason.is_empty());
            }
            self.at(runner, &seen, |snapshot| keeper.left(snapshot))?;
        }
        // A stage that was interrupted may have nothing to deliver yet.
        let artifact = runner.state().machine.artifact();
        let artifact = match ending {
            Ending::Failed(_) => None,
            Ending::Interrupted => artifact.ok().filter(|_| self.last),
            _ => Some(artifact?),
        };
        if artifact.is_some() && self.last && ending != Ending::Interrupted {
            let names = runner.names();
            let name = |id: ClientId| names.get(id.0 as usize).map_or("?", |name| name);
            runner.client_artifacts(&mut |id, own| observer.client_artifact(name(id), own))?;
        }
        let (last, own) = seen.latest.map(|latest| (latest.row, latest.own)).unzip();
        Ok(StageResult {
            ending: self.judged(ending, &runner.state().machine, last.as_ref()),
            artifact,
            names: runner.names(),
            tallies: self.earlier.with(&runner.state().tallies),
            own: own.unwrap_or_default(),
            traffic: self.traffic(runner),
            rounds: runner.state().machine.round(),
            withheld: runner.state().machine.withheld(),
            last,
        })
    }

    /// The verdict by the last evaluation: a defect makes the fit degenerate; the first measure with a
    /// goal decides whether it converged, and without one the method's own rule.
    fn judged(&self, ending: Ending, machine: &dyn Protocol, last: Option<&Row>) -> Ending {
        let rounds = self.rules.stopping.rounds_before + machine.round();
        let Ending::Stopped(rule) = ending else { return ending };
        let measures = || self.rules.measures.iter();
        let figures = |measure: &Measure| last.and_then(|row| row.figure(&measure.key));
        let defects = measures().filter(|measure| measure.defect);
        let said: Vec<String> = defects
            .filter_map(|measure| Some(measure.warnings(figures(measure)?)))
            .flatten()
            .collect();
        if !said.is_empty() && self.last {
            return Ending::Degenerate(said.join("; "));
        }
        let why = if rule.is_empty() { String::new() } else { format!(": {rule}") };
        let spent = self.rules.stopping.spent.map_or(String::new(), |what| format!("({what}) "));
        let length = counted(rounds as usize, "round");
        let stopped = format!("{spent}after {length}{why}");
        let goal = measures().find_map(|measure| {
            let value = last.and_then(|row| row.number(&measure.key))?;
            measure.goal.as_ref().map(|goal| (&measure.name, goal, value))
        });
        match goal {
            Some((name, goal, value)) if value <= goal.at_most => {
                Ending::Converged(format!("{name} {value:.1e} after {length}"))
            }
            Some((name, Goal { at_most, remedy }, value)) => Ending::Stopped(format!(
                "{stopped}, not converged: {name} {value:.1e}, above {at_most:.0e}; {remedy}"
            )),
            None if machine.has_converged() && rounds == 0 => {
                Ending::Converged("complete with the messages at enrolment".into())
            }
            None if machine.has_converged() => {
                Ending::Converged(format!("by the method's own rule, after {length}"))
            }
            None => Ending::Stopped(stopped),
        }
    }

    /// Evaluates if due, then runs one exchange; the ending once the stage is over.
    fn advance(
        &self,
        runner: &mut dyn Runner,
        seen: &mut Seen,
        keeper: &mut dyn Keeper,
        observer: &mut dyn Observer,
    ) -> Result<Option<Ending>> {
        let machine = &runner.state().machine;
        let round = machine.round();
        let due = self.rules.evaluate_every.is_some_and(|every| match machine.next_is_round() {
            Ok(Some(true)) => round.is_multiple_of(every.max(1)),
            Ok(None) => true,
            _ => false,
        });
        let unevaluated = due && seen.progress.evaluated != Some(round);
        let begun = unevaluated && runner.begin_evaluation()?;
        if unevaluated && !begun {
            self.evaluate(runner, seen, keeper, observer)?;
        }
        // An earlier process may have kept this round's evaluation and not lived to stop.
        if due
            && !begun
            && let Some(reason) = self.stops(seen)
        {
            return Ok(Some(Ending::Stopped(reason)));
        }
        if self.last && observer.ends() {
            return Ok(Some(Ending::Stopped("by the callback".into())));
        }
        if self.interrupt.load(Ordering::Relaxed) {
            return Ok(Some(Ending::Interrupted));
        }
        let done = match runner.step()? {
            Step::Exchanged(done) => done,
            Step::Joined(ids) => {
                self.at(runner, seen, |snapshot| keeper.joined(&ids, snapshot))?;
                runner.acknowledge()?;
                return Ok(None);
            }
            Step::Over => return Ok(Some(Ending::Stopped(String::new()))),
            Step::Interrupted => return Ok(Some(Ending::Interrupted)),
        };
        if done.round.is_some() {
            seen.progress.accepted = done.accepted.len() as u32;
        }
        self.at(runner, seen, |snapshot| keeper.exchange(&done, snapshot))?;
        runner.acknowledge()?;
        observer.exchange(&done);
        Ok(None)
    }

    fn evaluate(
        &self,
        runner: &mut dyn Runner,
        seen: &mut Seen,
        keeper: &mut dyn Keeper,
        observer: &mut dyn Observer,
    ) -> Result<()> {
        let Some(evaluated) = runner.evaluate()? else { return Ok(()) };
        let row = self.row(runner, evaluated.metrics, seen.progress.accepted);
        seen.progress.evaluated = Some(row.round);
        let declared = self.rules.measures.iter().find(|measure| measure.role == Role::Objective);
        if let Some(measure) = declared
            && let Some(objective) = row.number(&measure.key)
        {
            let sign = if measure.better == Better::Up { -1.0 } else { 1.0 };
            let tolerance = self.rules.stopping.tolerance;
            seen.progress.patience = Some(match seen.progress.patience {
                Some((best, since)) if sign * objective >= sign * best - tolerance * best.abs() => {
                    (best, since + 1)
                }
                _ => (objective, 0),
            });
        }
        seen.latest = Some(Latest { row: row.clone(), own: evaluated.own });
        self.at(runner, seen, |snapshot| keeper.evaluated(&evaluated.answered, snapshot))?;
        observer.row(&row);
        Ok(())
    }

    fn row(&self, runner: &dyn Runner, metrics: Vec<Metric>, clients: u32) -> Row {
        Row {
            round: runner.state().machine.round(),
            figures: metrics.into_iter().map(Into::into).collect(),
            traffic: self.traffic(runner),
            clients,
            seconds: self.seconds_before + self.clock.elapsed().as_secs_f64(),
        }
    }

    fn stops(&self, seen: &Seen) -> Option<String> {
        let stopping = &self.rules.stopping;
        let last = |key: &str| seen.latest.as_ref().and_then(|latest| latest.row.number(key));
        for (key, limit) in &stopping.limits {
            let Some(measure) = self.rules.measures.iter().find(|m| m.key == *key) else {
                continue;
            };
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

    /// Passes a snapshot of the run to a keeper.
    fn at(
        &self,
        runner: &dyn Runner,
        seen: &Seen,
        show: impl FnOnce(&Snapshot<'_>) -> Result<()>,
    ) -> Result<()> {
        let progress = seen.progress;
        let without_clients = || {
            Ok(Checkpoint {
                stage: self.index,
                delivered: self.delivered.to_vec(),
                earlier: self.earlier.clone(),
                runner: runner.state().save()?,
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
        show(&Snapshot {
            stage: self.index,
            runner,
            progress,
            latest: seen.latest.as_ref(),
            measures: &self.rules.measures,
            without_clients: &without_clients,
        })
    }

    fn traffic(&self, runner: &dyn Runner) -> Traffic {
        let own = runner.state().traffic;
        Traffic {
            up: self.earlier.traffic.up + own.up,
            down: self.earlier.traffic.down + own.down,
            eval: self.earlier.traffic.eval + own.eval,
        }
    }
}
