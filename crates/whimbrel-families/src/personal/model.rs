//! The family's models: learners by name.

use crate::family::ModelKind;
use crate::gradient::keys::INTERCEPT;
use serde_json::{Map, Value};
use std::sync::Arc;
use whimbrel_core::{Error, Result};
use whimbrel_job::key::Word;
use whimbrel_job::reader::{Read, Reader};
use whimbrel_job::writer::Writer;
use whimbrel_nn::{Learner, Linear, Logistic, Softmax};

const LINEAR: &str = "linear";
const LOGISTIC: &str = "logistic";
const SOFTMAX: &str = "softmax";

pub(super) static MODELS: [ModelKind; 3] = [
    ModelKind {
        word: Word { name: LINEAR, doc: "linear regression by least squares" },
        keys: &[&INTERCEPT],
    },
    ModelKind {
        word: Word { name: LOGISTIC, doc: "logistic regression with two classes" },
        keys: &[&INTERCEPT],
    },
    ModelKind {
        word: Word { name: SOFTMAX, doc: "multinomial logistic regression" },
        keys: &[&INTERCEPT],
    },
];

/// What is trained.
#[derive(Clone, Debug, PartialEq)]
pub struct Model {
    /// Its word.
    pub kind: &'static str,
    /// Whether a constant is added, of models that are linear.
    pub intercept: bool,
}

impl Model {
    pub(super) fn read(kind: &'static str, reader: &Reader<'_>) -> Read<Self> {
        let intercept = reader.read(&INTERCEPT, |v| v.boolean())?;
        Ok(Self { kind, intercept })
    }

    pub(super) fn write(&self, out: &mut Writer) {
        out.put(&INTERCEPT, self.intercept.to_string());
    }

    pub(super) fn describe(&self) -> String {
        let intercept = if self.intercept { "" } else { ", no intercept" };
        format!("{}{intercept}", self.kind)
    }

    /// Whether it predicts classes.
    pub fn classifies(&self) -> bool {
        self.kind != LINEAR
    }

    /// Keys of `model.json`.
    pub(super) fn keys(&self) -> Map<String, Value> {
        Map::from_iter([("intercept".into(), self.intercept.into())])
    }

    /// The learner for inputs of this shape and targets of so many classes.
    pub(super) fn learner(&self, shape: &[usize], classes: usize) -> Result<Arc<dyn Learner>> {
        let features = shape.iter().product();
        if self.classifies() && classes < 2 {
            return Err(Error::data("the targets have one class; a classifier needs two"));
        }
        Ok(match self.kind {
            LINEAR => Arc::new(Linear::new(features, self.intercept)),
            LOGISTIC if classes > 2 => {
                let error = Error::config(format!("logistic has two classes, the data {classes}"));
                return Err(error.hint("kind = \"softmax\" takes any number of classes"));
            }
            LOGISTIC => Arc::new(Logistic::new(features, self.intercept)),
            _ => Arc::new(Softmax::new(features, classes, self.intercept)),
        })
    }
}
