//! A ULA step against the gradient it needs, and against a NumPy loop in the same run where the
//! interpreter named in `WHIMBREL_NUMPY` (default `python3`) can import NumPy. Measurements alternate;
//! figures are medians of processor time.
//!
//! `cargo xtask bench sampler`

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Instant;

use whimbrel_core::{Inputs, Key, Samples, Targets};
use whimbrel_models::prior::{Density, Prior, Shape};
use whimbrel_models::sampler::{ChainState, Kernel, Potential, Scratch};
use whimbrel_nn::{Batch, Learner, Room, Softmax};

const ROUNDS: usize = 9;

fn main() {
    head();
    toy();
}

/// A softmax head over 64 features and an intercept, 10 classes, on 500 samples: 650 parameters.
struct Head {
    learner: Softmax,
    samples: Samples,
    prior: Density,
    room: Room,
    w: Vec<f32>,
    gradient: Vec<f32>,
    losses: Vec<f32>,
}

impl Head {
    fn new() -> Self {
        let (features, classes, count) = (64, 10, 500);
        let mut stream = Key::root(1).stream();
        let inputs = (0..count * features).map(|_| stream.uniform() as f32).collect();
        let of = (0..count).map(|_| stream.below(classes as u64) as u16).collect();
        let targets = Targets::Classes { of, count: classes };
        let learner = Softmax::new(features, classes, true);
        let n = learner.parameters();
        let prior = Prior::new(n, Shape::Diagonal).expect("a prior");
        let beta = prior.start(1.0, Key::root(2)).expect("a start");
        Self {
            learner,
            samples: Samples::new(vec![features], Inputs::Real(inputs), targets).expect("samples"),
            prior: prior.at(&beta).expect("a density"),
            room: Room::default(),
            w: vec![0.0; n],
            gradient: vec![0.0; n],
            losses: vec![0.0; count],
        }
    }
}

impl Potential for Head {
    fn len(&self) -> usize {
        self.w.len()
    }

    fn potential_and_gradient(&mut self, z: &[f64], gradient: &mut [f64]) -> f64 {
        self.w.iter_mut().zip(z).for_each(|(w, z)| *w = *z as f32);
        let (batch, key) = (Batch::all(&self.samples), Key::root(0));
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
    let mut head = Head::new();
    let n = head.len();
    let (mut state, mut scratch) = (ChainState::at(vec![0.0; n]), Scratch::new(n));
    let mut gradient = vec![0.0; n];
    let (mut steps, mut gradients) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        let z = state.position.clone();
        gradients.push(nanoseconds(STEPS, || {
            std::hint::black_box(head.potential_and_gradient(&z, &mut gradient));
        }));
        let mut stream = Key::root(3).fold(round as u64).stream();
        steps.push(nanoseconds(STEPS, || {
            let moved = Kernel::Ula.step(&mut state, &mut head, 1e-3, &mut stream, &mut scratch);
            moved.expect("a stable step");
        }));
    }
    let (step, gradient) = (median(&mut steps), median(&mut gradients));
    println!("softmax head, {n} parameters, 500 samples");
    println!("  gradient {:>9.2} us", 1e-3 * gradient);
    println!("  ULA step {:>9.2} us: {:.3} gradients", 1e-3 * step, step / gradient);
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
    let mut peer = Peer::start();
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        ours.push(nanoseconds(STEPS, || {
            let moved = Kernel::Ula.step(&mut state, &mut toy, 1e-4, &mut stream, &mut scratch);
            moved.expect("a stable step");
        }));
        theirs.extend(peer.as_mut().map(|peer| peer.step(THEIR_STEPS)));
    }
    let step = median(&mut ours);
    println!("toy model, 2 latent coordinates, 5 rows");
    println!("  ULA step {:>9.3} us", 1e-3 * step);
    if let Some(peer) = peer {
        let theirs = median(&mut theirs);
        let ratio = theirs / step;
        println!("  NumPy {} {:.3} us: {ratio:.0} times", peer.version, 1e-3 * theirs);
    }
}

/// Nanoseconds of processor time per call, or of elapsed time where the system does not tell.
fn nanoseconds(calls: usize, mut call: impl FnMut()) -> f64 {
    let processor = || {
        let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
        text.split(' ').next()?.parse::<f64>().ok()
    };
    let (start, begin) = (Instant::now(), processor());
    (0..calls).for_each(|_| call());
    let spent = match (begin, processor()) {
        (Some(begin), Some(end)) => end - begin,
        _ => 1e9 * start.elapsed().as_secs_f64(),
    };
    spent / calls as f64
}

fn median(times: &mut [f64]) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

/// The process that measures NumPy.
struct Peer {
    version: String,
    _child: Child,
    questions: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Peer {
    fn start() -> Option<Self> {
        let python = std::env::var("WHIMBREL_NUMPY").unwrap_or_else(|_| "python3".to_owned());
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/sampler_peer.py");
        let mut child = Command::new(python)
            .arg(script)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .ok()?;
        let questions = child.stdin.take()?;
        let mut answers = BufReader::new(child.stdout.take()?);
        let mut version = String::new();
        answers.read_line(&mut version).ok().filter(|n| *n > 0)?;
        let version = version.trim().to_owned();
        Some(Self { version, _child: child, questions, answers })
    }

    fn step(&mut self, steps: usize) -> f64 {
        writeln!(self.questions, "{steps}").expect("the peer listens");
        let mut answer = String::new();
        self.answers.read_line(&mut answer).expect("the peer answers");
        answer.trim().parse().expect("a number")
    }
}
