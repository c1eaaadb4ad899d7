//! The server's step: along the clients' mean change, or an adaptive step on it.

use super::Global;
use crate::federated::Context;
use whimbrel_core::wire;

/// The treatment of clients that are not sampled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sampling {
    /// They count with the old model: the server's step is the probability of taking part.
    #[default]
    KeepOld,
    /// They are left out: the mean is over the cohort.
    Renormalise,
    /// Each sampled client counts for the others: the server's step is one.
    Unbiased,
}

impl Sampling {
    /// Scales the unbiased estimate of the mean change over all clients.
    pub(super) fn scale(self, field: &mut [f64], participation: f64, context: &Context) {
        let factor = match self {
            Self::Unbiased => return,
            Self::KeepOld => participation,
            // The estimate is sum_A n_i change_i / (p N).
            Self::Renormalise if context.cohort > 0.0 => {
                participation * context.total / context.cohort
            }
            Self::Renormalise => return,
        };
        if factor != 1.0 {
            field.iter_mut().for_each(|x| *x *= factor);
        }
    }
}

/// The server's step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ServerStep {
    /// `w += step change`.
    Plain {
        /// One for averaging; `beta` of `pfedme`.
        step: f64,
    },
    /// `scaffold`: `w` is model and control variate; the latter moves by the share of clients that
    /// took part.
    Scaffold {
        /// The step of the model.
        step: f64,
    },
    /// `v <- momentum v + change`, `w += v`: heavy-ball momentum (`sgd`).
    Momentum { momentum: f64 },
    /// The change as a gradient of an adaptive optimiser.
    Adaptive(FedOpt),
}

/// `fedopt` (Reddi et al. 2021, Algorithm 2).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FedOpt {
    pub rule: Adaptive,
    pub step: f64,
    /// `beta_1`.
    pub first: f64,
    /// `beta_2`.
    pub second: f64,
    /// `tau`, which bounds steps.
    pub floor: f64,
}

impl Default for FedOpt {
    fn default() -> Self {
        Self { rule: Adaptive::Adam, step: 0.1, first: 0.9, second: 0.99, floor: 1e-3 }
    }
}

/// The update of the second moment of `fedopt`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Adaptive {
    Adam,
    Yogi,
    Adagrad,
}

/// The moments of an adaptive step; empty for others.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ServerState {
    first: Vec<f64>,
    second: Vec<f64>,
}

wire!(ServerState { first, second });

impl ServerStep {
    /// The default of a plain step: averaging.
    pub const STEP: f64 = 1.0;

    pub(super) fn state(&self, len: usize) -> ServerState {
        match self {
            Self::Plain { .. } | Self::Scaffold { .. } => ServerState::default(),
            Self::Momentum { momentum } if *momentum == 0.0 => ServerState::default(),
            Self::Momentum { .. } => ServerState { first: vec![0.0; len], second: Vec::new() },
            Self::Adaptive(FedOpt { floor, .. }) => {
                ServerState { first: vec![0.0; len], second: vec![floor * floor; len] }
            }
        }
    }

    pub(super) fn apply(&self, global: &mut Global, change: &[f64], participation: f64) {
        let w = &mut global.w;
        let add = |w: &mut [f32], change: &[f64], step: f64| {
            w.iter_mut().zip(change).for_each(|(w, x)| *w = (f64::from(*w) + step * x) as f32);
        };
        match *self {
            Self::Plain { step } => add(w, change, step),
            Self::Momentum { momentum: 0.0 } => add(w, change, 1.0),
            Self::Momentum { momentum } => {
                let v = &mut global.server.first;
                v.iter_mut().zip(change).for_each(|(v, x)| *v = momentum * *v + x);
                add(w, v, 1.0);
            }
            Self::Scaffold { step } => {
                let half = w.len() / 2;
                add(&mut w[..half], &change[..half], step);
                // c += (|S|/N) mean over the cohort of the changes of c_i
                add(&mut w[half..], &change[half..], participation);
            }
            Self::Adaptive(FedOpt { rule, step, first, second, floor }) => {
                let ServerState { first: m, second: v } = &mut global.server;
                for (((w, x), m), v) in w.iter_mut().zip(change).zip(m).zip(v) {
                    *m = first * *m + (1.0 - first) * x;
                    let square = x * x;
                    *v = match rule {
                        Adaptive::Adagrad => *v + square,
                        Adaptive::Adam => second * *v + (1.0 - second) * square,
                        Adaptive::Yogi => *v - (1.0 - second) * square * (*v - square).signum(),
                    };
                    *w = (f64::from(*w) + step * *m / (v.sqrt() + floor)) as f32;
                }
            }
        }
    }
}
