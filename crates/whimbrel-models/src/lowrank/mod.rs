//! A table of low rank, seen at some of its cells.
//!
//! Cell `(j, l)` has natural parameter `theta_jl = mu + a_j + b_l + ... + <u_j, v_l>`, with main effects
//! of the row, of the column or of what describes them, and a value from an exponential family. With
//! `n` clients the fit minimises
//!
//! ```text
//! F = (1/n) sum_observed [psi(theta_jl) - y theta_jl]
//!     + (lambda/2)(|U|^2 + |V|^2) + sum over terms of (ridge/2)|beta|^2
//! ```
//!
//! EM completes the table: `T` maps a dense `S` (what every cell would be expected to be) to the
//! factors that minimise `sum_all [psi(theta) - S theta]` plus the penalties.

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
pub use complete::{Advance, Push, Sparse, copies_unobserved};
pub use data::Observed;
pub use effects::{Classes, Effects, Lines, Term};
pub use factors::Factors;
pub use family::{Family, JUDGED_MEAN_MIN, THETA_MAX};
pub use fit::{LowRankFit, Parameter};
pub use interval::{Calibration, Group, ScoreSums, Scores};
pub use uncertainty::{Counted, Posteriors, Share, Source, Uncertainty, effective_parameters};

use whimbrel_core::{Cell, Error, Result};

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
    /// Ridge on the main effects, and on a client's own.
    pub lambda_effects: f64,
    /// Ridges of the single terms, where they differ from that; empty: they do not.
    pub term_ridges: Vec<f64>,
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
            effects: Effects::none(),
            lambda: 0.0,
            lambda_effects: LAMBDA_EFFECTS,
            term_ridges: Vec::new(),
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
            return Err(Error::config("there is a ridge for each term of the effects, or one"));
        }
        settings.effects.check(rows, columns)?;
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

    /// The ridge on a term of the main effects.
    pub fn term_ridge(&self, t: usize) -> f64 {
        self.settings.term_ridges.get(t).copied().unwrap_or(self.settings.lambda_effects)
    }

    /// Cells of the whole table.
    pub fn cells(&self) -> usize {
        self.rows() * self.columns()
    }

    /// The number of a cell: row after row.
    pub fn position(&self, cell: &Cell) -> u64 {
        u64::from(cell.row) * self.columns() as u64 + u64::from(cell.column)
    }

    /// Row and column of the cell with this number.
    pub fn place(&self, position: u64) -> [usize; 2] {
        [position as usize / self.columns(), position as usize % self.columns()]
    }

    /// Lengths of the parts of [`Factors::to_vector`]: intercept and effects where there are any,
    /// then the factors of the rows and of the columns.
    pub fn blocks(&self) -> Vec<usize> {
        let Settings { rows, columns, rank, .. } = self.settings;
        let intercept = (!self.terms().is_empty()).then_some(1);
        let terms = self.terms().iter().map(|term| self.term_len(term));
        let factors = [rows * rank, columns * rank].into_iter().filter(|length| *length > 0);
        intercept.into_iter().chain(terms).chain(factors).collect()
    }

    /// How many numbers the factors and effects are.
    pub fn coordinates_len(&self) -> usize {
        self.blocks().iter().sum()
    }

    /// `(lambda/2)(|U|^2 + |V|^2)`, and `(ridge/2)|beta|^2` of each term.
    pub fn penalty(&self, factors: &Factors) -> f64 {
        let norm2 = whimbrel_core::vector::norm2_squared;
        let terms = factors.effects.iter().enumerate();
        0.5 * self.settings.lambda * (norm2(&factors.u) + norm2(&factors.v))
            + terms.map(|(t, own)| 0.5 * self.term_ridge(t) * norm2(own)).sum::<f64>()
    }
}
