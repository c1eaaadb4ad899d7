//! Logistic regression with a penalty that is not convex, under the step of Theorem S11.

use crate::federation::{equal_terms, figure, simulator_of};
use std::sync::Arc;
use whimbrel_codec::channel::{Downlink, Preset, UpRule, Uplink};
use whimbrel_codec::{Codec, Norm};
use whimbrel_core::method::MetricValue;
use whimbrel_core::{ClientData, Erased, FeatureRows, Key, Labelled};
use whimbrel_engine::{Faults, Participation, Simulator};
use whimbrel_methods::federated::BindRows;
use whimbrel_methods::settings::Batch;
use whimbrel_methods::sgd::{Gradient, Server, Sgd, StepRule};
use whimbrel_models::convex::{Penalty, Problem};

const DIMS: usize = 6;
const CLIENTS: usize = 10;
const ROWS: usize = 60;

/// Clients whose rows have means of their own, and labels that no hyperplane separates.
fn clients() -> Vec<ClientData> {
    let one = |i: usize| {
        let mut stream = Key::root(71).child(i as u64).stream();
        let mut values = vec![0.0; ROWS * DIMS];
        let mut noise = vec![0.0; ROWS];
        stream.fill_normal(&mut values);
        stream.fill_normal(&mut noise);
        let label = |(x, e): (&[f64], &f64)| (x[0] - 2.0 * x[1] + x[2] + e).signum();
        let targets = values.chunks_exact(DIMS).zip(&noise).map(label).collect();
        values.iter_mut().step_by(DIMS).for_each(|x| *x += 0.1 * i as f64);
        let columns = (0..DIMS).map(|j| j.to_string()).collect();
        ClientData::Labelled(Labelled::new(columns, FeatureRows::Dense(values), targets).unwrap())
    };
    (0..CLIENTS).map(one).collect()
}

fn method(preset: Preset, batch: Batch, rounds: u32) -> Arc<Erased<Sgd, BindRows>> {
    let penalty = Penalty::Bounded(0.1);
    let codec = Codec::dithering(4, Norm::P(2), None).unwrap();
    let omega = codec.omega(DIMS).unwrap();
    let rule = UpRule::Memory { alpha: 1.0 / (1.0 + omega) };
    let down = if preset.compresses().1 { codec.clone() } else { Codec::Exact };
    let alpha = (1.0 / (8.0 * omega)).min(0.5);
    let down_rule = preset.downlink().settled(alpha, 1.0);
    let method = Sgd {
        oracle: Gradient {
            batch,
            step: StepRule::Theory,
            ..Gradient::new(Problem::penalised_logistic(penalty, false).unwrap(), DIMS)
        },
        terms: equal_terms(
            Uplink::new(codec, rule, DIMS).unwrap(),
            Downlink::new(down, down_rule, DIMS, false).unwrap(),
            rounds,
        ),
    };
    Arc::new(Erased(method, BindRows))
}

/// `||∇F||²` at the start and at the end, and the server's last state.
fn run(method: &Arc<Erased<Sgd, BindRows>>) -> (f64, f64, Server) {
    let (everyone, faults) = (Participation::Everyone, Faults::default());
    let mut simulator = simulator_of(method.clone(), &clients(), 5, everyone, faults);
    let first = gradient_norm2(&mut simulator);
    while simulator.step().unwrap().is_some() {}
    let last = gradient_norm2(&mut simulator);
    (first, last, simulator.machine().server().downcast_ref::<Server>().unwrap().clone())
}

fn gradient_norm2(simulator: &mut Simulator) -> f64 {
    let (metrics, _) = simulator.evaluate().unwrap();
    let excess = metrics.iter().find(|m| m.name == "excess_loss").unwrap();
    assert_eq!(excess.value, MetricValue::Missing, "there is no reference minimum");
    figure(simulator, "gradient_norm2")
}

#[test]
fn mcm_and_diana_reach_a_stationary_point_of_a_loss_that_is_not_convex() {
    for preset in [Preset::Diana, Preset::Mcm] {
        let (first, last, server) = run(&method(preset, Batch::Full, 4000));
        assert!(last < 1e-10 * first, "{}: {first:e} {last:e}", preset.name());
        assert_eq!(server.global.bounds.gamma, server.global.bounds.gamma_max);
        // Away from where the penalty is convex: |w_j| above 1/sqrt(3) bends down.
        assert!(server.global.w.iter().any(|w| w.abs() > 0.6), "{:?}", server.global.w);
    }
}

#[test]
fn minibatches_take_a_shorter_step_the_longer_the_run() {
    let batch = Batch::Sample { size: 2, replacement: true, local_steps: 1 };
    let gamma = |rounds| {
        let (first, last, server) = run(&method(Preset::Mcm, batch, rounds));
        assert!(last < first, "{first:e} {last:e}");
        server.global.bounds.gamma
    };
    let (short, long) = (gamma(1000), gamma(4000));
    assert!((short / long - 2.0).abs() < 1e-12, "{short:e} {long:e}");
}
