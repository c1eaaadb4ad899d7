//! Regressions by gradients: `sgd` and its channel presets.

pub mod keys;

mod optimum;
mod plan;
mod predict;

use crate::failure::Result;
use crate::family::{
    Family, Fit, MethodKind, ModelKind, ModelUse, Predicted, RunData, StagePlan, Tables, refuse,
};
use crate::job::codec;
use crate::job::method::length::{BATCH, BY_MINIBATCHES, ROUNDS};
use crate::job::method::step::STEP;
use crate::job::method::stop::{EVALUATE, FIELD_NORM2, STOP, limit};
use crate::job::method::{ALLOW_DIVERGENCE, CHANNELS, MEMORY_MAX, WEIGHTS};
use crate::job::participation::PARTICIPATION;
use crate::job::preset::{PRESETS, with_presets};
use crate::job::{DownRule, Feedback, Job, MemoryStart, Step};
use crate::load::{FileKind, Layout, Loaded};
use crate::plan::{Common, Facts, Files};
use crate::template::{DataFacts, Suggestion};
use keys::{AVERAGE, COMPAT, DESCENT, INTERCEPT, MOMENTUM, REGRESSION, RIDGE};
use keys::{Descent, Regression};
use plan::GradientPlan;
use serde_json::{Map, Value};
use whimbrel_core::method::Artifact;
use whimbrel_data::Input;
use whimbrel_job::key::JobKey;
use whimbrel_job::keys;
use whimbrel_job::reader::{Read, Source};
use whimbrel_job::writer::Writer;
use whimbrel_methods::settings::Weights;

/// Regressions by gradients.
pub static FAMILY: Gradient = Gradient;

/// Regressions by gradients.
pub struct Gradient;

const LINEAR: &str = "linear";
const LOGISTIC: &str = "logistic";

static MODELS: [ModelKind; 2] = [
    ModelKind::new(LINEAR, "linear regression by least squares", &[&RIDGE, &INTERCEPT]),
    ModelKind::new(LOGISTIC, "logistic regression with two classes", REGRESSION.section.keys),
];
static KEYS: &[&JobKey] = keys! {
    &[&CHANNELS], BY_MINIBATCHES, &[&STEP, &MOMENTUM, &AVERAGE, &PARTICIPATION, &WEIGHTS, &COMPAT],
    &[&EVALUATE, &STOP, &ALLOW_DIVERGENCE, &MEMORY_MAX],
};
/// `sgd`, and every preset of its channels as a method of its own.
static METHODS: [MethodKind; PRESETS.len()] = with_presets(MethodKind {
    weights: Weights::Equal,
    ..MethodKind::new("sgd", "stochastic gradients; with `channels`, every other name below", KEYS)
});

impl Family for Gradient {
    fn name(&self) -> &'static str {
        "gradient"
    }

    fn models(&self) -> &'static [ModelKind] {
        &MODELS
    }

    fn methods(&self) -> &'static [MethodKind] {
        &METHODS
    }

    fn suggest(&self, facts: Option<&DataFacts>) -> Option<Suggestion> {
        let facts = facts.filter(|facts| facts.kind == FileKind::Libsvm)?;
        Some(Suggestion {
            model: if facts.classes == 2 { LOGISTIC } else { LINEAR },
            model_keys: vec![(&RIDGE, "1e-4".into())],
            method: "diana",
            method_keys: vec![
                (&ROUNDS, "500".into()),
                (&BATCH, "\"full\"".into()),
                (&STEP, "\"auto\"".into()),
            ],
            uplink_keys: vec![(&codec::CODEC, "{ kind = \"dithering\", levels = 1 }".into())],
        })
    }

    fn read(&self, tables: &Tables<'_>) -> Read<Box<dyn Fit>> {
        let logistic = tables.model_kind == LOGISTIC;
        let (regression, descent) = (REGRESSION.read(tables.model), DESCENT.read(tables.method));
        Ok(Box::new(GradientFit { logistic, regression: regression?, descent: descent? }))
    }
}

/// What a job asks: a regression, and how gradients are descended.
#[derive(Clone, Debug, PartialEq)]
pub struct GradientFit {
    /// Whether the target has two classes.
    pub logistic: bool,
    /// The predictor.
    pub regression: Regression,
    /// How gradients are descended.
    pub descent: Descent,
}

impl GradientFit {
    fn model(&self) -> &'static str {
        if self.logistic { LOGISTIC } else { LINEAR }
    }
}

impl Fit for GradientFit {
    fn describe(&self) -> String {
        let regression = &self.regression;
        let intercept = if regression.intercept { "" } else { ", no intercept" };
        let penalty = match regression.nonconvex {
            0.0 => format!("ridge {}", regression.ridge),
            lambda => format!("bounded penalty {lambda}"),
        };
        format!("{}, {penalty}{intercept}", self.model())
    }

    fn write_model(&self, out: &mut Writer) {
        REGRESSION.write(&self.regression, out);
    }

    fn write_method(&self, out: &mut Writer) {
        DESCENT.write(&self.descent, out);
    }

    fn check(&self, job: &Job, source: &Source<'_>) {
        if self.regression.ridge > 0.0 && self.regression.nonconvex > 0.0 {
            let what = "a ridge and a penalty that is not convex exclude each other";
            source.report_at(&["model", "nonconvex"], what, "take one of them out");
        }
        if limit(&job.method.stop, &FIELD_NORM2).is_some() {
            source.report_at(
                &["method", "stop", "field_norm2"],
                "`field_norm2` has no meaning for sgd: only the EM methods have a field",
                "take `field_norm2` out",
            );
        }
        if let MemoryStart::File(_) = &job.uplink.start {
            source.report_at(
                &["uplink", "start"],
                "the memories of the gradient family start at a gradient or at zero, not in a file",
                "write start = \"oracle\" or \"zero\"",
            );
        }
        let compresses = job.method.channels.is_some() || source.is_given(&["uplink", "rule"]);
        if !compresses && !job.uplink.codec.is_exact() {
            source.report_at(
                &["uplink", "codec"],
                "sgd does not compress: this codec would not be used",
                "take `codec` out, or compress with kind = \"qsgd\", \"diana\" or another preset",
            );
        }
        self.check_compat(job, source);
    }

    fn layout(&self) -> Layout {
        Layout::Targets { classes: self.logistic }
    }

    fn plan(
        &self,
        common: &Common,
        facts: &Facts,
        rows: Option<&Loaded>,
        _: Files<'_>,
    ) -> Result<Box<dyn StagePlan>> {
        Ok(Box::new(match rows {
            Some(loaded) => GradientPlan::simulated(common, self, loaded)?,
            None => GradientPlan::new(common, self, facts.columns.len(), None, None)?,
        }))
    }

    fn check_served(&self, job: &Job) -> Result<()> {
        if job.data.standardize() {
            return refuse(
                "the columns of a regression are standardised while a simulation reads them, over \
                 rows that no one has in one place on a network",
                "set standardize = false in [data] and give the clients columns of like scale",
            );
        }
        if self.descent.compat.is_some() {
            return refuse(
                "`compat` takes constants from all rows in one place",
                "take `compat` out of [method]",
            );
        }
        Ok(())
    }

    fn model_keys(&self, _: &RunData, _: &Artifact) -> Map<String, Value> {
        Map::from_iter([("intercept".into(), self.regression.intercept.into())])
    }

    fn predict(&self, model: &ModelUse<'_>, file: &Input) -> Result<Predicted> {
        predict::predict(model, file)
    }
}

impl GradientFit {
    fn check_compat(&self, job: &Job, source: &Source<'_>) {
        if self.descent.compat.is_none() {
            return;
        }
        let dore = job.downlink.rule == DownRule::Degraded { feedback: Feedback::Share(None) };
        let constant = matches!(job.method.step, Step::Auto | Step::Constant(_) | Step::OverL(_));
        if job.method.step == Step::OverLRoot {
            source.report_at(
                &["method", "compat"],
                "`compat` is about constant steps: 1/L, or a number for Dore",
                "take `compat` out",
            );
        } else if dore && !constant && !job.downlink.is_exact() {
            source.report_at(
                &["method", "compat"],
                "this takes the step for Dore's share of the error, and the step is not constant",
                "give a constant step, such as \"1/L\"",
            );
        }
    }
}
