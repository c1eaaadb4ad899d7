//! A ceiling on the estimates of unobserved counts.
//!
//! The mean of a count is the exponential of `theta`, so effects and factors that were never observed
//! together can multiply to a mean far above the data, and one such cell can dominate the deviance. In a
//! model with factors, no estimate therefore exceeds the larger of two fitted values: the maximum over
//! the observed cells of its row, and that over its column. Observed cells are never changed, so the
//! ceiling affects neither the fit nor its objective.

use super::{Factors, Family, LowRank};
use whimbrel_core::{Error, Result, vector, wire};

/// The largest fitted `theta` over the observed cells of each row and of each column, or of the whole
/// table for a row or column without observations. Each value discloses the cell that attains it.
#[derive(Clone, Debug, PartialEq)]
pub struct Ceiling {
    pub rows: Vec<f64>,
    pub columns: Vec<f64>,
}

wire!(Ceiling { rows, columns });

impl Ceiling {
    /// The ceiling of a fit to the observed cells, given by their indices. `None` for other families,
    /// whose means are bounded or linear in `theta`, and for models without factors, which serve as
    /// baselines.
    pub fn over(
        model: &LowRank,
        factors: &Factors,
        observed: impl Iterator<Item = u64>,
    ) -> Option<Self> {
        if model.family() != Family::Poisson || model.rank() == 0 {
            return None;
        }
        let none = f64::NEG_INFINITY;
        let (mut rows, mut columns) = (vec![none; model.rows()], vec![none; model.columns()]);
        let mut all = none;
        for cell in observed {
            let [row, column] = model.place(cell);
            let theta = model.theta(factors, row, column);
            rows[row] = rows[row].max(theta);
            columns[column] = columns[column].max(theta);
            all = all.max(theta);
        }
        rows.iter_mut().chain(&mut columns).filter(|x| **x == none).for_each(|x| *x = all);
        (all > none).then_some(Self { rows, columns })
    }

    #[inline]
    pub fn at(&self, row: usize, column: usize) -> f64 {
        self.rows[row].max(self.columns[column])
    }

    fn check(&self, model: &LowRank) -> Result<()> {
        let fits = self.rows.len() == model.rows() && self.columns.len() == model.columns();
        if fits && vector::all_finite(&self.rows) && vector::all_finite(&self.columns) {
            return Ok(());
        }
        Err(Error::peer("the ceiling does not fit this table"))
    }
}

/// The published form of a fit: parameters and ceiling.
#[derive(Clone, Debug, PartialEq)]
pub struct Delivered {
    pub factors: Factors,
    pub ceiling: Option<Ceiling>,
}

impl Delivered {
    /// A received fit; refuses lengths that do not match the model.
    pub fn received(model: &LowRank, theta: &[f64], ceiling: Option<&Ceiling>) -> Result<Self> {
        ceiling.map_or(Ok(()), |ceiling| ceiling.check(model))?;
        let factors = Factors::from_vector(model, theta)?;
        Ok(Self { factors, ceiling: ceiling.cloned() })
    }

    /// `theta_jl` below its ceiling, not clipped to the family's bound.
    #[inline]
    pub fn theta(&self, model: &LowRank, row: usize, column: usize) -> f64 {
        capped(self.ceiling.as_ref(), model.theta(&self.factors, row, column), row, column)
    }
}

/// `theta`, at most its ceiling if there is one.
#[inline]
pub(super) fn capped(ceiling: Option<&Ceiling>, theta: f64, row: usize, column: usize) -> f64 {
    ceiling.map_or(theta, |ceiling| theta.min(ceiling.at(row, column)))
}
