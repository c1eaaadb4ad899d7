//! `evaluate` and `stop` in `[method]`.

use whimbrel_job::form::{BELOW_ONE, COUNT_U32, Form, POSITIVE, Table};
use whimbrel_job::key::JobKey;
use whimbrel_job::{form, inline, table};

/// What ends a run early.
#[derive(Clone, Copy, Debug, PartialEq, Default)]
pub struct Stop {
    /// End once `||h||^2` is at or below this.
    pub field_norm2: Option<f64>,
    /// End once `F(w) - F*` is at or below this.
    pub excess_loss: Option<f64>,
    /// End once the objective stands still.
    pub patience: Option<Patience>,
}

/// When an objective stands still.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Patience {
    /// After so many evaluations without progress.
    pub evaluations: u32,
    /// A smaller relative decrease is no progress.
    pub tolerance: f64,
}

/// `evaluate`.
pub static EVALUATE: JobKey =
    EVALUATES.default("evaluate", "{ every = \"auto\" }", "when metrics are computed");
/// `stop`.
pub static STOP: JobKey = STOPS.default(
    "stop",
    "{}",
    "what ends the run early; by default nothing does (a mixture without `rounds` ends by itself)",
);

/// How `evaluate` stands in a job file.
pub(crate) const EVALUATES: Form<Option<u32>> = inline!(EVALUATE_TABLE);
/// How `stop` stands in a job file.
pub(crate) const STOPS: Form<Stop> = inline!(STOP_TABLE);

table! {
    EVALUATE_TABLE: Option<u32> = "evaluate", "when metrics are computed" {
        EVERY = "every", EVERIES, default "\"auto\"", "rounds from one evaluation to the next";
    }
}

form! {
    EVERIES: Option<u32>, "an integer of at least 1 or \"auto\"" {
        None => "auto": "so that a run has about 100 evaluations",
    }
    number COUNT_U32 => Some;
}

table! {
    STOP_TABLE: Stop = "stop", "what ends a run early" {
        + patience: PATIENCES;
        field_norm2: FIELD_NORM2 = "field_norm2", POSITIVE, unset "never",
            "end once the squared norm of the field is at or below this (the EM methods)";
        excess_loss: EXCESS_LOSS = "excess_loss", POSITIVE, unset "never",
            "end once the loss is above the minimum by no more than this (the gradient family)";
    }
}

table! {
    PATIENCE_TABLE: Patience {
        evaluations: PATIENCE = "patience", COUNT_U32, unset "never" or 0,
            "end after so many evaluations in which the objective made no progress";
        tolerance: TOLERANCE = "tolerance", BELOW_ONE, default "1e-9",
            "a smaller relative decrease of the objective is no progress";
    }
}

/// Patience, where it is given.
const PATIENCES: Table<Option<Patience>> = Table {
    section: PATIENCE_TABLE.section,
    read: |reader| {
        let patience = PATIENCE_TABLE.read(reader)?;
        if patience.evaluations == 0 {
            reader.refuse_if_given(&TOLERANCE, "has no meaning without `patience`");
        }
        Ok(Some(patience).filter(|patience| patience.evaluations > 0))
    },
    write: |patience, out| {
        if let Some(patience) = patience {
            PATIENCE_TABLE.write(patience, out);
        }
    },
};

impl Stop {
    /// The limits by the keys of the measures that they are about.
    pub fn limits(&self) -> Vec<(&'static str, f64)> {
        let both = [(&FIELD_NORM2, self.field_norm2), (&EXCESS_LOSS, self.excess_loss)];
        both.into_iter().filter_map(|(key, limit)| Some((key.name, limit?))).collect()
    }
}
