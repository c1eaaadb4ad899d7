//! EM of a mixture depends neither on the order of its components nor on the units of its columns.

use crate::cases::{covariances, model, parameters, rows};
use proptest::prelude::*;
use whimbrel_models::gmm::{Covariance, Gmm, GmmParameters};
use whimbrel_models::{LatentModel, Rows};
use whimbrel_testkit::gap;

const COMPONENTS: usize = 3;
const STEPS: usize = 15;

/// A mixture with every covariance as a square matrix.
#[derive(Clone, Debug)]
struct Plain {
    weights: Vec<f64>,
    means: Vec<[f64; 2]>,
    covariances: Vec<[f64; 4]>,
}

impl Plain {
    fn of(theta: &GmmParameters) -> Self {
        let pair = |k| theta.mean(k).try_into().expect("two columns");
        let square = |k| theta.covariance(k).try_into().expect("two columns");
        Self {
            weights: theta.weights().to_vec(),
            means: (0..COMPONENTS).map(pair).collect(),
            covariances: (0..COMPONENTS).map(square).collect(),
        }
    }

    fn parameters(&self, model: &Gmm) -> GmmParameters {
        let covariance: Vec<f64> = match model.settings().covariance {
            Covariance::Known(_) => Vec::new(),
            Covariance::Tied => self.covariances[0].to_vec(),
            Covariance::Diagonal => self.covariances.iter().flat_map(|c| [c[0], c[3]]).collect(),
            Covariance::Full => self.covariances.concat(),
        };
        model.parameters(&self.weights, &self.means.concat(), &covariance).unwrap()
    }

    fn permuted(&self, order: &[usize]) -> Self {
        Self {
            weights: order.iter().map(|k| self.weights[*k]).collect(),
            means: order.iter().map(|k| self.means[*k]).collect(),
            covariances: order.iter().map(|k| self.covariances[*k]).collect(),
        }
    }

    fn mapped(&self, map: &Affine) -> Self {
        Self {
            weights: self.weights.clone(),
            means: self.means.iter().map(|mean| map.point(mean)).collect(),
            covariances: self.covariances.iter().map(|c| map.covariance(c)).collect(),
        }
    }

    /// The largest difference to another mixture, relative to the size of its numbers.
    fn gap(&self, other: &Self) -> f64 {
        let flat = |m: &Self| [&m.weights[..], &m.means.concat(), &m.covariances.concat()].concat();
        let (ours, theirs) = (flat(self), flat(other));
        gap(&ours, &theirs) / theirs.iter().fold(1.0, |most: f64, x| most.max(x.abs()))
    }
}

/// `y -> A y + b` with `A = R(angle) L`, a rotation after a lower triangular matrix.
#[derive(Clone, Debug)]
struct Affine {
    a: [f64; 4],
    b: [f64; 2],
    log_det: f64,
}

impl Affine {
    fn new(scales: [f64; 2], shear: f64, angle: f64, b: [f64; 2]) -> Self {
        let (sin, cos) = angle.sin_cos();
        let [p, q] = scales;
        let a = [cos * p - sin * shear, -sin * q, sin * p + cos * shear, cos * q];
        Self { a, b, log_det: (p * q).ln() }
    }

    fn point(&self, y: &[f64; 2]) -> [f64; 2] {
        let ([a, b, c, d], [e, f]) = (self.a, self.b);
        [a * y[0] + b * y[1] + e, c * y[0] + d * y[1] + f]
    }

    /// `A C A'`.
    fn covariance(&self, m: &[f64; 4]) -> [f64; 4] {
        let [a, b, c, d] = self.a;
        let across = a * c * m[0] + (a * d + b * c) * m[1] + b * d * m[3];
        [
            a * a * m[0] + 2.0 * a * b * m[1] + b * b * m[3],
            across,
            across,
            c * c * m[0] + 2.0 * c * d * m[1] + d * d * m[3],
        ]
    }
}

/// The parameters after some steps of EM, and the mean log-likelihood before the last.
fn em(model: &Gmm, start: &Plain, values: &[f64]) -> (Plain, f64) {
    let data = model.data_from_rows(values).unwrap();
    let moments = model.moments(&data).unwrap();
    let mut theta = start.parameters(model);
    let mut statistic = vec![0.0; model.statistic_len()];
    let mut likelihood = f64::NAN;
    for _ in 0..STEPS {
        likelihood = model.expect(&theta, &data, Rows::All, &mut statistic).unwrap();
        theta = model.maximize(&statistic, &moments).unwrap().theta;
    }
    (Plain::of(&theta), likelihood)
}

/// A mixture of some kind of covariance, its parameters and rows drawn from them.
fn case(kind: usize, seed: u64) -> (Gmm, Plain, Vec<f64>) {
    let model = model(COMPONENTS, 2, covariances(2)[kind].clone());
    let theta = parameters(&model, 1.0);
    let values = rows(&model, &theta, 300, seed);
    (model, Plain::of(&theta), values)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn permuted_components_stay_permuted(
        kind in 0usize..4,
        seed in 0u64..1000,
        order in Just(vec![0, 1, 2]).prop_shuffle(),
    ) {
        let (model, start, values) = case(kind, seed);
        let (found, likelihood) = em(&model, &start, &values);
        let (permuted, same) = em(&model, &start.permuted(&order), &values);
        prop_assert!(permuted.gap(&found.permuted(&order)) < 1e-9);
        prop_assert!((likelihood - same).abs() < 1e-10);
    }

    #[test]
    fn affine_maps_of_the_rows_map_the_fit(
        kind in 0usize..4,
        seed in 0u64..1000,
        scales in [0.3f64..3.0, 0.3f64..3.0],
        (shear, angle) in (-1.0f64..1.0, 0.0f64..6.28),
        shift in [-5.0f64..5.0, -5.0f64..5.0],
    ) {
        let (model, start, values) = case(kind, seed);
        // A diagonal covariance stays diagonal under changes of units only.
        let is_diagonal = model.settings().covariance == Covariance::Diagonal;
        let (shear, angle) = if is_diagonal { (0.0, 0.0) } else { (shear, angle) };
        let map = Affine::new(scales, shear, angle, shift);
        let covariance = match &model.settings().covariance {
            Covariance::Known(_) => Covariance::Known(map.covariance(&start.covariances[0]).into()),
            fitted => fitted.clone(),
        };
        let other = crate::cases::model(COMPONENTS, 2, covariance);
        let points = values.chunks_exact(2).map(|y| map.point(y.try_into().expect("two columns")));
        let mapped: Vec<f64> = points.flatten().collect();
        let (found, likelihood) = em(&model, &start, &values);
        let (wanted, moved) = (found.mapped(&map), em(&other, &start.mapped(&map), &mapped));
        prop_assert!(moved.0.gap(&wanted) < 1e-8, "{:?} {:?}", moved.0, wanted);
        prop_assert!((moved.1 - (likelihood - map.log_det)).abs() < 1e-9);
    }
}
