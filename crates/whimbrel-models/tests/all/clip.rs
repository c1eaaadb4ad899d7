//! Rows with a bounded influence: the closed form of a row's norm, and the sensitivity of sums.

use crate::cases::{covariances, gap, model, parameters, rows};
use crate::convex::{labelled, problems};
use proptest::prelude::*;
use whimbrel_core::{FeatureRows, vector};
use whimbrel_models::gmm::Gmm;
use whimbrel_models::{LatentModel, MixtureModel, Rows};

/// The sum of the rows' clipped statistics in the frame, row by row.
fn by_rows(model: &Gmm, rows: &[f64], bound: f64) -> Vec<f64> {
    let theta = parameters(model, 0.0);
    let frame = model.frame(&theta).unwrap();
    let mut sum = vec![0.0; model.statistic_len()];
    for row in rows.chunks_exact(model.columns()) {
        let data = model.data_from_rows(row).unwrap();
        let mut one = vec![0.0; sum.len()];
        model.expect(&theta, &data, Rows::All, &mut one).unwrap();
        frame.forward(&mut one);
        let norm = vector::norm2_squared(&one).sqrt();
        vector::axpy(&mut sum, (bound / norm).min(1.0), &one);
    }
    sum
}

/// The same by the E-step.
fn clipped(model: &Gmm, rows: &[f64], bound: f64) -> Vec<f64> {
    let theta = parameters(model, 0.0);
    let data = model.data_from_rows(rows).unwrap();
    let mut sum = vec![0.0; model.statistic_len()];
    model.expect_clipped(&theta, &data, bound, &mut sum).unwrap();
    vector::scale(&mut sum, (rows.len() / model.columns()) as f64);
    model.frame(&theta).unwrap().forward(&mut sum);
    sum
}

#[test]
fn the_closed_form_of_a_rows_norm_is_that_of_its_coordinates() {
    for d in [1, 3, 8, 11] {
        for covariance in covariances(d) {
            let model = model(3, d, covariance);
            let mut rows = rows(&model, &parameters(&model, 0.0), 70, 4);
            rows.iter_mut().step_by(5).for_each(|x| *x *= 6.0);
            for bound in [0.3, 1.5 * (model.statistic_len() as f64).sqrt(), 1e9] {
                let (there, here) = (by_rows(&model, &rows, bound), clipped(&model, &rows, bound));
                assert!(gap(&there, &here) < 1e-9, "d = {d}, bound {bound}");
            }
        }
    }
}

/// Rows and means far from the origin: the errors against the same rows moved to it stay below the
/// bound, and narrow components have a large one.
#[test]
fn rounding_errors_of_clipped_sums_are_bounded() {
    let offset = 1024.0;
    for covariance in covariances(3) {
        let model = model(2, 3, covariance);
        let near = parameters(&model, 0.0);
        // Means and rows are multiples of 2^-20, so that the moves are exact.
        let whole = |x: f64| (x * 2f64.powi(20)).round() * 2f64.powi(-20);
        let mut coordinates = model.to_vector(&near);
        coordinates[2..8].iter_mut().for_each(|x| *x = whole(*x));
        let near = model.from_vector(&coordinates).unwrap();
        coordinates[2..8].iter_mut().for_each(|x| *x += offset);
        let far = model.from_vector(&coordinates).unwrap();
        let mut rows: Vec<f64> = rows(&model, &near, 900, 4);
        rows.iter_mut().for_each(|x| *x = whole(*x));
        let sum = |theta, rows: &[f64]| {
            let data = model.data_from_rows(rows).unwrap();
            let mut sum = vec![0.0; model.statistic_len()];
            model.expect_clipped(theta, &data, 4.0, &mut sum).unwrap();
            vector::scale(&mut sum, 900.0);
            model.frame(theta).unwrap().forward(&mut sum);
            sum
        };
        let there = sum(&near, &rows);
        rows.iter_mut().for_each(|x| *x += offset);
        let errors = sum(&far, &rows).into_iter().zip(there).map(|(a, b)| (a - b).abs());
        let (error, bound) =
            (vector::largest(errors), model.clipped_rounding(&far, 900, 4.0, None));
        assert!(error > 0.0 && error < bound && bound < 1.0, "{error:e} {bound:e}");
        let state = vec![1e6; model.statistic_len()];
        assert!(model.clipped_rounding(&far, 900, 4.0, Some(&state)) > bound);
    }
}

#[test]
fn the_expected_statistic_is_a_fixed_point_of_the_m_step() {
    for covariance in covariances(4) {
        let model = model(3, 4, covariance);
        let theta = parameters(&model, 1.0);
        let expected = model.expected(&theta).unwrap();
        if model.moments_len() == 0 {
            let back = model.maximize(&expected, &[]).unwrap().theta;
            assert!(gap(&model.to_vector(&back), &model.to_vector(&theta)) < 1e-9);
        }
        assert!(gap(&expected[..3], theta.weights()) < 1e-12);
    }
}

fn distance(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| (a - b) * (a - b)).sum::<f64>().sqrt()
}

proptest! {
    #[test]
    fn a_row_moves_the_sum_of_statistics_by_the_bound_at_most(
        d in 1usize..6,
        kind in 0usize..4,
        others in prop::collection::vec(-5.0f64..5.0, 0..12),
        added in prop::collection::vec(prop_oneof![-5.0f64..5.0, -1e4f64..1e4], 6),
        bound in 0.01f64..20.0,
    ) {
        let model = model(2, d, covariances(d)[kind].clone());
        let mut rows: Vec<f64> = vec![0.5; d];
        rows.extend(&others[..others.len() / d * d]);
        let before = clipped(&model, &rows, bound);
        rows.extend(&added[..d]);
        let after = clipped(&model, &rows, bound);
        prop_assert!(distance(&before, &after) <= bound * (1.0 + 1e-6));
    }

    #[test]
    fn a_row_moves_the_sum_of_gradients_by_the_bound_at_most(
        w in prop::collection::vec(-3.0f64..3.0, 3),
        x in prop::collection::vec(prop_oneof![-2.0f64..2.0, -1e6f64..1e6], 8),
        bound in 0.01f64..20.0,
        sparse in any::<bool>(),
    ) {
        for problem in problems(0.1, true) {
            let sum = |rows: usize| {
                let values = x[..2 * rows].to_vec();
                let features = if sparse {
                    let starts = (0..=rows).map(|i| 2 * i).collect();
                    FeatureRows::Sparse { starts, columns: [0, 1].repeat(rows), values }
                } else {
                    FeatureRows::Dense(values)
                };
                let data = labelled(2, features, [1.0, -1.0].repeat(2)[..rows].to_vec());
                let data = problem.bind(&data).unwrap();
                let mut out = vec![0.0; 3];
                // The divisor is public: here one, so that the penalty counts once.
                let all = (Rows::All, 1.0);
                problem.clipped_gradient(&w, &data, all, bound, &mut out).unwrap();
                out
            };
            prop_assert!(distance(&sum(3), &sum(4)) <= bound * (1.0 + 1e-9));
        }
    }
}
