//! The stage of a regression.

use super::GradientFit;
use super::keys::Regression;
use super::optimum::{Minimum, optimum};
use crate::failure::Result;
use crate::family::refuse;
use crate::job::method::WEIGHT_WORDS;
use crate::job::method::stop::{EXCESS_LOSS, limit};
use crate::job::{Batch, Job, PrivacyUnit, Step};
use crate::load::Loaded;
use crate::plan::channels::{Channels, Vectors};
use crate::plan::{Built, Common, FitStages, Minima, Planned};
use whimbrel_codec::channel::preset::table_row;
use whimbrel_codec::channel::{DownRule, UpRule, Uplink, em_alpha};
use whimbrel_core::method::Artifact;
use whimbrel_core::{ClientId, Error, Method};
use whimbrel_engine::keys::StageKeys;
use whimbrel_methods::federated::BindRows;
use whimbrel_methods::pooled::{self, ExactSums};
use whimbrel_methods::settings::Weights;
use whimbrel_methods::sgd::{
    Average, Gradient, KnownConstants, Reference, SMOOTHNESS, Sgd, Smoothness, StepRule,
};
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
    /// Whether the fit is differentially private.
    private: bool,
}

impl GradientPlan {
    /// A plan from the job alone. `share` is Dore's share of the error under `compat`; `average` is
    /// the average that the theory requires, if the data determine it.
    pub fn new(
        common: &Common,
        asked: &GradientFit,
        columns: usize,
        share: Option<f64>,
        average: Option<Average>,
    ) -> Result<Self> {
        let job = &common.job;
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
        let average = match &common.private {
            Some(private) if asked.descent.average.is_none() => {
                Average::Since(private.averaged().start)
            }
            _ => average,
        };
        Ok(Self {
            asked: asked.clone(),
            problem: problem(asked)?,
            dimension,
            step: step(job, asked)?,
            average,
            channels,
            reference: None,
            private: common.private.is_some(),
        })
    }

    /// The plan, with a note on the row of the MCM paper's Table 1 that the channels realise.
    pub fn planned(self, common: &Common) -> Result<Planned> {
        let channels = self.channels.clone();
        let (up, down) = (&channels.uplinks[0], &channels.downlink);
        let row = table_row(up.rule(), up.codec().is_exact(), down.rule());
        let (private, warnings) = common.private_messages(self.dimension)?;
        let weights = WEIGHT_WORDS.name(&common.job.method.weights);
        let settings = vec![
            format!("{}: {row}", common.job.method.name()),
            format!("weights of clients: {weights}"),
        ];
        let notes = private.into_iter().collect();
        Ok(Planned {
            rounds: common.rounds(&common.work(), (0, 0.0)),
            notes,
            settings,
            warnings,
            minimum: self.reference.as_ref().map(|reference| reference.f_star),
            ..Planned::new(common, &channels, self)
        })
    }

    /// The constants that the server will derive from the clients' summaries. `omega_up` includes
    /// the sampling of clients; `gamma` is the first step.
    fn constants_of_theory(
        &self,
        common: &Common,
        clients: &Weighted,
    ) -> Result<Vec<(&'static str, f64)>> {
        let method = self.sgd(common, None)?;
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

    /// Bounds under differential privacy. A logistic loss with rows of norm `clip` at most has
    /// gradients of norm `clip` and `L = clip^2/4 + ridge`.
    fn private(&self, common: &Common) -> Option<KnownConstants> {
        let (private, bound) = (common.private.as_ref()?, common.job.privacy.clip.unwrap_or(1.0));
        let row_bound = (private.unit == PrivacyUnit::Row).then_some(bound);
        let smoothness = 0.25 * bound * bound + self.asked.regression.ridge;
        let sampling = private.sampling(common);
        Some(KnownConstants { row_bound, smoothness, sampling })
    }

    /// Whether a stage of sums finds the smoothness, so that clients do not send theirs.
    fn sums_smoothness(&self) -> bool {
        let on_grid = self.channels.uplinks.iter().any(|uplink| uplink.grid().is_some());
        on_grid && !self.private && self.step != StepRule::Theory
    }

    fn sgd(&self, common: &Common, known: Option<KnownConstants>) -> Result<Sgd> {
        let release = common.release(self.dimension)?;
        Ok(Sgd {
            oracle: Gradient {
                problem: self.problem,
                dimension: self.dimension,
                batch: common.batch(),
                step: self.step,
                momentum: self.asked.descent.momentum,
                average: self.average,
                participation: common.participation_mean(),
                reference: self.reference.clone(),
                known: known.or_else(|| self.private(common)),
            },
            terms: self.channels.private_terms(common, release),
        })
    }
}

impl FitStages for GradientPlan {
    fn count(&self) -> usize {
        1 + usize::from(self.sums_smoothness())
    }

    fn build(&self, common: &Common, index: usize, delivered: &[Artifact]) -> Built {
        if index + 1 < self.count() {
            let frobenius = self.step.wants_frobenius();
            let stage = Smoothness { problem: self.problem, weights: common.weights(), frobenius };
            let exact = ExactSums { method: pooled::Stage(stage), masks: common.privacy().masks };
            return Ok(common.quiet(SMOOTHNESS, exact.erased(BindRows)));
        }
        let found = delivered.first().map(|a| a.number(SMOOTHNESS)).transpose()?;
        let of = |smoothness| KnownConstants { row_bound: None, smoothness, sampling: None };
        let known = found.map(of);
        let method = self.sgd(common, known)?.erased(BindRows);
        Ok(common.fit(method, common.rounds(&common.work(), (0, 0.0))))
    }

    fn stand_in(&self, index: usize) -> Artifact {
        if index + 1 < self.count() {
            Artifact::new(SMOOTHNESS).with(SMOOTHNESS, &[], vec![1.0])
        } else {
            Artifact::default()
        }
    }
}

/// The plan of a simulation, which computes constants and the minimum of the loss from the rows.
pub(super) fn simulated(common: &Common, asked: &GradientFit, loaded: &Loaded) -> Result<Planned> {
    let job = &common.job;
    let problem = problem(asked)?;
    let clients = Weighted::new(problem, common.weights(), loaded)?;
    let share = asked.descent.compat.map(|_| clients.compat_step(job));
    let average = Some(clients.average_of_theory(job));
    let mut plan = GradientPlan::new(common, asked, loaded.columns.len(), share, average)?;
    let wanted = match common.minima {
        _ if common.private.is_some() && job.method.evaluate_every.is_none() => false,
        Minima::Cached(_) | Minima::Solved => true,
        Minima::IfNeeded => limit(&job.method.stop, &EXCESS_LOSS).is_some(),
    };
    let (mut settings, mut warnings) = (Vec::new(), Vec::new());
    if !problem.penalty().is_convex() {
        settings.push(
            "the loss is not convex: gradient_norm2 is reported instead of excess losses".into(),
        );
    } else if wanted {
        match optimum(common, asked, &clients, loaded) {
            Ok(Minimum { reference, gradient_norm, cached }) => {
                let origin = if cached { ", from the cache" } else { "" };
                settings.push(format!(
                    "minimum of the loss {:.12e}, gradient norm {gradient_norm:.1e}{origin}",
                    reference.f_star
                ));
                plan.reference = Some(reference);
            }
            Err(error) => warnings.push(format!("excess losses are not reported: {error}")),
        }
    }
    if common.private.is_none() {
        settings.extend(clients.constants(job, asked));
    }
    let mut theory = Vec::new();
    if job.method.step == Step::Theory {
        theory = plan.constants_of_theory(common, &clients)?;
        settings.push(theory_note(&theory));
    }
    let mut planned = plan.planned(common)?;
    planned.settings.extend(settings);
    planned.warnings.extend(warnings);
    Ok(Planned { theory, ..planned })
}

/// The constants behind `step = "theory"` in words.
pub(crate) fn theory_note(constants: &[(&'static str, f64)]) -> String {
    let each = constants.iter().map(|(name, value)| format!("{name} {value:.4e}"));
    format!("theory: {}", each.collect::<Vec<_>>().join(", "))
}

/// The memory step of a downlink under `step = "theory"`: `1/(8 omega)`, at most 1/2.
fn theory_alpha(omega: f64) -> f64 {
    (0.125 / omega).min(0.5)
}

fn problem(asked: &GradientFit) -> Result<Problem> {
    let Regression { ridge, nonconvex, intercept, penalize_intercept } = asked.regression;
    if asked.logistic && nonconvex > 0.0 {
        return Ok(Problem::penalised_logistic(Penalty::Bounded(nonconvex), intercept)?);
    }
    let problem = if asked.logistic {
        Problem::logistic(ridge, intercept)?
    } else {
        Problem::least_squares(ridge, intercept)?
    };
    Ok(if penalize_intercept { problem } else { problem.with_free_intercept() })
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

/// The average in the theorem behind the step, if the job determines it: a ridge makes the loss
/// strongly convex, and Theorem S11 uses gradients at the models themselves.
fn average_without_data(job: &Job, settings: &Regression) -> Result<Average> {
    let ridge = settings.ridge > 0.0 && (settings.penalize_intercept || !settings.intercept);
    match (job.method.step, job.method.batch) {
        (Step::Theory, _) if settings.nonconvex > 0.0 => Ok(Average::Last),
        (Step::Theory, Batch::Full) if ridge => Ok(Average::Last),
        (Step::Theory, Batch::Sample { .. }) if ridge => Ok(Average::Weighted),
        (Step::Theory, _) => refuse(
            "the average of step = \"theory\" depends on whether the loss is strongly convex, \
                 which is unknown without the rows",
            "set `average` in [method], or a ridge in [model] with penalize_intercept = true",
        ),
        _ => Ok(Average::Last),
    }
}

/// The rows of all clients, with their weights in the loss.
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

    /// A note on the constants behind a step that the job gives relative to them.
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

    /// The constant step under `compat`, which the paper's code uses as Dore's share.
    fn compat_step(&self, job: &Job) -> f64 {
        let over = |factor: f64| factor / self.mean(|data| self.problem.frobenius(data));
        match job.method.step {
            Step::Constant(gamma) => gamma,
            Step::OverL(factor) => over(factor),
            _ => over(1.0),
        }
    }

    /// The average in the theorem behind the step; without a theorem, the last model.
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
