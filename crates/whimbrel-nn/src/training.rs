//! Local training: gradient descent of one or more models on one client's samples.

use std::ops::Range;
use whimbrel_core::{Key, Result, Samples};

use crate::{Batch, Learner, Optimiser, OptimiserState, Proximal, Room};

/// Child keys of a training.
const SHUFFLE: u64 = 0x5F1E;
const DROPOUT: u64 = 0xD209;

/// The local solver of a client.
#[derive(Clone, Debug, PartialEq)]
pub struct Solver {
    pub length: Length,
    /// Size of a minibatch; `None` for all samples.
    pub batch: Option<u32>,
    pub optimiser: Optimiser,
}

/// The length of a local training.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Length {
    /// Passes over the client's samples, reshuffled for each.
    Epochs(u32),
    /// Minibatch steps.
    Steps(u32),
}

impl Length {
    /// The default number of passes.
    pub const EPOCHS: u32 = 1;
}

impl Default for Length {
    fn default() -> Self {
        Self::Epochs(Self::EPOCHS)
    }
}

impl Solver {
    /// Number of samples processed in a local training, with repeats.
    pub fn rows_used(&self, rows: u64) -> u64 {
        let each = self.batch.map_or(rows, |batch| u64::from(batch).min(rows));
        match self.length {
            Length::Epochs(epochs) => rows * u64::from(epochs),
            Length::Steps(steps) => each * u64::from(steps),
        }
    }

    /// Number of local steps of a client with this number of samples.
    pub fn steps(&self, samples: usize) -> u32 {
        let each = samples.div_ceil(self.batch_of(samples)) as u32;
        match self.length {
            Length::Epochs(epochs) => epochs * each,
            Length::Steps(steps) if samples > 0 => steps,
            Length::Steps(_) => 0,
        }
    }

    /// Size of a minibatch of a client with this number of samples.
    fn batch_of(&self, samples: usize) -> usize {
        self.batch.map_or(samples, |batch| batch as usize).clamp(1, samples.max(1))
    }
}

/// One client's local training. Minibatches depend on the key alone, so all models use the same.
pub struct Training<'a> {
    pub samples: &'a Samples,
    pub solver: &'a Solver,
    pub rate: f64,
    /// The key of all random draws.
    pub key: Key,
    pub models: Vec<Trainee<'a>>,
}

/// A model in training.
pub struct Trainee<'a> {
    /// The parameters, trained in place.
    pub w: &'a mut [f32],
    /// One weight per sample of the client; `None` stands for weights of one.
    pub weights: Option<&'a [f32]>,
    /// A proximal term.
    pub proximal: Option<Proximal<'a>>,
    /// Added to every gradient.
    pub shift: Option<&'a [f32]>,
    /// Ranges of the flat vector whose gradient is set to zero.
    pub frozen: &'a [Range<usize>],
}

impl<'a> Trainee<'a> {
    /// A model trained with equal weights, without a proximal term.
    pub fn new(w: &'a mut [f32]) -> Self {
        Self { w, weights: None, proximal: None, shift: None, frozen: &[] }
    }
}

impl Training<'_> {
    /// All minibatches, from the first on.
    pub fn minibatches(&self) -> Minibatches {
        Minibatches::new(self.samples.len(), self.solver, self.key)
    }

    /// The dropout key of a step, counted from 0.
    pub fn dropout_key(&self, step: u32) -> Key {
        self.key.child(DROPOUT).child(u64::from(step))
    }

    /// Trains the models step by step with the learner's gradients.
    pub fn run<L: Learner + ?Sized>(&mut self, learner: &L, room: &mut Room) -> Result<()> {
        let (len, tensors, rate) = (learner.parameters(), learner.tensors(), self.rate as f32);
        let mut gradients = vec![0.0; self.models.len() * len];
        let weighted = self.models.iter().any(|model| model.weights.is_some());
        let mut q = Vec::new();
        let mut states = vec![OptimiserState::default(); self.models.len()];
        let mut minibatches = self.minibatches();
        let mut step = 0;
        while let Some(places) = minibatches.next() {
            let batch = Batch { samples: self.samples, places };
            let key = self.key.child(DROPOUT).child(step);
            step += 1;
            if weighted {
                q.clear();
                for model in &self.models {
                    let weight = |i| model.weights.map_or(1.0, |all| all[batch.place(i)]);
                    q.extend((0..batch.len()).map(weight));
                }
            }
            let (q, all) = (weighted.then_some(&q[..]), self.models.iter().map(|model| &*model.w));
            let all: Vec<&[f32]> = all.collect();
            learner.gradient_of_all(&all, batch, q, key, room, &mut gradients);
            let each = gradients.chunks_exact_mut(len.max(1)).zip(&mut states);
            for (model, (gradient, state)) in self.models.iter_mut().zip(each) {
                if let Some(shift) = model.shift {
                    gradient.iter_mut().zip(shift).for_each(|(g, shift)| *g += shift);
                }
                for range in model.frozen {
                    gradient[range.clone()].fill(0.0);
                }
                let optimiser = self.solver.optimiser;
                optimiser.step(state, rate, model.proximal, tensors, gradient, model.w);
            }
        }
        Ok(())
    }
}

/// The minibatches of a local training, drawn lazily.
pub struct Minibatches {
    key: Key,
    order: Vec<u32>,
    size: usize,
    at: usize,
    epoch: u64,
    /// Remaining passes or minibatches.
    left: u32,
    by_epochs: bool,
    shuffles: bool,
}

impl Minibatches {
    fn new(samples: usize, solver: &Solver, key: Key) -> Self {
        let size = solver.batch_of(samples);
        let (left, by_epochs) = match solver.length {
            Length::Epochs(epochs) => (epochs, true),
            Length::Steps(steps) => (steps, false),
        };
        Self {
            key,
            order: (0..samples as u32).collect(),
            size,
            at: samples,
            epoch: 0,
            left: if samples == 0 { 0 } else { left },
            by_epochs,
            shuffles: size < samples,
        }
    }

    /// The sample indices of the next minibatch, as in [`Batch`]: the inner `None` stands for all samples.
    #[allow(clippy::should_implement_trait)] // what it lends is overwritten by the next call
    pub fn next(&mut self) -> Option<Option<&[u32]>> {
        let fresh = self.at >= self.order.len();
        if self.left == 0 && (fresh || !self.by_epochs) {
            return None;
        }
        if fresh {
            if self.shuffles {
                self.key.child(SHUFFLE).child(self.epoch).stream().shuffle(&mut self.order);
            }
            self.epoch += 1;
            self.at = 0;
        }
        if !self.by_epochs || fresh {
            self.left -= 1;
        }
        let end = (self.at + self.size).min(self.order.len());
        let places = &self.order[self.at..end];
        self.at = end;
        Some(self.shuffles.then_some(places))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batches(samples: usize, length: Length, batch: Option<u32>) -> Vec<Vec<u32>> {
        let solver = Solver { length, batch, optimiser: Optimiser::PLAIN };
        let mut all = Minibatches::new(samples, &solver, Key::root(3));
        let mut found = Vec::new();
        while let Some(places) = all.next() {
            found.push(places.map_or((0..samples as u32).collect(), <[u32]>::to_vec));
        }
        assert_eq!(solver.steps(samples) as usize, found.len());
        found
    }

    #[test]
    fn an_epoch_sees_every_sample_once() {
        let found = batches(10, Length::Epochs(2), Some(4));
        assert_eq!(found.iter().map(Vec::len).collect::<Vec<_>>(), [4, 4, 2, 4, 4, 2]);
        let mut first: Vec<u32> = found[..3].concat();
        let second: Vec<u32> = found[3..].concat();
        assert_ne!(first, second);
        first.sort_unstable();
        assert_eq!(first, (0..10).collect::<Vec<_>>());
    }

    #[test]
    fn steps_go_on_into_the_next_epoch() {
        let found = batches(10, Length::Steps(4), Some(4));
        assert_eq!(found.iter().map(Vec::len).collect::<Vec<_>>(), [4, 4, 2, 4]);
        assert_eq!(batches(3, Length::Steps(2), None), [[0, 1, 2], [0, 1, 2]]);
        assert_eq!(batches(3, Length::Epochs(1), Some(8)), [[0, 1, 2]]);
        assert!(batches(0, Length::Epochs(1), Some(8)).is_empty());
    }
}
