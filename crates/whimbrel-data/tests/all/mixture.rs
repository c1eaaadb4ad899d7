//! Generated federations.

use std::sync::Arc;
use whimbrel_core::{Key, RowStream};
use whimbrel_data::{Covariance, Heterogeneity, Mixture, MixtureSpec, Sizes, hash_tables};
use whimbrel_testkit::pairs;

fn spec(clients: usize, rows: usize, heterogeneity: Heterogeneity) -> MixtureSpec {
    MixtureSpec {
        clients,
        rows: Sizes::Equal(rows),
        weights: vec![0.3, 0.7],
        means: vec![vec![-1.5, 0.0], vec![1.5, 1.0]],
        covariance: Covariance::Shared(vec![vec![1.0, 0.3], vec![0.3, 0.8]]),
        heterogeneity,
    }
}

fn mixture(spec: MixtureSpec, seed: u64) -> Arc<Mixture> {
    Arc::new(Mixture::new(spec, Key::root(seed)).unwrap())
}

#[test]
fn a_table_is_the_head_of_its_stream_from_any_position() {
    let drawn = mixture(spec(3, 50, Heterogeneity::dirichlet(0.2, 2)), 4);
    let table = drawn.table(2).unwrap();
    assert_eq!(table.columns[..], ["x1", "x2"]);
    let stream = drawn.stream(2);
    let mut pieces = Vec::new();
    for (from, count) in [(0, 7), (7, 0), (7, 30), (37, 13)] {
        stream.rows(from, count, &mut pieces).unwrap();
    }
    assert_eq!(pieces, table.values);
    let mut far = Vec::new();
    stream.rows(1 << 40, 2, &mut far).unwrap();
    let mut again = Vec::new();
    stream.rows((1 << 40) + 1, 1, &mut again).unwrap();
    assert_eq!(far[2..], again);
    assert_ne!(far[..2], far[2..]);
}

#[test]
fn a_client_does_not_depend_on_the_others() {
    let few = mixture(spec(2, 20, Heterogeneity::dirichlet(0.5, 2)), 8);
    let many = mixture(spec(40, 30, Heterogeneity::dirichlet(0.5, 2)), 8);
    assert_eq!(few.client_weights(1), many.client_weights(1));
    assert_eq!(few.table(1).unwrap().values, many.table(1).unwrap().values[..40]);
    assert_ne!(few.table(0).unwrap(), few.table(1).unwrap());
    let other = mixture(spec(2, 20, Heterogeneity::dirichlet(0.5, 2)), 9);
    assert_ne!(hash_tables(&few.tables().unwrap()), hash_tables(&other.tables().unwrap()));
}

#[test]
fn the_dial_sets_the_clients_weights() {
    let same = mixture(spec(5, 1, Heterogeneity::Identical), 1);
    assert!((0..5).all(|i| same.client_weights(i) == [0.3, 0.7]));
    let single = mixture(spec(5, 40, Heterogeneity::OneComponent), 1);
    for i in 0..5 {
        assert_eq!(single.stream(i).components(0, 40), vec![i % 2; 40]);
    }
    // Dirichlet(1, 3) over 4000 clients: mean 1/4, variance (1/4)(3/4)/5 = 0.0375. The mean's
    // standard error is 0.0031; five of them bound a false alarm below 1e-6.
    let spread = mixture(spec(4000, 1, Heterogeneity::Dirichlet(vec![1.0, 3.0])), 1);
    let firsts: Vec<f64> = (0..4000).map(|i| spread.client_weights(i)[0]).collect();
    let mean = firsts.iter().sum::<f64>() / 4000.0;
    let variance = firsts.iter().map(|w| (w - mean) * (w - mean)).sum::<f64>() / 4000.0;
    assert!((mean - 0.25).abs() < 5.0 * 0.0031, "{mean}");
    assert!((variance - 0.0375).abs() < 0.005, "{variance}");
}

#[test]
fn rows_have_the_moments_of_the_mixture() {
    let n = 40_000;
    let drawn = mixture(spec(1, n, Heterogeneity::Identical), 3);
    let table = drawn.table(0).unwrap();
    let parts = drawn.stream(0).components(0, n);
    let share = parts.iter().filter(|k| **k == 1).count() as f64 / n as f64;
    // Standard errors: 0.0023 of the share, at most 1/sqrt(0.3 n) = 0.0091 of a mean and
    // sqrt(2 / (0.3 n)) = 0.013 of a covariance; five of each.
    assert!((share - 0.7).abs() < 5.0 * 0.0023, "{share}");
    let spec = drawn.spec();
    for k in 0..2 {
        let rows: Vec<&[f64]> = (0..n).filter(|i| parts[*i] == k).map(|i| table.row(i)).collect();
        let count = rows.len() as f64;
        let mean: Vec<f64> =
            (0..2).map(|j| rows.iter().map(|r| r[j]).sum::<f64>() / count).collect();
        for (got, expected) in pairs(&mean, &spec.means[k]) {
            assert!((got - expected).abs() < 5.0 * 0.0091, "mean of {k}: {got}");
        }
        for (i, j, expected) in [(0, 0, 1.0), (0, 1, 0.3), (1, 1, 0.8)] {
            let centred = rows.iter().map(|r| (r[i] - mean[i]) * (r[j] - mean[j]));
            let covariance = centred.sum::<f64>() / count;
            assert!((covariance - expected).abs() < 5.0 * 0.013, "covariance {k} {i} {j}");
        }
    }
}

#[test]
fn clients_have_the_sizes_asked_for() {
    let spec =
        MixtureSpec { rows: Sizes::Given(vec![1, 2, 3]), ..spec(3, 0, Heterogeneity::Identical) };
    let tables = mixture(spec, 1).tables().unwrap();
    assert_eq!(tables.iter().map(|(_, t)| t.rows()).collect::<Vec<_>>(), [1, 2, 3]);
    assert_eq!(tables[2].0, "client-2");
}

#[test]
fn impossible_mixtures_are_refused_with_the_reason() {
    let good = || spec(2, 5, Heterogeneity::Identical);
    let covariance = |covariance| MixtureSpec { covariance, ..good() };
    let weights = |weights| MixtureSpec { weights, ..good() };
    let means = |means| MixtureSpec { means, ..good() };
    let skew = vec![vec![1.0, 0.5], vec![0.0, 1.0]];
    let identity = vec![vec![1.0, 0.0], vec![0.0, 1.0]];
    let cases = [
        (weights(vec![0.3, 0.6]), "mixture weights [0.3, 0.6] sum to 0.8999999999999999"),
        (weights(vec![f64::NAN, 1.0]), "mixture weights [NaN, 1.0] sum to NaN"),
        (weights(vec![]), "a mixture without components"),
        (means(vec![vec![1.0, 2.0]]), "1 means for 2 weights"),
        (means(vec![vec![1.0, 2.0], vec![1.0]]), "the means are not finite vectors of one length"),
        (
            covariance(Covariance::Shared(vec![vec![1.0; 2]; 2])),
            "the covariance is not positive definite",
        ),
        (
            covariance(Covariance::PerComponent(vec![identity, skew])),
            "the covariance of component 1 is not a symmetric 2 x 2 matrix",
        ),
        (
            MixtureSpec { heterogeneity: Heterogeneity::Dirichlet(vec![0.2]), ..good() },
            "concentrations [0.2] for 2 components",
        ),
        (MixtureSpec { rows: Sizes::Given(vec![3]), ..good() }, "2 clients with rows Given([3])"),
    ];
    for (bad, expected) in cases {
        let message = Mixture::new(bad, Key::root(1)).unwrap_err().to_string();
        assert_eq!(message.lines().next(), Some(expected));
    }
}
