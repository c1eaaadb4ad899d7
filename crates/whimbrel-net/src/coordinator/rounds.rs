//! One stage: enrolment, exchanges, evaluations.

use super::failed_start::offenders;
use super::gather::{Collector, Gathered, Request, Rules};
use super::{LateJoiners, Network};
use crate::events::Order;
use crate::frames::Parcel;
use crate::proto::Kind;
use crate::status::Refusal;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
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
pub(super) struct Rounds<'a> {
    network: &'a mut Network,
    stage: u32,
    name: &'static str,
    method: Arc<dyn DynMethod>,
    state: StageState<Machine>,
    delivered: Bytes,
    /// Accepted steps to acknowledge once they are durable.
    owed: Vec<(ClientId, Kind, StepId)>,
    /// Clients that joined since the last exchange.
    joined: Vec<ClientId>,
    /// Whether an earlier process may have begun the next exchange: nobody may join before it, since
    /// clients refuse a second, different question.
    begun: bool,
    /// Clients whose summary the method refused.
    rejected: BTreeSet<String>,
}

impl<'a> Rounds<'a> {
    /// Enrols the clients, or resumes a saved stage.
    pub(super) fn open(network: &'a mut Network, stage: &Stage, start: &Start<'_>) -> Result<Self> {
        let Start { index, keys, delivered, saved, .. } = *start;
        let method = stage.method.server()?.clone();
        let delivered = Bytes::from(delivered.to_vec().to_bytes());
        let participation = stage.participation.clone();
        let Enrolled { machine, summaries, rejected } = match saved {
            Some(saved) => Enrolled {
                machine: Machine::load(method.clone(), keys, participation, &saved.state)?,
                summaries: BTreeMap::new(),
                rejected: BTreeSet::new(),
            },
            None => enrol(network, stage, start, &delivered)?,
        };
        let joined = std::mem::take(&mut network.history.joined);
        network.late = LateJoiners::default();
        let mut rounds = Self {
            network,
            stage: index,
            name: stage.name,
            method,
            state: match saved {
                Some(saved) => StageState::resumed(machine, saved),
                None => StageState::new(machine, 0),
            },
            delivered,
            owed: Vec::new(),
            joined,
            begun: saved.is_some(),
            rejected,
        };
        rounds.state.tallies.resize(rounds.network.roster.len(), Tally::default());
        for (id, summary) in summaries {
            rounds.state.count_up(id, summary.len() as u64);
            rounds.owed.push((id, Kind::Enrol, StepId::enrolment(index)));
        }
        let everyone: Vec<ClientId> = rounds.network.roster.ids().collect();
        rounds.show(&everyone)?;
        Ok(rounds)
    }

    /// Updates the status board: total traffic, and the tallies of these clients.
    fn show(&self, ids: &[ClientId]) -> Result<()> {
        let mut shown = Vec::with_capacity(ids.len());
        for id in ids {
            let peer = self.state.machine.peer(*id);
            let rows = peer.map(|peer| self.method.rows(peer)).transpose()?.flatten();
            shown.push((self.network.roster.name(*id), rows, self.state.tallies[id.0 as usize]));
        }
        let traffic = self.state.traffic;
        let withheld = Some(self.state.machine.withheld()).filter(|count| *count > 0);
        self.network.shared.board.change(|status| {
            status.withheld = withheld;
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

    /// The name of an evaluation in messages.
    fn evaluation(&self) -> String {
        format!("{}, evaluation after round {}", self.name, self.state.machine.round())
    }

    /// Acknowledges the steps that have become durable.
    fn acknowledge_owed(&mut self) {
        for (id, kind, at) in std::mem::take(&mut self.owed) {
            self.network.acknowledge(id, kind, at);
        }
    }

    fn request(&self, kind: Kind, what: String) -> Request {
        let at = StepId::exchange(self.stage, self.state.machine.exchanges());
        Request { kind, at, what, rules: self.network.rules }
    }

    /// Re-admits all clients after a repair.
    fn readmit_all(&mut self) -> Result<Vec<ClientId>> {
        self.network.refresh_registry();
        let what = format!("{}, enrolment", self.name);
        let request = Request::enrolment(self.stage, what, Rules::default());
        let mut summaries = Summaries::new(&self.delivered);
        let ids = self.network.expected();
        match self.network.gather(&request, &ids, &mut summaries)? {
            Gathered::Interrupted => Ok(Vec::new()),
            Gathered::Closed => {
                let taken = summaries.taken;
                self.admit(taken, request.at)
            }
        }
    }

    /// Admits these clients; a client whose summary is refused is rejected.
    fn admit(&mut self, taken: BTreeMap<ClientId, Vec<u8>>, at: StepId) -> Result<Vec<ClientId>> {
        self.state.tallies.resize(self.network.roster.len(), Tally::default());
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
                    self.rejected.insert(reject(self.network, id, at, &error));
                }
            }
        }
        self.show(&joined)?;
        Ok(joined)
    }

    /// Admits connected clients that were invited after the start.
    fn admit_late(&mut self) -> Result<Vec<ClientId>> {
        let network = &mut *self.network;
        network.refresh_registry();
        let mut late = network.roster.without_id();
        late.retain(|name| network.connections.has(name));
        network.assign_ids(late)?;
        let new = network.roster.ids().filter(|id| {
            let name = network.roster.name(*id);
            self.state.machine.peer(*id).is_none()
                && network.connections.has(name)
                && !self.rejected.contains(name)
        });
        // A round waits once per connection: a client that did not answer in time is admitted when
        // its summary has arrived.
        let (asked, ids): (Vec<ClientId>, Vec<ClientId>) =
            new.partition(|id| network.late.awaited.contains_key(id));
        let deadline = Some(network.shared.limits.late_summary);
        let rules = Rules { quorum: Quorum::Number(0), deadline };
        let what = format!("{}: late joiners", self.name);
        let request = Request::enrolment(self.stage, what, rules);
        let mut summaries = Summaries::new(&self.delivered);
        if !ids.is_empty()
            && network.gather(&request, &ids, &mut summaries)? == Gathered::Interrupted
        {
            return Ok(Vec::new());
        }
        let mut taken = summaries.taken;
        for id in ids.iter().filter(|id| !taken.contains_key(id)) {
            // A client that lost its connection is asked again when it is back.
            if network.connections.has(network.roster.name(*id)) {
                network.late.awaited.insert(*id, request.at);
            }
        }
        for id in asked {
            if let Some(summary) = network.late.summaries.remove(&id) {
                network.late.awaited.remove(&id);
                taken.insert(id, summary);
            }
        }
        self.admit(taken, request.at)
    }
}

impl Runner for Rounds<'_> {
    fn state(&self) -> &StageState {
        &self.state
    }

    fn names(&self) -> Vec<String> {
        self.network.roster.names.clone()
    }

    fn step(&mut self) -> Result<Step> {
        self.acknowledge_owed();
        if self.state.machine.next_is_round()?.is_none() {
            return Ok(Step::Over);
        }
        let joined = if self.state.machine.enrolled().is_empty() {
            self.readmit_all()?
        } else if self.begun || self.state.machine.continues() {
            Vec::new()
        } else {
            self.admit_late()?
        };
        if !joined.is_empty() {
            self.joined.extend(&joined);
            return Ok(Step::Joined(joined));
        }
        if self.state.machine.enrolled().is_empty() {
            return if self.network.inbox.is_stopped() {
                Ok(Step::Interrupted)
            } else {
                Err(Error::data("no client is left"))
            };
        }
        let Some(exchange) = self.state.machine.open()? else { return Ok(Step::Over) };
        let (number, round, evaluates) = (exchange.number, exchange.round, exchange.evaluates);
        let cohort: Vec<ClientId> = exchange.cohort.iter().map(|c| c.id).collect();
        let what = match round {
            Some(round) => format!("{}, round {round}", self.name),
            None if evaluates => self.evaluation(),
            None if self.state.machine.continues() => {
                format!("{}, after round {}", self.name, self.state.machine.round())
            }
            None => format!("{}, opening", self.name),
        };
        let request = self.request(Kind::Exchange, what);
        let mut uploads = Uploads {
            machine: &self.state.machine,
            exchange: &exchange,
            shard: self.state.machine.shard(&exchange),
            staged: BTreeMap::new(),
            down: BTreeMap::new(),
            up: BTreeMap::new(),
        };
        let gathered = self.network.gather(&request, &cohort, &mut uploads)?;
        let Uploads { shard, down, up, .. } = uploads;
        if gathered == Gathered::Interrupted {
            return Ok(Step::Interrupted);
        }
        let accepted = self.state.machine.close(exchange, vec![shard])?;
        self.begun = false;
        let unsent = cohort.iter().copied().filter(|id| !down.contains_key(id)).collect();
        let unheard = cohort.iter().copied().filter(|id| !up.contains_key(id)).collect();
        for (id, bytes) in down {
            self.state.count(evaluates, id, (bytes, 0));
        }
        for id in &accepted {
            self.state.tallies[id.0 as usize].rounds += u32::from(round.is_some());
            self.state.count(evaluates, *id, (0, up.get(id).copied().unwrap_or(0)));
            self.owed.push((*id, Kind::Exchange, request.at));
        }
        self.show(&cohort)?;
        let exchange = number;
        let mut joined = std::mem::take(&mut self.joined);
        joined.sort_unstable();
        Ok(Step::Exchanged(Done { exchange, round, joined, cohort, accepted, unsent, unheard }))
    }

    fn acknowledge(&mut self) -> Result<()> {
        self.acknowledge_owed();
        Ok(())
    }

    fn begin_evaluation(&mut self) -> Result<bool> {
        Ok(self.network.evaluates && self.state.machine.begin_evaluation()?)
    }

    fn evaluate(&mut self) -> Result<Option<Evaluated>> {
        self.acknowledge_owed();
        if !self.network.evaluates {
            return Ok(None);
        }
        if self.state.machine.evaluates_by_exchanges() {
            return self.state.evaluated();
        }
        let ask = Bytes::from(self.method.ask(self.state.machine.server())?.to_bytes());
        let ids = self.state.machine.enrolled();
        let request = self.request(Kind::Evaluate, self.evaluation());
        let mut answers = Answers {
            method: &*self.method,
            machine: &self.state.machine,
            ask: &ask,
            taken: BTreeMap::new(),
        };
        let gathered = self.network.gather(&request, &ids, &mut answers)?;
        let answers = answers.taken;
        if gathered == Gathered::Interrupted || answers.is_empty() {
            return Ok(None);
        }
        let evaluated = self.state.conclude(ask.len(), &answers)?;
        self.show(&[])?;
        Ok(Some(evaluated))
    }
}

/// Collects all summaries and starts the stage. At the first stage each expected client gets an id:
/// the rank of its name among those of the job, then of the others. A client that is revoked before
/// it answers leaves a gap, and a client invited afterwards joins late.
fn enrol(
    network: &mut Network,
    stage: &Stage,
    start: &Start<'_>,
    delivered: &Bytes,
) -> Result<Enrolled> {
    let Start { index, keys, .. } = *start;
    let method = stage.method.server()?;
    let what = format!("{}, enrolment", stage.name);
    let request = Request::enrolment(index, what, Rules::default());
    let mut collected = Summaries { trial: Some((method, keys)), ..Summaries::new(delivered) };
    let interrupted = || Error::peer("interrupted while waiting for clients");
    network.refresh_registry();
    if network.roster.len() == 0 {
        if network.wait_for_names(&request, &mut collected)? == Gathered::Interrupted {
            return Err(interrupted());
        }
        network.assign_first_ids()?;
    }
    let ids = network.expected();
    if network.gather(&request, &ids, &mut collected)? == Gathered::Interrupted {
        return Err(interrupted());
    }
    let Summaries { taken: mut summaries, suspects, .. } = collected;
    let start = |summaries: &BTreeMap<ClientId, Vec<u8>>, without: &BTreeSet<ClientId>| {
        let all = summaries.iter().map(|(id, s)| (*id, &s[..]));
        let roster: Vec<(ClientId, &[u8])> = all.filter(|(id, _)| !without.contains(id)).collect();
        Machine::start(method.clone(), keys, stage.participation.clone(), &roster)
    };
    let mut rejected = BTreeSet::new();
    let machine = match start(&summaries, &BTreeSet::new()) {
        Ok(machine) => machine,
        Err(error @ (Error::Internal { .. } | Error::Config { .. })) => return Err(error),
        Err(error) => {
            let works = |without: &BTreeSet<ClientId>| start(&summaries, without).is_ok();
            let everyone: Vec<ClientId> = summaries.keys().copied().collect();
            let Some(offenders) = offenders(&everyone, &suspects, works) else { return Err(error) };
            for id in &offenders {
                rejected.insert(reject(network, *id, request.at, &error));
                summaries.remove(id);
            }
            start(&summaries, &BTreeSet::new())?
        }
    };
    Ok(Enrolled { machine, summaries, rejected })
}

/// A stage with its enrolled clients, and the names of rejected ones.
struct Enrolled {
    machine: Machine,
    summaries: BTreeMap<ClientId, Vec<u8>>,
    rejected: BTreeSet<String>,
}

/// Refuses a client's summary for good, on the board, in the audit log and to the client; returns
/// its name.
fn reject(network: &Network, id: ClientId, at: StepId, error: &Error) -> String {
    let name = network.roster.name(id).to_owned();
    network.shared.audit.note("invalid", &name, &error.to_string());
    network.shared.board.warn(&format!("`{name}` cannot join: {error}"));
    let result = Err(Refusal::Invalid);
    network.connections.order(&name, Order::Ack { kind: Kind::Enrol, at, result });
    name
}

/// Collects summaries. With a `trial`, each is tried alone: a summary that cannot be read is
/// refused. A summary that fails alone for another reason, such as too few rows, becomes a suspect
/// in case the start with all clients fails.
struct Summaries<'a> {
    delivered: &'a Bytes,
    taken: BTreeMap<ClientId, Vec<u8>>,
    trial: Option<(&'a Arc<dyn DynMethod>, StageKeys)>,
    suspects: BTreeSet<ClientId>,
}

impl<'a> Summaries<'a> {
    fn new(delivered: &'a Bytes) -> Self {
        Self { delivered, taken: BTreeMap::new(), trial: None, suspects: BTreeSet::new() }
    }
}

impl Collector for Summaries<'_> {
    fn message(&mut self, _: ClientId) -> Result<Parcel> {
        Ok(self.delivered.clone().into())
    }

    fn accept(&mut self, id: ClientId, bytes: Vec<u8>) -> Result<()> {
        if let Some((method, keys)) = self.trial {
            let alone = [(id, &bytes[..])];
            match Machine::start(method.clone(), keys, Participation::Everyone, &alone) {
                Ok(_) => {}
                Err(error @ (Error::Peer { .. } | Error::Data { client: Some(_), .. })) => {
                    return Err(error);
                }
                Err(_) => {
                    self.suspects.insert(id);
                }
            }
        }
        self.taken.insert(id, bytes);
        Ok(())
    }
}

/// Folds the uploads of an exchange as they arrive.
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

impl Collector for Uploads<'_> {
    fn message(&mut self, id: ClientId) -> Result<Parcel> {
        let (peer, bytes) = self.machine.message(self.exchange, id)?;
        self.staged.insert(id, peer);
        self.down.insert(id, bytes.len() as u64);
        Ok(bytes.into())
    }

    fn accept(&mut self, id: ClientId, bytes: Vec<u8>) -> Result<()> {
        // An upload staged before a restart can arrive before its message was sent again.
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

/// Collects the answers of an evaluation.
struct Answers<'a> {
    method: &'a dyn DynMethod,
    machine: &'a Machine,
    ask: &'a Bytes,
    taken: BTreeMap<ClientId, Vec<u8>>,
}

impl Collector for Answers<'_> {
    fn message(&mut self, _: ClientId) -> Result<Parcel> {
        Ok(self.ask.clone().into())
    }

    fn accept(&mut self, id: ClientId, bytes: Vec<u8>) -> Result<()> {
        let peer = self.machine.peer(id).ok_or_else(|| {
            Error::internal(format!("client {id} answers without having been admitted"))
        })?;
        self.method.own(id, Some(peer), &bytes)?;
        self.taken.insert(id, bytes);
        Ok(())
    }
}
