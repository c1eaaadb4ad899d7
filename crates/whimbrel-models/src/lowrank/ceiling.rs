//! A ceiling over estimates of unobserved cells.
//!
//! A count's mean is the exponential of `theta`, and effects and factors that were never seen together
//! multiply to a mean far above anything in the data: one such cell can outweigh the deviance of all
//! others. So where there are factors no cell is estimated above the
//! larger of two fitted values: the largest among the observed cells of its row, and the largest
//! among those of its column. Every observed cell is below its ceiling by construction, so
//! the fit and its objective are what they are without one.

use super::{Factors, Family, LowRank};
use whimbrel_core::{Error, Result, vector, wire};

/// The largest `theta` of an observed cell, by row and by column; that of the whole table where a row
/// or a column has none. They reveal the cells that they are from.
#[derive(Clone, Debug, PartialEq)]
pub struct Ceiling {
    /// One per row.
    pub rows: Vec<f64>,
    /// One per column.
    pub columns: Vec<f64>,
}

wire!(Ceiling { rows, columns });

impl Ceiling {
    /// From the numbers of the observed cells (`row * columns + column`). Counts alone have one, since
    /// the means of other families do not run away, and only beside factors: effects alone are the
    /// simple model that others are compared with, and stay what they are.
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

    /// The ceiling of one cell.
    #[inline]
    pub fn at(&self, row: usize, column: usize) -> f64 {
        self.rows[row].max(self.columns[column])
    }

    fn check(&self, model: &LowRank) -> Result<()> {
        let fits = self.rows.len() == model.rows() && self.columns.len() == model.columns();
        if fits && vector::all_finite(&self.rows) && vector::all_finite(&self.columns) {
            return Ok(());
        }
        Err(Error::peer("the ceiling is not one of this table"))
    }
}

/// A table as it is judged and handed out.
#[derive(Clone, Debug, PartialEq)]
pub struct Delivered {
    /// Effects and factors.
    pub factors: Factors,
    /// What no estimate goes beyond, for counts.
    pub ceiling: Option<Ceiling>,
}

impl Delivered {
    /// From what a client was sent; refuses what does not fit the model.
    pub fn received(model: &LowRank, theta: &[f64], ceiling: Option<&Ceiling>) -> Result<Self> {
        ceiling.map_or(Ok(()), |ceiling| ceiling.check(model))?;
        let factors = Factors::from_vector(model, theta)?;
        Ok(Self { factors, ceiling: ceiling.cloned() })
    }

    /// `theta_jl` of the model it is of, not boxed.
    #[inline]
    pub fn theta(&self, model: &LowRank, row: usize, column: usize) -> f64 {
        capped(self.ceiling.as_ref(), model.theta(&self.factors, row, column), row, column)
    }
}

/// `theta` below the ceiling, where there is one.
#[inline]
pub(super) fn capped(ceiling: Option<&Ceiling>, theta: f64, row: usize, column: usize) -> f64 {
    ceiling.map_or(theta, |ceiling| theta.min(ceiling.at(row, column)))
}
