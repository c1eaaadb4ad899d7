//! Minibatches, local steps and streams.

use crate::federation::*;
use std::sync::Arc;
use whimbrel_core::{ClientData, Error, Key};
use whimbrel_data::{Covariance as Spread, Heterogeneity, Mixture, MixtureSpec, Sizes};
use whimbrel_engine::{Faults, Participation};
use whimbrel_methods::fedem::{Batch, Client, Estimator, Server};
use whimbrel_models::gmm::Covariance;
use whimbrel_testkit::pairs;

#[test]
fn more_local_steps_mean_less_noise() {
    let tables = unequal(10);
    let noise = |local_steps| {
        let batch = Batch::Sample { size: 3, replacement: true, local_steps };
        let known = Covariance::Known(TRUTH.to_vec());
        let setup =
            Setup { covariance: known, batch, gamma: 0.1, rounds: 2000, ..Setup::default() };
        let trace = run(&setup, &tables, Participation::Everyone, Faults::default(), 2);
        trace.fields[200..].iter().map(|f| f.1).sum::<f64>() / 800.0
    };
    // The plateau of ||h||^2 is proportional to 1/local_steps, so the ratio is 16. With 1,600
    // rounds and an autocorrelation time of about 20 each side averages some 80 independent values
    // of a chi-square like variable: a standard error near 20 % of the ratio, three of them allowed.
    let ratio = noise(1) / noise(16);
    assert!((8.0..32.0).contains(&ratio), "{ratio}");
}

fn mixture() -> Arc<Mixture> {
    let spec = MixtureSpec {
        clients: 10,
        rows: Sizes::Equal(200),
        weights: vec![0.5, 0.5],
        means: vec![vec![-1.5, 0.0], vec![1.5, 1.0]],
        covariance: Spread::Shared(vec![vec![1.0, 0.3], vec![0.3, 0.8]]),
        heterogeneity: Heterogeneity::dirichlet(0.2, 2),
    };
    Arc::new(Mixture::new(spec, Key::root(5)).unwrap())
}

fn streams() -> Vec<ClientData> {
    let mixture = mixture();
    (0..10).map(|i| ClientData::Stream(Arc::new(mixture.stream(i)))).collect()
}

#[test]
fn a_stream_is_read_row_after_row_and_finds_the_truth() {
    let batch = Batch::Sample { size: 20, replacement: true, local_steps: 1 };
    let setup = Setup { codec: dither(), batch, gamma: 0.02, rounds: 1500, ..Setup::default() };
    let (everyone, faults) = (Participation::Everyone, Faults::default());
    let mut simulator = simulator_of(setup.erased(), &streams(), 1, everyone, faults);
    while simulator.step().unwrap().is_some() {}
    for client in simulator.clients() {
        // The first round stands at the head of the stream and does not move on.
        assert_eq!(client.downcast_ref::<Client>().unwrap().own.position, 1499 * 20);
    }
    let server = simulator.machine().server().downcast_ref::<Server>().unwrap();
    // theta: logits (2), means (4), covariance (3). 300,000 rows and gamma = 0.02: errors of the
    // means near 0.03; six of those are a false alarm of 1e-8.
    for (mean, truth) in pairs(&server.global.theta[2..6], [-1.5, 0.0, 1.5, 1.0]) {
        assert!((mean - truth).abs() < 0.2, "{mean} for {truth}");
    }
}

#[test]
fn a_full_batch_of_a_stream_is_refused() {
    let checked = Estimator::Minibatch.check_stream(&Batch::Full);
    assert!(matches!(checked, Err(Error::Config { .. })));
}
