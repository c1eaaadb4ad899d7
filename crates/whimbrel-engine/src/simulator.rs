//! A federation on this machine: the round machine and all clients.

use crate::enrolment::enrol;
use crate::evaluation::Evaluation;
use crate::keys::StageKeys;
use crate::machine::{Exchange, Machine, Shard};
use crate::metrics::Figure;
use crate::participation::{Faults, Invited, Participation};
use crate::prefetch::prefetch;
use crate::runner::{Evaluated, Protocol, Runner, SavedStage, StageState, Step};
use rayon::prelude::*;
use std::borrow::Cow;
use std::ops::{DerefMut, Range};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use whimbrel_core::method::{Artifact, ClientGroup, Metric};
use whimbrel_core::{
    ClientId, DynDone, DynMethod, DynTask, Error, InTurn, Message, Opaque, Result, Spread,
    StateKind,
};

pub use crate::federation::{Duty, Federation};
pub(crate) use crate::federation::{name, rename};
pub use crate::runner::{Done, Tally, Traffic};

/// The runner of a simulation.
pub struct Simulator {
    method: Arc<dyn DynMethod>,
    state: StageState<Machine>,
    federation: Arc<Federation>,
    waiting: Vec<Waiting>,
    faults: Faults,
}

/// A late joiner with its summary.
struct Waiting {
    id: ClientId,
    summary: Vec<u8>,
}

/// The shard of one thread, and its first failure.
struct Share {
    shard: Shard,
    failure: Option<(usize, Error)>,
}

/// A client in an exchange. The states of both ends are replaced in place once its upload is
/// accepted, so that only clients in progress exist twice.
struct Slot {
    client: Opaque,
    peer: Opaque,
    accepted: bool,
    bytes_up: u64,
    bytes_down: u64,
}

impl Simulator {
    /// Enrols all clients and starts.
    pub fn start(
        method: Arc<dyn DynMethod>,
        federation: Arc<Federation>,
        keys: StageKeys,
        participation: Participation,
        faults: Faults,
    ) -> Result<Self> {
        check_faults(&faults, &federation)?;
        let ids: Vec<ClientId> = (0..federation.data.len() as u32).map(ClientId).collect();
        let enrolled = enrol(&*method, &federation, keys, &ids)?;
        let mut roster = Vec::new();
        let mut waiting = Vec::new();
        let ids = (0..enrolled.len() as u32).map(ClientId);
        for (id, (_, summary)) in ids.zip(&enrolled).filter(|(id, _)| federation.trains(*id)) {
            if faults.is_late(id) {
                waiting.push(Waiting { id, summary: summary.clone() });
            } else {
                roster.push((id, &summary[..]));
            }
        }
        let machine = Machine::start(method.clone(), keys, participation, &roster)
            .map_err(|e| rename(e, &federation.names))?;
        let mut state = StageState::new(machine, enrolled.len());
        for (id, summary) in roster {
            state.count_up(id, summary.len() as u64);
        }
        state.clients = enrolled.into_iter().map(|(client, _)| client).collect();
        Ok(Self { method, state, federation, waiting, faults })
    }

    /// Starts a method without rounds: `enrol` binds a client's rows while it works on them, and
    /// each summary is used at once.
    pub(crate) fn start_only(
        method: Arc<dyn DynMethod>,
        federation: Arc<Federation>,
        keys: StageKeys,
        participation: Participation,
        faults: Faults,
        enrol: impl Fn(ClientId) -> Result<(Opaque, Vec<u8>)> + Sync,
    ) -> Result<Self> {
        check_faults(&faults, &federation)?;
        let count = federation.data.len();
        let (mut clients, mut failure) = (Vec::with_capacity(count), None);
        let mut sent = Vec::new();
        let enrol_all = |ids: Range<usize>| {
            let ids = ids.into_par_iter().map(|i| ClientId(i as u32));
            first_failure(ids.map(&enrol).collect())
        };
        let machine = prefetch(count, enrol_all, |chunks| {
            let whole = chunks.map_while(|chunk| chunk.map_err(|e| failure = Some(e)).ok());
            let everyone = (0..).map(ClientId).zip(whole.flatten());
            let mut roster = everyone.filter_map(|(id, (client, summary))| {
                clients.push(client);
                let takes_part = federation.trains(id) && !faults.is_late(id);
                takes_part.then(|| {
                    sent.push((id, summary.len() as u64));
                    (id, Cow::Owned(summary))
                })
            });
            let machine = Machine::start_only(method.clone(), keys, participation, &mut roster);
            roster.for_each(drop);
            machine
        });
        if let Some(failure) = failure {
            return Err(failure);
        }
        let machine = machine.map_err(|e| rename(e, &federation.names))?;
        let mut state = StageState { clients, ..StageState::new(machine, count) };
        sent.into_iter().for_each(|(id, bytes)| state.count_up(id, bytes));
        Ok(Self { method, state, federation, waiting: Vec::new(), faults })
    }

    /// Runs one exchange; `None` when the method is done.
    pub fn step(&mut self) -> Result<Option<Done>> {
        self.state.check_whole()?;
        // A run that is over admits no clients.
        if self.machine().next_is_round()?.is_none() {
            return Ok(None);
        }
        let joined = if self.machine().continues() { Vec::new() } else { self.let_in()? };
        let Some(exchange) = self.machine().open()? else { return Ok(None) };
        let (number, round) = (exchange.number, exchange.round);
        if self.faults.replay.as_ref().is_some_and(|journal| !journal.holds(number)) {
            return Err(Error::storage("journal", format!("it ends before exchange {number}")));
        }
        let at = round.unwrap_or(self.machine().round());
        let cohort: Vec<ClientId> = exchange.cohort.iter().map(|c| c.id).collect();
        let mut slots = self.open_slots(&cohort)?;
        let shards = self.work(&exchange, &mut slots).map_err(|e| e.in_round(at));
        self.close_slots(&exchange, slots);
        self.state.broken = true;
        let accepted = self.state.machine.close(exchange, shards?)?;
        self.state.broken = false;
        let those = |condition: &dyn Fn(ClientId) -> bool| {
            cohort.iter().copied().filter(|id| condition(*id)).collect()
        };
        let unsent = those(&|id| self.faults.is_unsent(number, id));
        let unheard = those(&|id| self.faults.is_unheard(number, id));
        Ok(Some(Done { exchange: number, round, joined, cohort, accepted, unsent, unheard }))
    }

    /// Evaluates on all enrolled clients and those that are only evaluated; returns the metrics and
    /// each client's own figures by id.
    pub fn evaluate(&mut self) -> Result<(Vec<Metric>, Vec<Vec<Figure>>)> {
        let everyone = self.evaluated();
        self.ask(&everyone)
    }

    /// The clients of an evaluation, in id order.
    fn evaluated(&self) -> Vec<ClientId> {
        let mut ids = self.machine().enrolled();
        ids.extend(self.federation.evaluated());
        ids.sort_unstable();
        ids
    }

    fn ask(&mut self, ids: &[ClientId]) -> Result<(Vec<Metric>, Vec<Vec<Figure>>)> {
        let ask = self.method.ask(self.machine().server())?;
        let mut own = vec![Vec::new(); self.clients().len()];
        let (trained, unseen): (Vec<ClientId>, Vec<ClientId>) =
            ids.iter().partition(|id| self.federation.trains(**id));
        let mut metrics = self.conclude(&ask, &trained, &mut own, ClientGroup::Trained)?;
        if !unseen.is_empty() {
            let judged = self.conclude(&ask, &unseen, &mut own, ClientGroup::Unseen)?;
            if judged.is_empty() {
                // The method has nothing for them: their figures would be those of a start.
                unseen.iter().for_each(|id| own[id.0 as usize].clear());
            }
            metrics.extend(judged);
        }
        Ok((metrics, own))
    }

    /// The metrics of these clients' answers.
    fn conclude(
        &mut self,
        ask: &Message,
        ids: &[ClientId],
        own: &mut [Vec<Figure>],
        group: ClientGroup,
    ) -> Result<Vec<Metric>> {
        let (method, server) = (&*self.method, self.machine().server());
        let evaluation = Evaluation {
            machine: self.machine(),
            federation: &self.federation,
            clients: self.clients(),
            ask,
            ids,
        };
        let (metrics, bytes) =
            evaluation.conclude(own, |answers| method.conclude(server, answers, group))?;
        self.state.traffic.eval += bytes;
        Ok(metrics)
    }

    /// The server's side.
    pub fn machine(&self) -> &Machine {
        &self.state.machine
    }

    /// Client states by id.
    pub fn clients(&self) -> &[Opaque] {
        &self.state.clients
    }

    /// Bytes and rounds of each client, by id.
    pub fn tallies(&self) -> &[Tally] {
        &self.state.tallies
    }

    /// Bytes so far.
    pub fn traffic(&self) -> Traffic {
        self.state.traffic
    }

    /// The whole simulation as bytes.
    pub fn save(&self) -> Result<SavedStage> {
        let clients = self.state.save_clients(0..self.clients().len());
        Ok(SavedStage { clients, ..self.state.save()? })
    }

    /// Loads a saved simulation.
    pub fn load(
        method: Arc<dyn DynMethod>,
        federation: Arc<Federation>,
        keys: StageKeys,
        participation: Participation,
        faults: Faults,
        saved: &SavedStage,
    ) -> Result<Self> {
        let count = federation.data.len();
        let fits = [saved.clients.len(), saved.tallies.len()] == [count; 2]
            && saved.state.ids_end() <= count;
        if !fits {
            return Err(Error::storage(
                "checkpoint",
                format!("it holds {} clients, the data have {count}", saved.clients.len()),
            ));
        }
        check_faults(&faults, &federation)?;
        let machine = Machine::load(method.clone(), keys, participation, &saved.state)?;
        // A client that still waits sends the same summary again: its key is the same.
        let outside: Vec<ClientId> = (0..count as u32)
            .map(ClientId)
            .filter(|id| federation.trains(*id) && faults.is_late(*id))
            .filter(|id| machine.peer(*id).is_none())
            .collect();
        let enrolled = enrol(&*method, &federation, keys, &outside)?;
        let waiting = outside
            .into_iter()
            .zip(enrolled)
            .map(|(id, (_, summary))| Waiting { id, summary })
            .collect();
        let clients = saved.clients.par_iter().map(|bytes| method.load(StateKind::Client, bytes));
        let clients = clients.collect::<Result<_>>()?;
        let state = StageState { clients, ..StageState::resumed(machine, saved) };
        Ok(Self { method, state, federation, waiting, faults })
    }

    /// Admits the late joiners of the next round, in id order.
    fn let_in(&mut self) -> Result<Vec<ClientId>> {
        let (exchange, round) = (self.machine().exchanges(), self.machine().round() + 1);
        let due = |waiting: &mut Waiting| self.faults.lets_in(waiting.id, exchange, round);
        let due: Vec<Waiting> = self.waiting.extract_if(.., due).collect();
        for joining in &due {
            self.state
                .machine
                .admit(joining.id, &joining.summary)
                .map_err(|e| rename(e, &self.federation.names))?;
            self.state.count_up(joining.id, joining.summary.len() as u64);
        }
        Ok(due.into_iter().map(|joining| joining.id).collect())
    }

    fn open_slots(&mut self, cohort: &[ClientId]) -> Result<Vec<Mutex<Slot>>> {
        let open = |id: &ClientId| {
            let peer = self.state.machine.lend(*id)?;
            let client = std::mem::replace(&mut self.state.clients[id.0 as usize], Box::new(()));
            Ok(Mutex::new(Slot { client, peer, accepted: false, bytes_up: 0, bytes_down: 0 }))
        };
        cohort.iter().map(open).collect()
    }

    fn close_slots(&mut self, exchange: &Exchange, slots: Vec<Mutex<Slot>>) {
        let is_round = exchange.round.is_some();
        for (Invited { id, .. }, slot) in exchange.cohort.iter().zip(slots) {
            let slot = slot.into_inner().unwrap_or_else(PoisonError::into_inner);
            self.state.machine.take_back(*id, slot.peer);
            self.state.clients[id.0 as usize] = slot.client;
            self.state.tallies[id.0 as usize].rounds += u32::from(slot.accepted && is_round);
            self.state.count(exchange.evaluates, *id, (slot.bytes_down, slot.bytes_up));
        }
    }

    /// Runs the local steps of a cohort: each thread takes the next client until none is left, and
    /// gathers uploads in its own shard.
    fn work(&self, exchange: &Exchange, slots: &mut [Mutex<Slot>]) -> Result<Vec<Shard>> {
        if self.machine().batch() > 1 {
            return self.work_together(exchange, slots);
        }
        let (next, slots) = (AtomicUsize::new(0), &*slots);
        let gather = || -> Result<Option<Share>> {
            let mut own = None;
            loop {
                let at = next.fetch_add(1, Ordering::Relaxed);
                let Some(slot) = slots.get(at) else { return Ok(own) };
                // A thread that finds no client makes no fold.
                let share = match &mut own {
                    Some(share) => share,
                    None => {
                        own.insert(Share { shard: self.machine().shard(exchange), failure: None })
                    }
                };
                let result = self.one_client(exchange, at, lock(slot), &mut share.shard);
                if let Err((at, error)) = result {
                    // No thread begins another client.
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
        let mut shares: Vec<Share> = shares.into_iter().flatten().collect();
        // Clients are begun in order, so everyone before the first failure was heard: which failure
        // is reported does not depend on the threads.
        let failures = shares.iter_mut().filter_map(|share| share.failure.take());
        if let Some((_, error)) = failures.min_by_key(|(at, _)| *at) {
            return Err(error);
        }
        Ok(shares.into_iter().map(|share| share.shard).collect())
    }

    /// The local step of the client at place `at` of the cohort.
    fn one_client(
        &self,
        exchange: &Exchange,
        at: usize,
        slot: MutexGuard<'_, Slot>,
        shard: &mut Shard,
    ) -> Placed<()> {
        let Some(one) = self.send(exchange, at, slot)? else { return Ok(()) };
        let done = self.method.local_steps(&[self.task(exchange, &one)], &InTurn).pop();
        done.map_or(Ok(()), |done| self.accept(exchange, one, done, shard))
    }

    /// Runs the local steps of a cohort for a method that gains from many clients at once: batch by
    /// batch, in one call each, whose uploads all threads encode, decode and sum.
    fn work_together(&self, exchange: &Exchange, slots: &mut [Mutex<Slot>]) -> Result<Vec<Shard>> {
        let batch = self.machine().batch();
        let threads = rayon::current_num_threads().min(slots.len());
        let shard = || self.machine().shard(exchange);
        let mut shards: Vec<Shard> = (0..threads).map(|_| shard()).collect();
        for (number, slots) in slots.chunks_mut(batch).enumerate() {
            let mut asked = Vec::with_capacity(slots.len());
            for (at, slot) in (number * batch..).zip(slots) {
                let slot = slot.get_mut().unwrap_or_else(PoisonError::into_inner);
                asked.extend(self.send(exchange, at, slot).map_err(|(_, error)| error)?);
            }
            let tasks: Vec<DynTask<'_>> =
                asked.iter().map(|one| self.task(exchange, one)).collect();
            let done = self.method.local_steps(&tasks, &OnPool);
            drop(tasks);
            // Sums are exact, so it does not matter which shard an upload is in.
            let share = asked.len().div_ceil(threads).max(1);
            let mut answered = asked.into_iter().zip(done);
            let parts: Vec<Vec<_>> =
                (0..threads).map(|_| answered.by_ref().take(share).collect()).collect();
            let accept = |(shard, part): (&mut Shard, Vec<_>)| {
                let mut failures = part.into_iter();
                failures.find_map(|(one, done)| self.accept(exchange, one, done, shard).err())
            };
            let failures = shards.par_iter_mut().zip(parts).filter_map(accept);
            if let Some((_, error)) = failures.min_by_key(|(at, _)| *at) {
                return Err(error);
            }
        }
        Ok(shards)
    }

    /// Sends the message to the client at this place of the cohort; `None` if it does not answer.
    fn send<S: DerefMut<Target = Slot>>(
        &self,
        exchange: &Exchange,
        at: usize,
        mut slot: S,
    ) -> Placed<Option<Asked<S>>> {
        let invited = exchange.cohort[at];
        let message = self.machine().message_from(exchange, &slot.peer);
        let (peer, down) = message.map_err(|e| (at, e))?;
        if !self.faults.is_unsent(exchange.number, invited.id) {
            slot.bytes_down = down.len() as u64;
        }
        let heard = !self.faults.is_unheard(exchange.number, invited.id);
        Ok(heard.then_some(Asked { at, invited, slot, peer, down }))
    }

    /// Accepts a client's upload, unless it is lost.
    fn accept<S: DerefMut<Target = Slot>>(
        &self,
        exchange: &Exchange,
        one: Asked<S>,
        done: Result<DynDone>,
        shard: &mut Shard,
    ) -> Placed<()> {
        let Asked { at, invited, mut slot, peer, .. } = one;
        let failed = |e| (at, name(e, &self.federation.names, invited.id));
        let DynDone { client, up, .. } = done.map_err(failed)?;
        slot.bytes_up = up.len() as u64;
        let lost = exchange.keys.loss();
        // Simulated losses spare evaluations; a replay repeats those of a network.
        let may_lose = !exchange.evaluates || self.faults.replay.is_some();
        if may_lose && self.faults.loses(exchange.number, exchange.round, invited.id, lost) {
            return Ok(());
        }
        shard.accept_lent(invited, &peer, &up).map_err(failed)?;
        (slot.client, slot.peer, slot.accepted) = (client, peer, true);
        Ok(())
    }

    fn task<'a, S: DerefMut<Target = Slot>>(
        &'a self,
        exchange: &Exchange,
        one: &'a Asked<S>,
    ) -> DynTask<'a> {
        let id = one.invited.id;
        DynTask {
            client: &one.slot.client,
            down: &one.down,
            data: &self.federation.data[id.0 as usize],
            key: exchange.keys.local(id),
        }
    }
}

/// A result whose error has the place of its client in the cohort.
type Placed<T> = std::result::Result<T, (usize, Error)>;

/// The threads of the pool.
struct OnPool;

impl Spread for OnPool {
    fn each(&self, count: usize, work: &(dyn Fn(usize) + Sync)) {
        (0..count).into_par_iter().for_each(work);
    }
}

/// A client that was sent its message.
struct Asked<S> {
    at: usize,
    invited: Invited,
    slot: S,
    peer: Opaque,
    down: Message,
}

impl Runner for Simulator {
    fn state(&self) -> &StageState {
        &self.state
    }

    fn names(&self) -> Vec<String> {
        self.federation.names.clone()
    }

    fn step(&mut self) -> Result<Step> {
        Ok(Simulator::step(self)?.map_or(Step::Over, Step::Exchanged))
    }

    fn begin_evaluation(&mut self) -> Result<bool> {
        self.state.machine.begin_evaluation()
    }

    fn evaluate(&mut self) -> Result<Option<Evaluated>> {
        if self.machine().evaluates_by_exchanges() {
            return self.state.evaluated();
        }
        let (round, mut answered) = (self.machine().round(), self.evaluated());
        answered.retain(|id| self.faults.answers(round, *id));
        if !answered.iter().any(|id| self.federation.trains(*id)) {
            return Ok(None);
        }
        let (metrics, own) = self.ask(&answered)?;
        Ok(Some(Evaluated { metrics, own, answered }))
    }

    fn client_artifacts(
        &self,
        sink: &mut dyn FnMut(ClientId, Artifact) -> Result<()>,
    ) -> Result<()> {
        for id in self.machine().enrolled() {
            let i = id.0 as usize;
            let own = self.method.client_artifact(&self.state.clients[i], &self.federation.data[i]);
            if let Some(own) = own.map_err(|e| name(e, &self.federation.names, id))? {
                sink(id, own)?;
            }
        }
        Ok(())
    }
}

fn lock<T>(slot: &Mutex<T>) -> MutexGuard<'_, T> {
    slot.lock().unwrap_or_else(PoisonError::into_inner)
}

/// All results, or the failure of the lowest id, which does not depend on threads.
pub(crate) fn first_failure<T>(results: Vec<Result<T>>) -> Result<Vec<T>> {
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
