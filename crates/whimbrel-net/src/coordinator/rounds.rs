//! One stage: enrolment, exchanges, evaluations.

use super::Network;
use super::failed_start::offenders;
use super::gather::{Asking, Call, Gathered, Rules};
use crate::events::Order;
use crate::frames::Parcel;
use crate::proto::Kind;
use crate::status::Refusal;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tonic::codegen::Bytes;
use whimbrel_core::{ClientId, DynMethod, Error, Opaque, Result, Wire};
use whimbrel_engine::Quorum;
use whimbrel_engine::client::StepId;
use whimbrel_engine::keys::StageKeys;
use whimbrel_engine::machine::{Exchange, Machine, Shard};
use whimbrel_engine::participation::Invited;
use whimbrel_engine::runner::{Done, Evaluated, Protocol, Runner, StageState, Start, Step, Tally};
use whimbrel_engine::{Participation, Stage};

/// A stage under way.
pub struct Rounds<'a> {
    network: &'a mut Network,
    stage: u32,
    name: &'static str,
    method: Arc<dyn DynMethod>,
    state: StageState<Machine>,
    delivered: Bytes,
    /// Accepted and not acknowledged: told once it is kept.
    owed: Vec<(ClientId, Kind, StepId)>,
    /// Who joined since the last exchange.
    joined: Vec<ClientId>,
    /// Clients whose summary the method refused.
    turned_away: BTreeSet<String>,
}

impl<'a> Rounds<'a> {
    /// Enrols everyone, or goes on where the stage was saved.
    pub(super) fn open(network: &'a mut Network, stage: &Stage, start: &Start<'_>) -> Result<Self> {
        let Start { index, keys, delivered, saved, .. } = *start;
        let method = stage.method.server()?.clone();
        let delivered = Bytes::from(delivered.to_vec().to_bytes());
        let participation = stage.participation.clone();
        let mut turned_away = BTreeSet::new();
        let (state, summaries) = match saved {
            Some(saved) => {
                let machine = Machine::load(method.clone(), keys, participation, &saved.state)?;
                (StageState::resumed(machine, saved), BTreeMap::new())
            }
            None => {
                let start = enrol(network, stage, start, &delivered)?;
                turned_away = start.turned_away;
                (StageState::new(start.machine, 0), start.summaries)
            }
        };
        let joined = std::mem::take(&mut network.joined);
        network.awaited.clear();
        network.summaries.clear();
        let mut rounds = Self {
            network,
            stage: index,
            name: stage.name,
            method,
            state,
            delivered,
            owed: Vec::new(),
            joined,
            turned_away,
        };
        rounds.state.tallies.resize(rounds.network.names.len(), Tally::default());
        for (id, summary) in summaries {
            rounds.state.count_up(id, summary.len() as u64);
            rounds.owed.push((id, Kind::Enrol, StepId::enrolment(index)));
        }
        let everyone: Vec<ClientId> =
            (0..rounds.state.tallies.len() as u32).map(ClientId).collect();
        rounds.show(&everyone)?;
        Ok(rounds)
    }

    /// Shows what was counted, of all and of these clients.
    fn show(&self, ids: &[ClientId]) -> Result<()> {
        let mut shown = Vec::with_capacity(ids.len());
        for id in ids {
            let peer = self.state.machine.peer(*id);
            let rows = peer.map(|peer| self.method.rows(peer)).transpose()?.flatten();
            shown.push((self.network.name(*id), rows, self.state.tallies[id.0 as usize]));
        }
        let traffic = self.state.traffic;
        self.network.shared.board.change(|status| {
            status.bytes_up = traffic.up;
            (status.bytes_down, status.bytes_eval) = (traffic.down, traffic.eval);
            for (name, rows, tally) in shown {
                let client = status.clients.entry(name.into()).or_default();
                client.rows = rows.or(client.rows);
                (client.bytes_up, client.bytes_down) = (tally.bytes_up, tally.bytes_down);
            }
        });
        Ok(())
    }

    /// Tells everyone what was kept since the last time.
    fn settle(&mut self) {
        for (id, kind, at) in std::mem::take(&mut self.owed) {
            self.network.accept(id, kind, at);
        }
    }

    fn asking(&self, kind: Kind, what: String) -> Asking {
        let at = StepId::exchange(self.stage, self.state.machine.exchanges());
        Asking { kind, at, what, rules: self.network.rules }
    }

    /// Admits everyone anew: a repair has let them out.
    fn let_everyone_in(&mut self) -> Result<Vec<ClientId>> {
        self.network.look_at_registry();
        let numbered = (0..self.network.names.len() as u32).map(ClientId);
        let ids: Vec<ClientId> =
            numbered.filter(|id| !self.network.is_excused(self.network.name(*id))).collect();
        let (at, what) = (StepId::enrolment(self.stage), format!("{}, enrolment", self.name));
        let asking = Asking { kind: Kind::Enrol, at, what, rules: Rules::default() };
        let mut call = Summaries { delivered: &self.delivered, taken: BTreeMap::new() };
        match self.network.gather(&asking, &ids, &mut call)? {
            Gathered::Interrupted => Ok(Vec::new()),
            Gathered::Closed => {
                let taken = call.taken;
                self.admit(taken, at)
            }
        }
    }

    /// Admits these clients; whose summary is refused is turned away.
    fn admit(&mut self, taken: BTreeMap<ClientId, Vec<u8>>, at: StepId) -> Result<Vec<ClientId>> {
        self.state.tallies.resize(self.network.names.len(), Tally::default());
        let mut joined = Vec::new();
        for (id, summary) in taken {
            match self.state.machine.admit(id, &summary) {
                Ok(()) => {
                    self.state.count_up(id, summary.len() as u64);
                    self.owed.push((id, Kind::Enrol, at));
                    joined.push(id);
                }
                Err(error @ Error::Internal { .. }) => return Err(error),
                Err(error) => {
                    let name = turn_away(self.network, id, at, &error);
                    self.turned_away.insert(name);
                }
            }
        }
        self.show(&joined)?;
        Ok(joined)
    }

    /// Admits clients that were invited after the start and are there.
    fn let_in(&mut self) -> Result<Vec<ClientId>> {
        let network = &mut *self.network;
        network.look_at_registry();
        let mut late = network.unnumbered();
        late.retain(|name| network.links.contains_key(name));
        network.give_numbers(late)?;
        let numbered = (0..network.names.len() as u32).map(ClientId);
        let ids: Vec<ClientId> = numbered
            .filter(|id| self.state.machine.peer(*id).is_none())
            .filter(|id| {
                let name = network.name(*id);
                network.links.contains_key(name) && !self.turned_away.contains(name)
            })
            .collect();
        if ids.is_empty() {
            return Ok(ids);
        }
        // Asked once on a connection: a client that did not answer in time is let in when its
        // summary has come, and no round waits for it again.
        let (asked, ids): (Vec<ClientId>, Vec<ClientId>) =
            ids.into_iter().partition(|id| self.network.awaited.contains_key(id));
        let asking = Asking {
            kind: Kind::Enrol,
            at: StepId::enrolment(self.stage),
            what: format!("{}: late joiners", self.name),
            rules: Rules {
                quorum: Quorum::Number(0),
                deadline: Some(self.network.shared.limits.late_summary),
            },
        };
        let mut call = Summaries { delivered: &self.delivered, taken: BTreeMap::new() };
        if !ids.is_empty()
            && self.network.gather(&asking, &ids, &mut call)? == Gathered::Interrupted
        {
            return Ok(Vec::new());
        }
        for id in ids.iter().filter(|id| !call.taken.contains_key(id)) {
            // A client that lost its connection meanwhile is asked again when it is back.
            if self.network.links.contains_key(self.network.name(*id)) {
                self.network.awaited.insert(*id, asking.at);
            }
        }
        for id in asked {
            if let Some(summary) = self.network.summaries.remove(&id) {
                self.network.awaited.remove(&id);
                call.taken.insert(id, summary);
            }
        }
        let taken = call.taken;
        self.admit(taken, asking.at)
    }
}

impl Runner for Rounds<'_> {
    fn state(&self) -> &StageState {
        &self.state
    }

    fn names(&self) -> Vec<String> {
        self.network.names.clone()
    }

    fn step(&mut self) -> Result<Step> {
        self.settle();
        if self.state.machine.next_is_round()?.is_none() {
            return Ok(Step::Over);
        }
        let joined = if self.state.machine.enrolled().is_empty() {
            self.let_everyone_in()?
        } else {
            self.let_in()?
        };
        if !joined.is_empty() {
            self.joined.extend(&joined);
            return Ok(Step::Joined(joined));
        }
        if self.state.machine.enrolled().is_empty() {
            if self.network.stop.load(Ordering::Relaxed) {
                return Ok(Step::Interrupted);
            }
            return Err(Error::data("no client is left"));
        }
        let Some(exchange) = self.state.machine.open()? else { return Ok(Step::Over) };
        let (number, round) = (exchange.number, exchange.round);
        let cohort: Vec<ClientId> = exchange.cohort.iter().map(|c| c.id).collect();
        let what = match round {
            Some(round) => format!("{}, round {round}", self.name),
            None => format!("{}, opening", self.name),
        };
        let asking = self.asking(Kind::Exchange, what);
        let mut call = Uploads {
            machine: &self.state.machine,
            exchange: &exchange,
            shard: self.state.machine.shard()?,
            staged: BTreeMap::new(),
            down: BTreeMap::new(),
            up: BTreeMap::new(),
        };
        let gathered = self.network.gather(&asking, &cohort, &mut call)?;
        let Uploads { shard, down, up, .. } = call;
        if gathered == Gathered::Interrupted {
            return Ok(Step::Interrupted);
        }
        let accepted = self.state.machine.close(exchange, vec![shard])?;
        let unsent = cohort.iter().copied().filter(|id| !down.contains_key(id)).collect();
        let unheard = cohort.iter().copied().filter(|id| !up.contains_key(id)).collect();
        for (id, bytes) in down {
            self.state.count_down(id, bytes);
        }
        for id in &accepted {
            self.state.tallies[id.0 as usize].rounds += u32::from(round.is_some());
            self.state.count_up(*id, up.get(id).copied().unwrap_or(0));
            self.owed.push((*id, Kind::Exchange, asking.at));
        }
        self.show(&cohort)?;
        let exchange = number;
        let mut joined = std::mem::take(&mut self.joined);
        joined.sort_unstable();
        Ok(Step::Exchanged(Done { exchange, round, joined, cohort, accepted, unsent, unheard }))
    }

    fn acknowledge(&mut self) -> Result<()> {
        self.settle();
        Ok(())
    }

    fn evaluate(&mut self) -> Result<Option<Evaluated>> {
        self.settle();
        if !self.network.evaluates {
            return Ok(None);
        }
        let ask = Bytes::from(self.method.ask(self.state.machine.server())?.to_bytes());
        let ids = self.state.machine.enrolled();
        let what = format!("{}, evaluation after round {}", self.name, self.state.machine.round());
        let asking = self.asking(Kind::Evaluate, what);
        let mut call = Answers {
            method: &*self.method,
            machine: &self.state.machine,
            ask: &ask,
            taken: BTreeMap::new(),
        };
        let gathered = self.network.gather(&asking, &ids, &mut call)?;
        let answers = call.taken;
        if gathered == Gathered::Interrupted || answers.is_empty() {
            return Ok(None);
        }
        let evaluated = self.state.conclude(ask.len(), &answers)?;
        self.show(&[])?;
        Ok(Some(evaluated))
    }
}

/// Gathers everyone's summary and starts. At the first stage everyone expected gets a number,
/// the rank of its name among those whom the job names; whoever is revoked before it was heard leaves a gap, and whoever is
/// invited afterwards joins late.
fn enrol(
    network: &mut Network,
    stage: &Stage,
    start: &Start<'_>,
    delivered: &Bytes,
) -> Result<Enrolled> {
    let Start { index, keys, .. } = *start;
    let method = stage.method.server()?;
    let asking = Asking {
        kind: Kind::Enrol,
        at: StepId::enrolment(index),
        what: format!("{}, enrolment", stage.name),
        rules: Rules::default(),
    };
    let interrupted = || Error::peer("interrupted while clients were waited for");
    network.look_at_registry();
    if network.names.is_empty() {
        if network.wait_for_names(&asking)? == Gathered::Interrupted {
            return Err(interrupted());
        }
        network.give_first_numbers()?;
    }
    let numbered = (0..network.names.len() as u32).map(ClientId);
    let ids: Vec<ClientId> = numbered.filter(|id| !network.is_excused(network.name(*id))).collect();
    let inner = Summaries { delivered, taken: BTreeMap::new() };
    let mut call = Trial { method, keys, inner, suspects: BTreeSet::new() };
    if network.gather(&asking, &ids, &mut call)? == Gathered::Interrupted {
        return Err(interrupted());
    }
    let Trial { inner: Summaries { taken: mut summaries, .. }, suspects, .. } = call;
    let start = |summaries: &BTreeMap<ClientId, Vec<u8>>, without: &BTreeSet<ClientId>| {
        let all = summaries.iter().map(|(id, s)| (*id, &s[..]));
        let roster: Vec<(ClientId, &[u8])> = all.filter(|(id, _)| !without.contains(id)).collect();
        Machine::start(method.clone(), keys, stage.participation.clone(), &roster)
    };
    let mut turned_away = BTreeSet::new();
    let machine = match start(&summaries, &BTreeSet::new()) {
        Ok(machine) => machine,
        Err(error @ (Error::Internal { .. } | Error::Config { .. })) => return Err(error),
        Err(error) => {
            let works = |without: &BTreeSet<ClientId>| start(&summaries, without).is_ok();
            let everyone: Vec<ClientId> = summaries.keys().copied().collect();
            let Some(offenders) = offenders(&everyone, &suspects, works) else { return Err(error) };
            // Each is named in the audit log, on the board, and to itself.
            for id in &offenders {
                turned_away.insert(turn_away(network, *id, asking.at, &error));
                summaries.remove(id);
            }
            start(&summaries, &BTreeSet::new())?
        }
    };
    Ok(Enrolled { machine, summaries, turned_away })
}

/// A stage that everyone is enrolled in.
struct Enrolled {
    machine: Machine,
    summaries: BTreeMap<ClientId, Vec<u8>>,
    /// Who is not.
    turned_away: BTreeSet<String>,
}

/// Refuses a client's summary for good and says so; the client's name.
fn turn_away(network: &Network, id: ClientId, at: StepId, error: &Error) -> String {
    let name = network.name(id).to_owned();
    network.shared.audit.note("invalid", &name, &error.to_string(), false);
    network.shared.board.warn(&format!("`{name}` cannot join: {error}"));
    if let Some(link) = network.links.get(&name) {
        link.order(Order::Ack { kind: Kind::Enrol, at, fate: Err(Refusal::Invalid) });
    }
    name
}

/// Everyone's summary.
struct Summaries<'a> {
    delivered: &'a Bytes,
    taken: BTreeMap<ClientId, Vec<u8>>,
}

impl Call for Summaries<'_> {
    fn message(&mut self, _: ClientId) -> Result<Parcel> {
        Ok(self.delivered.clone().into())
    }

    fn take(&mut self, id: ClientId, bytes: Vec<u8>) -> Result<()> {
        self.taken.insert(id, bytes);
        Ok(())
    }
}

/// The same, where a summary that is no message must not end the job: a start with that client
/// alone shows whether it can be read. Other errors of such a start need not be the client's fault,
/// as there may be too few rows in one client for what all together can do; but where the start
/// with everyone fails, it is suspected first.
struct Trial<'a> {
    method: &'a Arc<dyn DynMethod>,
    keys: StageKeys,
    inner: Summaries<'a>,
    suspects: BTreeSet<ClientId>,
}

impl Call for Trial<'_> {
    fn message(&mut self, id: ClientId) -> Result<Parcel> {
        self.inner.message(id)
    }

    fn take(&mut self, id: ClientId, bytes: Vec<u8>) -> Result<()> {
        let alone = [(id, &bytes[..])];
        let started =
            Machine::start(self.method.clone(), self.keys, Participation::Everyone, &alone);
        match started.map(drop) {
            Ok(()) => {}
            Err(error @ (Error::Peer { .. } | Error::Data { client: Some(_), .. })) => {
                return Err(error);
            }
            Err(_) => {
                self.suspects.insert(id);
            }
        }
        self.inner.take(id, bytes)
    }
}

/// The uploads of an exchange, folded as they come.
struct Uploads<'e> {
    machine: &'e Machine,
    exchange: &'e Exchange,
    shard: Shard,
    staged: BTreeMap<ClientId, Opaque>,
    down: BTreeMap<ClientId, u64>,
    up: BTreeMap<ClientId, u64>,
}

impl Uploads<'_> {
    fn invited(&self, id: ClientId) -> Result<Invited> {
        let cohort = &self.exchange.cohort;
        let at = cohort.binary_search_by_key(&id, |invited| invited.id);
        at.map(|at| cohort[at]).map_err(|_| Error::internal(format!("client {id} was not asked")))
    }
}

impl Call for Uploads<'_> {
    fn message(&mut self, id: ClientId) -> Result<Parcel> {
        let (peer, bytes) = self.machine.message(self.exchange, id)?;
        self.staged.insert(id, peer);
        self.down.insert(id, bytes.len() as u64);
        Ok(bytes.into())
    }

    fn take(&mut self, id: ClientId, bytes: Vec<u8>) -> Result<()> {
        // An upload that was staged before a restart can come before its message went down again.
        let peer = match self.staged.remove(&id) {
            Some(peer) => peer,
            None => {
                self.message(id)?;
                self.staged.remove(&id).ok_or_else(|| Error::internal("nothing was staged"))?
            }
        };
        self.shard.accept(self.invited(id)?, peer, &bytes)?;
        self.up.insert(id, bytes.len() as u64);
        Ok(())
    }
}

/// The answers of an evaluation.
struct Answers<'a> {
    method: &'a dyn DynMethod,
    machine: &'a Machine,
    ask: &'a Bytes,
    taken: BTreeMap<ClientId, Vec<u8>>,
}

impl Call for Answers<'_> {
    fn message(&mut self, _: ClientId) -> Result<Parcel> {
        Ok(self.ask.clone().into())
    }

    fn take(&mut self, id: ClientId, bytes: Vec<u8>) -> Result<()> {
        let peer = self.machine.peer(id).ok_or_else(|| {
            Error::internal(format!("client {id} answers and was never admitted"))
        })?;
        self.method.check(id, peer, &bytes)?;
        self.taken.insert(id, bytes);
        Ok(())
    }
}
