//! The step of a completed table: weakly linked effects, and reactivated components.

use crate::lowrank_cases::fitted;
use whimbrel_core::Key;
use whimbrel_models::lowrank::{Effects, Factors, Family, LowRank, Residuals, Settings, TableStep};

const ROWS: usize = 30;
const COLUMNS: usize = 6;

/// The first rows are observed in the first columns and the others in the others, `links` rows in all
/// columns. Values grow with the row.
fn cells(family: Family, links: usize) -> Vec<(u64, f64)> {
    let mut stream = Key::root(7).stream();
    let mut all = Vec::new();
    for row in 0..ROWS {
        for column in 0..COLUMNS {
            let half = (row < ROWS / 2) == (column < COLUMNS / 2);
            if half || row < links {
                let theta = 0.1 * row as f64 - 0.3 * column as f64;
                let value = family.draw(family.mean(theta), 0.5, &mut stream);
                all.push(((row * COLUMNS + column) as u64, value));
            }
        }
    }
    all
}

/// The largest slope of the objective, in any of the intercept and the effects.
fn steepest(model: &LowRank, factors: &Factors, cells: &[(u64, f64)], shrink: f64) -> f64 {
    let ridge = shrink * model.settings().lambda_effects;
    let mut slopes = vec![0.0];
    slopes.extend(factors.effects[0].iter().map(|a| ridge * a));
    slopes.extend(factors.effects[1].iter().map(|b| ridge * b));
    for (cell, value) in cells {
        let (row, column) = (*cell as usize / COLUMNS, *cell as usize % COLUMNS);
        let slope = model.family().mean(model.theta(factors, row, column)) - value;
        [0, 1 + row, 1 + ROWS + column].into_iter().for_each(|at| slopes[at] += slope);
    }
    slopes.into_iter().fold(0.0, |most, slope| f64::max(most, slope.abs()))
}

#[test]
fn effects_of_weakly_linked_halves_are_found_in_three_rounds() {
    for family in Family::ALL {
        for links in [0, 1, ROWS] {
            let effects = Effects::row_column();
            let settings = Settings { effects, rank: 0, ..Settings::new(ROWS, COLUMNS, family) };
            let model = LowRank::new(settings).unwrap();
            let cells = cells(family, links);
            let factors = fitted(&model, &cells, 10.0, 3);
            let left = steepest(&model, &factors, &cells, 10.0);
            assert!(left < 1e-9, "{family:?}, {links} links: {left:e}");
        }
    }
}

/// A fully observed Gaussian table, `5 a b^T + 2 c d^T` with orthonormal vectors, and a fit of rank 2 whose
/// first component is optimal and whose second is zero; the two are rotated.
fn stalled(lambda: f64) -> (LowRank, Factors, Vec<f64>, Residuals) {
    let settings = Settings { rank: 2, lambda, ..Settings::new(6, 5, Family::Gaussian) };
    let model = LowRank::new(settings).unwrap();
    let mut factors = Factors::zero(&model);
    let size = (5.0 - lambda).sqrt();
    for (side, n) in [(&mut factors.u, 6.0f64), (&mut factors.v, 5.0)] {
        let one = size / n.sqrt();
        side.chunks_exact_mut(2).for_each(|pair| pair.copy_from_slice(&[0.6 * one, 0.8 * one]));
    }
    let values: Vec<f64> = (0..30).map(|i| singular(i, 5.0, 2.0)).collect();
    let cell = |i: usize| (i as u64, values[i] - model.theta(&factors, i / 5, i % 5), 1.0);
    let cells = Residuals::with_copies(&model, (0..30).map(cell)).unwrap();
    (model, factors, values, cells)
}

/// Cell `i` of `first a b^T + second c d^T`.
fn singular(i: usize, first: f64, second: f64) -> f64 {
    let contrast = |at: usize, n: usize| {
        let half = n.div_ceil(2);
        let (low, high) = (half as f64, (n - half) as f64);
        let size = (low * high / n as f64).sqrt();
        if at < half { size / low } else { -size / high }
    };
    first / 30f64.sqrt() + second * contrast(i / 5, 6) * contrast(i % 5, 5)
}

/// Soft-impute shrinks the singular values 5 and 2 by the ridge: a zero component is reactivated at its size
/// exactly if its value exceeds the ridge.
#[test]
fn a_component_that_pays_is_reactivated_at_its_size() {
    for lambda in [1.5, 2.0, 2.5] {
        let (model, mut factors, mut s, push) = stalled(lambda);
        let step =
            TableStep { residuals: &push, gamma: 1.0, clients: 1.0, unobserved: 0.05, full: false };
        model.advance(&mut s, &mut factors, step).unwrap();
        for i in 0..30 {
            let wanted = singular(i, 5.0 - lambda, (2.0 - lambda).max(0.0));
            let gap = model.theta(&factors, i / 5, i % 5) - wanted;
            assert!(gap.abs() < 1e-9, "{lambda}: {gap}");
        }
    }
}

#[test]
fn the_largest_ridge_of_a_residual_is_its_largest_singular_value() {
    let (model, _, _, cells) = stalled(1.5);
    // 1.5 of the first component is left, and all of the second; their mean over four clients.
    assert!((model.lambda_max(&cells, 4.0) - 0.5).abs() < 1e-9);
}

/// Without a penalty any split between intercept, rows and columns is optimal, and none may diverge. Flat
/// directions limit the accuracy of the slopes.
#[test]
fn collinear_effects_without_a_penalty_stay_small() {
    for family in Family::ALL {
        let effects = Effects::row_column();
        let base = Settings::new(ROWS, COLUMNS, family);
        let model =
            LowRank::new(Settings { effects, rank: 0, lambda_effects: 0.0, ..base }).unwrap();
        // Yes and no in every row and column: else the optimum is infinite.
        let value = |i: usize| f64::from((i * i / 7 + i / COLUMNS).is_multiple_of(2));
        let cells: Vec<(u64, f64)> = (0..ROWS * COLUMNS).map(|i| (i as u64, value(i))).collect();
        let factors = fitted(&model, &cells, 1.0, 3);
        let left = steepest(&model, &factors, &cells, 1.0);
        let largest = factors.to_vector(&model).iter().fold(0.0f64, |most, x| most.max(x.abs()));
        assert!(left < 1e-6 && largest < 10.0, "{family:?}: slope {left:e}, effect {largest}");
    }
}
