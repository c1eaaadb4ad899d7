//! A client at work: gradient descent on its own samples.

use super::Shape;
use whimbrel_core::{Error, Key, Result, Samples};
use whimbrel_nn::{Batch, Learner, Optimiser, OptimiserState, Proximal, Room};

/// Addresses of draws, under the client's key of the round.
const SHUFFLE: u64 = 0x5F1E;
const DROPOUT: u64 = 0xD209;

/// How a client descends.
#[derive(Clone, Debug, PartialEq)]
pub struct Solver {
    /// How long.
    pub length: Length,
    /// Samples of a minibatch; none for all of them.
    pub batch: Option<u32>,
    /// The step's rule.
    pub optimiser: Optimiser,
}

/// How long local training is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Length {
    /// Passes over the client's samples, shuffled anew for each.
    Epochs(u32),
    /// Minibatches.
    Steps(u32),
}

/// The local step of every round.
#[derive(Clone, Debug, PartialEq)]
pub struct Rates {
    /// The first.
    pub initial: f64,
    /// It is multiplied by this ...
    pub factor: f64,
    /// ... at these rounds.
    pub at: Vec<u32>,
}

impl Rates {
    /// One for all rounds.
    pub fn constant(rate: f64) -> Self {
        Self { initial: rate, factor: 1.0, at: Vec::new() }
    }

    /// That of round `k`, from 0.
    pub fn at(&self, k: u32) -> f64 {
        let falls = self.at.iter().filter(|round| k >= **round).count();
        (0..falls).fold(self.initial, |rate, _| rate * self.factor)
    }
}

impl Solver {
    /// Samples that go through a local training.
    pub fn rows_used(&self, rows: u64) -> u64 {
        let each = self.batch.map_or(rows, |batch| u64::from(batch).min(rows));
        match self.length {
            Length::Epochs(epochs) => rows * u64::from(epochs),
            Length::Steps(steps) => each * u64::from(steps),
        }
    }
}

/// One client's training in one round.
pub struct Work<'a> {
    /// What is trained.
    pub learner: &'a dyn Learner,
    /// How.
    pub solver: &'a Solver,
    /// On what.
    pub samples: &'a Samples,
    /// The step.
    pub rate: f64,
    key: Key,
    room: Room,
    gradient: Vec<f32>,
    losses: Vec<f32>,
}

impl<'a> Work<'a> {
    /// A client with these samples.
    pub fn new(
        learner: &'a dyn Learner,
        solver: &'a Solver,
        samples: &'a Samples,
        rate: f64,
        key: Key,
    ) -> Self {
        let gradient = vec![0.0; learner.parameters()];
        let (room, losses) = (Room::default(), Vec::new());
        Self { learner, solver, samples, rate, key, room, gradient, losses }
    }

    /// The learner's flat vector.
    pub fn shape(&self) -> Shape<'a> {
        Shape::new(self.learner)
    }

    /// Trains `w` in place. Returns the number of steps.
    pub fn train(&mut self, w: &mut [f32]) -> Result<u32> {
        self.train_with(w, None, None, |_| {})
    }

    /// Trains `w` in place on losses with a weight for each sample, near a centre; `adjust` changes
    /// each gradient. Returns the number of steps.
    ///
    /// The minibatches depend on the client's key alone: all models of a round see the same.
    pub fn train_with(
        &mut self,
        w: &mut [f32],
        weights: Option<&[f32]>,
        proximal: Option<Proximal<'_>>,
        mut adjust: impl FnMut(&mut [f32]),
    ) -> Result<u32> {
        let (mut state, mut q, mut steps) = (OptimiserState::default(), Vec::new(), 0);
        let mut batches = Batches::new(self.samples.len(), self.solver, self.key);
        while let Some(places) = batches.next() {
            let batch = Batch { samples: self.samples, places };
            let q = weights.map(|all| {
                q.clear();
                q.extend((0..batch.len()).map(|i| all[batch.place(i)]));
                &q[..]
            });
            let key = self.key.fold(DROPOUT).fold(u64::from(steps));
            self.losses.resize(batch.len(), 0.0);
            let (gradient, losses) = (&mut self.gradient[..], &mut self.losses[..]);
            self.learner.gradient(w, batch, q, key, &mut self.room, gradient, losses);
            adjust(gradient);
            let (rate, tensors) = (self.rate as f32, self.learner.tensors());
            self.solver.optimiser.step(&mut state, rate, proximal, tensors, gradient, w);
            steps += 1;
        }
        check_finite(w)?;
        Ok(steps)
    }

    /// The gradient of the client's mean loss over all of its samples.
    pub fn full_gradient(&mut self, w: &[f32], gradient: &mut [f32]) {
        self.losses.resize(self.samples.len(), 0.0);
        let batch = Batch::all(self.samples);
        let key = self.key.fold(DROPOUT);
        self.learner.gradient(w, batch, None, key, &mut self.room, gradient, &mut self.losses);
    }

    /// Visits the minibatches of a training with a learner, its room and the batch.
    pub fn each_batch(
        &mut self,
        mut visit: impl FnMut(&dyn Learner, &mut Room, Batch<'_>, Key) -> Result<()>,
    ) -> Result<()> {
        let mut batches = Batches::new(self.samples.len(), self.solver, self.key);
        let mut step = 0;
        while let Some(places) = batches.next() {
            let key = self.key.fold(DROPOUT).fold(step);
            let batch = Batch { samples: self.samples, places };
            visit(self.learner, &mut self.room, batch, key)?;
            step += 1;
        }
        Ok(())
    }

    /// Every sample's loss under each of these models, one model after the other.
    pub fn losses_of_all(&mut self, models: &[&[f32]]) -> Vec<f32> {
        let mut losses = vec![0.0; models.len() * self.samples.len()];
        let batch = Batch::all(self.samples);
        self.learner.losses_of_all(models, batch, &mut self.room, &mut losses);
        losses
    }
}

/// Refuses a model that training has led astray.
pub(super) fn check_finite(w: &[f32]) -> Result<()> {
    if w.iter().all(|x| x.is_finite()) {
        return Ok(());
    }
    Err(Error::numerical("local training diverged: a parameter is not finite")
        .hint("take a smaller `step` in [method]"))
}

/// The minibatches of a local training, drawn as they are needed.
struct Batches {
    key: Key,
    order: Vec<u32>,
    size: usize,
    at: usize,
    epoch: u64,
    /// Passes or minibatches that are left.
    left: u32,
    by_epochs: bool,
    shuffles: bool,
}

impl Batches {
    fn new(samples: usize, solver: &Solver, key: Key) -> Self {
        let size = solver.batch.map_or(samples, |batch| batch as usize).clamp(1, samples.max(1));
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

    /// The places of the next minibatch: none of them for all samples.
    fn next(&mut self) -> Option<Option<&[u32]>> {
        let fresh = self.at >= self.order.len();
        if self.left == 0 && (fresh || !self.by_epochs) {
            return None;
        }
        if fresh {
            if self.shuffles {
                self.key.fold(SHUFFLE).fold(self.epoch).stream().shuffle(&mut self.order);
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
        let mut all = Batches::new(samples, &solver, Key::root(3));
        let mut found = Vec::new();
        while let Some(places) = all.next() {
            found.push(places.map_or((0..samples as u32).collect(), <[u32]>::to_vec));
        }
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

    #[test]
    fn rates_fall_at_milestones() {
        let rates = Rates { initial: 5.0, factor: 0.1, at: vec![100, 150] };
        assert_eq!([0, 99, 100, 149].map(|k| rates.at(k)), [5.0, 5.0, 0.5, 0.5]);
        assert!((rates.at(150) - 0.05).abs() < 1e-15);
    }
}
