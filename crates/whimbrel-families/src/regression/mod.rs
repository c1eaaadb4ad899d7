//! Regressions with inference: generalised linear models and Cox's model by `newton`.

pub mod keys;

mod plan;
mod pool;
mod predict;
mod results;

use crate::failure::{Result, remedy};
use crate::family::{Family, Fit, KeepsGroups, MethodKind, ModelKind, Tables};
use crate::job::method::length::ROUNDS;
use crate::job::method::stop::EVALUATE;
use crate::job::{DataSource, Job};
use crate::load::{Layout, Response};
use crate::plan::{Basis, Planned};
use crate::template::{DataFacts, Suggestion};
use keys::{
    BASELINE, BY_CLIENT, CLASS_WEIGHTS, ERRORS, EVENT, FAMILY as FAMILY_KEY, GlmFamily,
    HETEROGENEITY, INFERENCE, INTERACTIONS, INTERCEPT, InferenceKeys, OFFSET, REFERENCE,
    REGRESSION, RIDGE, RegressionKeys, TESTS, WEIGHTS, WEIGHTS_ARE,
};
pub use pool::pool;
use whimbrel_core::{ClientData, Error, Table};
use whimbrel_job::key::JobKey;
use whimbrel_job::reader::{Read, Source};
use whimbrel_job::writer::{Writer, text};
use whimbrel_methods::guard::{self, Withheld};
use whimbrel_models::glm::{self, Errors};

pub static FAMILY: Family =
    Family { name: "regression", models: &MODELS, methods: &METHODS, read, suggest };

const GLM: &str = "glm";
const COX: &str = "cox";

static MODELS: [ModelKind; 2] = [
    ModelKind::new(
        GLM,
        "generalised linear model with standard errors, tests and intervals",
        &[
            &FAMILY_KEY,
            &OFFSET,
            &WEIGHTS,
            &WEIGHTS_ARE,
            &CLASS_WEIGHTS,
            &REFERENCE,
            &INTERACTIONS,
            &INTERCEPT,
            &RIDGE,
            &BY_CLIENT,
        ],
    ),
    ModelKind::new(
        COX,
        "Cox's proportional hazards, stratified by client; `target` is the time",
        &[&EVENT, &REFERENCE, &INTERACTIONS, &RIDGE, &BASELINE],
    ),
];
static KEYS: &[&JobKey] = &[&ROUNDS, &ERRORS, &TESTS, &HETEROGENEITY, &EVALUATE];
static METHODS: [MethodKind; 1] = [MethodKind {
    converges: true,
    ..MethodKind::new(
        "newton",
        "federated Fisher scoring: the pooled fit from clients' scores and information",
        KEYS,
    )
}];

/// The regression for a target.
fn suggest(facts: Option<&DataFacts>) -> Option<Suggestion> {
    let facts = facts?;
    let (model, key) = match &facts.event {
        Some(event) => (COX, (&EVENT, text(event))),
        None => (GLM, (&FAMILY_KEY, text(facts.regression?))),
    };
    let model_keys = vec![key];
    Some(Suggestion { model, model_keys, method: "newton", raw: true, ..Suggestion::default() })
}

fn read(tables: &Tables<'_>) -> Read<Box<dyn Fit>> {
    let cox = tables.model_kind == COX;
    let keys = REGRESSION.read(tables.model);
    let inference = INFERENCE.read(tables.method);
    let mut keys = keys?;
    keys.intercept &= !cox && !keys.by_client;
    Ok(Box::new(RegressionFit { cox, keys, inference: inference? }))
}

/// A regression and the inference that the job asks for.
#[derive(Clone, Debug, PartialEq)]
pub struct RegressionFit {
    /// Whether the target is a time, in Cox's model.
    pub cox: bool,
    pub keys: RegressionKeys,
    pub inference: InferenceKeys,
}

impl RegressionFit {
    /// The family, with the classes of the target.
    fn family(&self, classes: usize) -> glm::Family {
        match self.keys.family {
            _ if self.cox => glm::Family::Cox,
            GlmFamily::Gaussian => glm::Family::Gaussian,
            GlmFamily::Binomial => glm::Family::Binomial,
            GlmFamily::Poisson => glm::Family::Poisson,
            GlmFamily::NegativeBinomial => glm::Family::NegativeBinomial,
            GlmFamily::Gamma => glm::Family::Gamma,
            GlmFamily::Multinomial => glm::Family::Multinomial { classes: classes.max(2) },
        }
    }
}

impl Fit for RegressionFit {
    fn describe(&self) -> String {
        let ridge = match self.keys.ridge {
            0.0 => String::new(),
            ridge => format!(", ridge {ridge}"),
        };
        if self.cox {
            format!("Cox regression, stratified by client{ridge}")
        } else {
            format!("generalised linear model, {}{ridge}", self.keys.family.name())
        }
    }

    fn write_model(&self, out: &mut Writer) {
        let intercept = self.keys.intercept || self.keys.by_client;
        REGRESSION.write(&RegressionKeys { intercept, ..self.keys.clone() }, out);
    }

    fn write_method(&self, out: &mut Writer) {
        INFERENCE.write(&self.inference, out);
    }

    fn resolve(&mut self, job: &mut Job, source: &Source<'_>) {
        self.keys.types = job.column_types();
        job.uplink.refuse_frame(source);
    }

    fn check(&self, job: &Job, source: &Source<'_>) {
        let report = |place: &[&str], what: &str, hint: &str| source.report_at(place, what, hint);
        if !matches!(job.data.source, DataSource::Csv(_)) {
            report(&["data", "source"], "a regression reads csv files", "use source = \"csv\"");
        }
        if !job.uplink.codec.is_exact() || !job.downlink.is_exact() {
            let hint = format!("{}, or {}", remedy::NO_CODECS, remedy::BY_GRADIENTS);
            report(&["uplink", "codec"], "newton sends exact sums", &hint);
        }
        for place in [&["data", "prepare"][..], &["data", "standardize"]] {
            if source.bool_at(place) != Some(false) && source.is_given(place) {
                let what = "newton standardises columns by itself and reports data units";
                report(place, what, "take it out");
            }
        }
        let held_out = &job.data.held_out;
        let apart = [
            ("validation", held_out.validation > 0.0),
            ("test", held_out.test > 0.0),
            ("role", held_out.role.is_some()),
            ("unseen", job.data.unseen > 0.0),
        ];
        for (key, _) in apart.into_iter().filter(|(_, is_set)| *is_set) {
            let what =
                format!("newton fits all rows and evaluates none, so `{key}` would only lose rows");
            let hint = format!("take it out, or {}", remedy::BY_GRADIENTS);
            report(&["data", key], &what, &hint);
        }
        let family = self.keys.family;
        let classes = matches!(family, GlmFamily::Binomial | GlmFamily::Multinomial);
        if !self.keys.class_weights.is_empty() && !classes {
            let what = "`class_weights` is for binomial and multinomial targets";
            report(&["model", "class_weights"], what, "take it out");
        }
        let additive =
            matches!(family, GlmFamily::Gaussian | GlmFamily::Binomial | GlmFamily::Poisson);
        if self.keys.by_client && !additive {
            let what = "an intercept per client is profiled for gaussian, binomial and poisson";
            report(&["model", "by_client"], what, "take it out, or use another family");
        }
        if family == GlmFamily::Gamma && !self.keys.intercept {
            let what = "the inverse link needs an intercept: means must be positive";
            report(&["model", "intercept"], what, "take it out");
        }
        if self.keys.baseline && job.privacy.is_masked() {
            let what = "masks hide sums over clients, and a baseline hazard is one client's";
            report(&["model", "baseline"], what, "take it out, or `masks`");
        }
        if self.cox && self.inference.errors == Errors::Robust {
            let what = "robust errors of Cox's model are by client";
            report(&["method", "errors"], what, "write \"clustered\" or \"model\"");
        }
    }

    fn layout(&self) -> Layout {
        let keys = &self.keys;
        let columns = [&keys.offset, &keys.weights, &keys.event].into_iter().flatten().cloned();
        let classes = !self.cox && keys.family == GlmFamily::Multinomial;
        let response = Some(Response { classes, columns: columns.collect(), optional: false });
        Layout::Mixed { types: keys.types.clone(), response }
    }

    fn plan(&self, on: &Basis<'_>) -> Result<Planned> {
        plan::planned(self, on)
    }

    fn faults(&self, job: &Job, table: &Table, levels: &[Vec<String>]) -> Vec<(usize, Error)> {
        let Ok(model) = self.model(job, &table.columns, levels) else { return Vec::new() };
        model.design.faults(table, model.family).collect()
    }

    fn keeps_groups(&self, _: &Job) -> KeepsGroups {
        Ok(())
    }

    fn withhold(
        &self,
        job: &Job,
        data: &mut ClientData,
        (columns, levels): (&[String], &[Vec<String>]),
    ) -> Result<Withheld> {
        match (data, job.privacy.groups()) {
            (ClientData::Table(table), Some(group)) => {
                Ok(guard::rows(table, &self.model(job, columns, levels)?, group)?)
            }
            _ => Ok(Withheld::default()),
        }
    }

    fn sends_exact_sums(&self) -> bool {
        true
    }

    fn is_served_masked(&self) -> bool {
        true
    }
}
