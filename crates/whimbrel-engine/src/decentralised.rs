//! A federation without a server, on this machine: neighbours exchange and mix.
//!
//! It is a [`Runner`] like any other, so loop, folder, journal, resume and report are the same. Every
//! client takes part in every round. A message counts as bytes up for its sender, once per
//! neighbour, and as bytes down for its receiver; the run's traffic counts it once, as up.

use crate::keeper::Keeper;
use crate::keys::StageKeys;
use crate::machine::check_growth;
use crate::run::{Observer, Outcome, StageRules, Stages, Stopping, run_stages};
use crate::runner::{Done, Evaluated, Runner, SavedStage, Start, Step, Tally, Traffic};
use crate::saved::{Change, Saved};
use crate::simulation::Limits;
use crate::simulator::{first_failure, name};
use crate::topology::Mixing;
use rayon::prelude::*;
use std::sync::Arc;
use whimbrel_core::decentralised::{DynDecentralised, Graph};
use whimbrel_core::method::Artifact;
use whimbrel_core::{ClientData, ClientId, Error, Message, Opaque, Result, Wire};

/// A job of one decentralised stage.
pub struct DecentralisedStage {
    /// What it is called in messages.
    pub name: &'static str,
    /// The method.
    pub method: Arc<dyn DynDecentralised>,
    /// The graph and its weights, over as many clients as there are.
    pub mixing: Mixing,
    /// Evaluate every so many rounds.
    pub evaluate_every: Option<u32>,
    /// When to stop early.
    pub stopping: Stopping,
}

/// Runs a decentralised stage over these clients, by id.
pub fn run_decentralised(
    stage: DecentralisedStage,
    clients: Vec<(String, ClientData)>,
    seed: u64,
    limits: &Limits<'_>,
    observer: &mut dyn Observer,
) -> Result<Outcome> {
    let mut keeper: Box<dyn Keeper> = limits.keeper()?;
    let mut stages = Single { stage, clients };
    run_stages(&mut stages, &mut *keeper, seed, limits.interrupt, observer)
}

struct Single {
    stage: DecentralisedStage,
    clients: Vec<(String, ClientData)>,
}

impl Stages for Single {
    fn len(&self) -> usize {
        1
    }

    fn build(&mut self, _: usize, _: &[Artifact]) -> Result<StageRules> {
        let stage = &self.stage;
        let measures = stage.evaluate_every.map(|_| stage.method.measures());
        Ok(StageRules {
            name: stage.name,
            measures: measures.unwrap_or_default(),
            evaluate_every: stage.evaluate_every,
            stopping: stage.stopping.clone(),
        })
    }

    fn open<'a>(&'a mut self, start: &Start<'_>) -> Result<Box<dyn Runner + 'a>> {
        let (method, mixing) = (self.stage.method.clone(), self.stage.mixing.clone());
        Ok(Box::new(Neighbours::open(method, mixing, &self.clients, start)?))
    }
}

/// Neighbours at work.
pub struct Neighbours {
    method: Arc<dyn DynDecentralised>,
    mixing: Mixing,
    graph: Graph,
    keys: StageKeys,
    names: Vec<String>,
    data: Vec<Opaque>,
    nodes: Vec<Opaque>,
    round: u32,
    start_magnitude: f64,
    tallies: Vec<Tally>,
    traffic: Traffic,
}

impl Neighbours {
    /// Starts, or goes on where the stage was saved.
    pub fn open(
        method: Arc<dyn DynDecentralised>,
        mixing: Mixing,
        clients: &[(String, ClientData)],
        start: &Start<'_>,
    ) -> Result<Self> {
        if mixing.clients() != clients.len() {
            return Err(Error::config(format!(
                "a graph over {} clients for {}",
                mixing.clients(),
                clients.len()
            )));
        }
        let names: Vec<String> = clients.iter().map(|(name, _)| name.clone()).collect();
        let bind = |(i, (_, data)): (usize, &(String, ClientData))| {
            method.bind(data).map_err(|e| name(e, &names, ClientId(i as u32)))
        };
        let data = first_failure(clients.par_iter().enumerate().map(bind).collect())?;
        let (keys, mut neighbours) = (
            start.keys,
            Self {
                graph: mixing.graph()?,
                method,
                mixing,
                keys: start.keys,
                names,
                data,
                nodes: Vec::new(),
                round: 0,
                start_magnitude: 0.0,
                tallies: vec![Tally::default(); clients.len()],
                traffic: Traffic::default(),
            },
        );
        match start.saved {
            Some(saved) => neighbours.load(saved)?,
            None => {
                let first =
                    |id: ClientId, data: &Opaque| neighbours.method.start(data, keys.enrol(id));
                neighbours.nodes =
                    neighbours.each(|id| first(id, &neighbours.data[id.0 as usize]))?;
                neighbours.start_magnitude = neighbours.magnitude()?;
            }
        }
        Ok(neighbours)
    }

    fn load(&mut self, saved: &SavedStage) -> Result<()> {
        let records: Vec<&Vec<u8>> = saved.state.records().iter().flatten().collect();
        if [records.len(), saved.tallies.len()] != [self.names.len(); 2] {
            return Err(Error::storage(
                "checkpoint",
                format!("it holds {} clients, the data have {}", records.len(), self.names.len()),
            ));
        }
        self.nodes = records.iter().map(|bytes| self.method.load(bytes)).collect::<Result<_>>()?;
        self.round = saved.state.round();
        self.start_magnitude = f64::from_bytes(saved.state.global())?;
        self.tallies.clone_from(&saved.tallies);
        self.traffic = saved.traffic;
        Ok(())
    }

    /// Everyone's, in parallel; the failure of the lowest id.
    fn each<T: Send>(&self, work: impl Fn(ClientId) -> Result<T> + Sync) -> Result<Vec<T>> {
        let ids = (0..self.names.len() as u32).into_par_iter().map(ClientId);
        let named = ids.map(|id| work(id).map_err(|e| name(e, &self.names, id)));
        first_failure(named.collect())
    }

    fn magnitude(&self) -> Result<f64> {
        let each = self.each(|id| self.method.magnitude(&self.nodes[id.0 as usize]))?;
        // A norm that is not a number must not be passed over.
        Ok(each.into_iter().fold(0.0, |most, x| if x > most || x.is_nan() { x } else { most }))
    }

    /// One round: local steps, messages, mixing.
    fn exchange(&mut self) -> Result<()> {
        let keys = self.keys.exchange(self.round);
        let nodes = std::mem::take(&mut self.nodes);
        let stepped = nodes.into_par_iter().zip(&self.data).enumerate().map(|(i, (node, data))| {
            let id = ClientId(i as u32);
            let step = || {
                let node = self.method.local_step(node, data, keys.local(id))?;
                let message = self.method.emit(&node)?;
                Ok((node, message))
            };
            step().map_err(|e| name(e, &self.names, id))
        });
        let stepped: Vec<(Opaque, Message)> = first_failure(stepped.collect())?;
        let (nodes, messages): (Vec<Opaque>, Vec<Message>) = stepped.into_iter().unzip();
        let mixed = nodes.into_par_iter().enumerate().map(|(i, node)| {
            let id = ClientId(i as u32);
            let near = self.mixing.neighbours(id).iter();
            let received: Vec<(f64, &Message)> =
                near.map(|(from, weight)| (*weight, &messages[from.0 as usize])).collect();
            let mixed = self.method.mix(node, self.mixing.own(id), &received);
            mixed.map_err(|e| name(e, &self.names, id))
        });
        self.nodes = first_failure(mixed.collect())?;
        for i in 0..self.names.len() {
            for (from, _) in self.mixing.neighbours(ClientId(i as u32)) {
                let bytes = messages[from.0 as usize].len() as u64;
                self.tallies[from.0 as usize].bytes_up += bytes;
                self.tallies[i].bytes_down += bytes;
                self.traffic.up += bytes;
            }
            self.tallies[i].rounds += 1;
        }
        self.round += 1;
        check_growth(self.magnitude()?, &mut self.start_magnitude)
    }
}

impl Runner for Neighbours {
    fn round(&self) -> u32 {
        self.round
    }

    fn exchanges(&self) -> u32 {
        self.round
    }

    fn next_is_round(&self) -> Result<Option<bool>> {
        Ok((self.round < self.method.rounds()).then_some(true))
    }

    fn enrolled(&self) -> Vec<ClientId> {
        (0..self.names.len() as u32).map(ClientId).collect()
    }

    fn step(&mut self) -> Result<Step> {
        if self.round >= self.method.rounds() {
            return Ok(Step::Over);
        }
        if self.nodes.len() != self.names.len() {
            return Err(Error::internal("a round goes on after one that failed"));
        }
        let exchange = self.round;
        self.exchange().map_err(|e| e.in_round(exchange + 1))?;
        Ok(Step::Exchanged(Done {
            exchange,
            round: Some(self.round),
            joined: Vec::new(),
            cohort: self.enrolled(),
            accepted: self.enrolled(),
            unsent: Vec::new(),
            unheard: Vec::new(),
        }))
    }

    /// Everyone moved in the step.
    fn acknowledge(&mut self) -> Result<()> {
        Ok(())
    }

    fn evaluate(&mut self) -> Result<Option<Evaluated>> {
        let answer = |id: ClientId| {
            let i = id.0 as usize;
            Ok((id, self.method.answer(&self.nodes[i], &self.data[i])?))
        };
        let answers = self.each(answer)?;
        self.traffic.eval += answers.iter().map(|(_, answer)| answer.len() as u64).sum::<u64>();
        let metrics = self.method.conclude(&self.graph, &answers)?;
        let own = vec![Vec::new(); self.names.len()];
        Ok(Some(Evaluated { metrics, own, answered: self.enrolled() }))
    }

    fn names(&self) -> Vec<String> {
        self.names.clone()
    }

    fn tallies(&self) -> &[Tally] {
        &self.tallies
    }

    fn traffic(&self) -> Traffic {
        self.traffic
    }

    fn save(&self) -> Result<SavedStage> {
        let nodes = self.each(|id| self.method.save(&self.nodes[id.0 as usize]).map(Some))?;
        let global = self.start_magnitude.to_bytes();
        Ok(SavedStage {
            state: Saved::new(self.round, self.round, global, nodes),
            clients: Vec::new(),
            tallies: self.tallies.clone(),
            traffic: self.traffic,
        })
    }

    fn change(&self, moved: &[ClientId]) -> Result<Change> {
        let nodes = moved.iter().map(|id| Ok((*id, self.method.save(&self.nodes[id.0 as usize])?)));
        let (round, global) = (self.round, self.start_magnitude.to_bytes());
        Ok(Change::new(round, round, global, nodes.collect::<Result<_>>()?))
    }

    fn artifact(&self) -> Result<Artifact> {
        self.method.artifact(&self.nodes)
    }

    fn client_artifacts(
        &self,
        sink: &mut dyn FnMut(ClientId, Artifact) -> Result<()>,
    ) -> Result<()> {
        for (id, (node, data)) in self.enrolled().into_iter().zip(self.nodes.iter().zip(&self.data))
        {
            if let Some(own) = self.method.client_artifact(node, data)? {
                sink(id, own)?;
            }
        }
        Ok(())
    }
}
