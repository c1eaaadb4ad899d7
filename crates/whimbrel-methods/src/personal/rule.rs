//! The client's half of a method over local training.

use super::work::check_finite;
use super::{Ensemble, Gathered, Personal, Work};
use crate::federated::{BindRows, Terms};
use std::any::Any;
use std::fmt::Debug;
use std::ops::Range;
use std::sync::Arc;
use whimbrel_core::method::Artifact;
use whimbrel_core::{DynMethod, Key, Result, wire};
use whimbrel_nn::{Learner, Proximal, Role, Trainee};

const WEIGHTS: &str = "weights";
const MODEL: &str = "model.";

/// A client's personal state. It never leaves the client.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Own {
    /// Single numbers, such as mixture weights.
    pub weights: Vec<f64>,
    pub models: Vec<Vec<f32>>,
}

wire!(Own { weights, models });

impl Own {
    pub(super) fn of_models(models: Vec<Vec<f32>>) -> Self {
        Self { weights: Vec::new(), models }
    }

    /// Whether the client has no personal state (yet).
    pub fn is_empty(&self) -> bool {
        self.weights.is_empty() && self.models.is_empty()
    }

    /// As named tensors.
    pub fn artifact(&self, kind: &str) -> Artifact {
        let mut artifact = Artifact::new(kind);
        if !self.weights.is_empty() {
            artifact.add(WEIGHTS, &[self.weights.len()], self.weights.clone());
        }
        self.models.iter().enumerate().fold(artifact, |artifact, (m, model)| {
            artifact.with_f32(&format!("{MODEL}{m}"), &[model.len()], model.clone())
        })
    }

    pub fn from_artifact(artifact: &Artifact) -> Self {
        let models = (0..).map_while(|m| {
            let name = format!("{MODEL}{m}");
            artifact.narrow.iter().find(|tensor| tensor.name == name).map(|t| t.values.clone())
        });
        let weights = artifact.tensor(WEIGHTS).map(|tensor| tensor.values.clone());
        Self { weights: weights.unwrap_or_default(), models: models.collect() }
    }

    /// The client's first model; `w` without one.
    pub(super) fn model_or(&self, w: &[f32]) -> Vec<f32> {
        self.models.first().map_or(w, Vec::as_slice).to_vec()
    }
}

/// The client's half of a method, with the method's settings. Methods in call order.
pub trait LocalRule: RuleValue {
    /// Refuses learners that the method cannot train.
    fn check(&self, _: &Shape<'_>) -> Result<()> {
        Ok(())
    }
    /// The whole method around this client; by default over channels.
    fn method(&self, training: Personal, terms: Terms) -> Arc<dyn DynMethod> {
        training.over(terms).erased(BindRows)
    }
    /// Whether uploads bypass the codec.
    fn sends_exactly(&self) -> bool {
        false
    }
    /// The lengths of the shared tensors, in order.
    fn blocks(&self, shape: &Shape<'_>) -> Vec<usize> {
        shape.tensors.clone()
    }
    /// The shared vector at the start.
    fn start(&self, shape: &Shape<'_>, gathered: &Gathered<'_>, key: Key) -> Result<Vec<f32>> {
        shape.start_from(gathered, key)
    }
    /// A client's personal state before its first round.
    fn enroll(&self, _: &Shape<'_>, _: Key) -> Own {
        Own::default()
    }
    /// A client's round up to its local training, which the learner carries out.
    fn begin(&self, work: &mut Work<'_>, w: &[f32], own: &Own) -> Result<Round>;
    /// The rest of the round, after the training: the client's next state, and the change of the
    /// shared vector. By default that of the first trained model.
    fn end(&self, _: &mut Work<'_>, w: &[f32], round: Round) -> Result<(Own, Vec<f32>)> {
        let change = round.models.first().map(|model| difference(&model.w, w));
        Ok((round.own, change.unwrap_or(round.change)))
    }
    /// Which clients [adapt](Self::adapt) before they predict.
    fn adaptation(&self) -> Adaptation {
        Adaptation::Never
    }
    /// The personal state of a client that took no part in training, fitted to its samples.
    fn adapt(&self, _: &mut Work<'_>, _: &[f32]) -> Result<Own> {
        Ok(Own::default())
    }
    /// The predictor of a client: by default its own model, or the shared one.
    fn personal(&self, _: &Shape<'_>, w: &[f32], own: &Own) -> Result<Ensemble> {
        Ok(Ensemble::single(own.model_or(w)))
    }
    /// The content of an upload, for disclosures.
    fn sent(&self) -> &'static str {
        "each round: by how much training on these rows changed the shared parameters"
    }
}

/// Which clients fit something to their own samples before they predict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Adaptation {
    /// Nothing is shared: only clients that trained can predict.
    Impossible,
    /// None: the shared model serves every client.
    Never,
    /// Clients that took no part in training; the shared model predicts without it, too.
    Optional,
    /// Clients that took no part in training: the shared vector does not predict by itself.
    Required,
    /// Every client, also those that trained.
    FineTuning,
}

impl Adaptation {
    /// Whether a client that took no part in training can adapt.
    pub fn is_possible(self) -> bool {
        matches!(self, Self::Optional | Self::Required | Self::FineTuning)
    }

    /// Whether the shared vector predicts for a client without personal state.
    pub fn shared_predicts(self) -> bool {
        matches!(self, Self::Never | Self::Optional)
    }
}

/// Comparison of rules behind a pointer.
pub trait RuleValue: Any + Debug + Send + Sync {
    /// Whether the other is of the same type and equal.
    fn equals(&self, other: &dyn LocalRule) -> bool;
}

impl<T: LocalRule + PartialEq> RuleValue for T {
    fn equals(&self, other: &dyn LocalRule) -> bool {
        other.downcast_ref() == Some(self)
    }
}

impl dyn LocalRule {
    /// The settings as those of method `T`.
    pub fn downcast_ref<T: LocalRule>(&self) -> Option<&T> {
        (self as &dyn Any).downcast_ref()
    }
}

/// A client's round in progress.
#[derive(Default)]
pub struct Round {
    /// The client's next state, as far as it is known before the training.
    pub own: Own,
    pub models: Vec<ToTrain>,
    /// The change of the shared vector, as far as it is known before the training.
    pub change: Vec<f32>,
}

/// A model to train in a round.
#[derive(Default)]
pub struct ToTrain {
    pub w: Vec<f32>,
    /// Weights of the client's samples; empty: all one.
    pub weights: Vec<f32>,
    /// The factor of half the squared distance to the received model.
    pub mu: f64,
    /// Added to every gradient; empty: zero.
    pub shift: Vec<f32>,
    /// Ranges of parameters that are not trained.
    pub frozen: Vec<Range<usize>>,
}

impl ToTrain {
    /// A model trained on all samples with equal weight.
    pub fn new(w: Vec<f32>) -> Self {
        Self { w, ..Self::default() }
    }

    /// The same with a proximal term around the received model.
    pub fn near(w: Vec<f32>, mu: f64) -> Self {
        Self { w, mu, ..Self::default() }
    }
}

impl Round {
    /// A round that trains one model.
    pub fn of(model: ToTrain) -> Self {
        Self { models: vec![model], ..Self::default() }
    }

    /// The models as the learner trains them; `centre` is the received model.
    pub fn trainees<'a>(&'a mut self, centre: &'a [f32]) -> Vec<Trainee<'a>> {
        fn given(x: &[f32]) -> Option<&[f32]> {
            (!x.is_empty()).then_some(x)
        }
        let trainee = |ToTrain { w, weights, mu, shift, frozen }: &'a mut ToTrain| Trainee {
            w,
            weights: given(weights),
            proximal: (*mu as f32 > 0.0).then_some(Proximal { mu: *mu as f32, centre }),
            shift: given(shift),
            frozen,
        };
        self.models.iter_mut().map(trainee).collect()
    }

    /// The parameters of the models.
    pub fn trained(self) -> Vec<Vec<f32>> {
        self.models.into_iter().map(|model| model.w).collect()
    }

    /// Refuses models with non-finite parameters.
    pub fn check(&self) -> Result<()> {
        self.models.iter().try_for_each(|model| check_finite(&model.w))
    }
}

/// A shorter tensor is compressed together with the one before: its norm would take more bits than
/// its numbers.
const BLOCK_MIN: usize = 64;

/// The layout of a learner's flat vector.
pub struct Shape<'a> {
    pub learner: &'a dyn Learner,
    /// The lengths of its tensors, short ones joined with the one before.
    pub tensors: Vec<usize>,
    /// Parameters of one model.
    pub len: usize,
}

impl<'a> Shape<'a> {
    pub fn new(learner: &'a dyn Learner) -> Self {
        let mut tensors: Vec<usize> = Vec::new();
        for len in learner.tensors().iter().map(whimbrel_nn::Tensor::len) {
            match tensors.last_mut() {
                Some(last) if len < BLOCK_MIN => *last += len,
                _ => tensors.push(len),
            }
        }
        Self { learner, len: tensors.iter().sum(), tensors }
    }

    /// The first parameters of one model.
    pub fn start_from(&self, gathered: &Gathered<'_>, key: Key) -> Result<Vec<f32>> {
        self.learner.start_from(gathered.sums, key.child(0))
    }

    /// The ranges of the body, and those of the head: the tensors of the last layer.
    pub fn body_and_head(&self) -> (Vec<Range<usize>>, Vec<Range<usize>>) {
        let (mut body, mut head, mut at) = (Vec::new(), Vec::new(), 0);
        for tensor in self.learner.tensors() {
            let range = at..at + tensor.len();
            at = range.end;
            match tensor.role {
                Role::Head => head.push(range),
                Role::Weight | Role::Statistic => body.push(range),
            }
        }
        (body, head)
    }
}

/// The numbers in these ranges, concatenated.
pub(super) fn gather(w: &[f32], places: &[Range<usize>]) -> Vec<f32> {
    places.iter().flat_map(|range| &w[range.clone()]).copied().collect()
}

/// The inverse of [`gather`].
pub(super) fn scatter(w: &mut [f32], places: &[Range<usize>], mut values: &[f32]) {
    for range in places {
        let (own, rest) = values.split_at(range.len());
        w[range.clone()].copy_from_slice(own);
        values = rest;
    }
}

/// `a - b`.
pub(super) fn difference(a: &[f32], b: &[f32]) -> Vec<f32> {
    a.iter().zip(b).map(|(a, b)| a - b).collect()
}
