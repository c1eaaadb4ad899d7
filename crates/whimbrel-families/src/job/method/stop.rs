//! `evaluate` and `stop` in `[method]`.

use whimbrel_engine::Stopping;
use whimbrel_job::form::{BELOW_ONE, COUNT_U32, Form, POSITIVE, Table};
use whimbrel_job::key::{JobKey, Section};
use whimbrel_job::reader::Read;
use whimbrel_job::{form, inline, table};

/// `evaluate`.
pub static EVALUATE: JobKey =
    EVALUATES.default("evaluate", || EVALUATES.write(&None), "when metrics are computed");
/// `stop`.
pub static STOP: JobKey = STOPS.default(
    "stop",
    || STOPS.write(&Stopping::default()),
    "what ends the run early; by default nothing does (a mixture without `rounds` ends by itself)",
);

/// How `evaluate` stands in a job file.
pub(crate) const EVALUATES: Form<Option<u32>> = inline!(EVALUATE_TABLE);
/// How `stop` stands in a job file.
pub(crate) const STOPS: Form<Stopping> = inline!(STOP_TABLE);

table! {
    EVALUATE_TABLE: Option<u32> = "evaluate", "when metrics are computed" {
        EVERY = "every", EVERIES, default, "rounds from one evaluation to the next";
    }
}

form! {
    EVERIES: Option<u32>, "an integer of at least 1 or \"auto\"" {
        None => "auto": "so that a run has about 100 evaluations",
    }
    number COUNT_U32 => Some;
}

/// `field_norm2` in `stop`.
pub static FIELD_NORM2: JobKey = POSITIVE.unset(
    "field_norm2",
    "never",
    "end once the squared norm of the field is at or below this (the EM methods)",
);
/// `excess_loss` in `stop`.
pub static EXCESS_LOSS: JobKey = POSITIVE.unset(
    "excess_loss",
    "never",
    "end once the loss is above the minimum by no more than this (the gradient family)",
);
static PATIENCE: JobKey = COUNT_U32.unset(
    "patience",
    "never",
    "end after this number of evaluations in which the objective made no progress",
);
static TOLERANCE: JobKey = BELOW_ONE.default(
    "tolerance",
    || BELOW_ONE.write(&Stopping::TOLERANCE),
    "a smaller relative decrease of the objective is no progress",
);

/// Limits are called as the measures that they are about.
const STOP_TABLE: Table<Stopping> = Table {
    section: Section {
        name: "stop",
        doc: "what ends a run early",
        keys: const { &[&FIELD_NORM2, &EXCESS_LOSS, &PATIENCE, &TOLERANCE] },
        example: "",
    },
    read: |reader| {
        let limits = [&FIELD_NORM2, &EXCESS_LOSS]
            .map(|key| Ok(reader.optional_as(key, &POSITIVE)?.map(|limit| (key.name, limit))));
        let patience = reader.optional_as(&PATIENCE, &COUNT_U32);
        let tolerance = reader.read_as(&TOLERANCE, &BELOW_ONE);
        let limits = limits.into_iter().filter_map(Read::transpose).collect::<Read<_>>()?;
        let (patience, mut tolerance) = (patience?, tolerance?);
        if patience.is_none() {
            reader.refuse_if_given(&TOLERANCE, "has no meaning without `patience`");
            tolerance = 0.0;
        }
        Ok(Stopping { limits, patience, tolerance })
    },
    write: |stop, out| {
        for key in [&FIELD_NORM2, &EXCESS_LOSS] {
            if let Some(limit) = limit(stop, key) {
                out.put(key, POSITIVE.write(&limit));
            }
        }
        if let Some(patience) = &stop.patience {
            out.put(&PATIENCE, COUNT_U32.write(patience));
            out.put(&TOLERANCE, BELOW_ONE.write(&stop.tolerance));
        }
    },
};

/// The limit that a key of `stop` gives.
pub fn limit(stop: &Stopping, key: &JobKey) -> Option<f64> {
    stop.limits.iter().find(|(name, _)| *name == key.name).map(|(_, limit)| *limit)
}
