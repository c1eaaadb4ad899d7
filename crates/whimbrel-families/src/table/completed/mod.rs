//! A completed table: what a fitted low-rank model says about each cell.
//!
//! A row or column in which the fit had no cell has factors that no value shaped. Its estimate is
//! what the delivered fit says all the same, since held-out cells there are judged by that. How
//! sure it is, is another matter: such a row counts as one of the others, nobody knows which. Its
//! interval reaches from the 5 % quantile of their lower ends to the 95 % quantile of their upper
//! ends, and a draw for it picks one of them first. Columns likewise.

mod facts;
mod file;
mod sheet;

pub use facts::TableFacts;
pub use file::{ModelFile, Observations};
pub use sheet::{Sheet, write_long, write_wide};

use whimbrel_core::{Key, Stream};
use whimbrel_models::lowrank::{Calibration, LowRankFit};

/// The share of values on each side of an interval.
const TAIL: f64 = 0.05;

/// Draws for imputations, apart from all draws of the fit.
const DRAWS: u64 = 0xD4A5;

/// A fitted table with its labels.
#[derive(Clone, Debug)]
pub struct Completed {
    /// The fit.
    pub fit: LowRankFit,
    /// Labels of the rows.
    pub rows: Vec<String>,
    /// Labels of the columns.
    pub columns: Vec<String>,
    /// Whether anybody observed something in the row, and in the column.
    known: [Vec<bool>; 2],
    /// For each column, what is said about a row that nobody observed; empty without such rows.
    any_row: Vec<Estimate>,
    /// For each row, what is said about a column that nobody observed.
    any_column: Vec<Estimate>,
    /// What is said where neither was observed.
    anything: Estimate,
}

/// What is said about one cell.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// The expected value.
    pub mean: f64,
    /// The standard deviation of a value around it.
    pub sd: f64,
    /// The lower end of an interval that holds about nine values in ten.
    pub lower: f64,
    /// Its upper end.
    pub upper: f64,
}

impl Estimate {
    /// The same values seen from another mean.
    fn around(self, mean: f64) -> Self {
        let off = mean - self.mean;
        Self {
            mean,
            sd: (self.sd * self.sd + off * off).sqrt(),
            lower: self.lower.min(mean),
            upper: self.upper.max(mean),
        }
    }
}

impl Completed {
    /// A fit and the labels of its table; `bare` lists the rows and the columns in which the fit
    /// had no cell.
    pub fn new(
        fit: LowRankFit,
        rows: Vec<String>,
        columns: Vec<String>,
        bare: [&[usize]; 2],
    ) -> Self {
        let flags = |n: usize, bare: &[usize]| {
            let mut known = vec![true; n];
            bare.iter().filter(|i| **i < n).for_each(|i| known[*i] = false);
            known
        };
        let known = [flags(rows.len(), bare[0]), flags(columns.len(), bare[1])];
        let nothing = Estimate { mean: 0.0, sd: 0.0, lower: 0.0, upper: 0.0 };
        let (any_row, any_column) = (Vec::new(), Vec::new());
        let mut table = Self { fit, rows, columns, known, any_row, any_column, anything: nothing };
        let listed = |side: usize| -> Vec<usize> {
            (0..table.known[side].len()).filter(|i| table.known[side][*i]).collect()
        };
        let (rows, columns) = (listed(0), listed(1));
        if rows.len() < table.rows.len() {
            let over_rows = |c: usize| pooled(rows.iter().map(|r| table.fitted(*r, c)));
            table.any_row = (0..table.columns.len()).map(over_rows).collect();
        }
        if columns.len() < table.columns.len() {
            let over_columns = |r: usize| pooled(columns.iter().map(|c| table.fitted(r, *c)));
            table.any_column = (0..table.rows.len()).map(over_columns).collect();
        }
        if !table.any_row.is_empty() && !table.any_column.is_empty() {
            table.anything = pooled(columns.iter().map(|c| table.any_row[*c]));
        }
        table
    }

    /// What is said about a cell.
    pub fn estimate(&self, row: usize, column: usize) -> Estimate {
        let any = match (self.known[0][row], self.known[1][column]) {
            (true, true) => return self.fitted(row, column),
            (false, true) => self.any_row[column],
            (true, false) => self.any_column[row],
            (false, false) => self.anything,
        };
        any.around(self.fit.mean(row, column))
    }

    /// The value of a cell in one imputation; depends on the seed, the imputation's number and the
    /// cell alone.
    pub fn draw(&self, row: usize, column: usize, seed: u64, number: u32) -> f64 {
        let mut stream = self.stream(row, column, seed, number);
        let row = stand_in(&self.known[0], row, &mut stream);
        let column = stand_in(&self.known[1], column, &mut stream);
        self.fit.draw(row, column, &mut stream)
    }

    /// The same for a cell with another natural parameter, and how sure that is; without one, for
    /// a row that nobody observed.
    pub fn draw_of(
        &self,
        known: Option<(f64, f64)>,
        row: usize,
        column: usize,
        seed: u64,
        number: u32,
    ) -> f64 {
        let mut stream = self.stream(row, column, seed, number);
        match known {
            Some((theta, spread)) => self.fit.draw_of(theta, spread, &mut stream),
            None => {
                let others: Vec<usize> =
                    (0..self.rows.len()).filter(|row| self.known[0][*row]).collect();
                let one = others[stream.below(others.len() as u64) as usize];
                self.fit.draw(one, column, &mut stream)
            }
        }
    }

    /// What is said about a row that nobody observed.
    pub fn any_row(&self, column: usize) -> Estimate {
        match self.any_row.get(column) {
            Some(estimate) => *estimate,
            None => pooled((0..self.rows.len()).map(|row| self.fitted(row, column))),
        }
    }

    /// Whether the fit had a cell in the row.
    pub fn knows_row(&self, row: usize) -> bool {
        self.known[0][row]
    }

    /// Whether the fit had cells in the row and in the column.
    pub fn knows(&self, row: usize, column: usize) -> bool {
        self.known[0][row] && self.known[1][column]
    }

    /// Rows and columns in which the fit had no cell.
    pub fn bare(&self) -> [Vec<usize>; 2] {
        [0, 1].map(|side: usize| {
            let known = &self.known[side];
            (0..known.len()).filter(|i| !known[*i]).collect()
        })
    }

    /// Where the intervals come from, in words: around the means of a client, its own effect added
    /// where it has one.
    pub fn intervals(&self) -> String {
        intervals_of(self.fit.calibration.as_ref())
    }

    /// The same around the means of the table itself. Where effects are `personal`, the scores were
    /// taken with each client's own added, and say nothing sure about means without one.
    pub fn intervals_without_effects(&self, personal: bool) -> String {
        let calibrated = self.fit.calibration.is_some_and(|c| c.calibrated);
        if !(personal && calibrated) {
            return self.intervals();
        }
        "as wide as held 90 % of the held-out cells with each client's own effect added; around \
         this table, which has no such effect, not calibrated: they may hold fewer"
            .into()
    }

    fn stream(&self, row: usize, column: usize, seed: u64, number: u32) -> Stream {
        let cell = (row * self.columns.len() + column) as u64;
        Key::root(seed).fold(DRAWS).fold(u64::from(number)).fold(cell).stream()
    }

    fn fitted(&self, row: usize, column: usize) -> Estimate {
        self.estimate_of(self.fit.theta(row, column), self.fit.spread(row, column))
    }

    /// What is said about a cell with this natural parameter, which is known up to `spread`.
    pub fn estimate_of(&self, theta: f64, spread: f64) -> Estimate {
        let (lower, upper) = self.fit.interval_of(theta, spread);
        let mean = self.fit.model.family().mean(theta);
        Estimate { mean, sd: self.fit.sd_of(theta, spread), lower, upper }
    }
}

/// Where the intervals of a calibration come from, in words.
fn intervals_of(calibration: Option<&Calibration>) -> String {
    match calibration {
        None => "90 % from the family alone: the run ended before its errors were known".into(),
        Some(c) if c.calibrated => {
            let share = c.coverage.map_or(String::new(), |share| {
                format!("; cross-checked, they hold {:.1} % of them", 100.0 * share)
            });
            let groups = match c.groups().len() {
                0 | 1 => String::new(),
                n => format!(" in {n} groups by size of the mean"),
            };
            format!("90 %, calibrated on the held-out cells (conformal){groups}{share}")
        }
        Some(c) => {
            let doubt = match c.doubtful {
                true => "; a guess, as there are fewer than two observations per parameter",
                false => "",
            };
            format!(
                "90 % from the model's own residuals (dispersion {:.3}), not checked against cells \
                 that were kept out: set `holdout`{doubt}",
                c.dispersion
            )
        }
    }
}

/// What is said about a member of a group nobody knows which.
fn pooled(members: impl Iterator<Item = Estimate>) -> Estimate {
    let members: Vec<Estimate> = members.collect();
    let n = members.len() as f64;
    let mean = members.iter().map(|e| e.mean).sum::<f64>() / n;
    // The law of total variance.
    let within = members.iter().map(|e| e.sd * e.sd).sum::<f64>() / n;
    let between = members.iter().map(|e| (e.mean - mean) * (e.mean - mean)).sum::<f64>() / n;
    let quantile = |of: fn(&Estimate) -> f64, level: f64| {
        let mut values: Vec<f64> = members.iter().map(of).collect();
        values.sort_by(f64::total_cmp);
        let at = (level * (values.len() - 1) as f64).round() as usize;
        values[at]
    };
    Estimate {
        mean,
        sd: (within + between).sqrt(),
        lower: quantile(|e| e.lower, TAIL),
        upper: quantile(|e| e.upper, 1.0 - TAIL),
    }
}

/// The index itself where it is known, else one that is.
fn stand_in(known: &[bool], index: usize, stream: &mut Stream) -> usize {
    if known[index] {
        return index;
    }
    let others: Vec<usize> = (0..known.len()).filter(|i| known[*i]).collect();
    match others.len() {
        0 => index,
        n => others[stream.below(n as u64) as usize],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use whimbrel_models::lowrank::{Effects, Factors, Family, Group, LowRank, Settings};

    /// Means `10 row + column`, without factors.
    fn table(bare: [&[usize]; 2]) -> Completed {
        let (rows, columns) = (6, 3);
        let settings = Settings {
            rank: 0,
            effects: Effects::RowColumn,
            ..Settings::new(rows, columns, Family::Gaussian)
        };
        let model = LowRank::new(settings).unwrap();
        let mut factors = Factors::zero(&model);
        factors.row_effects = (0..rows).map(|row| 10.0 * row as f64).collect();
        factors.column_effects = (0..columns).map(|column| column as f64).collect();
        let fit = LowRankFit {
            model,
            factors,
            ceiling: None,
            clients: 2,
            calibration: None,
            uncertainty: None,
        };
        let names = |n: usize| (0..n).map(|i| i.to_string()).collect();
        Completed::new(fit, names(rows), names(columns), bare)
    }

    #[test]
    fn a_row_nobody_observed_is_one_of_the_others() {
        let plain = table([&[], &[]]);
        let table = table([&[5], &[]]);
        assert_eq!(table.estimate(4, 1), plain.estimate(4, 1), "others are as they were");
        // The mean of 1, 11, 21, 31 and 41, and its variance of 200 beside that of a value.
        let any = table.any_row(1);
        assert_eq!(any.mean, 21.0);
        assert!((any.sd - 201f64.sqrt()).abs() < 1e-12);
        assert_eq!(any.lower, table.estimate(0, 1).lower);
        assert_eq!(any.upper, table.estimate(4, 1).upper);
        // The fit says 51, 30 away from that mean and above all intervals.
        let bare = table.estimate(5, 1);
        assert_eq!((bare.mean, bare.lower, bare.upper), (51.0, any.lower, 51.0));
        assert!((bare.sd - 1101f64.sqrt()).abs() < 1e-12);
        // Draws come from all of the others: five standard deviations around 1 and 41.
        let draws: Vec<f64> = (0..200).map(|k| table.draw(5, 1, 3, k)).collect();
        assert!(draws.iter().all(|x| (-4.0..46.0).contains(x)));
        for mean in [1.0, 11.0, 21.0, 31.0, 41.0] {
            assert!(draws.iter().any(|x| (x - mean).abs() < 5.0), "none near {mean}");
        }
    }

    #[test]
    fn columns_likewise_and_both_at_once() {
        let table = table([&[5], &[2]]);
        assert_eq!(table.bare(), [vec![5], vec![2]]);
        // As the fit has them, with what is known of the others: means of 30.5 and 20.5.
        let (column, both) = (table.estimate(3, 2), table.estimate(5, 2));
        assert_eq!((column.mean, both.mean), (32.0, 52.0));
        assert!((column.sd - (1.0 + 0.25 + 2.25f64).sqrt()).abs() < 1e-12);
        assert!(both.lower < 3.0 && both.upper == 52.0);
        let (wide, narrow) = (table.estimate(5, 2), table.estimate(3, 1));
        assert!(wide.upper - wide.lower > 10.0 * (narrow.upper - narrow.lower));
    }

    #[test]
    fn intervals_without_the_effects_they_were_found_with_are_not_called_calibrated() {
        let mut table = table([&[], &[]]);
        assert_eq!(table.intervals_without_effects(true), table.intervals());
        let group = Group { last: 31, quantile: 1.7, dispersion: 1.0 };
        let found = Calibration::from_parts(1.0, &[group], true, Some(0.9)).unwrap();
        table.fit.calibration = Some(found);
        assert!(table.intervals().contains("90 %, calibrated on the held-out cells"));
        assert_eq!(table.intervals_without_effects(false), table.intervals());
        let common = table.intervals_without_effects(true);
        assert!(common.contains("not calibrated") && !common.contains("cross-checked"), "{common}");
    }

    #[test]
    fn a_draw_is_addressed_by_seed_number_and_cell() {
        let table = table([&[], &[]]);
        assert_eq!(table.draw(2, 1, 7, 4), table.draw(2, 1, 7, 4));
        for other in [table.draw(2, 2, 7, 4), table.draw(2, 1, 8, 4), table.draw(2, 1, 7, 5)] {
            assert_ne!(table.draw(2, 1, 7, 4), other);
        }
    }
}
