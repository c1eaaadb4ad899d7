//! A completed table: what a fitted low-rank model says about each cell.

use crate::failure::{Failure, Result};
use crate::family::counted;
use crate::files::{read_artifact, read_object};
use serde_json::{Map, Value};
use std::path::Path;
use whimbrel_core::Error;
use whimbrel_core::method::Artifact;
use whimbrel_models::lowrank::{Family, KIND, LowRankFit, NewRow, Parameter, Share};

/// Rows with fewer observations are named in a warning.
const FEW: u32 = 5;
/// Their number.
const NAMED_MAX: usize = 10;

/// A fitted table with its labels.
#[derive(Clone, Debug)]
pub struct Completed {
    /// The fit.
    pub fit: LowRankFit,
    /// Labels of the rows.
    pub rows: Vec<String>,
    /// Labels of the columns.
    pub columns: Vec<String>,
    /// Whether clients had effects of their own.
    pub personal: bool,
    /// Rows and columns in which the fit had no cell.
    pub bare: [Vec<usize>; 2],
    /// The largest `theta` of known rows and columns.
    highest: f64,
}

/// What stands for a row.
#[derive(Clone, Debug)]
pub enum Place {
    /// A row of the run.
    Known(usize),
    /// Factors fitted to a new client's cells, of which there may be none.
    New(NewRow),
}

/// A cell's parameter, and the parts of its error.
#[derive(Clone, Debug, PartialEq)]
pub struct Unsure {
    /// The parameter.
    pub parameter: Parameter,
    /// What its error is made of.
    pub shares: Vec<Share>,
}

/// What is said about one cell.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// The expected value.
    pub mean: f64,
    /// The standard deviation of draws.
    pub sd: f64,
    /// The lower end of an interval that holds about nine values in ten.
    pub lower: f64,
    /// Its upper end.
    pub upper: f64,
}

impl Completed {
    /// From a delivered model and the labels of its table.
    pub fn new(
        model: &Artifact,
        rows: Vec<String>,
        columns: Vec<String>,
        personal: bool,
    ) -> whimbrel_core::Result<Self> {
        let fit = LowRankFit::from_artifact(model)?;
        if rows.len() != fit.model.rows() || columns.len() != fit.model.columns() {
            return Err(Error::data("the labels and the factors do not fit each other"));
        }
        let bare = unobserved(&fit);
        let [known_rows, known_columns] = observed_lines(&fit, |count| count > 0);
        if known_rows.is_empty() || known_columns.is_empty() {
            return Err(Error::data("no cell of the table was observed"));
        }
        let cells = known_rows.iter().flat_map(|j| known_columns.iter().map(move |l| (*j, *l)));
        let highest = cells.map(|(j, l)| fit.theta(j, l)).fold(f64::NEG_INFINITY, f64::max);
        Ok(Self { fit, rows, columns, personal, bare, highest })
    }

    /// Reads `model/` of a run's folder.
    pub fn read(run: &Path) -> Result<Self> {
        let path = run.join("model/model.json");
        if !path.is_file() {
            let error = Error::config(format!("{} does not exist", path.display()))
                .hint("the run has no model: it is unfinished, or it failed");
            return Err(error.into());
        }
        let object = read_object(&path)?;
        let kind = object.get("kind").and_then(Value::as_str).unwrap_or_default();
        if kind != KIND {
            let error = Error::config(format!(
                "{} holds a model of kind `{kind}`, which has no table to complete",
                run.display()
            ))
            .hint("use a run of a job with kind = \"low-rank\" in [model]; other models predict");
            return Err(error.into());
        }
        let labels = |key: &str| {
            let broken = || Failure::config(format!("{}: `{key}` is missing", path.display()));
            names(&object, key).ok_or_else(broken)
        };
        let (rows, columns) = (labels("rows")?, labels("columns")?);
        let tensors = read_artifact(&run.join("model/model.safetensors"))?;
        let personal = object.get("personal").and_then(Value::as_bool).unwrap_or(false);
        let model = Artifact { kind: kind.into(), ..tensors };
        Ok(Self::new(&model, rows, columns, personal)?)
    }

    /// What is known of a cell of the run, with a client's own effect added.
    pub fn cell(&self, row: usize, column: usize, effect: f64) -> Unsure {
        self.unsure(self.fit.sure(row, column, effect), self.fit.shares(row, column), effect)
    }

    /// The same of a row that a client brings; `number` tells it from others of the client.
    pub fn cell_of(&self, place: &Place, number: usize, column: usize, effect: f64) -> Unsure {
        match place {
            Place::Known(row) => self.cell(*row, column, effect),
            Place::New(row) => {
                let shares = self.fit.shares_of(row, number, column);
                self.unsure(self.fit.sure_of(row, column, effect), shares, effect)
            }
        }
    }

    /// A parameter with these errors. No count is drawn from a mean above the largest estimate.
    fn unsure(&self, sure: Parameter, shares: Vec<Share>, effect: f64) -> Unsure {
        let mut parameter = self.fit.unsure(sure, &shares);
        if self.fit.model.family() == Family::Poisson {
            parameter.ceiling = self.highest + effect;
        }
        Unsure { parameter, shares }
    }

    /// What is said about a cell with this parameter.
    pub fn estimate(&self, parameter: Parameter) -> Estimate {
        let (lower, upper) = self.fit.interval(parameter);
        let mean = self.fit.model.family().mean(parameter.theta);
        Estimate { mean, sd: self.fit.sd(parameter), lower, upper }
    }

    /// Rows of which the fit had fewer than five observations, and some.
    pub fn hardly_observed(&self) -> Vec<&str> {
        let [rows, _] = observed_lines(&self.fit, |count| (1..FEW).contains(&count));
        rows.iter().map(|row| &self.rows[*row][..]).collect()
    }

    /// The same in words; none where there are none.
    pub fn warning_of_few(&self) -> Option<String> {
        let rows = self.hardly_observed();
        let have = if rows.len() == 1 { "has" } else { "have" };
        let some: Vec<String> = rows.iter().take(NAMED_MAX).map(|row| format!("{row:?}")).collect();
        let more = if rows.len() > NAMED_MAX { ", ...; all in summary.json" } else { "" };
        (!rows.is_empty()).then(|| {
            format!(
                "{} {have} fewer than five observations in the fit ({}{more}): estimated with wide \
                 intervals",
                counted(rows.len(), "row"),
                some.join(", "),
            )
        })
    }

    /// Whether the fit had a cell in the row.
    pub fn knows_row(&self, row: usize) -> bool {
        self.fit.observations[0][row] > 0
    }

    /// Whether the fit had cells in the row and in the column.
    pub fn knows(&self, row: usize, column: usize) -> bool {
        self.knows_row(row) && self.fit.observations[1][column] > 0
    }

    /// Where the intervals come from, in words: around the means of a client, its own effect added
    /// where it has one.
    pub fn intervals(&self) -> String {
        match &self.fit.calibration {
            None => "90 % from the family alone: the run ended before its errors were known".into(),
            Some(c) if c.calibrated => {
                let share = c.coverage.map_or(String::new(), |share| {
                    format!("; cross-checked, they hold {:.1} % of them", 100.0 * share)
                });
                let groups = match c.groups.len() {
                    0 | 1 => String::new(),
                    n => format!(" in {n} groups by number of observations and size of the mean"),
                };
                format!("90 %, calibrated on the held-out cells (conformal){groups}{share}")
            }
            Some(c) => {
                let doubt = match c.doubtful {
                    true => "; a guess, as there are fewer than two observations per parameter",
                    false => "",
                };
                format!(
                    "90 % from the model's own residuals (dispersion {:.3}), not checked against \
                     held-out cells, of which there are none or too few{doubt}",
                    c.dispersion
                )
            }
        }
    }

    /// The same around the means of the table itself. Where effects are personal, the scores were
    /// taken with each client's own added, and say nothing sure about means without one.
    pub fn intervals_without_effects(&self) -> String {
        let calibrated = self.fit.calibration.as_ref().is_some_and(|c| c.calibrated);
        if !(self.personal && calibrated) {
            return self.intervals();
        }
        "as wide as held 90 % of the held-out cells with each client's own effect added; around \
         this table, which has no such effect, not calibrated: they may hold fewer"
            .into()
    }
}

/// Rows and columns in which the fit had no cell.
pub(super) fn unobserved(fit: &LowRankFit) -> [Vec<usize>; 2] {
    observed_lines(fit, |count| count == 0)
}

/// Rows, and columns, that were observed so often.
fn observed_lines(fit: &LowRankFit, often: impl Fn(u32) -> bool) -> [Vec<usize>; 2] {
    let of = |counts: &Vec<u32>| (0..counts.len()).filter(|at| often(counts[*at])).collect();
    fit.observations.each_ref().map(of)
}

fn names(object: &Map<String, Value>, key: &str) -> Option<Vec<String>> {
    object.get(key)?.as_array()?.iter().map(|name| name.as_str().map(String::from)).collect()
}
