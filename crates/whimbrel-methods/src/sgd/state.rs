//! The server's state of a gradient method, and the clients' messages at enrolment.

use super::Bounds;
use whimbrel_core::{vector, wire};

/// The global state.
#[derive(Clone, Debug)]
pub struct Global {
    /// `w_k`.
    pub w: Vec<f64>,
    /// Heavy-ball direction; empty without momentum.
    pub momentum: Vec<f64>,
    /// `Σ λ_k w_{k−1}`; empty without averaging.
    pub average: Vec<f64>,
    /// `Σ λ_k`.
    pub average_weight: f64,
    /// The constants of the step.
    pub bounds: Bounds,
    /// The length of a step 1/L along the first gradient: the unit of the divergence watch.
    pub scale: Option<f64>,
}

impl Global {
    /// Sets the unit from the first non-zero gradient.
    pub(super) fn set_scale(&mut self, gradient: &[f64]) {
        let scale = vector::norm2_squared(gradient).sqrt() / self.bounds.smoothness;
        if self.scale.is_none() && scale > 0.0 && scale.is_finite() {
            self.scale = Some(scale);
        }
    }
}

/// A client's message at enrolment, beside its number of rows.
#[derive(Clone, Debug)]
pub struct Summary {
    /// The smoothness constant of its loss.
    pub smoothness: f64,
    /// The strong convexity of its loss; zero if it has none.
    pub strong_convexity: f64,
    /// `E||g^i(w_0) − ∇F_i(w_0)||²` of a single row's gradient.
    pub sigma2: f64,
}

wire!(Global { w, momentum, average, average_weight, bounds, scale });
wire!(Summary { smoothness, strong_convexity, sigma2 });
