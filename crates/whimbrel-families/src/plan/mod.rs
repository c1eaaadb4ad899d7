//! From a job and its clients to the chain of stages that the engine runs.
//!
//! What is common to all families stands here; which stages there are is [the family's](StagePlan).

pub mod channels;

mod facts;
mod network;

pub use facts::Facts;
pub use network::StageDisclosures;

use crate::failure::{AtKey, Result};
use crate::family::StagePlan;
use crate::job::method::stop::{EXCESS_LOSS, limit};
use crate::job::{Job, Participation as ParticipationKey};
use crate::load::Loaded;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use whimbrel_codec::channel::{Downlink, Uplink};
use whimbrel_core::method::Artifact;
use whimbrel_core::{ClientId, DynMethod, Error, Probability};
use whimbrel_engine::{Chain, Duty, Faults, Journal, Participation, Stage, StageMethod, Stopping};
use whimbrel_methods::fedem::Estimator;
use whimbrel_methods::kmeans::ROWS_MIN;
use whimbrel_methods::settings::{Batch, Budget, Weights};

/// Evaluations of a run that does not say how many it wants.
const EVALUATIONS: u32 = 100;

/// A job with its clients known: everything checked that can be checked without running.
pub struct Plan {
    common: Common,
    stages: Box<dyn StagePlan>,
    /// What the data have to say.
    notes: Vec<String>,
    /// What should be looked at in them.
    warnings: Vec<String>,
    /// The journal of a run that is replayed.
    journal: Option<String>,
}

/// What every family's plan starts from.
pub struct Common {
    /// The job.
    pub job: Job,
    /// How many clients train.
    pub clients: usize,
    /// The names of all by id; empty where they are not known yet.
    pub names: Vec<String>,
    /// Which of them are only evaluated; empty where everyone trains.
    pub unseen: Vec<bool>,
    /// Rows of all clients that train, where they are known.
    pub total_rows: Option<u64>,
    /// Who takes part in a round.
    pub participation: Participation,
    /// What goes wrong on purpose.
    pub faults: Faults,
    /// The fewest rows behind a cluster's centre that leaves a client.
    pub group_min: usize,
    /// A folder for what can be computed again.
    pub cache: Option<PathBuf>,
}

/// Where the files are that a fit starts from.
#[derive(Clone, Copy)]
pub enum Files<'a> {
    /// On this machine.
    Here,
    /// With the coordinator: a client knows what it was sent, which is all it needs.
    Sent {
        /// Every client's first memory, where a file gives it.
        memory: Option<&'a [f64]>,
    },
}

/// How a client estimates its statistic, and from which rows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Work {
    /// The estimator.
    pub estimator: Estimator,
    /// The rows.
    pub batch: Batch,
}

/// Who a job's names of clients can mean.
pub struct Roster<'a> {
    names: &'a [String],
    /// How many clients there are.
    pub clients: usize,
}

/// The user's cache folder: `WHIMBREL_CACHE`, else `whimbrel` in `XDG_CACHE_HOME` or in `~/.cache`.
fn cache_of_user() -> Option<PathBuf> {
    let set = |name| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    set("WHIMBREL_CACHE")
        .or_else(|| set("XDG_CACHE_HOME").map(|folder| folder.join("whimbrel")))
        .or_else(|| set("HOME").map(|home| home.join(".cache").join("whimbrel")))
}

impl Plan {
    /// Checks a job against its clients. Minima that a solver finds are kept in the user's cache
    /// folder: `WHIMBREL_CACHE`, else `whimbrel` in `XDG_CACHE_HOME` or in `~/.cache`.
    pub fn new(job: &Job, loaded: &Loaded) -> Result<Self> {
        Self::with_cache(job, loaded, cache_of_user().as_deref())
    }

    /// The same with another cache folder, or with none.
    pub fn with_cache(job: &Job, loaded: &Loaded, folder: Option<&Path>) -> Result<Self> {
        Self::simulated(job, loaded, folder).map_err(|failure| failure.placed(job))
    }

    fn simulated(job: &Job, loaded: &Loaded, folder: Option<&Path>) -> Result<Self> {
        let facts = Facts::of(loaded);
        let mut common = Common::new(job, &facts)?;
        common.cache = folder.map(Path::to_path_buf);
        let stages = job.fit.plan(&common, &facts, Some(loaded), Files::Here)?;
        let mut plan = Self::of_stages(common, stages)?;
        plan.notes.clone_from(&loaded.notes);
        plan.warnings.clone_from(&loaded.warnings);
        if job.federation.is_some() {
            plan.notes.push("[federation] is for `whimbrel serve`; this is a simulation".into());
        }
        Ok(plan)
    }

    fn of_stages(common: Common, stages: Box<dyn StagePlan>) -> Result<Self> {
        let (notes, warnings) = (Vec::new(), Vec::new());
        let plan = Self { common, stages, notes, warnings, journal: None };
        let job = &plan.common.job;
        channels::check_memory(job, plan.downlink(), plan.common.clients)?;
        if limit(&job.method.stop, &EXCESS_LOSS).is_some() && plan.f_star().is_none() {
            let error = Error::config("without a known minimum no run can end at an excess loss")
                .hint("take `excess_loss` out of `stop` in [method]");
            return Err(error).at("method.stop.excess_loss");
        }
        Ok(plan)
    }

    /// The same plan with the losses and late joins of a journal in place of those of
    /// `[simulation]`: what happened on a network, again. The clients it was made for have the
    /// journal's numbers ([`Loaded::renumber`]).
    #[must_use]
    pub fn replaying(self, journal: String) -> Self {
        Self { journal: Some(journal), ..self }
    }

    /// The length of the vectors that clients send.
    pub fn vector_len(&self) -> usize {
        self.uplink().dimension()
    }

    /// The uplink of clients without one of their own, its codec's constants resolved.
    pub fn uplink(&self) -> &Uplink {
        self.stages.uplink()
    }

    /// The downlink, its codec's constants resolved.
    pub fn downlink(&self) -> &Downlink {
        self.stages.downlink()
    }

    /// The minimum of the loss, where a solver found it.
    pub fn f_star(&self) -> Option<f64> {
        self.stages.minimum()
    }

    /// The constants behind `step = "theory"`, by name, where they were found before the run.
    pub fn theory(&self) -> &[(&'static str, f64)] {
        self.stages.theory()
    }

    /// The rounds that are planned, where the job or the data tell.
    pub fn rounds(&self) -> Option<u32> {
        self.stages.rounds(&self.common)
    }

    /// The fewest rows of a minibatch of any client; none where all rows are taken.
    pub fn batch_min(&self) -> Option<u32> {
        self.stages.batch_min(&self.common)
    }

    /// Whether the fit can be tried without what this stage delivers.
    pub fn can_skip(&self, index: usize) -> bool {
        self.stages.can_skip(&self.common, index)
    }

    /// What should be looked at before the run starts.
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings = self.warnings.clone();
        warnings.extend(channels::uncompressed(&self.common.job));
        warnings.extend(self.stages.warnings(&self.common));
        warnings
    }

    /// What is worth knowing before the run starts: what the data have to say, what the family adds,
    /// and the constants in use.
    pub fn notes(&self) -> Vec<String> {
        let (up, down) = (self.uplink(), self.downlink());
        let mut notes = self.notes.clone();
        notes.extend(self.stages.notes(&self.common));
        let known = !self.stages.uplink_is_unknown(&self.common);
        notes.extend(channels::describe(known.then_some(up), down));
        notes.extend(channels::memory_note(down, self.common.clients));
        notes
    }
}

impl Chain for Plan {
    fn len(&self) -> usize {
        self.stages.len(&self.common)
    }

    fn build(&self, index: usize, delivered: &[Artifact]) -> whimbrel_core::Result<Stage> {
        let mut stage = self.stages.build(&self.common, index, delivered)?;
        if let Some(journal) = &self.journal {
            let replay = Some(Journal::parse(journal, index as u32)?);
            stage.faults = Faults { replay, ..Faults::default() };
        }
        Ok(stage)
    }

    fn duties(&self) -> Vec<Duty> {
        let duty = |unseen: &bool| if *unseen { Duty::Evaluate } else { Duty::Train };
        self.common.unseen.iter().map(duty).collect()
    }
}

impl Common {
    fn new(job: &Job, facts: &Facts) -> Result<Self> {
        let roster = Roster { names: &facts.names, clients: facts.clients };
        Ok(Self {
            participation: participation(&job.method.participation, &roster)?,
            faults: faults(job, &roster)?,
            total_rows: facts.total_rows,
            job: job.clone(),
            cache: None,
            group_min: ROWS_MIN,
            clients: facts.clients,
            names: facts.names.clone(),
            unseen: facts.unseen.clone(),
        })
    }

    /// Who the job's names of clients can mean.
    pub fn roster(&self) -> Roster<'_> {
        Roster { names: &self.names, clients: self.clients }
    }

    /// The rounds of a job that gives epochs, for methods whose upload is this work; `before` is the
    /// number of rounds and passes over the rows before the first sampled cohort.
    pub fn rounds(&self, work: &Work, before: (u32, f64)) -> Option<u32> {
        match self.job.method.length {
            Budget::Rounds(rounds) | Budget::Converged(rounds) => Some(rounds),
            Budget::Epochs(epochs) => {
                let rows = self.total_rows? as f64;
                let clients = self.clients as f64;
                let (p, each) = (self.participation_mean(), (rows / clients) as u64);
                let per_round = work.estimator.expectations_mean(&work.batch, each, p) * clients;
                let (rounds, passes) = before;
                let left = (epochs - passes).max(0.0);
                Some(rounds.saturating_add((left * rows / per_round).ceil() as u32))
            }
        }
    }

    /// The probability that a client takes part in a round, on average.
    pub fn participation_mean(&self) -> f64 {
        self.participation.mean(self.clients)
    }

    /// When the fit ends.
    pub fn budget(&self) -> Budget {
        self.job.method.length
    }

    /// The rounds of a job that gives them.
    pub fn given_rounds(&self) -> Option<u32> {
        match self.budget() {
            Budget::Rounds(rounds) | Budget::Converged(rounds) => Some(rounds),
            Budget::Epochs(_) => None,
        }
    }

    /// The rows behind one upload; a family with an automatic minibatch finds its size.
    pub fn batch(&self) -> Batch {
        self.job.method.batch.settled(None)
    }

    /// What a client computes for an upload, of methods without outer loops.
    pub fn work(&self) -> Work {
        Work { estimator: Estimator::Minibatch, batch: self.batch() }
    }

    /// How clients are weighted.
    pub fn weights(&self) -> Weights {
        self.job.method.weights
    }

    /// A stage with everyone who is there from the start, in which nothing is evaluated and no
    /// upload is lost. Who joins the fit late is not heard before it.
    pub fn quiet(&self, name: &'static str, method: Arc<dyn DynMethod>) -> Stage {
        let late = self.faults.late.keys().map(|id| (*id, u32::MAX)).collect();
        Stage {
            name,
            method: method.into(),
            participation: Participation::Everyone,
            faults: Faults { late, ..Faults::default() },
            evaluate_every: None,
            stopping: Stopping::default(),
        }
    }

    /// The stage that fits the model, in this number of rounds where it is known.
    pub fn fit(&self, method: Arc<dyn DynMethod>, rounds: Option<u32>) -> Stage {
        self.fit_by(method.into(), rounds)
    }

    /// The same for methods of any kind.
    pub fn fit_by(&self, method: StageMethod, rounds: Option<u32>) -> Stage {
        let automatic = || rounds.map_or(10, |rounds| rounds.div_ceil(EVALUATIONS));
        Stage {
            name: "fit",
            method,
            participation: self.participation.clone(),
            faults: self.faults.clone(),
            evaluate_every: Some(self.job.method.evaluate_every.unwrap_or_else(automatic).max(1)),
            stopping: self.job.method.stop.clone(),
        }
    }
}

fn participation(key: &ParticipationKey, roster: &Roster<'_>) -> Result<Participation> {
    Ok(match key {
        ParticipationKey::Probability(p) if *p >= 1.0 => Participation::Everyone,
        ParticipationKey::Probability(p) => Participation::Bernoulli(Probability::new(*p)?),
        ParticipationKey::Size(size) => {
            if *size > roster.clients {
                let what = format!("a cohort of {size} out of {} clients", roster.clients);
                let error = Error::config(what)
                    .hint("participation = { size } is at most the number of clients");
                return Err(error).at("method.participation");
            }
            Participation::Fixed(*size as u32)
        }
        ParticipationKey::PerClient { default, clients } => {
            for name in clients.keys() {
                roster.id_of(name, "method.participation.clients")?;
            }
            let own = |id| roster.names.get(id).and_then(|name| clients.get(name));
            let each = (0..roster.clients).map(|id| Probability::new(*own(id).unwrap_or(default)));
            let others = Probability::new(*default)?;
            Participation::PerClient { each: each.collect::<whimbrel_core::Result<_>>()?, others }
        }
    })
}

fn faults(job: &Job, roster: &Roster<'_>) -> Result<Faults> {
    let mut drops: BTreeMap<u32, BTreeSet<ClientId>> = BTreeMap::new();
    for dropout in &job.simulation.drops {
        for name in &dropout.clients {
            let id = roster.id_of(name, "simulation.drops")?;
            drops.entry(dropout.round).or_default().insert(id);
        }
    }
    let mut late = BTreeMap::new();
    for join in &job.simulation.late {
        late.insert(roster.id_of(&join.client, "simulation.late")?, join.round);
    }
    if late.len() == roster.clients && roster.clients > 0 {
        let error = Error::config("every client joins late: none is there at the start")
            .hint("leave one out of `late`");
        return Err(error).at("simulation.late");
    }
    Ok(Faults { lost: job.simulation.lost, drops, late, replay: None })
}

impl Roster<'_> {
    /// The client of that name; `key` is where the job names it.
    pub fn id_of(&self, name: &str, key: &'static str) -> Result<ClientId> {
        if let Some(at) = self.names.iter().position(|n| n == name) {
            return Ok(ClientId(at as u32));
        }
        if self.names.is_empty() && self.clients > 0 {
            let what = format!("`{key}` names client `{name}`, and clients bring their own names");
            let error = Error::config(what).hint("list the clients by name in [federation]");
            return Err(error).at(key);
        }
        let some: Vec<&str> = self.names.iter().take(5).map(String::as_str).collect();
        let more = if self.names.len() > some.len() { ", ..." } else { "" };
        let error =
            Error::config(format!("`{key}` names client `{name}`, which the data do not have"))
                .hint(format!("the clients are {}{more}", some.join(", ")));
        Err(error).at(key)
    }
}
