//! A learner with its posteriors, over a job's channels.

use super::SoulFit;
use super::keys::AskedNoise;
use crate::failure::Result;
use crate::family::StagePlan;
use crate::job::{Batch, Job, Step};
use crate::load::Loaded;
use crate::personal::model::REPRESENTATION;
use crate::plan::channels::Channels;
use crate::plan::{Common, Facts};
use crate::predictions::check_outside;
use std::any::Any;
use std::sync::Arc;
use whimbrel_codec::channel::{Downlink, Uplink};
use whimbrel_core::method::Artifact;
use whimbrel_core::{ClientData, Erased, Error, Key, Samples};
use whimbrel_engine::Stage;
use whimbrel_methods::bayes::{Chains, Decay, Noise, Part, Personalised, Schedule, Soul, Steps};
use whimbrel_methods::federated::BindRows;
use whimbrel_methods::settings::Budget;
use whimbrel_models::prior::Prior;
use whimbrel_nn::{Learner, Role};

/// The exponents of `step = "theory"`: `eta_k = k^-0.9/L`, `gamma_k = gamma k^-0.4`, with which every
/// series of Theorem S2 that should be finite is.
const THEORY: (f64, f64) = (0.9, 0.4);
/// Where a learned noise starts, for targets of any scale.
const NOISE_START: f64 = 1.0;

pub(super) struct SoulPlan {
    asked: SoulFit,
    learner: Arc<dyn Learner>,
    noise: Noise,
    channels: Channels,
    theory: Vec<(&'static str, f64)>,
    notes: Vec<String>,
}

impl SoulPlan {
    pub fn new(
        common: &Common,
        asked: &SoulFit,
        facts: &Facts,
        rows: Option<&Loaded>,
    ) -> Result<Self> {
        let job = &common.job;
        let columns = [facts.columns.len()];
        let shape = rows.and_then(Loaded::shape).unwrap_or(&columns);
        if rows.is_some() {
            check_outside(asked.settings.outside.as_deref(), shape)?;
        }
        let learner = asked.model.learner(shape, facts.classes.len())?;
        let drawn = rows.and_then(|rows| rows.representation.as_ref()).map(|truth| truth.noise);
        let noise = noise(asked, drawn);
        let soul = soul(asked, job, learner.clone(), noise, 1.0)?;
        let blocks = soul.blocks();
        let mut channels = Channels::new(common, &blocks)?;
        // D_beta travels exactly.
        channels.uplinks = channels.uplinks.into_iter().map(Uplink::with_exact_last).collect();
        let (shared, personal) = (soul.model.shared(), soul.model.personal());
        let mut theory = Vec::new();
        let mut notes = vec![format!(
            "{shared} shared parameters, {personal} of each client, {} of their prior",
            soul.prior.parameters()
        )];
        if job.method.step == Step::Theory {
            notes.push(format!(
                "steps eta_k = k^-{} / L_f and gamma_k = k^-{} / L_i (Theorem S2; it assumes that f is \
                 convex, which holds where nothing but the prior's mean is shared)",
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
                let each = theory.iter().map(|(name, value)| format!("{name} {value:.4e}"));
                notes.push(format!("theory: {}", each.collect::<Vec<_>>().join(", ")));
            }
        }
        let asked = asked.clone();
        Ok(Self { asked, learner, noise, channels, theory, notes })
    }
}

/// The noise of a job's targets; `drawn` is that of drawn data.
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
        Budget::Epochs(_) => return Err(Error::config("fedsoul counts rounds")),
    };
    let has_body = learner.tensors().iter().any(|tensor| tensor.role == Role::Weight);
    let part = settings.part.unwrap_or(if has_body { Part::Head } else { Part::All });
    if part == Part::Head && !has_body {
        let what = format!("{} has no layers below its head to share", learner.name());
        return Err(Error::config(what).hint("write personal = \"all\""));
    }
    let linear = asked.model.kind == REPRESENTATION;
    let usual_scale = if linear { 1.0 / (asked.model.latent as f64).sqrt() } else { 0.1 };
    let model = Personalised::new(learner, part, noise)?;
    let theory = job.method.step == Step::Theory;
    let given = |x: Option<f64>| x.map_or(Schedule::Auto, Schedule::Fixed);
    let (phi, beta) = match job.method.step {
        Step::Constant(eta) => (Some(eta), Some(eta)),
        Step::Parts { phi, beta } => (phi, beta),
        _ => (None, None),
    };
    let decay = match theory {
        true => Decay { exponent: THEORY.0, from: 0.0 },
        false => settings.decay,
    };
    let batch = match job.method.batch {
        Batch::Mini { rows, .. } => Some(rows),
        Batch::Full | Batch::Auto { .. } => None,
    };
    let steps = Steps {
        phi: given(phi),
        beta: given(beta),
        decay,
        gamma_exponent: if theory { THEORY.1 } else { 0.0 },
        rounds,
    };
    let prior = Prior::new(model.personal(), settings.prior)?;
    Ok(Soul {
        anneal: settings.anneal.unwrap_or(linear) && matches!(noise, Noise::Known(_)),
        model,
        prior,
        prior_scale: settings.prior_scale.unwrap_or(usual_scale),
        chains: Chains { batch, ..settings.chains.clone() },
        steps,
        radius: settings.radius,
        precision: [settings.precision.phi, settings.precision.beta],
        average: settings.average.unwrap_or(theory),
        rounds,
        participation,
    })
}

impl StagePlan for SoulPlan {
    fn len(&self, _: &Common) -> usize {
        1
    }

    fn build(&self, common: &Common, _: usize, _: &[Artifact]) -> whimbrel_core::Result<Stage> {
        let terms = self.channels.terms(common);
        let soul = soul(
            &self.asked,
            &common.job,
            self.learner.clone(),
            self.noise,
            common.participation_mean(),
        )?;
        Ok(common.fit(Arc::new(Erased(soul.over(terms), BindRows)), self.rounds(common)))
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

    fn theory(&self) -> &[(&'static str, f64)] {
        &self.theory
    }

    fn notes(&self, _: &Common) -> Vec<String> {
        self.notes.clone()
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
