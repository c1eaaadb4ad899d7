//! A learner and the method that trains it, over a job's channels.

use super::PersonalFit;
use super::keys::Rule;
use super::model::LOGISTIC;
use super::own::OwnTraining;
use crate::failure::Result;
use crate::family::StagePlan;
use crate::job::{Batch as BatchKey, Job, Step};
use crate::load::Loaded;
use crate::plan::channels::Channels;
use crate::plan::{Common, Facts};
use crate::predictions::check_outside;
use std::any::Any;
use std::collections::BTreeMap;
use std::sync::Arc;
use whimbrel_codec::channel::{Downlink, Uplink};
use whimbrel_core::method::Artifact;
use whimbrel_core::{DynMethod, Erased, Error};
use whimbrel_engine::{Graphs, Stage, StageMethod};
use whimbrel_methods::federated::BindRows;
use whimbrel_methods::personal::{
    BindMocha, BindSamples, ClusterModels, Clustered, DecentralisedPersonal, FedAvg, Length, Local,
    LocalRule, Mocha, OwnSolver, Personal, Rates, Scaffold, Scaling, Solver,
};
use whimbrel_methods::settings::Budget;
use whimbrel_nn::Learner;

/// The local step where the job does not say.
const STEP: f64 = 0.1;

pub(super) struct PersonalPlan {
    asked: PersonalFit,
    learner: Arc<dyn Learner>,
    rule: Arc<dyn LocalRule>,
    channels: Channels,
    own_solvers: (Vec<OwnSolver>, BTreeMap<u32, u8>),
    graphs: Option<(Graphs, Scaling)>,
    warnings: Vec<String>,
    notes: Vec<String>,
}

impl PersonalPlan {
    pub fn new(
        common: &Common,
        asked: &PersonalFit,
        facts: &Facts,
        rows: Option<&Loaded>,
    ) -> Result<Self> {
        let job = &common.job;
        let columns = [facts.columns.len()];
        let shape = rows.and_then(Loaded::shape).unwrap_or(&columns);
        if rows.is_some() {
            check_outside(asked.outside.as_deref(), shape)?;
        }
        let learner = asked.model.learner(shape, facts.classes.len())?;
        let rule = rule(asked, &*learner)?;
        let blocks = rule.blocks(&whimbrel_methods::personal::Shape::new(&*learner));
        let channels = Channels::new(common, &blocks)?;
        let usual = solver(asked, job.method.batch);
        let own_solvers = OwnTraining::solvers(&asked.own, common, &usual, rate(job))?;
        let mut warnings = Vec::new();
        if let Rule::FedMix(fedmix) = &asked.rule
            && fedmix.components > common.clients
        {
            warnings.push(format!(
                "{} components for {} clients: at most one per client can be told apart",
                fedmix.components, common.clients
            ));
        }
        let mut notes = vec![format!("{} parameters", learner.parameters())];
        let graphs = match &asked.neighbours {
            None => None,
            Some(neighbours) => {
                let graphs = neighbours.graphs(common)?;
                notes.push(neighbours.describe(&graphs, common)?);
                Some((graphs, neighbours.scaling))
            }
        };
        Ok(Self {
            asked: asked.clone(),
            learner,
            rule,
            channels,
            own_solvers,
            graphs,
            warnings,
            notes,
        })
    }

    fn method(&self, common: &Common) -> Arc<dyn DynMethod> {
        let own = self.own_solvers.clone();
        let (budget, weights) = (common.budget(), common.weights());
        let training = |rule| oracle(&self.asked, common, self.learner.clone(), rule);
        match self.asked.rule {
            Rule::Clustered { below, above } => {
                let training = training(Arc::new(FedAvg { mu: 0.0, fine_tune: false }));
                let method =
                    Clustered { training, stationary: below, apart: above, weights, budget };
                Arc::new(Erased(method, BindSamples))
            }
            Rule::Mocha { lambda, relation_every } => {
                let passes = match self.asked.training.length {
                    Length::Epochs(epochs) | Length::Steps(epochs) => epochs,
                };
                let (training, intercept) =
                    (training(self.rule.clone()), self.asked.model.intercept);
                let method = Mocha { training, intercept, lambda, passes, relation_every, budget };
                Arc::new(Erased(method, BindMocha))
            }
            _ => {
                let (own_solvers, solver_of) = own;
                let training = Personal { own_solvers, solver_of, ..training(self.rule.clone()) };
                Arc::new(Erased(training.over(self.channels.terms(common)), BindRows))
            }
        }
    }
}

fn oracle(
    asked: &PersonalFit,
    common: &Common,
    learner: Arc<dyn Learner>,
    rule: Arc<dyn LocalRule>,
) -> Personal {
    let training = &asked.training;
    let rounds = match common.budget() {
        Budget::Rounds(rounds) | Budget::Converged(rounds) => f64::from(rounds),
        // An epoch is a pass of everyone.
        Budget::Epochs(epochs) => epochs / common.participation_mean(),
    };
    Personal {
        learner,
        rule,
        solver: solver(asked, common.job.method.batch),
        rates: Rates {
            initial: rate(&common.job),
            factor: training.decay.factor,
            at: training.decay.at.iter().map(|share| (share * rounds).round() as u32).collect(),
        },
        server: asked.server,
        sampling: training.sampling,
        participation: common.participation_mean(),
        own_solvers: Vec::new(),
        solver_of: BTreeMap::new(),
    }
}

/// The first local step.
pub(super) fn rate(job: &Job) -> f64 {
    match job.method.step {
        Step::Constant(rate) => rate,
        _ => STEP,
    }
}

/// How a client descends.
pub(super) fn solver(asked: &PersonalFit, batch: BatchKey) -> Solver {
    let batch = match batch {
        BatchKey::Mini { rows, .. } => Some(rows),
        BatchKey::Full | BatchKey::Auto { .. } => None,
    };
    Solver { length: asked.training.length, batch, optimiser: asked.training.optimiser }
}

/// What the method does on a client.
pub(super) fn rule(asked: &PersonalFit, learner: &dyn Learner) -> Result<Arc<dyn LocalRule>> {
    Ok(match asked.rule.clone() {
        Rule::FedMix(fedmix) => Arc::new(fedmix),
        Rule::FedAvg(fedavg) => Arc::new(fedavg),
        Rule::Local => Arc::new(Local),
        Rule::PFedMe(pfedme) => Arc::new(pfedme),
        Rule::Apfl(apfl) => Arc::new(apfl),
        Rule::Ditto(ditto) => Arc::new(ditto),
        Rule::Scaffold => Arc::new(Scaffold),
        Rule::Clustered { .. } => Arc::new(ClusterModels),
        Rule::Mocha { .. } => {
            if asked.model.kind != LOGISTIC {
                let what = format!(
                    "mocha fits logistic regressions of two classes, not {}",
                    asked.model.kind
                );
                return Err(Error::config(what)
                    .hint("write kind = \"logistic\" in [model]")
                    .into());
            }
            // A client predicts with its own model, as under `local`.
            Arc::new(Local)
        }
        Rule::FedRep(fedrep) => {
            let (body, head) = whimbrel_methods::personal::Shape::new(learner).body_and_head();
            if body.is_empty() || head.is_empty() {
                let lacks = if head.is_empty() { "no head" } else { "no layers below its head" };
                let what =
                    format!("{} has {lacks}, and fedrep shares what is below", learner.name());
                let hint = "fedrep is for networks: kind = \"mlp\", \"cnn\" and others; an own \
                            learner says how many of its last parameters are the `head`";
                return Err(Error::config(what).hint(hint).into());
            }
            Arc::new(fedrep)
        }
    })
}

impl StagePlan for PersonalPlan {
    fn len(&self, _: &Common) -> usize {
        1
    }

    fn build(&self, common: &Common, _: usize, _: &[Artifact]) -> whimbrel_core::Result<Stage> {
        let rounds = self.rounds(common);
        if let (Some((graphs, scaling)), Some(rounds)) = (&self.graphs, rounds) {
            let method = Arc::new(DecentralisedPersonal {
                oracle: oracle(&self.asked, common, self.learner.clone(), self.rule.clone()),
                weights: common.weights(),
                scaling: *scaling,
                rounds,
            });
            let method = StageMethod::Neighbours(method, graphs.clone());
            return Ok(common.fit_by(method, Some(rounds)));
        }
        Ok(common.fit(self.method(common), rounds))
    }

    fn uplink(&self) -> &Uplink {
        &self.channels.uplinks[0]
    }

    fn downlink(&self) -> &Downlink {
        &self.channels.downlink
    }

    fn rounds(&self, common: &Common) -> Option<u32> {
        common.given_rounds()
    }

    fn batch_min(&self, common: &Common) -> Option<u32> {
        let own = self.own_solvers.0.iter().filter_map(|own| own.solver.batch);
        own.chain(common.batch().size()).min()
    }

    fn warnings(&self, _: &Common) -> Vec<String> {
        self.warnings.clone()
    }

    fn notes(&self, _: &Common) -> Vec<String> {
        self.notes.clone()
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
