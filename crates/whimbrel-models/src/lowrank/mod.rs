//! Low-rank models of a partially observed table.
//!
//! Cell `(j, l)` has natural parameter `theta_jl = mu + a_j + b_l + ... + <u_j, v_l>`, with main effects
//! of the row, the column or their covariates, and a value from an exponential family. With `n` clients
//! the fit minimises
//!
//! ```text
//! F = (1/n) sum_observed [psi(theta_jl) - y theta_jl]
//!     + (lambda/2)(|U|^2 + |V|^2) + sum over terms of (ridge/2)|beta|^2
//! ```
//!
//! EM completes the table: `T` maps a dense `S` (the expected value of every cell) to the factors that
//! minimise `sum_all [psi(theta) - S theta]` plus the penalties.

mod adapt;
mod alternating;
mod artifact;
mod ceiling;
mod complete;
mod data;
mod effects;
mod factors;
mod family;
mod fit;
mod histogram;
pub mod interval;
mod kernels;
mod newton;
mod reactivate;
mod side;
mod uncertainty;

pub use adapt::{NewRow, PERSONAL_MAX, own_effect};
pub use artifact::KIND;
pub use ceiling::{Ceiling, Delivered};
pub use complete::{Advance, Residuals, TableStep, copies_unobserved};
pub use data::Observed;
pub use effects::{Classes, Effects, Lines, Term};
pub use factors::Factors;
pub use family::{Family, JUDGED_MEAN_MIN, THETA_MAX};
pub use fit::{LowRankFit, Parameter};
pub use interval::{Calibration, Coverage, Group, ScoreSums, Scores};
pub use uncertainty::{
    Counted, ErrorPart, ErrorSource, Posteriors, Uncertainty, effective_parameters,
};

use whimbrel_core::{Cell, Error, Result, vector::norm2_squared};

/// The variance of a Gaussian cell.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Variance {
    /// One.
    Unit,
    /// Estimated from the residuals; used for intervals only, not in the fit.
    #[default]
    Estimated,
}

/// The default of [`Settings::lambda_effects`]: large enough that the effect of a row of zero counts
/// stays finite.
pub const LAMBDA_EFFECTS: f64 = 1e-3;

/// The settings of a low-rank model, not yet checked.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// `J`.
    pub rows: usize,
    /// `L`.
    pub columns: usize,
    /// `r`, less than `min(J, L)`; a model of rank 0 has main effects only.
    pub rank: usize,
    /// The distribution of a cell.
    pub family: Family,
    pub effects: Effects,
    /// Ridge on the factors.
    pub lambda: f64,
    /// Ridge on the main effects, and on clients' personal effects.
    pub lambda_effects: f64,
    /// One ridge per term, or empty for `lambda_effects` on every term.
    pub term_ridges: Vec<f64>,
    /// The variance of a Gaussian cell.
    pub variance: Variance,
    /// Mean and scale of each column of a Gaussian table, in whose units the fit is; empty: the data's.
    pub units: Vec<[f64; 2]>,
    /// The most observations of one client: bounds the length of its messages.
    pub observations_max: usize,
}

impl Settings {
    /// The paper's model: rank 2, no effects, no penalty on the factors.
    pub fn new(rows: usize, columns: usize, family: Family) -> Self {
        Self {
            rows,
            columns,
            rank: 2,
            family,
            effects: Effects::none(),
            lambda: 0.0,
            lambda_effects: LAMBDA_EFFECTS,
            term_ridges: Vec::new(),
            variance: Variance::default(),
            units: Vec::new(),
            observations_max: REPEATS_MAX * rows * columns,
        }
    }
}

/// The most observations of one cell by one client.
pub const REPEATS_MAX: usize = 16;

/// A low-rank model of a table.
#[derive(Clone, Debug, PartialEq)]
pub struct LowRank {
    settings: Settings,
}

impl LowRank {
    /// Checks the settings.
    pub fn new(settings: Settings) -> Result<Self> {
        let Settings { rows, columns, rank, lambda, lambda_effects, .. } = settings;
        let smaller = rows.min(columns);
        if smaller == 0 {
            return Err(Error::data("a table without rows or columns has nothing to fit"));
        }
        if rank >= smaller {
            return Err(Error::config(format!(
                "rank = {rank} is not below the smaller side of a {rows} x {columns} table"
            ))
            .hint(format!("choose a rank from 0 to {}", smaller - 1)));
        }
        if rank == 0 && settings.effects.is_none() {
            return Err(Error::config("rank = 0 without effects leaves nothing to fit")
                .hint("set effects = \"row+column\", or a rank of 1 or more"));
        }
        let ridges = settings.term_ridges.iter().map(|ridge| ("lambda_effects", *ridge));
        for (name, value) in
            [("lambda", lambda), ("lambda_effects", lambda_effects)].into_iter().chain(ridges)
        {
            if !(value >= 0.0 && value.is_finite()) {
                return Err(Error::config(format!(
                    "{name} = {value} must be non-negative and finite"
                )));
            }
        }
        if ![0, settings.effects.0.len()].contains(&settings.term_ridges.len()) {
            return Err(Error::config("give one ridge, or one for each term of the effects"));
        }
        let is_unit = |unit: &[f64; 2]| unit[0].is_finite() && unit[1] > 0.0 && unit[1].is_finite();
        let of_columns = [0, columns].contains(&settings.units.len());
        let is_scaled = settings.units.is_empty() || settings.family == Family::Gaussian;
        if !(of_columns && is_scaled && settings.units.iter().all(is_unit)) {
            return Err(Error::config("the units of columns are not means and positive scales"));
        }
        settings.effects.check(rows, columns)?;
        Ok(Self { settings })
    }

    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    pub fn rows(&self) -> usize {
        self.settings.rows
    }

    pub fn columns(&self) -> usize {
        self.settings.columns
    }

    pub fn rank(&self) -> usize {
        self.settings.rank
    }

    pub fn family(&self) -> Family {
        self.settings.family
    }

    /// Mean and scale of a column.
    pub fn unit(&self, column: usize) -> [f64; 2] {
        self.settings.units.get(column).copied().unwrap_or([0.0, 1.0])
    }

    /// An observation in the units of the fit.
    pub fn in_units_of_fit(&self, cell: &Cell) -> Cell {
        let [mean, scale] = self.unit(cell.column as usize);
        Cell { value: (cell.value - mean) / scale, ..*cell }
    }

    /// The ridge on a term of the main effects.
    pub fn term_ridge(&self, t: usize) -> f64 {
        self.settings.term_ridges.get(t).copied().unwrap_or(self.settings.lambda_effects)
    }

    /// Number of cells of the whole table.
    pub fn cells(&self) -> usize {
        self.rows() * self.columns()
    }

    /// The index of a cell in row-major order.
    pub fn position(&self, cell: &Cell) -> u64 {
        u64::from(cell.row) * self.columns() as u64 + u64::from(cell.column)
    }

    /// Row and column of the cell with this index.
    pub fn place(&self, position: u64) -> [usize; 2] {
        [position as usize / self.columns(), position as usize % self.columns()]
    }

    /// Lengths of the parts of [`Factors::to_vector`]: intercept and effects if the model has any, then
    /// row factors and column factors.
    pub fn blocks(&self) -> Vec<usize> {
        let Settings { rows, columns, rank, .. } = self.settings;
        let intercept = (!self.terms().is_empty()).then_some(1);
        let terms = self.terms().iter().map(|term| self.term_len(term));
        let factors = [rows * rank, columns * rank].into_iter().filter(|length| *length > 0);
        intercept.into_iter().chain(terms).chain(factors).collect()
    }

    /// Number of parameters: intercept, effects and factors.
    pub fn coordinates_len(&self) -> usize {
        self.blocks().iter().sum()
    }

    /// `(lambda/2)(|U|^2 + |V|^2)` plus `(ridge/2)|beta|^2` over the terms.
    pub fn penalty(&self, factors: &Factors) -> f64 {
        let terms = factors.effects.iter().enumerate();
        0.5 * self.settings.lambda * (norm2_squared(&factors.u) + norm2_squared(&factors.v))
            + terms.map(|(t, own)| 0.5 * self.term_ridge(t) * norm2_squared(own)).sum::<f64>()
    }
}
