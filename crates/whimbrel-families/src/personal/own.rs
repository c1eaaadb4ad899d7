//! `[[method.for]]`: clients that train in their own way (Marfoq et al. 2021, App. H: local solvers may
//! differ).

use super::keys::{LOCAL_EPOCHS, MINIBATCHES};
use crate::failure::Result;
use crate::plan::Common;
use std::collections::BTreeMap;
use whimbrel_core::Error;
use whimbrel_job::key::{Key, Section};
use whimbrel_job::matrix::read_all;
use whimbrel_job::reader::{Read, Value};
use whimbrel_job::writer::{inline, list, number, text};
use whimbrel_methods::personal::{Length, OwnSolver, Solver};

pub(super) static OWN: Key = Key::default(
    "for",
    "a list of tables, `[[method.for]]`",
    "[]",
    "clients with a local solver of their own",
)
.tables(&[&SECTION]);
static CLIENTS: Key = Key::required("clients", "a list of client names", "who uses it");
static OWN_EPOCHS: Key = Key::optional(
    LOCAL_EPOCHS.name,
    "an integer of at least 1",
    "as everyone",
    "passes over the client's samples in a round",
);
static OWN_MINIBATCHES: Key = Key::optional(
    MINIBATCHES.name,
    "an integer of at least 1",
    "as everyone",
    "local steps of a round, in place of `local_epochs`",
);
static OWN_BATCH: Key =
    Key::optional("batch", "an integer of at least 1", "as everyone", "samples of a minibatch");
static OWN_STEP: Key = Key::optional(
    "step",
    "a positive number",
    "as everyone",
    "the first local step; it falls as everyone's does",
);
static SECTION: Section = Section {
    name: "for",
    doc: "a local solver that some clients use in place of everyone's; written `[[method.for]]` or \
          `for = [{ ... }]`",
    keys: &[&CLIENTS, &OWN_EPOCHS, &OWN_MINIBATCHES, &OWN_BATCH, &OWN_STEP],
    example: "",
};

/// A local solver for some clients; what is not given is everyone's.
#[derive(Clone, Debug, PartialEq)]
pub struct OwnTraining {
    /// The names of the clients.
    pub clients: Vec<String>,
    length: Option<Length>,
    batch: Option<u32>,
    step: Option<f64>,
}

impl OwnTraining {
    /// A list of entries in which no client is named twice.
    pub(super) fn read_all(value: Value<'_>) -> Read<Vec<Self>> {
        let items = value.list()?;
        let entries = read_all(items.clone(), Self::read)?;
        let mut seen: Vec<&String> = Vec::new();
        for (item, entry) in items.iter().zip(&entries) {
            for name in &entry.clients {
                if seen.contains(&name) {
                    let what = format!("client {} has two solvers of its own", text(name));
                    return Err(item.fail(what, "name each client once"));
                }
                seen.push(name);
            }
        }
        Ok(entries)
    }

    fn read(item: Value<'_>) -> Read<Self> {
        let reader = item.table(&SECTION)?;
        reader.refuse_both(&OWN_EPOCHS, &OWN_MINIBATCHES)?;
        let clients = reader.read(&CLIENTS, |v| read_all(v.list()?, |name| name.text()));
        let epochs = reader.optional(&OWN_EPOCHS, |v| v.count_u32());
        let minibatches = reader.optional(&OWN_MINIBATCHES, |v| v.count_u32());
        let batch = reader.optional(&OWN_BATCH, |v| v.count_u32());
        let step = reader.optional(&OWN_STEP, |v| v.number(|x| x > 0.0));
        let length = epochs?.map(Length::Epochs).or(minibatches?.map(Length::Steps));
        Ok(Self { clients: clients?, length, batch: batch?, step: step? })
    }

    pub(super) fn write_all(entries: &[Self]) -> String {
        list(entries.iter().map(|entry| {
            let clients = list(entry.clients.iter().map(|name| text(name)));
            let length = entry.length.map(|length| match length {
                Length::Epochs(epochs) => (OWN_EPOCHS.name, epochs.to_string()),
                Length::Steps(steps) => (OWN_MINIBATCHES.name, steps.to_string()),
            });
            let batch = entry.batch.map(|batch| (OWN_BATCH.name, batch.to_string()));
            let step = entry.step.map(|step| (OWN_STEP.name, number(step)));
            let given = [length, batch, step].into_iter().flatten();
            inline([(CLIENTS.name, clients)].into_iter().chain(given))
        }))
    }

    /// The solvers, and which of them a client has, by id.
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
