//! A table of low rank, seen at some of its cells.
//!
//! Cell `(j, l)` has natural parameter `theta_jl = mu + a_j + b_l + <u_j, v_l>` and a value from an
//! exponential family. With `n` clients the fit minimises
//!
//! ```text
//! F = (1/n) sum_observed [psi(theta_jl) - y theta_jl]
//!     + (lambda/2)(|U|^2 + |V|^2) + (lambda_effects/2)(|a|^2 + |b|^2)
//! ```
//!
//! EM completes the table: `T` maps a dense `S` (what every cell would be expected to be) to the
//! factors that minimise `sum_all [psi(theta) - S theta]` plus the penalties.

mod adapt;
mod alternating;
mod balance;
mod ceiling;
mod complete;
mod data;
mod factors;
mod family;
mod fit;
mod histogram;
pub mod interval;
mod kernels;
mod newton;
mod objective;
mod reactivate;
mod side;
mod trust_region;
mod uncertainty;

pub use adapt::{NewRow, PERSONAL_MAX, own_effect};
pub use ceiling::{Ceiling, Delivered};
pub use complete::{Advance, COPIES_UNOBSERVED, Push, Sparse};
pub use data::Observed;
pub use factors::Factors;
pub use family::{Family, JUDGED_MEAN_MIN, THETA_MAX};
pub use fit::{KIND, LowRankFit, Parameter};
pub use interval::{Calibration, Group, ScoreSums, Scores};
pub use uncertainty::{Counted, Uncertainty, effective_parameters};

use whimbrel_core::{Error, Result};

/// Which main effects are added to the product of the factors.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Effects {
    /// None, and no intercept: `theta = U V^T`.
    #[default]
    None,
    /// An intercept and one per row.
    Row,
    /// An intercept and one per column.
    Column,
    /// An intercept, one per row and one per column.
    RowColumn,
}

impl Effects {
    /// The kind of effects that a code, its number here, stands for.
    pub fn from_code(code: f64) -> Option<Self> {
        let all = [Self::None, Self::Row, Self::Column, Self::RowColumn];
        all.into_iter().find(|effects| f64::from(*effects as u8) == code)
    }

    /// Whether rows have effects.
    pub fn has_row(self) -> bool {
        matches!(self, Self::Row | Self::RowColumn)
    }

    /// Whether columns have effects.
    pub fn has_column(self) -> bool {
        matches!(self, Self::Column | Self::RowColumn)
    }

    /// Whether there is an intercept.
    pub fn has_intercept(self) -> bool {
        self != Self::None
    }
}

/// What the variance of a Gaussian cell is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Variance {
    /// One.
    Unit,
    /// Estimated from the residuals; it widens intervals and leaves the fit as it is.
    #[default]
    Estimated,
}

/// The default of [`Settings::lambda_effects`]: enough to hold a row of zero counts in place.
pub const LAMBDA_EFFECTS: f64 = 1e-3;

/// What a low-rank model is, before it is checked.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// `J`.
    pub rows: usize,
    /// `L`.
    pub columns: usize,
    /// `r`, below the smaller of `J` and `L`; 0 leaves the effects alone.
    pub rank: usize,
    /// The distribution of a cell.
    pub family: Family,
    /// Main effects.
    pub effects: Effects,
    /// Ridge on the factors.
    pub lambda: f64,
    /// Ridge on the main effects.
    pub lambda_effects: f64,
    /// The variance of a Gaussian cell.
    pub variance: Variance,
}

impl Settings {
    /// Rank 2 of a Gaussian table without effects and without penalty on the factors: the paper's.
    pub fn new(rows: usize, columns: usize, family: Family) -> Self {
        Self {
            rows,
            columns,
            rank: 2,
            family,
            effects: Effects::None,
            lambda: 0.0,
            lambda_effects: LAMBDA_EFFECTS,
            variance: Variance::default(),
        }
    }
}

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
        if rank == 0 && settings.effects == Effects::None {
            return Err(Error::config("rank = 0 without effects leaves nothing to fit")
                .hint("set effects = \"row+column\", or a rank of 1 or more"));
        }
        for (name, value) in [("lambda", lambda), ("lambda_effects", lambda_effects)] {
            if !(value >= 0.0 && value.is_finite()) {
                return Err(Error::config(format!(
                    "{name} = {value} must be non-negative and finite"
                )));
            }
        }
        Ok(Self { settings })
    }

    /// What the model is.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// `J`.
    pub fn rows(&self) -> usize {
        self.settings.rows
    }

    /// `L`.
    pub fn columns(&self) -> usize {
        self.settings.columns
    }

    /// `r`.
    pub fn rank(&self) -> usize {
        self.settings.rank
    }

    /// The distribution of a cell.
    pub fn family(&self) -> Family {
        self.settings.family
    }

    /// Whether nothing but the intercept is free of a penalty: the fit then exists whatever was
    /// observed.
    pub fn is_penalised(&self) -> bool {
        let Settings { rank, effects, lambda, lambda_effects, .. } = self.settings;
        (rank == 0 || lambda > 0.0) && (effects == Effects::None || lambda_effects > 0.0)
    }

    /// Cells of the whole table.
    pub fn cells(&self) -> usize {
        self.rows() * self.columns()
    }

    /// Lengths of the parts of [`Factors::to_vector`]: intercept and effects where there are any,
    /// then the factors of the rows and of the columns.
    pub fn blocks(&self) -> Vec<usize> {
        let Settings { rows, columns, rank, effects, .. } = self.settings;
        let present = [
            (effects.has_intercept(), 1),
            (effects.has_row(), rows),
            (effects.has_column(), columns),
            (rank > 0, rows * rank),
            (rank > 0, columns * rank),
        ];
        present.into_iter().filter(|(there, _)| *there).map(|(_, length)| length).collect()
    }

    /// How many numbers the factors and effects are.
    pub fn coordinates_len(&self) -> usize {
        self.blocks().iter().sum()
    }

    /// `(lambda/2)(|U|^2 + |V|^2) + (lambda_effects/2)(|a|^2 + |b|^2)`.
    pub fn penalty(&self, factors: &Factors) -> f64 {
        let norm2 = whimbrel_core::vector::norm2_squared;
        let Settings { lambda, lambda_effects, .. } = self.settings;
        0.5 * lambda * (norm2(&factors.u) + norm2(&factors.v))
            + 0.5 * lambda_effects * (norm2(&factors.row_effects) + norm2(&factors.column_effects))
    }
}
