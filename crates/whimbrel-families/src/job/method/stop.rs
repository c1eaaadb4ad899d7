//! `evaluate` and `stop` in `[method]`.

use whimbrel_engine::Stopping;
use whimbrel_job::form::{BELOW_ONE, COUNT_U32, Form, POSITIVE, Table};
use whimbrel_job::key::{JobKey, Section};
use whimbrel_job::reader::Read;
use whimbrel_job::{define_keys, form, inline, table};

define_keys! {
    /// when metrics are computed
    pub EVALUATE = "evaluate", EVALUATES, default(None);
    /// criteria that end the run early; by default none (but see `rounds` for mixtures)
    pub STOP = "stop", STOPS, default(Stopping::default());
}

pub(crate) const EVALUATES: Form<Option<u32>> = inline!(EVALUATE_TABLE);
pub(crate) const STOPS: Form<Stopping> = inline!(STOP_TABLE);

table! {
    EVALUATE_TABLE: Option<u32> = "evaluate", "when metrics are computed" {
        /// rounds between evaluations
        EVERY = "every", EVERIES, default;
    }
}

form! {
    EVERIES: Option<u32>, "an integer of at least 1 or \"auto\"" {
        /// about 100 evaluations per run
        "auto" => None,
    }
    number COUNT_U32 => Some;
}

define_keys! {
    /// threshold of the squared norm of the field (EM methods)
    pub FIELD_NORM2 = "field_norm2", POSITIVE, unset "never";
    /// threshold of the loss minus its minimum (regressions)
    pub EXCESS_LOSS = "excess_loss", POSITIVE, unset "never";
    /// evaluations without progress of the objective
    PATIENCE = "patience", COUNT_U32, unset "never";
    /// smallest relative decrease of the objective that counts as progress
    TOLERANCE = "tolerance", BELOW_ONE, default(Stopping::TOLERANCE);
}

/// Limits have the names of their measures.
const STOP_TABLE: Table<Stopping> = Table {
    section: Section {
        name: "stop",
        doc: "criteria that end a run early",
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
        Ok(Stopping { limits, patience, tolerance, ..Stopping::default() })
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

/// The limit of a key of `stop`.
pub fn limit(stop: &Stopping, key: &JobKey) -> Option<f64> {
    stop.limits.iter().find(|(name, _)| *name == key.name).map(|(_, limit)| *limit)
}
