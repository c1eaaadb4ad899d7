//! `participation` in `[method]`: who takes part in a round.

use std::collections::BTreeMap;
use whimbrel_job::form;
use whimbrel_job::form::{ABOVE_ZERO, COUNT, Form};
use whimbrel_job::key::{JobKey, Section};
use whimbrel_job::reader::{Read, Value};
use whimbrel_job::writer::{inline, number, text};

/// Who takes part in a round.
#[derive(Clone, Debug, PartialEq)]
pub enum Participation {
    /// Every client, independently, with this probability; 1: everyone.
    Probability(f64),
    /// This number of clients, drawn anew each round.
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
pub static PARTICIPATION: JobKey = PARTICIPATIONS.default(
    "participation",
    || PARTICIPATIONS.write(&Participation::Probability(1.0)),
    "who takes part in a round: the probability that a client does, or how many do",
);

form! {
    pub(crate) PARTICIPATIONS: Participation,
        "a number above 0 and at most 1, { size } or { default, clients }" {}
    number ABOVE_ZERO => Participation::Probability;
    table Form::new("", read_table, write_table).tables(const { &[&SECTION] });
}

static SIZE: JobKey = COUNT.unset(
    "size",
    "probabilities decide",
    "exactly how many clients take part, drawn anew each round",
);
static DEFAULT: JobKey =
    ABOVE_ZERO.default("default", || number(1.0), "the probability of clients that are not listed");
static CLIENTS: JobKey =
    PROBABILITIES.default("clients", || "{}".into(), "the probability of each listed client");
static SECTION: Section = Section {
    name: "participation",
    doc: "a cohort of fixed size, or a probability for each client",
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
    |clients| {
        let named: Vec<_> = clients.iter().map(|(name, p)| (text(name), number(*p))).collect();
        inline(named.iter().map(|(name, p)| (name.as_str(), p.clone())))
    },
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
