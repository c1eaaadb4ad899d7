//! Keys of `[method]` that are for `fedmiss` alone.

use super::length::{LOCAL_STEPS, REPLACEMENT};
use whimbrel_job::key::{Key, Word};
use whimbrel_job::reader::{Read, Reader, Shape, Value};
use whimbrel_job::writer::{number, text};

/// How many complete tables EM imagines.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Copies {
    /// `Fewest`, with a given step cut where it is too long for them; `Clients` with a given step and
    /// noise that no memory takes away.
    Auto,
    /// One for each client, as in the paper.
    Clients,
    /// As many as the most observed cell has observations.
    Fewest,
    /// So many.
    Given(f64),
}

pub(super) static COPIES: Key = Key::default(
    "copies",
    "\"auto\", \"clients\", \"fewest\" or a positive number",
    "\"auto\"",
    "how many complete tables EM imagines: a step of 1 moves a cell by one part in so many; at \
     least as many as the most observed cell has observations",
)
.words(&[
    Word {
        name: "auto",
        doc: "\"fewest\", with a given step cut where the memories could not keep up with it; \"clients\" \
              with a given step, minibatches or a codec, and no memories",
    },
    Word { name: "clients", doc: "one for each client, as in the paper" },
    Word {
        name: "fewest",
        doc: "as many as the most observed cell has observations: the largest steps that are sure \
              to descend",
    },
])
.only(&["fedmiss"], "only tables have cells");

pub(super) fn read_copies(value: Value<'_>) -> Read<Copies> {
    match value.shape() {
        Shape::Text => match value.text()?.as_str() {
            "auto" => Ok(Copies::Auto),
            "clients" => Ok(Copies::Clients),
            "fewest" => Ok(Copies::Fewest),
            other => Err(value.unknown_word(other)),
        },
        _ => value.number(|x| x > 0.0).map(Copies::Given),
    }
}

pub(super) fn write_copies(copies: Copies) -> String {
    match copies {
        Copies::Auto => text("auto"),
        Copies::Clients => text("clients"),
        Copies::Fewest => text("fewest"),
        Copies::Given(copies) => number(copies),
    }
}

/// Refuses what minibatches of rows have and minibatches of cells have not.
pub(super) fn refuse_rows(reader: &Reader<'_>) {
    let why = "has no meaning for fedmiss: cells are drawn once a round, without replacement";
    reader.refuse_if_given(&REPLACEMENT, why);
    reader.refuse_if_given(&LOCAL_STEPS, why);
}
