//! `participation` in `[method]`: who takes part in a round.

use std::collections::BTreeMap;
use whimbrel_job::key::{Key, Section};
use whimbrel_job::reader::{Read, Reported, Shape, Value};
use whimbrel_job::writer::{inline, number, text};

/// Who takes part in a round.
#[derive(Clone, Debug, PartialEq)]
pub enum Participation {
    /// Every client, independently, with this probability; 1: everyone.
    Probability(f64),
    /// So many clients, drawn anew each round.
    Size(usize),
    /// Every client, independently, with a probability of its own.
    PerClient {
        /// For clients that are not listed.
        default: f64,
        /// By the client's name.
        clients: BTreeMap<String, f64>,
    },
}

/// `participation`.
pub static PARTICIPATION: Key = Key::default(
    "participation",
    "a number above 0 and at most 1, { size } or { default, clients }",
    "1.0",
    "who takes part in a round: the probability that a client does, or how many do",
)
.tables(&[&SECTION]);

static SIZE: Key = Key::optional(
    "size",
    "an integer of at least 1",
    "probabilities decide",
    "exactly how many clients take part, drawn anew each round",
);
static DEFAULT: Key = Key::default(
    "default",
    "a number above 0 and at most 1",
    "1.0",
    "the probability of clients that are not listed",
);
static CLIENTS: Key = Key::default(
    "clients",
    "a table of client names and numbers above 0 and at most 1",
    "{}",
    "the probability of each listed client",
);
static SECTION: Section = Section {
    name: "participation",
    doc: "a cohort of fixed size, or a probability for each client",
    keys: &[&SIZE, &DEFAULT, &CLIENTS],
    example: "[method]\nkind = \"fedem\"\nrounds = 100\n\
              participation = { default = 0.5, clients = { north = 0.9, south = 0.2 } }\n",
};

impl Participation {
    pub(crate) fn read(value: Value<'_>) -> Read<Self> {
        if !matches!(value.shape(), Shape::Table) {
            return value.number(is_probability).map(Self::Probability);
        }
        let reader = value.table(&SECTION)?;
        reader.refuse_both(&SIZE, &DEFAULT)?;
        reader.refuse_both(&SIZE, &CLIENTS)?;
        if let Some(size) = reader.optional(&SIZE, |v| v.count())? {
            return Ok(Self::Size(size));
        }
        if !reader.has(&DEFAULT) && !reader.has(&CLIENTS) {
            return Err(value.refuse());
        }
        let default = reader.read(&DEFAULT, |v| v.number(is_probability));
        let clients = reader.read(&CLIENTS, |v| {
            let entries: Vec<Result<(String, f64), Reported>> = v
                .entries()?
                .into_iter()
                .map(|(name, value)| Ok((name, value.number(is_probability)?)))
                .collect();
            entries.into_iter().collect()
        });
        Ok(Self::PerClient { default: default?, clients: clients? })
    }

    pub(crate) fn write(&self) -> String {
        match self {
            Self::Probability(p) => number(*p),
            Self::Size(size) => inline([(SIZE.name, size.to_string())]),
            Self::PerClient { default, clients } => {
                let named: Vec<(String, String)> =
                    clients.iter().map(|(name, p)| (text(name), number(*p))).collect();
                let named = inline(named.iter().map(|(name, p)| (name.as_str(), p.clone())));
                inline([(DEFAULT.name, number(*default)), (CLIENTS.name, named)])
            }
        }
    }
}

fn is_probability(x: f64) -> bool {
    x > 0.0 && x <= 1.0
}
