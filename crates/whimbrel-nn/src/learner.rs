//! The trait of models that are trained by gradients of per-sample losses.

use crate::Training;
use whimbrel_core::{Key, Result, Samples};

/// A differentiable model of one input's target, over a flat vector of parameters.
///
/// Losses are negative log-likelihoods up to a constant: cross-entropy for classes, half the squared
/// error for values. Methods write into the caller's buffers; a [`Room`] holds intermediate results, so
/// that nothing is allocated per batch. Results depend, bit for bit, on the arguments alone.
pub trait Learner: Send + Sync + 'static {
    /// The name in jobs and files.
    fn name(&self) -> &'static str;
    /// The tensors of the flat vector, in order.
    fn tensors(&self) -> &[Tensor];
    /// Length of a prediction: the number of classes, or one.
    fn outputs(&self) -> usize;
    /// Whether predictions are classes rather than a number.
    fn classifies(&self) -> bool;
    /// Refuses samples of another shape or with other targets.
    fn check(&self, samples: &Samples) -> Result<()>;
    /// Initial parameters.
    fn start(&self, key: Key) -> Vec<f32>;
    /// Sums over a client's samples from which [`start_from`](Self::start_from) finds better initial
    /// parameters; none by default.
    fn start_sums(&self, _: &Samples) -> Vec<f64> {
        Vec::new()
    }
    fn start_sums_len(&self) -> usize {
        0
    }
    /// Description of the sums, for disclosures.
    fn start_sums_told(&self) -> &'static str {
        "the number of samples"
    }
    /// The largest curvature of all clients' summed loss in the parameters below a head of norm one;
    /// `None` if the sums do not determine it.
    fn start_curvature(&self, _sums: &[f64]) -> Result<Option<f64>> {
        Ok(None)
    }
    /// Initial parameters, given the sums over all clients.
    fn start_from(&self, _sums: &[f64], key: Key) -> Result<Vec<f32>> {
        Ok(self.start(key))
    }
    /// Each sample's regressors of the [head](Role::Head), one sample after the other; `None` unless
    /// predictions are linear in the head.
    fn linear_features(&self, _w: &[f32], _: &Samples) -> Option<Vec<f64>> {
        None
    }
    /// The [head](Role::Head) as a separate learner, with its inputs: the activations below it for these
    /// samples at `w`, without dropout. `None` if the head is not a layer.
    fn head_on(&self, _w: &[f32], _: &Samples) -> Option<(Box<dyn Learner>, Samples)> {
        None
    }

    /// An upper bound on the curvature of the sum of these samples' losses, if known.
    fn largest_curvature(&self, _: &Samples) -> Option<f64> {
        None
    }

    /// Each sample's loss in evaluation mode: without dropout, with running statistics.
    fn losses(&self, w: &[f32], batch: Batch<'_>, room: &mut Room, losses: &mut [f32]);
    /// Sets `gradient` to `(1/|I|) sum_j q_j grad loss_j` over the batch, `q_j` being `weights` or one,
    /// and `losses` to each sample's loss, in training mode: dropout is drawn with `key`. Entries of
    /// [running statistics](Role::Statistic) get their new values instead of a derivative.
    #[allow(clippy::too_many_arguments)]
    fn gradient(
        &self,
        w: &[f32],
        batch: Batch<'_>,
        weights: Option<&[f32]>,
        key: Key,
        room: &mut Room,
        gradient: &mut [f32],
        losses: &mut [f32],
    );
    /// Each sample's prediction in evaluation mode: class probabilities, or a number.
    fn predict(&self, w: &[f32], batch: Batch<'_>, room: &mut Room, predictions: &mut [f32]);

    /// Length of the flat vector.
    fn parameters(&self) -> usize {
        self.tensors().iter().map(Tensor::len).sum()
    }
    /// The losses under several parameter vectors, one after the other in `losses`. Override it to read
    /// the inputs once for all of them.
    fn losses_of_all(&self, all: &[&[f32]], batch: Batch<'_>, room: &mut Room, losses: &mut [f32]) {
        for (w, losses) in all.iter().zip(losses.chunks_exact_mut(batch.len().max(1))) {
            self.losses(w, batch, room, losses);
        }
    }
    /// The gradients of several parameter vectors on one batch, one after the other in `gradients`, with
    /// the sample weights of each of them, one after the other, in `weights`. Override it to read the
    /// inputs once for all of them.
    #[allow(clippy::too_many_arguments)]
    fn gradient_of_all(
        &self,
        all: &[&[f32]],
        batch: Batch<'_>,
        weights: Option<&[f32]>,
        key: Key,
        room: &mut Room,
        gradients: &mut [f32],
    ) {
        let (n, mut losses) = (batch.len(), vec![0.0; batch.len()]);
        let each = gradients.chunks_exact_mut(self.parameters().max(1));
        for (m, (w, gradient)) in all.iter().zip(each).enumerate() {
            let weights = weights.map(|weights| &weights[m * n..(m + 1) * n]);
            self.gradient(w, batch, weights, key, room, gradient, &mut losses);
        }
    }
    /// Trains the models of several clients in place; by default step by step with
    /// [`gradient`](Self::gradient), one client after the other. A learner that is faster on several
    /// clients at once, such as one on a GPU, overrides this and
    /// [`clients_at_once`](Self::clients_at_once). A client's result must not depend on the others.
    fn local_steps(&self, all: &mut [Training<'_>], room: &mut Room) -> Result<()> {
        all.iter_mut().try_for_each(|training| training.run(self, room))
    }
    /// Largest useful number of clients in one call of [`local_steps`](Self::local_steps).
    fn clients_at_once(&self) -> usize {
        1
    }
}

/// A tensor in the flat vector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tensor {
    /// For example `conv1.weight`.
    pub name: String,
    pub shape: Vec<usize>,
    pub role: Role,
}

/// The role of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Trained, with weight decay.
    Weight,
    /// A running statistic of the inputs: no gradient, no weight decay.
    Statistic,
    /// A weight of the last layer, which personalised methods may keep on the client.
    Head,
}

impl Tensor {
    pub fn new(name: impl Into<String>, shape: &[usize], role: Role) -> Self {
        Self { name: name.into(), shape: shape.to_vec(), role }
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Some samples of a client.
#[derive(Clone, Copy)]
pub struct Batch<'a> {
    /// All samples of the client.
    pub samples: &'a Samples,
    /// Indices of the samples in the batch; `None` for all.
    pub places: Option<&'a [u32]>,
}

impl<'a> Batch<'a> {
    /// All samples.
    pub fn all(samples: &'a Samples) -> Self {
        Self { samples, places: None }
    }

    /// The samples with these indices, in this order.
    pub fn at(samples: &'a Samples, places: &'a [u32]) -> Self {
        Self { samples, places: Some(places) }
    }

    pub fn len(&self) -> usize {
        self.places.map_or(self.samples.len(), <[u32]>::len)
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The index of the i-th sample.
    pub fn place(&self, i: usize) -> usize {
        self.places.map_or(i, |places| places[i] as usize)
    }
}

/// Reusable buffers of a learner. Their contents do not carry over between calls.
#[derive(Default)]
pub struct Room {
    buffers: Vec<Vec<f32>>,
    wide: Vec<f64>,
}

impl Room {
    /// Buffers of these lengths with arbitrary contents, each aligned to a cache line.
    pub fn buffers<const N: usize>(&mut self, lengths: [usize; N]) -> [&mut [f32]; N] {
        if self.buffers.len() < N {
            self.buffers.resize_with(N, Vec::new);
        }
        let mut all = self.buffers.iter_mut();
        lengths.map(|length| {
            let Some(buffer) = all.next() else { return &mut [][..] };
            if buffer.len() < length + LINE {
                buffer.resize(length + LINE, 0.0);
            }
            let skipped = buffer.as_ptr().align_offset(size_of::<[f32; LINE]>()).min(LINE);
            &mut buffer[skipped..][..length]
        })
    }

    /// A zeroed buffer of `f64`.
    pub fn zeros(&mut self, length: usize) -> &mut [f64] {
        self.wide.clear();
        self.wide.resize(length, 0.0);
        &mut self.wide
    }
}

/// Numbers of a cache line.
const LINE: usize = 16;
