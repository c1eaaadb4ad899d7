//! The family's keys: regressions in `[model]`; `momentum`, `average` and `compat` in `[method]`.

use whimbrel_job::choices;
use whimbrel_job::key::{Key, Word};
use whimbrel_job::named;
use whimbrel_job::reader::{Read, Reader};
use whimbrel_job::writer::{Writer, number};
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

named! {
    /// Which model is delivered.
    pub(super) AVERAGES: Average {
        Average::Last => "last": "the last one",
        Average::Uniform => "uniform": "the mean of all (Polyak-Ruppert)",
        Average::Weighted => "weighted": "their mean weighted by one over the step",
    }
}

choices! {
    /// Departures of published code from its paper.
    pub enum Compat {
        Mcm2021 = "mcm-2021": "1/L with Frobenius norms in place of spectral ones, and the step as \
         Dore's share of the error, as the code of Philippenko and Dieuleveut (2021) has it",
    }
}

pub(super) static RIDGE: Key = Key::default(
    "ridge",
    "a number of at least 0",
    "0.0",
    "the factor of half the squared norm of the coefficients, the intercept's too",
);
pub(super) static NONCONVEX: Key = Key::default(
    "nonconvex",
    "a number of at least 0",
    "0.0",
    "the factor of `sum_j w_j^2 / (1 + w_j^2)`, a bounded penalty that is not convex, in place of \
     the ridge: no minimum is computed, and `gradient_norm2` is reported where `excess_loss` would be",
);
pub(crate) static INTERCEPT: Key =
    Key::default("intercept", "true or false", "true", "whether a constant is added");
pub(crate) static MOMENTUM: Key = Key::default(
    "momentum",
    "a number from 0 to below 1",
    "0.0",
    "heavy-ball momentum on the server",
);
pub(super) static AVERAGE: Key = Key::default(
    "average",
    "\"auto\", \"last\", \"uniform\" or \"weighted\"",
    "\"auto\"",
    "which model is evaluated and delivered",
)
.words(&AVERAGE_WORDS);
static AVERAGE_WORDS: [Word; 4] = [
    Word {
        name: "auto",
        doc: "\"last\"; under step = \"theory\" what the theorem is about: \"weighted\" for noisy \
              gradients of a strongly convex loss, \"uniform\" where it is not strongly convex",
    },
    AVERAGES.words[0],
    AVERAGES.words[1],
    AVERAGES.words[2],
];
pub(super) static COMPAT: Key = Key::optional(
    "compat",
    "",
    "as the paper has it",
    "a departure of published code from its paper",
)
.words(Compat::WORDS);

impl Regression {
    pub(super) fn read(reader: &Reader<'_>, logistic: bool) -> Read<Self> {
        let ridge = reader.read(&RIDGE, |v| v.number(|x| x >= 0.0));
        let nonconvex = match logistic {
            true => reader.read(&NONCONVEX, |v| v.number(|x| x >= 0.0)),
            false => Ok(0.0),
        };
        let intercept = reader.read(&INTERCEPT, |v| v.boolean());
        Ok(Self { ridge: ridge?, nonconvex: nonconvex?, intercept: intercept? })
    }

    pub(super) fn write(&self, out: &mut Writer, logistic: bool) {
        out.put(&RIDGE, number(self.ridge));
        if logistic {
            out.put(&NONCONVEX, number(self.nonconvex));
        }
        out.put(&INTERCEPT, self.intercept.to_string());
    }
}
