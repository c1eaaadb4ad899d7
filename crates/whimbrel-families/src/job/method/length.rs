//! Length of a run, and rows behind one upload.

use crate::family::MethodKind;
use crate::registry::Registry;
use whimbrel_job::form::{BOOLEAN, COUNT_U32, POSITIVE};
use whimbrel_job::key::JobKey;
use whimbrel_job::reader::{Read, Reader};
use whimbrel_job::writer::Writer;
use whimbrel_job::{define_keys, form, integer};
use whimbrel_methods::settings::{Batch, Budget};

define_keys! {
    /// number of rounds
    pub ROUNDS = "rounds", integer!(u32, 1 to 4294967295),
        unset "set by `epochs`; one of the two is required, except for mixtures, which by default stop \
         once the server's update stays below 1e-5 of its largest for three rounds, after \
         1000 (1 + omega) / participation rounds at most, and for newton, which stops by itself, \
         after 40 rounds at most; it takes up to 100";
    /// passes over all rows or observed cells
    pub EPOCHS = "epochs", POSITIVE, unset "set by `rounds`; one of the two is required";
    /// rows (of a table with gaps: observed cells) per local step of a client
    pub BATCH = "batch", ROWS, unset "the method's";
    /// whether minibatches are drawn with replacement
    pub REPLACEMENT = "replacement", BOOLEAN, default(<Batch>::REPLACEMENT);
    /// minibatches averaged into one upload
    pub LOCAL_STEPS = "local_steps", COUNT_U32, default(<Batch>::LOCAL_STEPS);
}

/// The keys of runs by minibatches.
pub const BY_MINIBATCHES: &[&JobKey] = &[&ROUNDS, &EPOCHS, &BATCH, &REPLACEMENT, &LOCAL_STEPS];

form! {
    /// Rows per minibatch: `None` for all rows, `Some(None)` for "auto".
    ROWS: Option<Option<u32>>, "an integer of at least 1, \"full\" or \"auto\"" {
        /// all rows of the client
        "full" => None,
        /// `inner`/(1 + omega)^2 rounded up, with omega the uplink's largest variance constant, and
        /// at least the statistic's length (vr-fedem)
        "auto" => Some(None),
    }
    number SIZE => Some;
}

form! {
    SIZE: Option<u32> {}
    number COUNT_U32 => Some;
}

/// Most rounds of a method with its own stopping rule.
const ROUNDS_MAX: u32 = 1000;

pub(super) fn read_length(reader: &Reader<'_>, kind: Option<&MethodKind>) -> Read<Budget> {
    reader.refuse_both(&ROUNDS, &EPOCHS)?;
    if let Some(rounds) = reader.optional_as(&ROUNDS, &COUNT_U32)? {
        return Ok(Budget::Rounds(rounds));
    }
    match reader.optional_as(&EPOCHS, &POSITIVE)? {
        Some(epochs) => Ok(Budget::Epochs(epochs)),
        // An unknown method is reported as such.
        None if kind.is_none_or(|kind| kind.converges) => Ok(Budget::Converged(ROUNDS_MAX)),
        None => Err(reader.lacking(&ROUNDS, "the run has no length", "give `rounds` or `epochs`")),
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
        let why = "has no meaning for full batches";
        for key in [&REPLACEMENT, &LOCAL_STEPS].into_iter().filter(|key| takes(key)) {
            reader.refuse_if_given(key, why);
        }
        return Ok(Batch::Full);
    }
    let (replacement, local_steps) = if takes(&REPLACEMENT) {
        (reader.read_as(&REPLACEMENT, &BOOLEAN), reader.read_as(&LOCAL_STEPS, &COUNT_U32))
    } else {
        (Ok(false), Ok(1))
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
