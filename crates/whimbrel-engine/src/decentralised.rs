//! A federation without a server, on this machine: neighbours exchange and mix.
//!
//! It is a [`Runner`] like any other, so loop, folder, journal, resume and report are the same. Every
//! client takes part in every round, but for those who are only evaluated: they get the mean of all
//! states. A message counts as bytes up for its sender, once per neighbour, and as bytes down for its
//! receiver; summaries go to everyone. The run's traffic counts a message once, as up.

use crate::keys::StageKeys;
use crate::machine::check_growth;
use crate::runner::{Done, Evaluated, Runner, SavedStage, Start, Step, Tally, Traffic};
use crate::runner_state::{Change, Saved};
use crate::simulator::{Federation, first_failure, name};
use crate::topology::Graphs;
use rayon::prelude::*;
use std::sync::Arc;
use whimbrel_core::decentralised::{DynDecentralised, Graph};
use whimbrel_core::method::Artifact;
use whimbrel_core::{ClientId, Error, Message, Opaque, Result, Wire, vector};

/// Neighbours at work.
pub struct Neighbours {
    method: Arc<dyn DynDecentralised>,
    graphs: Graphs,
    graph: Graph,
    keys: StageKeys,
    federation: Arc<Federation>,
    /// Who takes part, in id order: places of a graph and of `nodes` mean these.
    members: Vec<ClientId>,
    nodes: Vec<Opaque>,
    round: u32,
    start_magnitude: f64,
    tallies: Vec<Tally>,
    traffic: Traffic,
}

impl Neighbours {
    /// Starts, or resumes where the stage was saved.
    pub fn open(
        method: Arc<dyn DynDecentralised>,
        graphs: Graphs,
        federation: Arc<Federation>,
        start: &Start<'_>,
    ) -> Result<Self> {
        let ids = (0..federation.names.len() as u32).map(ClientId);
        let members: Vec<ClientId> = ids.filter(|id| federation.trains(*id)).collect();
        if graphs.clients() != members.len() {
            return Err(Error::config(format!(
                "a graph over {} clients for {}",
                graphs.clients(),
                members.len()
            )));
        }
        let mut neighbours = Self {
            graph: graphs.graph(&start.keys)?,
            method,
            graphs,
            keys: start.keys,
            members,
            nodes: Vec::new(),
            round: 0,
            start_magnitude: 0.0,
            tallies: vec![Tally::default(); federation.names.len()],
            traffic: Traffic::default(),
            federation,
        };
        match start.saved {
            Some(saved) => neighbours.load(saved)?,
            None => neighbours.enrol()?,
        }
        Ok(neighbours)
    }

    /// Everyone tells all others its summary, and starts from what follows from them.
    fn enrol(&mut self) -> Result<()> {
        let summary =
            |id: ClientId| Ok((id, self.method.enroll(self.data(id), self.keys.enrol(id))?));
        let roster: Vec<(ClientId, Vec<u8>)> = self.each(|_, id| summary(id))?;
        let common = self.method.agree(&roster, self.keys.start())?;
        self.nodes =
            self.each(|_, id| self.method.start(&common, self.data(id), self.keys.enrol(id)))?;
        let others = roster.len() as u64 - 1;
        let total: u64 = roster.iter().map(|(_, summary)| summary.len() as u64).sum();
        for (id, summary) in &roster {
            let (bytes, tally) = (summary.len() as u64, &mut self.tallies[id.0 as usize]);
            tally.bytes_up += others * bytes;
            tally.bytes_down += total - bytes;
        }
        self.traffic.up += others * total;
        self.start_magnitude = self.magnitude()?;
        Ok(())
    }

    fn load(&mut self, saved: &SavedStage) -> Result<()> {
        if saved.state.enrolled() != self.members
            || saved.tallies.len() != self.federation.names.len()
        {
            let (held, there) = (saved.state.enrolled().len(), self.members.len());
            return Err(Error::storage(
                "checkpoint",
                format!("it holds {held} clients, the data have {there}"),
            ));
        }
        let records = saved.state.records().iter().flatten();
        self.nodes = records.map(|bytes| self.method.load(bytes)).collect::<Result<_>>()?;
        self.round = saved.state.round();
        self.start_magnitude = f64::from_bytes(saved.state.global())?;
        self.tallies.clone_from(&saved.tallies);
        self.traffic = saved.traffic;
        Ok(())
    }

    fn data(&self, id: ClientId) -> &Opaque {
        &self.federation.data[id.0 as usize]
    }

    fn name(&self, error: Error, id: ClientId) -> Error {
        name(error, &self.federation.names, id)
    }

    /// Everyone who takes part, by place and id, in parallel; the failure of the lowest id.
    fn each<T: Send>(&self, work: impl Fn(usize, ClientId) -> Result<T> + Sync) -> Result<Vec<T>> {
        let all = self.members.par_iter().enumerate();
        let named = all.map(|(place, id)| work(place, *id).map_err(|e| self.name(e, *id)));
        first_failure(named.collect())
    }

    fn magnitude(&self) -> Result<f64> {
        Ok(vector::largest(self.each(|place, _| self.method.magnitude(&self.nodes[place]))?))
    }

    /// One round: local steps, messages, mixing.
    fn exchange(&mut self) -> Result<()> {
        let keys = self.keys.exchange(self.round);
        let nodes = std::mem::take(&mut self.nodes);
        let stepped = nodes.into_par_iter().zip(&self.members).map(|(node, id)| {
            let step = || {
                let node = self.method.local_step(node, self.data(*id), keys.local(*id))?;
                let message = self.method.emit(&node)?;
                Ok((node, message))
            };
            step().map_err(|e| self.name(e, *id))
        });
        let stepped: Vec<(Opaque, Message)> = first_failure(stepped.collect())?;
        let (nodes, messages): (Vec<Opaque>, Vec<Message>) = stepped.into_iter().unzip();
        let mixing = self.graphs.of_exchange(&self.keys, self.round)?;
        let place = |at: usize| ClientId(at as u32);
        let mixed = nodes.into_par_iter().enumerate().map(|(at, node)| {
            let near = mixing.neighbours(place(at)).iter();
            let received: Vec<(f64, &Message)> =
                near.map(|(from, weight)| (*weight, &messages[from.0 as usize])).collect();
            let mixed = self.method.mix(node, mixing.own(place(at)), &received);
            mixed.map_err(|e| self.name(e, self.members[at]))
        });
        self.nodes = first_failure(mixed.collect())?;
        for (at, id) in self.members.iter().enumerate() {
            for (from, _) in mixing.neighbours(place(at)) {
                let bytes = messages[from.0 as usize].len() as u64;
                self.tallies[self.members[from.0 as usize].0 as usize].bytes_up += bytes;
                self.tallies[id.0 as usize].bytes_down += bytes;
                self.traffic.up += bytes;
            }
            self.tallies[id.0 as usize].rounds += 1;
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
        self.members.clone()
    }

    fn step(&mut self) -> Result<Step> {
        if self.round >= self.method.rounds() {
            return Ok(Step::Over);
        }
        if self.nodes.len() != self.members.len() {
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
        let mean = self.method.mean(&self.nodes)?;
        let answers = self.each(|place, id| {
            Ok((id, self.method.answer(&self.nodes[place], &mean, self.data(id))?))
        })?;
        let unseen = self.federation.evaluated();
        let adapted = unseen.par_iter().map(|id| {
            let answer = self.method.answer(&mean, &mean, self.data(*id));
            Ok((*id, answer.map_err(|e| self.name(e, *id))?))
        });
        let adapted: Vec<(ClientId, Vec<u8>)> = first_failure(adapted.collect())?;
        let mut metrics = self.method.conclude(&self.graph, &answers)?;
        if !adapted.is_empty() {
            metrics.extend(self.method.conclude_unseen(&adapted)?);
        }
        let mut own = vec![Vec::new(); self.federation.names.len()];
        let mut answered = Vec::new();
        for (id, answer) in answers.iter().chain(&adapted) {
            self.traffic.eval += answer.len() as u64;
            own[id.0 as usize] = self.method.own(answer)?.into_iter().map(Into::into).collect();
            answered.push(*id);
        }
        answered.sort_unstable();
        Ok(Some(Evaluated { metrics, own, answered }))
    }

    fn names(&self) -> Vec<String> {
        self.federation.names.clone()
    }

    fn tallies(&self) -> &[Tally] {
        &self.tallies
    }

    fn traffic(&self) -> Traffic {
        self.traffic
    }

    fn save(&self) -> Result<SavedStage> {
        let mut records = vec![None; self.federation.names.len()];
        let nodes = self.each(|place, _| self.method.save(&self.nodes[place]))?;
        for (id, node) in self.members.iter().zip(nodes) {
            records[id.0 as usize] = Some(node);
        }
        let global = self.start_magnitude.to_bytes();
        Ok(SavedStage {
            state: Saved::new(self.round, self.round, global, records),
            clients: Vec::new(),
            tallies: self.tallies.clone(),
            traffic: self.traffic,
        })
    }

    fn change(&self, moved: &[ClientId]) -> Result<Change> {
        let record = |id: &ClientId| {
            let place = self.members.binary_search(id);
            let place = place.map_err(|_| Error::internal("a client moved that takes no part"))?;
            Ok((*id, self.method.save(&self.nodes[place])?))
        };
        let (round, global) = (self.round, self.start_magnitude.to_bytes());
        Ok(Change::new(round, round, global, moved.iter().map(record).collect::<Result<_>>()?))
    }

    fn artifact(&self) -> Result<Artifact> {
        self.method.artifact(&self.method.mean(&self.nodes)?)
    }

    fn client_artifacts(
        &self,
        sink: &mut dyn FnMut(ClientId, Artifact) -> Result<()>,
    ) -> Result<()> {
        for (id, node) in self.members.iter().zip(&self.nodes) {
            if let Some(own) = self.method.client_artifact(node, self.data(*id))? {
                sink(*id, own)?;
            }
        }
        Ok(())
    }
}
