//! `step = "theory"`: the estimated constants are of the right size and the step works.

use crate::federation::*;
use std::sync::Arc;
use whimbrel_core::method::Artifact;
use whimbrel_core::{Erased, Probability};
use whimbrel_engine::{Faults, Participation, Protocol};
use whimbrel_methods::fedem::{Batch, Estimator};
use whimbrel_methods::federated::BindRows;
use whimbrel_methods::spider::{Smoothness, Spider};
use whimbrel_methods::theory::Constants;
use whimbrel_models::gmm::Covariance;

fn constants(setup: &Setup, p: f64) -> Artifact {
    let method = Arc::new(Erased(Constants { fit: setup.typed(), participation: p }, BindRows));
    let (everyone, faults) = (Participation::Everyone, Faults::default());
    let mut simulator = simulator(method, &unequal(20), everyone, faults);
    while simulator.step().unwrap().is_some() {}
    simulator.machine().artifact().unwrap()
}

fn value(artifact: &Artifact, name: &str) -> f64 {
    artifact.tensor(name).unwrap().values[0]
}

#[test]
fn without_noise_the_step_is_half_the_open_bound() {
    let setup = Setup { covariance: Covariance::Known(TRUTH.to_vec()), ..Setup::default() };
    let found = constants(&setup, 1.0);
    let bound = 2.0 * value(&found, "v_min") / value(&found, "lipschitz_w");
    assert_eq!(value(&found, "gamma_max"), bound);
    assert_eq!(value(&found, "gamma"), (bound / 2.0).min(1.0));
    assert_eq!(value(&found, "sigma2"), 0.0);
    assert!(value(&found, "v_max") >= value(&found, "v_min"));
}

#[test]
fn compression_sampling_and_minibatches_make_it_smaller() {
    let known = || Covariance::Known(TRUTH.to_vec());
    let gamma = |codec, p, batch| {
        let setup = Setup { covariance: known(), codec, batch, ..Setup::default() };
        value(&constants(&setup, p), "gamma")
    };
    let exact = gamma(whimbrel_codec::Codec::Exact, 1.0, Batch::Full);
    let compressed = gamma(dither(), 1.0, Batch::Full);
    let sampled = gamma(dither(), 0.2, Batch::Full);
    let small = Batch::Sample { size: 1, replacement: true, local_steps: 1 };
    let noisy = gamma(dither(), 0.2, small);
    assert!(exact > compressed && compressed >= sampled && sampled > noisy);
}

/// `1/Σ w_i²` of the clients of these tests.
fn effective_clients() -> f64 {
    let rows: Vec<f64> = unequal(20).iter().map(|table| table.rows() as f64).collect();
    let total: f64 = rows.iter().sum();
    total * total / rows.iter().map(|n| n * n).sum::<f64>()
}

#[test]
fn the_minibatch_variance_falls_with_the_batch() {
    let sigma2 = |size| {
        let batch = Batch::Sample { size, replacement: true, local_steps: 1 };
        value(&constants(&Setup { batch, ..Setup::default() }, 1.0), "sigma2")
    };
    let ratio = sigma2(1) / sigma2(10);
    assert!((ratio - 10.0).abs() < 1e-9, "{ratio}");
}

#[test]
fn a_run_with_the_steps_theory_allows_converges() {
    let setup = Setup {
        covariance: Covariance::Known(TRUTH.to_vec()),
        codec: dither(),
        ..Setup::default()
    };
    let gamma = value(&constants(&setup, 0.75), "gamma");
    let setup = Setup { gamma, rounds: 1000, ..setup };
    let participation = Participation::Bernoulli(Probability::new(0.75).unwrap());
    let trace = run(&setup, &unequal(20), participation, Faults::default(), 1000);
    assert!(trace.fields[0].1 < 1e-20, "{gamma}: {:?}", trace.fields);
}

#[test]
fn the_step_of_vr_fedem_is_that_of_its_constants_and_converges() {
    let sample = |size| Batch::Sample { size, replacement: true, local_steps: 1 };
    let base = Setup {
        covariance: Covariance::Known(TRUTH.to_vec()),
        estimator: Estimator::Spider { inner: 12 },
        codec: dither(),
        batch: sample(2),
        ..Setup::default()
    };
    let found = constants(&base, 1.0);
    let of = Smoothness {
        v_min: value(&found, "v_min"),
        v_max: value(&found, "v_max"),
        lipschitz_w: value(&found, "lipschitz_w"),
        lipschitz: value(&found, "lipschitz"),
    };
    let omega = value(&found, "omega");
    let alpha = 1.0 / (1.0 + omega);
    let spider = Spider { inner: 12, batch: 2.0, omega, alpha, clients: effective_clients() };
    let gamma = value(&found, "gamma");
    assert_eq!(gamma, spider.step(&of));
    assert_eq!((value(&found, "inner"), value(&found, "batch")), (12.0, 2.0));
    // The mean of squares over rows is at least the square of the mean's constant.
    let smooth = value(
        &constants(&Setup { estimator: Estimator::Minibatch, ..base.clone() }, 1.0),
        "lipschitz",
    );
    assert!(of.lipschitz >= smooth * (1.0 - 1e-9), "{} against {smooth}", of.lipschitz);
    let gamma_of = |setup: &Setup| value(&constants(setup, 1.0), "gamma");
    assert!(gamma_of(&Setup { batch: sample(1), ..base.clone() }) < gamma);
    assert!(gamma_of(&Setup { codec: whimbrel_codec::Codec::Exact, ..base.clone() }) > gamma);
    let setup = Setup { gamma, rounds: 6000, ..base };
    let fields = run(&setup, &unequal(20), Participation::Everyone, Faults::default(), 3000).fields;
    // A careful step, but linear convergence: no plateau between the one half and the other.
    assert!(fields[1].1 < 1e-3 * fields[0].1 && fields[1].1 < 1e-10, "{gamma}: {fields:?}");
}
