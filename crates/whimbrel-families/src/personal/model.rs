//! Learners by name.

use super::own_learner;
use crate::family::{ModelKind, RunData};
use crate::gradient::keys::INTERCEPT;
use crate::plan::Basis;
use crate::predictions::check_outside;
use serde_json::{Map, Value};
use std::path::Path;
use std::sync::Arc;
use whimbrel_core::{ClientData, Error, Result};
use whimbrel_job::form::{BOOLEAN, COUNT, TEXT};
use whimbrel_job::reader::{Read, Reader};
use whimbrel_job::writer::Writer;
use whimbrel_job::{list, table};
use whimbrel_nn::{Architecture, Learner};

pub(crate) const LINEAR: &str = "linear";
pub(crate) const REPRESENTATION: &str = "linear-representation";
pub(super) const LOGISTIC: &str = "logistic";
pub(super) const SOFTMAX: &str = "softmax";
pub(super) const OWN: &str = "own";

pub(super) static MODELS: [ModelKind; 11] = [
    ModelKind::new(LINEAR, "linear regression by least squares", &[&INTERCEPT]),
    ModelKind::new(
        REPRESENTATION,
        "a linear head on a linear representation of the inputs",
        &[&LATENT],
    ),
    ModelKind::new(LOGISTIC, "logistic regression (logit) with two classes", &[&INTERCEPT]),
    ModelKind::new(SOFTMAX, "multinomial logistic regression", &[&INTERCEPT]),
    ModelKind::new("mlp", "a network of fully connected layers", &[&HIDDEN]),
    ModelKind::new(
        "cnn",
        "two convolutions of 3 x 3 with 32 and 64 channels, pooling, dropout, 128 units",
        &[],
    ),
    ModelKind::new("lenet", "LeNet-5", &[]),
    ModelKind::new("mobilenet-v2", "MobileNet-v2 for small images", &[]),
    ModelKind::new("resnet-18", "ResNet-18 for small images", &[]),
    ModelKind::new("lstm", "an embedding and two stacked LSTM layers", &[&HIDDEN, &EMBEDDING]),
    ModelKind::new(
        OWN,
        "a learner supplied by a program in Python or Rust",
        &[&LEARNER, &CLASSIFIES],
    ),
];

/// The trained model.
#[derive(Clone, Debug, PartialEq)]
pub struct Model {
    /// The learner, except its inputs and classes, which the data determine.
    pub architecture: Architecture,
    /// The name of a learner supplied by the program.
    pub learner: String,
    /// Whether the supplied learner predicts classes.
    pub own_classifies: bool,
}

table! {
    pub(crate) ARCHITECTURE: Architecture {
        & intercept: INTERCEPT, BOOLEAN, default;
        /// widths of the hidden layers; empty: [200, 200] for mlp, [256] for both layers of lstm
        hidden: HIDDEN = "hidden", list!(COUNT, "a list of integers of at least 1"), default;
        /// length of the embedding of a symbol
        embedding: EMBEDDING = "embedding", COUNT, default;
        /// number of latent features
        latent: LATENT = "latent", COUNT, default;
        ..from Architecture::default()
    }
}

impl Default for Model {
    fn default() -> Self {
        let architecture = Architecture::default();
        Self { architecture, learner: OWN.into(), own_classifies: true }
    }
}

table! {
    pub(crate) MODEL: Model {
        + architecture: ARCHITECTURE;
        /// name of the learner in the program that runs the job
        learner: LEARNER = "learner", TEXT.takes("a name"), default;
        /// whether the learner predicts classes rather than numbers
        own_classifies: CLASSIFIES = "classifies", BOOLEAN, default;
    }
}

impl Model {
    pub(crate) fn read(kind: &'static str, reader: &Reader<'_>) -> Read<Self> {
        let mut model = MODEL.read(reader)?;
        model.architecture.kind = kind.into();
        Ok(model)
    }

    pub(crate) fn write(&self, out: &mut Writer) {
        MODEL.write(self, out);
    }

    pub(crate) fn describe(&self) -> String {
        let Architecture { kind, intercept, .. } = &self.architecture;
        let intercept = if *intercept { "" } else { ", no intercept" };
        match kind.as_str() {
            OWN => format!("{} (own)", self.learner),
            kind => format!("{kind}{intercept}"),
        }
    }

    pub fn classifies(&self) -> bool {
        match self.architecture.kind.as_str() {
            LINEAR | REPRESENTATION => false,
            OWN => self.own_classifies,
            _ => true,
        }
    }

    /// Keys of `model.json`.
    pub(crate) fn keys(&self, data: &RunData) -> Map<String, Value> {
        let columns = || vec![data.facts.columns.len()];
        let shape = data.tests.as_ref().map_or_else(columns, |tests| tests.shape.clone());
        Map::from_iter([
            ("intercept".into(), self.architecture.intercept.into()),
            ("shape".into(), shape.into()),
        ])
    }

    /// Refuses a client of a linear representation with no more training rows than inputs: with `A`
    /// the sum of `x x^T` and `B` that of `y^2 x x^T`, the generalised eigenvectors of `B` and `A` are
    /// its rows.
    pub(crate) fn check_client(&self, data: &ClientData) -> crate::failure::Result<()> {
        let ClientData::Samples(samples) = data else { return Ok(()) };
        let (rows, inputs) = (samples.len(), samples.width());
        if self.architecture.kind != REPRESENTATION || rows > inputs {
            return Ok(());
        }
        let what = format!(
            "a client has {rows} training rows of {inputs} inputs, and from so few the enrolment of \
             {REPRESENTATION} reveals every row"
        );
        let hint = "provide more rows than inputs; min_group = 1 in [privacy], and --min-group 1 of \
                    `join`, allow messages about single rows";
        Err(Error::data(what).hint(hint).into())
    }

    /// The learner of a plan, after a check of the unrelated images for its report.
    pub(crate) fn planned(
        &self,
        on: &Basis<'_>,
        outside: Option<&Path>,
    ) -> crate::failure::Result<Arc<dyn Learner>> {
        let shape = on.shape();
        if on.rows.is_some() {
            check_outside(outside, &shape)?;
        }
        Ok(self.learner(&shape, on.facts.classes.len())?)
    }

    /// The learner for inputs of this shape and this number of classes.
    pub(crate) fn learner(&self, shape: &[usize], classes: usize) -> Result<Arc<dyn Learner>> {
        if self.architecture.kind == OWN {
            return own_learner::build(&self.learner, shape, classes);
        }
        let shape = shape.to_vec();
        let architecture = Architecture { shape, classes, ..self.architecture.clone() };
        own_learner::replaced(&architecture, architecture.build()?.into())
    }
}
