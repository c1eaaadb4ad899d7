//! Mixtures, rows and plain reference code that the tests share.

use whimbrel_core::Key;
use whimbrel_models::gmm::{Covariance, Gmm, GmmData, GmmParameters, GmmSettings};
use whimbrel_models::{LatentModel, Rows};

/// The four covariances, the known one not the identity.
pub fn covariances(columns: usize) -> [Covariance; 4] {
    let known = covariance_matrix(columns, 0.3);
    [Covariance::Known(known), Covariance::Tied, Covariance::Diagonal, Covariance::Full]
}

/// A well-conditioned covariance: variances 1 and 1.5 in turn, correlations below `rho`.
pub fn covariance_matrix(columns: usize, rho: f64) -> Vec<f64> {
    let mut out = vec![0.0; columns * columns];
    for i in 0..columns {
        for j in 0..columns {
            let variance = 1.0 + 0.5 * (i % 2) as f64;
            out[i * columns + j] =
                if i == j { variance } else { rho / (1.0 + i.abs_diff(j) as f64) };
        }
    }
    out
}

/// A mixture with default settings.
pub fn model(components: usize, columns: usize, covariance: Covariance) -> Gmm {
    Gmm::new(GmmSettings::new(components, columns, covariance)).unwrap()
}

/// Parameters with unequal weights, means a few deviations apart, and unequal covariances.
pub fn parameters(model: &Gmm, origin: f64) -> GmmParameters {
    let (components, d) = (model.components(), model.columns());
    let total = (components * (components + 1) / 2) as f64;
    let weights: Vec<f64> = (1..=components).map(|k| k as f64 / total).collect();
    let means: Vec<f64> = (0..components * d)
        .map(|i| origin + 1.7 * ((i * 7 + 3) % 5) as f64 - 2.0 * (i / d) as f64)
        .collect();
    let covariance = match model.settings().covariance {
        Covariance::Known(_) => Vec::new(),
        Covariance::Tied => covariance_matrix(d, 0.4),
        Covariance::Diagonal | Covariance::Spherical => {
            (0..components * d).map(|i| 0.5 + (i % 4) as f64).collect()
        }
        Covariance::Full => (0..components)
            .flat_map(|k| {
                let scale = 1.0 + k as f64;
                covariance_matrix(d, 0.2 + 0.1 * k as f64).into_iter().map(move |x| scale * x)
            })
            .collect(),
    };
    model.parameters(&weights, &means, &covariance).unwrap()
}

/// Rows drawn from the parameters.
pub fn rows(model: &Gmm, theta: &GmmParameters, n: usize, seed: u64) -> Vec<f64> {
    model.sample(theta, n, Key::root(seed)).unwrap().rows
}

/// The statistic and the log-likelihood of all rows.
pub fn e_step(model: &Gmm, theta: &GmmParameters, data: &GmmData) -> (Vec<f64>, f64) {
    let mut statistic = vec![f64::NAN; model.statistic_len()];
    let fit = model.expect(theta, data, Rows::All, &mut statistic).unwrap();
    (statistic, fit)
}

/// Rows drawn from the parameters, with their statistic at them and their moments.
pub fn drawn(model: &Gmm, theta: &GmmParameters, n: usize, seed: u64) -> Drawn {
    let data = model.data_from_rows(&rows(model, theta, n, seed)).unwrap();
    let moments = model.moments(&data).unwrap();
    let (statistic, _) = e_step(model, theta, &data);
    Drawn { data, statistic, moments }
}

pub struct Drawn {
    pub data: GmmData,
    pub statistic: Vec<f64>,
    pub moments: Vec<f64>,
}

/// `ln N(y; mean, covariance)` by Gaussian elimination.
pub fn log_normal(y: &[f64], mean: &[f64], covariance: &[f64]) -> f64 {
    let d = y.len();
    let mut a = covariance.to_vec();
    let mut x: Vec<f64> = y.iter().zip(mean).map(|(y, m)| y - m).collect();
    let centred = x.clone();
    let mut log_det = 0.0;
    for i in 0..d {
        log_det += a[i * d + i].ln();
        for r in i + 1..d {
            let f = a[r * d + i] / a[i * d + i];
            for c in i..d {
                a[r * d + c] -= f * a[i * d + c];
            }
            x[r] -= f * x[i];
        }
    }
    for i in (0..d).rev() {
        for c in i + 1..d {
            x[i] -= a[i * d + c] * x[c];
        }
        x[i] /= a[i * d + i];
    }
    let square: f64 = x.iter().zip(&centred).map(|(a, b)| a * b).sum();
    -0.5 * (d as f64 * (2.0 * std::f64::consts::PI).ln() + log_det + square)
}

/// The E-step row by row: mean statistic and mean log-likelihood.
pub fn naive_e_step(model: &Gmm, theta: &GmmParameters, rows: &[&[f64]]) -> (Vec<f64>, f64) {
    let (components, d) = (model.components(), model.columns());
    let (mut s1, mut s2, mut s3) = (vec![0.0; components], vec![0.0; components * d], Vec::new());
    let covariances: Vec<Vec<f64>> = (0..components).map(|k| theta.covariance(k)).collect();
    let mut second = vec![vec![0.0; d * d]; components];
    let mut total = 0.0;
    for y in rows {
        let scores: Vec<f64> = (0..components)
            .map(|k| theta.weights()[k].ln() + log_normal(y, theta.mean(k), &covariances[k]))
            .collect();
        let top = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let log_density = top + scores.iter().map(|s| (s - top).exp()).sum::<f64>().ln();
        total += log_density;
        for k in 0..components {
            let r = (scores[k] - log_density).exp();
            s1[k] += r;
            for i in 0..d {
                s2[k * d + i] += r * y[i];
                for j in 0..d {
                    second[k][i * d + j] += r * y[i] * y[j];
                }
            }
        }
    }
    for second in &second {
        for i in 0..d {
            match model.settings().covariance {
                Covariance::Diagonal | Covariance::Spherical => s3.push(second[i * d + i]),
                Covariance::Full => s3.extend((0..=i).map(|j| second[i * d + j])),
                _ => {}
            }
        }
    }
    let n = rows.len() as f64;
    let statistic = [s1, s2, s3].concat().into_iter().map(|x| x / n).collect();
    (statistic, total / n)
}

/// Largest difference relative to the largest number of `b`.
pub fn gap(a: &[f64], b: &[f64]) -> f64 {
    whimbrel_testkit::gap(a, b) / b.iter().fold(1e-300, |m: f64, x| m.max(x.abs()))
}
