//! What the selection keeps and sends.

use super::candidates::Candidate;
use crate::fedmiss;
use whimbrel_core::sum::ExactSum;
use whimbrel_core::{Key, wire};
use whimbrel_models::lowrank::{Ceiling, Factors};

/// How observed cells are set aside for validation.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Splits {
    /// How many times every candidate is fitted.
    pub count: u32,
    /// The share of the observed cells that a split hides.
    pub share: f64,
}

/// Observations from which on a fifth of them, 2,000, is a validation set by itself.
const ONE_FOLD_MIN: u64 = 10_000;

impl Splits {
    /// One split that hides nothing: candidates are judged by the cells that the job holds out.
    pub const HELD_OUT: Self = Self { count: 1, share: 0.0 };

    /// No splits: nothing is judged.
    pub const NONE: Self = Self { count: 0, share: 0.0 };

    /// Five splits, each observation being hidden once; one of them where there are many.
    pub fn for_observations(count: u64) -> Self {
        Self { count: if count < ONE_FOLD_MIN { 5 } else { 1 }, share: 0.2 }
    }

    /// Which cells a split hides: by their number in the table, so that a cell observed twice is
    /// never on both sides. A client all of whose cells would be hidden hides none, and no client
    /// hides any in the split after the last.
    pub fn hidden(&self, split: u32, seed: u64, cells: impl Iterator<Item = u64>) -> Vec<bool> {
        let of = |cell| Key::root(seed).child(DEAL).child(cell).uniform() / self.share;
        let inside = split < self.count && self.share > 0.0;
        let mut hidden: Vec<bool> = cells.map(|cell| inside && of(cell) as u32 == split).collect();
        if hidden.iter().all(|hidden| *hidden) {
            hidden.fill(false);
        }
        hidden
    }
}

/// The stream that deals cells to splits.
const DEAL: u64 = 0xF01D;

/// The global state.
#[derive(Clone, Debug)]
pub struct Server {
    /// How cells are set aside.
    pub splits: Splits,
    /// The split in progress; after the last one, all cells.
    pub split: u32,
    /// The candidate in progress.
    pub at: u32,
    /// A fit of each split, and of all cells, before its first round.
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
    /// The fits of each split.
    pub found: Vec<Vec<Table>>,
    /// The scores of each split, see [`Scores`](super::Scores).
    pub sums: Vec<Vec<f64>>,
    /// Consecutive exchanges of scores that no client answered.
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

/// The message to a client: a round of a fit, or the fits of a split to be scored.
#[derive(Clone, Debug)]
pub struct Down {
    /// How cells are set aside.
    pub splits: Splits,
    /// The split in progress.
    pub split: u32,
    /// n.
    pub clients: u32,
    /// The round: the model, and the fit's message.
    pub fit: Option<(Candidate, fedmiss::Down)>,
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
    /// The split in progress.
    pub of: u32,
    /// In a round of a fit.
    pub fit: Option<fedmiss::Fold>,
    /// In an exchange of scores.
    pub sums: ExactSum,
}

wire!(Splits { count, share });
wire!(Server {
    splits,
    split,
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
wire!(Down { splits, split, clients, fit, tables });
wire!(Up { fit, sums });
wire!(Fold { of, fit, sums });
