//! The stages of a learner with posteriors.

use super::SoulFit;
use super::keys::{AskedNoise, Settings};
use crate::failure::Result;
use crate::gradient::theory_note;
use crate::job::{Job, Step};
use crate::personal::model::REPRESENTATION;
use crate::plan::channels::{Channels, Vectors};
use crate::plan::{Basis, Built, Common, FitStages, Planned};
use std::sync::Arc;
use whimbrel_codec::channel::Uplink;
use whimbrel_core::method::Artifact;
use whimbrel_core::{ClientData, Erased, Error, Key, Samples};
use whimbrel_engine::Stage;
use whimbrel_methods::bayes::{
    Chains, Decay, Noise, Part, Personalised, Rate, Schedule, Soul, Steps,
};
use whimbrel_methods::federated::{BindRows, Terms};
use whimbrel_methods::settings::Budget;
use whimbrel_models::prior::{Prior, Shape};
use whimbrel_models::sampler::Kernel;
use whimbrel_nn::{Learner, Role};

/// The exponents of `step = "theory"`: `eta_k = k^-0.9/L`, `gamma_k = gamma k^-0.4`, with which every
/// series of Theorem S2 that should be finite is.
const THEORY: (f64, f64) = (0.9, 0.4);
/// An annealed linear representation has this many times the job's features (docs/adr/0017).
const WIDE_FEATURES: usize = 2;
/// The wide stage takes one part of the run in this many.
const WIDE_ROUNDS: u32 = 4;
/// Start of a learned noise.
const NOISE_START: f64 = 1.0;

pub(super) struct SoulPlan {
    asked: SoulFit,
    learner: Arc<dyn Learner>,
    noise: Noise,
    channels: Channels,
    wide: Option<Wide>,
}

/// The first stage of an annealed linear representation.
struct Wide {
    asked: SoulFit,
    learner: Arc<dyn Learner>,
    channels: Channels,
    rounds: u32,
}

impl Wide {
    /// `None` if the noise is not annealed, if there are too few rounds, or with the steps of Theorem
    /// S2, which decrease from the first round on.
    fn new(common: &Common, narrow: &Soul, asked: &SoulFit, raw: usize) -> Result<Option<Self>> {
        let (rounds, latent) = (narrow.rounds / WIDE_ROUNDS, asked.model.architecture.latent);
        let features = (WIDE_FEATURES * latent).min(raw);
        let theory = common.job.method.step == Step::Theory;
        let personal =
            narrow.model.part == Part::Head && asked.model.architecture.kind == REPRESENTATION;
        if !narrow.anneal || theory || !personal || rounds == 0 || features == latent {
            return Ok(None);
        }
        let mut model = asked.model.clone();
        model.architecture.latent = features;
        let asked = SoulFit {
            model,
            noise: asked.noise,
            settings: Settings {
                prior: Shape::Diagonal,
                prior_scale: Some(narrow.prior_scale),
                average: Some(false),
                ..asked.settings.clone()
            },
        };
        let learner = asked.model.learner(&[raw], 0)?;
        let soul = soul(&asked, &common.job, learner.clone(), narrow.model.noise, 1.0)?;
        let channels = channels(common, &soul)?;
        Ok(Some(Self { asked, learner, channels, rounds }))
    }
}

/// The channels; `D_beta` is not compressed.
fn channels(common: &Common, soul: &Soul) -> Result<Channels> {
    let mut channels = Channels::new(common, &Vectors::gradients(&soul.blocks()))?;
    channels.uplinks = channels.uplinks.into_iter().map(Uplink::with_exact_last).collect();
    Ok(channels)
}

pub(super) fn planned(asked: &SoulFit, on: &Basis<'_>) -> Result<Planned> {
    let Basis { common, rows, .. } = *on;
    let job = &common.job;
    let learner = asked.model.planned(on, asked.settings.outside.as_deref())?;
    let drawn = rows.and_then(|rows| rows.representation.as_ref()).map(|truth| truth.noise);
    let noise = noise(asked, drawn);
    let soul = soul(asked, job, learner.clone(), noise, 1.0)?;
    let channels = channels(common, &soul)?;
    let wide = Wide::new(common, &soul, asked, on.shape().iter().product())?;
    let (shared, personal) = (soul.model.shared(), soul.model.personal());
    let mut theory = Vec::new();
    let mut notes = Vec::new();
    let mut settings = vec![format!(
        "{shared} shared parameters, {personal} per client, {} of their prior",
        soul.prior.parameters()
    )];
    let (private, mut warnings) = common.private_messages(channels.uplinks[0].dimension())?;
    notes.extend(private);
    warnings.extend(inflated(&soul));
    common.check_private_start(&*learner)?;
    if let Some(wide) = &wide {
        notes.push(format!(
            "the first {} of {} rounds fit {} features, later rounds, which the curves show, the {} \
             strongest of them",
            wide.rounds,
            soul.rounds,
            wide.asked.model.architecture.latent,
            asked.model.architecture.latent
        ));
    }
    if job.method.step == Step::Theory {
        settings.push(format!(
            "steps eta_k = k^-{} / L_f and gamma_k = k^-{} / L_i (Theorem S2; it assumes a convex \
             f, which holds if only the prior's mean is shared)",
            THEORY.0, THEORY.1
        ));
        let clients: Vec<&Samples> = rows
            .iter()
            .flat_map(|rows| rows.training())
            .filter_map(|(_, (_, data))| match data {
                ClientData::Samples(samples) => Some(samples),
                _ => None,
            })
            .collect();
        if !clients.is_empty() {
            theory = soul.constants(&clients, Key::root(job.seed))?;
            settings.push(theory_note(&theory));
        }
    }
    let plan = SoulPlan { asked: asked.clone(), learner, noise, channels: channels.clone(), wide };
    let rounds = plan.rounds(common);
    Ok(Planned {
        rounds,
        theory,
        warnings,
        notes,
        settings,
        ..Planned::new(common, &channels, plan)
    })
}

/// The warning about posterior variances under unadjusted moves at their default step, where these
/// variances are the result: without layers below the personal part.
fn inflated(soul: &Soul) -> Option<String> {
    let moves = soul.chains.kernel == Some(Kernel::Ula) && soul.chains.gamma == Rate::Auto;
    (moves && soul.model.part == Part::All).then(|| {
        "kernel = \"ula\" at gamma = \"auto\" inflates posterior variances, up to twofold in the most curved \
         direction: kernel = \"mala\" has no such bias, a smaller `gamma` less"
            .into()
    })
}

/// The noise of the targets; `drawn` is the noise of generated data.
pub(super) fn noise(asked: &SoulFit, drawn: Option<f64>) -> Noise {
    if asked.model.classifies() {
        return Noise::None;
    }
    match (asked.noise, drawn) {
        (AskedNoise::Known(noise), _) | (AskedNoise::Auto, Some(noise)) => Noise::Known(noise),
        _ => Noise::Learned(NOISE_START),
    }
}

/// The method.
pub(super) fn soul(
    asked: &SoulFit,
    job: &Job,
    learner: Arc<dyn Learner>,
    noise: Noise,
    participation: f64,
) -> whimbrel_core::Result<Soul> {
    let settings = &asked.settings;
    let rounds = match job.method.length {
        Budget::Rounds(rounds) | Budget::Converged(rounds) => rounds,
        Budget::Epochs(_) => return Err(Error::config("fedsoul needs `rounds`, not epochs")),
    };
    let has_body = learner.tensors().iter().any(|tensor| tensor.role == Role::Weight);
    let part = settings.part.unwrap_or(if has_body { Part::Head } else { Part::All });
    if part == Part::Head && !has_body {
        let what = format!("{} has no shared layers below its head", learner.name());
        return Err(Error::config(what).hint("write personal = \"all\""));
    }
    let linear = asked.model.architecture.kind == REPRESENTATION;
    let usual_scale =
        if linear { 1.0 / (asked.model.architecture.latent as f64).sqrt() } else { 0.1 };
    let model = Personalised::new(learner, part, noise)?;
    let theory = job.method.step == Step::Theory;
    let given = |x: Option<f64>| x.map_or(Schedule::Auto, Schedule::Fixed);
    let (phi, beta) = match job.method.step {
        Step::Constant(eta) => (Some(eta), Some(eta)),
        Step::Parts { phi, beta } => (phi, beta),
        _ => (None, None),
    };
    let decay = if theory { Decay { exponent: THEORY.0, from: 0.0 } } else { settings.decay };
    let batch = job.method.batch.size().flatten();
    let steps = Steps {
        phi: given(phi),
        beta: given(beta),
        decay,
        gamma_exponent: if theory { THEORY.1 } else { 0.0 },
        rounds,
    };
    let prior = Prior::new(model.personal(), settings.prior)?;
    Ok(Soul {
        anneal: settings.anneal.unwrap_or(linear)
            && matches!(noise, Noise::Known(noise) if noise < 1.0),
        model,
        prior,
        prior_scale: settings.prior_scale.unwrap_or(usual_scale),
        chains: Chains { batch, ..settings.chains.clone() },
        steps,
        radius: settings.radius,
        precision: settings.precision,
        average: settings.average.unwrap_or(theory),
        rounds,
        rounds_before: 0,
        start: None,
        participation,
    })
}

impl SoulPlan {
    /// Rounds of the last stage.
    fn rounds(&self, common: &Common) -> Option<u32> {
        let wide = self.wide.as_ref().map_or(0, |wide| wide.rounds);
        common.given_rounds().map(|rounds| rounds - wide)
    }
}

impl FitStages for SoulPlan {
    fn count(&self) -> usize {
        1 + usize::from(self.wide.is_some())
    }

    fn build(&self, common: &Common, index: usize, delivered: &[Artifact]) -> Built {
        let soul = |asked, learner: &Arc<dyn Learner>| {
            soul(asked, &common.job, learner.clone(), self.noise, common.participation_mean())
        };
        let mut fit = soul(&self.asked, &self.learner)?;
        if let Some(wide) = &self.wide {
            let first = soul(&wide.asked, &wide.learner)?;
            if index == 0 {
                let budget = Budget::Rounds(wide.rounds);
                let terms = Terms { budget, ..wide.channels.terms(common) };
                let method = Arc::new(Erased(first.over(terms), BindRows));
                let participation = common.participation.clone();
                return Ok(Stage { participation, ..common.quiet("wide start", method) });
            }
            fit.rounds_before = wide.rounds;
            if let Some(delivered) = delivered.last() {
                fit.start = first.strongest(
                    delivered,
                    self.asked.model.architecture.latent,
                    fit.prior_scale,
                )?;
            }
        }
        let release = common.release(self.channels.uplinks[0].dimension())?;
        let mut terms = self.channels.private_terms(common, release);
        terms.budget = Budget::Rounds(fit.rounds - fit.rounds_before);
        let rounds_before = fit.rounds_before;
        let mut stage =
            common.fit(Arc::new(Erased(fit.over(terms), BindRows)), self.rounds(common));
        stage.stopping.rounds_before = rounds_before;
        Ok(stage)
    }

    fn stand_in(&self, _: usize) -> Artifact {
        Artifact::new(self.learner.name())
    }

    /// Without its wide start, the fit begins at the method of moments.
    fn can_skip(&self, index: usize) -> bool {
        index + 1 < self.count()
    }
}
