//! A client's rows, with their patterns of missing numbers.

use super::{ColumnKind, Mixed};
use std::collections::BTreeMap;
use whimbrel_core::{Error, Result, math};

/// A client's rows.
#[derive(Clone)]
pub struct MixedData {
    columns: usize,
    /// Cells, row-major; NaN stands for a missing cell.
    values: Vec<f64>,
    /// The pattern of each row: an index into `patterns`.
    pub(super) pattern: Vec<u32>,
    /// For each pattern, whether each number is observed.
    pub(super) patterns: Vec<Vec<bool>>,
    /// All rows, sorted by pattern.
    pub(super) order: Vec<u32>,
    /// `sum ln x!` over the observed counts of each row.
    pub(super) log_factorials: Vec<f64>,
}

impl MixedData {
    pub fn rows(&self) -> usize {
        self.pattern.len()
    }

    /// The cells of row `i`; NaN stands for a missing cell.
    pub fn row(&self, i: usize) -> &[f64] {
        &self.values[i * self.columns..][..self.columns]
    }
}

/// Largest admissible number: sums of squares stay far from overflow.
const VALUE_MAX: f64 = 1e40;
/// Largest admissible count: the log-likelihood of larger ones would swamp that of the others.
const COUNT_MAX: f64 = 1e10;

impl Mixed {
    /// Checks rows (row-major, NaN for missing cells) and lays them out for the E-step.
    pub fn data_from_rows(&self, values: &[f64]) -> Result<MixedData> {
        let names: Vec<String> = (1..=self.columns().len()).map(|j| j.to_string()).collect();
        self.lay_out(&names, values)
    }

    pub(super) fn lay_out(&self, names: &[String], values: &[f64]) -> Result<MixedData> {
        let width = self.columns().len();
        if names.len() != width {
            let what = format!("rows of {} columns where the mixture has {width}", names.len());
            return Err(Error::data(what));
        }
        let rows = values.len() / width;
        if rows == 0 || values.len() != rows * width {
            return Err(Error::data("there are no whole rows"));
        }
        for (row, cells) in values.chunks_exact(width).enumerate() {
            for ((cell, kind), name) in cells.iter().zip(self.columns()).zip(names) {
                if let Some(why) = fault(*cell, *kind) {
                    let cell =
                        if cell.abs() < 1e15 { cell.to_string() } else { format!("{cell:e}") };
                    let what = format!("row {}, column {name:?}: {cell} {why}", row + 1);
                    return Err(Error::data(what));
                }
            }
        }
        let mut known: BTreeMap<Vec<bool>, u32> = BTreeMap::new();
        let mut pattern = Vec::with_capacity(rows);
        for cells in values.chunks_exact(width) {
            let observed: Vec<bool> = self.numbers.iter().map(|j| !cells[*j].is_nan()).collect();
            let next = known.len() as u32;
            pattern.push(*known.entry(observed).or_insert(next));
        }
        let mut patterns = vec![Vec::new(); known.len()];
        known.into_iter().for_each(|(observed, at)| patterns[at as usize] = observed);
        let mut order: Vec<u32> = (0..rows as u32).collect();
        order.sort_by_key(|row| pattern[*row as usize]);
        let factorials = |cells: &[f64]| -> f64 {
            let observed = self.counts.iter().map(|j| cells[*j]).filter(|x| !x.is_nan());
            observed.map(|x| math::ln_gamma(x + 1.0)).sum()
        };
        let log_factorials = values.chunks_exact(width).map(factorials).collect();
        let values = values.to_vec();
        Ok(MixedData { columns: width, values, pattern, patterns, order, log_factorials })
    }
}

/// The fault of a cell in a column of this kind, if any.
fn fault(cell: f64, kind: ColumnKind) -> Option<&'static str> {
    if cell.is_nan() {
        return None;
    }
    let is_whole = cell >= 0.0 && cell.fract() == 0.0 && cell <= COUNT_MAX;
    match kind {
        ColumnKind::Number if cell.abs() > VALUE_MAX => Some("is above 1e40 in size"),
        ColumnKind::Count if !is_whole => Some("is not a count: an integer from 0 to 1e10"),
        ColumnKind::Levels(count) if !is_whole || cell >= count as f64 => Some("is not a level"),
        _ => None,
    }
}
