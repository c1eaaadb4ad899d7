//! Starts and sampling.

use crate::cases::{covariance_matrix, covariances, gap, model, parameters, rows};
use whimbrel_core::Key;
use whimbrel_models::gmm::{Covariance, Gmm, GmmSettings};
use whimbrel_models::kmeans::kmeans;
use whimbrel_models::{LatentModel, MixtureModel};

fn wanting_moments(components: usize, columns: usize, covariance: Covariance) -> Gmm {
    let settings =
        GmmSettings { want_moments: true, ..GmmSettings::new(components, columns, covariance) };
    Gmm::new(settings).unwrap()
}

/// Mean and covariance (row-major) of rows.
fn mean_and_covariance(values: &[f64], d: usize) -> (Vec<f64>, Vec<f64>) {
    let n = (values.len() / d) as f64;
    let mut mean = vec![0.0; d];
    let mut covariance = vec![0.0; d * d];
    for y in values.chunks(d) {
        (0..d).for_each(|i| mean[i] += y[i] / n);
    }
    for y in values.chunks(d) {
        for i in 0..d {
            for j in 0..d {
                covariance[i * d + j] += (y[i] - mean[i]) * (y[j] - mean[j]) / n;
            }
        }
    }
    (mean, covariance)
}

#[test]
fn a_start_from_moments_has_their_mean_and_covariance() {
    for covariance in covariances(3) {
        // Many components, so that the drawn means show their distribution: the standard error
        // of a mean is 0.05 and of a covariance about 0.1; bounds at 5 of them.
        let model = wanting_moments(2000, 3, covariance.clone());
        let truth = wanting_moments(2, 3, Covariance::Tied);
        let values = rows(&truth, &parameters(&truth, 5.0), 4000, 13);
        let data = truth.data_from_rows(&values).unwrap();
        let start =
            model.initial_from_moments(&truth.moments(&data).unwrap(), Key::root(3)).unwrap();
        let (mean, pooled) = mean_and_covariance(&values, 3);
        let (drawn_mean, drawn) = mean_and_covariance(start.means(), 3);
        let scale = pooled.iter().fold(0.0, |m: f64, x| m.max(x.abs()));
        for j in 0..3 {
            assert!((mean[j] - drawn_mean[j]).abs() < 5.0 * (pooled[4 * j] / 2000.0).sqrt());
        }
        assert!(gap(&drawn, &pooled) < 0.16 * scale);
        let expected = match covariance {
            Covariance::Known(matrix) => matrix,
            Covariance::Diagonal => {
                (0..9).map(|i| if i % 4 == 0 { pooled[i] } else { 0.0 }).collect()
            }
            _ => pooled,
        };
        assert!(gap(&start.covariance(1), &expected) < 1e-10);
        assert!(start.weights().iter().all(|w| *w == 1.0 / 2000.0));
    }
    let without = model(2, 3, Covariance::Full);
    assert!(without.initial_from_moments(&[], Key::root(1)).is_err());
}

#[test]
fn a_start_from_centres_has_the_covariance_within() {
    let model = wanting_moments(2, 2, Covariance::Full);
    let truth = model
        .parameters(&[0.25, 0.75], &[-20.0, 0.0, 20.0, 5.0], &covariance_matrix(2, 0.5).repeat(2))
        .unwrap();
    let values = rows(&model, &truth, 20_000, 14);
    let found = kmeans(&values, 2, None, 2, 20, Key::root(2)).unwrap();
    let data = model.data_from_rows(&values).unwrap();
    let moments = model.moments(&data).unwrap();
    let start = model.initial_from_centres(&found.centres, &found.counts, &moments).unwrap();
    let light = if start.weights()[0] < 0.5 { 0 } else { 1 };
    assert!((start.weights()[light] - 0.25).abs() < 0.02);
    assert!((start.mean(light)[0] + 20.0).abs() < 0.1);
    assert!(gap(&start.covariance(0), &covariance_matrix(2, 0.5)) < 0.05);
    assert!(model.initial_from_centres(&found.centres[2..], &[1.0], &moments).is_err());
    // A centre without rows still gets a legal weight.
    assert!(model.initial_from_centres(&found.centres, &[1.0, 0.0], &moments).is_ok());
}

#[test]
fn samples_have_the_moments_of_the_mixture() {
    for covariance in covariances(2) {
        let model = model(3, 2, covariance);
        let theta = parameters(&model, 0.0);
        let sample = model.sample(&theta, 60_000, Key::root(15)).unwrap();
        for k in 0..3 {
            let own: Vec<f64> = (0..60_000)
                .filter(|i| sample.labels[*i] == k as u32)
                .flat_map(|i| [sample.rows[2 * i], sample.rows[2 * i + 1]])
                .collect();
            let n = (own.len() / 2) as f64;
            let weight = theta.weights()[k];
            assert!((n / 60_000.0 - weight).abs() < 5.0 * (weight / 60_000.0).sqrt());
            let (mean, found) = mean_and_covariance(&own, 2);
            let expected = theta.covariance(k);
            for j in 0..2 {
                assert!((mean[j] - theta.mean(k)[j]).abs() < 5.0 * (expected[3 * j] / n).sqrt());
            }
            assert!(gap(&found, &expected) < 5.0 * (2.0 / n).sqrt());
        }
        assert_eq!(sample, model.sample(&theta, 60_000, Key::root(15)).unwrap());
        assert_ne!(sample, model.sample(&theta, 60_000, Key::root(16)).unwrap());
    }
}
