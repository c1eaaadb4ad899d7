//! What the selection keeps and sends.

use super::candidates::Candidate;
use crate::fedmiss;
use whimbrel_core::sum::ExactSum;
use whimbrel_core::{Key, wire};
use whimbrel_models::lowrank::{Ceiling, Factors};

/// How observed cells are set aside for validation.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Folds {
    /// How many times every candidate is fitted.
    pub count: u32,
    /// The share of the observed cells that a fold hides.
    pub share: f64,
}

/// From so many observations on a fifth of them, 2,000, is a validation set by itself.
const ONE_FOLD_MIN: u64 = 10_000;

impl Folds {
    /// One fold that hides nothing: candidates are judged by the cells that the job holds out.
    pub const HELD_OUT: Self = Self { count: 1, share: 0.0 };

    /// No folds: nothing is judged.
    pub const NONE: Self = Self { count: 0, share: 0.0 };

    /// Five folds, each observation being hidden once; one of them where there are many.
    pub fn for_observations(count: u64) -> Self {
        Self { count: if count < ONE_FOLD_MIN { 5 } else { 1 }, share: 0.2 }
    }

    /// Which cells a fold hides: by their number in the table, so that a cell observed twice is
    /// never on both sides. A client all of whose cells would be hidden hides none, and nobody hides
    /// any in the fold after the last.
    pub fn hidden(&self, fold: u32, seed: u64, cells: impl Iterator<Item = u64>) -> Vec<bool> {
        let of = |cell| Key::root(seed).child(DEAL).child(cell).uniform() / self.share;
        let inside = fold < self.count && self.share > 0.0;
        let mut hidden: Vec<bool> = cells.map(|cell| inside && of(cell) as u32 == fold).collect();
        if hidden.iter().all(|hidden| *hidden) {
            hidden.fill(false);
        }
        hidden
    }
}

/// The stream that deals cells to folds.
const DEAL: u64 = 0xF01D;

/// The global state.
#[derive(Clone, Debug)]
pub struct Server {
    /// How cells are set aside.
    pub folds: Folds,
    /// The fold in progress; after the last one, all cells.
    pub fold: u32,
    /// The candidate in progress.
    pub at: u32,
    /// A fit of each fold, and of all cells, before its first round.
    pub fresh: Vec<fedmiss::Server>,
    /// The fit in progress.
    pub fit: fedmiss::Server,
    /// Of each candidate of rank 0, the smallest ridge at which factors do not pay beside it.
    pub lambda_maxes: Vec<f64>,
    /// The one from which ridges on the factors start; 0 until rank 0 was scored.
    pub lambda_max: f64,
    /// What is tried.
    pub candidates: Vec<Candidate>,
    /// Rounds that the fits of each took.
    pub rounds: Vec<u32>,
    /// The fits of each fold.
    pub found: Vec<Vec<Table>>,
    /// The scores of each fold, see [`Scores`](super::Scores).
    pub sums: Vec<Vec<f64>>,
    /// Exchanges of scores in a row that nobody answered.
    pub unanswered: u32,
    /// The best fit of the chosen model to all cells so far, and its `F` less what does not depend on it.
    pub best: Option<(f64, Factors)>,
    /// How many were made.
    pub refits: u32,
}

/// The fit of a candidate, as it is judged.
#[derive(Clone, Debug)]
pub struct Table {
    /// The model.
    pub candidate: Candidate,
    /// Effects and factors, as they travel.
    pub theta: Vec<f64>,
    /// What no estimate goes beyond.
    pub ceiling: Option<Ceiling>,
}

/// A round of a fit, for one client.
#[derive(Clone, Debug)]
pub struct Fit {
    /// The model.
    pub candidate: Candidate,
    /// The fit's message.
    pub down: fedmiss::Down,
}

/// The message to a client: a round of a fit, or the fits of a fold to be scored.
#[derive(Clone, Debug)]
pub struct Down {
    /// How cells are set aside.
    pub folds: Folds,
    /// The fold in progress.
    pub fold: u32,
    /// n.
    pub clients: u32,
    /// The round.
    pub fit: Option<Fit>,
    /// The fits.
    pub tables: Vec<Table>,
}

/// The message from a client.
#[derive(Clone, Debug)]
pub struct Up {
    /// In a round of a fit: the residuals.
    pub fit: Option<fedmiss::Up>,
    /// In an exchange of scores: see [`Scores`](super::Scores).
    pub sums: Vec<f64>,
}

/// The uploads of one exchange.
#[derive(Clone, Debug)]
pub struct Fold {
    /// The fold in progress.
    pub of: u32,
    /// In a round of a fit.
    pub fit: Option<fedmiss::Fold>,
    /// In an exchange of scores.
    pub sums: ExactSum,
}

wire!(Folds { count, share });
wire!(Server {
    folds,
    fold,
    at,
    fresh,
    fit,
    lambda_maxes,
    lambda_max,
    candidates,
    rounds,
    found,
    sums,
    unanswered,
    best,
    refits
});
wire!(Table { candidate, theta, ceiling });
wire!(Fit { candidate, down });
wire!(Down { folds, fold, clients, fit, tables });
wire!(Up { fit, sums });
wire!(Fold { of, fit, sums });
