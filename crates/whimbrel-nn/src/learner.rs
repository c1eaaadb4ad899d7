//! The trait of everything that is trained by gradients of per-sample losses.

use crate::Training;
use whimbrel_core::{Key, Result, Samples};

/// A differentiable model of one input's target, over a flat vector of parameters.
///
/// Losses are negative log-likelihoods up to a constant: cross-entropy for classes, half the squared
/// error for values. Calls write into what the caller holds; a [`Room`] keeps what is needed in between,
/// so that nothing is allocated per batch. Bits depend on the arguments alone.
pub trait Learner: Send + Sync + 'static {
    /// Its name in a job and in files.
    fn name(&self) -> &'static str;
    /// The tensors of the flat vector, in order.
    fn tensors(&self) -> &[Tensor];
    /// Numbers in a prediction: one per class, or one.
    fn outputs(&self) -> usize;
    /// Whether it predicts classes; otherwise it predicts a number.
    fn classifies(&self) -> bool;
    /// Refuses samples of another shape or with other targets.
    fn check(&self, samples: &Samples) -> Result<()>;
    /// Parameters to start from.
    fn start(&self, key: Key) -> Vec<f32>;
    /// Sums over a client's samples from which a better start is found; none by default.
    fn start_sums(&self, _: &Samples) -> Vec<f64> {
        Vec::new()
    }
    /// How many there are.
    fn start_sums_len(&self) -> usize {
        0
    }
    /// What they are, in words.
    fn start_sums_told(&self) -> &'static str {
        "the number of samples"
    }
    /// The largest curvature of everyone's summed loss in the parameters below a head of length one,
    /// where the sums tell it.
    fn start_curvature(&self, _sums: &[f64]) -> Result<Option<f64>> {
        Ok(None)
    }
    /// Parameters to start from, given everyone's sums.
    fn start_from(&self, _sums: &[f64], key: Key) -> Result<Vec<f32>> {
        Ok(self.start(key))
    }
    /// Where predictions are linear in the [head](Role::Head): each sample's factors of its parameters,
    /// one sample after the other.
    fn linear_features(&self, _w: &[f32], _: &Samples) -> Option<Vec<f64>> {
        None
    }
    /// The [head](Role::Head) as a learner of its own, with its inputs: what the layers below it make of
    /// these samples at `w`, without dropout. None where it is not a layer by itself.
    fn head_on(&self, _w: &[f32], _: &Samples) -> Option<(Box<dyn Learner>, Samples)> {
        None
    }

    /// The most that the sum of these samples' losses curves anywhere, where that is known.
    fn largest_curvature(&self, _: &Samples) -> Option<f64> {
        None
    }

    /// Each sample's loss as in an evaluation: without dropout, with running statistics.
    fn losses(&self, w: &[f32], batch: Batch<'_>, room: &mut Room, losses: &mut [f32]);
    /// Sets `gradient` to `(1/|I|) sum_j q_j grad loss_j` over the batch, `q_j` being `weights` or one,
    /// and `losses` to each sample's loss, as in training: dropout is drawn with `key`. The places of
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
    /// Each sample's prediction as in an evaluation: probabilities of the classes, or a number.
    fn predict(&self, w: &[f32], batch: Batch<'_>, room: &mut Room, predictions: &mut [f32]);

    /// Numbers in the flat vector.
    fn parameters(&self) -> usize {
        self.tensors().iter().map(Tensor::len).sum()
    }
    /// The losses under several parameter vectors, one after the other in `losses`. A learner that
    /// reads its inputs once for all of them overrides this.
    fn losses_of_all(&self, all: &[&[f32]], batch: Batch<'_>, room: &mut Room, losses: &mut [f32]) {
        for (w, losses) in all.iter().zip(losses.chunks_exact_mut(batch.len().max(1))) {
            self.losses(w, batch, room, losses);
        }
    }
    /// The gradients of several parameter vectors on one batch, one after the other in `gradients`, with
    /// the weights of each sample for each of them, one after the other, in `weights`. A learner that
    /// reads its inputs once for all of them overrides this.
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
    /// [`gradient`](Self::gradient), one client after the other. A learner that gains from taking
    /// clients together, such as one on a GPU, overrides this and [`clients_at_once`](Self::clients_at_once). What it
    /// makes of a client must not depend on the others.
    fn local_steps(&self, all: &mut [Training<'_>], room: &mut Room) -> Result<()> {
        all.iter_mut().try_for_each(|training| training.run(self, room))
    }
    /// The most clients that [`local_steps`](Self::local_steps) gains from taking together.
    fn clients_at_once(&self) -> usize {
        1
    }
}

/// A tensor in the flat vector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tensor {
    /// Its name, such as `conv1.weight`.
    pub name: String,
    /// Its lengths.
    pub shape: Vec<usize>,
    /// What it is.
    pub role: Role,
}

/// What a tensor is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Trained, and shrunk by weight decay.
    Weight,
    /// A running statistic of the inputs: no gradient, and not shrunk.
    Statistic,
    /// A weight of the last layer, which personalised methods may keep on the client.
    Head,
}

impl Tensor {
    /// A tensor with this role.
    pub fn new(name: impl Into<String>, shape: &[usize], role: Role) -> Self {
        Self { name: name.into(), shape: shape.to_vec(), role }
    }

    /// Its numbers.
    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Some samples of a client.
#[derive(Clone, Copy)]
pub struct Batch<'a> {
    /// All of its samples.
    pub samples: &'a Samples,
    /// The places of those that are meant; none for all of them.
    pub places: Option<&'a [u32]>,
}

impl<'a> Batch<'a> {
    /// All samples.
    pub fn all(samples: &'a Samples) -> Self {
        Self { samples, places: None }
    }

    /// The samples at these places, in this order.
    pub fn at(samples: &'a Samples, places: &'a [u32]) -> Self {
        Self { samples, places: Some(places) }
    }

    /// How many.
    pub fn len(&self) -> usize {
        self.places.map_or(self.samples.len(), <[u32]>::len)
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The place of the i-th.
    pub fn place(&self, i: usize) -> usize {
        self.places.map_or(i, |places| places[i] as usize)
    }
}

/// What a learner keeps between calls to use its memory again: buffers by number, which hold nothing
/// that a call may rely on.
#[derive(Default)]
pub struct Room {
    buffers: Vec<Vec<f32>>,
    wide: Vec<f64>,
}

impl Room {
    /// Buffers of these lengths, with whatever was in them, each at the start of a cache line.
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

    /// Zeros for sums in `f64`.
    pub fn zeros(&mut self, length: usize) -> &mut [f64] {
        self.wide.clear();
        self.wide.resize(length, 0.0);
        &mut self.wide
    }
}

/// Numbers of a cache line.
const LINE: usize = 16;
