//! Penalties on the coefficients of a regression.

use whimbrel_core::{Error, Result, vector};

/// A penalty on coefficients.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Penalty {
    /// `(ridge/2) ||w||^2`.
    Ridge(f64),
    /// `lambda sum_j w_j^2 / (1 + w_j^2)`, which is bounded and not convex.
    Bounded(f64),
}

impl Penalty {
    /// Refuses a factor that is negative or not finite.
    pub(super) fn checked(self) -> Result<Self> {
        let (name, factor) = match self {
            Self::Ridge(factor) => ("ridge", factor),
            Self::Bounded(factor) => ("nonconvex", factor),
        };
        if factor >= 0.0 && factor.is_finite() {
            return Ok(self);
        }
        Err(Error::config(format!("{name} = {factor} is not a finite number of at least 0")))
    }

    pub fn is_convex(self) -> bool {
        !matches!(self, Self::Bounded(lambda) if lambda > 0.0)
    }

    /// The Lipschitz constant of the gradient: the second derivative of `x^2/(1 + x^2)` is
    /// `2 (1 - 3x^2)/(1 + x^2)^3`, at most 2 at zero and at least -1/2 at `|x| = 1`.
    pub fn smoothness(self) -> f64 {
        match self {
            Self::Ridge(ridge) => ridge,
            Self::Bounded(lambda) => 2.0 * lambda,
        }
    }

    /// The constant of strong convexity: the ridge.
    pub fn strong_convexity(self) -> f64 {
        match self {
            Self::Ridge(ridge) => ridge,
            Self::Bounded(_) => 0.0,
        }
    }

    pub fn value(self, w: &[f64]) -> f64 {
        match self {
            Self::Ridge(ridge) => 0.5 * ridge * vector::norm2_squared(w),
            Self::Bounded(lambda) => lambda * w.iter().map(|x| x * x / (1.0 + x * x)).sum::<f64>(),
        }
    }

    /// Adds the gradient at `w`, the first coordinates of `out`, and returns the value there.
    pub(super) fn add_gradient(self, w: &[f64], out: &mut [f64]) -> f64 {
        match self {
            Self::Ridge(0.0) => return 0.0,
            Self::Ridge(ridge) => vector::axpy(&mut out[..w.len()], ridge, w),
            Self::Bounded(lambda) => {
                for (out, x) in out.iter_mut().zip(w) {
                    let share = 1.0 / (1.0 + x * x);
                    *out += 2.0 * lambda * x * share * share;
                }
            }
        }
        self.value(w)
    }

    /// The second derivative along a coordinate at `x`; mixed derivatives are zero.
    pub(super) fn second_derivative(self, x: f64) -> f64 {
        match self {
            Self::Ridge(ridge) => ridge,
            Self::Bounded(lambda) => {
                let share = 1.0 / (1.0 + x * x);
                2.0 * lambda * (1.0 - 3.0 * x * x) * share * share * share
            }
        }
    }
}
