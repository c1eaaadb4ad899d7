//! What must hold in every round of every run: the server's memory is the weighted sum of the
//! clients', also with lost uploads, late joiners and empty cohorts.

use crate::federation::*;
use std::collections::{BTreeMap, BTreeSet};
use whimbrel_core::ClientId;
use whimbrel_engine::{Faults, Participation, Protocol, Simulator};
use whimbrel_methods::fedem::{Client, FirstMemories, Peer, Server};
use whimbrel_testkit::pairs;

pub fn check_memories(simulator: &Simulator) {
    let machine = simulator.machine();
    let server = machine.server().downcast_ref::<Server>().unwrap();
    let mut sum = vec![0.0; server.global.s_hat.len()];
    let mut scale = 1e-300;
    let (mut total, mut enrolled) = (0.0, 0);
    for id in machine.enrolled() {
        let peer = machine.peer(id).unwrap().downcast_ref::<Peer>().unwrap();
        let client = simulator.clients()[id.0 as usize].downcast_ref::<Client>().unwrap();
        total += peer.weight;
        enrolled += 1;
        for (s, h) in sum.iter_mut().zip(&client.up.kept) {
            *s += peer.weight * h;
            scale = f64::max(scale, (peer.weight * h).abs());
        }
    }
    assert_eq!(total, server.total);
    // Each side rounds once per client and round: eps times addends times rounds.
    let rounds = f64::from(machine.exchanges() + 1);
    let tolerance = f64::EPSILON * scale * f64::from(enrolled) * rounds;
    for (a, b) in pairs(&sum, &server.up.memory_sum) {
        assert!((a - b).abs() <= tolerance, "{a} against {b} (tolerance {tolerance:e})");
    }
}

#[test]
fn the_servers_memory_is_the_sum_of_the_clients() {
    let tables = unequal(12);
    let late = Faults {
        lost: 0.3,
        late: BTreeMap::from([(ClientId(3), 10), (ClientId(7), 25)]),
        drops: BTreeMap::from([(5, BTreeSet::from([ClientId(0), ClientId(1)]))]),
        ..Faults::default()
    };
    let given = FirstMemories::Given(vec![0.5, -0.25, 1.0, 2.0, -1.0, 0.125]);
    for memories in [FirstMemories::Oracle, FirstMemories::Zero, given] {
        for (participation, faults) in [
            (bernoulli(0.6), Faults::default()),
            (bernoulli(0.05), Faults::default()), // half of the cohorts are empty
            (Participation::Fixed(4), late.clone()),
            (Participation::Everyone, late.clone()),
        ] {
            let setup = Setup { memories: memories.clone(), ..dithered(50) };
            let mut simulator = simulator(setup.erased(), &tables, participation, faults);
            while simulator.step().unwrap().is_some() {
                check_memories(&simulator);
            }
            assert_eq!(simulator.machine().round(), 50);
        }
    }
}

#[test]
fn lost_uploads_do_not_move_the_fixed_point() {
    let tables = unequal(20);
    let setup = dithered(2500);
    let faults = Faults { lost: 0.3, ..Faults::default() };
    let trace = run(&setup, &tables, bernoulli(0.75), faults, 2500);
    assert!(trace.fields[0].1 < 1e-20, "{:e}", trace.fields[0].1);
}

#[test]
fn a_client_that_joins_late_counts_like_one_from_the_start() {
    let tables = unequal(20);
    let faults = Faults { late: BTreeMap::from([(ClientId(4), 100)]), ..Faults::default() };
    let setup = dithered(2500);
    let late = run(&setup, &tables, bernoulli(0.75), faults, 2500);
    let setup = Setup { rounds: 2500, ..setup };
    let all = run(&setup, &tables, bernoulli(0.75), Faults::default(), 2500);
    assert!(late.fields[0].1 < 1e-20, "{:e}", late.fields[0].1);
    let gap = relative_gap(
        &late.states.last().unwrap().global.theta,
        &all.states.last().unwrap().global.theta,
    );
    assert!(gap < 1e-9, "{gap:e}");
}
