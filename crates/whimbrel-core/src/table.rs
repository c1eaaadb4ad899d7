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
    /// Rows with a target each, for supervised problems.
    Labelled(Labelled),
    /// Observed cells of a table that all clients share, for imputation.
    Cells(Cells),
}

/// One observed cell.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cell {
    /// Its row, an index into the labels.
    pub row: u32,
    /// Its column, an index into the labels.
    pub column: u32,
    /// What was observed there.
    pub value: f64,
}

/// Some cells of a table whose rows and columns everyone labels alike.
#[derive(Clone, Debug, PartialEq)]
pub struct Cells {
    /// Labels of the whole table's rows.
    pub rows: Arc<[String]>,
    /// Labels of the whole table's columns.
    pub columns: Arc<[String]>,
    /// What this client observed, by row and then column; a cell observed twice is there twice.
    pub observed: Vec<Cell>,
    /// What it observed and keeps out of the fit, to judge it by; in the same order.
    pub held_out: Vec<Cell>,
}

impl Cells {
    /// Checks that every cell lies in the table, and sorts them.
    pub fn new(
        rows: Arc<[String]>,
        columns: Arc<[String]>,
        mut observed: Vec<Cell>,
        mut held_out: Vec<Cell>,
    ) -> Result<Self> {
        for cell in observed.iter().chain(&held_out) {
            if cell.row as usize >= rows.len() || cell.column as usize >= columns.len() {
                return Err(Error::data(format!(
                    "cell ({}, {}) lies outside a table of {} rows and {} columns",
                    cell.row,
                    cell.column,
                    rows.len(),
                    columns.len()
                )));
            }
        }
        observed.sort_by_key(|cell| (cell.row, cell.column));
        held_out.sort_by_key(|cell| (cell.row, cell.column));
        Ok(Self { rows, columns, observed, held_out })
    }
}

/// Rows of features with one target each.
#[derive(Clone, Debug, PartialEq)]
pub struct Labelled {
    /// Column names.
    pub columns: Vec<String>,
    /// The features.
    pub rows: FeatureRows,
    /// One target per row: a number for regression, -1 or 1 for two classes.
    pub targets: Vec<f64>,
}

/// Features, dense or sparse.
#[derive(Clone, Debug, PartialEq)]
pub enum FeatureRows {
    /// Row-major, as many values per row as there are columns.
    Dense(Vec<f64>),
    /// Compressed rows: row `i` holds `columns[starts[i]..starts[i + 1]]` (ascending) with the
    /// `values` of the same range.
    Sparse {
        /// Where each row begins, and where the last ends.
        starts: Vec<usize>,
        /// Column numbers.
        columns: Vec<u32>,
        /// Values.
        values: Vec<f64>,
    },
}

impl Labelled {
    /// Checks that rows and targets fit each other.
    pub fn new(columns: Vec<String>, rows: FeatureRows, targets: Vec<f64>) -> Result<Self> {
        let (n, width) = (targets.len(), columns.len());
        let fits = match &rows {
            FeatureRows::Dense(values) => values.len() == n * width,
            FeatureRows::Sparse { starts, columns, values } => {
                starts.len() == n + 1
                    && starts.first() == Some(&0)
                    && starts.last() == Some(&values.len())
                    && starts.windows(2).all(|w| w[0] <= w[1])
                    && columns.len() == values.len()
                    && columns.iter().all(|c| (*c as usize) < width)
            }
        };
        if fits {
            Ok(Self { columns, rows, targets })
        } else {
            Err(Error::data(format!("the features do not fill {n} rows of {width} columns")))
        }
    }

    /// How many rows.
    pub fn len(&self) -> usize {
        self.targets.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.targets.is_empty()
    }

    /// How many columns.
    pub fn width(&self) -> usize {
        self.columns.len()
    }
}
