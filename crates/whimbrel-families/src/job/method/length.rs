//! How long a run is, and how much work a round is.

use crate::family::MethodKind;
use crate::registry::Registry;
use whimbrel_job::form::{BOOLEAN, COUNT_U32, POSITIVE};
use whimbrel_job::key::JobKey;
use whimbrel_job::reader::{Read, Reader};
use whimbrel_job::writer::Writer;
use whimbrel_job::{form, integer};
use whimbrel_methods::settings::{Batch, Budget};

/// `rounds`.
pub static ROUNDS: JobKey = integer!(u32, 1 to 4294967295).unset(
    "rounds",
    "`epochs` decides; one of the two is required, but not for mixtures, which then end once the \
     server's update is below 1e-5 of its largest in three rounds in a row, after 1000 at most",
    "how many rounds the run takes",
);
/// `epochs`.
pub static EPOCHS: JobKey = POSITIVE.unset(
    "epochs",
    "`rounds` decides; one of the two is required",
    "how many passes over all rows or observed cells the run takes",
);
/// `batch`.
pub static BATCH: JobKey = ROWS.unset(
    "batch",
    "the method's",
    "how many rows (of a table with gaps: observed cells) a client uses for one local step",
);
/// `replacement`.
pub static REPLACEMENT: JobKey = BOOLEAN.default(
    "replacement",
    || BOOLEAN.write(&true),
    "whether a minibatch may draw a row twice",
);
/// `local_steps`.
pub static LOCAL_STEPS: JobKey = COUNT_U32.default(
    "local_steps",
    || COUNT_U32.write(&1),
    "how many minibatches are averaged into one upload",
);

/// The keys of runs by minibatches.
pub const BY_MINIBATCHES: &[&JobKey] = &[&ROUNDS, &EPOCHS, &BATCH, &REPLACEMENT, &LOCAL_STEPS];

form! {
    /// Rows per minibatch: `None` for all rows, `Some(None)` for a number that the method finds.
    ROWS: Option<Option<u32>>, "an integer of at least 1, \"full\" or \"auto\"" {
        None => "full": "all rows of the client",
        Some(None) => "auto": "`inner`/(1 + omega)^2 rounded up, with omega the uplink's largest variance \
         constant, and at least the statistic's length (vr-fedem)",
    }
    number SIZE => Some;
}

form! {
    SIZE: Option<u32> {}
    number COUNT_U32 => Some;
}

/// Rounds at most of a method that ends by itself.
const ROUNDS_MAX: u32 = 1000;

pub(super) fn read_length(reader: &Reader<'_>, kind: Option<&MethodKind>) -> Read<Budget> {
    reader.refuse_both(&ROUNDS, &EPOCHS)?;
    if let Some(rounds) = reader.optional_as(&ROUNDS, &COUNT_U32)? {
        return Ok(Budget::Rounds(rounds));
    }
    match reader.optional_as(&EPOCHS, &POSITIVE)? {
        Some(epochs) => Ok(Budget::Epochs(epochs)),
        None if kind.is_some_and(|kind| kind.converges) => Ok(Budget::Converged(ROUNDS_MAX)),
        None => Err(reader.lacking(
            &ROUNDS,
            "nothing in [method] says when the run ends",
            "give `rounds` or `epochs`",
        )),
    }
}

pub(super) fn read_batch(
    reader: &Reader<'_>,
    kind: Option<&MethodKind>,
    registry: &Registry,
) -> Read<Batch<Option<u32>>> {
    let automatic = || registry.algorithms(|kind| kind.auto_batch);
    let rows = reader.optional(&BATCH, |v| match ROWS.read(&v)? {
        Some(None) if kind.is_some_and(|kind| !kind.auto_batch) => Err(v.fail(
            format!("batch = \"auto\" has no meaning here: it is for {}", automatic().join(", ")),
            "give a number of rows, or write \"full\"",
        )),
        rows => Ok(rows),
    });
    let usual = kind.is_some_and(|kind| kind.auto_batch).then_some(None);
    let rows = rows.map(|rows| rows.unwrap_or(usual));
    let takes = |key: &JobKey| kind.is_none_or(|kind| kind.keys.iter().any(|k| k.name == key.name));
    if matches!(rows, Ok(None)) {
        let why = "has no meaning for full batches, which are all the same";
        for key in [&REPLACEMENT, &LOCAL_STEPS].into_iter().filter(|key| takes(key)) {
            reader.refuse_if_given(key, why);
        }
        return Ok(Batch::Full);
    }
    let (replacement, local_steps) = match takes(&REPLACEMENT) {
        true => (reader.read_as(&REPLACEMENT, &BOOLEAN), reader.read_as(&LOCAL_STEPS, &COUNT_U32)),
        false => (Ok(false), Ok(1)),
    };
    let (rows, replacement, local_steps) = (rows?, replacement?, local_steps?);
    Ok(rows.map_or(Batch::Full, |size| Batch::Sample { size, replacement, local_steps }))
}

pub(super) fn write(length: Budget, batch: Batch<Option<u32>>, out: &mut Writer) {
    match length {
        Budget::Rounds(rounds) => out.put(&ROUNDS, rounds.to_string()),
        Budget::Epochs(epochs) => out.put(&EPOCHS, POSITIVE.write(&epochs)),
        Budget::Converged(_) => {}
    }
    out.put(&BATCH, ROWS.write(&batch.size()));
    if let Batch::Sample { replacement, local_steps, .. } = batch {
        out.put(&REPLACEMENT, replacement.to_string());
        out.put(&LOCAL_STEPS, local_steps.to_string());
    }
}
