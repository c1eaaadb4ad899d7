//! `S_{k+1,i}`: which rows an oracle call uses.

use super::FedEm;
use whimbrel_core::{Error, Key, Result, Stream};
use whimbrel_models::{LatentModel, Rows};

/// The rows behind one upload.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Batch {
    /// All of them.
    Full,
    /// Random ones.
    Sample {
        /// `b`, rows per minibatch (all of a client's where it holds fewer, without replacement).
        size: u32,
        /// Whether a row may be drawn twice into one minibatch.
        replacement: bool,
        /// How many minibatches are averaged into one upload.
        local_steps: u32,
    },
}

impl Batch {
    /// Conditional expectations that one upload of a client with so many rows costs.
    pub fn expectations(&self, rows: u64) -> u64 {
        match *self {
            Self::Full => rows,
            Self::Sample { size, replacement, local_steps } => {
                let each = if replacement { u64::from(size) } else { u64::from(size).min(rows) };
                each * u64::from(local_steps)
            }
        }
    }

    /// Draws row numbers below `rows`.
    fn draw(&self, rows: usize, stream: &mut Stream) -> Option<Vec<u32>> {
        let Self::Sample { size, replacement, local_steps } = *self else { return None };
        let size = size as usize;
        let mut drawn = Vec::with_capacity(size * local_steps as usize);
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

impl<M: LatentModel> FedEm<M> {
    /// `s̄_i(θ)` over all rows.
    pub(super) fn whole_statistic(
        &self,
        theta: &M::Parameters,
        data: &M::Data,
    ) -> Result<Vec<f64>> {
        let mut s_i = vec![0.0; self.model.statistic_len()];
        match self.model.window(data, 0, self.model.rows(data))? {
            Some(window) => self.model.expect(theta, &window, Rows::All, &mut s_i)?,
            None => self.model.expect(theta, data, Rows::All, &mut s_i)?,
        };
        Ok(s_i)
    }

    /// `S_{k+1,i}` and the client's next position in its stream.
    pub(super) fn sampled_statistic(
        &self,
        theta: &M::Parameters,
        data: &M::Data,
        position: u64,
        key: Key,
    ) -> Result<(Vec<f64>, u64)> {
        let mut s_i = vec![0.0; self.model.statistic_len()];
        let count = self.batch.expectations(u64::MAX);
        if self.batch != Batch::Full
            && let Some(window) = self.model.window(data, position, count as usize)?
        {
            // Online: rows that were never seen before.
            self.model.expect(theta, &window, Rows::All, &mut s_i)?;
            return Ok((s_i, position + count));
        }
        match self.batch.draw(self.model.rows(data), &mut key.fold(DRAW).stream()) {
            Some(rows) => self.model.expect(theta, data, Rows::These(&rows), &mut s_i)?,
            None => return Ok((self.whole_statistic(theta, data)?, position)),
        };
        Ok((s_i, position))
    }

    /// Refuses settings that a stream cannot serve.
    pub fn check_stream(&self) -> Result<()> {
        if self.batch == Batch::Full {
            return Err(Error::config("a stream has no end, so batch = \"full\" means nothing")
                .hint("give a number of rows per round, such as batch = 20"));
        }
        Ok(())
    }
}

/// Minibatches are drawn from a stream of their own, apart from the codec's.
const DRAW: u64 = 0xBA7C;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_counts_what_it_computes() {
        assert_eq!(Batch::Full.expectations(70), 70);
        let with = Batch::Sample { size: 20, replacement: true, local_steps: 3 };
        assert_eq!((with.expectations(5), with.expectations(70)), (60, 60));
        let without = Batch::Sample { size: 20, replacement: false, local_steps: 3 };
        assert_eq!((without.expectations(5), without.expectations(70)), (15, 60));
    }

    #[test]
    fn without_replacement_a_large_batch_is_every_row_once() {
        let batch = Batch::Sample { size: 9, replacement: false, local_steps: 1 };
        let mut rows = batch.draw(9, &mut Key::root(4).stream()).unwrap();
        rows.sort_unstable();
        assert_eq!(rows, (0..9).collect::<Vec<u32>>());
    }
}
