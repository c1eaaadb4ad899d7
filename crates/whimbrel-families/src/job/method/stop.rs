//! `evaluate` and `stop` in `[method]`.

use whimbrel_job::key::{Key, Section, Word};
use whimbrel_job::reader::{Read, Shape, Value};
use whimbrel_job::writer::{inline, number};

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
pub static EVALUATE: Key = Key::default(
    "evaluate",
    "a table { every }",
    "{ every = \"auto\" }",
    "when metrics are computed",
)
.tables(&[&EVALUATE_SECTION]);
/// `stop`.
pub static STOP: Key = Key::default(
    "stop",
    "a table { field_norm2, excess_loss, patience, tolerance }",
    "{}",
    "what ends the run early; by default nothing does (a mixture without `rounds` ends by itself)",
)
.tables(&[&STOP_SECTION]);

pub(super) static EVERY: Key = Key::default(
    "every",
    "an integer of at least 1 or \"auto\"",
    "\"auto\"",
    "rounds from one evaluation to the next",
)
.words(&[Word { name: "auto", doc: "so that a run has about 100 evaluations" }]);
static EVALUATE_SECTION: Section =
    Section { name: "evaluate", doc: "when metrics are computed", keys: &[&EVERY], example: "" };

static FIELD_NORM2: Key = Key::optional(
    "field_norm2",
    "a positive number",
    "never",
    "end once the squared norm of the field is at or below this (the EM methods)",
);
static EXCESS_LOSS: Key = Key::optional(
    "excess_loss",
    "a positive number",
    "never",
    "end once the loss is above the minimum by no more than this (the gradient family)",
);
static PATIENCE: Key = Key::optional(
    "patience",
    "an integer of at least 1",
    "never",
    "end after so many evaluations in which the objective made no progress",
);
static TOLERANCE: Key = Key::default(
    "tolerance",
    "a number from 0 to below 1",
    "1e-9",
    "a smaller relative decrease of the objective is no progress",
);
static STOP_SECTION: Section = Section {
    name: "stop",
    doc: "what ends a run early",
    keys: &[&FIELD_NORM2, &EXCESS_LOSS, &PATIENCE, &TOLERANCE],
    example: "",
};

impl Stop {
    /// The limits by the keys of the measures that they are about.
    pub fn limits(&self) -> Vec<(&'static str, f64)> {
        let both = [(&FIELD_NORM2, self.field_norm2), (&EXCESS_LOSS, self.excess_loss)];
        both.into_iter().filter_map(|(key, limit)| Some((key.name, limit?))).collect()
    }

    pub(super) fn write(&self) -> String {
        let mut stop = Vec::new();
        stop.extend(self.field_norm2.map(|x| (FIELD_NORM2.name, number(x))));
        stop.extend(self.excess_loss.map(|x| (EXCESS_LOSS.name, number(x))));
        if let Some(Patience { evaluations, tolerance }) = self.patience {
            stop.push((PATIENCE.name, evaluations.to_string()));
            stop.push((TOLERANCE.name, number(tolerance)));
        }
        inline(stop)
    }
}

pub(super) fn read_evaluate(value: Value<'_>) -> Read<Option<u32>> {
    value.table(&EVALUATE_SECTION)?.read(&EVERY, |v| match v.shape() {
        Shape::Text => match v.text()?.as_str() {
            "auto" => Ok(None),
            other => Err(v.unknown_word(other)),
        },
        _ => v.count_u32().map(Some),
    })
}

pub(super) fn read_stop(value: Value<'_>) -> Read<Stop> {
    let reader = value.table(&STOP_SECTION)?;
    let field_norm2 = reader.optional(&FIELD_NORM2, |v| v.number(|x| x > 0.0));
    let excess_loss = reader.optional(&EXCESS_LOSS, |v| v.number(|x| x > 0.0));
    let evaluations = reader.optional(&PATIENCE, |v| v.count_u32());
    let tolerance = reader.read(&TOLERANCE, |v| v.number(|x| (0.0..1.0).contains(&x)));
    if !reader.has(&PATIENCE) {
        reader.refuse_if_given(&TOLERANCE, "has no meaning without `patience`");
    }
    let tolerance = tolerance?;
    let patience = evaluations?.map(|evaluations| Patience { evaluations, tolerance });
    Ok(Stop { field_norm2: field_norm2?, excess_loss: excess_loss?, patience })
}
