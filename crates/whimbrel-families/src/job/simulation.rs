//! `[simulation]`: simulated faults.

use crate::family::MethodKind;
use whimbrel_job::form::{BELOW_ONE, CLIENTS as NAMES, COUNT_U32, NOT_NEGATIVE, TEXT};
use whimbrel_job::key::{JobKey, Section};
use whimbrel_job::reader::{Read, Reader};
use whimbrel_job::writer::{Writer, text};
use whimbrel_job::{inline, list, table};
use whimbrel_methods::settings::Budget;

/// `[simulation]`.
#[derive(Clone, Debug, PartialEq)]
pub struct Simulation {
    /// Probability that an upload is lost.
    pub lost: f64,
    /// Scripted losses.
    pub drops: Vec<Dropout>,
    pub late: Vec<LateJoin>,
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
    pub client: String,
    /// The first round of the client, from 1.
    pub round: u32,
}

impl Default for Simulation {
    fn default() -> Self {
        Self { lost: 0.0, drops: Vec::new(), late: Vec::new(), checkpoint_seconds: 10.0 }
    }
}

table! {
    SIMULATION: Simulation = "simulation",
        "Simulated faults, and the interval of checkpoints. The table is optional."
    {
        /// probability that an upload is lost after its computation
        lost: LOST = "lost", BELOW_ONE, default;
        /// uploads lost in given rounds
        drops: DROPS = "drops", list!(inline!(DROP), "a list of tables { round, clients }"), default;
        /// clients that join after the start
        late: LATE = "late", list!(inline!(JOIN), "a list of tables { client, round }"), default;
        /// seconds between checkpoints; 0: one every round
        checkpoint_seconds: CHECKPOINT = "checkpoint_seconds", NOT_NEGATIVE, default;
    }
}

table! {
    DROP: Dropout = "drops", "uploads lost in one round" {
        /// the round, from 1
        round: ROUND = "round", COUNT_U32, required;
        /// the clients whose uploads are lost
        clients: CLIENTS = "clients", NAMES, required;
    }
}

table! {
    JOIN: LateJoin = "late", "a client that joins after the start" {
        /// the client
        client: CLIENT = "client", TEXT.takes("a client name"), required;
        /// the round, from 1
        round: JOIN_ROUND = "round", COUNT_U32, required;
    }
}

/// `[simulation]`.
pub(crate) static SECTION: Section = Section {
    example: "[simulation]\nlost = 0.05\ndrops = [{ round = 3, clients = [\"north\"] }]\n\
              late = [{ client = \"south\", round = 40 }]\n",
    ..SIMULATION.section
};

impl Simulation {
    /// Reads `[simulation]` for a method and a length, if they are known.
    pub(crate) fn read(
        reader: &Reader<'_>,
        method: Option<&MethodKind>,
        length: Option<Budget>,
    ) -> Read<Self> {
        if let Some(method) = method.filter(|method| method.pooled) {
            for key in [&LOST, &DROPS, &LATE] {
                let why = "one client holds all rows and sends nothing";
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
        let asked = SIMULATION.read(reader)?;
        check_rounds(reader, &DROPS, const { &DROP.section }, &ROUND, last)?;
        check_rounds(reader, &LATE, const { &JOIN.section }, &JOIN_ROUND, last)?;
        let twice =
            |i: &usize| asked.late[..*i].iter().any(|join| join.client == asked.late[*i].client);
        match (1..asked.late.len()).find(twice) {
            None => Ok(asked),
            Some(i) => reader.read(&LATE, |v| {
                let what = format!("client {} joins twice", text(&asked.late[i].client));
                Err(v.list()?[i].fail(what, "keep one of the two"))
            }),
        }
    }

    pub(crate) fn write(&self, out: &mut Writer, pooled: bool) {
        out.table(&SECTION);
        if pooled {
            out.skip(&[&LOST, &DROPS, &LATE]);
        }
        SIMULATION.write(self, out);
    }
}

/// Refuses rounds after the last one.
fn check_rounds(
    reader: &Reader<'_>,
    key: &'static JobKey,
    section: &'static Section,
    round_key: &'static JobKey,
    last: u32,
) -> Read<()> {
    reader.read(key, |v| {
        v.list()?.iter().try_for_each(|item| {
            item.table(section)?.read(round_key, |v| match v.count_u32()? {
                round if round > last => Err(v.fail(
                    format!("the run ends with round {last}, before round {round}"),
                    "name an earlier round, or raise `rounds` in [method]",
                )),
                _ => Ok(()),
            })
        })
    })
}
