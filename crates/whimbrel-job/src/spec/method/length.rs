//! How long a run is, and how much work a round is.

use super::{MethodKind, fedmiss};
use crate::key::{Key, Word};
use crate::reader::{Read, Reader, Shape};

/// When a run ends.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Length {
    /// After so many rounds.
    Rounds(u32),
    /// After so many passes over the data.
    Epochs(f64),
}

/// The rows behind one upload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Batch {
    /// All rows of the client.
    Full,
    /// Minibatches drawn at random.
    Mini {
        /// Rows of one minibatch.
        rows: u32,
        /// Whether a minibatch may draw a row twice.
        replacement: bool,
        /// Minibatches averaged into one upload.
        local_steps: u32,
    },
}

pub(crate) static ROUNDS: Key = Key::optional(
    "rounds",
    "an integer from 1 to 4294967295",
    "`epochs` decides; one of the two is required",
    "how many rounds the run takes",
);
pub(crate) static EPOCHS: Key = Key::optional(
    "epochs",
    "a positive number",
    "`rounds` decides; one of the two is required",
    "how many passes over all rows or observed cells the run takes",
);
pub(crate) static BATCH: Key = Key::default(
    "batch",
    "an integer of at least 1 or \"full\"",
    "\"full\"",
    "how many rows (of a table with gaps: observed cells) a client uses for one local step",
)
.words(&[Word { name: "full", doc: "all rows of the client" }]);
pub(super) static REPLACEMENT: Key = Key::default(
    "replacement",
    "true or false",
    "true",
    "whether a minibatch may draw a row twice",
);
pub(super) static LOCAL_STEPS: Key = Key::default(
    "local_steps",
    "an integer of at least 1",
    "1",
    "how many minibatches are averaged into one upload",
);

pub(super) fn read_length(reader: &Reader<'_>) -> Read<Length> {
    reader.refuse_both(&ROUNDS, &EPOCHS)?;
    if let Some(rounds) = reader.optional(&ROUNDS, |v| v.count_u32())? {
        return Ok(Length::Rounds(rounds));
    }
    match reader.optional(&EPOCHS, |v| v.number(|x| x > 0.0))? {
        Some(epochs) => Ok(Length::Epochs(epochs)),
        None => Err(reader.lacking(
            &ROUNDS,
            "nothing in [method] says when the run ends",
            "give `rounds` or `epochs`",
        )),
    }
}

pub(super) fn read_batch(reader: &Reader<'_>, kind: Option<MethodKind>) -> Read<Batch> {
    let rows = reader.read(&BATCH, |v| match v.shape() {
        Shape::Text if v.text()? == "full" => Ok(None),
        _ => v.count_u32().map(Some),
    });
    if matches!(rows, Ok(None)) {
        let why = "has no meaning for full batches, which are all the same";
        reader.refuse_if_given(&REPLACEMENT, why);
        reader.refuse_if_given(&LOCAL_STEPS, why);
        return Ok(Batch::Full);
    }
    if kind == Some(MethodKind::Fedmiss) {
        fedmiss::refuse_rows(reader);
        return rows.map(|rows| match rows {
            None => Batch::Full,
            Some(rows) => Batch::Mini { rows, replacement: false, local_steps: 1 },
        });
    }
    let replacement = reader.read(&REPLACEMENT, |v| v.boolean());
    let local_steps = reader.read(&LOCAL_STEPS, |v| v.count_u32());
    match rows? {
        None => Ok(Batch::Full),
        Some(rows) => {
            Ok(Batch::Mini { rows, replacement: replacement?, local_steps: local_steps? })
        }
    }
}
