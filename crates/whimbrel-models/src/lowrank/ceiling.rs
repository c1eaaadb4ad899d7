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

wire!(Delivered { factors, ceiling });

impl Delivered {
    /// `theta_jl`, not boxed.
    #[inline]
    pub fn theta(&self, row: usize, column: usize) -> f64 {
        capped(self.ceiling.as_ref(), self.factors.theta(row, column), row, column)
    }

    /// What makes it of parameters that somebody has already; none where it is they.
    pub fn finish(&self, known: Option<&Factors>) -> Option<Finish> {
        let same = known.is_some_and(|known| *known == self.factors);
        let factors = (!same).then(|| self.factors.clone());
        let ceiling = self.ceiling.clone();
        (factors.is_some() || ceiling.is_some()).then_some(Finish { factors, ceiling })
    }

    /// What the finish makes of these parameters; they themselves without one. Refuses what does not
    /// fit the model.
    pub fn finished(model: &LowRank, known: Factors, finish: Option<&Finish>) -> Result<Self> {
        let out = match finish {
            None => Self { factors: known, ceiling: None },
            Some(Finish { factors, ceiling }) => {
                Self { factors: factors.clone().unwrap_or(known), ceiling: ceiling.clone() }
            }
        };
        out.check(model).map(|()| out)
    }

    fn check(&self, model: &LowRank) -> Result<()> {
        let Factors { rank, intercept, row_effects, column_effects, u, v } = &self.factors;
        let r = model.rank();
        let lengths = [row_effects.len(), column_effects.len(), u.len(), v.len()];
        let (rows, columns) = (model.rows(), model.columns());
        let finite = [row_effects, column_effects, u, v].into_iter().all(|x| vector::all_finite(x));
        if *rank as usize != r || lengths != [rows, columns, rows * r, columns * r] {
            return Err(Error::peer("the delivered factors are those of another model"));
        }
        if !(finite && intercept.is_finite()) {
            return Err(Error::peer("the delivered factors hold a number that is not finite"));
        }
        self.ceiling.as_ref().map_or(Ok(()), |ceiling| ceiling.check(model))
    }
}

/// What makes a [`Delivered`] table of the parameters that a client has: it travels.
#[derive(Clone, Debug, PartialEq)]
pub struct Finish {
    /// Other parameters, where they are not those.
    pub factors: Option<Factors>,
    /// The ceiling, where there is one.
    pub ceiling: Option<Ceiling>,
}

wire!(Finish { factors, ceiling });

/// `theta` below the ceiling, where there is one.
#[inline]
pub(super) fn capped(ceiling: Option<&Ceiling>, theta: f64, row: usize, column: usize) -> f64 {
    ceiling.map_or(theta, |ceiling| theta.min(ceiling.at(row, column)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lowrank::{Effects, Settings};
    use whimbrel_core::{Key, Wire};

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
    fn a_table_of_another_shape_is_refused() {
        let model = model(Family::Poisson);
        let factors = Factors::start(&model, 3.0, Key::root(1));
        let ceiling = Ceiling::over(&model, &factors, 0..12);
        let good = Delivered { factors: factors.clone(), ceiling };
        assert_eq!(Delivered::from_bytes(&good.to_bytes()).unwrap(), good);
        let other = Factors::zero(&model);
        for known in [&factors, &other] {
            let finish = good.finish(Some(known)).unwrap();
            assert_eq!(finish.factors.is_none(), *known == factors);
            let made = Delivered::finished(&model, known.clone(), Some(&finish)).unwrap();
            assert_eq!(made, good);
        }
        let bare = Delivered { factors: factors.clone(), ceiling: None };
        assert_eq!(bare.finish(Some(&factors)), None);
        assert_eq!(Delivered::finished(&model, factors.clone(), None).unwrap(), bare);
        let broken: [fn(&mut Delivered); 5] = [
            |d| d.factors.rank = 3,
            |d| d.factors.u.truncate(3),
            |d| d.factors.intercept = f64::NAN,
            |d| d.ceiling.as_mut().unwrap().rows.push(1.0),
            |d| d.ceiling.as_mut().unwrap().columns[0] = f64::INFINITY,
        ];
        for spoil in broken {
            let mut bad = good.clone();
            spoil(&mut bad);
            let finish = bad.finish(None);
            assert!(Delivered::finished(&model, factors.clone(), finish.as_ref()).is_err());
        }
    }
}
