//! States and messages of a selection.

use super::candidates::Candidate;
use crate::fedmiss;
use whimbrel_core::sum::ExactSum;
use whimbrel_core::{Key, wire};
use whimbrel_models::lowrank::{Ceiling, Factors};

/// The division of observed cells into training and validation.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Splits {
    /// The number of splits, and of fits of every candidate.
    pub count: u32,
    /// The share of observed cells that a split hides.
    pub share: f64,
}

/// From this number of observations on a fifth of them is a sufficient validation set.
const ONE_FOLD_MIN: u64 = 10_000;

impl Splits {
    /// One split without hidden cells: candidates are judged by the cells that the job holds out.
    pub const HELD_OUT: Self = Self { count: 1, share: 0.0 };

    /// No splits and no validation.
    pub const NONE: Self = Self { count: 0, share: 0.0 };

    /// Five splits, each observation hidden once; one split of many observations.
    pub fn for_observations(count: u64) -> Self {
        Self { count: if count < ONE_FOLD_MIN { 5 } else { 1 }, share: 0.2 }
    }

    /// Whether a split hides each cell, by the cell's number in the table, so that a cell observed
    /// twice is never on both sides. A client whose cells would all be hidden hides none, and the split
    /// after the last hides none.
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
    pub splits: Splits,
    /// The split in progress; after the last one, all cells.
    pub split: u32,
    /// The candidate in progress.
    pub at: u32,
    /// A fit of each split, and of all cells, before its first round.
    pub fresh: Vec<fedmiss::Server>,
    /// The fit in progress.
    pub fit: fedmiss::Server,
    /// For each candidate of rank 0, the smallest ridge at which factors vanish beside it.
    pub lambda_maxes: Vec<f64>,
    /// The ridge from which the path on the factors starts; 0 until rank 0 was scored.
    pub lambda_max: f64,
    pub candidates: Vec<Candidate>,
    /// Rounds of each candidate's fits.
    pub rounds: Vec<u32>,
    /// The fits of each split.
    pub found: Vec<Vec<Table>>,
    /// The scores of each split, see [`Scores`](super::Scores).
    pub sums: Vec<Vec<f64>>,
    /// Consecutive exchanges of scores that no client answered.
    pub unanswered: u32,
    /// The best fit of the chosen model to all cells so far, after its `F` up to a constant.
    pub best: Option<(f64, Factors)>,
    /// Fits to all cells so far.
    pub refits: u32,
}

/// The fit of a candidate.
#[derive(Clone, Debug)]
pub struct Table {
    pub candidate: Candidate,
    /// Effects and factors in the form of messages.
    pub theta: Vec<f64>,
    /// The upper bound of estimates.
    pub ceiling: Option<Ceiling>,
}

/// The message to a client: a round of a fit, or the fits of a split to be scored.
#[derive(Clone, Debug)]
pub struct Down {
    pub splits: Splits,
    pub split: u32,
    /// `n`.
    pub clients: u32,
    /// In a round of a fit: the candidate, and the fit's message.
    pub fit: Option<(Candidate, fedmiss::Down)>,
    /// In an exchange of scores: the fits.
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
    pub fit: Option<fedmiss::Fold>,
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
