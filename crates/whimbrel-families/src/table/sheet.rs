//! A completed table as a CSV file.

use super::completed::{Completed, Estimate, Unsure};
use super::observed::Observations;
use crate::files::quoted;
use std::io::{self, Write};
use whimbrel_core::Key;

pub use super::completed::Place;

/// Digits of estimates and draws: more would be noise.
const DIGITS: usize = 6;
/// Draws for imputations, apart from all draws of the fit.
const DRAWS: u64 = 0xD4A5;
/// What cells share in an imputation.
const SHARED: u64 = u64::MAX;

/// The rows of a run, or those of a new client.
pub struct Sheet<'a> {
    /// The run's table.
    pub table: &'a Completed,
    /// The rows by label.
    pub rows: Vec<(String, Place)>,
    /// A client's own effect; zero without one.
    pub effect: f64,
    /// What was observed, where that is known.
    pub seen: Option<Observations>,
    /// The seed of draws.
    pub seed: u64,
}

impl Sheet<'_> {
    fn cell(&self, row: usize, column: usize) -> Unsure {
        self.table.cell_of(&self.rows[row].1, row, column, self.effect)
    }

    fn value(&self, row: usize, column: usize) -> Option<f64> {
        self.seen.as_ref()?.value(row, column)
    }

    /// The value of a cell in one imputation; depends on the seed, the imputation's number and the cell
    /// alone. Rows, columns and terms err by the same in all cells of an imputation.
    pub fn draw(&self, row: usize, column: usize, number: u32) -> f64 {
        self.draw_of(&self.cell(row, column), row, column, number)
    }

    fn draw_of(&self, cell: &Unsure, row: usize, column: usize, number: u32) -> f64 {
        let (fit, Unsure { parameter, shares }) = (&self.table.fit, cell);
        let key = Key::root(self.seed).child(DRAWS).child(u64::from(number));
        let deviation = fit.deviation(*parameter, shares, key.child(SHARED));
        let place = (row * self.table.columns.len() + column) as u64;
        fit.draw(*parameter, deviation, &mut key.child(place).stream())
    }

    /// One line for each cell; with `draws` imputations beside it.
    pub fn write_long(&self, draws: u32, out: &mut dyn Write) -> io::Result<()> {
        write!(out, "row,column,observed,value,estimate,se,lower,upper")?;
        (1..=draws).try_for_each(|k| write!(out, ",draw_{k}"))?;
        writeln!(out)?;
        let columns: Vec<String> = self.table.columns.iter().map(|name| quoted(name)).collect();
        for (row, (name, _)) in self.rows.iter().enumerate() {
            let name = quoted(name);
            for (column, label) in columns.iter().enumerate() {
                let value = self.value(row, column);
                let observed = match (&self.seen, value) {
                    (None, _) => "unknown",
                    (_, None) => "no",
                    (Some(seen), _) if seen.is_held_out(row, column) => "held-out",
                    _ => "yes",
                };
                let shown = value.map_or(String::new(), |value| value.to_string());
                write!(out, "{name},{label},{observed},{shown}")?;
                let cell = self.cell(row, column);
                let Estimate { mean, sd, lower, upper } = self.table.estimate(cell.parameter);
                for x in [mean, sd, lower, upper] {
                    write!(out, ",{}", brief(x))?;
                }
                for k in 1..=draws {
                    let draw = || brief(self.draw_of(&cell, row, column, k));
                    let drawn = value.unwrap_or_else(draw);
                    write!(out, ",{drawn}")?;
                }
                writeln!(out)?;
            }
        }
        Ok(())
    }

    /// The table itself: what was observed, and estimates where nothing was.
    pub fn write_wide(&self, out: &mut dyn Write) -> io::Result<()> {
        write!(out, "row")?;
        self.table.columns.iter().try_for_each(|name| write!(out, ",{}", quoted(name)))?;
        writeln!(out)?;
        for (row, (name, _)) in self.rows.iter().enumerate() {
            write!(out, "{}", quoted(name))?;
            for column in 0..self.table.columns.len() {
                let mean = || brief(self.table.estimate(self.cell(row, column).parameter).mean);
                write!(out, ",{}", self.value(row, column).unwrap_or_else(mean))?;
            }
            writeln!(out)?;
        }
        Ok(())
    }
}

/// Six significant digits, the shortest way to write them.
fn brief(x: f64) -> f64 {
    if x == 0.0 || !x.is_finite() {
        return x;
    }
    format!("{x:.*e}", DIGITS - 1).parse().unwrap_or(x)
}
