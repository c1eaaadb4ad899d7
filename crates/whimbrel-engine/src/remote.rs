//! Clients that are reached by bytes alone: processes behind pipes, actors of another framework,
//! another language.
//!
//! A [`Transport`] moves questions and answers; each client behind it drives a
//! [`ClientMachine`](crate::ClientMachine). [`Remote`] makes it a carrier for
//! [`run_with`](crate::run_with): every stage, evaluation and checkpoint of a job then works as in a
//! simulation, and ends in the same bits. A client that does not answer a question takes no part in
//! that exchange; what a job loses on purpose is the simulator's business and not done here.

use crate::client::{Purpose, Question, StepId};
use crate::machine::{Exchange, Machine, Shard};
use crate::participation::Invited;
use crate::run::Stage;
use crate::runner::{Carrier, Done, Evaluated, Runner, SavedStage, Start, Step, Tally, Traffic};
use crate::runner_state::Change;
use rayon::prelude::*;
use std::borrow::Cow;
use std::collections::BTreeMap;
use whimbrel_core::method::{Artifact, ClientGroup};
use whimbrel_core::{
    ClientId, DynMethod, DynSender, Error, Message, Opaque, Result, StateKind, wire,
};

/// Moves questions to clients and answers back.
pub trait Transport {
    /// The bytes of an answer: their own, or a part of what came together.
    type Answer: AsRef<[u8]> + Send;
    /// Client names by id.
    fn names(&self) -> Vec<String>;
    /// Sends each client its question and returns the answers that came, in any order.
    fn ask(&mut self, questions: Vec<Question>) -> Result<Vec<(ClientId, Self::Answer)>>;
    /// Tells a client whether its upload of a step counts. The exchange is kept by then.
    fn acknowledge(&mut self, id: ClientId, at: StepId, accepted: bool) -> Result<()>;
    /// The same transport where uploads can be summed on their way.
    fn summing(&mut self) -> Option<&mut dyn Summing> {
        None
    }
}

/// A transport that sums the uploads of many clients where they are.
pub trait Summing {
    /// Sends each client its question and returns sums of the uploads that came, each in a fold that
    /// started as `empty`: [`sum_upload`].
    fn ask_sums(
        &mut self,
        empty: Vec<u8>,
        questions: Vec<(Question, Sender)>,
    ) -> Result<Vec<Summed>>;
}

/// What the sum of uploads must know about whose upload it is.
#[derive(Clone, Debug)]
pub struct Sender {
    /// The planned probability that it was asked.
    pub inclusion: f64,
    /// What the server remembers about it, encoded.
    pub peer: Vec<u8>,
}

/// Uploads in one fold.
#[derive(Clone, Debug)]
pub struct Summed {
    /// The fold, encoded.
    pub fold: Vec<u8>,
    /// Whose they are, and the bytes that each has.
    pub uploads: Vec<(ClientId, u64)>,
}

wire!(Sender { inclusion, peer });
wire!(Summed { fold, uploads });

/// Records of clients of more bytes stay with the server, and uploads travel to it.
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
    machine: Machine,
    tallies: Vec<Tally>,
    traffic: Traffic,
    /// Answers whose fate their clients do not know, and what it is.
    owed: Vec<(ClientId, StepId, bool)>,
}

impl<T: Transport> Carrier for Remote<T> {
    fn open<'a>(&'a mut self, stage: &Stage, start: &Start<'_>) -> Result<Box<dyn Runner + 'a>> {
        let (transport, method) = (&mut self.0, stage.method.server()?.clone());
        let participation = stage.participation.clone();
        let clients = transport.names().len();
        if let Some(saved) = start.saved {
            return Ok(Box::new(RemoteRunner {
                transport,
                stage: start.index,
                machine: Machine::load(method, start.keys, participation, &saved.state)?,
                tallies: saved.tallies.clone(),
                traffic: saved.traffic,
                owed: Vec::new(),
            }));
        }
        let at = StepId::enrolment(start.index);
        let message = Message::to_many(&start.delivered.to_vec());
        let ids = (0..clients as u32).map(ClientId);
        let question =
            |client| Question { purpose: Purpose::Enrol, at, client, message: message.clone() };
        let summaries = in_order(transport.ask(ids.map(question).collect())?)?;
        let roster: Vec<(ClientId, &[u8])> =
            summaries.iter().map(|(id, summary)| (*id, summary.as_ref())).collect();
        let machine = Machine::start(method, start.keys, participation, &roster)?;
        let mut tallies = vec![Tally::default(); clients];
        let mut traffic = Traffic::default();
        for (id, summary) in &roster {
            tallies[id.0 as usize].bytes_up += summary.len() as u64;
            traffic.up += summary.len() as u64;
        }
        let owed = summaries.keys().map(|id| (*id, at, true)).collect();
        Ok(Box::new(RemoteRunner {
            transport,
            stage: start.index,
            machine,
            tallies,
            traffic,
            owed,
        }))
    }
}

/// Answers by id; a client answers once.
fn in_order<A>(answers: Vec<(ClientId, A)>) -> Result<BTreeMap<ClientId, A>> {
    let mut all = BTreeMap::new();
    for (id, answer) in answers {
        if all.insert(id, answer).is_some() {
            return Err(Error::internal(format!("client {id} answered twice")));
        }
    }
    Ok(all)
}

/// Uploads in folds, one for each thread: however they are divided, their sum is the same.
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

impl<T: Transport> RemoteRunner<'_, T> {
    /// What sums must know of these clients; none where that is more than an upload is worth.
    fn senders(
        &self,
        staged: &BTreeMap<ClientId, (Invited, Opaque)>,
    ) -> Result<Option<Vec<Sender>>> {
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

    fn settle(&mut self) -> Result<()> {
        let mut owed = std::mem::take(&mut self.owed).into_iter();
        owed.try_for_each(|(id, at, accepted)| self.transport.acknowledge(id, at, accepted))
    }
}

impl<T: Transport> Runner for RemoteRunner<'_, T> {
    fn round(&self) -> u32 {
        self.machine.round()
    }

    fn exchanges(&self) -> u32 {
        self.machine.exchanges()
    }

    fn next_is_round(&self) -> Result<Option<bool>> {
        self.machine.next_is_round()
    }

    fn enrolled(&self) -> Vec<ClientId> {
        self.machine.enrolled()
    }

    fn step(&mut self) -> Result<Step> {
        self.settle()?;
        let Some(exchange) = self.machine.open()? else { return Ok(Step::Over) };
        let at = StepId::exchange(self.stage, exchange.number);
        let machine = &self.machine;
        let sent =
            exchange.cohort.par_iter().map(|invited| -> Result<(Invited, Opaque, Message)> {
                let (peer, down) = machine.message(&exchange, invited.id)?;
                Ok((*invited, peer, down))
            });
        let (mut staged, mut questions) = (BTreeMap::new(), Vec::new());
        for sent in sent.collect::<Vec<Result<_>>>() {
            let (invited, peer, message) = sent?;
            let tally = &mut self.tallies[invited.id.0 as usize];
            tally.bytes_down += message.len() as u64;
            self.traffic.down += message.len() as u64;
            let client = invited.id;
            questions.push(Question { purpose: Purpose::Exchange, at, client, message });
            staged.insert(client, (invited, peer));
        }
        let senders = match self.transport.summing() {
            Some(_) => self.senders(&staged)?,
            None => None,
        };
        let is_round = exchange.round.is_some();
        let mut heard = |id: ClientId, bytes: u64| {
            let tally = &mut self.tallies[id.0 as usize];
            tally.rounds += u32::from(is_round);
            tally.bytes_up += bytes;
            self.traffic.up += bytes;
            let unasked = || Error::internal(format!("client {id} answered unasked"));
            staged.remove(&id).ok_or_else(unasked)
        };
        let mut shards = Vec::new();
        match (senders, self.transport.summing()) {
            (Some(senders), Some(transport)) => {
                let empty = exchange.empty_fold();
                let questions = questions.into_iter().zip(senders).collect();
                for Summed { fold, uploads } in transport.ask_sums(empty, questions)? {
                    let peer = |(id, bytes)| heard(id, bytes).map(|(_, peer)| (id, peer));
                    let accepted = uploads.into_iter().map(peer).collect::<Result<_>>()?;
                    shards.push(self.machine.summed(&fold, accepted)?);
                }
            }
            _ => {
                let mut uploads = Vec::new();
                for (id, up) in in_order(self.transport.ask(questions)?)? {
                    let (invited, peer) = heard(id, up.as_ref().len() as u64)?;
                    uploads.push((invited, peer, up));
                }
                shards = gather(&self.machine, &exchange, uploads)?;
            }
        }
        let (number, round) = (exchange.number, exchange.round);
        let cohort = exchange.cohort.iter().map(|invited| invited.id).collect();
        let accepted = self.machine.close(exchange, shards)?;
        self.owed = accepted.iter().map(|id| (*id, at, true)).collect();
        Ok(Step::Exchanged(Done {
            exchange: number,
            round,
            joined: Vec::new(),
            cohort,
            accepted,
            unsent: Vec::new(),
            unheard: staged.into_keys().collect(),
        }))
    }

    fn acknowledge(&mut self) -> Result<()> {
        self.settle()
    }

    fn evaluate(&mut self) -> Result<Option<Evaluated>> {
        self.settle()?;
        let (method, server) = (self.machine.method().clone(), self.machine.server());
        let (ask, at) = (method.ask(server)?, StepId::exchange(self.stage, self.exchanges()));
        let question =
            |client| Question { purpose: Purpose::Evaluate, at, client, message: ask.clone() };
        let questions = self.machine.enrolled().into_iter().map(question).collect();
        let answers = in_order(self.transport.ask(questions)?)?;
        if answers.is_empty() {
            return Ok(None);
        }
        let mut own = vec![Vec::new(); self.tallies.len()];
        for (id, answer) in &answers {
            let answer = answer.as_ref();
            own[id.0 as usize] = method.own(answer)?.into_iter().map(Into::into).collect();
            self.traffic.eval += (ask.len() + answer.len()) as u64;
        }
        let mut each = answers.iter().map(|(id, answer)| (*id, Cow::from(answer.as_ref())));
        let server = self.machine.server();
        let metrics = method.conclude(server, &mut each, ClientGroup::Trained)?;
        Ok(Some(Evaluated { metrics, own, answered: answers.keys().copied().collect() }))
    }

    fn names(&self) -> Vec<String> {
        self.transport.names()
    }

    fn tallies(&self) -> &[Tally] {
        &self.tallies
    }

    fn traffic(&self) -> Traffic {
        self.traffic
    }

    fn save(&self) -> Result<SavedStage> {
        Ok(SavedStage {
            state: self.machine.save()?,
            clients: Vec::new(),
            tallies: self.tallies.clone(),
            traffic: self.traffic,
        })
    }

    fn change(&self, moved: &[ClientId]) -> Result<Change> {
        self.machine.change(moved)
    }

    fn artifact(&self) -> Result<Artifact> {
        self.machine.artifact()
    }

    /// Each client keeps its own: [`ClientMachine::artifact`](crate::ClientMachine::artifact).
    fn client_artifacts(&self, _: &mut dyn FnMut(ClientId, Artifact) -> Result<()>) -> Result<()> {
        Ok(())
    }
}
