//! A ULA step against the gradient it needs, a round of many clients on one thread and on all, and a step
//! on the toy model against a NumPy loop in the same run where the interpreter named in `WHIMBREL_NUMPY`
//! (default `python3`) can import NumPy. Measurements alternate; figures are medians, of processor time
//! but for the round.
//!
//! `cargo xtask bench sampler`

#[path = "../../whimbrel-nn/benches/support/mod.rs"]
mod support;

use std::time::Instant;
use support::{Peer, processor_seconds, summary};
use whimbrel_core::{Inputs, Key, Samples, Targets};
use whimbrel_models::prior::{Density, Prior, Shape};
use whimbrel_models::sampler::{ChainState, Kernel, Potential, Scratch};
use whimbrel_nn::{Batch, Learner, Room, Softmax};

const ROUNDS: usize = 9;

fn main() {
    head();
    round();
    toy();
}

/// A softmax head over 64 features and an intercept, 10 classes, on 500 samples: 650 parameters.
struct Head<'a> {
    learner: Softmax,
    samples: &'a Samples,
    prior: Density,
    room: Room,
    w: Vec<f32>,
    gradient: Vec<f32>,
    losses: Vec<f32>,
}

const FEATURES: usize = 64;
const CLASSES: usize = 10;
const IMAGES: usize = 500;

fn images() -> Samples {
    let mut stream = Key::root(1).stream();
    let inputs = (0..IMAGES * FEATURES).map(|_| stream.uniform() as f32).collect();
    let of = (0..IMAGES).map(|_| stream.below(CLASSES as u64) as u16).collect();
    let targets = Targets::Classes { of, count: CLASSES };
    Samples::new(vec![FEATURES], Inputs::Real(inputs), targets).expect("samples")
}

impl<'a> Head<'a> {
    fn new(samples: &'a Samples) -> Self {
        let learner = Softmax::new(FEATURES, CLASSES, true);
        let n = learner.parameters();
        let prior = Prior::new(n, Shape::Diagonal).expect("a prior");
        let beta = prior.start(1.0, Key::root(2)).expect("a start");
        Self {
            learner,
            samples,
            prior: prior.at(&beta).expect("a density"),
            room: Room::default(),
            w: vec![0.0; n],
            gradient: vec![0.0; n],
            losses: vec![0.0; IMAGES],
        }
    }
}

impl Potential for Head<'_> {
    fn len(&self) -> usize {
        self.w.len()
    }

    fn potential_and_gradient(&mut self, z: &[f64], gradient: &mut [f64]) -> f64 {
        self.w.iter_mut().zip(z).for_each(|(w, z)| *w = *z as f32);
        let (batch, key) = (Batch::all(self.samples), Key::root(0));
        let (own, losses) = (&mut self.gradient, &mut self.losses);
        self.learner.gradient(&self.w, batch, None, key, &mut self.room, own, losses);
        let count = self.samples.len() as f64;
        gradient.iter_mut().zip(own).for_each(|(g, own)| *g = count * f64::from(*own));
        let loss: f64 = losses.iter().map(|loss| f64::from(*loss)).sum();
        loss + self.prior.potential_and_gradient(z, gradient)
    }
}

fn head() {
    const STEPS: usize = 2000;
    let samples = images();
    let mut head = Head::new(&samples);
    let n = head.len();
    let (mut state, mut scratch) = (ChainState::at(vec![0.0; n]), Scratch::new(n));
    let mut gradient = vec![0.0; n];
    let (mut steps, mut gradients) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        let z = state.position.clone();
        gradients.push(nanoseconds(STEPS, || {
            std::hint::black_box(head.potential_and_gradient(&z, &mut gradient));
        }));
        let mut stream = Key::root(3).child(round as u64).stream();
        steps.push(nanoseconds(STEPS, || {
            let moved = Kernel::Ula.step(&mut state, &mut head, 1e-3, &mut stream, &mut scratch);
            moved.expect("a stable step");
        }));
    }
    let (step, gradient) = (summary(&mut steps).0, summary(&mut gradients).0);
    println!("softmax head, {n} parameters, 500 samples");
    println!("  gradient {:>9.2} us", 1e-3 * gradient);
    println!("  ULA step {:>9.2} us: {:.3} gradients", 1e-3 * step, step / gradient);
}

/// A round of 100 clients with 10 steps each, on one thread and on all of them, in elapsed time.
fn round() {
    const CLIENTS: usize = 100;
    const STEPS: usize = 10;
    let samples = images();
    let all = std::thread::available_parallelism().map_or(1, usize::from);
    let round = |threads: usize| {
        let client = |id: usize| {
            let mut head = Head::new(&samples);
            let n = head.len();
            let (mut state, mut scratch) = (ChainState::at(vec![0.0; n]), Scratch::new(n));
            let mut stream = Key::root(5).child(id as u64).stream();
            for _ in 0..STEPS {
                let moved =
                    Kernel::Ula.step(&mut state, &mut head, 1e-3, &mut stream, &mut scratch);
                moved.expect("a stable step");
            }
        };
        let start = Instant::now();
        std::thread::scope(|scope| {
            let client = &client;
            for first in 0..threads {
                scope.spawn(move || (first..CLIENTS).step_by(threads).for_each(client));
            }
        });
        1e3 * start.elapsed().as_secs_f64()
    };
    let mut times = [Vec::new(), Vec::new()];
    for _ in 0..ROUNDS {
        times[0].push(round(1));
        times[1].push(round(all));
    }
    let [one, many] = times.map(|mut times| summary(&mut times).0);
    println!("a round of {CLIENTS} such clients with {STEPS} steps each");
    println!("  1 thread {one:>9.2} ms, {all} threads {many:.2} ms: {:.2} times", one / many);
}

/// The toy model of one client: `y = z^T V^T x + noise`, two latent coordinates, 5 rows `V^T x`.
struct Toy {
    rows: [[f64; 2]; 5],
    y: [f64; 5],
    prior: Density,
}

impl Potential for Toy {
    fn len(&self) -> usize {
        2
    }

    fn potential_and_gradient(&mut self, z: &[f64], gradient: &mut [f64]) -> f64 {
        const WEIGHT: f64 = 1.0 / (0.1 * 0.1);
        gradient.fill(0.0);
        let mut value = self.prior.potential_and_gradient(z, gradient);
        for (row, y) in self.rows.iter().zip(self.y) {
            let residual = row[0] * z[0] + row[1] * z[1] - y;
            value += 0.5 * WEIGHT * residual * residual;
            gradient[0] += WEIGHT * residual * row[0];
            gradient[1] += WEIGHT * residual * row[1];
        }
        value
    }
}

fn toy() {
    const STEPS: usize = 1_000_000;
    const THEIR_STEPS: usize = 20_000;
    let mut stream = Key::root(4).stream();
    let prior = Prior::new(2, Shape::Diagonal).expect("a prior");
    let mut toy = Toy {
        rows: std::array::from_fn(|_| std::array::from_fn(|_| stream.normal())),
        y: std::array::from_fn(|_| stream.normal()),
        prior: prior.at(&[0.0; 4]).expect("a density"),
    };
    let (mut state, mut scratch) = (ChainState::at(vec![0.0; 2]), Scratch::new(2));
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/sampler_peer.py");
    let mut peer = Peer::start("WHIMBREL_NUMPY", script);
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        ours.push(nanoseconds(STEPS, || {
            let moved = Kernel::Ula.step(&mut state, &mut toy, 1e-4, &mut stream, &mut scratch);
            moved.expect("a stable step");
        }));
        theirs.extend(peer.as_mut().map(|peer| peer.ask(&THEIR_STEPS.to_string())));
    }
    let step = summary(&mut ours).0;
    println!("toy model, 2 latent coordinates, 5 rows");
    println!("  ULA step {:>9.3} us", 1e-3 * step);
    if let Some(peer) = peer {
        let theirs = summary(&mut theirs).0;
        let ratio = theirs / step;
        println!("  NumPy {} {:.3} us: {ratio:.0} times", peer.version, 1e-3 * theirs);
    }
}

/// Nanoseconds of processor time per call, or of elapsed time where the system does not tell.
fn nanoseconds(calls: usize, mut call: impl FnMut()) -> f64 {
    let (start, begin) = (Instant::now(), processor_seconds());
    (0..calls).for_each(|_| call());
    let seconds = match (begin, processor_seconds()) {
        (Some(begin), Some(end)) => end - begin,
        _ => start.elapsed().as_secs_f64(),
    };
    1e9 * seconds / calls as f64
}
