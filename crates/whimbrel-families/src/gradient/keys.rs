//! Keys of regressions.

use whimbrel_job::form::{BELOW_ONE, BOOLEAN, NOT_NEGATIVE};
use whimbrel_job::{choices, form, table};
use whimbrel_methods::sgd::Average;

/// Settings of a linear predictor.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Regression {
    /// Factor of half the squared norm of the coefficients.
    pub ridge: f64,
    /// Factor of the non-convex penalty.
    pub nonconvex: f64,
    pub intercept: bool,
    /// Whether the ridge acts on the intercept too.
    pub penalize_intercept: bool,
}

impl Default for Regression {
    fn default() -> Self {
        Self { ridge: 0.0, nonconvex: 0.0, intercept: true, penalize_intercept: false }
    }
}

table! {
    pub(crate) REGRESSION: Regression {
        /// factor of half the squared norm of the coefficients
        ridge: RIDGE = "ridge", NOT_NEGATIVE, default;
        /// factor of the non-convex penalty `sum_j w_j^2 / (1 + w_j^2)` in place of the ridge; no
        /// minimum is computed, and `gradient_norm2` is reported instead of `excess_loss`
        nonconvex: NONCONVEX = "nonconvex", NOT_NEGATIVE, default;
        /// whether the predictor has an intercept
        intercept: INTERCEPT = "intercept", BOOLEAN, default;
        /// whether the ridge acts on the intercept too, which makes the loss strongly convex
        penalize_intercept: PENALIZE_INTERCEPT = "penalize_intercept", BOOLEAN, default;
    }
}

/// Settings of gradient descent.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Descent {
    /// Of the server.
    pub momentum: f64,
    /// The resulting iterate; `None`: by the step's theorem, else the last.
    pub average: Option<Average>,
    /// Reproduction of published code that departs from its paper.
    pub compat: Option<Compat>,
}

table! {
    pub(crate) DESCENT: Descent {
        /// heavy-ball momentum on the server
        momentum: MOMENTUM = "momentum", BELOW_ONE, default;
        /// the iterate that is evaluated and returned
        average: AVERAGE = "average", AVERAGES, default;
        /// reproduces published code that departs from its paper
        compat: COMPAT = "compat", Compat::FORM, unset "as in the paper";
    }
}

form! {
    pub(super) AVERAGES: Option<Average> {
        /// "last"; under step = "theory" that of the theorem: "weighted" for noisy gradients of a
        /// strongly convex loss, "uniform" if the loss is not strongly convex
        "auto" => None,
        /// the last iterate
        "last" => Some(Average::Last),
        /// the mean of all iterates (Polyak-Ruppert)
        "uniform" => Some(Average::Uniform),
        /// the mean weighted by the inverse step
        "weighted" => Some(Average::Weighted),
    }
}

choices! {
    /// Published code that departs from its paper.
    pub enum Compat {
        /// the code of Philippenko and Dieuleveut (2021): 1/L with Frobenius instead of spectral
        /// norms, and the step as Dore's share of the error
        Mcm2021 = "mcm-2021",
    }
}
