//! Local training without a server: the same bits in every run, the laws of mixing, and reductions.

use crate::personal::{FEDAVG, Setup, clients, mix};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use whimbrel_core::decentralised::Decentralised;
use whimbrel_core::method::{Artifact, Metric, MetricValue};
use whimbrel_core::vector::largest;
use whimbrel_core::{ClientData, Key, Result, Wire};
use whimbrel_engine::keys::StageKeys;
use whimbrel_engine::runner::{Done, Runner, Start, Step};
use whimbrel_engine::{
    Federation, Graphs, Limits, Neighbours, Observer, Outcome, Participation, Stage, StageMethod,
    Topology, Weighting,
};
use whimbrel_methods::personal::{DecentralisedPersonal, PFedMe, Rates, Scaling};
use whimbrel_methods::settings::Weights;
use whimbrel_testkit::neighbours::neighbours_agree;
use whimbrel_testkit::pairs;

const ROUNDS: u32 = 6;
const CLIENTS: u32 = 8;

fn decentralised(setup: &Setup, scaling: Scaling) -> Arc<dyn Decentralised> {
    let (oracle, weights) = (setup.method().oracle, Weights::Samples);
    Arc::new(DecentralisedPersonal { oracle, weights, scaling, rounds: ROUNDS })
}

fn fixed(topology: &Topology, clients: usize) -> Graphs {
    let (clients, key) = (clients as u32, Key::root(2));
    Graphs::fixed(topology, Weighting::Metropolis, clients, key).unwrap()
}

/// A run of `k` rounds, with the keys of the star-shaped one.
fn after(
    method: &Arc<dyn Decentralised>,
    graphs: &Graphs,
    data: &[ClientData],
    k: u32,
) -> Neighbours {
    let bound = data.iter().map(|data| method.bind(data).unwrap()).collect();
    let names = (0..data.len()).map(|i| format!("c{i:02}")).collect();
    let federation = Arc::new(Federation::new(names, bound));
    let keys = StageKeys::new(7, 0);
    let start = Start { index: 0, last: true, keys, delivered: &[], saved: None };
    let mut runner = Neighbours::open(method.clone(), graphs.clone(), federation, &start).unwrap();
    for _ in 0..k {
        assert!(matches!(runner.step().unwrap(), Step::Exchanged(_)));
    }
    runner
}

/// The mean of the copies after `k` rounds.
fn run(method: &Arc<dyn Decentralised>, graphs: &Graphs, data: &[ClientData], k: u32) -> Vec<f32> {
    after(method, graphs, data, k).state().machine.artifact().unwrap().narrow[0].values.clone()
}

fn number(metrics: &[Metric], key: &str) -> f64 {
    match metrics.iter().find(|metric| metric.name == key).map(|metric| &metric.value) {
        Some(MetricValue::Number(value)) => *value,
        other => panic!("{key}: {other:?}"),
    }
}

fn apart(a: &[f32], b: &[f32]) -> f32 {
    largest(pairs(a, b).map(|(a, b)| f64::from((a - b).abs()))) as f32
}

#[test]
fn the_same_bits_however_it_is_run() {
    let data = clients(true);
    let training = data.len() - 1;
    let random = Topology::ErdosRenyi { p: 0.4 };
    let redrawn = Graphs::redrawn(random.clone(), Weighting::Metropolis, training as u32).unwrap();
    let pfedme = PFedMe { lambda: 2.0, inner_steps: 3, inner_rate: None };
    let batch = Some(4);
    for (name, setup) in [
        ("d-fedmix", Setup::with_everyone(mix(3), ROUNDS, batch)),
        ("d-fedavg", Setup::with_everyone(FEDAVG, ROUNDS, batch)),
        ("d-pfedme", Setup::with_everyone(pfedme, ROUNDS, batch)),
    ] {
        let method = decentralised(&setup, Scaling::Samples);
        let ring = neighbours_agree(name, &method, &fixed(&Topology::Ring, training), &data);
        let complete =
            neighbours_agree(name, &method, &fixed(&Topology::Complete, training), &data);
        neighbours_agree(name, &method, &redrawn, &data);
        let spread = |metrics| number(metrics, "disagreement");
        assert!(spread(&ring) > 1e-3, "{name}: {}", spread(&ring));
        // On the complete graph everyone computes the same mean, up to the order of its terms.
        assert!(spread(&complete) < 1e-10, "{name}: {}", spread(&complete));
        assert!(number(&ring, "spectral_gap") < number(&complete, "spectral_gap"));
        // An epoch each round.
        assert!((number(&ring, "epoch") - f64::from(ROUNDS)).abs() < 1e-12 || name == "d-pfedme");
    }
}

/// Clients have 5 to 40 samples. Both round numbers of size one to `f32`, at different steps: some ten
/// roundings of 6e-8 in each of six rounds, which local training enlarges a few times.
#[test]
fn on_the_complete_graph_it_is_the_star_shaped_method() {
    const ROUNDING: f32 = 2e-5;
    let data = clients(true);
    let complete = fixed(&Topology::Complete, data.len());
    let check = |name: &str, rule: &dyn Fn() -> Setup| {
        let setup = rule();
        let star = setup.run(&data, Participation::Everyone);
        let mean = run(&decentralised(&setup, Scaling::Samples), &complete, &data, ROUNDS);
        let moved = star.iter().map(|x| x.abs()).fold(0.0, f32::max);
        assert!(apart(&star, &mean) <= ROUNDING * moved.max(1.0), "{name}");
        let ring = fixed(&Topology::Ring, data.len());
        let other = run(&decentralised(&setup, Scaling::Samples), &ring, &data, ROUNDS);
        assert!(apart(&star, &other) > 10.0 * ROUNDING, "{name}: a ring must differ");
    };
    check("fedmix", &|| Setup::with_everyone(mix(3), ROUNDS, Some(4)));
    check("fedavg", &|| Setup::with_everyone(FEDAVG, ROUNDS, Some(4)));
}

/// With one local step the printed scaling moves the mean by `1/T` of the star-shaped step.
#[test]
fn the_printed_scaling_moves_the_mean_by_one_part_in_t() {
    let data = clients(true);
    let setup = Setup::with_everyone(FEDAVG, 1, None);
    let complete = fixed(&Topology::Complete, data.len());
    let start = run(&decentralised(&setup, Scaling::Paper), &complete, &data, 0);
    let printed = run(&decentralised(&setup, Scaling::Paper), &complete, &data, 1);
    let star = setup.run(&data, Participation::Everyone);
    for ((start, printed), star) in pairs(pairs(&start, &printed), &star) {
        let expected = (star - start) / data.len() as f32;
        // Three roundings of numbers of size one.
        assert!((printed - start - expected).abs() < 1e-6, "{printed} {start} {expected}");
    }
}

#[test]
fn clients_keep_their_copy_and_their_weights() {
    let data = clients(true);
    let setup = Setup::with_everyone(mix(2), ROUNDS, None);
    let method = decentralised(&setup, Scaling::Samples);
    let sent: Vec<String> = method.declare().disclosures.into_iter().map(|d| d.meaning).collect();
    assert!(sent.iter().any(|meaning| meaning.contains("not its personal state")), "{sent:?}");
    let runner = after(&method, &fixed(&Topology::Ring, data.len()), &data, ROUNDS);
    let (mut copies, mut weights) = (Vec::new(), 0);
    let keep = &mut |_, artifact: Artifact| {
        weights += artifact.tensor("weights").map_or(0, |tensor| tensor.values.len());
        copies.push(artifact.narrow[0].values.clone());
        Ok(())
    };
    runner.client_artifacts(keep).unwrap();
    assert_eq!((copies.len(), weights), (data.len(), 2 * data.len()));
    // The delivered model is their mean.
    let mean = &runner.state().machine.artifact().unwrap().narrow[0].values;
    for (at, mean) in mean.iter().enumerate() {
        let sum: f64 = copies.iter().map(|copy| f64::from(copy[at])).sum();
        assert_eq!((sum / copies.len() as f64) as f32, *mean);
    }
    assert_ne!(copies[0], copies[1], "a ring is far from consensus");
}

/// After the first round the step is zero and copies are only mixed (Xiao and Boyd, *Fast linear
/// iterations for distributed averaging*, 2004, eq. 2): their mean stays, and a round takes the spectral
/// gap off their distance to it.
#[test]
fn mixing_keeps_the_mean_and_takes_the_gap_off_the_disagreement() {
    let data = clients(true);
    let mut oracle = Setup::with_everyone(FEDAVG, ROUNDS, None).method().oracle;
    oracle.rates = Rates { initial: 0.5, factor: 0.0, at: vec![1] };
    let (weights, scaling) = (Weights::Samples, Scaling::Samples);
    let method: Arc<dyn Decentralised> =
        Arc::new(DecentralisedPersonal { oracle, weights, scaling, rounds: ROUNDS });
    let ring = fixed(&Topology::Ring, data.len());
    let mut runner = after(&method, &ring, &data, 1);
    let first = runner.state().machine.artifact().unwrap().narrow[0].values.clone();
    let mut disagreement = || {
        let metrics = runner.evaluate().unwrap().unwrap().metrics;
        let now = runner.state().machine.artifact().unwrap().narrow[0].values.clone();
        // A rounding of numbers of size one in each round.
        assert!(apart(&first, &now) < 1e-6, "{first:?} {now:?}");
        runner.step().unwrap();
        (number(&metrics, "disagreement"), number(&metrics, "spectral_gap"))
    };
    let (mut before, gap) = disagreement();
    for _ in 1..ROUNDS {
        let (now, _) = disagreement();
        assert!(now <= before * (1.0 - gap).powi(2) + 1e-12, "{now} {before} {gap}");
        before = now;
    }
}

/// Panics after so many rounds of this process.
struct Mortal(u32);

impl Observer for Mortal {
    fn exchange(&mut self, _: &Done) {
        assert!(self.0 > 0, "killed");
        self.0 -= 1;
    }
}

/// A run through the engine's loop, with folder, journal and resume.
fn engine_run(graphs: &Graphs, folder: Option<&Path>, resume: bool, life: u32) -> Result<Outcome> {
    let interrupt = &AtomicBool::new(false);
    let limits = Limits { folder, resume, checkpoint_every: Duration::ZERO, interrupt };
    let named = clients(true).into_iter().enumerate().map(|(i, data)| (format!("c{i}"), data));
    let method = decentralised(&Setup::with_everyone(FEDAVG, ROUNDS, None), Scaling::Samples);
    let stage = Stage::new("d-fedavg", StageMethod::Neighbours(method, graphs.clone()));
    let chain = vec![Stage { evaluate_every: Some(1), ..stage }];
    whimbrel_engine::run(&chain, named.collect::<Vec<_>>(), 5, &limits, &mut Mortal(life))
}

#[test]
fn a_run_that_is_killed_after_any_round_ends_in_the_same_bits() {
    let random = Topology::ErdosRenyi { p: 0.3 };
    let redrawn = Graphs::redrawn(random, Weighting::MaximumDegree, CLIENTS).unwrap();
    for graphs in [&fixed(&Topology::Ring, CLIENTS as usize), &redrawn] {
        let whole = tempfile::tempdir().unwrap();
        let calm = engine_run(graphs, Some(whole.path()), false, u32::MAX).unwrap();
        let read = |folder: &Path, name: &str| std::fs::read(folder.join(name)).unwrap();
        for life in 0..ROUNDS {
            let folder = tempfile::tempdir().unwrap();
            let path = Some(folder.path());
            let killed = catch_unwind(AssertUnwindSafe(|| engine_run(graphs, path, false, life)));
            assert!(killed.is_err(), "it lives beyond {life} rounds");
            let outcome = engine_run(graphs, path, true, u32::MAX).unwrap();
            assert!(outcome.ending.is_over(), "{:?}", outcome.ending);
            assert_eq!(outcome.delivered[0].to_bytes(), calm.delivered[0].to_bytes(), "{life}");
            assert_eq!((outcome.tallies, outcome.traffic), (calm.tallies.clone(), calm.traffic));
            for name in ["checkpoint/state", "journal"] {
                assert!(read(folder.path(), name) == read(whole.path(), name), "{name}, {life}");
            }
        }
    }
}

/// A message is counted once for every neighbour, a summary once for every other client.
#[test]
fn messages_are_counted_for_every_neighbour() {
    for (topology, degree) in [(Topology::Ring, 2), (Topology::Complete, u64::from(CLIENTS) - 1)] {
        let graphs = fixed(&topology, CLIENTS as usize);
        let outcome = engine_run(&graphs, None, false, u32::MAX).unwrap();
        let method = decentralised(&Setup::with_everyone(FEDAVG, ROUNDS, None), Scaling::Samples);
        let start = after(&method, &graphs, &clients(true), 0);
        // Seven parameters of four bytes and their number.
        let sent = (4 * 7 + 1) * degree * u64::from(ROUNDS);
        for (all, first) in pairs(&outcome.tallies, &start.state().tallies) {
            let rounds = (all.bytes_up - first.bytes_up, all.bytes_down - first.bytes_down);
            assert_eq!(rounds, (sent, sent), "{topology:?}");
        }
        assert_eq!((outcome.rounds, outcome.traffic.down), (ROUNDS, 0));
    }
}

#[test]
fn a_graph_over_other_clients_is_refused() {
    let error = engine_run(&fixed(&Topology::Ring, 9), None, false, 9).err().unwrap();
    assert_eq!(error.to_string(), "a graph over 9 clients for 8");
}
