//! `[[method.for]]`: local solvers of single clients (Marfoq et al. 2021, App. H).

use super::keys::{LOCAL_EPOCHS, MINIBATCHES};
use crate::failure::Result;
use crate::job::channel::own::read_entries;
use crate::plan::Common;
use std::collections::BTreeMap;
use whimbrel_core::Error;
use whimbrel_job::form::{CLIENTS as NAMES, COUNT_U32, POSITIVE, Table};
use whimbrel_job::key::{JobKey, Section};
use whimbrel_job::reader::{Read, Value};
use whimbrel_job::writer::list;
use whimbrel_job::{inline, table};
use whimbrel_methods::personal::{Length, OwnSolver, Solver};

pub(super) static OWN: JobKey = inline!(OWN_TRAINING)
    .takes("a list of tables, `[[method.for]]`")
    .default("for", || "[]".into(), "local solvers of single clients");

/// A local solver for some clients; missing keys are taken from the common solver.
#[derive(Clone, Debug, PartialEq)]
pub struct OwnTraining {
    pub clients: Vec<String>,
    length: Option<Length>,
    batch: Option<u32>,
    step: Option<f64>,
}

table! {
    OWN_TRAINING: OwnTraining = "for",
        "a local solver for some clients, written `[[method.for]]` or `for = [{ ... }]`"
    {
        + length: OWN_LENGTH;
        /// the clients
        clients: CLIENTS = "clients", NAMES, required;
        /// samples of a minibatch
        batch: OWN_BATCH = "batch", COUNT_U32, unset "that of all clients";
        /// initial local step, with the decay of all clients
        step: OWN_STEP = "step", POSITIVE, unset "that of all clients";
    }
}

static OWN_EPOCHS: JobKey = COUNT_U32.unset(
    LOCAL_EPOCHS.name,
    "that of all clients",
    "passes over the client's samples per round",
);
static OWN_MINIBATCHES: JobKey = COUNT_U32.unset(
    MINIBATCHES.name,
    "that of all clients",
    "local steps per round, in place of `local_epochs`",
);

/// Length of local training: epochs or steps.
const OWN_LENGTH: Table<Option<Length>> = Table {
    section: Section::of(const { &[&OWN_EPOCHS, &OWN_MINIBATCHES] }),
    read: |reader| {
        reader.refuse_both(&OWN_EPOCHS, &OWN_MINIBATCHES)?;
        let epochs = reader.optional_as(&OWN_EPOCHS, &COUNT_U32);
        let steps = reader.optional_as(&OWN_MINIBATCHES, &COUNT_U32);
        Ok(epochs?.map(Length::Epochs).or(steps?.map(Length::Steps)))
    },
    write: |length, out| match length {
        Some(Length::Epochs(epochs)) => out.put(&OWN_EPOCHS, epochs.to_string()),
        Some(Length::Steps(steps)) => out.put(&OWN_MINIBATCHES, steps.to_string()),
        None => {}
    },
};

/// Reads a list of entries in which no client is named twice.
pub(super) fn read_all(value: Value<'_>) -> Read<Vec<OwnTraining>> {
    read_entries(&value, &inline!(OWN_TRAINING), |entry| &entry.clients, "two solvers")
}

pub(super) fn write_all(entries: &[OwnTraining]) -> String {
    list(entries.iter().map(|entry| OWN_TRAINING.inline(entry)))
}

impl OwnTraining {
    /// The solvers, and the number of each client's solver by id.
    pub(super) fn solvers(
        entries: &[Self],
        common: &Common,
        usual: &Solver,
        rate: f64,
    ) -> Result<(Vec<OwnSolver>, BTreeMap<u32, u8>)> {
        let (mut solvers, mut of) = (Vec::new(), BTreeMap::new());
        for entry in entries {
            solvers.push(OwnSolver {
                solver: Solver {
                    length: entry.length.unwrap_or(usual.length),
                    batch: entry.batch.or(usual.batch),
                    optimiser: usual.optimiser,
                },
                step_factor: entry.step.map_or(1.0, |step| step / rate),
            });
            let number = u8::try_from(solvers.len())
                .map_err(|_| Error::config("more than 255 local solvers"))?;
            for name in &entry.clients {
                of.insert(common.roster().id_of(name, "method.for")?.0, number);
            }
        }
        Ok((solvers, of))
    }
}
