//! VR-FedEM: what it becomes under named settings, what it counts, and how it converges where FedEM's
//! minibatches leave a plateau.

use crate::federation::*;
use std::collections::BTreeMap;
use std::sync::Arc;
use whimbrel_codec::Codec;
use whimbrel_codec::channel::{DownRule, Feedback, Memories, Reset, blocks_omega, gradient_alpha};
use whimbrel_core::{ClientData, ClientId, Error, Key, Table};
use whimbrel_data::Sizes;
use whimbrel_engine::{Faults, Participation};
use whimbrel_methods::fedem::{Batch, Client, Estimator, FirstMemories, Form, Server};
use whimbrel_methods::federated::BindRows;
use whimbrel_methods::mixture::MixtureStart;
use whimbrel_methods::settings::DRAW;
use whimbrel_models::gmm::Covariance;
use whimbrel_models::{LatentModel, Rows};
use whimbrel_testkit::{pairs, relative_gap};

fn known() -> Covariance {
    Covariance::Known(TRUTH.to_vec())
}

fn batch(size: u32, replacement: bool) -> Batch {
    Batch::Sample { size, replacement, local_steps: 1 }
}

/// SPIDER-EM as its own paper has it, row by row: the statistic after each round.
fn spider_em(table: &Table, inner: u32, batch: Batch, gamma: f64, rounds: u32) -> Vec<Vec<f64>> {
    let model = gmm(known());
    let data = model.bind(&ClientData::Table(table.clone())).unwrap();
    let m = model.rows(&data);
    let row = |theta: &_, j: u32| {
        let mut s = vec![0.0; model.statistic_len()];
        model.expect(theta, &data, Rows::These(&[j]), &mut s).unwrap();
        s
    };
    let mean = |theta: &_, rows: &[u32]| -> Vec<f64> {
        let all: Vec<Vec<f64>> = rows.iter().map(|j| row(theta, *j)).collect();
        (0..model.statistic_len())
            .map(|c| all.iter().map(|s| s[c]).sum::<f64>() / rows.len() as f64)
            .collect()
    };
    let every: Vec<u32> = (0..m as u32).collect();
    let MixtureStart::Given(theta_0) = start(&model) else { unreachable!() };
    let mut s_hat = mean(&model.from_vector(&theta_0).unwrap(), &every);
    let mut path = vec![s_hat.clone()];
    let mut theta = model.maximize(&s_hat, &[]).unwrap().theta;
    let (mut last, mut estimate) = (theta.clone(), s_hat.clone());
    for k in 0..rounds - 1 {
        if k % inner == 0 {
            estimate = mean(&theta, &every);
        } else {
            let key = keys().exchange(k + 1).local(ClientId(0));
            let drawn = batch.draw(m, &mut key.child(DRAW).stream()).unwrap();
            let (now, then) = (mean(&theta, &drawn), mean(&last, &drawn));
            for ((e, a), b) in estimate.iter_mut().zip(now).zip(then) {
                *e += a - b;
            }
        }
        last = theta.clone();
        s_hat.iter_mut().zip(&estimate).for_each(|(s, e)| *s += gamma * (e - *s));
        theta = model.maximize(&s_hat, &[]).unwrap().theta;
        path.push(s_hat.clone());
    }
    path
}

#[test]
fn one_client_and_an_exact_codec_is_spider_em() {
    let table = tables(1, Sizes::Equal(60)).remove(0);
    for batch in [batch(4, true), batch(4, false)] {
        let setup = Setup {
            covariance: known(),
            estimator: Estimator::Spider { inner: 7 },
            batch,
            memories: FirstMemories::Zero,
            gamma: 0.2,
            rounds: 60,
            ..Setup::default()
        };
        let everyone = Participation::Everyone;
        let trace = run(&setup, std::slice::from_ref(&table), everyone, Faults::default(), 0);
        for (ours, naive) in pairs(&trace.states, spider_em(&table, 7, batch, 0.2, 60)) {
            let gap = relative_gap(&ours.global.s_hat, &naive);
            // Some ten roundings a round, which contraction keeps from growing.
            assert!(gap < 1e-13 * f64::from(ours.round), "round {}: {gap:e}", ours.round);
        }
    }
}

#[test]
fn full_batches_without_replacement_are_fedem() {
    let tables = unequal(9);
    for form in [Form::Pair, Form::State, Form::Lean] {
        let go = |estimator, batch| {
            let setup = Setup { estimator, batch, form, ..dithered(60) };
            run(&setup, &tables, bernoulli(0.6), Faults::default(), 0).states
        };
        let fedem = go(Estimator::Minibatch, Batch::Full);
        for batch in [Batch::Full, batch(1000, false)] {
            for (a, b) in pairs(&go(Estimator::Spider { inner: 8 }, batch), &fedem) {
                let gap = relative_gap(&a.global.s_hat, &b.global.s_hat);
                assert!(gap < 1e-11, "{form:?}, {batch:?}, round {}: {gap:e}", a.round);
            }
        }
    }
}

/// m at a client's first accepted round of an outer loop, 2b at the others; nothing is counted for
/// uploads that were lost, and a lost full pass is made again.
#[test]
fn the_epoch_counts_what_is_computed() {
    let tables = unequal(12);
    let (inner, b) = (6, 5);
    for replacement in [true, false] {
        let setup = Setup {
            estimator: Estimator::Spider { inner },
            batch: batch(b, replacement),
            ..dithered(40)
        };
        let faults =
            Faults { lost: 0.3, late: BTreeMap::from([(ClientId(5), 20)]), ..Faults::default() };
        let mut simulator = simulator(setup.erased(), &tables, bernoulli(0.5), faults);
        let (mut counted, mut loops, mut fit_rounds) = (0, BTreeMap::new(), 0);
        while let Some(done) = simulator.step().unwrap() {
            let is_fit = done.round.is_some_and(|round| round > 1);
            for id in &done.accepted {
                let rows = tables[id.0 as usize].rows() as u64;
                let again =
                    is_fit && loops.insert(*id, fit_rounds / inner) == Some(fit_rounds / inner);
                let drawn = if replacement { u64::from(b) } else { u64::from(b).min(rows) };
                // Who would take more for a correction than for a pass makes the pass.
                counted += if again { (2 * drawn).min(rows) } else { rows };
            }
            fit_rounds += u32::from(is_fit);
            let server = simulator.machine().server().downcast_ref::<Server>().unwrap();
            assert_eq!(server.rows_used, counted, "after exchange {}", done.exchange);
        }
        // Both ends agree on where each recursion stands.
        for (id, outer) in loops {
            let client = simulator.clients()[id.0 as usize].downcast_ref::<Client>().unwrap();
            assert_eq!(client.own.running.as_ref().unwrap().outer, outer);
        }
    }
}

#[test]
fn the_planned_cost_is_the_mean_of_what_is_computed() {
    let estimator = Estimator::Spider { inner: 20 };
    // One pass and 19 changes in twenty rounds.
    let all = estimator.expectations_mean(&batch(5, true), 100, 1.0);
    assert!((all - (100.0 + 19.0 * 10.0) / 20.0).abs() < 1e-12, "{all}");
    let tables = tables(50, Sizes::Equal(30));
    let setup = Setup {
        estimator: Estimator::Spider { inner: 4 },
        batch: batch(3, true),
        gamma: 0.1,
        rounds: 401,
        memories: FirstMemories::Zero,
        ..Setup::default()
    };
    let trace = run(&setup, &tables, bernoulli(0.3), Faults::default(), 0);
    let fit = trace.states.last().unwrap().rows_used - trace.states[0].rows_used;
    let mean = fit as f64 / (400.0 * 50.0);
    let planned = setup.estimator.expectations_mean(&setup.batch, 30, 0.3);
    // 5,000 loops of a client, each of at most 48 expectations with a standard deviation near 12:
    // 0.04 a round is five standard errors, a false alarm of 1e-6; the seed is fixed.
    assert!((mean - planned).abs() < 5.0 * 12.0 / 4.0 / 5000f64.sqrt(), "{mean} for {planned}");
}

/// The field after so many epochs, on 100 heterogeneous clients of 100 points.
fn field_at_epoch(setup: &Setup, p: f64, epochs: f64) -> f64 {
    let tables = tables(100, Sizes::Equal(100));
    let per_round = setup.estimator.expectations_mean(&setup.batch, 100, p) / 100.0;
    // The first round and the memories' opening are a pass each.
    let rounds = 1 + ((epochs - 2.0) / per_round) as u32;
    let setup = Setup { rounds, ..setup.clone() };
    run(&setup, &tables, bernoulli(p), Faults::default(), rounds).fields[0].1
}

#[test]
fn it_converges_where_minibatches_leave_a_plateau() {
    let base = Setup { covariance: known(), ..dithered(200) };
    for p in [1.0, 0.75] {
        let reduced = Setup {
            estimator: Estimator::Spider { inner: 20 },
            batch: batch(5, true),
            ..base.clone()
        };
        let field = field_at_epoch(&reduced, p, 60.0);
        assert!(field < 1e-12, "vr-fedem, p = {p}: {field:e}");
        let plain = Setup { batch: batch(20, true), ..base.clone() };
        let field = field_at_epoch(&plain, p, 60.0);
        assert!((1e-6..1e-3).contains(&field), "fedem, p = {p}: {field:e}");
    }
}

#[test]
fn every_form_and_preserved_downlink_converges() {
    let all =
        [Memories::Groups(1), Memories::PerClient, Memories::Single { reset: Reset::Every(12) }];
    for form in [Form::Pair, Form::State, Form::Lean] {
        for memories in all {
            let omega = blocks_omega(&dither(), &form.blocks(&gmm(known()))).unwrap();
            let alpha = gradient_alpha(omega);
            let setup = Setup {
                covariance: known(),
                estimator: Estimator::Spider { inner: 20 },
                batch: batch(5, true),
                form,
                down: Some((dither(), DownRule::Preserved { alpha, memories })),
                ..dithered(200)
            };
            let field = field_at_epoch(&setup, 0.75, 90.0);
            assert!(field < 1e-12, "{form:?}, {memories:?}: {field:e}");
        }
    }
}

#[test]
fn the_state_form_runs_over_degraded_downlinks() {
    for feedback in [Feedback::Off, Feedback::Contractive] {
        let setup = Setup {
            covariance: known(),
            estimator: Estimator::Spider { inner: 20 },
            batch: batch(5, false),
            form: Form::State,
            down: Some((dither(), DownRule::Degraded { feedback })),
            ..dithered(200)
        };
        let field = field_at_epoch(&setup, 0.75, 60.0);
        assert!(field < 1e-6, "{feedback:?}: {field:e}");
    }
}

#[test]
fn lost_uploads_and_late_joiners_do_not_move_the_fixed_point() {
    let faults = Faults {
        lost: 0.3,
        late: BTreeMap::from([(ClientId(3), 50), (ClientId(11), 90)]),
        ..Faults::default()
    };
    let setup = Setup {
        covariance: known(),
        codec: dither(),
        estimator: Estimator::Spider { inner: 15 },
        batch: batch(4, true),
        gamma: 0.05,
        rounds: 3000,
        ..Setup::default()
    };
    let trace = run(&setup, &unequal(20), bernoulli(0.75), faults, 3000);
    assert!(trace.fields[0].1 < 1e-15, "{:e}", trace.fields[0].1);
}

#[test]
fn a_stream_is_refused() {
    let setup = Setup {
        estimator: Estimator::Spider { inner: 5 },
        batch: batch(5, true),
        ..Setup::default()
    };
    let Err(Error::Config { what, .. }) = setup.estimator.check_stream(&setup.batch) else {
        panic!("a stream has no full pass")
    };
    assert!(what.contains("a stream has no end"), "{what}");
}

#[test]
fn a_round_without_its_outer_loop_is_a_peers_fault() {
    use whimbrel_core::method::{Bind, Method};
    let setup = Setup {
        estimator: Estimator::Spider { inner: 5 },
        batch: batch(5, true),
        ..Setup::default()
    };
    let method = Arc::new(setup.typed());
    let data = BindRows.bind(&*method, &ClientData::Table(unequal(1).remove(0))).unwrap();
    let (client, summary) = method.enroll(&data, Key::root(1)).unwrap();
    let mut roster = std::iter::once((ClientId(0), summary.clone()));
    let mut server = method.start(&mut roster, Key::root(2)).unwrap();
    let peer = method.admit(&mut server, ClientId(0), &summary).unwrap();
    // As after the first round.
    server.kind = whimbrel_methods::federated::ExchangeKind::Round;
    server.round = 1;
    method
        .oracle
        .model
        .expect(
            &method.oracle.model.from_vector(&server.global.theta).unwrap(),
            &data.train,
            Rows::All,
            &mut server.global.s_hat,
        )
        .unwrap();
    let (broadcast, _) = method.open(&server, &[]).unwrap();
    let (_, down) = method.downlink(&server, &broadcast, &peer, Key::root(3)).unwrap();
    assert_eq!(down.note, Some(whimbrel_methods::fedem::OuterLoop(0)));
    assert!(method.local_step(&client, &down, &data, Key::root(4)).is_ok());
    for wrong in [
        whimbrel_methods::fedem::Down { note: None, ..down.clone() },
        whimbrel_methods::fedem::Down { uplink: 1, ..down },
    ] {
        let step = method.local_step(&client, &wrong, &data, Key::root(4));
        assert!(matches!(step, Err(Error::Peer { .. })));
    }
}

#[test]
fn an_exact_codec_needs_no_memories() {
    let setup = Setup {
        covariance: known(),
        codec: Codec::Exact,
        memory: false,
        estimator: Estimator::Spider { inner: 20 },
        batch: batch(5, true),
        gamma: 0.1,
        ..Setup::default()
    };
    let field = field_at_epoch(&setup, 1.0, 60.0);
    assert!(field < 1e-12, "{field:e}");
}
