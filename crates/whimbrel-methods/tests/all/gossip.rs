//! Gossip averaging through the engine's loop: no server, the same folder, journal and resume.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use whimbrel_core::method::Artifact;
use whimbrel_core::{ClientData, Key, Result, Table, Wire};
use whimbrel_engine::runner::Done;
use whimbrel_engine::{
    Chain, Ending, Faults, Graphs, Limits, Observer, Outcome, Participation, Stage, StageMethod,
    Stopping, Topology, Weighting,
};
use whimbrel_methods::gossip::Gossip;

const COLUMNS: usize = 3;
const CLIENTS: u32 = 8;
const ROUNDS: u32 = 6;

fn clients() -> Vec<(String, ClientData)> {
    let one = |i: u32| {
        let mut values = vec![0.0; COLUMNS * (2 + i as usize % 3)];
        Key::root(11).child(u64::from(i)).stream().fill_normal(&mut values);
        let columns = ["x", "y", "z"].map(String::from).to_vec();
        (format!("c{i}"), ClientData::Table(Table::new(columns, values).unwrap()))
    };
    (0..CLIENTS).map(one).collect()
}

/// The mean of the clients' means.
fn truth() -> Vec<f64> {
    let mut mean = vec![0.0; COLUMNS];
    for (_, data) in clients() {
        let ClientData::Table(table) = data else { unreachable!() };
        let rows = table.values.len() / COLUMNS;
        for (i, x) in table.values.iter().enumerate() {
            mean[i % COLUMNS] += x / rows as f64 / f64::from(CLIENTS);
        }
    }
    mean
}

/// Dies after so many rounds of this process.
struct Mortal {
    left: u32,
    own: Vec<(String, Vec<f64>)>,
}

impl Observer for Mortal {
    fn exchange(&mut self, _: &Done) {
        assert!(self.left > 0, "killed");
        self.left -= 1;
    }

    fn client_artifact(&mut self, name: &str, artifact: Artifact) -> Result<()> {
        self.own.push((name.into(), artifact.tensor("mean").unwrap().values.clone()));
        Ok(())
    }
}

type Run = (Outcome, Vec<(String, Vec<f64>)>);

/// One stage on these graphs.
struct Gossiping(Graphs);

impl Chain for Gossiping {
    fn len(&self) -> usize {
        1
    }

    fn build(&self, _: usize, _: &[Artifact]) -> Result<Stage> {
        let method = Arc::new(Gossip { rounds: ROUNDS, columns: COLUMNS });
        Ok(Stage {
            name: "gossip",
            method: StageMethod::Neighbours(method, self.0.clone()),
            participation: Participation::Everyone,
            faults: Faults::default(),
            evaluate_every: Some(1),
            stopping: Stopping::default(),
        })
    }
}

fn fixed(topology: &Topology, clients: u32) -> Graphs {
    Graphs::fixed(topology, Weighting::Metropolis, clients, Key::root(1)).unwrap()
}

fn run(graphs: &Graphs, folder: Option<&Path>, resume: bool, life: u32) -> Run {
    let calm = AtomicBool::new(false);
    let limits = Limits { folder, resume, checkpoint_every: Duration::ZERO, interrupt: &calm };
    let mut observer = Mortal { left: life, own: Vec::new() };
    let chain = Gossiping(graphs.clone());
    let outcome = whimbrel_engine::run(&chain, clients(), 5, &limits, &mut observer).unwrap();
    assert_eq!(outcome.ending, Ending::Finished);
    (outcome, observer.own)
}

/// The largest distance from the truth: `n` additions and products a round, each of which is off by
/// half a unit in the last place of numbers of size one.
fn off_at_most(rounds: u32) -> f64 {
    f64::from(rounds + 2) * f64::from(CLIENTS) * f64::EPSILON
}

fn distance(x: &[f64]) -> f64 {
    x.iter().zip(truth()).map(|(x, truth)| (x - truth).abs()).fold(0.0, f64::max)
}

#[test]
fn rounds_leave_the_mean_and_take_the_gap_off_the_disagreement() {
    for topology in [Topology::Ring, Topology::Complete] {
        let (outcome, own) = run(&fixed(&topology, CLIENTS), None, false, u32::MAX);
        let mean = &outcome.delivered[0].tensor("mean").unwrap().values;
        assert!(distance(mean) <= off_at_most(ROUNDS), "{topology:?}: {}", distance(mean));
        assert_eq!(own.len(), CLIENTS as usize);
        let last = outcome.last.as_ref().unwrap();
        let (gap, left) =
            (last.number("spectral_gap").unwrap(), last.number("disagreement").unwrap());
        // Squared distances: every coordinate's variance over clients is near a third, so below one.
        let bound = COLUMNS as f64 * (1.0 - gap).powi(2 * ROUNDS as i32);
        assert!(left <= bound + off_at_most(ROUNDS).powi(2), "{topology:?}: {left}, {bound}");
        let degree = if topology == Topology::Ring { 2 } else { u64::from(CLIENTS) - 1 };
        // A vector of three numbers and its length, to every neighbour, every round.
        let sent = (8 * COLUMNS as u64 + 1) * degree * u64::from(ROUNDS);
        assert!(outcome.tallies.iter().all(|t| (t.bytes_up, t.bytes_down) == (sent, sent)));
        assert_eq!(outcome.traffic.up, sent * u64::from(CLIENTS));
        assert_eq!((outcome.rounds, outcome.traffic.down), (ROUNDS, 0));
    }
    // On a complete graph the first round is the mean already.
    let (outcome, own) = run(&fixed(&Topology::Complete, CLIENTS), None, false, u32::MAX);
    assert!(own.iter().all(|(_, x)| distance(x) <= off_at_most(ROUNDS)), "{own:?}");
    assert!(outcome.last.unwrap().number("spectral_gap").unwrap() > 0.999);
}

#[test]
fn a_run_that_is_killed_after_any_round_ends_in_the_same_bits() {
    let random = Topology::ErdosRenyi { p: 0.3 };
    let redrawn = Graphs::redrawn(random, Weighting::MaximumDegree, CLIENTS).unwrap();
    for graphs in [&fixed(&Topology::Ring, CLIENTS), &redrawn] {
        let whole = tempfile::tempdir().unwrap();
        let (calm, _) = run(graphs, Some(whole.path()), false, u32::MAX);
        let wanted = calm.delivered[0].to_bytes();
        let read = |folder: &Path, name: &str| std::fs::read(folder.join(name)).unwrap();
        for life in 0..ROUNDS {
            let folder = tempfile::tempdir().unwrap();
            let killed =
                catch_unwind(AssertUnwindSafe(|| run(graphs, Some(folder.path()), false, life)));
            assert!(killed.is_err(), "it lives beyond {life} rounds");
            let (outcome, own) = run(graphs, Some(folder.path()), true, u32::MAX);
            assert_eq!(outcome.delivered[0].to_bytes(), wanted, "killed after {life} rounds");
            assert_eq!((outcome.tallies, outcome.traffic), (calm.tallies.clone(), calm.traffic));
            assert_eq!(own.len(), CLIENTS as usize);
            for name in ["checkpoint/state", "journal"] {
                assert!(read(folder.path(), name) == read(whole.path(), name), "{name}, {life}");
            }
        }
    }
}

#[test]
fn a_graph_over_other_clients_is_refused() {
    let calm = AtomicBool::new(false);
    let limits =
        Limits { folder: None, resume: false, checkpoint_every: Duration::MAX, interrupt: &calm };
    let mut observer = Mortal { left: 9, own: Vec::new() };
    let chain = Gossiping(fixed(&Topology::Ring, CLIENTS + 1));
    let error = whimbrel_engine::run(&chain, clients(), 5, &limits, &mut observer).err().unwrap();
    assert_eq!(error.to_string(), "a graph over 9 clients for 8");
}
