//! What a method does on a client.

use super::{Mixture, Work};
use whimbrel_core::{Key, Result, wire};
use whimbrel_nn::{Learner, Role};

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
    /// What the client predicts with. A client that never trained gets what the method gives an
    /// unseen client, from its own rows.
    fn personal(&self, work: &mut Work<'_>, w: &[f32], own: &Own) -> Result<Mixture>;
    /// Whether an unseen client gets more than the shared model.
    fn adapts(&self) -> bool;
    /// What its upload holds, for disclosures.
    fn sent(&self) -> &'static str {
        "each round: by how much local training changed the shared parameters"
    }
}

/// A learner's flat vector, as rules need it.
pub struct Shape<'a> {
    /// The learner.
    pub learner: &'a dyn Learner,
    /// The lengths of its tensors.
    pub tensors: Vec<usize>,
    /// Numbers in a model.
    pub len: usize,
}

impl<'a> Shape<'a> {
    /// That of a learner.
    pub fn new(learner: &'a dyn Learner) -> Self {
        let tensors: Vec<usize> = learner.tensors().iter().map(whimbrel_nn::Tensor::len).collect();
        let len = tensors.iter().sum();
        Self { learner, tensors, len }
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
