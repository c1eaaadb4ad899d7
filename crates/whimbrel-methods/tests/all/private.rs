//! Differential privacy: the same noise in every runner, the end of the budget, and sampled rows.

use crate::federation::*;
use whimbrel_core::{ClientData, Erased, FeatureRows, HeldOut, Key, Labelled, Table};
use whimbrel_engine::{Faults, Participation};
use whimbrel_methods::fedem::{FedEm, FrameKind, PrivateEm};
use whimbrel_methods::federated::{BindRows, Release, Simple, Unit};
use whimbrel_methods::lloyd::{self, Lloyd};
use whimbrel_methods::sgd::Sampling;
use whimbrel_models::Rows;
use whimbrel_models::convex::Problem;
use whimbrel_models::gmm::{Covariance, Gmm};
use whimbrel_privacy::accountant::Releases;
use whimbrel_privacy::noise::Source;
use whimbrel_testkit::runners::runners_agree;

/// A fit of at most nine rounds with noise for six.
fn method(unit: Unit, source: Source) -> FedEm<Gmm> {
    let setup = Setup {
        covariance: Covariance::Full,
        rounds: 9,
        memory: false,
        frame: FrameKind::Fisher,
        ..Setup::default()
    };
    let mut method = setup.typed();
    let releases = Releases { multiplier: 0.1, rate: 1.0 };
    let release = Release { unit, releases, rounds: 6, source, stage: 0, share: None };
    method.terms.privacy.release = Some(release);
    let row_bound = matches!(unit, Unit::Row { .. }).then_some(3.0);
    method.oracle.private = Some(PrivateEm { row_bound, distributed: false, averaged: 4..6 });
    method
}

#[test]
fn noise_of_a_seed_is_the_same_in_every_runner() {
    let tables: Vec<ClientData> = unequal(14).into_iter().map(ClientData::Table).collect();
    for unit in [Unit::Row { bound: 3.0 }, Unit::Client { bound: 0.3 }] {
        let method = Erased(method(unit, Source::Seed(3)), BindRows);
        runners_agree("private", method, &tables);
    }
}

#[test]
fn the_run_ends_before_its_budget_is_exceeded() {
    let source = Source::secret().unwrap();
    let method = std::sync::Arc::new(Erased(method(Unit::Row { bound: 3.0 }, source), BindRows));
    let tables = unequal(14);
    let mut simulator = simulator(method, &tables, Participation::Everyone, Faults::default());
    let mut rounds = 0;
    while let Some(done) = simulator.step().unwrap() {
        rounds += u32::from(done.round.is_some());
    }
    assert_eq!(rounds, 6);
}

/// The first centres of noisy k-means divide rows around a mean that is not zero: without noise every cluster has a tenth of
/// an equal share and more.
#[test]
fn first_centres_of_noisy_k_means_divide_the_rows() {
    let (n, d, clusters) = (2000, 10, 10);
    let mut rows = vec![0.0; n * d];
    Key::root(8).stream().fill_normal(&mut rows);
    rows.iter_mut().for_each(|x| *x += 0.5);
    let table = Table::new((0..d).map(|k| format!("x{k}")).collect(), rows).unwrap();
    for seed in 0..20 {
        let method = Lloyd::new(clusters, d, Key::root(seed));
        let mut state = method.start(d);
        for round in 0..lloyd::ROUNDS {
            let mean = method.value(&state, &table, Key::root(1));
            method.step(&mut state, &mean, round);
        }
        let least = state[..clusters].iter().copied().fold(1.0, f64::min);
        assert!(least > 0.1 / clusters as f64, "{least}");
    }
}

/// Poisson sampling of 50 rows: the number of rows is binomial, the gradient is unbiased for that of
/// all clipped rows, and its variance is `(1 - q)/q` times the sum of squares over `n^2`. With 4,000
/// draws a mean is within five standard errors once in two million trials, and a variance of sums of
/// bounded terms within 15 % (five standard errors of 0.03).
#[test]
fn sampled_rows_estimate_the_clipped_gradient() {
    const Q: f64 = 0.2;
    const DRAWS: u64 = 4000;
    let (n, d, bound) = (50, 3, 0.4);
    let mut stream = Key::root(8).stream();
    let mut rows = vec![0.0; n * d];
    stream.fill_normal(&mut rows);
    let targets: Vec<f64> = (0..n).map(|i| if i % 3 == 0 { 1.0 } else { -1.0 }).collect();
    let columns = (0..d).map(|k| format!("x{k}")).collect();
    let (rows, held_out) = (FeatureRows::Dense(rows), HeldOut::default());
    let labelled = Labelled { columns, rows, targets, held_out };
    let problem = Problem::logistic(0.1, false).unwrap();
    let data = problem.bind(&ClientData::Labelled(labelled)).unwrap();
    let at = [0.3, -0.2, 0.1];
    let gradient = |rows: Rows<'_>, count: f64| {
        let mut out = vec![0.0; d];
        problem.clipped_gradient(&at, &data, (rows, count), bound, &mut out).unwrap();
        out
    };
    let whole = gradient(Rows::All, n as f64);
    let penalty: Vec<f64> = at.iter().map(|w| 0.1 * w).collect();
    let each: Vec<Vec<f64>> = (0..n as u32).map(|i| gradient(Rows::These(&[i]), 1.0)).collect();
    let sampling = Sampling { rate: Q, source: Source::Seed(5) };
    assert!(Sampling { rate: 1e-12, ..sampling }.draw(n, Key::root(1)).is_empty());
    let (mut count, mut sum, mut squares) = (0, vec![0.0; d], vec![0.0; d]);
    for draw in 0..DRAWS {
        let drawn = sampling.draw(n, Key::root(draw));
        count += drawn.len();
        let found = gradient(Rows::These(&drawn), Q * n as f64);
        for k in 0..d {
            sum[k] += found[k] - whole[k];
            squares[k] += (found[k] - whole[k]).powi(2);
        }
    }
    let draws = DRAWS as f64;
    let spread = (draws * n as f64 * Q * (1.0 - Q)).sqrt();
    assert!((count as f64 - draws * n as f64 * Q).abs() < 5.0 * spread, "{count}");
    for k in 0..d {
        let own: f64 = each.iter().map(|g| (g[k] - penalty[k]).powi(2)).sum();
        let variance = (1.0 - Q) / Q * own / (n * n) as f64;
        let mean = sum[k] / draws;
        assert!(mean.abs() < 5.0 * (variance / draws).sqrt(), "{mean} beside {variance}");
        let ratio = squares[k] / draws / variance;
        assert!((ratio - 1.0).abs() < 0.15, "{ratio}");
    }
}
