//! From a job and its clients to the chain of stages that the engine runs.
//!
//! The only place that knows concrete models and methods: [`Plan`] matches the model kind once.

mod cells;
mod channels;
mod em;
mod facts;
mod gradient;
mod loops;
mod network;
mod optimum;
mod prepare;

pub use facts::Facts;
pub use network::StageDisclosures;

use crate::failure::{Failure, Result};
use crate::load::Loaded;
use crate::spec::{
    Batch as BatchKey, Job, Length, MemoryStart, Model, Participation as ParticipationKey,
    UpRule as UpKey, Weights as WeightsKey,
};
use cells::CellsPlan;
use em::EmPlan;
use gradient::GradientPlan;
use loops::Work;
use optimum::Cache;
use prepare::Preparing;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use whimbrel_codec::channel::{Downlink, Uplink};
use whimbrel_core::method::Artifact;
use whimbrel_core::{ClientId, DynMethod, Error, Probability};
use whimbrel_engine::{Chain, Faults, Journal, Participation, Stage, Stopping};
use whimbrel_methods::fedem::Estimator;
use whimbrel_methods::settings::{Batch, Budget, Weights};
use whimbrel_methods::sgd::preset::table_row;

/// Evaluations of a run that does not say how many it wants.
const EVALUATIONS: u32 = 100;

/// A job with its clients known: everything checked that can be checked without running.
pub struct Plan {
    common: Common,
    fit: Fit,
    /// What the data have to say.
    notes: Vec<String>,
    /// What should be looked at in them.
    warnings: Vec<String>,
    /// The journal of a run that is replayed.
    journal: Option<String>,
}

/// What is fitted, and how.
enum Fit {
    Em(Box<EmPlan>),
    Gradient(Box<GradientPlan>),
    Cells(Box<CellsPlan>),
}

/// What every method needs.
struct Common {
    job: Job,
    clients: usize,
    /// By id; empty where they are not known yet.
    names: Vec<String>,
    total_rows: Option<u64>,
    participation: Participation,
    faults: Faults,
}

/// Where the files are that a fit starts from.
#[derive(Clone, Copy)]
enum Files<'a> {
    /// On this machine.
    Here,
    /// With the coordinator: a client knows what it was sent, which is all it needs.
    Sent { memory: Option<&'a [f64]> },
}

/// Who a job's names of clients can mean.
struct Roster<'a> {
    names: &'a [String],
    clients: usize,
}

impl Plan {
    /// Checks a job against its clients. Minima that a solver finds are kept in the user's cache
    /// folder: `WHIMBREL_CACHE`, else `whimbrel` in `XDG_CACHE_HOME` or in `~/.cache`.
    pub fn new(job: &Job, loaded: &Loaded) -> Result<Self> {
        Self::checked(job, loaded, &Cache::of_user())
    }

    /// The same with another cache folder, or with none.
    pub fn with_cache(job: &Job, loaded: &Loaded, folder: Option<&Path>) -> Result<Self> {
        Self::checked(job, loaded, &Cache::at(folder))
    }

    fn checked(job: &Job, loaded: &Loaded, cache: &Cache) -> Result<Self> {
        let facts = Facts::of(loaded);
        let common = Common::new(job, &facts)?;
        let fit = match &job.model {
            Model::Gmm(gmm) => {
                let preparing = Preparing::seen(&common, loaded)?;
                let em = EmPlan::new(&common, gmm, preparing, Files::Here)?;
                em.look_at(loaded)?;
                Fit::Em(Box::new(em))
            }
            Model::Linear(_) | Model::Logistic(_) => {
                Fit::Gradient(Box::new(GradientPlan::simulated(&common, loaded, cache)?))
            }
            Model::LowRank(table) => Fit::Cells(Box::new(CellsPlan::new(&common, table, &facts)?)),
        };
        let mut plan = Self::fitting(common, fit)?;
        plan.notes.clone_from(&loaded.notes);
        plan.warnings.clone_from(&loaded.warnings);
        if job.federation.is_some() {
            plan.notes.push("[federation] is for `whimbrel serve`; this is a simulation".into());
        }
        Ok(plan)
    }

    fn fitting(common: Common, fit: Fit) -> Result<Self> {
        let (notes, warnings) = (Vec::new(), Vec::new());
        let plan = Self { common, fit, notes, warnings, journal: None };
        let job = &plan.common.job;
        channels::check_memory(job, plan.downlink(), plan.common.clients)?;
        if job.method.stop.excess_loss.is_some() && plan.f_star().is_none() {
            let error = Error::config("without a known minimum no run can end at an excess loss")
                .hint("take `excess_loss` out of `stop` in [method], or add a ridge");
            return Err(error.into());
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
        match &self.fit {
            Fit::Em(em) => em.uplink(),
            Fit::Gradient(gradient) => gradient.uplink(),
            Fit::Cells(cells) => cells.uplink(),
        }
    }

    /// The downlink, its codec's constants resolved.
    pub fn downlink(&self) -> &Downlink {
        match &self.fit {
            Fit::Em(em) => em.downlink(),
            Fit::Gradient(gradient) => gradient.downlink(),
            Fit::Cells(cells) => cells.downlink(),
        }
    }

    /// The minimum of the loss, where a solver found it.
    pub fn f_star(&self) -> Option<f64> {
        match &self.fit {
            Fit::Em(_) | Fit::Cells(_) => None,
            Fit::Gradient(gradient) => gradient.f_star(),
        }
    }

    /// The constants behind the gradient family's `step = "theory"`, by name; none otherwise. (Those
    /// of the EM methods are estimated by a stage of the run.)
    pub fn theory(&self) -> &[(&'static str, f64)] {
        match &self.fit {
            Fit::Em(_) | Fit::Cells(_) => &[],
            Fit::Gradient(gradient) => gradient.theory(),
        }
    }

    /// The rounds that are planned, where the job or the data tell.
    pub fn rounds(&self) -> Option<u32> {
        match &self.fit {
            Fit::Em(em) => em.rounds(&self.common),
            Fit::Gradient(_) | Fit::Cells(_) => self.common.rounds(&self.common.work()),
        }
    }

    /// Whether the fit can be tried without what this stage delivers: a rank that is chosen on the
    /// way has a stand-in.
    pub fn can_skip(&self, index: usize) -> bool {
        matches!(self.fit, Fit::Cells(_)) && index + 1 < self.len()
    }

    /// What should be looked at before the run starts.
    pub fn warnings(&self) -> Vec<String> {
        match &self.fit {
            Fit::Em(em) => em.warnings(&self.common),
            Fit::Gradient(gradient) => gradient.warnings(),
            Fit::Cells(_) => self.warnings.clone(),
        }
    }

    /// What is worth knowing before the run starts: what the data have to say, for the gradient
    /// family the row of the MCM paper's Table 1 that the channels realise, and the constants in use.
    pub fn notes(&self) -> Vec<String> {
        let (up, down) = (self.uplink(), self.downlink());
        let mut notes = self.notes.clone();
        if let Fit::Em(em) = &self.fit {
            notes.extend(em.notes());
        }
        if let Fit::Gradient(gradient) = &self.fit {
            let row = table_row(up.rule(), up.codec().is_exact(), down.rule());
            notes.push(format!("{}: {row}", self.common.job.method.name()));
            notes.extend(gradient.notes());
        }
        // The constants of cells' uplinks depend on how many cells there are.
        let known = !matches!(self.fit, Fit::Cells(_)) || self.common.total_rows.is_some();
        notes.extend(channels::describe(known.then_some(up), down));
        notes.extend(channels::memory_note(down, self.common.clients));
        notes
    }
}

impl Chain for Plan {
    fn len(&self) -> usize {
        match &self.fit {
            Fit::Em(em) => em.stages(&self.common).len(),
            Fit::Gradient(_) => 1,
            Fit::Cells(cells) => cells.stages(&self.common).len(),
        }
    }

    fn build(&self, index: usize, delivered: &[Artifact]) -> whimbrel_core::Result<Stage> {
        let mut stage = match &self.fit {
            Fit::Em(em) => em.build(&self.common, index, delivered)?,
            Fit::Gradient(gradient) => {
                self.common.fit(gradient.method(&self.common), self.rounds())
            }
            Fit::Cells(cells) => cells.build(&self.common, index, delivered)?,
        };
        if let Some(journal) = &self.journal {
            stage.faults = self.replayed(journal, index, stage.faults.late)?;
        }
        Ok(stage)
    }
}

impl Plan {
    /// Losses and late joins as a journal has them. Who joined a later stage late was not there
    /// before it.
    fn replayed(
        &self,
        journal: &str,
        stage: usize,
        mut late: BTreeMap<ClientId, u32>,
    ) -> whimbrel_core::Result<Faults> {
        for later in stage + 1..self.len() {
            let later = Journal::parse(journal, later as u32)?;
            let ids = (0..self.common.names.len() as u32).map(ClientId);
            late.extend(ids.filter(|id| later.joins(*id).is_some()).map(|id| (id, u32::MAX)));
        }
        let replay = Some(Journal::parse(journal, stage as u32)?);
        Ok(Faults { replay, late, ..Faults::default() })
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
            clients: facts.clients,
            names: facts.names.clone(),
        })
    }

    fn roster(&self) -> Roster<'_> {
        Roster { names: &self.names, clients: self.clients }
    }

    fn rounds(&self, work: &Work) -> Option<u32> {
        match self.job.method.length {
            Length::Rounds(rounds) => Some(rounds),
            Length::Epochs(epochs) => {
                let rows = self.total_rows? as f64;
                let clients = self.clients as f64;
                let (p, each) = (self.participation_mean(), (rows / clients) as u64);
                let per_round = work.estimator.expectations_mean(&work.batch, each, p) * clients;
                let (rounds, passes) = self.opening();
                let left = (epochs - passes).max(0.0);
                Some(rounds.saturating_add((left * rows / per_round).ceil() as u32))
            }
        }
    }

    /// Rounds and passes over the rows before the first sampled cohort: of EM, the first statistic
    /// is a round of everyone, and memories that start at the field take another pass.
    fn opening(&self) -> (u32, f64) {
        match (&self.job.model, &self.job.uplink.rule) {
            (Model::Gmm(_), UpKey::Memory { start: MemoryStart::Oracle, .. }) => (1, 2.0),
            (Model::Gmm(_), _) => (1, 1.0),
            // The residuals that memories open with are a pass over the cells.
            (Model::LowRank(_), UpKey::Memory { start: MemoryStart::Oracle, .. }) => (0, 1.0),
            (Model::Linear(_) | Model::Logistic(_) | Model::LowRank(_), _) => (0, 0.0),
        }
    }

    fn participation_mean(&self) -> f64 {
        self.participation.mean(self.clients)
    }

    fn budget(&self) -> Budget {
        match self.job.method.length {
            Length::Rounds(rounds) => Budget::Rounds(rounds),
            Length::Epochs(epochs) => Budget::Epochs(epochs),
        }
    }

    fn batch(&self) -> Batch {
        match self.job.method.batch {
            // Of vr-fedem alone, for which `loops::work` finds the number.
            BatchKey::Full | BatchKey::Auto { .. } => Batch::Full,
            BatchKey::Mini { rows, replacement, local_steps } => {
                Batch::Sample { size: rows, replacement, local_steps }
            }
        }
    }

    /// What a client computes for an upload, of methods without outer loops.
    fn work(&self) -> Work {
        Work { estimator: Estimator::Minibatch, batch: self.batch() }
    }

    fn weights(&self) -> Weights {
        match self.job.method.weights {
            WeightsKey::Samples => Weights::Samples,
            WeightsKey::Equal => Weights::Equal,
        }
    }

    /// A stage with everyone who is there from the start, in which nothing is evaluated and no
    /// upload is lost. Who joins the fit late is not heard before it.
    fn quiet(&self, name: &'static str, method: Arc<dyn DynMethod>) -> Stage {
        let late = self.faults.late.keys().map(|id| (*id, u32::MAX)).collect();
        Stage {
            name,
            method,
            participation: Participation::Everyone,
            faults: Faults { late, ..Faults::default() },
            evaluate_every: None,
            stopping: Stopping::default(),
        }
    }

    /// The stage that fits the model in so many rounds, where they are known.
    fn fit(&self, method: Arc<dyn DynMethod>, rounds: Option<u32>) -> Stage {
        let stop = &self.job.method.stop;
        let automatic = || rounds.map_or(10, |rounds| rounds.div_ceil(EVALUATIONS));
        Stage {
            name: "fit",
            method,
            participation: self.participation.clone(),
            faults: self.faults.clone(),
            evaluate_every: Some(self.job.method.evaluate_every.unwrap_or_else(automatic).max(1)),
            stopping: Stopping {
                limits: stop.limits(),
                patience: stop.patience.map(|p| p.evaluations),
                tolerance: stop.patience.map_or(0.0, |p| p.tolerance),
            },
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
                return Err(error.into());
            }
            Participation::Fixed(*size as u32)
        }
        ParticipationKey::PerClient { default, clients } => {
            for name in clients.keys() {
                roster.id_of(name, "participation.clients")?;
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
        return Err(Failure::config("every client joins late: nobody is there to start with"));
    }
    Ok(Faults { lost: job.simulation.lost, drops, late, replay: None })
}

impl Roster<'_> {
    fn id_of(&self, name: &str, key: &str) -> Result<ClientId> {
        if let Some(at) = self.names.iter().position(|n| n == name) {
            return Ok(ClientId(at as u32));
        }
        if self.names.is_empty() && self.clients > 0 {
            let what = format!("`{key}` names client `{name}`, and clients bring their own names");
            let error = Error::config(what).hint("list the clients by name in [federation]");
            return Err(error.into());
        }
        let some: Vec<&str> = self.names.iter().take(5).map(String::as_str).collect();
        let more = if self.names.len() > some.len() { ", ..." } else { "" };
        let error =
            Error::config(format!("`{key}` names client `{name}`, which the data do not have"))
                .hint(format!("the clients are {}{more}", some.join(", ")));
        Err(error.into())
    }
}
