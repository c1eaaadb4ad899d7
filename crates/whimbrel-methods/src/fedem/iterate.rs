//! `Ŝ_k` and `θ_k = T(Ŝ_k)`, on both ends.

use super::{Em, Form, Global, Own};
use crate::federated::{Context, ExchangeKind, Received};
use whimbrel_core::{Error, Result};
use whimbrel_models::{LatentModel, Maximum};

/// A run stops if each of its first rounds, so many of them, needed repair: its statistic stays
/// outside the domain of `T`.
const REPAIRED_ROUNDS_MAX: u32 = 100;

/// What a client computes at.
pub(super) struct Iterate<M: LatentModel> {
    /// The pooled moments, where `T` needs them.
    pub(super) moments: Vec<f64>,
    /// `Ŝ_k`, where the form sends it.
    pub(super) s_hat: Option<Vec<f64>>,
    /// `T(Ŝ_k)`.
    pub(super) theta: M::Parameters,
    /// `theta` as it travels; empty in the first exchange.
    pub(super) coordinates: Vec<f64>,
}

impl<M: LatentModel> Em<M> {
    /// `Ŝ_k` and `T(Ŝ_k)`, from what the form sends.
    pub(super) fn iterate(&self, received: Received<'_, Self>, own: &Own) -> Result<Iterate<M>> {
        let moments = received.private.clone().unwrap_or_else(|| own.moments.clone());
        let state = received.state;
        if received.kind == ExchangeKind::FirstState {
            let theta = self.model.from_vector(&state)?;
            return Ok(Iterate { moments, s_hat: None, theta, coordinates: Vec::new() });
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
                if moments.len() != self.initial.moments_len(&self.model) {
                    return Err(Error::peer("the server sent moments of another length"));
                }
                // Clips made here stay here; the metric counts the server's.
                let theta = self.model.maximize(&state, &moments)?.theta;
                let coordinates = self.model.to_vector(&theta);
                (Some(state.into_owned()), theta, coordinates)
            }
            Form::Lean => (None, self.model.from_vector(&state)?, state.into_owned()),
        };
        Ok(Iterate { moments, s_hat, theta, coordinates })
    }

    /// `θ = T(Ŝ)`; stops a run that never enters the domain of `T`.
    pub(super) fn maximize(&self, global: &mut Global, context: &Context) -> Result<()> {
        let Maximum { theta, repairs, dead } =
            self.model.maximize(&global.s_hat, &global.moments(context.total))?;
        global.theta = self.model.to_vector(&theta);
        global.repairs += u64::from(repairs);
        global.repaired_rounds += u32::from(repairs > 0);
        for component in dead.iter().map(|k| *k as u32) {
            if let Err(at) = global.dead.binary_search(&component) {
                global.dead.insert(at, component);
            }
        }
        if global.repaired_rounds < (context.round + 1).max(REPAIRED_ROUNDS_MAX) {
            return Ok(());
        }
        let cause = match dead.first() {
            None => "a covariance stays at its floor: lower the step, use more levels in the codec, or set reg_covar".to_string(),
            Some(k) => format!(
                "component {} has lost its weight: lower the step, use fewer components or another start",
                k + 1
            ),
        };
        Err(Error::numerical(format!(
            "each of the first {REPAIRED_ROUNDS_MAX} rounds had to be repaired; {cause}"
        ))
        .in_round(context.round + 1))
    }
}
