//! What a method does on a client.

use super::{Mixture, Work};
use whimbrel_core::method::Artifact;
use whimbrel_core::{Key, Result, wire};
use whimbrel_nn::{Learner, Role};

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

/// One method's client.
pub trait LocalRule: Send + Sync + 'static {
    /// The lengths of the tensors that are shared, in order.
    fn blocks(&self, shape: &Shape<'_>) -> Vec<usize> {
        shape.tensors.clone()
    }
    /// What is shared at the start; `variance` is that of all targets where they are numbers.
    fn start(&self, shape: &Shape<'_>, _variance: f64, key: Key) -> Vec<f32> {
        shape.start(key)
    }
    /// What a client has before its first round.
    fn enroll(&self, _: &Shape<'_>, _: Key) -> Own {
        Own::default()
    }
    /// A round on the client: what it has afterwards, and by how much what is shared changed.
    fn local(&self, work: &mut Work<'_>, w: &[f32], own: &Own) -> Result<(Own, Vec<f32>)>;
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

    /// The first parameters of one model. Components differ by their key.
    pub fn start(&self, key: Key) -> Vec<f32> {
        self.learner.start(key.fold(0))
    }

    /// The places of the body, and those of the head: the tensors of the last layer.
    pub fn body_and_head(&self) -> (Vec<std::ops::Range<usize>>, Vec<std::ops::Range<usize>>) {
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
pub(super) fn gather(w: &[f32], places: &[std::ops::Range<usize>]) -> Vec<f32> {
    places.iter().flat_map(|range| &w[range.clone()]).copied().collect()
}

/// Puts numbers back to their places.
pub(super) fn scatter(w: &mut [f32], places: &[std::ops::Range<usize>], values: &[f32]) {
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
