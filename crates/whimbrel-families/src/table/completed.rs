//! A completed table: estimates of a fitted low-rank model for each cell.

use crate::failure::Result;
use crate::family::ModelUse;
use serde_json::Value;
use whimbrel_core::Error;
use whimbrel_core::method::Artifact;
use whimbrel_core::text::counted;
use whimbrel_models::lowrank::{ErrorPart, Family, KIND, LowRankFit, NewRow, Parameter};

/// Rows with fewer observations are named in a warning.
const FEW: u32 = 5;
/// Most rows named in it.
const NAMED_MAX: usize = 10;

/// A fitted table with its labels.
#[derive(Clone, Debug)]
pub struct Completed {
    pub fit: LowRankFit,
    pub rows: Vec<String>,
    pub columns: Vec<String>,
    /// Whether clients have personal effects.
    pub personal: bool,
    /// Rows and columns without a fitted cell.
    pub bare: [Vec<usize>; 2],
    /// The largest `theta` of rows and columns with fitted cells.
    highest: f64,
}

/// A row of a completed table.
#[derive(Clone, Debug)]
pub enum Place {
    /// A row of the run.
    Known(usize),
    /// A new row with factors fitted to its cells, if any.
    New(NewRow),
}

/// A cell's parameter with its error.
#[derive(Clone, Debug, PartialEq)]
pub struct Unsure {
    pub parameter: Parameter,
    /// The components of the error.
    pub shares: Vec<ErrorPart>,
}

/// The estimate of a cell.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// Expected value at the fitted parameter.
    pub mean: f64,
    /// Lower limit of the 90 % prediction interval.
    pub lower: f64,
    /// Its upper limit.
    pub upper: f64,
}

impl Completed {
    /// The table of a delivered model with its labels.
    pub fn new(
        model: &Artifact,
        rows: Vec<String>,
        columns: Vec<String>,
        personal: bool,
    ) -> whimbrel_core::Result<Self> {
        let fit = LowRankFit::from_artifact(model)?;
        if rows.len() != fit.model.rows() || columns.len() != fit.model.columns() {
            return Err(Error::data("the labels do not match the factors"));
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

    /// The table of a finished run.
    pub fn of(run: &ModelUse<'_>) -> Result<Self> {
        let rows = run.names("rows").ok_or_else(|| run.broken("`rows` is missing"))?;
        let personal = run.model.get("personal").and_then(Value::as_bool).unwrap_or(false);
        let model = Artifact { kind: KIND.into(), ..run.tensors()?.into_owned() };
        Ok(Self::new(&model, rows, run.columns()?, personal)?)
    }

    /// A cell of the run, with a client's effect added.
    pub fn cell(&self, row: usize, column: usize, effect: f64) -> Unsure {
        self.with_errors(
            self.fit.point(row, column, effect),
            self.fit.error_parts(row, column),
            effect,
        )
    }

    /// A cell of a client's row; `number` distinguishes the client's rows.
    pub fn cell_of(&self, place: &Place, number: usize, column: usize, effect: f64) -> Unsure {
        match place {
            Place::Known(row) => self.cell(*row, column, effect),
            Place::New(row) => {
                let shares = self.fit.new_row_error_parts(row, number, column);
                self.with_errors(self.fit.new_row_point(row, column, effect), shares, effect)
            }
        }
    }

    /// A parameter with these errors. Draws of counts are limited by the largest estimate.
    fn with_errors(&self, sure: Parameter, shares: Vec<ErrorPart>, effect: f64) -> Unsure {
        let mut parameter = self.fit.with_errors(sure, &shares);
        if self.fit.model.family() == Family::Poisson {
            parameter.ceiling = self.highest + effect;
        }
        Unsure { parameter, shares }
    }

    pub fn estimate(&self, parameter: Parameter) -> Estimate {
        let (lower, upper) = self.fit.interval(parameter);
        let mean = parameter.in_data(self.fit.model.family().mean(parameter.theta));
        Estimate { mean, lower, upper }
    }

    /// The expected value of a cell, in the units of the data.
    pub fn mean(&self, row: usize, column: usize) -> f64 {
        self.fit.point(row, column, 0.0).in_data(self.fit.mean(row, column))
    }

    /// Rows with one to four observations in the fit.
    pub fn hardly_observed(&self) -> Vec<&str> {
        let [rows, _] = observed_lines(&self.fit, |count| (1..FEW).contains(&count));
        rows.iter().map(|row| &self.rows[*row][..]).collect()
    }

    /// The warning about such rows.
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

    /// Whether the row has a fitted cell.
    pub fn knows_row(&self, row: usize) -> bool {
        self.fit.observations[0][row] > 0
    }

    /// Whether both row and column have a fitted cell.
    pub fn knows(&self, row: usize, column: usize) -> bool {
        self.knows_row(row) && self.fit.observations[1][column] > 0
    }

    /// The origin of the intervals around a client's means, in words.
    pub fn intervals(&self) -> String {
        match &self.fit.calibration {
            None => {
                "90 % from the family alone: the run ended before its errors were estimated".into()
            }
            Some(c) if c.calibrated => {
                let share = c.coverage.map_or(String::new(), |known| {
                    format!("; cross-checked coverage {:.1} %", 100.0 * known.share)
                });
                let groups = match c.groups.len() {
                    0 | 1 => String::new(),
                    n => format!(" in {n} groups by number of observations and size of the mean"),
                };
                format!("90 %, calibrated on the held-out cells (conformal){groups}{share}")
            }
            Some(c) => {
                let doubt = if c.doubtful {
                    "; uncertain, with fewer than two observations per parameter"
                } else {
                    ""
                };
                format!(
                    "90 % from the model's residuals (dispersion {:.3}), not checked: there are no or \
                     too few held-out cells{doubt}",
                    c.dispersion
                )
            }
        }
    }

    /// The origin of the intervals around the means of the table, in words. With personal effects, the
    /// calibration includes them and does not apply to means without one.
    pub fn intervals_without_effects(&self) -> String {
        let calibrated = self.fit.calibration.as_ref().is_some_and(|c| c.calibrated);
        if !(self.personal && calibrated) {
            return self.intervals();
        }
        "90 %, calibrated on the held-out cells with personal effects; not calibrated for this table \
         without personal effects: the coverage may be lower"
            .into()
    }
}

/// Rows and columns without a fitted cell.
pub(super) fn unobserved(fit: &LowRankFit) -> [Vec<usize>; 2] {
    observed_lines(fit, |count| count == 0)
}

/// Rows and columns whose number of observations satisfies a condition.
fn observed_lines(fit: &LowRankFit, often: impl Fn(u32) -> bool) -> [Vec<usize>; 2] {
    let of = |counts: &Vec<u32>| (0..counts.len()).filter(|at| often(counts[*at])).collect();
    fit.observations.each_ref().map(of)
}
