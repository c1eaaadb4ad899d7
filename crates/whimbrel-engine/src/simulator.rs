//! A whole federation on this machine: the round machine, and every client beside it.

use crate::keys::StageKeys;
use crate::machine::{Exchange, Machine, Shard};
use crate::participation::{Faults, Invited, Participation};
use crate::runner::{Evaluated, Runner, SavedStage, Step};
use rayon::prelude::*;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use whimbrel_core::method::Metric;
use whimbrel_core::{ClientId, DynMethod, Error, Opaque, Part, Result};

pub use crate::runner::{Done, Tally, Traffic};

/// The clients of a simulation.
pub struct Federation {
    /// Names, sorted; a client's id is its rank.
    pub names: Vec<String>,
    /// Each client's data, bound by the method.
    pub data: Vec<Opaque>,
}

/// A method at work on a federation.
pub struct Simulator<'m> {
    method: &'m dyn DynMethod,
    machine: Machine<'m>,
    federation: &'m Federation,
    clients: Vec<Opaque>,
    waiting: Vec<Waiting>,
    faults: Faults,
    tallies: Vec<Tally>,
    traffic: Traffic,
    /// An exchange failed half-way: some clients moved and the server did not.
    broken: bool,
}

/// A client that joins later, and what it will say then.
struct Waiting {
    id: ClientId,
    summary: Vec<u8>,
}

/// What one thread did in an exchange, up to its first failure.
struct Share<'m> {
    shard: Shard<'m>,
    failure: Option<(usize, Error)>,
}

/// A client at work in an exchange: what both ends keep of it moves in place once its upload is
/// accepted, so that only clients being worked on exist twice.
struct Slot {
    client: Opaque,
    peer: Opaque,
    accepted: bool,
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
        check_faults(&faults, federation)?;
        let ids: Vec<ClientId> = (0..federation.data.len() as u32).map(ClientId).collect();
        let enrolled = enrol(method, federation, keys, &ids)?;
        let mut roster = Vec::new();
        let mut waiting = Vec::new();
        for (id, (_, summary)) in ids.iter().zip(&enrolled) {
            if faults.is_late(*id) {
                waiting.push(Waiting { id: *id, summary: summary.clone() });
            } else {
                roster.push((*id, &summary[..]));
            }
        }
        let machine = Machine::start(method, keys, participation, &roster)
            .map_err(|e| rename(e, federation))?;
        let mut tallies = vec![Tally::default(); enrolled.len()];
        let mut traffic = Traffic::default();
        for (id, summary) in roster {
            count_summary(&mut tallies, &mut traffic, id, summary);
        }
        let clients = enrolled.into_iter().map(|(client, _)| client).collect();
        Ok(Self {
            method,
            machine,
            federation,
            clients,
            waiting,
            faults,
            tallies,
            traffic,
            broken: false,
        })
    }

    /// Runs one exchange; none when the method is done.
    pub fn step(&mut self) -> Result<Option<Done>> {
        self.check_whole()?;
        // A run that is over takes nobody in any more.
        if self.machine.next_is_round()?.is_none() {
            return Ok(None);
        }
        let joined = self.let_in()?;
        let Some(exchange) = self.machine.open()? else { return Ok(None) };
        let (number, round) = (exchange.number, exchange.round);
        if self.faults.replay.as_ref().is_some_and(|journal| !journal.holds(number)) {
            return Err(Error::storage("journal", format!("it ends before exchange {number}")));
        }
        let at = round.unwrap_or(self.machine.round());
        let cohort: Vec<ClientId> = exchange.cohort.iter().map(|c| c.id).collect();
        let slots = self.open_slots(&cohort)?;
        let shards = self.work(&exchange, &slots).map_err(|e| e.in_round(at));
        self.close_slots(&cohort, slots, round.is_some());
        self.broken = true;
        let accepted = self.machine.close(exchange, shards?)?;
        self.broken = false;
        let those = |condition: &dyn Fn(ClientId) -> bool| {
            cohort.iter().copied().filter(|id| condition(*id)).collect()
        };
        let unsent = those(&|id| self.faults.is_unsent(number, id));
        let unheard = those(&|id| self.faults.is_unheard(number, id));
        Ok(Some(Done { exchange: number, round, joined, cohort, accepted, unsent, unheard }))
    }

    /// Asks every enrolled client the method's evaluation; returns the metrics, and each client's
    /// own loss by id.
    pub fn evaluate(&mut self) -> Result<(Vec<Metric>, Vec<Option<f64>>)> {
        let everyone = self.machine.enrolled();
        self.ask(&everyone)
    }

    fn ask(&mut self, ids: &[ClientId]) -> Result<(Vec<Metric>, Vec<Option<f64>>)> {
        let ask = self.method.ask(self.machine.server())?;
        let round = self.machine.round();
        let answers = ids.par_iter().map(|id| {
            let i = id.0 as usize;
            let answer = self.method.answer(&self.clients[i], &ask, &self.federation.data[i]);
            answer.map_err(|e| name(e, self.federation, *id).in_round(round))
        });
        let answers: Vec<Vec<u8>> = first_failure(answers.collect())?;
        let mut losses = vec![None; self.clients.len()];
        for (id, answer) in ids.iter().zip(&answers) {
            self.traffic.eval += (ask.len() + answer.len()) as u64;
            losses[id.0 as usize] = self.method.loss(answer)?;
        }
        let mut each = ids.iter().copied().zip(answers.iter().map(|a| &a[..]));
        Ok((self.method.conclude(self.machine.server(), &mut each)?, losses))
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
    pub fn save(&self) -> Result<SavedStage> {
        self.check_whole()?;
        let clients = self.clients.par_iter().map(|c| self.method.save(Part::Client, c));
        Ok(SavedStage {
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
        saved: &SavedStage,
    ) -> Result<Self> {
        let count = federation.data.len();
        let fits = [saved.clients.len(), saved.tallies.len()] == [count; 2]
            && saved.machine.ids_end() <= count;
        if !fits {
            return Err(Error::storage(
                "checkpoint",
                format!("it holds {} clients, the data have {count}", saved.clients.len()),
            ));
        }
        check_faults(&faults, federation)?;
        let machine = Machine::load(method, keys, participation, &saved.machine)?;
        // Whoever still waits says again what it said when the run began: its key is the same.
        let outside: Vec<ClientId> = (0..count as u32)
            .map(ClientId)
            .filter(|id| faults.is_late(*id) && machine.peer(*id).is_none())
            .collect();
        let enrolled = enrol(method, federation, keys, &outside)?;
        let waiting = outside
            .into_iter()
            .zip(enrolled)
            .map(|(id, (_, summary))| Waiting { id, summary })
            .collect();
        let clients = saved.clients.par_iter().map(|bytes| method.load(Part::Client, bytes));
        Ok(Self {
            method,
            machine,
            federation,
            clients: clients.collect::<Result<_>>()?,
            waiting,
            faults,
            tallies: saved.tallies.clone(),
            traffic: saved.traffic,
            broken: false,
        })
    }

    /// Admits late joiners whose round has come, in id order.
    fn let_in(&mut self) -> Result<Vec<ClientId>> {
        let (exchange, round) = (self.machine.exchanges(), self.machine.round() + 1);
        let due = |waiting: &mut Waiting| self.faults.lets_in(waiting.id, exchange, round);
        let due: Vec<Waiting> = self.waiting.extract_if(.., due).collect();
        for joining in &due {
            self.machine
                .admit(joining.id, &joining.summary)
                .map_err(|e| rename(e, self.federation))?;
            count_summary(&mut self.tallies, &mut self.traffic, joining.id, &joining.summary);
        }
        Ok(due.into_iter().map(|joining| joining.id).collect())
    }

    fn check_whole(&self) -> Result<()> {
        if self.broken {
            return Err(Error::internal("a simulation goes on after an exchange that failed"));
        }
        Ok(())
    }

    fn open_slots(&mut self, cohort: &[ClientId]) -> Result<Vec<Mutex<Slot>>> {
        let open = |id: &ClientId| {
            let peer = self.machine.lend(*id)?;
            let client = std::mem::replace(&mut self.clients[id.0 as usize], Box::new(()));
            Ok(Mutex::new(Slot { client, peer, accepted: false, bytes_up: 0, bytes_down: 0 }))
        };
        cohort.iter().map(open).collect()
    }

    fn close_slots(&mut self, cohort: &[ClientId], slots: Vec<Mutex<Slot>>, is_round: bool) {
        for (id, slot) in cohort.iter().zip(slots) {
            let slot = slot.into_inner().unwrap_or_else(PoisonError::into_inner);
            self.machine.take_back(*id, slot.peer);
            self.clients[id.0 as usize] = slot.client;
            let tally = &mut self.tallies[id.0 as usize];
            tally.rounds += u32::from(slot.accepted && is_round);
            tally.bytes_up += slot.bytes_up;
            tally.bytes_down += slot.bytes_down;
            self.traffic.up += slot.bytes_up;
            self.traffic.down += slot.bytes_down;
        }
    }

    /// The cohort's work: every thread takes the next client until none is left, and gathers in a
    /// shard of its own.
    fn work(&self, exchange: &Exchange, slots: &[Mutex<Slot>]) -> Result<Vec<Shard<'m>>> {
        let next = AtomicUsize::new(0);
        let gather = || -> Result<Option<Share<'m>>> {
            let mut own = None;
            loop {
                let at = next.fetch_add(1, Ordering::Relaxed);
                let Some(slot) = slots.get(at) else { return Ok(own) };
                // A thread that finds no client makes no fold.
                let share = match &mut own {
                    Some(share) => share,
                    None => own.insert(Share { shard: self.machine.shard()?, failure: None }),
                };
                let mut slot = slot.lock().unwrap_or_else(PoisonError::into_inner);
                let invited = exchange.cohort[at];
                if let Err(error) = self.one_client(exchange, invited, &mut slot, &mut share.shard)
                {
                    // Nobody begins another client.
                    next.store(slots.len(), Ordering::Relaxed);
                    share.failure = Some((at, error));
                    return Ok(own);
                }
            }
        };
        let shares = if slots.len() < 2 || rayon::current_num_threads() == 1 {
            vec![gather()]
        } else {
            rayon::broadcast(|_| gather())
        };
        let shares = shares.into_iter().collect::<Result<Vec<_>>>()?;
        let mut shares: Vec<Share<'m>> = shares.into_iter().flatten().collect();
        // Clients are begun in order, so everyone before the first failure was heard: which failure
        // is reported does not depend on the threads.
        let failures = shares.iter_mut().filter_map(|share| share.failure.take());
        if let Some((_, error)) = failures.min_by_key(|(at, _)| *at) {
            return Err(error);
        }
        Ok(shares.into_iter().map(|share| share.shard).collect())
    }

    fn one_client(
        &self,
        exchange: &Exchange,
        invited: Invited,
        slot: &mut Slot,
        shard: &mut Shard<'m>,
    ) -> Result<()> {
        let id = invited.id;
        let data = &self.federation.data[id.0 as usize];
        let (peer, down) = self.machine.message_from(exchange, &slot.peer)?;
        if !self.faults.is_unsent(exchange.number, id) {
            slot.bytes_down = down.len() as u64;
        }
        if self.faults.is_unheard(exchange.number, id) {
            return Ok(());
        }
        let (client, up) = self
            .method
            .local_step(&slot.client, &down, data, exchange.keys.local(id))
            .map_err(|e| name(e, self.federation, id))?;
        slot.bytes_up = up.len() as u64;
        if !self.faults.loses(exchange.number, exchange.round, id, exchange.keys.loss()) {
            shard.accept_lent(invited, &peer, &up).map_err(|e| name(e, self.federation, id))?;
            (slot.client, slot.peer, slot.accepted) = (client, peer, true);
        }
        Ok(())
    }
}

impl<'m> Runner<'m> for Simulator<'m> {
    fn machine(&self) -> &Machine<'m> {
        &self.machine
    }

    fn step(&mut self) -> Result<Step> {
        Ok(Simulator::step(self)?.map_or(Step::Over, Step::Exchanged))
    }

    /// Both ends of a simulation moved in the step: they are saved together.
    fn acknowledge(&mut self) -> Result<()> {
        Ok(())
    }

    fn evaluate(&mut self) -> Result<Option<Evaluated>> {
        let (round, mut answered) = (self.machine.round(), self.machine.enrolled());
        answered.retain(|id| self.faults.answers(round, *id));
        if answered.is_empty() {
            return Ok(None);
        }
        let (metrics, losses) = self.ask(&answered)?;
        Ok(Some(Evaluated { metrics, losses, answered }))
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
        Simulator::save(self)
    }
}

/// First states and summaries of these clients.
fn enrol(
    method: &dyn DynMethod,
    federation: &Federation,
    keys: StageKeys,
    ids: &[ClientId],
) -> Result<Vec<(Opaque, Vec<u8>)>> {
    let each = ids.par_iter().map(|id| {
        let enrolled = method.enroll(&federation.data[id.0 as usize], keys.enrol(*id));
        enrolled.map_err(|e| name(e, federation, *id))
    });
    first_failure(each.collect())
}

/// All results, or the failure of the lowest id: which one is reported does not depend on threads.
fn first_failure<T>(results: Vec<Result<T>>) -> Result<Vec<T>> {
    results.into_iter().collect()
}

fn check_faults(faults: &Faults, federation: &Federation) -> Result<()> {
    let clients = federation.data.len();
    match faults.late.keys().find(|id| id.0 as usize >= clients) {
        None => Ok(()),
        Some(id) => Err(Error::config(format!(
            "client {id} is to join late, and there are only {clients} clients"
        ))),
    }
}

fn count_summary(tallies: &mut [Tally], traffic: &mut Traffic, id: ClientId, summary: &[u8]) {
    tallies[id.0 as usize].bytes_up += summary.len() as u64;
    traffic.up += summary.len() as u64;
}

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
