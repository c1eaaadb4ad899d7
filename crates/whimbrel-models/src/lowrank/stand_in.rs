//! Rows and columns in which a fit had no cell.
//!
//! Only the penalty shaped their factors. With an intercept that leaves a typical row; without one
//! it leaves `theta = 0`, a count of 1 whatever the other counts are. There such a row is given the
//! `u` that fits the mean of the other rows best, and columns likewise.

use super::adapt::damping;
use super::ceiling::Delivered;
use super::{Factors, Family, LowRank};
use rayon::prelude::*;
use whimbrel_core::linalg::{cholesky, packed_index, packed_len, solve_lower};
use whimbrel_core::linalg::{solve_lower_transposed, unpack};
use whimbrel_core::vector;

/// Newton steps end when the largest change is below this, or after so many.
const CHANGE_MIN: f64 = 1e-10;
const STEPS_MAX: u32 = 100;
/// The ridge over the curvature's largest diagonal entry: directions that no column has stay put.
const RIDGE: f64 = 1e-9;

impl Delivered {
    /// The factors with stand-ins for rows and columns without a cell; none where nothing is
    /// `bare`, or the model has an intercept to fall back on.
    pub fn with_stand_ins(&self, model: &LowRank, bare: [&[usize]; 2]) -> Option<Factors> {
        let r = model.rank();
        let has_gaps = bare.iter().any(|side| !side.is_empty());
        if model.settings().effects.has_intercept() || r == 0 || !has_gaps {
            return None;
        }
        let known = [others(model.rows(), bare[0]), others(model.columns(), bare[1])];
        let mut out = self.factors.clone();
        let Factors { u, v, .. } = &self.factors;
        for (side, changed) in [&mut out.u, &mut out.v].into_iter().enumerate() {
            if bare[side].is_empty() || known[side].is_empty() {
                continue;
            }
            let one = Side {
                family: model.family(),
                r,
                factors: if side == 0 { [u, v] } else { [v, u] },
                known: [&known[side], &known[1 - side]],
            };
            let one = one.in_place_of_a_member(|own, other| match side {
                0 => self.theta(own, other),
                _ => self.theta(other, own),
            });
            bare[side].iter().for_each(|i| changed[i * r..][..r].copy_from_slice(&one));
        }
        Some(out)
    }
}

/// Those of `n` that are not listed.
fn others(n: usize, listed: &[usize]) -> Vec<usize> {
    let mut is_listed = vec![false; n];
    listed.iter().for_each(|i| is_listed[*i] = true);
    (0..n).filter(|i| !is_listed[*i]).collect()
}

/// Rows, or columns, and the other side of the table.
struct Side<'a> {
    family: Family,
    r: usize,
    factors: [&'a [f64]; 2],
    known: [&'a [usize]; 2],
}

impl Side<'_> {
    /// The factors of one more member whose means are nearest, in deviance, to the mean of the
    /// known ones, whose cells have this `theta`.
    fn in_place_of_a_member(&self, theta: impl Fn(usize, usize) -> f64 + Sync) -> Vec<f64> {
        let Self { family, r, factors: [own, other], known } = *self;
        let part = |all: &[f64], i: usize| all[i * r..][..r].to_vec();
        let n = known[0].len() as f64;
        let mut x = vec![0.0; r];
        known[0].iter().for_each(|i| vector::axpy(&mut x, 1.0 / n, &part(own, *i)));
        let targets = known[1].par_iter().map(|l| {
            let means = known[0].iter().map(|j| family.mean(theta(*j, *l)));
            (part(other, *l), means.sum::<f64>() / n)
        });
        let targets: Vec<(Vec<f64>, f64)> = targets.collect();
        for _ in 0..STEPS_MAX {
            let (mut g, mut h) = (vec![0.0; r], vec![0.0; packed_len(r)]);
            for (v, target) in &targets {
                let mean = family.mean(vector::dot(&x, v));
                let weight = family.variance(mean);
                vector::axpy(&mut g, mean - target, v);
                for k in 0..r {
                    (0..=k).for_each(|m| h[packed_index(k, m)] += weight * v[k] * v[m]);
                }
            }
            let largest = (0..r).map(|k| h[packed_index(k, k)]).fold(0.0, f64::max);
            (0..r).for_each(|k| h[packed_index(k, k)] += RIDGE * largest + f64::MIN_POSITIVE);
            let mut factor = unpack(&h, r);
            if cholesky(&mut factor, r).is_err() {
                break;
            }
            solve_lower(&factor, r, &mut g);
            solve_lower_transposed(&factor, r, &mut g);
            let moves = targets.iter().map(|(v, _)| vector::dot(v, &g).abs());
            let longest = moves.fold(0.0, f64::max);
            vector::axpy(&mut x, -damping(family, longest), &g);
            if longest < CHANGE_MIN {
                break;
            }
        }
        x
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lowrank::{Effects, Settings};
    use whimbrel_core::Key;

    fn model(family: Family, effects: Effects) -> LowRank {
        LowRank::new(Settings { rank: 2, effects, ..Settings::new(9, 7, family) }).unwrap()
    }

    fn random(model: &LowRank) -> Delivered {
        let mut factors = Factors::zero(model);
        Key::root(3).stream().fill_normal(&mut factors.u);
        Key::root(4).stream().fill_normal(&mut factors.v);
        Delivered { factors, ceiling: None }
    }

    #[test]
    fn a_gaussian_row_is_the_mean_of_the_others() {
        let model = model(Family::Gaussian, Effects::None);
        let factors = random(&model);
        let filled = factors.with_stand_ins(&model, [&[2, 5], &[]]).unwrap();
        for column in 0..7 {
            let others = (0..9).filter(|row| ![2, 5].contains(row));
            let mean = others.map(|row| factors.theta(row, column)).sum::<f64>() / 7.0;
            assert!((filled.theta(2, column) - mean).abs() < 1e-8);
            assert_eq!(filled.theta(5, column), filled.theta(2, column));
            assert_eq!(filled.theta(3, column), factors.theta(3, column));
        }
    }

    /// At the best `u` the differences to the mean of the others are orthogonal to the columns'
    /// factors.
    #[test]
    fn counts_and_yes_or_no_values_are_as_near_as_the_rank_allows() {
        for family in [Family::Poisson, Family::Bernoulli] {
            let model = model(family, Effects::None);
            let factors = random(&model);
            let filled = factors.with_stand_ins(&model, [&[0], &[6]]).unwrap();
            let v = &factors.factors.v;
            let mut slopes = [0.0; 2];
            for column in 0..6 {
                let others = (1..9).map(|row| family.mean(factors.theta(row, column)));
                let off = family.mean(filled.theta(0, column)) - others.sum::<f64>() / 8.0;
                slopes[0] += off * v[2 * column];
                slopes[1] += off * v[2 * column + 1];
            }
            assert!(slopes.iter().all(|slope| slope.abs() < 1e-6), "{family:?}: {slopes:?}");
            assert_ne!(filled.v[12..], v[12..], "columns likewise");
        }
    }

    #[test]
    fn with_an_intercept_or_without_gaps_there_are_none() {
        let plain = model(Family::Poisson, Effects::None);
        let factors = random(&plain);
        assert_eq!(factors.with_stand_ins(&plain, [&[], &[]]), None);
        let effects = model(Family::Poisson, Effects::Column);
        assert_eq!(factors.with_stand_ins(&effects, [&[1], &[2]]), None);
    }
}
