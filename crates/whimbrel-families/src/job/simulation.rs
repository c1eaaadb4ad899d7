//! `[simulation]`: what goes wrong on purpose.

use crate::family::MethodKind;
use whimbrel_job::key::{Key, Section};
use whimbrel_job::matrix::read_all;
use whimbrel_job::reader::{Read, Reader, Value};
use whimbrel_job::writer::{Writer, inline, list, number, text};
use whimbrel_methods::settings::Budget;

/// `[simulation]`.
#[derive(Clone, Debug, PartialEq)]
pub struct Simulation {
    /// The probability that an upload is lost.
    pub lost: f64,
    /// Uploads lost by script.
    pub drops: Vec<Dropout>,
    /// Clients that join late.
    pub late: Vec<LateJoin>,
    /// Seconds between checkpoints.
    pub checkpoint_seconds: f64,
}

/// Uploads lost in one round, after they were computed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dropout {
    /// The round, from 1.
    pub round: u32,
    /// The names of the clients.
    pub clients: Vec<String>,
}

/// A client that is not there from the start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LateJoin {
    /// Its name.
    pub client: String,
    /// The first round it can take part in, from 1.
    pub round: u32,
}

impl Default for Simulation {
    fn default() -> Self {
        Self { lost: 0.0, drops: Vec::new(), late: Vec::new(), checkpoint_seconds: 10.0 }
    }
}

static LOST: Key = Key::default(
    "lost",
    "a number from 0 to below 1",
    "0.0",
    "the probability that an upload is lost after it was computed",
);
static DROPS: Key = Key::default(
    "drops",
    "a list of tables { round, clients }",
    "[]",
    "uploads that are lost in given rounds",
)
.tables(&[&DROP_SECTION]);
static LATE: Key = Key::default(
    "late",
    "a list of tables { client, round }",
    "[]",
    "clients that join after the start",
)
.tables(&[&LATE_SECTION]);
static CHECKPOINT: Key = Key::default(
    "checkpoint_seconds",
    "a number of at least 0",
    "10.0",
    "seconds from one checkpoint to the next; 0 writes one every round",
);

/// `[simulation]`.
pub(crate) static SECTION: Section = Section {
    name: "simulation",
    doc: "What goes wrong on purpose, and how often the run is saved. The table may be left out.",
    keys: &[&LOST, &DROPS, &LATE, &CHECKPOINT],
    example: "[simulation]\nlost = 0.05\ndrops = [{ round = 3, clients = [\"north\"] }]\n\
              late = [{ client = \"south\", round = 40 }]\n",
};

static ROUND: Key = Key::required("round", "an integer of at least 1", "the round, from 1");
static CLIENTS: Key = Key::required("clients", "a list of client names", "whose uploads are lost");
static CLIENT: Key = Key::required("client", "a client name", "who joins");
static DROP_SECTION: Section = Section {
    name: "drops",
    doc: "uploads lost in one round",
    keys: &[&ROUND, &CLIENTS],
    example: "",
};
static LATE_SECTION: Section = Section {
    name: "late",
    doc: "a client that joins after the start",
    keys: &[&CLIENT, &ROUND],
    example: "",
};

impl Simulation {
    /// Reads `[simulation]` of a run by this method and of this length, where they are known.
    pub(crate) fn read(
        reader: &Reader<'_>,
        method: Option<&MethodKind>,
        length: Option<Budget>,
    ) -> Read<Self> {
        if let Some(method) = method.filter(|method| method.pooled) {
            for key in [&LOST, &DROPS, &LATE] {
                let why = "one client holds everything and sends nothing";
                reader.refuse_if_given(
                    key,
                    &format!("has no meaning for {}: {why}", method.algorithm),
                );
            }
        }
        let last = match length {
            Some(Budget::Rounds(rounds) | Budget::Converged(rounds)) => rounds,
            Some(Budget::Epochs(_)) | None => u32::MAX,
        };
        let lost = reader.read(&LOST, |v| v.number(|x| (0.0..1.0).contains(&x)));
        let drops = reader.read(&DROPS, |v| {
            read_all(v.list()?, |item| {
                let reader = item.table(&DROP_SECTION)?;
                let round = reader.read(&ROUND, |v| read_round(v, last));
                let clients = reader.read(&CLIENTS, |v| read_all(v.list()?, |name| name.text()));
                Ok(Dropout { round: round?, clients: clients? })
            })
        });
        let late = reader.read(&LATE, |v| read_late(v, last));
        let checkpoint_seconds = reader.read(&CHECKPOINT, |v| v.number(|x| x >= 0.0));
        Ok(Self {
            lost: lost?,
            drops: drops?,
            late: late?,
            checkpoint_seconds: checkpoint_seconds?,
        })
    }

    pub(crate) fn write(&self, out: &mut Writer, pooled: bool) {
        out.table(&SECTION);
        if !pooled {
            out.put(&LOST, number(self.lost));
            let drops = self.drops.iter().map(|drop| {
                let clients = list(drop.clients.iter().map(|name| text(name)));
                inline([(ROUND.name, drop.round.to_string()), (CLIENTS.name, clients)])
            });
            out.put(&DROPS, list(drops));
            let late = self.late.iter().map(|join| {
                inline([(CLIENT.name, text(&join.client)), (ROUND.name, join.round.to_string())])
            });
            out.put(&LATE, list(late));
        }
        out.put(&CHECKPOINT, number(self.checkpoint_seconds));
    }
}

fn read_late(value: Value<'_>, last: u32) -> Read<Vec<LateJoin>> {
    let items = value.list()?;
    let late = read_all(items.clone(), |item| {
        let reader = item.table(&LATE_SECTION)?;
        let client = reader.read(&CLIENT, |v| v.text());
        let round = reader.read(&ROUND, |v| read_round(v, last));
        Ok(LateJoin { client: client?, round: round? })
    })?;
    match (1..late.len()).find(|&i| late[..i].iter().any(|join| join.client == late[i].client)) {
        None => Ok(late),
        Some(i) => Err(items[i]
            .fail(format!("client {} joins twice", text(&late[i].client)), "keep one of the two")),
    }
}

fn read_round(value: Value<'_>, last: u32) -> Read<u32> {
    let round = value.count_u32()?;
    if round > last {
        return Err(value.fail(
            format!("round {round} never comes: the run ends with round {last}"),
            "name an earlier round, or raise `rounds` in [method]",
        ));
    }
    Ok(round)
}
