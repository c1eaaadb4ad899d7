//! Training steps (forward, backward, SGD) of the learners, and of PyTorch in the same run where the
//! interpreter named in `WHIMBREL_TORCH` (default `python3`) can import it. Measurements alternate, so
//! that what else the machine does meets both alike; figures are medians over the rounds. One thread is
//! measured in processor time, several in elapsed time.
//!
//! `cargo xtask bench nn [MODEL...]`

mod support;

use std::time::Instant;
use support::{Peer, processor_seconds, summary};

use whimbrel_core::{Inputs, Key, Samples, Targets};
use whimbrel_nn::{Batch, Learner, Network, Optimiser, OptimiserState, Room, Softmax};

const ROUNDS: usize = 7;

/// A model, a batch, and the steps of one measurement.
struct Case {
    name: &'static str,
    /// PyTorch's cases for it: its layouts.
    peers: &'static [&'static str],
    learner: Box<dyn Learner>,
    samples: Samples,
    batch: u32,
    steps: usize,
}

fn cases() -> Vec<Case> {
    let images = |shape: [usize; 3], batch| bytes(&shape, batch);
    vec![
        Case {
            name: "logistic",
            peers: &["logistic"],
            learner: Box::new(Softmax::new(784, 10, true)),
            samples: real(784, 128, 10),
            batch: 128,
            steps: 4000,
        },
        Case {
            name: "cnn",
            peers: &["cnn", "cnn-channels-last"],
            learner: Box::new(Network::cnn([1, 28, 28], 62)),
            samples: images([1, 28, 28], 128),
            batch: 128,
            steps: 5,
        },
        Case {
            name: "mobilenet-v2",
            peers: &["mobilenet-v2"],
            learner: Box::new(Network::mobilenet_v2([3, 32, 32], 10)),
            samples: images([3, 32, 32], 128),
            batch: 128,
            steps: 5,
        },
        Case {
            name: "lstm",
            peers: &["lstm"],
            learner: Box::new(Network::lstm(80, 80, 8, 256, 80)),
            samples: sequences(80, 80, 32),
            batch: 32,
            steps: 5,
        },
    ]
}

fn main() {
    let wanted: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with('-')).collect();
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/nn_peer.py");
    let mut peer = Peer::start("WHIMBREL_TORCH", script);
    if let Some(peer) = &peer {
        println!("PyTorch {}", peer.version);
    }
    println!("milliseconds per step, median of {ROUNDS} rounds (fastest in brackets)");
    for case in cases() {
        if !wanted.is_empty() && !wanted.iter().any(|name| case.name.contains(name.as_str())) {
            continue;
        }
        for threads in [1, 2] {
            compare(&case, threads, peer.as_mut());
        }
    }
}

fn compare(case: &Case, threads: usize, mut peer: Option<&mut Peer>) {
    let mut ours = Vec::new();
    let mut theirs = vec![Vec::new(); case.peers.len()];
    for round in 0..=ROUNDS {
        let own = steps_in_parallel(case, threads);
        let of_peers: Vec<f64> = match &mut peer {
            Some(peer) => {
                let ask = |name: &&str| peer.ask(&format!("{name} {threads} {}", case.steps));
                case.peers.iter().map(ask).collect()
            }
            None => Vec::new(),
        };
        // The first round only warms up.
        if round > 0 {
            ours.push(own);
            theirs.iter_mut().zip(of_peers).for_each(|(all, one)| all.push(one));
        }
    }
    let (median, fastest) = summary(&mut ours);
    let label = format!("{} {threads} thread(s)", case.name);
    println!("{label:28} {:>24} {median:9.3} ({fastest:.3})", "whimbrel");
    for (name, mut times) in case.peers.iter().zip(theirs).filter(|(_, times)| !times.is_empty()) {
        let (peer, least) = summary(&mut times);
        let ratio = peer / median;
        println!("{:28} {name:>24} {peer:9.3} ({least:.3})  ratio {ratio:.2}", "");
    }
}

/// Milliseconds per step, so many clients side by side, each on a thread of its own.
fn steps_in_parallel(case: &Case, threads: usize) -> f64 {
    let places: Vec<u32> = (0..case.batch).collect();
    let times: Vec<f64> = std::thread::scope(|scope| {
        let run = |_| scope.spawn(|| steps(case, &places, threads == 1));
        let running: Vec<_> = (0..threads).map(run).collect();
        running.into_iter().map(|client| client.join().expect("a client")).collect()
    });
    times.iter().sum::<f64>() / (threads * threads) as f64
}

fn steps(case: &Case, places: &[u32], alone: bool) -> f64 {
    let (learner, batch) = (&*case.learner, Batch::at(&case.samples, places));
    let (mut room, mut state) = (Room::default(), OptimiserState::default());
    let mut w = learner.start(Key::root(1));
    let (mut gradient, mut losses) = (vec![0.0; w.len()], vec![0.0; places.len()]);
    let mut step = |i: usize| {
        let key = Key::root(2).child(i as u64);
        learner.gradient(&w, batch, None, key, &mut room, &mut gradient, &mut losses);
        let tensors = learner.tensors();
        Optimiser::PLAIN.step(&mut state, 0.01, None, tensors, &gradient, &mut w);
    };
    // The first step finds its memory untouched.
    step(0);
    let start = Instant::now();
    let clock = || match processor_seconds() {
        Some(seconds) if alone => seconds,
        _ => start.elapsed().as_secs_f64(),
    };
    let begin = clock();
    (1..=case.steps).for_each(&mut step);
    1e3 * (clock() - begin) / case.steps as f64
}

fn classes(batch: usize, count: usize) -> Targets {
    let mut stream = Key::root(5).stream();
    Targets::Classes { of: (0..batch).map(|_| stream.below(count as u64) as u16).collect(), count }
}

fn real(width: usize, batch: usize, count: usize) -> Samples {
    let mut stream = Key::root(4).stream();
    let values = (0..batch * width).map(|_| stream.uniform() as f32).collect();
    Samples::new(vec![width], Inputs::Real(values), classes(batch, count)).expect("samples")
}

fn bytes(shape: &[usize], batch: usize) -> Samples {
    let mut stream = Key::root(4).stream();
    let width: usize = shape.iter().product();
    let values = (0..batch * width).map(|_| stream.below(256) as u8).collect();
    Samples::new(shape.to_vec(), Inputs::Bytes(values), classes(batch, 10)).expect("samples")
}

fn sequences(steps: usize, symbols: u64, batch: usize) -> Samples {
    let mut stream = Key::root(4).stream();
    let values = (0..batch * steps).map(|_| stream.below(symbols) as u16).collect();
    Samples::new(vec![steps], Inputs::Symbols(values), classes(batch, 80)).expect("samples")
}
