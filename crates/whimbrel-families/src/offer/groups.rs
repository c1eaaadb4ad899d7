//! Minimum numbers of rows behind the figures of a client.

use crate::failure::Result;
use whimbrel_core::{ClientData, Error, HeldOut};

/// A client's minimum numbers of rows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Minimum {
    /// Fewest training rows with which it takes part.
    pub rows: usize,
    /// Fewest rows behind any figure.
    pub group: usize,
}

impl Default for Minimum {
    fn default() -> Self {
        Self { rows: 20, group: 5 }
    }
}

impl Minimum {
    /// Refuses too few training rows, and removes validation and test rows if they are too few:
    /// figures over few rows can reveal individual rows.
    pub fn apply(&self, mut data: ClientData) -> Result<ClientData> {
        let rows = match &mut data {
            ClientData::Table(table) => {
                withhold(&mut table.held_out, self.group, |rows| rows.rows());
                table.rows()
            }
            ClientData::Labelled(rows) => {
                withhold(&mut rows.held_out, self.group, |rows| rows.targets.len());
                rows.targets.len()
            }
            ClientData::Samples(samples) => {
                withhold(&mut samples.held_out, self.group, |samples| samples.len());
                samples.len()
            }
            ClientData::Cells(cells) => {
                if cells.held_out.len() < self.group {
                    cells.held_out.clear();
                }
                cells.observed.len()
            }
            ClientData::Stream(_) => return Ok(data),
        };
        let least = self.rows.max(self.group);
        if rows >= least {
            return Ok(data);
        }
        let what =
            format!("there are {rows} training rows; sums over so few can reveal individual rows");
        let hint = format!("provide at least {least}, or lower --min-rows and --min-group");
        Err(Error::data(what).hint(hint).into())
    }

    /// Refuses columns of numbers and counts with fewer observed values than a group: their sums leave
    /// at enrolment. `levels` are the levels of each column; columns with levels are only counted.
    pub fn check_columns(&self, data: &ClientData, levels: &[Vec<String>]) -> Result<()> {
        let ClientData::Table(table) = data else { return Ok(()) };
        let mut observed = vec![0; table.width()];
        for row in 0..table.rows() {
            for (count, cell) in observed.iter_mut().zip(table.row(row)) {
                *count += usize::from(!cell.is_nan());
            }
        }
        let has_levels = |at: usize| levels.get(at).is_some_and(|levels| !levels.is_empty());
        let few: Vec<String> = (0..table.width())
            .filter(|at| !has_levels(*at) && (1..self.group).contains(&observed[*at]))
            .map(|at| match observed[at] {
                1 => format!("column {:?} has 1 observed value", table.columns[at]),
                count => format!("column {:?} has {count} observed values", table.columns[at]),
            })
            .collect();
        if few.is_empty() {
            return Ok(());
        }
        let what = format!(
            "{} in the training rows, and --min-group is {}: sums over so few can reveal individual rows",
            few.join(", "),
            self.group
        );
        let hint = "remove these cells from the file, or allow them with --min-group 1";
        Err(Error::data(what).hint(hint).into())
    }
}

fn withhold<T>(held_out: &mut HeldOut<T>, least: usize, count: impl Fn(&T) -> usize) {
    for part in [&mut held_out.validation, &mut held_out.test] {
        part.take_if(|rows| count(rows) < least);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use whimbrel_core::Table;

    fn rows(count: usize) -> Table {
        Table::new(vec!["x".into()], vec![1.0; count]).unwrap()
    }

    #[test]
    fn few_rows_are_kept_to_oneself() {
        let minimum = Minimum::default();
        let train = |count| minimum.apply(ClientData::Table(rows(count)));
        assert!(train(20).is_ok());
        let error = train(19).err().unwrap().to_string();
        assert!(error.contains("19 training rows") && error.contains("--min-rows"), "{error}");
        assert!(Minimum { rows: 1, group: 1 }.apply(ClientData::Table(rows(1))).is_ok());
        assert!(Minimum { rows: 1, group: 5 }.apply(ClientData::Table(rows(4))).is_err());
        let mut table = rows(30);
        let part = |count| Some(Box::new(rows(count)));
        table.held_out = HeldOut { validation: part(4), test: part(5), asked: true };
        let held_out = minimum.apply(ClientData::Table(table)).unwrap().held_out();
        assert!(held_out.validation.is_none() && held_out.test.is_some());
    }

    #[test]
    fn columns_that_few_rows_have_are_kept_to_oneself() {
        let names = ["age", "pressure", "falls", "housing"].map(str::to_owned).to_vec();
        let levels = [vec![], vec![], vec![], vec!["alone".to_owned(), "family".to_owned()]];
        // Unobserved columns are skipped; columns with levels are counted, not summed.
        let data = |pressure: usize, falls: usize| {
            let cell = |has: bool, x: f64| if has { x } else { f64::NAN };
            let row = |i: usize| {
                [50.0, cell(i < pressure, 157.3), cell(i < falls, 2.0), cell(i < 1, 1.0)]
            };
            let rows = (0..40).flat_map(row).collect();
            ClientData::Table(Table::new(names.clone(), rows).unwrap())
        };
        let check = |group, data: &ClientData| {
            let minimum = Minimum { group, ..Minimum::default() };
            minimum.check_columns(data, &levels).map_err(|e| e.to_string())
        };
        assert_eq!(check(5, &data(0, 5)), Ok(()));
        assert_eq!(check(5, &data(40, 40)), Ok(()));
        assert_eq!(check(1, &data(1, 1)), Ok(()));
        let error = check(5, &data(1, 40)).unwrap_err();
        assert!(error.contains("column \"pressure\" has 1 observed value in"), "{error}");
        assert!(error.contains("\nhint: ") && error.contains("--min-group 1"), "{error}");
        let error = check(5, &data(40, 4)).unwrap_err();
        assert!(error.contains("column \"falls\" has 4 observed values in"), "{error}");
    }
}
