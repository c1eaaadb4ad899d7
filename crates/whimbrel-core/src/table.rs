//! Data as readers pass them to methods.

use crate::{Error, Result, Samples};
use std::sync::Arc;

/// Rows of numbers with named columns, row after row.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Table {
    /// Column names; tables of many clients share them.
    pub columns: Arc<[String]>,
    /// Values of the training rows, row-major: row `i` is
    /// `values[i * columns.len()..][..columns.len()]`.
    pub values: Vec<f64>,
    /// Validation and test rows, which are not among the values.
    pub held_out: HeldOut<Table>,
}

/// A client's held-out rows: validation rows for the choice of settings, test rows for the result.
#[derive(Clone, Debug, PartialEq)]
pub struct HeldOut<T> {
    pub validation: Option<Box<T>>,
    pub test: Option<Box<T>>,
    /// Whether the federation holds rows out. A client with too few rows has neither part; its
    /// training rows are scored like those of others.
    pub asked: bool,
}

impl<T> Default for HeldOut<T> {
    fn default() -> Self {
        Self { validation: None, test: None, asked: false }
    }
}

impl<T> HeldOut<T> {
    /// Maps both parts.
    pub fn try_map<U>(&self, map: impl Fn(&T) -> Result<U>) -> Result<HeldOut<U>> {
        let part = |rows: &Option<Box<T>>| rows.as_deref().map(&map).transpose();
        Ok(HeldOut {
            validation: part(&self.validation)?.map(Box::new),
            test: part(&self.test)?.map(Box::new),
            asked: self.asked,
        })
    }

    /// Maps both parts without failure.
    pub fn map<U>(&self, map: impl Fn(&T) -> U) -> HeldOut<U> {
        let part = |rows: &Option<Box<T>>| rows.as_deref().map(&map).map(Box::new);
        HeldOut { validation: part(&self.validation), test: part(&self.test), asked: self.asked }
    }

    pub fn is_empty(&self) -> bool {
        self.validation.is_none() && self.test.is_none()
    }
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
        Ok(Self { columns: columns.into(), values, held_out: HeldOut::default() })
    }

    /// Number of columns.
    pub fn width(&self) -> usize {
        self.columns.len()
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        if self.columns.is_empty() { 0 } else { self.values.len() / self.columns.len() }
    }

    /// The rows at these places, in this order.
    #[must_use]
    pub fn at(&self, places: &[usize]) -> Self {
        let mut values = Vec::with_capacity(places.len() * self.width());
        places.iter().for_each(|i| values.extend_from_slice(self.row(*i)));
        Self { columns: self.columns.clone(), values, held_out: HeldOut::default() }
    }

    /// A training row, counted from 0.
    pub fn row(&self, i: usize) -> &[f64] {
        &self.values[i * self.width()..(i + 1) * self.width()]
    }
}

/// An endless source of rows that can be read from any position, so that a resumed run reads the
/// same rows.
pub trait RowStream: Send + Sync {
    fn columns(&self) -> &[String];
    /// Appends rows `from..from + count` to `out`, row-major.
    fn rows(&self, from: u64, count: usize, out: &mut Vec<f64>) -> Result<()>;
}

/// The data of one client.
#[derive(Clone)]
pub enum ClientData {
    Table(Table),
    /// A stream, for the online setting.
    Stream(Arc<dyn RowStream>),
    /// Rows with a target each, for supervised problems.
    Labelled(Labelled),
    /// Inputs of learners with a target each.
    Samples(Samples),
    /// Observed cells of a table that all clients share, for imputation.
    Cells(Cells),
}

impl ClientData {
    /// Number of training rows, or of observed cells; 0 for a stream.
    pub fn rows(&self) -> usize {
        match self {
            Self::Table(table) => table.rows(),
            Self::Labelled(rows) => rows.len(),
            Self::Samples(samples) => samples.len(),
            Self::Cells(cells) => cells.observed.len(),
            Self::Stream(_) => 0,
        }
    }

    /// The validation rows and the test rows as training rows of the same kind; neither for streams
    /// and cells.
    pub fn held_out(&self) -> HeldOut<ClientData> {
        match self {
            Self::Table(table) => table.held_out.map(|rows| Self::Table(rows.clone())),
            Self::Labelled(all) => all.held_out.map(|rows| Self::Labelled(rows.clone())),
            Self::Samples(all) => all.held_out.map(|rows| Self::Samples(rows.clone())),
            Self::Stream(_) | Self::Cells(_) => HeldOut::default(),
        }
    }
}

/// One observed cell.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cell {
    /// Its row, an index into the labels.
    pub row: u32,
    /// Its column, an index into the labels.
    pub column: u32,
    pub value: f64,
}

/// Some cells of a table whose row and column labels all clients share.
#[derive(Clone, Debug, PartialEq)]
pub struct Cells {
    /// Labels of the whole table's rows.
    pub rows: Arc<[String]>,
    /// Labels of the whole table's columns.
    pub columns: Arc<[String]>,
    /// Observed cells by row, then column; repeated observations are repeated.
    pub observed: Vec<Cell>,
    /// Held-out cells, in the same order.
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
    pub held_out: HeldOut<Labelled>,
}

/// Features, dense or sparse.
#[derive(Clone, Debug, PartialEq)]
pub enum FeatureRows {
    /// Row-major, as many values per row as there are columns.
    Dense(Vec<f64>),
    /// Compressed rows: row `i` holds `columns[starts[i]..starts[i + 1]]` (ascending) with the
    /// `values` of the same range.
    Sparse {
        /// The start of each row, and the end of the last.
        starts: Vec<usize>,
        /// Column numbers.
        columns: Vec<u32>,
        /// Values.
        values: Vec<f64>,
    },
}

impl Labelled {
    /// Checks that rows and targets match.
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
            Ok(Self { columns, rows, targets, held_out: HeldOut::default() })
        } else {
            Err(Error::data(format!("the features do not fill {n} rows of {width} columns")))
        }
    }

    /// Number of rows.
    pub fn len(&self) -> usize {
        self.targets.len()
    }

    pub fn is_empty(&self) -> bool {
        self.targets.is_empty()
    }

    /// Number of columns.
    pub fn width(&self) -> usize {
        self.columns.len()
    }
}
