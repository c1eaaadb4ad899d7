//! What a method does on a client.

use super::work::check_finite;
use super::{Gathered, Mixture, Personal, Work};
use crate::federated::{BindRows, Terms};
use std::any::Any;
use std::fmt::Debug;
use std::ops::Range;
use std::sync::Arc;
use whimbrel_core::method::Artifact;
use whimbrel_core::{DynMethod, Erased, Key, Result, wire};
use whimbrel_nn::{Learner, Proximal, Role, Trainee};

/// Names of tensors.
const WEIGHTS: &str = "weights";
const MODEL: &str = "model.";

/// What one client keeps: mixture weights or shares, and models of its own. It never leaves the client.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Own {
    /// Numbers of the client's own, such as mixture weights.
    pub weights: Vec<f64>,
    /// Vectors of parameters of its own.
    pub models: Vec<Vec<f32>>,
}

wire!(Own { weights, models });

impl Own {
    /// Models alone.
    pub(super) fn of_models(models: Vec<Vec<f32>>) -> Self {
        Self { weights: Vec::new(), models }
    }

    /// Whether the client has nothing of its own (yet).
    pub fn is_empty(&self) -> bool {
        self.weights.is_empty() && self.models.is_empty()
    }

    /// As named tensors.
    pub fn artifact(&self, kind: &str) -> Artifact {
        let artifact = Artifact::new(kind);
        let artifact = match self.weights.is_empty() {
            true => artifact,
            false => artifact.with(WEIGHTS, &[self.weights.len()], self.weights.clone()),
        };
        self.models.iter().enumerate().fold(artifact, |artifact, (m, model)| {
            artifact.with_f32(&format!("{MODEL}{m}"), &[model.len()], model.clone())
        })
    }

    /// Back from them.
    pub fn from_artifact(artifact: &Artifact) -> Self {
        let models = (0..).map_while(|m| {
            let name = format!("{MODEL}{m}");
            artifact.narrow.iter().find(|tensor| tensor.name == name).map(|t| t.values.clone())
        });
        let weights = artifact.tensor(WEIGHTS).map(|tensor| tensor.values.clone());
        Self { weights: weights.unwrap_or_default(), models: models.collect() }
    }

    /// The client's own model, or this one.
    pub(super) fn model_or(&self, w: &[f32]) -> Vec<f32> {
        self.models.first().map_or(w, Vec::as_slice).to_vec()
    }
}

/// One method's client, with the method's settings.
pub trait LocalRule: RuleValue {
    /// Refuses learners that the method cannot train.
    fn check(&self, _: &Shape<'_>) -> Result<()> {
        Ok(())
    }
    /// The whole method around this client; by default over channels.
    fn method(&self, training: Personal, terms: Terms) -> Arc<dyn DynMethod> {
        Arc::new(Erased(training.over(terms), BindRows))
    }
    /// Whether a codec would have nothing to compress.
    fn sends_exactly(&self) -> bool {
        false
    }
    /// The lengths of the tensors that are shared, in order.
    fn blocks(&self, shape: &Shape<'_>) -> Vec<usize> {
        shape.tensors.clone()
    }
    /// What is shared at the start.
    fn start(&self, shape: &Shape<'_>, told: &Gathered<'_>, key: Key) -> Result<Vec<f32>> {
        shape.start_from(told, key)
    }
    /// What a client has before its first round.
    fn enroll(&self, _: &Shape<'_>, _: Key) -> Own {
        Own::default()
    }
    /// A round on the client up to its local training, which is the learner's.
    fn begin(&self, work: &mut Work<'_>, w: &[f32], own: &Own) -> Result<Round>;
    /// The rest of it, with the models trained: what the client has afterwards, and by how much what is
    /// shared changed.
    fn end(&self, _: &mut Work<'_>, _w: &[f32], round: Round) -> Result<(Own, Vec<f32>)> {
        Ok((round.own, round.change))
    }
    /// What a client that took no part in training gets of its own, from its samples.
    fn adapt(&self, _: &mut Work<'_>, _: &[f32]) -> Result<Own> {
        Ok(Own::default())
    }
    /// What unseen clients get.
    fn for_unseen(&self) -> Unseen {
        Unseen::Shared
    }
    /// Whether clients that trained [adapt](Self::adapt) before they predict, too.
    fn fine_tunes(&self) -> bool {
        false
    }
    /// Whether the shared model predicts by itself: for a client with nothing of its own.
    fn predicts_alone(&self) -> bool {
        true
    }
    /// What a client with this of its own predicts with.
    fn personal(&self, shape: &Shape<'_>, w: &[f32], own: &Own) -> Result<Mixture>;
    /// What its upload holds, for disclosures.
    fn sent(&self) -> &'static str {
        "each round: by how much local training changed the shared parameters"
    }
}

/// What every [`LocalRule`] that can be compared has.
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
    /// The settings, where they are of this method.
    pub fn downcast_ref<T: LocalRule>(&self) -> Option<&T> {
        (self as &dyn Any).downcast_ref()
    }
}

/// A round on a client, under way.
#[derive(Default)]
pub struct Round {
    /// What the client has afterwards, as far as it is known.
    pub own: Own,
    /// What is trained.
    pub models: Vec<ToTrain>,
    /// By how much what is shared changed, as far as it is known.
    pub change: Vec<f32>,
}

/// A model that a round trains.
pub struct ToTrain {
    /// Its parameters.
    pub w: Vec<f32>,
    /// A weight for each of the client's samples; empty: one.
    pub weights: Vec<f32>,
    /// The factor of half the squared distance to the received model.
    pub mu: f64,
    /// What is added to every gradient; empty: nothing.
    pub shift: Vec<f32>,
    /// Where gradients are set to zero.
    pub frozen: Vec<Range<usize>>,
}

impl ToTrain {
    /// A model that is trained on all samples alike.
    pub fn new(w: Vec<f32>) -> Self {
        let (weights, shift, frozen) = (Vec::new(), Vec::new(), Vec::new());
        Self { w, weights, mu: 0.0, shift, frozen }
    }

    /// The same with a pull towards the received model.
    pub fn near(w: Vec<f32>, mu: f64) -> Self {
        Self { mu, ..Self::new(w) }
    }

    /// As the learner trains it, around the received model.
    pub fn trainee<'a>(&'a mut self, centre: &'a [f32]) -> Trainee<'a> {
        let given = |x: &'a Vec<f32>| (!x.is_empty()).then_some(&x[..]);
        let mu = self.mu as f32;
        Trainee {
            w: &mut self.w,
            weights: given(&self.weights),
            proximal: (mu > 0.0).then_some(Proximal { mu, centre }),
            shift: given(&self.shift),
            frozen: &self.frozen,
        }
    }
}

impl Round {
    /// A round that trains this alone.
    pub fn of(model: ToTrain) -> Self {
        Self { models: vec![model], ..Self::default() }
    }

    /// The models as the learner trains them, around the received model.
    pub fn trainees<'a>(&'a mut self, centre: &'a [f32]) -> Vec<Trainee<'a>> {
        self.models.iter_mut().map(|model| model.trainee(centre)).collect()
    }

    /// What training made of the models.
    pub fn trained(self) -> Vec<Vec<f32>> {
        self.models.into_iter().map(|model| model.w).collect()
    }

    /// Refuses models with non-finite parameters.
    pub fn check(&self) -> Result<()> {
        self.models.iter().try_for_each(|model| check_finite(&model.w))
    }
}

/// What clients that took no part in training get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unseen {
    /// Nothing: there is no shared model.
    Nothing,
    /// The shared model.
    Shared,
    /// Something of their own, from their samples.
    Adapted,
}

/// A tensor of fewer numbers is compressed together with the one before: a norm of its own would
/// take more bits than its numbers.
const BLOCK_MIN: usize = 64;

/// A learner's flat vector, as rules need it.
pub struct Shape<'a> {
    /// The learner.
    pub learner: &'a dyn Learner,
    /// The lengths of its tensors, short ones joined with the one before.
    pub tensors: Vec<usize>,
    /// Numbers in a model.
    pub len: usize,
}

impl<'a> Shape<'a> {
    /// That of a learner.
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
    pub fn start_from(&self, told: &Gathered<'_>, key: Key) -> Result<Vec<f32>> {
        self.learner.start_from(told.sums, key.child(0))
    }

    /// The places of the body, and those of the head: the tensors of the last layer.
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

/// The numbers at these places, one after the other.
pub(super) fn gather(w: &[f32], places: &[Range<usize>]) -> Vec<f32> {
    places.iter().flat_map(|range| &w[range.clone()]).copied().collect()
}

/// Puts numbers back to their places.
pub(super) fn scatter(w: &mut [f32], places: &[Range<usize>], values: &[f32]) {
    let mut at = 0;
    for range in places {
        let n = range.len();
        w[range.clone()].copy_from_slice(&values[at..at + n]);
        at += n;
    }
}

/// `a - b`.
pub(super) fn difference(a: &[f32], b: &[f32]) -> Vec<f32> {
    a.iter().zip(b).map(|(a, b)| a - b).collect()
}
