//! The round protocol as one state machine without I/O: draw a cohort, send, gather, step, commit.
//!
//! A runner drives it. The simulator calls [`Machine::message`] and [`Shard::accept`] from many
//! threads; a network runner calls them as uploads arrive. Order and sharding do not change a bit,
//! because folds merge exactly and randomness is addressed by (exchange, client, purpose).

use crate::keys::{ExchangeKeys, StageKeys};
use crate::participation::{Invited, Participation, everyone};
use crate::runner::Protocol;
use crate::runner_state::{Change, Saved};
use rayon::prelude::*;
use std::borrow::Cow;
use std::sync::Arc;
use whimbrel_core::method::{Artifact, Cohort, Declaration, Next, Status};
use whimbrel_core::{
    Bound, ClientId, DynMethod, DynSender, Error, Message, Opaque, Result, StateKind, Wire,
};

/// A state whose norm grows this much over its start has diverged.
const GROWTH_MAX: f64 = 1e6;

/// The run fails after this number of consecutive exchanges with everyone that no client answers.
const UNHEARD_MAX: u32 = 1000;

/// The server's side of a run.
pub struct Machine {
    method: Arc<dyn DynMethod>,
    keys: StageKeys,
    participation: Participation,
    server: Opaque,
    peers: Vec<Option<Opaque>>,
    exchange: u32,
    round: u32,
    /// The exchange that the method asks for.
    status: Status,
    declared: Declaration,
    start_magnitude: f64,
    /// Consecutive exchanges with everyone that no client answered.
    unheard: u32,
}

/// An open exchange.
pub struct Exchange {
    /// Its number, openings included, from zero.
    pub number: u32,
    /// The number of the round, from one; `None` for an opening.
    pub round: Option<u32>,
    /// Whether it belongs to an evaluation.
    pub evaluates: bool,
    /// The clients that are asked, in id order.
    pub cohort: Vec<Invited>,
    pub keys: ExchangeKeys,
    asks_everyone: bool,
    /// The broadcast part of its messages.
    broadcast: Bound,
    /// The empty fold.
    fold: Opaque,
}

/// Some of an exchange's uploads, gathered by one thread or one connection.
pub struct Shard {
    method: Arc<dyn DynMethod>,
    exchange: u32,
    fold: Opaque,
    /// The clients of the uploads, with the record to store unless the runner has it.
    accepted: Vec<(ClientId, Option<Opaque>)>,
}

impl Exchange {
    /// An empty fold for uploads that are summed elsewhere, as bytes.
    pub fn empty_fold(&self) -> Vec<u8> {
        self.fold.save()
    }
}

impl Shard {
    /// Accepts one upload; `peer` is the record staged with the message. A refused upload leaves
    /// the shard unchanged.
    pub fn accept(&mut self, from: Invited, peer: Opaque, up: &[u8]) -> Result<()> {
        self.absorb(from, &peer, up)?;
        self.accepted.push((from.id, Some(peer)));
        Ok(())
    }

    /// Accepts one upload of a client whose record was lent: the runner replaces it by the staged
    /// one and returns it with [`Machine::take_back`].
    pub fn accept_lent(&mut self, from: Invited, peer: &Opaque, up: &[u8]) -> Result<()> {
        self.absorb(from, peer, up)?;
        self.accepted.push((from.id, None));
        Ok(())
    }

    fn absorb(&mut self, from: Invited, peer: &Opaque, up: &[u8]) -> Result<()> {
        let sender = DynSender { id: from.id, inclusion: from.inclusion, peer };
        self.method.absorb(&mut self.fold, sender, up)
    }
}

impl Machine {
    /// Starts from the roster's summaries, in id order.
    pub fn start(
        method: Arc<dyn DynMethod>,
        keys: StageKeys,
        participation: Participation,
        roster: &[(ClientId, &[u8])],
    ) -> Result<Self> {
        let mut summaries = roster.iter().map(|(id, summary)| (*id, Cow::Borrowed(*summary)));
        let server = method.start(&mut summaries, keys.start())?;
        let mut machine = Self::new(method, keys, participation, server);
        for (id, summary) in roster {
            machine.add(*id, summary)?;
        }
        machine.watch(0)?;
        Ok(machine)
    }

    /// [`Machine::start`] for a method without rounds: summaries are used once, so the roster may
    /// compute them lazily.
    pub(crate) fn start_only(
        method: Arc<dyn DynMethod>,
        keys: StageKeys,
        participation: Participation,
        roster: &mut dyn Iterator<Item = (ClientId, Cow<'_, [u8]>)>,
    ) -> Result<Self> {
        let mut ids = Vec::new();
        let server = method.start(&mut roster.inspect(|(id, _)| ids.push(*id)), keys.start())?;
        let mut machine = Self::new(method, keys, participation, server);
        for id in ids {
            let peer = machine.method.load(StateKind::Peer, &[])?;
            machine.enter(id, peer);
        }
        machine.watch(0)?;
        Ok(machine)
    }

    fn new(
        method: Arc<dyn DynMethod>,
        keys: StageKeys,
        participation: Participation,
        server: Opaque,
    ) -> Self {
        Self {
            declared: method.declare(),
            method,
            keys,
            participation,
            server,
            peers: Vec::new(),
            exchange: 0,
            round: 0,
            status: Status::new(Next::Stop, 0.0),
            start_magnitude: 0.0,
            unheard: 0,
        }
    }

    /// Adds a client of the roster or a late joiner. A refused summary changes nothing.
    pub fn admit(&mut self, id: ClientId, summary: &[u8]) -> Result<()> {
        self.add(id, summary)?;
        self.status = self.method.status(&self.server)?;
        Ok(())
    }

    fn add(&mut self, id: ClientId, summary: &[u8]) -> Result<()> {
        if self.peer(id).is_some() {
            return Err(Error::peer(format!("client {id} is already enrolled")));
        }
        let peer = self.method.admit(&mut self.server, id, summary)?;
        self.enter(id, peer);
        Ok(())
    }

    fn enter(&mut self, id: ClientId, peer: Opaque) {
        let at = id.0 as usize;
        if self.peers.len() <= at {
            self.peers.resize_with(at + 1, || None);
        }
        self.peers[at] = Some(peer);
    }

    /// Opens the next exchange; `None` when the method is done.
    pub fn open(&self) -> Result<Option<Exchange>> {
        let drawn = self.exchange.saturating_sub(self.status.asides);
        let keys = self.keys.exchange_of(drawn, self.declared.steps);
        let enrolled = self.enrolled();
        let asks_everyone =
            matches!(self.status.next, Next::Uncounted | Next::Round(Cohort::Everyone));
        let (round, mut cohort) = match &self.status.next {
            Next::Stop | Next::Converged => return Ok(None),
            Next::Uncounted => (None, everyone(&enrolled)),
            Next::Continued(ids) | Next::Evaluation(ids) => (None, everyone(ids)),
            Next::Round(Cohort::Everyone) => (Some(self.round + 1), everyone(&enrolled)),
            Next::Round(Cohort::Sampled) => {
                (Some(self.round + 1), self.participation.draw(&enrolled, keys.cohort()))
            }
        };
        if cohort.len() < self.declared.cohort_min && !self.continues() {
            cohort.clear();
        }
        let ids: Vec<ClientId> = cohort.iter().map(|invited| invited.id).collect();
        let (broadcast, fold) = self.method.open(&self.server, &ids)?;
        let (number, evaluates) = (self.exchange, matches!(self.status.next, Next::Evaluation(_)));
        Ok(Some(Exchange {
            number,
            round,
            evaluates,
            cohort,
            keys,
            asks_everyone,
            broadcast,
            fold,
        }))
    }

    /// The message to one client, and the record to stage.
    pub fn message(&self, exchange: &Exchange, to: ClientId) -> Result<(Opaque, Message)> {
        let peer = self.peer(to).ok_or_else(|| {
            Error::internal(format!("client {to} is asked before it was admitted"))
        })?;
        self.message_from(exchange, peer)
    }

    /// [`Machine::message`] for a client whose record was lent.
    pub fn message_from(&self, exchange: &Exchange, peer: &Opaque) -> Result<(Opaque, Message)> {
        self.method.downlink(&self.server, &exchange.broadcast, peer, exchange.keys.down())
    }

    /// Lends a client's record for the duration of an exchange. The runner replaces it as soon as
    /// the upload is accepted, so that only clients in progress have two records.
    pub fn lend(&mut self, id: ClientId) -> Result<Opaque> {
        let peer = self.peers.get_mut(id.0 as usize).and_then(Option::take);
        peer.ok_or_else(|| Error::internal(format!("client {id} has no record to lend")))
    }

    /// Takes back a lent record, unchanged or accepted, before the exchange is closed.
    pub fn take_back(&mut self, id: ClientId, peer: Opaque) {
        self.peers[id.0 as usize] = Some(peer);
    }

    /// An empty shard of an exchange.
    pub fn shard(&self, exchange: &Exchange) -> Shard {
        Shard {
            method: self.method.clone(),
            exchange: exchange.number,
            fold: exchange.fold.copy(),
            accepted: Vec::new(),
        }
    }

    /// A shard of uploads that were summed elsewhere, with the record to store of each client.
    pub fn summed(&self, fold: &[u8], accepted: Vec<(ClientId, Opaque)>) -> Result<Shard> {
        Ok(Shard {
            method: self.method.clone(),
            exchange: self.exchange,
            fold: self.method.load(StateKind::Fold, fold)?,
            accepted: accepted.into_iter().map(|(id, peer)| (id, Some(peer))).collect(),
        })
    }

    /// Closes the exchange: merges the shards, runs the server step, and commits the records of all
    /// accepted clients. Returns these clients in id order.
    pub fn close(&mut self, exchange: Exchange, shards: Vec<Shard>) -> Result<Vec<ClientId>> {
        if let Some(other) = shards.iter().find(|shard| shard.exchange != exchange.number) {
            return Err(Error::internal(format!(
                "uploads of exchange {} were gathered for exchange {}",
                other.exchange, exchange.number
            )));
        }
        let folds = shards.into_par_iter().map(|shard| Ok((shard.fold, shard.accepted)));
        // Exact sums: any tree gives the same bits.
        let merged = folds.reduce_with(|one: Result<_>, other: Result<_>| {
            let ((mut fold, mut accepted), (other, more)) = (one?, other?);
            self.method.merge(&mut fold, other)?;
            accepted.extend(more);
            Ok((fold, accepted))
        });
        let (fold, mut accepted) = merged.transpose()?.unwrap_or((exchange.fold, Vec::new()));
        accepted.sort_unstable_by_key(|(id, _)| *id);
        check_accepted(&exchange.cohort, &accepted)?;
        let round = exchange.round.unwrap_or(self.round);
        let server = self.take_server();
        self.server = self
            .method
            .server_step(server, fold, exchange.keys.step())
            .map_err(|e| e.in_round(round))?;
        let ids: Vec<ClientId> = accepted.iter().map(|(id, _)| *id).collect();
        for (id, peer) in accepted {
            if let Some(peer) = peer {
                self.peers[id.0 as usize] = Some(peer);
            }
        }
        self.exchange += 1;
        self.round = round;
        self.watch(round)?;
        self.unheard = if exchange.asks_everyone && ids.is_empty() { self.unheard + 1 } else { 0 };
        if self.unheard == UNHEARD_MAX {
            return Err(Error::peer(format!(
                "no client answered {UNHEARD_MAX} consecutive exchanges with everyone"
            )));
        }
        Ok(ids)
    }

    /// Whether nobody may join before the next exchange: it continues the last one, or evaluates.
    pub fn continues(&self) -> bool {
        matches!(self.status.next, Next::Continued(_) | Next::Evaluation(_))
    }

    /// Begins an evaluation by separate exchanges; `false` if it needs none, or no more.
    pub fn begin_evaluation(&mut self) -> Result<bool> {
        let begun = self.method.begin(&self.server)?;
        let is_begun = begun.is_some();
        if let Some(server) = begun {
            self.status = self.method.status(&server)?;
            self.server = server;
        }
        Ok(is_begun)
    }

    /// Whether evaluations are exchanges of the method.
    pub fn evaluates_by_exchanges(&self) -> bool {
        self.declared.evaluates_by_exchanges()
    }

    /// The most clients that the method gains from processing together.
    pub fn batch(&self) -> usize {
        self.declared.batch
    }

    pub fn method(&self) -> &Arc<dyn DynMethod> {
        &self.method
    }

    /// The global state.
    pub fn server(&self) -> &Opaque {
        &self.server
    }

    /// The server's record of one client.
    pub fn peer(&self, id: ClientId) -> Option<&Opaque> {
        self.peers.get(id.0 as usize).and_then(Option::as_ref)
    }

    fn global(&self) -> Vec<u8> {
        (self.start_magnitude, self.server.save()).to_bytes()
    }

    /// Removes all clients and their contributions from a saved machine. They join again as late
    /// joiners.
    pub fn without_clients(method: &dyn DynMethod, saved: &Saved) -> Result<Saved> {
        let (start_magnitude, server) = <(f64, Vec<u8>)>::from_bytes(saved.global())?;
        let server = method.without_clients(method.load(StateKind::Server, &server)?)?;
        let global = (start_magnitude, server.save()).to_bytes();
        let records = vec![None; saved.ids_end()];
        Ok(Saved::new(saved.exchanges(), saved.round(), global, records))
    }

    /// Loads a saved machine.
    pub fn load(
        method: Arc<dyn DynMethod>,
        keys: StageKeys,
        participation: Participation,
        saved: &Saved,
    ) -> Result<Self> {
        let peers = saved.records().iter().map(|peer| match peer {
            Some(bytes) => method.load(StateKind::Peer, bytes).map(Some),
            None => Ok(None),
        });
        let peers = peers.collect::<Result<_>>()?;
        let (start_magnitude, server) = <(f64, Vec<u8>)>::from_bytes(saved.global())?;
        let server = method.load(StateKind::Server, &server)?;
        Ok(Self {
            status: method.status(&server)?,
            declared: method.declare(),
            server,
            method,
            keys,
            participation,
            peers,
            exchange: saved.exchanges(),
            round: saved.round(),
            start_magnitude,
            unheard: 0,
        })
    }

    /// A step consumes the state; after a failure the machine must not be used again.
    fn take_server(&mut self) -> Opaque {
        std::mem::replace(&mut self.server, Box::new(()))
    }

    fn watch(&mut self, round: u32) -> Result<()> {
        self.status = self.method.status(&self.server)?;
        check_growth(self.status.magnitude, &mut self.start_magnitude)
            .map_err(|e| e.in_round(round))
    }
}

impl Protocol for Machine {
    fn next_is_round(&self) -> Result<Option<bool>> {
        Ok(match &self.status.next {
            Next::Stop | Next::Converged => None,
            Next::Uncounted | Next::Continued(_) | Next::Evaluation(_) => Some(false),
            Next::Round(_) => Some(true),
        })
    }

    fn round(&self) -> u32 {
        self.round
    }

    fn exchanges(&self) -> u32 {
        self.exchange
    }

    fn has_converged(&self) -> bool {
        self.status.next == Next::Converged
    }

    fn withheld(&self) -> u64 {
        self.status.withheld
    }

    fn artifact(&self) -> Result<Artifact> {
        self.method.artifact(&self.server)
    }

    fn enrolled(&self) -> Vec<ClientId> {
        let present = self.peers.iter().enumerate().filter(|(_, peer)| peer.is_some());
        present.map(|(i, _)| ClientId(i as u32)).collect()
    }

    fn save(&self) -> Result<Saved> {
        let peers = self.peers.iter().map(|peer| peer.as_ref().map(|peer| peer.save()));
        Ok(Saved::new(self.exchange, self.round, self.global(), peers.collect()))
    }

    fn change(&self, moved: &[ClientId]) -> Result<Change> {
        let peers = moved.iter().map(|id| {
            let peer = self.peer(*id).ok_or_else(|| {
                Error::internal(format!("client {id} moved and was never admitted"))
            })?;
            Ok((*id, peer.save()))
        });
        let peers = peers.collect::<Result<_>>()?;
        Ok(Change::new(self.exchange, self.round, self.global(), peers))
    }
}

/// The remedy for a state that diverged.
pub const SMALLER_STEP: &str = "take a smaller step";

/// Refuses a state whose norm is not finite or has grown too much over its start.
pub(crate) fn check_growth(magnitude: f64, start: &mut f64) -> Result<()> {
    if *start == 0.0 {
        *start = magnitude;
    }
    if magnitude.is_finite() && magnitude <= GROWTH_MAX * *start {
        return Ok(());
    }
    let what =
        format!("the state diverged: its norm is {magnitude:.3e}, at the start it was {start:.3e}");
    Err(Error::numerical(what).hint(SMALLER_STEP))
}

/// Refuses uploads that were passed twice or not requested.
fn check_accepted(cohort: &[Invited], accepted: &[(ClientId, Option<Opaque>)]) -> Result<()> {
    if let Some(pair) = accepted.windows(2).find(|pair| pair[0].0 == pair[1].0) {
        return Err(Error::internal(format!("client {} was accepted twice", pair[0].0)));
    }
    let asked = |id: ClientId| cohort.binary_search_by_key(&id, |invited| invited.id).is_ok();
    match accepted.iter().find(|(id, _)| !asked(*id)) {
        Some((id, _)) => Err(Error::internal(format!("client {id} was accepted but never asked"))),
        None => Ok(()),
    }
}
