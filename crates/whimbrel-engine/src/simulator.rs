//! A whole federation on this machine: the round machine, and every client beside it.

use crate::keys::StageKeys;
use crate::machine::{Exchange, Machine, Saved, Shard};
use crate::participation::{Faults, Invited, Participation};
use rayon::prelude::*;
use std::sync::atomic::{AtomicUsize, Ordering};
use whimbrel_core::method::Metric;
use whimbrel_core::{ClientId, DynMethod, Error, Opaque, Part, Result, wire};

/// The clients of a simulation.
pub struct Federation {
    /// Names, sorted; a client's id is its rank.
    pub names: Vec<String>,
    /// Each client's data, bound by the method.
    pub data: Vec<Opaque>,
}

/// Bytes and rounds of one client so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Tally {
    /// Rounds in which its upload was accepted.
    pub rounds: u32,
    /// Bytes it sent (a lost upload was sent too).
    pub bytes_up: u64,
    /// Bytes sent to it.
    pub bytes_down: u64,
}

/// Bytes of the whole federation so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Traffic {
    /// Clients to server, enrolment included.
    pub up: u64,
    /// Server to clients.
    pub down: u64,
    /// Both ways, for evaluations alone.
    pub eval: u64,
}

wire!(Tally { rounds, bytes_up, bytes_down });
wire!(Traffic { up, down, eval });

/// A method at work on a federation.
pub struct Simulator<'m> {
    method: &'m dyn DynMethod,
    machine: Machine<'m>,
    federation: &'m Federation,
    clients: Vec<Opaque>,
    waiting: Vec<(ClientId, u32, Vec<u8>)>,
    faults: Faults,
    tallies: Vec<Tally>,
    traffic: Traffic,
}

/// What happened in one exchange.
#[derive(Clone, PartialEq, Debug)]
pub struct Done {
    /// Its number, openings included, from zero.
    pub exchange: u32,
    /// The round it was, from one; none for an opening.
    pub round: Option<u32>,
    /// Who joined just before it.
    pub joined: Vec<ClientId>,
    /// Who was asked.
    pub cohort: Vec<ClientId>,
    /// Whose upload was accepted.
    pub accepted: Vec<ClientId>,
}

/// One client's work in an exchange, staged until its upload is accepted.
struct Staged {
    id: ClientId,
    client: Option<Opaque>,
    bytes_up: u64,
    bytes_down: u64,
}

impl<'m> Simulator<'m> {
    /// Enrols everyone and starts.
    pub fn start(
        method: &'m dyn DynMethod,
        federation: &'m Federation,
        keys: StageKeys,
        participation: Participation,
        faults: Faults,
    ) -> Result<Self> {
        let enrolled: Vec<(Opaque, Vec<u8>)> = federation
            .data
            .par_iter()
            .enumerate()
            .map(|(i, data)| {
                let id = ClientId(i as u32);
                method.enroll(data, keys.enrol(id)).map_err(|e| name(e, federation, id))
            })
            .collect::<Result<_>>()?;
        let mut tallies = vec![Tally::default(); enrolled.len()];
        let mut traffic = Traffic::default();
        for (tally, (_, summary)) in tallies.iter_mut().zip(&enrolled) {
            tally.bytes_up += summary.len() as u64;
            traffic.up += summary.len() as u64;
        }
        let (clients, summaries): (Vec<_>, Vec<_>) = enrolled.into_iter().unzip();
        let ids = || (0..summaries.len() as u32).map(ClientId);
        let roster: Vec<(ClientId, &[u8])> = ids()
            .filter(|id| !faults.late.contains_key(id))
            .map(|id| (id, &summaries[id.0 as usize][..]))
            .collect();
        let machine = Machine::start(method, keys, participation, &roster)
            .map_err(|e| rename(e, federation))?;
        let waiting = faults
            .late
            .iter()
            .map(|(id, round)| (*id, *round, summaries[id.0 as usize].clone()))
            .collect();
        Ok(Self { method, machine, federation, clients, waiting, faults, tallies, traffic })
    }

    /// Runs one exchange; none when the method is done.
    pub fn step(&mut self) -> Result<Option<Done>> {
        let joined = self.let_in()?;
        let Some(exchange) = self.machine.open()? else { return Ok(None) };
        let (staged, shards) = self.work(&exchange)?;
        let (number, round) = (exchange.number, exchange.round);
        let cohort: Vec<ClientId> = exchange.cohort.iter().map(|c| c.id).collect();
        let accepted = self.machine.close(exchange, shards)?;
        for work in staged {
            let tally = &mut self.tallies[work.id.0 as usize];
            tally.bytes_up += work.bytes_up;
            tally.bytes_down += work.bytes_down;
            self.traffic.up += work.bytes_up;
            self.traffic.down += work.bytes_down;
            if let Some(client) = work.client {
                tally.rounds += u32::from(round.is_some());
                self.clients[work.id.0 as usize] = client;
            }
        }
        Ok(Some(Done { exchange: number, round, joined, cohort, accepted }))
    }

    /// Asks every enrolled client the method's evaluation; returns the metrics, and each client's
    /// own loss by id.
    pub fn evaluate(&mut self) -> Result<(Vec<Metric>, Vec<Option<f64>>)> {
        let ask = self.method.ask(self.machine.server())?;
        let enrolled = self.machine.enrolled();
        let answers: Vec<Vec<u8>> = enrolled
            .par_iter()
            .map(|id| {
                let i = id.0 as usize;
                self.method.answer(&self.clients[i], &ask, &self.federation.data[i])
            })
            .collect::<Result<_>>()?;
        let mut losses = vec![None; self.clients.len()];
        for (id, answer) in enrolled.iter().zip(&answers) {
            self.traffic.eval += (ask.len() + answer.len()) as u64;
            losses[id.0 as usize] = self.method.loss(answer)?;
        }
        let mut each = enrolled.iter().copied().zip(answers.iter().map(|a| &a[..]));
        Ok((self.method.conclude(self.machine.server(), &mut each)?, losses))
    }

    /// The same figures again, where they were counted before.
    pub fn evaluate_uncounted(&mut self) -> Result<(Vec<Metric>, Vec<Option<f64>>)> {
        let traffic = self.traffic;
        let result = self.evaluate();
        self.traffic = traffic;
        result
    }

    /// The server's side.
    pub fn machine(&self) -> &Machine<'m> {
        &self.machine
    }

    /// What each client remembers, by id.
    pub fn clients(&self) -> &[Opaque] {
        &self.clients
    }

    /// Bytes and rounds of each client, by id.
    pub fn tallies(&self) -> &[Tally] {
        &self.tallies
    }

    /// Bytes so far.
    pub fn traffic(&self) -> Traffic {
        self.traffic
    }

    /// The whole simulation as bytes.
    pub fn save(&self) -> Result<SavedSimulation> {
        let clients = self.clients.par_iter().map(|c| self.method.save(Part::Client, c));
        Ok(SavedSimulation {
            machine: self.machine.save()?,
            clients: clients.collect::<Result<_>>()?,
            tallies: self.tallies.clone(),
            traffic: self.traffic,
        })
    }

    /// A simulation where it was saved.
    pub fn load(
        method: &'m dyn DynMethod,
        federation: &'m Federation,
        keys: StageKeys,
        participation: Participation,
        faults: Faults,
        saved: &SavedSimulation,
    ) -> Result<Self> {
        if saved.clients.len() != federation.data.len() {
            return Err(Error::internal("a checkpoint of another federation was loaded"));
        }
        let mut simulator = Self::start(method, federation, keys, participation.clone(), faults)?;
        simulator.machine = Machine::load(method, keys, participation, &saved.machine)?;
        let clients = saved.clients.par_iter().map(|bytes| method.load(Part::Client, bytes));
        simulator.clients = clients.collect::<Result<_>>()?;
        simulator.tallies.clone_from(&saved.tallies);
        simulator.traffic = saved.traffic;
        let inside = simulator.machine.enrolled();
        simulator.waiting.retain(|(id, _, _)| !inside.contains(id));
        Ok(simulator)
    }

    /// Admits late joiners whose round has come, in id order.
    fn let_in(&mut self) -> Result<Vec<ClientId>> {
        let next = self.machine.round() + 1;
        let (due, later) =
            std::mem::take(&mut self.waiting).into_iter().partition(|(_, round, _)| *round <= next);
        self.waiting = later;
        let due: Vec<(ClientId, u32, Vec<u8>)> = due;
        for (id, _, summary) in &due {
            self.machine.admit(*id, summary)?;
        }
        Ok(due.into_iter().map(|(id, _, _)| id).collect())
    }

    /// The cohort's work: every thread takes the next client until none is left, and gathers in a
    /// shard of its own.
    fn work(&self, exchange: &Exchange) -> Result<(Vec<Staged>, Vec<Shard<'m>>)> {
        let next = AtomicUsize::new(0);
        let gather = || -> Result<(Vec<Staged>, Shard<'m>)> {
            let mut shard = self.machine.shard()?;
            let mut staged = Vec::new();
            while let Some(invited) = exchange.cohort.get(next.fetch_add(1, Ordering::Relaxed)) {
                staged.push(self.one_client(exchange, *invited, &mut shard)?);
            }
            Ok((staged, shard))
        };
        let results = if exchange.cohort.len() < 2 || rayon::current_num_threads() == 1 {
            vec![gather()]
        } else {
            rayon::broadcast(|_| gather())
        };
        let (mut all_staged, mut shards) = (Vec::new(), Vec::new());
        for result in results {
            let (staged, shard) = result?;
            all_staged.extend(staged);
            shards.push(shard);
        }
        Ok((all_staged, shards))
    }

    fn one_client(
        &self,
        exchange: &Exchange,
        invited: Invited,
        shard: &mut Shard<'m>,
    ) -> Result<Staged> {
        let id = invited.id;
        let i = id.0 as usize;
        let (peer, down) = self.machine.message(exchange, id)?;
        let (client, up) = self
            .method
            .local_step(&self.clients[i], &down, &self.federation.data[i], exchange.keys.local(id))
            .map_err(|e| name(e, self.federation, id))?;
        let lost = self.faults.loses(exchange.number, exchange.round, id, exchange.keys.loss());
        if !lost {
            shard.accept(invited, peer, &up)?;
        }
        Ok(Staged {
            id,
            client: (!lost).then_some(client),
            bytes_up: up.len() as u64,
            bytes_down: down.len() as u64,
        })
    }
}

/// A simulation as bytes.
#[derive(Clone, PartialEq, Debug)]
pub struct SavedSimulation {
    /// The server's side.
    pub machine: Saved,
    /// Each client's state.
    pub clients: Vec<Vec<u8>>,
    /// Each client's counts.
    pub tallies: Vec<Tally>,
    /// Bytes so far.
    pub traffic: Traffic,
}

wire!(SavedSimulation { machine, clients, tallies, traffic });

/// Errors below the engine know ids; people know names.
fn name(error: Error, federation: &Federation, id: ClientId) -> Error {
    rename(error.of_client(id), federation)
}

fn rename(error: Error, federation: &Federation) -> Error {
    match error {
        Error::Data { what, client: Some(id) } => {
            let name = federation.names.get(id.0 as usize).map_or("?", |n| n);
            Error::data(format!("client `{name}`: {what}"))
        }
        other => other,
    }
}
