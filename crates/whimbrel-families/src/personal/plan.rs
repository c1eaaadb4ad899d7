//! The stage that trains a learner.

use super::PersonalFit;
use super::own::OwnTraining;
use crate::failure::{AtKey, Result};
use crate::family::refuse;
use crate::job::{Job, Step};
use crate::plan::channels::{Channels, Vectors};
use crate::plan::{Basis, Built, Common, FitStages, Planned};
use std::collections::BTreeMap;
use std::sync::Arc;
use whimbrel_core::DynMethod;
use whimbrel_core::method::Artifact;
use whimbrel_engine::{Graphs, StageMethod};
use whimbrel_methods::federated::BindRows;
use whimbrel_methods::personal::{
    DecentralisedPersonal, FedMix, OwnSolver, Personal, Rates, START_SUMS, Scaling, Shape, Solver,
    StartSums,
};
use whimbrel_methods::pooled::{self, ExactSums};
use whimbrel_methods::settings::Budget;
use whimbrel_nn::Learner;

/// Default local step.
const STEP: f64 = 0.1;

struct PersonalPlan {
    asked: PersonalFit,
    learner: Arc<dyn Learner>,
    channels: Channels,
    own_solvers: (Vec<OwnSolver>, BTreeMap<u32, u8>),
    graphs: Option<(Graphs, Scaling)>,
}

pub(super) fn planned(asked: &PersonalFit, on: &Basis<'_>) -> Result<Planned> {
    let common = on.common;
    let job = &common.job;
    let learner = asked.model.planned(on, asked.outside.as_deref())?;
    let (rule, shape) = (&asked.rule.local, Shape::new(&*learner));
    rule.check(&shape)?;
    let channels = Channels::new(common, &Vectors::gradients(&rule.blocks(&shape)))?;
    let own_solvers = OwnTraining::solvers(&asked.own, common, &solver(asked, job), rate(job))?;
    if job.privacy.is_masked() && !own_solvers.0.is_empty() {
        let what = "masks need one message to all, and solvers of single clients differ";
        return refuse(what, "take the solvers of single clients out, or `masks`")
            .at("privacy.masks");
    }
    let mut warnings = Vec::new();
    if let Some(fedmix) = asked.setting::<FedMix>()
        && fedmix.components > common.clients
    {
        warnings.push(format!(
            "{} components for {} clients: at most one per client can be identified",
            fedmix.components, common.clients
        ));
    }
    let mut settings = vec![format!("{} parameters", learner.parameters())];
    let (private, more) = common.private_messages(channels.uplinks[0].dimension())?;
    let notes = private.into_iter().collect();
    warnings.extend(more);
    common.check_private_start(&*learner)?;
    let graphs = match &asked.neighbours {
        None => None,
        Some(neighbours) => {
            let graphs = neighbours.graphs(common)?;
            settings.push(neighbours.describe(&graphs, common)?);
            Some((graphs, neighbours.scaling))
        }
    };
    let own_batches = own_solvers.0.iter().filter_map(|own| own.solver.batch);
    let batch_min = own_batches.chain(common.batch().size()).min();
    let (asked, planned) = (asked.clone(), channels.clone());
    let plan = PersonalPlan { asked, learner, channels, own_solvers, graphs };
    Ok(Planned { batch_min, warnings, notes, settings, ..Planned::new(common, &planned, plan) })
}

impl PersonalPlan {
    /// The stage of the sums from which the learner starts, where sums hide their terms.
    fn start(&self) -> Option<StartSums> {
        let on_grid = self.channels.uplinks.iter().any(|uplink| uplink.grid().is_some());
        let stage = StartSums { learner: self.learner.clone() };
        (on_grid && stage.length() > 1).then_some(stage)
    }

    fn method(&self, common: &Common, start: Option<Vec<f64>>) -> Result<Arc<dyn DynMethod>> {
        let (own_solvers, solver_of) = self.own_solvers.clone();
        let training = Personal { own_solvers, solver_of, start, ..self.training(common) };
        let release = common.release(self.channels.uplinks[0].dimension())?;
        let terms = self.channels.private_terms(common, release);
        Ok(self.asked.rule.local.method(training, terms))
    }

    fn training(&self, common: &Common) -> Personal {
        let training = &self.asked.training;
        let rounds = match common.budget() {
            Budget::Rounds(rounds) | Budget::Converged(rounds) => f64::from(rounds),
            // An epoch is a pass of all clients.
            Budget::Epochs(epochs) => epochs / common.participation_mean(),
        };
        Personal {
            learner: self.learner.clone(),
            rule: self.asked.rule.local.clone(),
            solver: solver(&self.asked, &common.job),
            rates: Rates {
                initial: rate(&common.job),
                factor: training.decay.factor,
                at: training.decay.at.iter().map(|share| (share * rounds).round() as u32).collect(),
            },
            server: self.asked.server,
            sampling: training.sampling,
            participation: common.participation_mean(),
            own_solvers: Vec::new(),
            solver_of: BTreeMap::new(),
            start: None,
        }
    }
}

/// The first local step.
pub(super) fn rate(job: &Job) -> f64 {
    match job.method.step {
        Step::Constant(rate) => rate,
        _ => STEP,
    }
}

/// The local solver.
pub(super) fn solver(asked: &PersonalFit, job: &Job) -> Solver {
    let batch = job.method.batch.size().flatten();
    Solver { length: asked.training.length, batch, optimiser: asked.training.optimiser }
}

impl FitStages for PersonalPlan {
    fn count(&self) -> usize {
        1 + usize::from(self.start().is_some())
    }

    fn build(&self, common: &Common, index: usize, delivered: &[Artifact]) -> Built {
        let stage = self.start();
        let start = match (&stage, delivered.first()) {
            (Some(stage), Some(found)) => Some(found.values(START_SUMS, stage.length())?),
            _ => None,
        };
        if let (Some(stage), 0) = (stage, index) {
            let exact = ExactSums { method: pooled::Stage(stage), masks: common.privacy().masks };
            return Ok(common.quiet("sums for a start", exact.erased(BindRows)));
        }
        let rounds = common.given_rounds();
        if let (Some((graphs, scaling)), Some(rounds)) = (&self.graphs, rounds) {
            let method = Arc::new(DecentralisedPersonal {
                oracle: self.training(common),
                weights: common.weights(),
                scaling: *scaling,
                rounds,
            });
            let method = StageMethod::Neighbours(method, graphs.clone());
            return Ok(common.fit_by(method, Some(rounds)));
        }
        Ok(common.fit(self.method(common, start)?, rounds))
    }

    fn stand_in(&self, index: usize) -> Artifact {
        match self.start().filter(|_| index == 0) {
            Some(stage) => {
                let length = stage.length();
                Artifact::new(START_SUMS).with(START_SUMS, &[length], vec![1.0; length])
            }
            None => Artifact::default(),
        }
    }
}
