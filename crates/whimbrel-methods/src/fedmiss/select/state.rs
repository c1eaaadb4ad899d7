//! What the selection keeps and sends.

use super::search::{Candidate, Trial};
use crate::fedmiss;
use crate::fedmiss::roll::{Answer, Answers, Roll};
use whimbrel_core::{Key, wire};
use whimbrel_models::lowrank::Factors;

/// How observed cells are set aside for validation.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Folds {
    /// How many times every candidate is fitted.
    pub count: u32,
    /// The share of the observed cells that a fold hides.
    pub share: f64,
}

impl Folds {
    /// Few observations are validated all, each once; many by a sample.
    pub fn for_observations(count: u64) -> Self {
        match count {
            0..1_000 => Self { count: 5, share: 0.2 },
            1_000..10_000 => Self { count: 4, share: 0.2 },
            10_000..20_000 => Self { count: 2, share: 0.2 },
            _ => Self { count: 1, share: 0.1 },
        }
    }

    /// Which cells a fold hides: by their number in the table, so that a cell observed twice is
    /// never on both sides. A client all of whose cells would be hidden hides none, and nobody hides
    /// any in the fold after the last.
    pub fn hidden(&self, fold: u32, seed: u64, cells: impl Iterator<Item = u64>) -> Vec<bool> {
        let of = |cell| Key::root(seed).fold(DEAL).fold(cell).uniform() / self.share;
        let inside = fold < self.count;
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
    /// The trial in progress.
    pub at: u32,
    /// A fit of each fold, and of all cells, before its first round.
    pub fresh: Vec<fedmiss::Server>,
    /// The fit in progress.
    pub fit: fedmiss::Server,
    /// The smallest ridge at which rank 0 is optimal; 0 until rank 0 was fitted.
    pub lambda_max: f64,
    /// The largest rank that the observations can tell anything about.
    pub rank_max: u32,
    /// What was tried, with the scores of all folds so far.
    pub trials: Vec<Trial>,
    /// The same as the last fold left it.
    pub settled: Vec<Trial>,
    /// What each client said in this fold, trial by trial.
    pub scored: Vec<Vec<Answer>>,
    /// The fits of the trials of this fold, to start others from.
    pub found: Vec<Factors>,
    /// Who has scored the trial in progress.
    pub roll: Roll,
    /// The fit of rank 0 to all cells, where the low-rank one is mixed with it.
    pub plain: Option<Factors>,
    /// The best fit to all cells so far, once there is one.
    pub best: Option<Refit>,
    /// How many were made.
    pub refits: u32,
}

/// A fit to all cells.
#[derive(Clone, Debug)]
pub struct Refit {
    /// `F`, less what does not depend on the fit.
    pub objective: f64,
    /// The fit.
    pub factors: Factors,
}

impl Server {
    /// Who has scored every trial of this fold so far: those whose scores can be compared. Everyone
    /// enrolled before the first.
    pub fn voters(&self) -> Vec<u32> {
        let mut voters = self.fit.member_ids();
        for heard in &self.scored {
            let said = |id: &u32| heard.iter().any(|a| a.id == *id && !a.sums.is_empty());
            voters.retain(said);
        }
        voters
    }

    /// Adds up the scores of the voters, on top of those of earlier folds.
    pub fn tally(&mut self) {
        let voters = self.voters();
        for (i, heard) in self.scored.iter().enumerate() {
            let Trial { candidate, rounds, .. } = self.trials[i];
            let before = self.settled.get(i).cloned();
            let mut trial = before.unwrap_or_else(|| Trial::new(candidate, i));
            trial.rounds = rounds;
            let voting = heard.iter().filter(|answer| voters.binary_search(&answer.id).is_ok());
            voting.for_each(|answer| trial.add(&answer.sums));
            self.trials[i] = trial;
        }
    }
}

/// What a client remembers.
#[derive(Clone, Debug)]
pub struct Client {
    /// Its part in a fit.
    pub fit: fedmiss::Client,
    /// The fold that the deviances belong to.
    pub fold: u32,
    /// The deviance of each hidden cell, trial by trial.
    pub deviances: Vec<Vec<f64>>,
}

/// The message to a client.
#[derive(Clone, Debug)]
pub struct Down {
    /// How cells are set aside.
    pub folds: Folds,
    /// The fold in progress.
    pub fold: u32,
    /// The trial in progress.
    pub at: u32,
    /// Its model.
    pub candidate: Candidate,
    /// The fit's message; its phase says whether hidden cells are to be scored.
    pub fit: fedmiss::Down,
}

/// The message from a client.
#[derive(Clone, Debug)]
pub struct Up {
    /// In a round of a fit: the residuals.
    pub fit: Option<fedmiss::Up>,
    /// In a scoring exchange: hidden cells, the sum of their deviances and of its squares, and the
    /// sums of squared differences to each earlier trial; nothing where the client lacks one.
    pub sums: Vec<f64>,
}

/// The uploads of one exchange.
#[derive(Clone, Debug)]
pub struct Fold {
    /// The fold in progress.
    pub of: u32,
    /// In a round of a fit.
    pub fit: Option<fedmiss::Fold>,
    /// In a scoring exchange.
    pub scores: Answers,
}

wire!(Folds { count, share });
wire!(Server {
    folds,
    fold,
    at,
    fresh,
    fit,
    lambda_max,
    rank_max,
    trials,
    settled,
    scored,
    found,
    roll,
    plain,
    best,
    refits
});
wire!(Refit { objective, factors });
wire!(Client { fit, fold, deviances });
wire!(Down { folds, fold, at, candidate, fit });
wire!(Up { fit, sums });
wire!(Fold { of, fit, scores });

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folds_are_disjoint_and_of_their_share() {
        for observations in [500, 5_000, 15_000, 50_000] {
            let folds = Folds::for_observations(observations);
            let mut times = vec![0; 5_000];
            for fold in 0..folds.count {
                let hidden = folds.hidden(fold, 3, 0..5_000);
                // A binomial standard deviation of at most 29: five of them.
                let count = hidden.iter().filter(|hidden| **hidden).count() as f64;
                assert!((count - 5_000.0 * folds.share).abs() < 145.0, "{count}");
                times
                    .iter_mut()
                    .zip(&hidden)
                    .for_each(|(times, hidden)| *times += u32::from(*hidden));
            }
            assert!(times.iter().all(|times| *times <= 1));
        }
    }

    #[test]
    fn nobody_hides_everything() {
        let folds = Folds { count: 1, share: 1.0 };
        assert_eq!(folds.hidden(0, 3, [4, 5, 6].into_iter()), [false; 3]);
    }
}
