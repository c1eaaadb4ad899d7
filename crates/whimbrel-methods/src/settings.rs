//! Settings that several methods share.

use crate::federated::Release;
use crate::masked::Masks;
use whimbrel_core::{ClientId, Error, Result, Stream};

/// The most rows of a client: sums of weights stay exact, and counts do not overflow.
pub(crate) const ROWS_MAX: u64 = 1 << 36;
/// The largest accepted figure of an evaluation.
const FIGURE_MAX: f64 = 1e100;
/// The largest accepted number of a one-off sum. With the most clients and the most rows, neither
/// pooled sums nor squared differences of means overflow, so sums that are accepted alone can be
/// pooled.
const SUM_MAX: f64 = 1e140;
/// The address of minibatch draws, apart from the codec's.
pub const DRAW: u64 = 0xBA7C;

/// The end of a fit.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Budget {
    /// After this number of rounds.
    Rounds(u32),
    /// After this number of passes over the pooled rows.
    Epochs(f64),
    /// Once the server's estimate of the field stays below [`SMALL`] of its largest or below rounding
    /// ([`ROUNDING`]), but after this number of rounds at the latest.
    Converged(u32),
}

impl Budget {
    /// The most rounds, if the budget bounds them.
    pub fn rounds_max(self) -> Option<u32> {
        match self {
            Self::Rounds(rounds) | Self::Converged(rounds) => Some(rounds),
            Self::Epochs(_) => None,
        }
    }

    /// Whether the rounds or the epochs are used up.
    pub(crate) fn is_spent(self, round: u32, epoch: f64) -> bool {
        match self {
            Self::Rounds(rounds) | Self::Converged(rounds) => round >= rounds,
            Self::Epochs(epochs) => epoch >= epochs,
        }
    }
}

/// The root of the largest squared norm; NaN if one is NaN, so that divergence is noticed.
pub(crate) fn largest_norm(norms2: impl IntoIterator<Item = f64>) -> f64 {
    whimbrel_core::vector::largest(norms2).sqrt()
}

/// An estimate of the field is small below this share of the largest norm of the run,
pub const SMALL: f64 = 1e-5;
/// or below this share of the state's norm, as after a converged start.
pub const ROUNDING: f64 = 1e-12;
/// The number of consecutive small estimates that end a fit: a single one may be due to an empty
/// cohort or to chance.
pub const SMALL_ROUNDS: u32 = 3;

/// The weights of clients.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Weights {
    /// By their rows: the objective is that of the pooled rows.
    Samples,
    /// Equally, as (1) of the paper.
    Equal,
}

impl Weights {
    /// The weight of a client that states this number of rows.
    pub fn of(self, id: ClientId, rows: u64) -> Result<f64> {
        if rows == 0 {
            return Err(Error::data("it has no rows").of_client(id));
        }
        if rows > ROWS_MAX {
            return Err(Error::peer(format!(
                "client {id} states {rows} rows, more than {ROWS_MAX}"
            )));
        }
        Ok(self.of_rows(rows))
    }

    /// The weight of a client with this number of rows.
    pub(crate) fn of_rows(self, rows: u64) -> f64 {
        match self {
            Self::Samples => rows as f64,
            Self::Equal => 1.0,
        }
    }
}

/// Rules on what the messages of a client may reveal.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Privacy {
    /// `G`: every block of a message rests on at least this number of rows (`sum r / max r`, with `r`
    /// the weights of the rows in it); `None` without the rule.
    pub min_group: Option<u32>,
    pub masks: Option<Masks>,
    /// Noise on every round's sum, under differential privacy.
    pub release: Option<Release>,
}

impl Privacy {
    /// The smallest group for held-out rows. Clients on a network hold parts with fewer rows back;
    /// only a simulation scores them, and then without the rule.
    pub(crate) fn group_of_part(&self, rows: usize) -> Option<u32> {
        self.min_group.filter(|group| rows >= *group as usize)
    }
}

/// Refuses an answer to an evaluation for other rows than those of the enrolment.
pub(crate) fn check_rows(id: ClientId, answered: u64, enrolled: u64) -> Result<()> {
    if answered == enrolled {
        return Ok(());
    }
    Err(Error::peer(format!(
        "client {id} answered for {answered} rows and enrolled with {enrolled}"
    )))
}

/// Refuses figures of an evaluation that cannot be averaged over the most clients with the most rows.
pub(crate) fn check_figures(id: ClientId, figures: &[f64]) -> Result<()> {
    match figures.iter().find(|x| x.is_nan() || x.abs() > FIGURE_MAX) {
        None => Ok(()),
        Some(x) => Err(Error::peer(format!("client {id} answered with {x:e}"))),
    }
}

/// Refuses one-off sums with a number that cannot be pooled.
pub(crate) fn check_sums(id: ClientId, sums: &[f64]) -> Result<()> {
    match sums.iter().find(|x| x.is_nan() || x.abs() > SUM_MAX) {
        None => Ok(()),
        Some(x) => Err(Error::peer(format!(
            "client {id} sent a sum of {x:e}; the largest accepted is {SUM_MAX:e}"
        ))),
    }
}

/// Adds a client's one-off sums to the total; refuses another length and numbers that cannot be pooled.
pub(crate) fn add_sums(id: ClientId, sums: &[f64], total: &mut [f64]) -> Result<()> {
    check_sums(id, sums)?;
    if sums.len() != total.len() {
        let what = format!("client {id} sent {} sums, expected {}", sums.len(), total.len());
        return Err(Error::peer(what));
    }
    total.iter_mut().zip(sums).for_each(|(total, x)| *total += x);
    Ok(())
}

/// The rows behind one upload. In a job `S` is optional: the default size depends on codec and rows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Batch<S = u32> {
    /// All of them.
    Full,
    /// Random ones.
    Sample {
        /// `b`, rows per minibatch; without replacement at most the client's rows.
        size: S,
        /// Whether a row may be drawn twice into one minibatch.
        replacement: bool,
        /// The number of minibatches that are averaged into one upload.
        local_steps: u32,
    },
}

impl<S: Copy> Batch<S> {
    /// Rows per minibatch; `None` for full batches.
    pub fn size(&self) -> Option<S> {
        match *self {
            Self::Full => None,
            Self::Sample { size, .. } => Some(size),
        }
    }
}

impl Batch<Option<u32>> {
    /// The batch with its own size, else this one, else all rows.
    pub fn settled(self, size: Option<u32>) -> Batch {
        match self {
            Self::Sample { size: given, replacement, local_steps } => given
                .or(size)
                .map_or(Batch::Full, |size| Batch::Sample { size, replacement, local_steps }),
            Self::Full => Batch::Full,
        }
    }
}

impl Batch {
    /// The default of `replacement`.
    pub const REPLACEMENT: bool = true;
    /// The default of `local_steps`.
    pub const LOCAL_STEPS: u32 = 1;

    /// Conditional expectations per upload of a client with this number of rows.
    pub fn expectations(&self, rows: u64) -> u64 {
        match *self {
            Self::Full => rows,
            Self::Sample { size, replacement, local_steps } => {
                let each = if replacement { u64::from(size) } else { u64::from(size).min(rows) };
                each * u64::from(local_steps)
            }
        }
    }

    /// Draws row numbers below `rows`; `None` for full batches.
    pub fn draw(&self, rows: usize, stream: &mut Stream) -> Option<Vec<u32>> {
        let Self::Sample { size, replacement, local_steps } = *self else { return None };
        let size = size as usize;
        let mut drawn = Vec::with_capacity(size.min(rows) * local_steps as usize);
        for _ in 0..local_steps {
            if replacement {
                drawn.extend((0..size).map(|_| stream.below(rows as u64) as u32));
            } else {
                drawn.extend(stream.choose(rows, size.min(rows)).into_iter().map(|i| i as u32));
            }
        }
        Some(drawn)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use whimbrel_core::Key;

    #[test]
    fn a_batch_counts_what_it_computes() {
        assert_eq!(Batch::Full.expectations(70), 70);
        let with = Batch::Sample { size: 20, replacement: true, local_steps: 3 };
        assert_eq!((with.expectations(5), with.expectations(70)), (60, 60));
        let without = Batch::Sample { size: 20, replacement: false, local_steps: 3 };
        assert_eq!((without.expectations(5), without.expectations(70)), (15, 60));
    }

    #[test]
    fn sums_that_are_taken_stay_finite_together() {
        check_sums(ClientId(0), &[SUM_MAX, -SUM_MAX]).unwrap();
        for x in [2.0 * SUM_MAX, -1e200, f64::INFINITY, f64::NAN] {
            assert!(check_sums(ClientId(0), &[1.0, x]).is_err(), "{x}");
        }
        // Everyone at the bound, half of them on the other side: what a pooled variance is made of.
        let rows = ROWS_MAX as f64 * f64::from(u32::MAX);
        assert!((rows * (2.0 * SUM_MAX) * (2.0 * SUM_MAX)).is_finite());
    }

    #[test]
    fn without_replacement_a_large_batch_is_every_row_once() {
        let batch = Batch::Sample { size: 9, replacement: false, local_steps: 1 };
        let mut rows = batch.draw(9, &mut Key::root(4).stream()).unwrap();
        rows.sort_unstable();
        assert_eq!(rows, (0..9).collect::<Vec<u32>>());
    }
}
