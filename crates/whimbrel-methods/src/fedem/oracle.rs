//! `S_{k+1,i}`: which rows an oracle call uses.

use super::FedEm;
use crate::settings::{Batch, DRAW};
use whimbrel_core::{Error, Key, Result};
use whimbrel_models::{LatentModel, Rows};

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
