//! The neutral form in which readers hand data to methods.

use crate::{Error, Result};
use std::sync::Arc;

/// Rows of numbers with named columns, row after row.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Table {
    /// Column names.
    pub columns: Vec<String>,
    /// Values, row-major: row `i` is `values[i * columns.len()..][..columns.len()]`.
    pub values: Vec<f64>,
}

impl Table {
    /// Checks that the values fill whole rows.
    pub fn new(columns: Vec<String>, values: Vec<f64>) -> Result<Self> {
        let whole = if columns.is_empty() {
            values.is_empty()
        } else {
            values.len().is_multiple_of(columns.len())
        };
        if !whole {
            return Err(Error::data(format!(
                "{} values do not fill rows of {} columns",
                values.len(),
                columns.len()
            )));
        }
        Ok(Self { columns, values })
    }

    /// How many columns.
    pub fn width(&self) -> usize {
        self.columns.len()
    }

    /// How many rows.
    pub fn rows(&self) -> usize {
        if self.columns.is_empty() { 0 } else { self.values.len() / self.columns.len() }
    }

    /// One row.
    pub fn row(&self, i: usize) -> &[f64] {
        &self.values[i * self.width()..(i + 1) * self.width()]
    }
}

/// An endless source of rows that can be read from any position: so a run that stops and resumes
/// reads the rows it would have read.
pub trait RowStream: Send + Sync {
    /// Column names.
    fn columns(&self) -> &[String];
    /// Appends rows `from..from + count` to `out`, row-major.
    fn rows(&self, from: u64, count: usize, out: &mut Vec<f64>) -> Result<()>;
}

/// What one client holds.
#[derive(Clone)]
pub enum ClientData {
    /// A fixed table.
    Table(Table),
    /// A stream, for the online setting.
    Stream(Arc<dyn RowStream>),
}
