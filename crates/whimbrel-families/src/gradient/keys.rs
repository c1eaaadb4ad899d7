//! The family's keys: regressions in `[model]`; `momentum`, `average` and `compat` in `[method]`.

use whimbrel_job::form::{BELOW_ONE, BOOLEAN, NOT_NEGATIVE};
use whimbrel_job::{choices, form, table};
use whimbrel_methods::sgd::Average;

/// A linear predictor of a target.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Regression {
    /// The factor of half the squared norm of the coefficients.
    pub ridge: f64,
    /// The factor of the bounded penalty that is not convex; zero where there is none.
    pub nonconvex: f64,
    /// Whether a constant is added.
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
            "the factor of half the squared norm of the coefficients, the intercept's too";
        nonconvex: NONCONVEX = "nonconvex", NOT_NEGATIVE, default,
            "the factor of `sum_j w_j^2 / (1 + w_j^2)`, a bounded penalty that is not convex, in place of \
             the ridge: no minimum is computed, and `gradient_norm2` is reported where `excess_loss` would be";
        intercept: INTERCEPT = "intercept", BOOLEAN, default, "whether a constant is added";
    }
}

/// How gradients are descended.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Descent {
    /// The server's momentum.
    pub momentum: f64,
    /// Which model is delivered; `None`: what the step's theorem is about, else the last.
    pub average: Option<Average>,
    /// A departure from the paper that its own code made.
    pub compat: Option<Compat>,
}

table! {
    pub(crate) DESCENT: Descent {
        momentum: MOMENTUM = "momentum", BELOW_ONE, default, "heavy-ball momentum on the server";
        average: AVERAGE = "average", AVERAGES, default,
            "which model is evaluated and delivered";
        compat: COMPAT = "compat", Compat::FORM, unset "as the paper has it",
            "a departure of published code from its paper";
    }
}

form! {
    /// Which model is delivered.
    pub(super) AVERAGES: Option<Average> {
        None => "auto": "\"last\"; under step = \"theory\" what the theorem is about: \"weighted\" for noisy \
         gradients of a strongly convex loss, \"uniform\" where it is not strongly convex",
        Some(Average::Last) => "last": "the last one",
        Some(Average::Uniform) => "uniform": "the mean of all (Polyak-Ruppert)",
        Some(Average::Weighted) => "weighted": "their mean weighted by one over the step",
    }
}

choices! {
    /// Departures of published code from its paper.
    pub enum Compat {
        Mcm2021 = "mcm-2021": "1/L with Frobenius norms in place of spectral ones, and the step as \
         Dore's share of the error, as the code of Philippenko and Dieuleveut (2021) has it",
    }
}
