//! A ceiling over what nobody observed.
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
/// or a column has none. Whoever has them can tell the cells that they are from.
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
            let (row, column) = (cell as usize / model.columns(), cell as usize % model.columns());
            let theta = factors.theta(row, column);
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

    /// `theta_jl`, not boxed.
    #[inline]
    pub fn theta(&self, row: usize, column: usize) -> f64 {
        capped(self.ceiling.as_ref(), self.factors.theta(row, column), row, column)
    }
}

/// `theta` below the ceiling, where there is one.
#[inline]
pub(super) fn capped(ceiling: Option<&Ceiling>, theta: f64, row: usize, column: usize) -> f64 {
    ceiling.map_or(theta, |ceiling| theta.min(ceiling.at(row, column)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lowrank::{Effects, Settings};
    use whimbrel_core::Key;

    fn model(family: Family) -> LowRank {
        let settings = Settings::new(6, 5, family);
        LowRank::new(Settings { effects: Effects::RowColumn, rank: 2, ..settings }).unwrap()
    }

    #[test]
    fn no_observed_cell_is_moved_and_no_other_goes_beyond_its_row_and_column() {
        let model = model(Family::Poisson);
        let mut factors = Factors::start(&model, 3.0, Key::root(1));
        // A row and a column that are large, and were not seen together.
        (factors.row_effects[3], factors.column_effects[0]) = (2.0, 2.0);
        // Row 5 and column 4 were never seen.
        let cells: Vec<u64> = (0..25).filter(|i| i % 5 != 4 && i % 3 != 0).collect();
        let ceiling = Ceiling::over(&model, &factors, cells.iter().copied());
        let table = Delivered { factors: factors.clone(), ceiling };
        let theta = |cell: u64| factors.theta(cell as usize / 5, cell as usize % 5);
        let largest = |of: &dyn Fn(u64) -> bool| {
            let seen = cells.iter().filter(|cell| of(**cell)).map(|cell| theta(*cell));
            seen.fold(f64::NEG_INFINITY, f64::max)
        };
        let all = largest(&|_| true);
        for cell in 0..30u64 {
            let (row, column) = (cell / 5, cell % 5);
            let bound = match (row, column) {
                (5, _) | (_, 4) => all,
                _ => largest(&|c| c / 5 == row).max(largest(&|c| c % 5 == column)),
            };
            let found = table.theta(row as usize, column as usize);
            assert_eq!(found, theta(cell).min(bound), "{row} {column}");
            assert!(!cells.contains(&cell) || found == theta(cell));
        }
        let moved = (0..30).filter(|cell| table.theta(cell / 5, cell % 5) != theta(*cell as u64));
        assert!(moved.count() > 0, "a ceiling that nothing reaches tests nothing");
    }

    #[test]
    fn only_counts_have_one_and_only_where_something_was_seen() {
        for family in Family::ALL {
            let model = model(family);
            let factors = Factors::zero(&model);
            let found = Ceiling::over(&model, &factors, [7].into_iter());
            assert_eq!(found.is_some(), family == Family::Poisson);
            assert_eq!(Ceiling::over(&model, &factors, [].into_iter()), None);
        }
    }

    #[test]
    fn a_ceiling_of_another_shape_is_refused() {
        let model = model(Family::Poisson);
        let factors = Factors::start(&model, 3.0, Key::root(1));
        let theta = factors.to_vector(&model);
        let good = Ceiling::over(&model, &factors, 0..12).unwrap();
        let table = Delivered::received(&model, &theta, Some(&good)).unwrap();
        assert_eq!(table, Delivered { factors, ceiling: Some(good.clone()) });
        let broken: [fn(&mut Ceiling); 2] =
            [|ceiling| ceiling.rows.push(1.0), |ceiling| ceiling.columns[0] = f64::INFINITY];
        for spoil in broken {
            let mut bad = good.clone();
            spoil(&mut bad);
            assert!(Delivered::received(&model, &theta, Some(&bad)).is_err());
        }
    }
}
