//! Clients reached through bytes alone: processes behind pipes, actors of another framework, other
//! languages.
//!
//! A [`Transport`] moves questions and answers; each client behind it drives a
//! [`ClientMachine`](crate::ClientMachine). [`Remote`] makes it a carrier for
//! [`run_with`](crate::run_with): every stage, evaluation and checkpoint of a job then works as in
//! a simulation, and gives the same bits. A client that does not answer a question takes no part in
//! that exchange. Faults of a job are not simulated here.

use crate::client::{Purpose, Question, StepId};
use crate::machine::{Exchange, Machine, Shard};
use crate::participation::Invited;
use crate::run::Stage;
use crate::runner::{Carrier, Done, Evaluated, Protocol, Runner, StageState, Start, Step};
use rayon::prelude::*;
use std::collections::BTreeMap;
use whimbrel_core::{
    ClientId, DynMethod, DynSender, Error, Message, Opaque, Result, StateKind, wire,
};

/// Moves questions to clients and answers back.
pub trait Transport {
    /// The bytes of an answer, owned or part of a larger buffer.
    type Answer: AsRef<[u8]> + Send;
    /// Client names by id.
    fn names(&self) -> Vec<String>;
    /// Sends each client its question and returns the answers in any order.
    fn ask(&mut self, questions: Vec<Question>) -> Result<Vec<(ClientId, Self::Answer)>>;
    /// Tells a client whether its upload counts; the exchange is durable by then.
    fn acknowledge(&mut self, id: ClientId, at: StepId, accepted: bool) -> Result<()>;
    /// The transport, if it can sum uploads before they arrive.
    fn summing(&mut self) -> Option<&mut dyn Summing> {
        None
    }
}

/// A transport that sums the uploads of many clients on their side.
pub trait Summing {
    /// Sends each client its question and returns sums of uploads, made by [`sum_upload`] from the
    /// fold `empty`.
    fn ask_sums(
        &mut self,
        empty: Vec<u8>,
        questions: Vec<(Question, Sender)>,
    ) -> Result<Vec<Summed>>;
}

/// The sender of an upload, as a sum needs it.
#[derive(Clone, Debug)]
pub struct Sender {
    pub inclusion: f64,
    /// The server's record, encoded.
    pub peer: Vec<u8>,
}

/// Uploads in one fold.
#[derive(Clone, Debug)]
pub struct Summed {
    /// The fold, encoded.
    pub fold: Vec<u8>,
    /// The clients and the bytes of their uploads.
    pub uploads: Vec<(ClientId, u64)>,
}

wire!(Sender { inclusion, peer });
wire!(Summed { fold, uploads });

/// The maximum of bytes of a record for sums on the clients' side.
const PEER_MAX: usize = 64;

/// Adds one upload to a fold.
pub fn sum_upload(
    method: &dyn DynMethod,
    fold: &mut Opaque,
    (id, from): (ClientId, &Sender),
    up: &[u8],
) -> Result<()> {
    let peer = &method.load(StateKind::Peer, &from.peer)?;
    method.absorb(fold, DynSender { id, inclusion: from.inclusion, peer }, up)
}

/// A carrier over a transport.
pub struct Remote<T>(pub T);

struct RemoteRunner<'a, T> {
    transport: &'a mut T,
    stage: u32,
    state: StageState<Machine>,
    /// Clients to be told whether their answer counts.
    owed: Vec<(ClientId, StepId, bool)>,
}

impl<T: Transport> Carrier for Remote<T> {
    fn open<'a>(&'a mut self, stage: &Stage, start: &Start<'_>) -> Result<Box<dyn Runner + 'a>> {
        let (transport, method) = (&mut self.0, stage.method.server()?.clone());
        let (stage, participation) = (start.index, stage.participation.clone());
        if let Some(saved) = start.saved {
            let machine = Machine::load(method, start.keys, participation, &saved.state)?;
            let state = StageState::resumed(machine, saved);
            return Ok(Box::new(RemoteRunner { transport, stage, state, owed: Vec::new() }));
        }
        let at = StepId::enrolment(stage);
        let message = Message::to_many(&start.delivered.to_vec());
        let clients = transport.names().len();
        let ids = (0..clients as u32).map(ClientId);
        let question =
            |client| Question { purpose: Purpose::Enrol, at, client, message: message.clone() };
        let summaries = in_order(transport.ask(ids.map(question).collect())?)?;
        let roster: Vec<(ClientId, &[u8])> =
            summaries.iter().map(|(id, summary)| (*id, summary.as_ref())).collect();
        let machine = Machine::start(method, start.keys, participation, &roster)?;
        let mut state = StageState::new(machine, clients);
        for (id, summary) in roster {
            state.count_up(id, summary.len() as u64);
        }
        let owed = summaries.keys().map(|id| (*id, at, true)).collect();
        Ok(Box::new(RemoteRunner { transport, stage, state, owed }))
    }
}

/// Answers by id; refuses two answers of one client.
fn in_order<A>(answers: Vec<(ClientId, A)>) -> Result<BTreeMap<ClientId, A>> {
    let mut all = BTreeMap::new();
    for (id, answer) in answers {
        if all.insert(id, answer).is_some() {
            return Err(Error::internal(format!("client {id} answered twice")));
        }
    }
    Ok(all)
}

/// Folds uploads, one shard per thread; the sum does not depend on the division.
fn gather<A: AsRef<[u8]> + Send>(
    machine: &Machine,
    exchange: &Exchange,
    uploads: Vec<(Invited, Opaque, A)>,
) -> Result<Vec<Shard>> {
    let share = uploads.len().div_ceil(rayon::current_num_threads()).max(1);
    let mut rest = uploads.into_iter();
    let mut parts: Vec<Vec<_>> = Vec::new();
    while rest.len() > 0 || parts.is_empty() {
        parts.push(rest.by_ref().take(share).collect());
    }
    let accept = |part: Vec<(Invited, Opaque, A)>| -> Result<Shard> {
        let mut shard = machine.shard(exchange);
        for (invited, peer, up) in part {
            shard.accept(invited, peer, up.as_ref())?;
        }
        Ok(shard)
    };
    // The first failure by order, not by time.
    parts.into_par_iter().map(accept).collect::<Vec<Result<_>>>().into_iter().collect()
}

/// Clients that were sent a message: the invitation and the record to keep if they answer.
type Staged = BTreeMap<ClientId, (Invited, Opaque)>;

impl<T: Transport> RemoteRunner<'_, T> {
    fn settle(&mut self) -> Result<()> {
        let mut owed = std::mem::take(&mut self.owed).into_iter();
        owed.try_for_each(|(id, at, accepted)| self.transport.acknowledge(id, at, accepted))
    }

    /// The questions of an exchange, counted as sent.
    fn questions(&mut self, exchange: &Exchange, at: StepId) -> Result<(Vec<Question>, Staged)> {
        let machine = &self.state.machine;
        let sent =
            exchange.cohort.par_iter().map(|invited| -> Result<(Invited, Opaque, Message)> {
                let (peer, down) = machine.message(exchange, invited.id)?;
                Ok((*invited, peer, down))
            });
        let (mut questions, mut staged) = (Vec::new(), Staged::new());
        for sent in sent.collect::<Vec<Result<_>>>() {
            let (invited, peer, message) = sent?;
            let client = invited.id;
            self.state.count(exchange.evaluates, client, (message.len() as u64, 0));
            questions.push(Question { purpose: Purpose::Exchange, at, client, message });
            staged.insert(client, (invited, peer));
        }
        Ok((questions, staged))
    }

    /// The senders for sums on the clients' side; `None` if a record is longer than `PEER_MAX`.
    fn senders(&self, staged: &Staged) -> Result<Option<Vec<Sender>>> {
        let mut senders = Vec::with_capacity(staged.len());
        for (invited, peer) in staged.values() {
            let peer = peer.save();
            if peer.len() > PEER_MAX {
                return Ok(None);
            }
            senders.push(Sender { inclusion: invited.inclusion, peer });
        }
        Ok(Some(senders))
    }

    /// Asks the questions and gathers the uploads; their clients leave `staged`.
    fn gather(
        &mut self,
        exchange: &Exchange,
        questions: Vec<Question>,
        staged: &mut Staged,
    ) -> Result<Vec<Shard>> {
        let senders = match self.transport.summing() {
            Some(_) => self.senders(staged)?,
            None => None,
        };
        let mut shards = Vec::new();
        if let (Some(senders), Some(transport)) = (senders, self.transport.summing()) {
            let empty = exchange.empty_fold();
            let questions = questions.into_iter().zip(senders).collect();
            for Summed { fold, uploads } in transport.ask_sums(empty, questions)? {
                let mut accepted = Vec::with_capacity(uploads.len());
                for (id, bytes) in uploads {
                    let (_, peer) = heard(&mut self.state, exchange, staged, id, bytes)?;
                    accepted.push((id, peer));
                }
                shards.push(self.state.machine.summed(&fold, accepted)?);
            }
            return Ok(shards);
        }
        let mut uploads = Vec::new();
        for (id, up) in in_order(self.transport.ask(questions)?)? {
            let bytes = up.as_ref().len() as u64;
            let (invited, peer) = heard(&mut self.state, exchange, staged, id, bytes)?;
            uploads.push((invited, peer, up));
        }
        gather(&self.state.machine, exchange, uploads)
    }
}

/// Counts an upload and returns its staged record.
fn heard(
    state: &mut StageState<Machine>,
    exchange: &Exchange,
    staged: &mut Staged,
    id: ClientId,
    bytes: u64,
) -> Result<(Invited, Opaque)> {
    let unasked = || Error::internal(format!("client {id} answered without a question"));
    let taken = staged.remove(&id).ok_or_else(unasked)?;
    state.tallies[id.0 as usize].rounds += u32::from(exchange.round.is_some());
    state.count(exchange.evaluates, id, (0, bytes));
    Ok(taken)
}

/// Each client keeps its personal artifact:
/// [`ClientMachine::artifact`](crate::ClientMachine::artifact).
impl<T: Transport> Runner for RemoteRunner<'_, T> {
    fn state(&self) -> &StageState {
        &self.state
    }

    fn names(&self) -> Vec<String> {
        self.transport.names()
    }

    fn step(&mut self) -> Result<Step> {
        self.settle()?;
        let Some(exchange) = self.state.machine.open()? else { return Ok(Step::Over) };
        let at = StepId::exchange(self.stage, exchange.number);
        let (questions, mut staged) = self.questions(&exchange, at)?;
        let shards = self.gather(&exchange, questions, &mut staged)?;
        let (number, round) = (exchange.number, exchange.round);
        let cohort = exchange.cohort.iter().map(|invited| invited.id).collect();
        let accepted = self.state.machine.close(exchange, shards)?;
        self.owed = accepted.iter().map(|id| (*id, at, true)).collect();
        let unheard = staged.into_keys().collect();
        Ok(Step::Exchanged(Done {
            exchange: number,
            round,
            cohort,
            accepted,
            unheard,
            ..Done::default()
        }))
    }

    fn acknowledge(&mut self) -> Result<()> {
        self.settle()
    }

    fn begin_evaluation(&mut self) -> Result<bool> {
        self.state.machine.begin_evaluation()
    }

    fn evaluate(&mut self) -> Result<Option<Evaluated>> {
        self.settle()?;
        if self.state.machine.evaluates_by_exchanges() {
            return self.state.evaluated();
        }
        let machine = &self.state.machine;
        let at = StepId::exchange(self.stage, machine.exchanges());
        let ask = machine.method().ask(machine.server())?;
        let question =
            |client| Question { purpose: Purpose::Evaluate, at, client, message: ask.clone() };
        let questions = machine.enrolled().into_iter().map(question).collect();
        let answers = in_order(self.transport.ask(questions)?)?;
        if answers.is_empty() {
            return Ok(None);
        }
        self.state.conclude(ask.len(), &answers).map(Some)
    }
}
