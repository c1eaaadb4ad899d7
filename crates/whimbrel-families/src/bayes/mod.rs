//! Models with posteriors of personal parts, sampled on the clients: FedSOUK and FedSOUL.

pub mod keys;

mod plan;
mod predict;
mod results;

use crate::failure::Result;
use crate::family::{Family, Fit, MethodKind, ModelKind, Tables};
use crate::gradient::keys::INTERCEPT;
use crate::job::method::length::{BATCH, ROUNDS};
use crate::job::method::search::SEARCH;
use crate::job::method::step::STEP;
use crate::job::method::stop::{EVALUATE, STOP};
use crate::job::method::{ALLOW_DIVERGENCE, CHANNELS, MEMORY_MAX};
use crate::job::participation::PARTICIPATION;
use crate::job::{Batch, Job, PrivacyUnit, Step};
use crate::load::Layout;
use crate::personal::check_learners;
use crate::personal::model::{EMBEDDING, HIDDEN, LATENT, LINEAR, Model, REPRESENTATION};
use crate::plan::{Basis, Planned};
use crate::predictions::OUTSIDE;
use keys::{
    ANNEAL, AVERAGE, AskedNoise, BURN_IN, CHAINS, FALL, FRICTION, GAMMA, HYPERPRIOR, KERNEL,
    LEAPFROG, NOISE, NOISES, PERSONAL, PRIOR, PRIOR_SCALE, RADIUS, SAMPLES, SETTINGS, STEPS,
    Settings, THIN,
};
use std::path::PathBuf;
use whimbrel_core::ClientData;
use whimbrel_job::keys;
use whimbrel_job::reader::{Read, Source};
use whimbrel_job::writer::Writer;
use whimbrel_methods::bayes::{Chains, Part};
use whimbrel_methods::settings::Weights;
use whimbrel_models::prior::Shape;

pub static FAMILY: Family =
    Family { name: "bayes", models: &MODELS, methods: &METHODS, read, suggest: |_| None };

static MODELS: [ModelKind; 8] = [
    ModelKind::new(
        REPRESENTATION,
        "a linear representation of the inputs under a linear head",
        &[&LATENT, &NOISE],
    ),
    ModelKind::new(LINEAR, "linear regression by least squares", &[&INTERCEPT, &NOISE]),
    ModelKind::new("logistic", "logistic regression (logit) with two classes", &[&INTERCEPT]),
    ModelKind::new("softmax", "multinomial logistic regression", &[&INTERCEPT]),
    ModelKind::new("mlp", "a network of fully connected layers", &[&HIDDEN]),
    ModelKind::new(
        "cnn",
        "two convolutions of 3 x 3 with 32 and 64 channels, pooling, dropout, 128 units",
        &[],
    ),
    ModelKind::new("lenet", "LeNet-5", &[]),
    ModelKind::new("lstm", "an embedding and two stacked LSTM layers", &[&HIDDEN, &EMBEDDING]),
];

static METHODS: [MethodKind; 1] = [MethodKind {
    weights: Weights::Equal,
    private: &[PrivacyUnit::Client],
    ..MethodKind::new(
        "fedsoul",
        "posteriors of personal parts by Markov chains on the clients (FedSOUK, FedSOUL)",
        keys! {
            &[&CHANNELS, &ROUNDS, &BATCH, &STEP, &FALL, &KERNEL, &FRICTION, &LEAPFROG, &STEPS],
            &[&BURN_IN, &CHAINS, &GAMMA, &SAMPLES, &THIN, &PERSONAL, &PRIOR, &PRIOR_SCALE],
            &[&HYPERPRIOR, &RADIUS, &AVERAGE, &ANNEAL, &OUTSIDE, &PARTICIPATION, &EVALUATE, &STOP],
            &[&ALLOW_DIVERGENCE, &MEMORY_MAX, &SEARCH],
        },
    )
}];

fn read(tables: &Tables<'_>) -> Read<Box<dyn Fit>> {
    let model = Model::read(tables.model_kind, tables.model);
    let noise = tables.model.read_as(&NOISE, &NOISES);
    let settings = (SETTINGS.read)(tables.method);
    if let Ok(Chains { burn_in, steps, .. }) = settings.as_ref().map(|known| &known.chains)
        && burn_in >= steps
    {
        let message = format!("burn_in = {burn_in} leaves nothing of steps = {steps}");
        tables.method.fault(&BURN_IN, message, "burn_in is per round and below steps");
    }
    // Dropout would change the potential at every step.
    let mut model = model?;
    model.architecture.dropout = false;
    Ok(Box::new(SoulFit { model, noise: noise?, settings: settings? }))
}

/// A learner with its prior and chains.
#[derive(Clone, Debug, PartialEq)]
pub struct SoulFit {
    pub model: Model,
    /// The noise of its targets.
    pub noise: AskedNoise,
    pub settings: Settings,
}

impl Fit for SoulFit {
    fn describe(&self) -> String {
        self.model.describe()
    }

    fn write_model(&self, out: &mut Writer) {
        self.model.write(out);
        if !self.model.classifies() {
            out.put(&NOISE, NOISES.write(&self.noise));
        }
    }

    fn write_method(&self, out: &mut Writer) {
        (SETTINGS.write)(&self.settings, out);
    }

    fn paths_mut(&mut self) -> Vec<&mut PathBuf> {
        self.settings.outside.as_mut().into_iter().collect()
    }

    fn check(&self, job: &Job, source: &Source<'_>) {
        if let Step::OverL(_) | Step::OverLRoot | Step::Decreasing { .. } = job.method.step {
            source.report_at(
                &["method", "step"],
                "fedsoul has a step for each part of its parameters",
                "write \"auto\", \"theory\", a number or { phi = .., beta = .. }; `fall` sets the decay",
            );
        }
        if let (Step::Theory, Some(false)) = (job.method.step, self.settings.average) {
            source.report_at(
                &["method", "average"],
                "the theorem behind step = \"theory\" bounds the mean of all iterates",
                "leave `average` out",
            );
        }
        check_learners("fedsoul", job, source);
        job.uplink
            .refuse_grid(source, "fedsoul sends a part of its uploads exactly, outside of a grid");
        let has_closed_form = self.model.architecture.kind == REPRESENTATION
            && !matches!(self.settings.prior, Shape::Mixture { .. })
            && self.settings.part != Some(Part::All);
        if self.settings.chains.kernel.is_none() && !has_closed_form {
            source.report_at(
                &["method", "kernel"],
                "the posterior has no closed form",
                "use \"ula\"; \"exact\" is for heads of linear-representation with Gaussian priors",
            );
        }
        let minibatches = matches!(job.method.batch, Batch::Sample { .. });
        let kernel = self.settings.chains.kernel;
        if minibatches && kernel.is_none_or(whimbrel_models::sampler::Kernel::is_adjusted) {
            source.report_at(
                &["method", "batch"],
                "acceptance of a move needs all rows of a client, not a minibatch",
                "leave `batch` out, or use kernel = \"ula\"",
            );
        }
    }

    fn check_client(&self, data: &ClientData) -> Result<()> {
        self.model.check_client(data)
    }

    fn layout(&self) -> Layout {
        Layout::Samples { classes: self.model.classifies() }
    }

    fn plan(&self, on: &Basis<'_>) -> Result<Planned> {
        plan::planned(self, on)
    }
}
