//! `participation` in `[method]`: the cohort of a round.

use std::collections::BTreeMap;
use whimbrel_job::form::{ABOVE_ZERO, COUNT, Form};
use whimbrel_job::key::Section;
use whimbrel_job::reader::{Read, Value};
use whimbrel_job::writer::{inline, number};
use whimbrel_job::{define_keys, form};

/// The rule that draws the cohort of a round.
#[derive(Clone, Debug, PartialEq)]
pub enum Participation {
    /// Each client independently with this probability; 1: all clients.
    Probability(f64),
    /// A random cohort of this size.
    Size(usize),
    /// Each client independently with its own probability.
    PerClient {
        /// Of clients that are not listed.
        default: f64,
        /// By name.
        clients: BTreeMap<String, f64>,
    },
}

impl Default for Participation {
    fn default() -> Self {
        Self::Probability(1.0)
    }
}

define_keys! {
    /// the cohort of a round: the probability of each client, or the number of clients
    pub PARTICIPATION = "participation", PARTICIPATIONS, default(Participation::default());
}

form! {
    pub(crate) PARTICIPATIONS: Participation,
        "a number above 0 and at most 1, { size } or { default, clients }" {}
    number ABOVE_ZERO => Participation::Probability;
    table Form::new("", read_table, write_table).tables(const { &[&SECTION] });
}

define_keys! {
    /// size of the cohort; each round draws a new one
    SIZE = "size", COUNT, unset "by probability";
    /// probability of clients that are not listed
    DEFAULT = "default", ABOVE_ZERO, default(1.0);
    /// probability of each listed client
    CLIENTS = "clients", PROBABILITIES, default(BTreeMap::new());
}
static SECTION: Section = Section {
    name: "participation",
    doc: "a cohort of fixed size, or probabilities by client",
    keys: &[&SIZE, &DEFAULT, &CLIENTS],
    example: "[method]\nkind = \"fedem\"\nrounds = 100\n\
              participation = { default = 0.5, clients = { north = 0.9, south = 0.2 } }\n",
};

const PROBABILITIES: Form<BTreeMap<String, f64>> = Form::new(
    "a table of client names and numbers above 0 and at most 1",
    |v| {
        let entries = v.entries()?.into_iter();
        let read: Vec<_> = entries.map(|(name, v)| Ok((name, ABOVE_ZERO.read(&v)?))).collect();
        read.into_iter().collect()
    },
    |clients| inline(clients.iter().map(|(name, p)| (name.as_str(), number(*p)))),
);

fn read_table(value: &Value<'_>) -> Read<Participation> {
    let reader = value.table(&SECTION)?;
    reader.refuse_both(&SIZE, &DEFAULT)?;
    reader.refuse_both(&SIZE, &CLIENTS)?;
    if let Some(size) = reader.optional_as(&SIZE, &COUNT)? {
        return Ok(Participation::Size(size));
    }
    if !reader.has(&DEFAULT) && !reader.has(&CLIENTS) {
        return Err(value.refuse());
    }
    let default = reader.read_as(&DEFAULT, &ABOVE_ZERO);
    let clients = reader.read_as(&CLIENTS, &PROBABILITIES);
    Ok(Participation::PerClient { default: default?, clients: clients? })
}

fn write_table(participation: &Participation) -> String {
    match participation {
        Participation::Probability(p) => number(*p),
        Participation::Size(size) => inline([(SIZE.name, size.to_string())]),
        Participation::PerClient { default, clients } => {
            let clients = PROBABILITIES.write(clients);
            inline([(DEFAULT.name, number(*default)), (CLIENTS.name, clients)])
        }
    }
}
