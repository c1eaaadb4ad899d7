//! A federation without a server, on this machine: neighbours exchange and mix.
//!
//! [`Neighbours`] is a [`Runner`] like any other, so loop, folder, journal, resume and report are
//! the same. Every client takes part in every round, except those that are only evaluated: they get
//! the mean of all states. A message counts as bytes up for its sender, once per neighbour, and as
//! bytes down for its receiver; summaries go to everyone. The run's traffic counts a message once,
//! as up.

use crate::keys::StageKeys;
use crate::machine::check_growth;
use crate::runner::{Done, Evaluated, Protocol, Runner, SavedStage, StageState, Start, Step};
use crate::runner_state::{Change, Saved};
use crate::simulator::{Federation, first_failure, name};
use crate::topology::Graphs;
use rayon::prelude::*;
use std::sync::Arc;
use whimbrel_core::decentralised::{Decentralised, Graph};
use whimbrel_core::method::{Artifact, ClientGroup};
use whimbrel_core::{Bound, ClientId, Error, Message, Opaque, Result, Wire, vector};

/// The runner of a decentralised method.
pub struct Neighbours {
    state: StageState<Nodes>,
    graphs: Graphs,
    graph: Graph,
    keys: StageKeys,
    federation: Arc<Federation>,
}

/// The state of each client that takes part.
struct Nodes {
    method: Arc<dyn Decentralised>,
    /// Clients in id order: places in a graph and in `states` refer to these.
    members: Vec<ClientId>,
    states: Vec<Opaque>,
    /// Number of clients, including those that are only evaluated.
    clients: usize,
    round: u32,
    start_magnitude: f64,
}

impl Protocol for Nodes {
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

    fn artifact(&self) -> Result<Artifact> {
        self.method.artifact(&self.method.mean(&self.states)?)
    }

    fn save(&self) -> Result<Saved> {
        let mut records = vec![None; self.clients];
        for (id, state) in self.members.iter().zip(&self.states) {
            records[id.0 as usize] = Some(state.save());
        }
        Ok(Saved::new(self.round, self.round, self.start_magnitude.to_bytes(), records))
    }

    fn change(&self, moved: &[ClientId]) -> Result<Change> {
        let record = |id: &ClientId| {
            let place = self.members.binary_search(id);
            let place =
                place.map_err(|_| Error::internal("a step of a client outside of the cohort"))?;
            Ok((*id, self.states[place].save()))
        };
        let (round, global) = (self.round, self.start_magnitude.to_bytes());
        Ok(Change::new(round, round, global, moved.iter().map(record).collect::<Result<_>>()?))
    }
}

impl Neighbours {
    /// Starts, or resumes a saved stage.
    pub fn open(
        method: Arc<dyn Decentralised>,
        graphs: Graphs,
        federation: Arc<Federation>,
        start: &Start<'_>,
    ) -> Result<Self> {
        let clients = federation.names.len();
        let ids = (0..clients as u32).map(ClientId);
        let members: Vec<ClientId> = ids.filter(|id| federation.trains(*id)).collect();
        if graphs.clients() != members.len() {
            return Err(Error::config(format!(
                "a graph over {} clients for {}",
                graphs.clients(),
                members.len()
            )));
        }
        let (states, round, start_magnitude) = (Vec::new(), 0, 0.0);
        let nodes = Nodes { method, members, states, clients, round, start_magnitude };
        let mut neighbours = Self {
            state: StageState::new(nodes, clients),
            graph: graphs.graph(&start.keys)?,
            graphs,
            keys: start.keys,
            federation,
        };
        match start.saved {
            Some(saved) => neighbours.load(saved)?,
            None => neighbours.enrol()?,
        }
        Ok(neighbours)
    }

    /// Every client sends its summary to all others, and starts from all summaries.
    fn enrol(&mut self) -> Result<()> {
        let method = self.method().clone();
        let summary = |id: ClientId| Ok((id, method.enroll(self.data(id), self.keys.enrol(id))?));
        let roster: Vec<(ClientId, Vec<u8>)> = self.each(|_, id| summary(id))?;
        let common = method.agree(&roster, self.keys.start())?;
        self.state.machine.states =
            self.each(|_, id| method.start(&common, self.data(id), self.keys.enrol(id)))?;
        let others = roster.len() as u64 - 1;
        let total: u64 = roster.iter().map(|(_, summary)| summary.len() as u64).sum();
        for (id, summary) in &roster {
            let (bytes, tally) = (summary.len() as u64, &mut self.state.tallies[id.0 as usize]);
            tally.bytes_up += others * bytes;
            tally.bytes_down += total - bytes;
        }
        self.state.traffic.up += others * total;
        self.state.machine.start_magnitude = self.magnitude()?;
        Ok(())
    }

    fn load(&mut self, saved: &SavedStage) -> Result<()> {
        let nodes = &mut self.state.machine;
        let held = saved.state.enrolled();
        if held != nodes.members || saved.tallies.len() != nodes.clients {
            let (held, there) = (held.len(), nodes.members.len());
            let what = format!("it holds {held} clients, the data have {there}");
            return Err(Error::storage("checkpoint", what));
        }
        let records = saved.state.records().iter().flatten();
        nodes.states = records.map(|bytes| nodes.method.load(bytes)).collect::<Result<_>>()?;
        nodes.round = saved.state.round();
        nodes.start_magnitude = f64::from_bytes(saved.state.global())?;
        self.state.tallies.clone_from(&saved.tallies);
        self.state.traffic = saved.traffic;
        Ok(())
    }

    fn method(&self) -> &Arc<dyn Decentralised> {
        &self.state.machine.method
    }

    fn members(&self) -> &[ClientId] {
        &self.state.machine.members
    }

    fn data(&self, id: ClientId) -> &Bound {
        &self.federation.data[id.0 as usize]
    }

    fn name(&self, error: Error, id: ClientId) -> Error {
        name(error, &self.federation.names, id)
    }

    /// Calls `work` for every client that takes part, by place and id, in parallel; the failure of
    /// the lowest id.
    fn each<T: Send>(&self, work: impl Fn(usize, ClientId) -> Result<T> + Sync) -> Result<Vec<T>> {
        let all = self.members().par_iter().enumerate();
        let named = all.map(|(place, id)| work(place, *id).map_err(|e| self.name(e, *id)));
        first_failure(named.collect())
    }

    fn magnitude(&self) -> Result<f64> {
        let states = &self.state.machine.states;
        Ok(vector::largest(self.each(|place, _| self.method().magnitude(&states[place]))?))
    }

    /// One round: local steps, messages, mixing.
    fn exchange(&mut self) -> Result<()> {
        let round = self.state.machine.round;
        let keys = self.keys.exchange(round);
        let states = std::mem::take(&mut self.state.machine.states);
        let stepped = states.into_par_iter().zip(self.members()).map(|(node, id)| {
            let step = self.method().local_step(node, self.data(*id), keys.local(*id));
            step.map_err(|e| self.name(e, *id))
        });
        let stepped: Vec<(Opaque, Message)> = first_failure(stepped.collect())?;
        let (states, messages): (Vec<Opaque>, Vec<Message>) = stepped.into_iter().unzip();
        let mixing = self.graphs.of_exchange(&self.keys, round)?;
        let place = |at: usize| ClientId(at as u32);
        let mixed = states.into_par_iter().enumerate().map(|(at, node)| {
            let near = mixing.neighbours(place(at)).iter();
            let received: Vec<(f64, &Message)> =
                near.map(|(from, weight)| (*weight, &messages[from.0 as usize])).collect();
            let mixed = self.method().mix(node, mixing.own(place(at)), &received);
            mixed.map_err(|e| self.name(e, self.members()[at]))
        });
        self.state.machine.states = first_failure(mixed.collect())?;
        for (at, id) in self.members().to_vec().into_iter().enumerate() {
            for (from, _) in mixing.neighbours(place(at)) {
                let (sender, bytes) = (from.0 as usize, messages[from.0 as usize].len() as u64);
                self.state.count_up(self.members()[sender], bytes);
                self.state.tallies[id.0 as usize].bytes_down += bytes;
            }
            self.state.tallies[id.0 as usize].rounds += 1;
        }
        self.state.machine.round += 1;
        check_growth(self.magnitude()?, &mut self.state.machine.start_magnitude)
    }
}

impl Runner for Neighbours {
    fn state(&self) -> &StageState {
        &self.state
    }

    fn names(&self) -> Vec<String> {
        self.federation.names.clone()
    }

    fn step(&mut self) -> Result<Step> {
        self.state.check_whole()?;
        let exchange = self.state.machine.round;
        if exchange >= self.method().rounds() {
            return Ok(Step::Over);
        }
        self.state.broken = true;
        self.exchange().map_err(|e| e.in_round(exchange + 1))?;
        self.state.broken = false;
        let everyone = self.members().to_vec();
        Ok(Step::Exchanged(Done {
            exchange,
            round: Some(exchange + 1),
            cohort: everyone.clone(),
            accepted: everyone,
            ..Done::default()
        }))
    }

    fn evaluate(&mut self) -> Result<Option<Evaluated>> {
        let (method, states) = (self.method(), &self.state.machine.states);
        let mean = method.mean(states)?;
        let answers =
            self.each(|place, id| Ok((id, method.answer(&states[place], &mean, self.data(id))?)))?;
        let unseen = self.federation.evaluated();
        let adapted = unseen.par_iter().map(|id| {
            let answer = method.answer(&mean, &mean, self.data(*id));
            Ok((*id, answer.map_err(|e| self.name(e, *id))?))
        });
        let adapted: Vec<(ClientId, Vec<u8>)> = first_failure(adapted.collect())?;
        let conclude = |answers, group| method.conclude(&self.graph, answers, group);
        let mut metrics = conclude(&answers, ClientGroup::Trained)?;
        if !adapted.is_empty() {
            metrics.extend(conclude(&adapted, ClientGroup::Unseen)?);
        }
        let mut own = vec![Vec::new(); self.federation.names.len()];
        let (mut answered, mut bytes) = (Vec::new(), 0);
        for (id, answer) in answers.iter().chain(&adapted) {
            bytes += answer.len() as u64;
            own[id.0 as usize] = method.own(answer)?.into_iter().map(Into::into).collect();
            answered.push(*id);
        }
        self.state.traffic.eval += bytes;
        answered.sort_unstable();
        Ok(Some(Evaluated { metrics, own, answered }))
    }

    fn client_artifacts(
        &self,
        sink: &mut dyn FnMut(ClientId, Artifact) -> Result<()>,
    ) -> Result<()> {
        for (id, state) in self.members().iter().zip(&self.state.machine.states) {
            if let Some(own) = self.method().client_artifact(state, self.data(*id))? {
                sink(*id, own)?;
            }
        }
        Ok(())
    }
}
