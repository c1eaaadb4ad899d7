//! Descriptive statistics: two messages of each client, and nothing else.
//!
//! 1. [`Tally`]: rows, observed cells, mean and squares of each numeric column (also of
//!    `sign(x) ln(1 + |x|)`), and counts of each category.
//! 2. [`Bins`]: counts of numeric columns between edges that follow from the pooled moments, and events
//!    and censored times between the edges of a time grid.
//!
//! Under a smallest group a client keeps to the rules of [`withhold`] before it sends anything, so the
//! pooled tables and those of the clients, which are computed from these messages alone, reveal
//! nothing more by subtraction.
//!
//! *Reduces to* the statistics of the pooled rows for any split of the rows, without a smallest group.

mod bins;
mod sums;
mod tally;
pub mod withhold;

pub use bins::{Bins, QUANTILES, Spread, Survival};
pub use tally::{Blocks, Tally};

use whimbrel_core::{ClientData, Error, Result, Table};

/// The rows of a client.
fn table(data: &ClientData, columns: usize) -> Result<&Table> {
    match data {
        ClientData::Table(table) if table.width() == columns => Ok(table),
        ClientData::Table(table) => Err(Error::data(format!(
            "its rows have {} columns where the job's have {columns}",
            table.width()
        ))),
        _ => Err(Error::data("only tables are described")),
    }
}
