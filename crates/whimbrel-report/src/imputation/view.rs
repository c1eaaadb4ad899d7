//! What a report shows of a completed table: the content of a run's `imputation.json`.

use serde::{Deserialize, Serialize};

/// A completed table. Every part may be empty: what is missing is not drawn.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ImputationView {
    /// The totals of the table's columns, in order (of time, where columns are times).
    pub columns: Vec<ColumnTotal>,
    /// The table itself, made small.
    pub heat: Option<HeatView>,
    /// How often intervals of a given level held the cells that were kept out of the fit.
    pub calibration: Vec<Calibration>,
    /// How well simpler models do on the same cells, and the fitted one among them.
    pub contenders: Vec<Contender>,
    /// Where the intervals come from, in words.
    pub intervals: String,
}

/// One column of the table.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ColumnTotal {
    /// The column's label.
    pub label: String,
    /// The total over all rows, observed cells as observed and missing ones as estimated.
    pub estimated_total: f64,
    /// The total of what was observed.
    pub observed_total: f64,
    /// Lower end of the total's 90 % interval.
    pub lower: Option<f64>,
    /// Its upper end.
    pub upper: Option<f64>,
    /// Cells that nobody observed.
    pub missing: u64,
}

/// A table made small: each cell stands for a block of cells.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct HeatView {
    /// Blocks downwards.
    pub rows: usize,
    /// Blocks across.
    pub columns: usize,
    /// How many rows and columns the table has.
    pub shape: [usize; 2],
    /// Mean of the observed cells of each block, row after row; none where there is none.
    pub observed: Vec<Option<f64>>,
    /// Mean of the completed cells of each block.
    pub completed: Vec<Option<f64>>,
}

/// How often intervals of one level held what was kept out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Calibration {
    /// The level, from 0 to 1.
    pub nominal: f64,
    /// The share of kept-out cells inside.
    pub covered: f64,
}

/// A model that was tried on the cells kept out of the fit.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Contender {
    /// Its name.
    pub name: String,
    /// Its mean deviance on those cells.
    pub deviance: f64,
    /// Whether it is the model of this run.
    pub fitted: bool,
}
