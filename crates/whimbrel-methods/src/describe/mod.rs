//! Descriptive statistics: two messages of each client, and nothing else.
//!
//! 1. [`Tally`]: rows, observed cells, mean and squares of each numeric column (without a smallest group also of
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

use whimbrel_core::{ClientData, Error, Result, Table, math};

/// The logarithmic scale `sign(x) ln(1 + |x|)`.
fn scaled(x: f64) -> f64 {
    math::ln_1p(x.abs()).copysign(x)
}

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::one_shot::OneShot;
    use whimbrel_core::{ClientId, Key};

    /// Ages of which one is a year higher and another one lower: the pairs, of 780, with both messages of the
    /// rows themselves. Lattice reduction reads the ages from moments at full precision.
    #[test]
    fn moments_and_bins_do_not_determine_rows() {
        let mut stream = Key::root(5).stream();
        let ages: Vec<f64> = (0..40).map(|_| (55.0 + 17.0 * stream.normal()).round()).collect();
        let messages = |group: u64, ages: &[f64]| {
            let blocks = Blocks { levels: vec![0], places: vec![Vec::new()] };
            let tally = Tally { blocks, group };
            let data = ClientData::Table(Table::new(vec!["age".into()], ages.to_vec()).unwrap());
            let figures = tally.read(&data).unwrap();
            let mut roster = std::iter::once((ClientId(0), figures.clone()));
            let first = tally.pool(&mut roster, Key::root(1)).unwrap();
            let bins = Bins::after(&tally, &first, &[None], 200, None).unwrap();
            (figures, bins.read(&data).unwrap())
        };
        let sorted = |ages: &[f64]| {
            let mut ages = ages.to_vec();
            ages.sort_unstable_by(f64::total_cmp);
            ages
        };
        let alike = [1, 5].map(|group| {
            let own = messages(group, &ages);
            let pairs = (0..ages.len()).flat_map(|i| (0..i).map(move |j| (i, j)));
            let is_alike = |(i, j): &(usize, usize)| {
                let mut other = ages.clone();
                (other[*i], other[*j]) = (ages[*i] + 1.0, ages[*j] - 1.0);
                sorted(&other) != sorted(&ages) && messages(group, &other) == own
            };
            pairs.filter(is_alike).count()
        });
        assert!(alike[0] == 0 && alike[1] > 100, "{alike:?}");
    }
}
