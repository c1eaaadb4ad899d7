//! The neutral form in which readers hand data to methods.

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
    /// Rows that no method fits.
    pub held_out: HeldOut<Table>,
}

/// A client's rows that are kept out of the fit: those by which settings are chosen, and those by
/// which the result is judged.
#[derive(Clone, Debug, PartialEq)]
pub struct HeldOut<T> {
    /// Validation rows.
    pub validation: Option<Box<T>>,
    /// Test rows.
    pub test: Option<Box<T>>,
    /// Whether the federation keeps rows out: a client with too few rows to keep any out has neither
    /// part, and its training rows are scored as everybody's are.
    pub asked: bool,
}

impl<T> Default for HeldOut<T> {
    fn default() -> Self {
        Self { validation: None, test: None, asked: false }
    }
}

impl<T> HeldOut<T> {
    /// Both parts as something else.
    pub fn try_map<U>(&self, map: impl Fn(&T) -> Result<U>) -> Result<HeldOut<U>> {
        let part = |rows: &Option<Box<T>>| rows.as_deref().map(&map).transpose();
        Ok(HeldOut {
            validation: part(&self.validation)?.map(Box::new),
            test: part(&self.test)?.map(Box::new),
            asked: self.asked,
        })
    }

    /// Whether there is neither.
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

    /// How many columns.
    pub fn width(&self) -> usize {
        self.columns.len()
    }

    /// How many rows.
    pub fn rows(&self) -> usize {
        if self.columns.is_empty() { 0 } else { self.values.len() / self.columns.len() }
    }

    /// The rows at these places, in this order.
    #[must_use]
    pub fn at(&self, places: &[usize]) -> Self {
        let values = places.iter().flat_map(|i| self.row(*i)).copied().collect();
        Self { columns: self.columns.clone(), values, held_out: HeldOut::default() }
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
    /// Inputs of learners with a target each.
    Samples(Samples),
    /// Observed cells of a table that all clients share, for imputation.
    Cells(Cells),
}

impl ClientData {
    /// The same kind of data with the validation rows and the test rows in place of the training
    /// rows; neither for streams and cells.
    pub fn held_out(&self) -> HeldOut<ClientData> {
        let part = |rows: &Option<Box<Table>>| rows.as_deref().cloned().map(Self::Table);
        let labelled = |rows: &Option<Box<Labelled>>| rows.as_deref().cloned().map(Self::Labelled);
        let (validation, test, asked) = match self {
            Self::Table(Table { held_out, .. }) => {
                (part(&held_out.validation), part(&held_out.test), held_out.asked)
            }
            Self::Labelled(Labelled { held_out, .. }) => {
                (labelled(&held_out.validation), labelled(&held_out.test), held_out.asked)
            }
            Self::Samples(all) => {
                let part =
                    |rows: &Option<Box<Samples>>| rows.as_deref().cloned().map(Self::Samples);
                (part(&all.held_out.validation), part(&all.held_out.test), all.held_out.asked)
            }
            Self::Stream(_) | Self::Cells(_) => (None, None, false),
        };
        HeldOut { validation: validation.map(Box::new), test: test.map(Box::new), asked }
    }
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
    /// Rows that no method fits.
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
            Ok(Self { columns, rows, targets, held_out: HeldOut::default() })
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
