//! From a job and its clients to the chain of stages that the engine runs.
//!
//! This module holds the part common to all families; a family supplies its [stages](FitStages).

pub mod channels;

mod facts;
mod network;
mod privacy;
mod roster;

pub use facts::Facts;
pub(crate) use facts::not_on_network;
pub use network::StageDisclosures;
pub use privacy::{Charge, Private};
pub use roster::Roster;

use crate::failure::{AtKey, Result};
use crate::family::{Fit, refuse};
use crate::job::Job;
use crate::job::method::stop::{EXCESS_LOSS, limit};
use crate::load::Loaded;
use channels::Channels;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use whimbrel_codec::channel::{Downlink, Uplink};
use whimbrel_core::method::Artifact;
use whimbrel_core::{DynMethod, Error};
use whimbrel_engine::metrics::number;
use whimbrel_engine::{Chain, Duty, Faults, Journal, Participation, Stage, StageMethod};
use whimbrel_methods::fedem::Estimator;
use whimbrel_methods::guard::Withheld;
use whimbrel_methods::kmeans::ROWS_MIN;
use whimbrel_methods::masked::{MaskSecret, Trust};
use whimbrel_methods::settings::{Batch, Budget, Weights};

/// Default number of evaluations of a run.
const EVALUATIONS: u32 = 100;
/// The kind of an artifact with constants that a stage estimated for `step = "theory"`.
pub(crate) const THEORY: &str = "theory";

/// A job with known clients; everything that can be checked without running has been checked.
pub struct Plan {
    common: Common,
    fit: Planned,
    /// Notes about the data.
    notes: Vec<String>,
    /// Warnings about the data.
    warnings: Vec<String>,
    /// Cells and rows that the rule of the smallest group withholds in a simulation.
    withheld: Withheld,
    /// The journal of a replayed run.
    journal: Option<String>,
}

/// A family's part of a plan.
pub struct Planned {
    pub stages: Box<dyn FitStages>,
    /// The uplink of clients without an own codec.
    pub uplink: Uplink,
    /// Whether the uplink's constants are known before clients join.
    pub uplink_is_known: bool,
    pub downlink: Downlink,
    /// Rounds of the fit, if the job or the data determine them.
    pub rounds: Option<u32>,
    pub warnings: Vec<String>,
    /// Notes for readers of the results.
    pub notes: Vec<String>,
    /// Constants and settings in use, for the diagnostics.
    pub settings: Vec<String>,
    /// The minimum of the loss.
    pub minimum: Option<f64>,
    /// Constants behind `step = "theory"`, if found before the run.
    pub theory: Vec<(&'static str, f64)>,
    /// Smallest minibatch of any client; `None`: full batches.
    pub batch_min: Option<u32>,
    /// Rows below which a client would often withhold parts of its messages, under a smallest group.
    pub rows_wanted: Option<usize>,
    /// The first memory of every client, if a file gives it.
    pub memory: Option<Vec<f64>>,
    /// The fit as clients on a network receive it, if it must not name the coordinator's files.
    pub offered: Option<Box<dyn Fit>>,
    /// Noise and cost under differential privacy.
    pub private: Option<Private>,
}

impl Planned {
    /// A plan over these channels, with the job's rounds and minibatches.
    pub fn new(common: &Common, channels: &Channels, stages: impl FitStages + 'static) -> Self {
        Self::over(common, channels.uplinks[0].clone(), channels.downlink.clone(), stages)
    }

    /// The same for a family that builds its channels by itself.
    pub fn over(
        common: &Common,
        uplink: Uplink,
        downlink: Downlink,
        stages: impl FitStages + 'static,
    ) -> Self {
        Self {
            stages: Box::new(stages),
            uplink,
            uplink_is_known: true,
            downlink,
            rounds: common.given_rounds(),
            warnings: Vec::new(),
            notes: Vec::new(),
            settings: Vec::new(),
            minimum: None,
            theory: Vec::new(),
            batch_min: common.batch().size(),
            rows_wanted: None,
            memory: None,
            offered: None,
            private: common.private.clone(),
        }
    }
}

/// A stage, or the reason why it cannot be built.
pub type Built = whimbrel_core::Result<Stage>;

/// The stages of a family's plan.
pub trait FitStages: Send + Sync {
    /// Number of stages.
    fn count(&self) -> usize {
        1
    }
    /// Builds a stage from the artifacts of the earlier ones.
    fn build(&self, common: &Common, index: usize, delivered: &[Artifact]) -> Built;
    /// An artifact of the kind and form that a stage delivers, to build later stages without running
    /// it; their messages are then as long as the job allows.
    fn stand_in(&self, _index: usize) -> Artifact {
        Artifact::default()
    }
    /// Whether the fit can be tried without this stage.
    fn can_skip(&self, _index: usize) -> bool {
        false
    }
}

/// The part of a plan that does not depend on the family.
pub struct Common {
    pub job: Job,
    /// Number of clients that train.
    pub clients: usize,
    /// The names of all clients by id; empty if they are not known yet.
    pub names: Vec<String>,
    /// Flags of clients that are only evaluated; empty if all train.
    pub unseen: Vec<bool>,
    /// Training rows of all clients, if known.
    pub total_rows: Option<u64>,
    pub participation: Participation,
    pub faults: Faults,
    pub minima: Minima,
    /// Noise and cost under differential privacy.
    pub private: Option<Private>,
    /// The origin of a client's masks.
    pub secret: MaskSecret,
    /// The client's identity under masks, and the user's view of rosters.
    pub trust: Trust,
}

/// Treatment of the minimum of a convex loss, to which excess losses refer.
#[derive(Clone, Debug, Default)]
pub enum Minima {
    /// Solve for it, and keep it in a folder for later runs.
    Cached(PathBuf),
    /// Solve for it.
    Solved,
    /// Solve for it only if the job stops at an excess loss.
    #[default]
    IfNeeded,
}

/// The basis of a plan: the job with its clients, and the data as far as they are known.
pub struct Basis<'a> {
    pub common: &'a Common,
    pub facts: &'a Facts,
    /// The rows, in a simulation.
    pub rows: Option<&'a Loaded>,
    pub files: Files<'a>,
}

impl Basis<'_> {
    /// The shape of a learner's input.
    pub fn shape(&self) -> Vec<usize> {
        let of_samples = self.rows.and_then(Loaded::shape).map(<[usize]>::to_vec);
        of_samples.unwrap_or_else(|| vec![self.facts.columns.len()])
    }
}

/// The location of the files that a fit starts from.
#[derive(Clone, Copy)]
pub enum Files<'a> {
    /// On this machine.
    Here,
    /// With the coordinator; a client knows only the parts it was sent.
    Sent {
        /// The first memory of every client, if a file gives it.
        memory: Option<&'a [f64]>,
    },
}

/// A client's estimator of its statistic, and the rows of one estimate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    pub estimator: Estimator,
    pub batch: Batch,
}

/// The user's cache folder: `WHIMBREL_CACHE`, else `whimbrel` in `XDG_CACHE_HOME` or in `~/.cache`.
fn cache_of_user() -> Option<PathBuf> {
    let set = |name| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    set("WHIMBREL_CACHE")
        .or_else(|| set("XDG_CACHE_HOME").map(|folder| folder.join("whimbrel")))
        .or_else(|| set("HOME").map(|home| home.join(".cache").join("whimbrel")))
}

impl Plan {
    /// Checks a job against its clients. Minima of convex losses are kept in the user's cache
    /// folder: `WHIMBREL_CACHE`, or else `whimbrel` in `XDG_CACHE_HOME` or in `~/.cache`.
    pub fn new(job: &Job, loaded: &Loaded) -> Result<Self> {
        Self::with_minima(job, loaded, cache_of_user().map_or(Minima::Solved, Minima::Cached))
    }

    /// Checks a job against its clients, with another cache folder or without one.
    pub fn with_cache(job: &Job, loaded: &Loaded, folder: Option<&Path>) -> Result<Self> {
        let folder = folder.map(Path::to_path_buf);
        Self::with_minima(job, loaded, folder.map_or(Minima::Solved, Minima::Cached))
    }

    /// Checks a job against its clients. Nothing is written unless minima are cached.
    pub fn with_minima(job: &Job, loaded: &Loaded, minima: Minima) -> Result<Self> {
        Self::simulated(job, loaded, minima).map_err(|failure| failure.placed(job))
    }

    fn simulated(job: &Job, loaded: &Loaded, minima: Minima) -> Result<Self> {
        let facts = Facts::of(loaded);
        let mut common = Common::new(job, &facts)?;
        common.minima = minima;
        let fit = job.fit.plan(&Basis {
            common: &common,
            facts: &facts,
            rows: Some(loaded),
            files: Files::Here,
        })?;
        if job.privacy.min_group != Some(1) {
            loaded.training().try_for_each(|(_, (_, data))| job.fit.check_client(data))?;
        }
        let mut plan = Self::checked(common, fit)?;
        plan.notes.clone_from(&loaded.notes);
        plan.withheld = loaded.withheld;
        plan.warnings.clone_from(&loaded.warnings);
        plan.warnings.extend(plan.private().and_then(|_| privacy::unscaled(job, loaded)));
        plan.warnings.extend(same_but_for_case(&facts.names));
        if job.federation.is_some() {
            plan.notes.push("[federation] is for `whimbrel serve`; this is a simulation".into());
        }
        Ok(plan)
    }

    fn checked(common: Common, fit: Planned) -> Result<Self> {
        let job = &common.job;
        channels::check_memory(job, &fit.downlink, common.clients)?;
        if limit(&job.method.stop, &EXCESS_LOSS).is_some() && fit.minimum.is_none() {
            return refuse(
                "a run can stop at an excess loss only if the minimum of the loss is known",
                "take `excess_loss` out of `stop` in [method]",
            )
            .at("method.stop.excess_loss");
        }
        if let Some(least) = job.privacy.least_masked(common.clients)
            && common.trained() < least as usize
        {
            let what = format!("{} clients: a masked sum takes {least}", common.trained());
            return refuse(what, "take `masks` out, or train on more clients").at("privacy.masks");
        }
        let (notes, warnings) = (Vec::new(), Vec::new());
        Ok(Self { common, fit, notes, warnings, withheld: Withheld::default(), journal: None })
    }

    /// The plan with the losses and late joins of a journal instead of those of `[simulation]`.
    /// Its clients must have the journal's ids ([`Loaded::renumber`]).
    #[must_use]
    pub fn replaying(self, journal: String) -> Self {
        Self { journal: Some(journal), ..self }
    }

    /// The number of planned clients.
    pub fn clients(&self) -> usize {
        self.common.clients
    }

    /// Length of the vectors that clients send.
    pub fn vector_len(&self) -> usize {
        self.fit.uplink.dimension()
    }

    /// The uplink of clients without an own codec.
    pub fn uplink(&self) -> &Uplink {
        &self.fit.uplink
    }

    pub fn downlink(&self) -> &Downlink {
        &self.fit.downlink
    }

    /// The minimum of the loss, if a solver found it.
    pub fn f_star(&self) -> Option<f64> {
        self.fit.minimum
    }

    /// Constants of the method, found before the run or by a stage of it, under their key in
    /// `summary.json`: those behind `step = "theory"`.
    pub fn constants(&self, delivered: &[Artifact]) -> Option<(&'static str, Map<String, Value>)> {
        let entry = |name: &str, x: f64| (name.to_owned(), number(x));
        let constants: Map<_, _> = match delivered.iter().find(|artifact| artifact.kind == THEORY) {
            Some(found) => found.numbers().map(|(name, x)| entry(name, x)).collect(),
            None => self.fit.theory.iter().map(|(name, x)| entry(name, *x)).collect(),
        };
        (!constants.is_empty()).then_some((THEORY, constants))
    }

    /// Rounds of the fit, if the job or the data determine them.
    pub fn rounds(&self) -> Option<u32> {
        self.fit.rounds
    }

    /// Epsilon after this number of rounds, and delta, under differential privacy.
    pub fn privacy_spent(&self, rounds: u32) -> Option<(f64, f64)> {
        let private = self.fit.private.as_ref()?;
        Some((private.spent(rounds), private.guarantee.delta))
    }

    /// Cells and rows that the rule of the smallest group withholds in a simulation.
    pub fn withheld(&self) -> Withheld {
        self.withheld
    }

    /// The advice to a client with this number of rows, if it would often withhold parts of its
    /// messages.
    pub fn few_rows(&self, rows: u64) -> Option<String> {
        few_rows(&self.common.job, self.fit.rows_wanted, rows)
    }

    /// Smallest minibatch of any client; `None`: full batches.
    pub fn batch_min(&self) -> Option<u32> {
        self.fit.batch_min
    }

    /// Whether the fit can be tried without this stage.
    pub fn can_skip(&self, index: usize) -> bool {
        self.fit.stages.can_skip(index)
    }

    /// An artifact of the form that a stage delivers, to build later stages without running it.
    pub fn stand_in(&self, index: usize) -> Artifact {
        self.fit.stages.stand_in(index)
    }

    /// Refuses artifacts other than one of each earlier stage, in their order.
    fn check_kinds(&self, index: usize, delivered: &[Artifact]) -> whimbrel_core::Result<()> {
        let expected = (0..index).map(|at| self.stand_in(at).kind);
        if expected.eq(delivered.iter().map(|artifact| artifact.kind.clone())) {
            return Ok(());
        }
        Err(Error::peer("results of earlier stages that the job does not have, or not all of them"))
    }

    /// Warnings to show before the run starts.
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings = self.warnings.clone();
        warnings.extend(channels::uncompressed(&self.common.job));
        warnings.extend_from_slice(&self.fit.warnings);
        warnings
    }

    /// Notes to show before the run starts, about the data and the fit.
    pub fn notes(&self) -> Vec<String> {
        let mut all = self.notes.clone();
        all.extend_from_slice(&self.fit.notes);
        all.extend(self.common.job.privacy.is_masked().then(|| NO_FIGURES.to_owned()));
        all
    }

    /// Constants and settings in use, for the diagnostics.
    pub fn settings(&self) -> Vec<String> {
        let Planned { uplink, downlink, uplink_is_known, settings, .. } = &self.fit;
        let mut all = settings.clone();
        all.extend(channels::describe(uplink_is_known.then_some(uplink), downlink));
        all.extend(channels::memory_note(downlink, self.common.clients));
        all
    }
}

/// The note on runs under masks.
pub const NO_FIGURES: &str = "there are no figures of single clients: under masks the coordinator learns \
                              sums over clients only";

/// The warning about names of clients that differ by case only, such as `Ward` and `ward`.
pub(super) fn same_but_for_case(names: &[String]) -> Option<String> {
    let mut known: BTreeMap<String, &String> = BTreeMap::new();
    names.iter().find_map(|name| {
        let other = known.insert(name.to_lowercase(), name).filter(|other| *other != name)?;
        Some(format!("clients `{other}` and `{name}` differ by case only: are they the same one?"))
    })
}

/// The advice for clients with this number of rows each.
pub(crate) fn few_rows(job: &Job, wanted: Option<usize>, rows: u64) -> Option<String> {
    let (group, wanted) = (job.privacy.groups()?, wanted?);
    (rows < wanted as u64).then(|| {
        format!(
            "{rows} rows of a client are few for min_group = {group}: with fewer than {wanted} the fit \
             loses likelihood and can fail; use fewer components, or in [privacy] write \
             min_group = 1 with masks = true (the server sees sums over clients only) or instead \
             epsilon = 3.0 (noise), or min_group = 1 alone if all agree that a message may rest on \
             single rows"
        )
    })
}

impl Chain for Plan {
    fn len(&self) -> usize {
        self.fit.stages.count()
    }

    fn build(&self, index: usize, delivered: &[Artifact]) -> whimbrel_core::Result<Stage> {
        self.check_kinds(index, delivered)?;
        let mut stage = self.fit.stages.build(&self.common, index, delivered)?;
        self.common.check_masked(&stage)?;
        if let Some(journal) = &self.journal {
            let replay = Some(Journal::parse(journal, index as u32)?);
            stage.faults = Faults { replay, ..Faults::default() };
        }
        Ok(stage)
    }

    fn expected(&self, index: usize) -> whimbrel_core::Result<Stage> {
        let stand_ins: Vec<Artifact> = (0..index).map(|at| self.stand_in(at)).collect();
        self.build(index, &stand_ins)
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
            participation: roster::participation(&job.method.participation, &roster)?,
            faults: roster::faults(job, &roster)?,
            total_rows: facts.total_rows,
            job: job.clone(),
            minima: Minima::default(),
            clients: facts.clients,
            names: facts.names.clone(),
            unseen: facts.unseen.clone(),
            private: Private::of(job, facts.clients, facts.total_rows)?,
            secret: MaskSecret::Simulated,
            trust: Trust::default(),
        })
    }

    /// The number of clients that train.
    pub fn trained(&self) -> usize {
        self.clients - self.unseen.iter().filter(|unseen| **unseen).count()
    }

    /// Refuses a stage whose messages are not masked, if the job asks for masks.
    fn check_masked(&self, stage: &Stage) -> whimbrel_core::Result<()> {
        let declared = stage.method.declare();
        if !self.job.privacy.is_masked() || declared.steps > 1 {
            return Ok(());
        }
        let what = format!("the messages of the stage `{}` cannot be masked", stage.name);
        Err(Error::config(what).hint("take `masks` out of [privacy], or use another method"))
    }

    /// The clients that the job's names refer to.
    pub fn roster(&self) -> Roster<'_> {
        Roster { names: &self.names, clients: self.clients }
    }

    /// The rounds of a job, from its epochs if it gives those. `work` is the work behind an upload;
    /// `before` counts the rounds and the passes over the rows before the first sampled cohort.
    pub fn rounds(&self, work: &Estimate, before: (u32, f64)) -> Option<u32> {
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

    /// Mean probability that a client takes part in a round.
    pub fn participation_mean(&self) -> f64 {
        self.participation.mean(self.clients)
    }

    pub fn budget(&self) -> Budget {
        self.job.method.length
    }

    /// The rounds of the job, unless it gives epochs.
    pub fn given_rounds(&self) -> Option<u32> {
        match self.budget() {
            Budget::Rounds(rounds) | Budget::Converged(rounds) => Some(rounds),
            Budget::Epochs(_) => None,
        }
    }

    /// The rows behind one upload. Families with automatic minibatches determine the size themselves.
    pub fn batch(&self) -> Batch {
        self.job.method.batch.settled(None)
    }

    /// The work behind an upload of methods without outer loops.
    pub fn work(&self) -> Estimate {
        Estimate { estimator: Estimator::Minibatch, batch: self.batch() }
    }

    /// Fewest rows behind a cluster centre that leaves a client.
    pub fn group_min(&self) -> usize {
        self.job.privacy.groups().map_or(ROWS_MIN, |group| ROWS_MIN.max(group as usize))
    }

    pub fn weights(&self) -> Weights {
        self.job.method.weights
    }

    /// A stage without evaluations and losses, in which all clients except late joiners take part.
    pub fn quiet(&self, name: &'static str, method: Arc<dyn DynMethod>) -> Stage {
        let late = self.faults.late.keys().map(|id| (*id, u32::MAX)).collect();
        Stage { faults: Faults { late, ..Faults::default() }, ..Stage::new(name, method) }
    }

    /// The stage that fits the model; `rounds` sets the default interval of evaluations.
    pub fn fit(&self, method: Arc<dyn DynMethod>, rounds: Option<u32>) -> Stage {
        self.fit_by(method.into(), rounds)
    }

    /// The fitting stage of a method with or without a server.
    pub fn fit_by(&self, method: StageMethod, rounds: Option<u32>) -> Stage {
        let automatic = || rounds.map_or(10, |rounds| rounds.div_ceil(EVALUATIONS));
        let every = self.job.method.evaluate_every.unwrap_or_else(automatic).max(1);
        Stage {
            name: "fit",
            method,
            participation: self.participation.clone(),
            faults: self.faults.clone(),
            evaluate_every: self.evaluates().then_some(every),
            stopping: privacy::stopping(self),
        }
    }
}
