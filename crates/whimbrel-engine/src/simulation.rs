//! A job's stages on this machine: the rows of all clients are bound again for each stage.

use crate::decentralised::Neighbours;
use crate::enrolment::enrol_one;
use crate::federation::in_client;
use crate::keeper::{Folder, Keeper, Nowhere};
use crate::participation::{Faults, Participation};
use crate::run::{Chain, Observer, Outcome, Stage, StageMethod, Stopping, run_with};
use crate::runner::{Carrier, Runner, Start};
use crate::simulator::{Duty, Federation, Simulator};
use rayon::prelude::*;
use std::borrow::Cow;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use whimbrel_core::method::Artifact;
use whimbrel_core::{Bound, ClientData, ClientId, Result};

/// Folder, checkpoints and interruption of a simulation.
pub struct Limits<'a> {
    /// The run's folder; `None` writes no files.
    pub folder: Option<&'a Path>,
    /// Whether to resume the folder's checkpoint, if it has one.
    pub resume: bool,
    /// The minimum time between checkpoints.
    pub checkpoint_every: Duration,
    /// A flag that makes the run save its state and stop.
    pub interrupt: &'a AtomicBool,
}

impl Default for Limits<'_> {
    /// In memory, never interrupted.
    fn default() -> Self {
        static NEVER: AtomicBool = AtomicBool::new(false);
        Self { folder: None, resume: false, checkpoint_every: Duration::MAX, interrupt: &NEVER }
    }
}

impl Stage {
    /// A stage of all clients without faults, metrics and early stops.
    pub fn new(name: &'static str, method: impl Into<StageMethod>) -> Self {
        Self {
            name,
            method: method.into(),
            participation: Participation::Everyone,
            faults: Faults::default(),
            evaluate_every: None,
            stopping: Stopping::default(),
        }
    }
}

/// Stages that do not depend on what those before them deliver.
impl Chain for Vec<Stage> {
    fn len(&self) -> usize {
        self.as_slice().len()
    }

    fn build(&self, index: usize, _: &[Artifact]) -> Result<Stage> {
        Ok(self[index].clone())
    }
}

/// Simulates the chain over clients in id order: sorted by name, or as in a journal.
pub fn run<'c>(
    chain: &dyn Chain,
    clients: impl Into<Cow<'c, [(String, ClientData)]>>,
    seed: u64,
    limits: &Limits<'_>,
    observer: &mut dyn Observer,
) -> Result<Outcome> {
    let mut simulation = Simulation::new(clients).with_duties(chain.duties());
    let mut keeper = limits.keeper()?;
    run_with(chain, &mut simulation, &mut *keeper, seed, limits.interrupt, observer)
}

impl Limits<'_> {
    /// The storage of the run.
    pub fn keeper(&self) -> Result<Box<dyn Keeper>> {
        Ok(match self.folder {
            Some(folder) if self.resume => Box::new(Folder::resume(folder, self.checkpoint_every)?),
            Some(folder) => Box::new(Folder::create(folder, self.checkpoint_every)?),
            None => Box::new(Nowhere),
        })
    }
}

/// A carrier over clients on this machine.
pub struct Simulation<'c> {
    clients: Cow<'c, [(String, ClientData)]>,
    duties: Vec<Duty>,
}

impl<'c> Simulation<'c> {
    /// Clients by id, owned or borrowed.
    pub fn new(clients: impl Into<Cow<'c, [(String, ClientData)]>>) -> Self {
        Self { clients: clients.into(), duties: Vec::new() }
    }

    /// Sets the duties by id; clients beyond the end train.
    #[must_use]
    pub fn with_duties(mut self, duties: Vec<Duty>) -> Self {
        self.duties = duties;
        self
    }

    /// Binds the data of all clients for a stage; the last stage consumes owned tables one by one.
    fn bind(&mut self, stage: &Stage, last: bool) -> Result<Federation> {
        let one =
            |name: &str, data: &ClientData| stage.method.bind(data).map_err(|e| in_client(e, name));
        let bound: Vec<(String, _)> = match &mut self.clients {
            Cow::Owned(clients) if last => std::mem::take(clients)
                .into_par_iter()
                .map(|(name, data)| one(&name, &data).map(|bound| (name, bound)))
                .collect::<Result<_>>()?,
            clients => clients
                .par_iter()
                .map(|(name, data)| one(name, data).map(|bound| (name.clone(), bound)))
                .collect::<Result<_>>()?,
        };
        let (names, data) = bound.into_iter().unzip();
        Ok(Federation { names, data, duties: self.duties.clone() })
    }

    /// Names and duties without rows, for a method that needs none after enrolment.
    fn without_rows(&self) -> Federation {
        let names = self.clients.iter().map(|(name, _)| name.clone()).collect();
        let data = self.clients.iter().map(|_| Box::new(()) as Bound).collect();
        Federation { names, data, duties: self.duties.clone() }
    }
}

impl Carrier for Simulation<'_> {
    fn open<'a>(&'a mut self, stage: &Stage, start: &Start<'_>) -> Result<Box<dyn Runner + 'a>> {
        let Start { keys, last, saved, .. } = *start;
        let (participation, faults) = (stage.participation.clone(), stage.faults.clone());
        if let (StageMethod::Server(method), None, false) = (&stage.method, saved, last)
            && method.declare().enrols_only
        {
            let enrol = |id: ClientId| {
                let (name, data) = &self.clients[id.0 as usize];
                let bound = method.bind(data);
                let enrolled = bound.and_then(|rows| enrol_one(&**method, &rows, keys, id));
                enrolled.map_err(|e| in_client(e, name))
            };
            let (method, federation) = (method.clone(), Arc::new(self.without_rows()));
            let simulator =
                Simulator::start_only(method, federation, keys, participation, faults, enrol);
            return Ok(Box::new(simulator?));
        }
        let federation = Arc::new(self.bind(stage, last)?);
        let method = match &stage.method {
            StageMethod::Server(method) => method.clone(),
            StageMethod::Neighbours(method, graphs) => {
                let (method, graphs) = (method.clone(), graphs.clone());
                return Ok(Box::new(Neighbours::open(method, graphs, federation, start)?));
            }
        };
        let simulator = match saved {
            None => Simulator::start(method, federation, keys, participation, faults),
            Some(saved) => Simulator::load(method, federation, keys, participation, faults, saved),
        };
        Ok(Box::new(simulator?))
    }
}
