//! A learner of one's own: Poisson regression of counts, `y ~ Poisson(e^{<w, x> + b})`, trained by SGD.
//!
//! `cargo run -p whimbrel-nn --example own_learner`

use whimbrel_core::{Error, Inputs, Key, Result, Samples, Targets};
use whimbrel_nn::{Batch, Learner, Optimiser, OptimiserState, Role, Room, Tensor};

struct Poisson {
    tensors: Vec<Tensor>,
}

impl Poisson {
    fn new(features: usize) -> Self {
        Self { tensors: vec![Tensor::new("weight", &[features + 1], Role::Head)] }
    }

    /// Calls `each` with the number, inputs, log-rate and count of every sample.
    fn each(&self, w: &[f32], batch: Batch<'_>, mut each: impl FnMut(usize, &[f32], f32, f32)) {
        let Inputs::Real(values) = &batch.samples.inputs else { return };
        let Targets::Values(counts) = &batch.samples.targets else { return };
        let (intercept, w) = w.split_last().expect("an intercept");
        for (j, place) in (0..batch.len()).map(|j| (j, batch.place(j))) {
            let x = &values[place * w.len()..][..w.len()];
            let log_rate = x.iter().zip(w).fold(*intercept, |sum, (x, w)| sum + x * w);
            each(j, x, log_rate, counts[place]);
        }
    }
}

impl Learner for Poisson {
    fn name(&self) -> &'static str {
        "poisson"
    }
    fn tensors(&self) -> &[Tensor] {
        &self.tensors
    }
    fn outputs(&self) -> usize {
        1
    }
    fn classifies(&self) -> bool {
        false
    }
    fn check(&self, samples: &Samples) -> Result<()> {
        match (&samples.inputs, &samples.targets) {
            (Inputs::Real(_), Targets::Values(y)) if y.iter().all(|y| *y >= 0.0) => Ok(()),
            _ => Err(Error::data("`poisson` takes real features and non-negative counts")),
        }
    }
    fn start(&self, _key: Key) -> Vec<f32> {
        vec![0.0; self.parameters()]
    }
    fn losses(&self, w: &[f32], batch: Batch<'_>, _room: &mut Room, losses: &mut [f32]) {
        self.each(w, batch, |j, _, log_rate, y| losses[j] = log_rate.exp() - y * log_rate);
    }
    fn gradient(
        &self,
        w: &[f32],
        batch: Batch<'_>,
        weights: Option<&[f32]>,
        _key: Key,
        _room: &mut Room,
        gradient: &mut [f32],
        losses: &mut [f32],
    ) {
        gradient.fill(0.0);
        let share = 1.0 / batch.len().max(1) as f32;
        self.each(w, batch, |j, x, log_rate, y| {
            losses[j] = log_rate.exp() - y * log_rate;
            let error = share * weights.map_or(1.0, |q| q[j]) * (log_rate.exp() - y);
            let inputs = x.iter().chain([&1.0]);
            gradient.iter_mut().zip(inputs).for_each(|(g, x)| *g += error * x);
        });
    }
    fn predict(&self, w: &[f32], batch: Batch<'_>, _room: &mut Room, predictions: &mut [f32]) {
        self.each(w, batch, |j, _, log_rate, _| predictions[j] = log_rate.exp());
    }
}

fn main() -> Result<()> {
    // Counts with log-rate x1 - x2 / 2 + 1, drawn by counting uniform products down to e^-rate.
    let (n, mut stream) = (2000, Key::root(1).stream());
    let x: Vec<f32> = (0..2 * n).map(|_| stream.uniform() as f32).collect();
    let mut count = |rate: f32| {
        let (mut product, mut count) = (stream.uniform_open() as f32, 0.0);
        while product > (-rate).exp() {
            product *= stream.uniform_open() as f32;
            count += 1.0;
        }
        count
    };
    let y = x.chunks_exact(2).map(|x| count((x[0] - 0.5 * x[1] + 1.0).exp())).collect();
    let samples = Samples::new(vec![2], Inputs::Real(x), Targets::Values(y))?;

    let learner = Poisson::new(2);
    learner.check(&samples)?;
    let (mut w, mut room) = (learner.start(Key::root(2)), Room::default());
    let (mut gradient, mut losses) = (vec![0.0; w.len()], vec![0.0; 100]);
    let (optimiser, mut state) = (Optimiser::PLAIN, OptimiserState::default());
    let mut order: Vec<u32> = (0..n as u32).collect();
    for epoch in 0..20 {
        Key::root(3).child(epoch).stream().shuffle(&mut order);
        for places in order.chunks_exact(100) {
            let (batch, key) = (Batch::at(&samples, places), Key::root(4));
            learner.gradient(&w, batch, None, key, &mut room, &mut gradient, &mut losses);
            optimiser.step(&mut state, 0.2, None, learner.tensors(), &gradient, &mut w);
        }
    }
    println!(
        "weights {:.2} {:.2}, intercept {:.2} (drawn with 1.00 -0.50, 1.00)",
        w[0], w[1], w[2]
    );
    Ok(())
}
