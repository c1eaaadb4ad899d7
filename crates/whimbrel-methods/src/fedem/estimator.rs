//! `S_{k+1,i}`, a client's estimate of `s̄_i(T(Ŝ_k))`: from a minibatch alone (FedEM), or by SPIDER
//! recursion from one full pass in each outer loop (VR-FedEM).
//!
//! The second is Algorithm 2 of the paper, lines 7, 8 and 20; with a single client and an exact codec
//! it is SPIDER-EM (Fort, Moulines, Wai 2020).
//!
//! | paper | here | meaning |
//! |---|---|---|
//! | `t` | `outer` | the outer loop |
//! | `k_in` | `inner` | rounds of an outer loop |
//! | `S_{t,k,i}` | `Running::s_i` | the recursion |
//! | `T(Ŝ_{t,k−1})` | `Running::theta` | the parameters of its last update |
//! | `B_{t,k+1,i}`, `b` | `batch` | the minibatch |
//!
//! Departures: the paper states Algorithm 2 for full participation. With sampled cohorts a client makes
//! its full pass in its first active round of an outer loop; later rounds continue the recursion from
//! the parameters of the client's *own* last active round. With full participation this is
//! Algorithm 2, whose correction at k = 0 is zero. A client makes a full pass, which has no variance,
//! whenever a correction would cost as many conditional expectations. With the automatic step an
//! outer loop ends early if a round's direction would leave the trust region by a wide margin,
//! because the recursion's variance grows with the distance from its full pass.

use super::{Em, Form, Global, OuterLoop, Own};
use crate::settings::{Batch, DRAW};
use std::any::Any;
use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use whimbrel_core::{Error, Key, Result, Wire, math, vector, wire};
use whimbrel_models::{MixtureModel, Rows};

/// The estimator of a client's statistic.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Estimator {
    /// From a minibatch: Algorithm 1.
    Minibatch,
    /// By recursion from a full pass: Algorithm 2.
    Spider {
        /// `k_in`, rounds from one full pass to the next.
        inner: u32,
    },
}

impl Estimator {
    /// Counts a round; a new outer loop starts after `k_in` rounds, or if the recursion drifted too
    /// far from its full pass.
    pub(super) fn advance(self, global: &mut Global, drifted: bool) {
        let Self::Spider { inner } = self else { return };
        global.outer_rounds += 1;
        if drifted || global.outer_rounds >= inner {
            global.outer += 1;
            global.outer_rounds = 0;
        }
    }

    /// Conditional expectations behind an upload of a client with `rows` rows; `whole`: the upload
    /// came from a full pass.
    pub(super) fn expectations(self, batch: &Batch, rows: u64, whole: bool) -> u64 {
        match self {
            Self::Minibatch => batch.expectations(rows),
            Self::Spider { .. } if whole => rows,
            Self::Spider { .. } => correction(batch, rows).unwrap_or(rows),
        }
    }

    /// The mean number of conditional expectations per round, for a client with this number of rows
    /// and participation probability `p`.
    pub fn expectations_mean(self, batch: &Batch, rows: u64, p: f64) -> f64 {
        match self {
            Self::Minibatch => p * batch.expectations(rows) as f64,
            Self::Spider { inner } => {
                let asked = p * f64::from(inner);
                let heard_at_all =
                    if p < 1.0 { 1.0 - math::pow(1.0 - p, f64::from(inner)) } else { 1.0 };
                let each = correction(batch, rows).unwrap_or(rows) as f64;
                let loop_cost = heard_at_all * (rows as f64 - each) + asked * each;
                loop_cost / f64::from(inner)
            }
        }
    }

    /// Refuses settings that a stream cannot serve.
    pub fn check_stream(self, batch: &Batch) -> Result<()> {
        if let Self::Spider { .. } = self {
            return Err(Error::config(
                "variance reduction starts each outer loop with a pass over all rows, and a stream has no end",
            )
            .hint("write stream = false in [data], or use kind = \"fedem\" in [method]"));
        }
        if *batch == Batch::Full {
            return Err(Error::config("a stream has no end, so batch = \"full\" means nothing")
                .hint("give a number of rows per round, such as batch = 20"));
        }
        Ok(())
    }
}

/// Conditional expectations of a correction, the same rows at two parameters; `None`
/// if a full pass takes no more.
fn correction(batch: &Batch, rows: u64) -> Option<u64> {
    Some(2 * batch.expectations(rows)).filter(|both| *both < rows)
}

/// A client's recursion.
#[derive(Clone, Debug)]
pub struct Running {
    /// The outer loop it belongs to.
    pub outer: u32,
    /// `S_{t,k,i}`.
    pub s_i: Vec<f64>,
    /// The parameters at which it stands, in the coordinates in which they travel.
    pub theta: Vec<f64>,
    /// The same, decoded.
    pub decoded: Decoded,
}

wire!(Running { outer, s_i, theta, decoded });

/// Cache of the decoded parameters at a recursion's coordinates. Not part of the stored state:
/// decoding the coordinates gives the same parameters.
#[derive(Clone, Default)]
pub struct Decoded(Option<Arc<dyn Any + Send + Sync>>);

impl fmt::Debug for Decoded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Decoded" } else { "not decoded" })
    }
}

impl Wire for Decoded {
    fn put(&self, _: &mut Vec<u8>) {}
    fn take(_: &mut &[u8]) -> Result<Self> {
        Ok(Self::default())
    }
}

/// The result of the estimator.
pub(super) struct Estimate {
    /// `S_{k+1,i}`.
    pub s_i: Vec<f64>,
    /// The components that too few rows determine.
    pub left_out: u32,
    /// The client's next position in its stream.
    pub position: u64,
    /// Its recursion.
    pub running: Option<Running>,
}

impl<M: MixtureModel> Em<M> {
    /// `S_{k+1,i}` at the received parameters, given with their coordinates.
    pub(super) fn estimate(
        &self,
        own: &Own,
        outer: Option<OuterLoop>,
        (theta, coordinates): (M::Parameters, Vec<f64>),
        data: &M::Data,
        group: Option<u32>,
        key: Key,
    ) -> Result<Estimate> {
        match self.estimator {
            Estimator::Minibatch => self.sampled(&theta, data, own.position, group, key),
            Estimator::Spider { .. } => {
                let missing = || Error::peer("the outer loop is missing");
                let OuterLoop(outer) = outer.ok_or_else(missing)?;
                let moves = correction(&self.batch, self.model.rows(data) as u64).is_some();
                let stands = |running: &&Running| moves && running.outer == outer;
                let s_i = match own.running.as_ref().filter(stands) {
                    // S_{t,0,i} = m^-1 Σ_j s̄_ij(T(Ŝ_{t,0}))                    (Alg. 2, l. 3, 20)
                    None => self.whole_statistic(&theta, data, None)?.0,
                    Some(running) => self.moved_on(running, &theta, data, key)?,
                };
                // Parameters that the client computed itself differ by rounding from those of their
                // coordinates, and a resumed run has only the coordinates.
                let exact = self.form != Form::State;
                let decoded = Decoded(exact.then(|| Arc::new(theta) as _));
                let running = Running { outer, s_i: s_i.clone(), theta: coordinates, decoded };
                let position = own.position;
                Ok(Estimate { s_i, left_out: 0, position, running: Some(running) })
            }
        }
    }

    /// `S_{t,k+1,i} = S_{t,k,i} + b^-1 Σ_{j in B} (s̄_ij(T(Ŝ_{t,k})) − s̄_ij(θ_i))`   (Alg. 2, l. 7, 8)
    fn moved_on(
        &self,
        running: &Running,
        theta: &M::Parameters,
        data: &M::Data,
        key: Key,
    ) -> Result<Vec<f64>> {
        let at_hand = running.decoded.0.as_ref().and_then(|theta| theta.downcast_ref());
        let last: Cow<'_, M::Parameters> = match at_hand {
            Some(last) => Cow::Borrowed(last),
            None => Cow::Owned(self.model.from_vector(&running.theta)?),
        };
        let mut s_i = vec![0.0; running.s_i.len()];
        let drawn = self.batch.draw(self.model.rows(data), &mut key.child(DRAW).stream());
        let rows = drawn.as_deref().map_or(Rows::All, Rows::These);
        self.model.expect_change(&last, theta, data, rows, &mut s_i)?;
        vector::axpy(&mut s_i, 1.0, &running.s_i);
        Ok(s_i)
    }

    /// `s̄_i(θ)` over all rows, and the number of components that fewer than `group` rows determine.
    pub(super) fn whole_statistic(
        &self,
        theta: &M::Parameters,
        data: &M::Data,
        group: Option<u32>,
    ) -> Result<(Vec<f64>, u32)> {
        let window = self.model.window(data, 0, self.model.rows(data))?;
        self.statistic(theta, window.as_ref().unwrap_or(data), Rows::All, group)
    }

    fn statistic(
        &self,
        theta: &M::Parameters,
        data: &M::Data,
        rows: Rows<'_>,
        group: Option<u32>,
    ) -> Result<(Vec<f64>, u32)> {
        let mut s_i = vec![0.0; self.model.statistic_len()];
        if let Some(bound) = self.private.as_ref().and_then(|private| private.row_bound) {
            self.model.expect_clipped(theta, data, bound, &mut s_i)?;
            return Ok((s_i, 0));
        }
        let found = self.model.expect_supported(theta, data, rows, group, &mut s_i)?;
        Ok((s_i, found.left_out))
    }

    /// The mean over a minibatch, and the client's next position in its stream.
    fn sampled(
        &self,
        theta: &M::Parameters,
        data: &M::Data,
        position: u64,
        group: Option<u32>,
        key: Key,
    ) -> Result<Estimate> {
        let count = self.batch.expectations(u64::MAX);
        let window = match self.batch {
            Batch::Full => None,
            Batch::Sample { .. } => self.model.window(data, position, count as usize)?,
        };
        let mut next = position;
        let (s_i, left_out) = if let Some(window) = window {
            // Online: new rows.
            next += count;
            self.statistic(theta, &window, Rows::All, group)?
        } else {
            match self.batch.draw(self.model.rows(data), &mut key.child(DRAW).stream()) {
                Some(rows) => self.statistic(theta, data, Rows::These(&rows), group)?,
                None => self.whole_statistic(theta, data, group)?,
            }
        };
        Ok(Estimate { s_i, left_out, position: next, running: None })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_correction_is_made_where_it_costs_less_than_a_full_pass() {
        let batch = Batch::Sample { size: 20, replacement: true, local_steps: 1 };
        let spider = Estimator::Spider { inner: 4 };
        assert_eq!((correction(&batch, 41), correction(&batch, 40)), (Some(40), None));
        assert_eq!(
            (spider.expectations(&batch, 41, false), spider.expectations(&batch, 41, true)),
            (40, 41)
        );
        assert_eq!(spider.expectations(&batch, 7, false), 7);
        // A pass over 41 rows and three corrections, then a pass in every round.
        assert_eq!(spider.expectations_mean(&batch, 41, 1.0), (41.0 + 3.0 * 40.0) / 4.0);
        assert_eq!(spider.expectations_mean(&batch, 7, 1.0), 7.0);
    }
}
