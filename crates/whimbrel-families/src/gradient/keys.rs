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
}

impl Default for Regression {
    fn default() -> Self {
        Self { ridge: 0.0, nonconvex: 0.0, intercept: true }
    }
}

table! {
    pub(crate) REGRESSION: Regression {
        ridge: RIDGE = "ridge", NOT_NEGATIVE, default,
            "factor of half the squared norm of the coefficients, including the intercept";
        nonconvex: NONCONVEX = "nonconvex", NOT_NEGATIVE, default,
            "factor of the non-convex penalty `sum_j w_j^2 / (1 + w_j^2)` in place of the ridge; no minimum is \
             computed, and `gradient_norm2` is reported instead of `excess_loss`";
        intercept: INTERCEPT = "intercept", BOOLEAN, default, "whether the predictor has an intercept";
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
        momentum: MOMENTUM = "momentum", BELOW_ONE, default, "heavy-ball momentum on the server";
        average: AVERAGE = "average", AVERAGES, default,
            "the iterate that is evaluated and returned";
        compat: COMPAT = "compat", Compat::FORM, unset "as in the paper",
            "reproduces published code that departs from its paper";
    }
}

form! {
    pub(super) AVERAGES: Option<Average> {
        None => "auto": "\"last\"; under step = \"theory\" that of the theorem: \"weighted\" for noisy gradients \
         of a strongly convex loss, \"uniform\" if the loss is not strongly convex",
        Some(Average::Last) => "last": "the last iterate",
        Some(Average::Uniform) => "uniform": "the mean of all iterates (Polyak-Ruppert)",
        Some(Average::Weighted) => "weighted": "the mean weighted by the inverse step",
    }
}

choices! {
    /// Published code that departs from its paper.
    pub enum Compat {
        Mcm2021 = "mcm-2021": "the code of Philippenko and Dieuleveut (2021): 1/L with Frobenius instead of \
         spectral norms, and the step as Dore's share of the error",
    }
}
