//! Laws of mixtures: labels of components are arbitrary, and EM commutes with affine maps of the rows.

use crate::cases::{covariances, e_step, model, parameters, rows};
use crate::mixed::{COLUMNS, mixed, table};
use proptest::prelude::*;
use whimbrel_core::Key;
use whimbrel_models::gmm::{Covariance, Gmm, GmmParameters};
use whimbrel_models::mixed::{ColumnKind, Mixed, MixedParameters, Numeric};
use whimbrel_models::{LatentModel, MixtureModel, Rows};
use whimbrel_testkit::pairs;

/// `y -> A y + b` with a lower triangular `A`, row-major.
struct Map {
    a: Vec<f64>,
    b: Vec<f64>,
}

impl Map {
    /// Diagonal entries between 0.5 and 2 in size, the others below 1, shifts below 10.
    fn of(numbers: &[f64], d: usize, is_diagonal: bool) -> Self {
        let entry = |at: usize| match (at / d, at % d) {
            (i, j) if i == j => (0.5 + 1.5 * numbers[at].abs()).copysign(numbers[at]),
            (i, j) if i > j && !is_diagonal => numbers[at],
            _ => 0.0,
        };
        let b = numbers.iter().rev().take(d).map(|x| 10.0 * x).collect();
        Self { a: (0..d * d).map(entry).collect(), b }
    }

    fn identity(d: usize) -> Self {
        let a = (0..d * d).map(|at| f64::from(u8::from(at % (d + 1) == 0))).collect();
        Self { a, b: vec![0.0; d] }
    }

    fn points(&self, values: &[f64]) -> Vec<f64> {
        let d = self.b.len();
        let row = |y: &[f64]| -> Vec<f64> {
            let of = |i: usize| (0..=i).map(|j| self.a[i * d + j] * y[j]).sum::<f64>() + self.b[i];
            (0..d).map(of).collect()
        };
        values.chunks_exact(d).flat_map(row).collect()
    }

    /// `A Sigma A'`
    fn covariance(&self, sigma: &[f64]) -> Vec<f64> {
        let d = self.b.len();
        let entry = |at: usize| {
            let pairs = (0..d).flat_map(|k| (0..d).map(move |l| (k, l)));
            let (i, j) = (at / d, at % d);
            pairs.map(|(k, l)| self.a[i * d + k] * sigma[k * d + l] * self.a[j * d + l]).sum()
        };
        (0..d * d).map(entry).collect()
    }

    fn log_det(&self) -> f64 {
        self.a.iter().step_by(self.b.len() + 1).map(|x| x.abs().ln()).sum()
    }
}

/// The mixture and its parameters after the map, with the components in this order.
fn mapped(model: &Gmm, theta: &GmmParameters, order: &[usize], map: &Map) -> (Gmm, GmmParameters) {
    let (components, d) = (model.components(), model.columns());
    let of = |k: usize| map.covariance(&theta.covariance(k));
    let (kind, covariance) = match &model.settings().covariance {
        Covariance::Known(matrix) => (Covariance::Known(map.covariance(matrix)), Vec::new()),
        Covariance::Tied => (Covariance::Tied, of(0)),
        kind @ (Covariance::Diagonal | Covariance::Spherical) => {
            let variances = |k: &usize| of(*k).into_iter().step_by(d + 1).collect::<Vec<f64>>();
            (kind.clone(), order.iter().flat_map(variances).collect())
        }
        Covariance::Full => (Covariance::Full, order.iter().flat_map(|k| of(*k)).collect()),
    };
    let weights: Vec<f64> = order.iter().map(|k| theta.weights()[*k]).collect();
    let means: Vec<f64> = order.iter().flat_map(|k| theta.mean(*k).to_vec()).collect();
    let other = crate::cases::model(components, d, kind);
    let theta = other.parameters(&weights, &map.points(&means), &covariance).unwrap();
    (other, theta)
}

/// One EM step; with the log-likelihood before it and the smallest weight after it.
fn step(model: &Gmm, theta: &GmmParameters, values: &[f64]) -> (f64, f64, GmmParameters) {
    let data = model.data_from_rows(values).unwrap();
    let (statistic, fit) = e_step(model, theta, &data);
    let found = model.maximize(&statistic, &model.moments(&data).unwrap()).unwrap();
    assert_eq!(found.repairs, 0);
    let least = statistic[..model.components()].iter().copied().fold(1.0, f64::min);
    (fit, least, found.theta)
}

fn assert_close(found: &[f64], expected: &[f64], tolerance: f64) {
    assert_eq!(found.len(), expected.len());
    for (x, y) in pairs(found, expected) {
        assert!((x - y).abs() <= tolerance, "{x} is not {y} +- {tolerance:e}");
    }
}

/// Raw second moments are at most the square of the largest value, and covariances are differences of
/// them divided by a weight. Rounding is a few hundred units of their size: sums over rows and components,
/// and products with inverse factors, whose entries are below 4.
fn tolerance(values: &[f64], least: f64) -> f64 {
    let largest = values.iter().filter(|x| !x.is_nan()).fold(1.0, |m: f64, x| m.max(x.abs()));
    1e3 * f64::EPSILON * largest * largest / least
}

fn assert_equivariant(model: &Gmm, order: &[usize], map: &Map, seed: u64) {
    let theta = parameters(model, 0.0);
    let values = rows(model, &theta, 400, seed);
    let (fit, least, next) = step(model, &theta, &values);
    let (other, theta) = mapped(model, &theta, order, map);
    let moved = map.points(&values);
    let (other_fit, _, found) = step(&other, &theta, &moved);
    let (_, expected) = mapped(model, &next, order, map);
    let tolerance = tolerance(&[values, moved].concat(), least);
    assert_close(&[other_fit], &[fit - map.log_det()], tolerance);
    assert_close(found.weights(), expected.weights(), tolerance);
    assert_close(found.means(), expected.means(), tolerance);
    for k in 0..order.len() {
        assert_close(&found.covariance(k), &expected.covariance(k), tolerance);
    }
}

fn shuffled(components: usize, seed: u64) -> Vec<usize> {
    let mut order: Vec<u32> = (0..components as u32).collect();
    Key::root(seed).stream().shuffle(&mut order);
    order.into_iter().map(|k| k as usize).collect()
}

/// The parameters with the components in this order, and each number `j` mapped to `a_j x + b_j`.
fn mapped_mixed(
    model: &Mixed,
    theta: &MixedParameters,
    order: &[usize],
    maps: &[(f64, f64)],
) -> MixedParameters {
    let k = model.components();
    let in_order = |values: &[f64]| -> Vec<f64> {
        let width = values.len() / k;
        order.iter().flat_map(|k| values[k * width..][..width].to_vec()).collect()
    };
    let (gaussian, d) = (theta.gaussian().unwrap(), maps.len());
    let mean = |at: usize| maps[at % d].0 * gaussian.means()[at] + maps[at % d].1;
    let means: Vec<f64> = (0..k * d).map(mean).collect();
    let is_full = model.settings().numeric == Numeric::Full;
    let covariance = |k: usize| -> Vec<f64> {
        let sigma = gaussian.covariance(k);
        let entries = (0..d * d).filter(|at| is_full || at % (d + 1) == 0);
        entries.map(|at| maps[at / d].0 * sigma[at] * maps[at % d].0).collect()
    };
    let covariances: Vec<f64> = (0..k).flat_map(covariance).collect();
    let [weights, means, covariances, rates, levels] =
        [theta.weights(), &means, &covariances, theta.rates(), theta.levels()].map(in_order);
    model.parameters(&weights, &means, &covariances, &rates, &levels).unwrap()
}

/// Columns can be rescaled one by one only: cells are missing.
fn assert_mixed_equivariant(numeric: Numeric, order: &[usize], maps: &[(f64, f64)], seed: u64) {
    let model = mixed(order.len(), &COLUMNS, numeric);
    let values = table(300, 0.2, seed);
    let data = model.data_from_rows(&values).unwrap();
    let theta =
        model.initial_from_moments(&model.moments(&data).unwrap(), Key::root(seed)).unwrap();
    let number = |column: usize| model.numbers().iter().position(|j| *j == column);
    let mut log_det = 0.0;
    let moved: Vec<f64> = values
        .iter()
        .enumerate()
        .map(|(at, x)| {
            let Some((a, b)) = number(at % COLUMNS.len()).map(|j| maps[j]) else { return *x };
            log_det += if x.is_nan() { 0.0 } else { a.abs().ln() / 300.0 };
            a * x + b
        })
        .collect();
    let step = |theta: &MixedParameters, values: &[f64]| {
        let data = model.data_from_rows(values).unwrap();
        let mut statistic = vec![0.0; model.statistic_len()];
        let fit = model.expect(theta, &data, Rows::All, &mut statistic).unwrap();
        let least = statistic[..order.len()].iter().copied().fold(1.0, f64::min);
        (fit, least, model.maximize(&statistic, &[]).unwrap().theta)
    };
    let (fit, least, next) = step(&theta, &values);
    let (other_fit, _, found) = step(&mapped_mixed(&model, &theta, order, maps), &moved);
    let expected = mapped_mixed(&model, &next, order, maps);
    let tolerance = tolerance(&[values, moved].concat(), least);
    assert_close(&[other_fit], &[fit - log_det], tolerance);
    assert_close(found.weights(), expected.weights(), tolerance);
    assert_close(found.rates(), expected.rates(), tolerance);
    assert_close(found.levels(), expected.levels(), tolerance);
    let (found, expected) = (found.gaussian().unwrap(), expected.gaussian().unwrap());
    assert_close(found.means(), expected.means(), tolerance);
    for k in 0..order.len() {
        assert_close(&found.covariance(k), &expected.covariance(k), tolerance);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn labels_of_components_are_arbitrary(
        kind in 0usize..4, components in 1usize..5, d in 1usize..4, seed in any::<u64>(),
    ) {
        let model = model(components, d, covariances(d)[kind].clone());
        assert_equivariant(&model, &shuffled(components, seed), &Map::identity(d), seed);
    }

    #[test]
    fn em_commutes_with_affine_maps(
        kind in 0usize..4, components in 1usize..4, d in 1usize..4, seed in any::<u64>(),
        numbers in prop::collection::vec(-1.0f64..1.0, 16),
    ) {
        let model = model(components, d, covariances(d)[kind].clone());
        let is_diagonal = model.settings().covariance == Covariance::Diagonal;
        let order: Vec<usize> = (0..components).collect();
        assert_equivariant(&model, &order, &Map::of(&numbers, d, is_diagonal), seed);
    }

    #[test]
    fn tables_have_arbitrary_labels_and_units(
        is_full in any::<bool>(), components in 1usize..4, seed in any::<u64>(),
        numbers in prop::collection::vec((0.5f64..2.0, -10.0f64..10.0), 3),
    ) {
        let count = COLUMNS.iter().filter(|kind| **kind == ColumnKind::Number).count();
        prop_assert_eq!(count, numbers.len());
        let numeric = if is_full { Numeric::Full } else { Numeric::Diagonal };
        assert_mixed_equivariant(numeric, &shuffled(components, seed), &numbers, seed);
    }
}
