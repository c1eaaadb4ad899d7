//! A job's stages on this machine: everyone's rows, bound anew for each stage's simulator.

use crate::keeper::{Folder, Keeper, Nowhere};
use crate::run::{Chain, Observer, Outcome, Stage, run_with};
use crate::runner::{Carrier, Opening, Runner};
use crate::simulator::{Federation, Simulator};
use rayon::prelude::*;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use whimbrel_core::{ClientData, Error, Result};

/// Where and how long a simulation may work.
pub struct Limits<'a> {
    /// The run's folder; none keeps nothing on disk.
    pub folder: Option<&'a Path>,
    /// Go on from the folder's checkpoint, where it has one.
    pub resume: bool,
    /// At least so long between checkpoints.
    pub checkpoint_every: Duration,
    /// Set by whoever wants the run to save its state and stop.
    pub interrupt: &'a AtomicBool,
}

/// Simulates the chain over these clients, by id: sorted by name, or as a journal numbers them.
pub fn run(
    chain: &dyn Chain,
    clients: Vec<(String, ClientData)>,
    seed: u64,
    limits: &Limits<'_>,
    observer: &mut dyn Observer,
) -> Result<Outcome> {
    let mut folder = match limits.folder {
        Some(folder) if limits.resume => Some(Folder::resume(folder, limits.checkpoint_every)?),
        Some(folder) => Some(Folder::create(folder, limits.checkpoint_every)?),
        None => None,
    };
    let keeper: &mut dyn Keeper = match &mut folder {
        Some(folder) => folder,
        None => &mut Nowhere,
    };
    let mut simulation = Simulation::new(clients);
    run_with(chain, &mut simulation, keeper, seed, limits.interrupt, observer)
}

/// Clients on this machine, stage after stage.
pub struct Simulation {
    clients: Vec<(String, ClientData)>,
    /// The clients of the stage under way.
    federation: Option<Federation>,
}

impl Simulation {
    /// These clients, by id.
    pub fn new(clients: Vec<(String, ClientData)>) -> Self {
        Self { clients, federation: None }
    }

    /// Binds everyone's data for a stage; the last stage takes the tables over, client by client.
    fn bind(&mut self, stage: &Stage, last: bool) -> Result<Federation> {
        let one = |name: &str, data: &ClientData| {
            stage.method.bind(data).map_err(|e| match e {
                Error::Data { what, .. } => Error::data(format!("client `{name}`: {what}")),
                other => other,
            })
        };
        let bound: Vec<(String, _)> = if last {
            std::mem::take(&mut self.clients)
                .into_par_iter()
                .map(|(name, data)| one(&name, &data).map(|bound| (name, bound)))
                .collect::<Result<_>>()?
        } else {
            self.clients
                .par_iter()
                .map(|(name, data)| one(name, data).map(|bound| (name.clone(), bound)))
                .collect::<Result<_>>()?
        };
        let (names, data) = bound.into_iter().unzip();
        Ok(Federation { names, data })
    }
}

impl Carrier for Simulation {
    fn open<'a>(&'a mut self, opening: Opening<'a>) -> Result<Box<dyn Runner<'a> + 'a>> {
        let Opening { stage, keys, last, saved, .. } = opening;
        // The stage before is over: its rows go before the next one's come.
        self.federation = None;
        let federation = self.bind(stage, last)?;
        let federation: &'a Federation = self.federation.insert(federation);
        let method = &*stage.method;
        let (participation, faults) = (stage.participation.clone(), stage.faults.clone());
        let simulator = match saved {
            None => Simulator::start(method, federation, keys, participation, faults),
            Some(saved) => Simulator::load(method, federation, keys, participation, faults, saved),
        };
        Ok(Box::new(simulator?))
    }
}
