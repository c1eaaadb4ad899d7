//! A learner that takes the local trainings of several clients at once.

use crate::personal::{FEDAVG, Setup, clients, mix};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use whimbrel_core::{Key, Result, Samples};
use whimbrel_engine::Participation;
use whimbrel_methods::personal::{Ditto, LocalRule, PFedMe};
use whimbrel_nn::{Batch, Learner, Logistic, Room, Tensor, Training};

/// Logistic regression that trains the clients of a group in reverse.
struct Grouped {
    inner: Logistic,
    largest: AtomicUsize,
}

impl Learner for Grouped {
    fn name(&self) -> &'static str {
        self.inner.name()
    }
    fn tensors(&self) -> &[Tensor] {
        self.inner.tensors()
    }
    fn outputs(&self) -> usize {
        self.inner.outputs()
    }
    fn classifies(&self) -> bool {
        self.inner.classifies()
    }
    fn check(&self, samples: &Samples) -> Result<()> {
        self.inner.check(samples)
    }
    fn start(&self, key: Key) -> Vec<f32> {
        self.inner.start(key)
    }
    fn losses(&self, w: &[f32], batch: Batch<'_>, room: &mut Room, losses: &mut [f32]) {
        self.inner.losses(w, batch, room, losses);
    }
    fn gradient(
        &self,
        w: &[f32],
        batch: Batch<'_>,
        weights: Option<&[f32]>,
        key: Key,
        room: &mut Room,
        gradient: &mut [f32],
        losses: &mut [f32],
    ) {
        self.inner.gradient(w, batch, weights, key, room, gradient, losses);
    }
    fn predict(&self, w: &[f32], batch: Batch<'_>, room: &mut Room, predictions: &mut [f32]) {
        self.inner.predict(w, batch, room, predictions);
    }
    fn local_steps(&self, all: &mut [Training<'_>], room: &mut Room) -> Result<()> {
        self.largest.fetch_max(all.len(), Ordering::Relaxed);
        all.iter_mut().rev().try_for_each(|training| training.run(&self.inner, room))
    }
    fn clients_at_once(&self) -> usize {
        3
    }
}

#[test]
fn clients_that_train_together_get_the_bits_of_clients_alone() {
    fn check(rule: impl LocalRule + Clone) {
        let data = clients(true);
        let learner =
            Arc::new(Grouped { inner: Logistic::new(6, true), largest: AtomicUsize::new(0) });
        let alone = Setup::with_everyone(rule.clone(), 4, Some(4));
        let mut grouped = Setup::with_everyone(rule, 4, Some(4));
        grouped.learner = learner.clone();
        let [alone, grouped] =
            [alone, grouped].map(|setup| setup.run(&data, Participation::Everyone));
        assert_eq!(alone, grouped);
        // Eight clients: groups of three on any number of threads.
        assert_eq!(learner.largest.load(Ordering::Relaxed), 3);
    }
    check(FEDAVG);
    check(mix(3));
    check(Ditto { lambda: 0.5 });
    check(PFedMe { lambda: 2.0, inner_steps: 2, inner_rate: None });
}
