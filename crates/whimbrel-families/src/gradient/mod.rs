//! Regressions by gradients: `sgd` and its channel presets.

pub mod keys;

mod optimum;
mod plan;
mod predict;
mod results;

use crate::failure::Result;
use crate::family::{Family, Fit, KeepsGroups, MethodKind, ModelKind, Tables, refuse};
use crate::job::codec;
use crate::job::method::length::{BATCH, BY_MINIBATCHES, ROUNDS};
use crate::job::method::step::STEP;
use crate::job::method::stop::{EVALUATE, FIELD_NORM2, STOP, limit};
use crate::job::method::{ALLOW_DIVERGENCE, CHANNELS, MEMORY_MAX, WEIGHTS};
use crate::job::participation::PARTICIPATION;
use crate::job::preset::{PRESETS, with_presets};
use crate::job::{DownRule, Feedback, Job, MemoryStart, PrivacyUnit, Step};
use crate::load::{FileKind, Layout};
use crate::plan::{Basis, Planned};
use crate::template::{DataFacts, Suggestion};
use keys::{AVERAGE, COMPAT, DESCENT, INTERCEPT, MOMENTUM, PENALIZE_INTERCEPT, REGRESSION, RIDGE};
use keys::{Descent, Regression};
use plan::GradientPlan;
pub(crate) use plan::theory_note;
use whimbrel_job::key::JobKey;
use whimbrel_job::keys;
use whimbrel_job::reader::{Read, Source};
use whimbrel_job::writer::Writer;

pub static FAMILY: Family =
    Family { name: "gradient", models: &MODELS, methods: &METHODS, read, suggest };

const LINEAR: &str = "linear";
const LOGISTIC: &str = "logistic";

static MODELS: [ModelKind; 2] = [
    ModelKind::new(
        LINEAR,
        "linear regression by least squares",
        &[&RIDGE, &INTERCEPT, &PENALIZE_INTERCEPT],
    ),
    ModelKind::new(
        LOGISTIC,
        "logistic regression (logit) with two classes",
        REGRESSION.section.keys,
    ),
];
static KEYS: &[&JobKey] = keys! {
    &[&CHANNELS], BY_MINIBATCHES, &[&STEP, &MOMENTUM, &AVERAGE, &PARTICIPATION, &WEIGHTS, &COMPAT],
    &[&EVALUATE, &STOP, &ALLOW_DIVERGENCE, &MEMORY_MAX],
};
/// `sgd`, and a method for every preset of its channels.
static METHODS: [MethodKind; PRESETS.len()] = with_presets(MethodKind {
    private: &[PrivacyUnit::Row, PrivacyUnit::Client],
    ..MethodKind::new("sgd", "stochastic gradients; with `channels`, every other name below", KEYS)
});

fn suggest(facts: Option<&DataFacts>) -> Option<Suggestion> {
    let is_supervised = |facts: &DataFacts| {
        facts.target.is_some() && facts.regression.is_none() && facts.classes <= 2
    };
    let facts = facts.filter(|facts| facts.kind == FileKind::Libsvm || is_supervised(facts))?;
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
        ..Suggestion::default()
    })
}

fn read(tables: &Tables<'_>) -> Read<Box<dyn Fit>> {
    let logistic = tables.model_kind == LOGISTIC;
    let (regression, descent) = (REGRESSION.read(tables.model), DESCENT.read(tables.method));
    Ok(Box::new(GradientFit { logistic, regression: regression?, descent: descent? }))
}

/// A regression and the settings of gradient descent.
#[derive(Clone, Debug, PartialEq)]
pub struct GradientFit {
    /// Whether the target has two classes.
    pub logistic: bool,
    pub regression: Regression,
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
            let what = "`ridge` and `nonconvex` cannot both be positive";
            source.report_at(&["model", "nonconvex"], what, "take one of them out");
        }
        if limit(&job.method.stop, &FIELD_NORM2).is_some() {
            source.report_at(
                &["method", "stop", "field_norm2"],
                "sgd has no `field_norm2`: only the EM methods have a field",
                "take `field_norm2` out",
            );
        }
        if let MemoryStart::File(_) = &job.uplink.start {
            source.report_at(
                &["uplink", "start"],
                "memories of sgd start at a gradient or at zero, not in a file",
                "write start = \"oracle\" or \"zero\"",
            );
        }
        let compresses = job.method.channels.is_some() || source.is_given(&["uplink", "rule"]);
        let given = source.is_given(&["uplink", "codec"]);
        if !compresses && given && !job.uplink.codec.is_exact() {
            let hint = if job.uplink.is_on_grid() {
                "write kind = \"qsgd\" or another preset in [method]"
            } else {
                "take `codec` out, or compress with kind = \"qsgd\", \"diana\" or another preset"
            };
            let what = "sgd does not compress: the codec would be ignored";
            source.report_at(&["uplink", "codec"], what, hint);
        }
        self.check_compat(job, source);
        let public = matches!(job.method.step, Step::Constant(_) | Step::Decreasing { .. });
        let bounded = self.logistic && job.privacy.unit == PrivacyUnit::Row;
        let bounded = bounded && job.method.step != Step::Theory;
        if job.privacy.epsilon.is_some() && !(public || bounded) {
            let what = "the smoothness of the loss is a property of the rows";
            source.report_at(&["method", "step"], what, "give the step as a number");
        }
    }

    fn layout(&self) -> Layout {
        Layout::Targets { classes: self.logistic }
    }

    fn plan(&self, on: &Basis<'_>) -> Result<Planned> {
        let Basis { common, facts, .. } = *on;
        match on.rows {
            Some(loaded) => plan::simulated(common, self, loaded),
            None => {
                let plan = GradientPlan::new(common, self, facts.columns.len(), None, None)?;
                plan.planned(common)
            }
        }
    }

    fn keeps_groups(&self, job: &Job) -> KeepsGroups {
        if job.method.step == Step::Theory {
            return Err("the constants of step = \"theory\" are maxima over single rows");
        }
        job.privacy.keeps_in_batches(&job.method.batch, 1)
    }

    fn check_served(&self, job: &Job) -> Result<()> {
        if job.data.standardize() {
            return refuse(
                "a simulation standardises the columns of a regression over all rows, which nobody \
                 holds on a network",
                "set standardize = false in [data] and give the clients columns of similar scale",
            );
        }
        if self.descent.compat.is_some() {
            return refuse(
                "`compat` computes constants from all rows",
                "take `compat` out of [method]",
            );
        }
        Ok(())
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
                "`compat` is for constant steps: 1/L, or a number for Dore",
                "take `compat` out",
            );
        } else if dore && !constant && !job.downlink.is_exact() {
            source.report_at(
                &["method", "compat"],
                "`compat` uses the step as Dore's share of the error, but the step is not constant",
                "give a constant step, such as \"1/L\"",
            );
        }
    }
}
