//! True sums under masks still show some clients: those of different cohorts, and those that return or
//! join late.

use crate::federation::*;
use std::collections::{BTreeMap, BTreeSet};
use whimbrel_codec::Codec;
use whimbrel_core::ClientId;
use whimbrel_core::linalg::{cholesky, solve_lower, solve_lower_transposed};
use whimbrel_data::Sizes;
use whimbrel_engine::{Faults, Participation};
use whimbrel_methods::fedem::{Client, Form, Peer, Server};
use whimbrel_testkit::pairs;

/// Sums `Σ_A n_i C_i` of the rounds of a model that hardly moves, with their cohorts; and every
/// client's own `n_i s_i` at it, where memories hold them.
type Sums = (Vec<(Vec<ClientId>, Vec<f64>)>, Vec<Vec<f64>>);

fn settled(memory: bool) -> Sums {
    const GAMMA: f64 = 1e-6;
    let (codec, form, gamma) = (Codec::Exact, Form::Lean, GAMMA);
    let setup = Setup { codec, memory, form, gamma, rounds: 41, ..Setup::default() };
    let tables = tables(10, Sizes::Equal(60));
    let mut simulator = simulator(setup.erased(), &tables, bernoulli(0.75), Faults::default());
    let server = |simulator: &whimbrel_engine::Simulator| {
        simulator.machine().server().downcast_ref::<Server>().unwrap().clone()
    };
    let mut sums = Vec::new();
    let mut before = server(&simulator);
    while let Some(done) = simulator.step().unwrap() {
        let now = server(&simulator);
        if before.kind == whimbrel_methods::federated::ExchangeKind::Round {
            // S' = S + gamma (g - S), and g = V + Σ_A (n_i/N) C_i / p.
            let memory = |k: usize| before.up.memory_sum.get(k).map_or(0.0, |sum| sum / now.total);
            let sum = (0..now.global.s_hat.len()).map(|k| {
                let (old, new) = (before.global.s_hat[k], now.global.s_hat[k]);
                0.75 * now.total * (old + (new - old) / GAMMA - memory(k))
            });
            sums.push((done.accepted, sum.collect()));
        }
        before = now;
    }
    let own = |i: usize| {
        let peer = simulator.machine().peer(ClientId(i as u32)).unwrap();
        let weight = peer.downcast_ref::<Peer>().unwrap().weight;
        let client = simulator.clients()[i].downcast_ref::<Client>().unwrap();
        client.up.kept.iter().map(|h| weight * h).collect()
    };
    (sums, (0..10).map(own).collect())
}

/// Least squares: the vector of each client from the sums over different cohorts.
fn least_squares(sums: &[(Vec<ClientId>, Vec<f64>)]) -> Vec<Vec<f64>> {
    let (n, q) = (10, sums[0].1.len());
    let has = |cohort: &[ClientId], i: usize| f64::from(cohort.contains(&ClientId(i as u32)));
    let mut l = vec![0.0; n * n];
    for (at, entry) in l.iter_mut().enumerate() {
        *entry = sums.iter().map(|(c, _)| has(c, at / n) * has(c, at % n)).sum();
    }
    cholesky(&mut l, n).unwrap();
    let mut found = vec![vec![0.0; q]; n];
    for k in 0..q {
        let right = |i| sums.iter().map(|(cohort, sum)| has(cohort, i) * sum[k]).sum();
        let mut b: Vec<f64> = (0..n).map(right).collect();
        solve_lower(&l, n, &mut b);
        solve_lower_transposed(&l, n, &mut b);
        found.iter_mut().zip(b).for_each(|(found, b)| found[k] = b);
    }
    found
}

fn norm(x: impl IntoIterator<Item = f64>) -> f64 {
    x.into_iter().map(|x| x * x).sum::<f64>().sqrt()
}

/// Forty rounds at a settled model, each client in three quarters of them: without memories every
/// client's vector follows from the sums; with memories only differences do, which vanish.
#[test]
fn least_squares_over_forty_rounds() {
    let (with, truth) = settled(true);
    let (without, _) = settled(false);
    assert_eq!((with.len(), without.len()), (40, 40));
    for (found, truth) in pairs(&least_squares(&without), &truth) {
        let error = norm(found.iter().zip(truth).map(|(a, b)| a - b)) / norm(truth.iter().copied());
        println!("without memories: off by {error:.1e}");
        assert!(error < 1e-3, "{error}");
    }
    for (found, truth) in pairs(&least_squares(&with), &truth) {
        let size = norm(found.iter().copied()) / norm(truth.iter().copied());
        println!("with memories: {size:.1e} of the vector");
        assert!(size < 1e-3, "{size}");
    }
}

/// The norm of one client's part of the sum of a round, relative to that of all others together.
fn stands_out(away: std::ops::Range<u32>, faults: Faults) -> f64 {
    let setup = Setup { codec: Codec::Exact, gamma: 0.1, rounds: 60, ..Setup::default() };
    let tables = tables(10, Sizes::Equal(60));
    let mut simulator = simulator(setup.erased(), &tables, Participation::Everyone, faults);
    let observe = |simulator: &whimbrel_engine::Simulator| {
        let server = simulator.machine().server().downcast_ref::<Server>().unwrap();
        let own = simulator.clients()[4].downcast_ref::<Client>();
        let own = own.map(|client| client.up.kept.clone()).unwrap_or_default();
        (server.up.memory_sum.clone(), own)
    };
    let mut before = observe(&simulator);
    while let Some(done) = simulator.step().unwrap() {
        let now = observe(&simulator);
        if done.round == Some(away.end) {
            // Memories move by the whole upload: alpha is 1 for an exact codec.
            let n = 60.0;
            let old = |k: usize| before.1.get(k).copied().unwrap_or(0.0);
            let own: Vec<f64> = (0..now.1.len()).map(|k| n * (now.1[k] - old(k))).collect();
            let others = (0..own.len()).map(|k| now.0[k] - before.0[k] - own[k]);
            return norm(own.iter().copied()) / norm(others);
        }
        before = now;
    }
    panic!("no round {}", away.end)
}

/// A client that returns or joins late is readable off the sum, which `join` tells its user.
#[test]
fn returning_and_late_clients_stand_out() {
    let away = |rounds: u32| {
        let gone = |round| (round, BTreeSet::from([ClientId(4)]));
        let drops = (10..10 + rounds).map(gone).collect();
        stands_out(10..10 + rounds, Faults { drops, ..Faults::default() })
    };
    let late = BTreeMap::from([(ClientId(4), 40)]);
    let late = stands_out(1..40, Faults { late, ..Faults::default() });
    let (none, five, forty) = (away(0), away(5), away(40));
    println!(
        "times all others together: present {none:.2}, back after 5 rounds {five:.1}, after 40"
    );
    println!("{forty:.1}, late {late:.0}");
    assert!(
        five > 2.0 * none && forty > 2.0 * five && late > forty,
        "{none} {five} {forty} {late}"
    );
}
