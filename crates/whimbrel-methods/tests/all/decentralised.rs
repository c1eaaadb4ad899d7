//! Local training without a server: the same bits however it is run, and what it reduces to.

use crate::personal::{FEDAVG, Setup, clients, mix};
use std::sync::Arc;
use whimbrel_core::decentralised::DynDecentralised;
use whimbrel_core::method::{Metric, MetricValue};
use whimbrel_core::{ClientData, Key};
use whimbrel_engine::keys::StageKeys;
use whimbrel_engine::runner::{Runner, Start, Step};
use whimbrel_engine::{Federation, Graphs, Neighbours, Participation, Topology, Weighting};
use whimbrel_methods::personal::{DecentralisedPersonal, PFedMe, Scaling};
use whimbrel_methods::settings::Weights;
use whimbrel_testkit::neighbours::neighbours_agree;

const ROUNDS: u32 = 6;

fn decentralised(setup: &Setup, scaling: Scaling) -> Arc<dyn DynDecentralised> {
    let (oracle, weights) = (setup.method().oracle, Weights::Samples);
    Arc::new(DecentralisedPersonal { oracle, weights, scaling, rounds: ROUNDS })
}

fn fixed(topology: &Topology, clients: usize) -> Graphs {
    let (clients, key) = (clients as u32, Key::root(2));
    Graphs::fixed(topology, Weighting::Metropolis, clients, key).unwrap()
}

/// The mean of what clients share after so many rounds.
fn run(
    method: &Arc<dyn DynDecentralised>,
    graphs: &Graphs,
    data: &[ClientData],
    k: u32,
) -> Vec<f32> {
    let bound = data.iter().map(|data| method.bind(data).unwrap()).collect();
    let names = (0..data.len()).map(|i| format!("c{i:02}")).collect();
    let federation = Arc::new(Federation::new(names, bound));
    // The keys of the star-shaped run.
    let keys = StageKeys::new(7, 0);
    let start = Start { index: 0, last: true, keys, delivered: &[], saved: None };
    let mut runner = Neighbours::open(method.clone(), graphs.clone(), federation, &start).unwrap();
    for _ in 0..k {
        assert!(matches!(runner.step().unwrap(), Step::Exchanged(_)));
    }
    runner.artifact().unwrap().narrow[0].values.clone()
}

fn number(metrics: &[Metric], key: &str) -> f64 {
    match metrics.iter().find(|metric| metric.name == key).map(|metric| &metric.value) {
        Some(MetricValue::Number(value)) => *value,
        other => panic!("{key}: {other:?}"),
    }
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

/// Clients have 5 to 40 samples. Every round rounds some numbers of size one to `f32` at different
/// places: some ten roundings of 6e-8 for each of six rounds, which local training does not enlarge by
/// more than a few times.
#[test]
fn on_the_complete_graph_it_is_the_star_shaped_method() {
    const ROUNDING: f32 = 2e-5;
    let data = clients(true);
    let complete = fixed(&Topology::Complete, data.len());
    let check = |name: &str, rule: &dyn Fn() -> Setup| {
        let setup = rule();
        let star = setup.run(&data, Participation::Everyone);
        let mean = run(&decentralised(&setup, Scaling::Samples), &complete, &data, ROUNDS);
        let apart = star.iter().zip(&mean).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        let moved = star.iter().map(|x| x.abs()).fold(0.0, f32::max);
        assert!(apart <= ROUNDING * moved.max(1.0), "{name}: {apart}");
        let ring = fixed(&Topology::Ring, data.len());
        let other = run(&decentralised(&setup, Scaling::Samples), &ring, &data, ROUNDS);
        let apart = star.iter().zip(&other).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(apart > 10.0 * ROUNDING, "{name}: a ring must differ");
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
    for ((start, printed), star) in start.iter().zip(&printed).zip(&star) {
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
    let sent: Vec<String> = method.disclosures().into_iter().map(|d| d.meaning).collect();
    assert!(sent.iter().any(|meaning| meaning.contains("not what it keeps")), "{sent:?}");
    let bound = data.iter().map(|data| method.bind(data).unwrap()).collect();
    let names = (0..data.len()).map(|i| format!("c{i:02}")).collect();
    let federation = Arc::new(Federation::new(names, bound));
    let keys = StageKeys::new(7, 0);
    let start = Start { index: 0, last: true, keys, delivered: &[], saved: None };
    let ring = fixed(&Topology::Ring, data.len());
    let mut runner = Neighbours::open(method, ring, federation, &start).unwrap();
    while let Step::Exchanged(_) = runner.step().unwrap() {}
    let (mut copies, mut weights) = (Vec::new(), 0);
    let keep = &mut |_, artifact: whimbrel_core::method::Artifact| {
        weights += artifact.tensor("weights").map_or(0, |tensor| tensor.values.len());
        copies.push(artifact.narrow[0].values.clone());
        Ok(())
    };
    runner.client_artifacts(keep).unwrap();
    assert_eq!((copies.len(), weights), (data.len(), 2 * data.len()));
    // The delivered model is their mean.
    let mean = &runner.artifact().unwrap().narrow[0].values;
    for (at, mean) in mean.iter().enumerate() {
        let sum: f64 = copies.iter().map(|copy| f64::from(copy[at])).sum();
        assert_eq!((sum / copies.len() as f64) as f32, *mean);
    }
    assert_ne!(copies[0], copies[1], "a ring is far from consensus");
}
