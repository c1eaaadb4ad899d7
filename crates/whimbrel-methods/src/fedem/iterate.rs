//! `Ŝ_k` and `θ_k = T(Ŝ_k)`, on both ends.

use super::{Em, Form, Global, Own};
use crate::federated::{Context, ExchangeKind, Received};
use whimbrel_core::{Error, Result};
use whimbrel_models::{Maximum, MixtureModel};

/// A run fails if each of this many first rounds needed repair: its statistic stays outside the
/// domain of `T`.
const REPAIRED_ROUNDS_MAX: u32 = 100;

/// The point at which a client computes.
pub(super) struct Iterate<M: MixtureModel> {
    /// The pooled moments, if `T` needs them.
    pub(super) moments: Vec<f64>,
    /// The moments of the first roster, if frames need them.
    pub(super) first_moments: Vec<f64>,
    /// `Ŝ_k`, if the form sends it.
    pub(super) s_hat: Option<Vec<f64>>,
    /// `T(Ŝ_k)`.
    pub(super) theta: M::Parameters,
    /// `theta` as it travels; empty in the first exchange.
    pub(super) coordinates: Vec<f64>,
}

impl<M: MixtureModel> Em<M> {
    /// `Ŝ_k` and `T(Ŝ_k)`, from the published vector.
    pub(super) fn iterate(&self, received: &Received<'_, Self>, own: &Own) -> Result<Iterate<M>> {
        let sent = received.private.as_deref();
        let first_moments = self.first_moments(sent, own).to_vec();
        let moments = sent.map_or(&own.moments[..], |sent| self.split(sent).0).to_vec();
        let state = &received.state[..];
        if received.kind == ExchangeKind::FirstState {
            let theta = self.model.from_vector(state)?;
            let (s_hat, coordinates) = (None, Vec::new());
            return Ok(Iterate { moments, first_moments, s_hat, theta, coordinates });
        }
        let q = self.model.statistic_len();
        if state.len() != self.form.published_len(&self.model) {
            return Err(Error::peer("the server's state has another length than the job's"));
        }
        let (s_hat, theta, coordinates) = match self.form {
            Form::Pair => {
                let theta = self.model.from_vector(&state[q..])?;
                (Some(state[..q].to_vec()), theta, state[q..].to_vec())
            }
            Form::State => {
                if moments.len() != self.model.moments_len() {
                    return Err(Error::peer("the server sent moments of another length"));
                }
                // The metric counts the server's clips only.
                let theta = self.model.maximize(state, &moments)?.theta;
                let coordinates = self.model.to_vector(&theta);
                (Some(state.to_vec()), theta, coordinates)
            }
            Form::Lean => (None, self.model.from_vector(state)?, state.to_vec()),
        };
        Ok(Iterate { moments, first_moments, s_hat, theta, coordinates })
    }

    /// A client's moments for frames: those it holds, or those of a first message, where they follow
    /// the pooled moments unless they are equal.
    pub(super) fn first_moments<'a>(&self, sent: Option<&'a [f64]>, own: &'a Own) -> &'a [f64] {
        match sent {
            _ if !self.has_frame() => &[],
            Some(sent) if own.first_moments.is_empty() => {
                let (pooled, first) = self.split(sent);
                if first.is_empty() { pooled } else { first }
            }
            _ => &own.first_moments,
        }
    }

    fn split<'a>(&self, sent: &'a [f64]) -> (&'a [f64], &'a [f64]) {
        sent.split_at(self.model.moments_len().min(sent.len()))
    }

    /// `θ` at a published vector; the state form needs the moments.
    pub(super) fn theta_at(&self, published: &[f64], moments: &[f64]) -> Result<M::Parameters> {
        let q = self.model.statistic_len();
        match self.form {
            Form::Pair if published.len() > q => self.model.from_vector(&published[q..]),
            Form::Pair | Form::Lean => self.model.from_vector(published),
            Form::State => Ok(self.model.maximize(published, moments)?.theta),
        }
    }

    /// `θ = T(Ŝ)`; fails if the run never enters the domain of `T`.
    pub(super) fn maximize(&self, global: &mut Global, context: &Context) -> Result<()> {
        let Maximum { theta, repairs, dead } =
            self.model.maximize(&global.s_hat, &global.moments(context.total))?;
        global.theta = self.model.to_vector(&theta);
        global.repairs += u64::from(repairs);
        global.repaired_rounds += u32::from(repairs > 0);
        global.note_dead(&dead);
        global.clipped = repairs - dead.len() as u32;
        global.lost = dead.iter().map(|k| *k as u32).collect();
        if global.repaired_rounds < (context.round + 1).max(REPAIRED_ROUNDS_MAX) {
            return Ok(());
        }
        let cause = match dead.first() {
            None => "a covariance stays at its floor".to_owned(),
            Some(k) => format!("component {} has lost its weight", k + 1),
        };
        let what =
            format!("each of the first {REPAIRED_ROUNDS_MAX} rounds had to be repaired: {cause}");
        Err(Error::numerical(what).in_round(context.round + 1).hint(self.remedy()))
    }
}
