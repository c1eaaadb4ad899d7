//! Local training: gradient descent on a client's samples.

use super::{Round, Shape, ToTrain};
use whimbrel_core::{Error, Key, Result, Samples};
use whimbrel_nn::{Batch, Learner, Room, Solver, Trainee, Training};

/// The local step of every round.
#[derive(Clone, Debug, PartialEq)]
pub struct Rates {
    pub initial: f64,
    /// The factor of the step at each round of `at`.
    pub factor: f64,
    pub at: Vec<u32>,
}

impl Rates {
    pub fn constant(rate: f64) -> Self {
        Self { initial: rate, factor: 1.0, at: Vec::new() }
    }

    /// The step of round `k`, from 0.
    pub fn at(&self, k: u32) -> f64 {
        self.after(self.at.iter().filter(|round| k >= **round).count())
    }

    fn after(&self, falls: usize) -> f64 {
        (0..falls).fold(self.initial, |rate, _| rate * self.factor)
    }

    /// Refuses a step of no round.
    pub fn check(&self, rate: f64) -> Result<()> {
        if (0..=self.at.len()).any(|falls| self.after(falls) == rate) {
            return Ok(());
        }
        Err(Error::peer(format!("a local step of {rate}, which the job does not have")))
    }
}

/// One client's training in one round.
pub struct Work<'a> {
    pub learner: &'a dyn Learner,
    pub solver: &'a Solver,
    pub samples: &'a Samples,
    /// The step.
    pub rate: f64,
    key: Key,
    room: Room,
}

impl<'a> Work<'a> {
    pub fn new(
        learner: &'a dyn Learner,
        solver: &'a Solver,
        samples: &'a Samples,
        rate: f64,
        key: Key,
    ) -> Self {
        Self { learner, solver, samples, rate, key, room: Room::default() }
    }

    pub fn shape(&self) -> Shape<'a> {
        Shape::new(self.learner)
    }

    /// The number of local steps.
    pub fn steps(&self) -> u32 {
        self.solver.steps(self.samples.len())
    }

    /// The local training of these models.
    pub fn training<'b>(&self, models: Vec<Trainee<'b>>) -> Training<'b>
    where
        'a: 'b,
    {
        let Self { solver, samples, rate, key, .. } = *self;
        Training { samples, solver, rate, key, models }
    }

    /// Trains the models of a round; `centre` is the received model.
    pub fn train_all(&mut self, round: &mut Round, centre: &[f32]) -> Result<()> {
        let mut training = self.training(round.trainees(centre));
        self.learner.local_steps(std::slice::from_mut(&mut training), &mut self.room)?;
        round.check()
    }

    /// Trains one model.
    pub fn train(&mut self, model: ToTrain, centre: &[f32]) -> Result<Vec<f32>> {
        let mut round = Round::of(model);
        self.train_all(&mut round, centre)?;
        Ok(round.models.remove(0).w)
    }

    /// The gradient of the client's mean loss over all of its samples.
    pub fn full_gradient(&mut self, w: &[f32], gradient: &mut [f32]) {
        let mut losses = vec![0.0; self.samples.len()];
        let key = self.training(Vec::new()).dropout_key(0);
        let batch = Batch::all(self.samples);
        self.learner.gradient(w, batch, None, key, &mut self.room, gradient, &mut losses);
    }

    /// Calls `visit` for every minibatch of a training, with its dropout key.
    pub fn each_batch(
        &mut self,
        mut visit: impl FnMut(&dyn Learner, &mut Room, Batch<'_>, Key) -> Result<()>,
    ) -> Result<()> {
        let training = self.training(Vec::new());
        let mut minibatches = training.minibatches();
        let mut step = 0;
        while let Some(places) = minibatches.next() {
            let batch = Batch { samples: self.samples, places };
            visit(self.learner, &mut self.room, batch, training.dropout_key(step))?;
            step += 1;
        }
        Ok(())
    }

    /// The losses of all samples under each model, model after model.
    pub fn losses_of_all(&mut self, models: &[&[f32]]) -> Vec<f32> {
        let mut losses = vec![0.0; models.len() * self.samples.len()];
        let batch = Batch::all(self.samples);
        self.learner.losses_of_all(models, batch, &mut self.room, &mut losses);
        losses
    }
}

/// Refuses a model with non-finite parameters.
pub(super) fn check_finite(w: &[f32]) -> Result<()> {
    if w.iter().all(|x| x.is_finite()) {
        return Ok(());
    }
    Err(Error::numerical("local training diverged: a parameter is not finite")
        .hint("take a smaller `step` in [method]"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_fall_at_milestones() {
        let rates = Rates { initial: 5.0, factor: 0.1, at: vec![100, 150] };
        assert_eq!([0, 99, 100, 149].map(|k| rates.at(k)), [5.0, 5.0, 0.5, 0.5]);
        assert!((rates.at(150) - 0.05).abs() < 1e-15);
        assert!((0..200).all(|k| rates.check(rates.at(k)).is_ok()));
        assert!([0.005, 4.999, -5.0, f64::NAN].iter().all(|rate| rates.check(*rate).is_err()));
    }
}
