//! The fewest rows that a figure of a client may rest on.

use crate::failure::Result;
use whimbrel_core::{ClientData, Error, HeldOut};

/// Rows below which a client keeps to itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Minimum {
    /// Training rows with which it takes part at all.
    pub rows: usize,
    /// Rows behind any one figure.
    pub group: usize,
}

impl Default for Minimum {
    fn default() -> Self {
        Self { rows: 20, group: 5 }
    }
}

impl Minimum {
    /// Refuses too few training rows, and takes out the rows kept for validation and tests where they
    /// are so few that figures over them would say much about each.
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
        let what = format!(
            "there are {rows} rows to train with, and sums over so few say much about each"
        );
        let hint = format!("have {least} at least, or lower --min-rows and --min-group");
        Err(Error::data(format!("{what}\nhint: {hint}")).into())
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
        assert!(error.contains("19 rows") && error.contains("--min-rows"), "{error}");
        assert!(Minimum { rows: 1, group: 1 }.apply(ClientData::Table(rows(1))).is_ok());
        assert!(Minimum { rows: 1, group: 5 }.apply(ClientData::Table(rows(4))).is_err());
        let mut table = rows(30);
        let part = |count| Some(Box::new(rows(count)));
        table.held_out = HeldOut { validation: part(4), test: part(5), asked: true };
        let held_out = minimum.apply(ClientData::Table(table)).unwrap().held_out();
        assert!(held_out.validation.is_none() && held_out.test.is_some());
    }
}
