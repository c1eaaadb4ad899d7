//! Keys of descriptions.

use whimbrel_data::ColumnType;
use whimbrel_job::form::{COLUMN, Form, POSITIVE};
use whimbrel_job::reader::Read;
use whimbrel_job::writer::{list, number};
use whimbrel_job::{integer, table};

/// The family's keys of `[model]` and `[method]`.
#[derive(Clone, Debug, PartialEq)]
pub struct DescribeFit {
    /// Types of columns in `[schema]`; text without a type is a category.
    pub types: Vec<(String, ColumnType)>,
    pub time: Option<String>,
    pub event: Option<String>,
    pub by: Option<String>,
    pub grids: Grids,
}

/// Bins of numbers and times.
#[derive(Clone, Debug, PartialEq)]
pub struct Grids {
    pub bins: u32,
    /// Limits of columns in `[schema]`.
    pub ranges: Vec<(String, [f64; 2])>,
    pub times: Option<Vec<f64>>,
}

impl Default for DescribeFit {
    fn default() -> Self {
        let (types, grids) = (Vec::new(), Grids::default());
        Self { types, time: None, event: None, by: None, grids }
    }
}

impl Default for Grids {
    fn default() -> Self {
        Self { bins: 200, ranges: Vec::new(), times: None }
    }
}

table! {
    pub(super) COLUMNS: DescribeFit {
        & event: EVENT, COLUMN, unset;
        /// a column of survival times, for Kaplan-Meier curves
        time: TIME = "time", COLUMN, unset "none";
        /// a column of categories, with one curve each and a log-rank test
        by: BY = "by", COLUMN, unset "one curve";
        ..{ types: Vec::new(), grids: Grids::default() }
    }
}

pub(super) use crate::regression::keys::EVENT;

table! {
    pub(super) GRIDS: Grids {
        /// number of bins of each numeric column, from whose counts quantiles follow: half of them within
        /// four standard deviations of the mean, half likewise on the scale of signed log(1 + x); a column with
        /// `min` and `max` in [schema] is cut into bins of equal width between them
        bins: BINS = "bins", integer!(u32, 2 to 10000), default;
        /// edges of the time grid, ascending
        times: TIMES = "times", TIMES_FORM,
            unset "at most 50 round numbers up to three standard deviations above the mean time";
        ..{ ranges: Vec::new() }
    }
}

const TIMES_FORM: Form<Vec<f64>> = Form::new(
    "an ascending list of positive numbers",
    |v| {
        let edges: Vec<f64> =
            v.list()?.iter().map(|edge| POSITIVE.read(edge)).collect::<Read<_>>()?;
        if edges.is_empty() || !edges.is_sorted_by(|a, b| a < b) {
            return Err(v.refuse());
        }
        Ok(edges)
    },
    |edges| list(edges.iter().map(|edge| number(*edge))),
);
