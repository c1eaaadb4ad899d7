//! Regressions: the gradient family over a job's channels.

use super::GradientFit;
use super::keys::Regression;
use super::optimum::{Found, optimum};
use crate::failure::Result;
use crate::family::StagePlan;
use crate::job::{Batch, Job, Step};
use crate::load::Loaded;
use crate::plan::Common;
use crate::plan::channels::{Channels, Vectors};
use std::any::Any;
use std::sync::Arc;
use whimbrel_codec::channel::{DownRule, Downlink, UpRule, Uplink, em_alpha};
use whimbrel_core::method::Artifact;
use whimbrel_core::{ClientId, Erased, Error, Method};
use whimbrel_engine::Stage;
use whimbrel_engine::keys::StageKeys;
use whimbrel_methods::federated::BindRows;
use whimbrel_methods::settings::Weights;
use whimbrel_methods::sgd::preset::table_row;
use whimbrel_methods::sgd::{Average, Gradient, Reference, Sgd, StepRule};
use whimbrel_methods::step::{Schedule, omega_with_sampling};
use whimbrel_models::convex::{Examples, Penalty, Problem};

/// A regression and the method that fits it.
pub(super) struct GradientPlan {
    asked: GradientFit,
    problem: Problem,
    dimension: usize,
    step: StepRule,
    average: Average,
    channels: Channels,
    reference: Option<Reference>,
    /// The constants behind `step = "theory"`.
    theory: Vec<(&'static str, f64)>,
    warnings: Vec<String>,
    notes: Vec<String>,
}

impl GradientPlan {
    /// From the job alone; `share` is Dore's share of the error under `compat`, and `average` what
    /// the theory asks for where only the data tell.
    pub fn new(
        common: &Common,
        asked: &GradientFit,
        columns: usize,
        share: Option<f64>,
        average: Option<Average>,
    ) -> Result<Self> {
        let job = &common.job;
        let problem = problem(asked)?;
        let dimension = columns + usize::from(asked.regression.intercept);
        let blocks = &[dimension];
        let vectors = match job.method.step {
            Step::Theory => Vectors::new((blocks, em_alpha), (blocks, theory_alpha)),
            _ => Vectors::gradients(blocks),
        };
        let channels = Channels::new(common, &Vectors { share, ..vectors })?;
        let average = match asked.descent.average.or(average) {
            Some(average) => average,
            None => average_without_data(job, &asked.regression)?,
        };
        Ok(Self {
            dimension,
            asked: asked.clone(),
            step: step(job, asked)?,
            average,
            channels,
            reference: None,
            theory: Vec::new(),
            warnings: Vec::new(),
            notes: Vec::new(),
            problem,
        })
    }

    /// With what a simulation can see in the rows: constants, and the minimum of the loss.
    pub fn simulated(common: &Common, asked: &GradientFit, loaded: &Loaded) -> Result<Self> {
        let job = &common.job;
        let problem = problem(asked)?;
        let clients = Weighted::new(problem, common.weights(), loaded)?;
        let share = asked.descent.compat.map(|_| clients.compat_step(job));
        let average = Some(clients.average_of_theory(job));
        let mut plan = Self::new(common, asked, loaded.columns.len(), share, average)?;
        let convex = plan.problem.penalty().is_convex();
        match convex.then(|| optimum(common, asked, &clients, loaded)) {
            None => plan.notes.push(
                "the loss is not convex: gradient_norm2 is reported in place of excess losses"
                    .into(),
            ),
            Some(Ok(Found { reference, gradient_norm, cached })) => {
                let origin = if cached { ", from the cache" } else { "" };
                plan.notes.push(format!(
                    "minimum of the loss {:.12e}, gradient norm {gradient_norm:.1e}{origin}",
                    reference.f_star
                ));
                plan.reference = Some(reference);
            }
            Some(Err(error)) => {
                plan.warnings.push(format!("excess losses are not reported: {error}"));
            }
        }
        plan.notes.extend(clients.constants(job, asked));
        if job.method.step == Step::Theory {
            plan.theory = plan.constants_of_theory(common, &clients)?;
            let each = plan.theory.iter().map(|(name, value)| format!("{name} {value:.4e}"));
            plan.notes.push(format!("theory: {}", each.collect::<Vec<_>>().join(", ")));
        }
        Ok(plan)
    }

    /// What the server will make of the clients' summaries when the run starts. `omega_up` counts
    /// the sampling of clients; `gamma` is the first step.
    fn constants_of_theory(
        &self,
        common: &Common,
        clients: &Weighted,
    ) -> Result<Vec<(&'static str, f64)>> {
        let method = self.sgd(common);
        let keys = StageKeys::new(common.job.seed, 0);
        let mut roster = Vec::new();
        for (id, (_, examples)) in (0..).map(ClientId).zip(&clients.clients) {
            if !common.faults.late.contains_key(&id) {
                let rows = examples.rows() as u64;
                roster.push((id, method.enroll_rows(examples, rows, keys.enrol(id))?.1));
            }
        }
        let bounds = method.start(&mut roster.into_iter(), keys.start())?.global.bounds;
        let omegas = self.channels.uplinks.iter().filter_map(Uplink::omega);
        let omega_up = omega_with_sampling(omegas.fold(0.0, f64::max), common.participation_mean());
        let mut constants = vec![
            ("L", bounds.smoothness),
            ("mu", bounds.strong_convexity),
            ("sigma2", bounds.sigma2),
            ("omega_up", omega_up),
        ];
        if let UpRule::Memory { alpha } = self.channels.uplinks[0].rule() {
            constants.push(("alpha_up", *alpha));
        }
        if let DownRule::Preserved { alpha, .. } = self.channels.downlink.rule() {
            constants.extend(self.channels.downlink.omega().map(|omega| ("omega_down", omega)));
            constants.push(("alpha_down", *alpha));
        }
        constants.extend([("gamma_max", bounds.gamma_max), ("gamma", self.step.at(0, &bounds))]);
        Ok(constants)
    }

    fn sgd(&self, common: &Common) -> Sgd {
        Sgd {
            oracle: Gradient {
                problem: self.problem,
                dimension: self.dimension,
                batch: common.batch(),
                step: self.step,
                momentum: self.asked.descent.momentum,
                average: self.average,
                participation: common.participation_mean(),
                reference: self.reference.clone(),
            },
            terms: self.channels.terms(common),
        }
    }
}

impl StagePlan for GradientPlan {
    fn len(&self, _: &Common) -> usize {
        1
    }

    fn build(&self, common: &Common, _: usize, _: &[Artifact]) -> whimbrel_core::Result<Stage> {
        let method = Arc::new(Erased(self.sgd(common), BindRows));
        Ok(common.fit(method, self.rounds(common)))
    }

    fn uplink(&self) -> &Uplink {
        &self.channels.uplinks[0]
    }

    fn downlink(&self) -> &Downlink {
        &self.channels.downlink
    }

    fn rounds(&self, common: &Common) -> Option<u32> {
        common.rounds(&common.work(), (0, 0.0))
    }

    fn warnings(&self, _: &Common) -> Vec<String> {
        self.warnings.clone()
    }

    /// The row of the MCM paper's Table 1 that the channels realise, and the constants in use.
    fn notes(&self, common: &Common) -> Vec<String> {
        let (up, down) = (&self.channels.uplinks[0], &self.channels.downlink);
        let row = table_row(up.rule(), up.codec().is_exact(), down.rule());
        let row = format!("{}: {row}", common.job.method.name());
        std::iter::once(row).chain(self.notes.iter().cloned()).collect()
    }

    fn minimum(&self) -> Option<f64> {
        self.reference.as_ref().map(|reference| reference.f_star)
    }

    fn theory(&self) -> &[(&'static str, f64)] {
        &self.theory
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// The memory step of a downlink under `step = "theory"`: `1/(8 omega)`, which is above one for
/// codecs that hardly compress.
fn theory_alpha(omega: f64) -> f64 {
    (0.125 / omega).min(0.5)
}

fn problem(asked: &GradientFit) -> Result<Problem> {
    let Regression { ridge, nonconvex, intercept } = asked.regression;
    if !asked.logistic {
        return Ok(Problem::least_squares(ridge, intercept)?);
    }
    let bounded = nonconvex > 0.0;
    let penalty = if bounded { Penalty::Bounded(nonconvex) } else { Penalty::Ridge(ridge) };
    Ok(Problem::penalised_logistic(penalty, intercept)?)
}

fn step(job: &Job, asked: &GradientFit) -> Result<StepRule> {
    let frobenius = asked.descent.compat.is_some();
    Ok(match job.method.step {
        Step::Auto => StepRule::OverSmoothness { factor: 1.0, frobenius },
        Step::OverL(factor) => StepRule::OverSmoothness { factor, frobenius },
        Step::OverLRoot => StepRule::OverSmoothnessRoot,
        Step::Theory => StepRule::Theory,
        Step::Constant(gamma) => StepRule::Given(Schedule::constant(gamma)?),
        Step::Decreasing { initial, power, delay } => {
            StepRule::Given(Schedule::decreasing(initial, power, delay)?)
        }
        Step::Parts { .. } => {
            return Err(Error::config("this method has one step").into());
        }
    })
}

/// What the theorem behind the step is about, where the job tells: a ridge makes the loss strongly
/// convex, and Theorem S11 is about gradients at the models themselves.
fn average_without_data(job: &Job, settings: &Regression) -> Result<Average> {
    let ridge = settings.ridge > 0.0;
    match (job.method.step, job.method.batch) {
        (Step::Theory, _) if settings.nonconvex > 0.0 => Ok(Average::Last),
        (Step::Theory, Batch::Full) if ridge => Ok(Average::Last),
        (Step::Theory, Batch::Sample { .. }) if ridge => Ok(Average::Weighted),
        (Step::Theory, _) => {
            let error = Error::config(
                "which average the theory asks for depends on whether the loss is strongly \
                 convex, and the rows that would tell are not here",
            )
            .hint("set `average` in [method], or a ridge in [model]");
            Err(error.into())
        }
        _ => Ok(Average::Last),
    }
}

/// All clients' rows with their shares of the loss.
pub(super) struct Weighted {
    pub problem: Problem,
    pub clients: Vec<(f64, Examples)>,
}

impl Weighted {
    fn new(problem: Problem, weights: Weights, loaded: &Loaded) -> Result<Self> {
        let mut clients = Vec::with_capacity(loaded.clients.len());
        for (id, (_, data)) in loaded.training() {
            let examples = problem.bind(data).map_err(|e| e.of_client(id))?;
            let weight = match weights {
                Weights::Samples => examples.rows() as f64,
                Weights::Equal => 1.0,
            };
            clients.push((weight, examples));
        }
        let total: f64 = clients.iter().map(|(weight, _)| weight).sum();
        clients.iter_mut().for_each(|(weight, _)| *weight /= total);
        Ok(Self { problem, clients })
    }

    fn mean(&self, of: impl Fn(&Examples) -> f64) -> f64 {
        self.clients.iter().map(|(weight, data)| weight * of(data)).sum()
    }

    /// The constants behind a step that the job gives in terms of them.
    fn constants(&self, job: &Job, asked: &GradientFit) -> Option<String> {
        let problem = self.problem;
        let smoothness = || self.mean(|data| problem.smoothness(data));
        match job.method.step {
            Step::Auto | Step::OverL(_) => {
                let factor = if let Step::OverL(factor) = job.method.step { factor } else { 1.0 };
                let (l, norm) = match asked.descent.compat {
                    None => (smoothness(), "spectral"),
                    Some(_) => (self.mean(|data| problem.frobenius(data)), "Frobenius"),
                };
                Some(format!(
                    "L {l:.4} (mean of the clients' {norm} constants), step {:.4}",
                    factor / l
                ))
            }
            Step::OverLRoot => Some(format!("L {:.4}, step 1/(L sqrt(k))", smoothness())),
            Step::Theory | Step::Constant(_) | Step::Decreasing { .. } | Step::Parts { .. } => None,
        }
    }

    /// The constant step under `compat`, which the paper's code takes for Dore's share.
    fn compat_step(&self, job: &Job) -> f64 {
        let over = |factor: f64| factor / self.mean(|data| self.problem.frobenius(data));
        match job.method.step {
            Step::Constant(gamma) => gamma,
            Step::OverL(factor) => over(factor),
            _ => over(1.0),
        }
    }

    /// What the theorem behind the step is about; without a theorem the last model.
    fn average_of_theory(&self, job: &Job) -> Average {
        if job.method.step != Step::Theory || !self.problem.penalty().is_convex() {
            return Average::Last;
        }
        let strongly_convex = self.mean(|data| self.problem.strong_convexity(data)) > 0.0;
        match (strongly_convex, job.method.batch) {
            (true, Batch::Full) => Average::Last,
            (true, Batch::Sample { .. }) => Average::Weighted,
            (false, _) => Average::Uniform,
        }
    }
}
