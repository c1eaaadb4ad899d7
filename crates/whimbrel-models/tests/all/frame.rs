//! The frame of the complete-data Fisher information, and how far a statistic may move.

use crate::cases::{Drawn, covariances, drawn, e_step, gap, model, parameters, rows};
use whimbrel_core::{Key, linalg};
use whimbrel_models::LatentModel;
use whimbrel_models::gmm::{Covariance, Gmm, GmmParameters, GmmSettings};

fn normals(count: usize, seed: u64) -> Vec<f64> {
    let mut stream = Key::root(seed).stream();
    (0..count).map(|_| stream.normal()).collect()
}

/// The statistic of one row that is known to come from component `k`.
fn complete(model: &Gmm, k: usize, row: &[f64]) -> Vec<f64> {
    let (components, d) = (model.components(), model.columns());
    let mut s = vec![0.0; model.statistic_len()];
    s[k] = 1.0;
    s[components + k * d..][..d].copy_from_slice(row);
    let second = &mut s[components * (1 + d)..];
    match model.settings().covariance {
        Covariance::Known(_) | Covariance::Tied => {}
        Covariance::Diagonal | Covariance::Spherical => {
            (0..d).for_each(|j| second[k * d + j] = row[j] * row[j]);
        }
        Covariance::Full => {
            let size = linalg::packed_len(d);
            for i in 0..d {
                for j in 0..=i {
                    second[k * size + linalg::packed_index(i, j)] = row[i] * row[j];
                }
            }
        }
    }
    s
}

#[test]
fn both_frames_invert_to_rounding_for_every_covariance_and_width() {
    for d in [1, 2, 3, 8, 9, 20] {
        for covariance in covariances(d) {
            let model = model(3, d, covariance);
            let theta = parameters(&model, 0.0);
            let frames = [
                (model.frame(&theta).unwrap(), model.statistic_len()),
                (model.coordinates_frame(&theta).unwrap(), model.coordinates_len()),
            ];
            for (frame, length) in frames {
                let x = normals(length, 5 + d as u64);
                let mut there = x.clone();
                frame.forward(&mut there);
                assert!(gap(&there, &x) > 1e-3, "the frame is not the identity");
                frame.inverse(&mut there);
                // Condition numbers here are below 1e3.
                assert!(gap(&there, &x) < 1e-11, "d = {d}: {:e}", gap(&there, &x));
                // Linear: twice the difference is twice its image.
                let mut twice: Vec<f64> = x.iter().map(|x| 2.0 * x).collect();
                let mut once = x;
                frame.forward(&mut twice);
                frame.forward(&mut once);
                once.iter_mut().for_each(|x| *x *= 2.0);
                assert_eq!(twice, once);
            }
        }
    }
}

/// Under the model, the second moment of a row's complete-data statistic is the identity in the frame:
/// each entry's mean over 40,000 rows is within five standard errors (1,500 entries in all: a false
/// alarm in one of a thousand seeds).
#[test]
fn complete_data_statistics_are_orthonormal_in_the_frame() {
    for covariance in covariances(2) {
        let model = model(2, 2, covariance);
        let theta = parameters(&model, 3.0);
        let sample = model.sample(&theta, 40_000, Key::root(8)).unwrap();
        let frame = model.frame(&theta).unwrap();
        let q = model.statistic_len();
        let (mut sum, mut squares) = (vec![0.0; q * q], vec![0.0; q * q]);
        for (row, k) in sample.rows.chunks_exact(2).zip(&sample.labels) {
            let mut x = complete(&model, *k as usize, row);
            frame.forward(&mut x);
            for i in 0..q {
                for j in 0..q {
                    sum[i * q + j] += x[i] * x[j];
                    squares[i * q + j] += x[i] * x[j] * x[i] * x[j];
                }
            }
        }
        let n = 40_000.0;
        for i in 0..q {
            for j in 0..q {
                let (mean, square) = (sum[i * q + j] / n, squares[i * q + j] / n);
                let expected = if i == j { 1.0 } else { 0.0 };
                let error = ((square - mean * mean) / n).sqrt() + 1e-12;
                assert!((mean - expected).abs() < 5.0 * error, "({i}, {j}): {mean}");
            }
        }
    }
}

/// The map `s -> s + h(s)` of EM, run to its fixed point.
fn fitted(model: &Gmm, rows: &[f64]) -> (Vec<f64>, GmmParameters) {
    let data = model.data_from_rows(rows).unwrap();
    let moments = model.moments(&data).unwrap();
    let mut theta = parameters(model, 0.0);
    let mut s = Vec::new();
    for _ in 0..3000 {
        (s, _) = e_step(model, &theta, &data);
        theta = model.maximize(&s, &moments).unwrap().theta;
    }
    (s, theta)
}

/// At a fixed point of EM the derivative of the field is `I` less the derivative of the EM map, whose
/// eigenvalues in the frame lie between 0 and 1 (missing information): its norm, `L`, is at most one.
#[test]
fn the_field_has_a_lipschitz_constant_of_one_in_the_frame() {
    for covariance in [Covariance::Full, Covariance::Diagonal] {
        let model = model(2, 3, covariance);
        let truth = parameters(&model, 0.0);
        // Columns that are nearly equal, and one far from zero: raw coordinates are badly conditioned.
        let rows: Vec<f64> = rows(&model, &truth, 2000, 3)
            .chunks_exact(3)
            .flat_map(|y| [y[0], y[0] + 0.05 * y[1], 20.0 + 3.0 * y[2]])
            .collect();
        let (s, theta) = fitted(&model, &rows);
        let data = model.data_from_rows(&rows).unwrap();
        let moments = model.moments(&data).unwrap();
        let frame = model.frame(&theta).unwrap();
        let q = s.len();
        let field = |s: &[f64]| {
            let theta = model.maximize(s, &moments).unwrap().theta;
            let (h, _) = e_step(&model, &theta, &data);
            h.iter().zip(s).map(|(h, s)| h - s).collect::<Vec<f64>>()
        };
        // The Jacobian in the frame, and in raw coordinates: column by column.
        let (mut framed, mut raw) = (vec![0.0; q * q], vec![0.0; q * q]);
        for j in 0..q {
            for (jacobian, frame) in [(&mut framed, Some(&frame)), (&mut raw, None)] {
                let mut along = vec![0.0; q];
                along[j] = 1.0;
                frame.iter().for_each(|frame| frame.inverse(&mut along));
                // Far below the smallest variance in raw coordinates; in the frame that is one.
                let h = if frame.is_some() { 1e-5 } else { 1e-7 };
                let at = |t: f64| -> Vec<f64> {
                    field(&s.iter().zip(&along).map(|(s, x)| s + t * x).collect::<Vec<f64>>())
                };
                let mut slope: Vec<f64> =
                    at(h).iter().zip(&at(-h)).map(|(a, b)| (a - b) / (2.0 * h)).collect();
                frame.iter().for_each(|frame| frame.forward(&mut slope));
                (0..q).for_each(|i| jacobian[i * q + j] = slope[i]);
            }
        }
        let norm = |jacobian: &[f64]| {
            let mut square = vec![0.0; q * q];
            let transposed: Vec<f64> = (0..q * q).map(|at| jacobian[at % q * q + at / q]).collect();
            linalg::matmul(&mut square, &transposed, jacobian, q, q, q);
            linalg::largest_eigenvalue(&square, q).unwrap().sqrt()
        };
        // Finite differences are good to about 1e-6 here.
        let (inside, outside) = (norm(&framed), norm(&raw));
        assert!(inside < 1.0 + 1e-3 && inside > 0.9, "{inside}");
        assert!(outside > 1.2 * inside, "{outside}");
    }
}

#[test]
fn a_step_stays_inside_as_far_as_its_reach() {
    for covariance in covariances(3) {
        let model = model(2, 3, covariance);
        let theta = parameters(&model, 0.0);
        let Drawn { statistic: s, moments, .. } = drawn(&model, &theta, 400, 9);
        // On the way to zero everything shrinks alike; a tied covariance has a block that stays.
        let away: Vec<f64> = s.iter().map(|x| -x).collect();
        let reach = model.step_range(&s, &away, &moments).unwrap().unwrap();
        assert!((reach.lowest + 1.0).abs() < 1e-9, "{reach:?}");
        assert!(reach.outside.is_empty());
        // A random direction: just before the end T needs no repair, just behind it does.
        let direction = normals(s.len(), 4);
        let reach = model.step_range(&s, &direction, &moments).unwrap().unwrap();
        let end = 1.0 / -reach.lowest;
        let repairs = |gamma: f64| {
            let moved: Vec<f64> = s.iter().zip(&direction).map(|(s, h)| s + gamma * h).collect();
            let centred = GmmSettings { centred: true, ..model.settings().clone() };
            let found = Gmm::new(centred).unwrap().maximize(&moved, &moments);
            found.map_or(u32::MAX, |found| found.repairs)
        };
        assert_eq!(repairs(0.999 * end), 0);
        assert!(repairs(1.001 * end) > 0);
    }
}

/// For the statistic of rows, moments about the pooled mean give the same covariance.
#[test]
fn a_centred_m_step_is_the_same_for_statistics_of_rows() {
    let plain = model(2, 3, Covariance::Tied);
    let centred = Gmm::new(GmmSettings { centred: true, ..plain.settings().clone() }).unwrap();
    let Drawn { statistic: s, moments, .. } = drawn(&plain, &parameters(&plain, 5.0), 300, 2);
    let a = plain.maximize(&s, &moments).unwrap().theta.covariance(0);
    let b = centred.maximize(&s, &moments).unwrap().theta.covariance(0);
    assert!(gap(&a, &b) < 1e-12, "{:e}", gap(&a, &b));
}
