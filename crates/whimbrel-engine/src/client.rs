//! The client half of a job as a state machine without I/O: questions in, answers out.
//!
//! The network client, an embedding program or a test drives it. A question names its step
//! ([`StepId`]). An answer to an enrolment or an exchange is *staged*: the new state takes effect
//! once the server has accepted the upload ([`ClientMachine::acknowledge`]), and until then the
//! same question gets the same bytes. A store makes [`ClientMachine::staged`] durable before the
//! answer leaves, and restores both records with [`ClientMachine::restore`]. The client refuses
//! anything beyond the job: see [`crate::agreement`].

use crate::agreement::{Agreement, Consent, Ledger, behind};
use crate::keys::StageKeys;
use crate::run::Chain;
use std::sync::Arc;
use whimbrel_core::method::Artifact;
use whimbrel_core::wire::take_varint;
use whimbrel_core::{
    Bound, ClientData, ClientId, DynMethod, Error, Message, Opaque, Result, StateKind, Wire, wire,
};

/// A stage and a step of it: step 0 is the stage's enrolment, step `n + 1` its exchange `n`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct StepId {
    /// The stage, from zero.
    pub stage: u32,
    /// The step, from zero.
    pub step: u32,
}

wire!(StepId { stage, step });

impl StepId {
    /// A stage's enrolment.
    pub fn enrolment(stage: u32) -> Self {
        Self { stage, step: 0 }
    }

    /// An exchange of a stage.
    pub fn exchange(stage: u32, number: u32) -> Self {
        Self { stage, step: number.saturating_add(1) }
    }

    /// The exchange, unless it is the enrolment.
    pub fn number(self) -> Option<u32> {
        self.step.checked_sub(1)
    }
}

impl std::fmt::Display for StepId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.number() {
            None => write!(f, "enrolment of stage {}", self.stage),
            Some(n) => write!(f, "exchange {n} of stage {}", self.stage),
        }
    }
}

/// The inputs of a client: stages, rows, seed and consent.
pub struct Participant {
    pub chain: Box<dyn Chain + Send>,
    pub data: ClientData,
    /// The seed of every draw.
    pub seed: u64,
    pub consent: Consent,
}

/// A message to a client.
#[derive(Clone, Debug)]
pub struct Question {
    pub purpose: Purpose,
    /// The step; for an evaluation, that of the next exchange.
    pub at: StepId,
    /// The client's id, which addresses its random draws.
    pub client: ClientId,
    /// The artifacts of earlier stages (enrolment), the method's message, or the question of its
    /// evaluation.
    pub message: Message,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Purpose {
    /// Enrolment in a stage.
    Enrol,
    Exchange,
    /// An evaluation, which changes no state.
    Evaluate,
}

impl Wire for Purpose {
    fn put(&self, out: &mut Vec<u8>) {
        out.push(*self as u8);
    }
    fn take(from: &mut &[u8]) -> Result<Self> {
        let all = [Self::Enrol, Self::Exchange, Self::Evaluate];
        let number = take_varint(from)?;
        all.get(number as usize).copied().ok_or_else(|| Error::peer("an unknown question"))
    }
}

wire!(Question { purpose, at, client, message });

/// The durable record of one step.
#[derive(Clone, PartialEq, Debug)]
pub struct Record {
    pub at: StepId,
    /// The accepted step before it.
    pub base: Option<StepId>,
    /// The client's id at that time.
    pub client: ClientId,
    /// A hash of the answered message.
    pub asked: Vec<u8>,
    /// The state after it.
    pub state: Vec<u8>,
    pub upload: Vec<u8>,
    /// All answers up to this step.
    pub ledger: Ledger,
}

wire!(Record { at, base, client, asked, state, upload, ledger });

/// A client's reply to a question.
pub enum Reply<'a> {
    /// The upload of the staged step.
    Staged(&'a Record),
    /// The answer to an evaluation.
    Told(Vec<u8>),
}

/// A participant and its state.
pub struct ClientMachine {
    participant: Participant,
    stage: Option<Open>,
    /// The message with the artifacts of earlier stages, as received.
    delivered: Option<(u32, Vec<u8>)>,
    committed: Option<Record>,
    staged: Option<Record>,
    ledger: Ledger,
}

/// The stage under way.
struct Open {
    index: u32,
    method: Arc<dyn DynMethod>,
    data: Bound,
    agreement: Agreement,
    /// Exchanges that form one.
    steps: u32,
}

impl ClientMachine {
    /// A client without steps.
    pub fn new(participant: Participant) -> Self {
        let ledger = Ledger::default();
        Self { participant, stage: None, delivered: None, committed: None, staged: None, ledger }
    }

    /// A client restored from its two records: the newer one is staged if it builds on the older
    /// one, which is then the accepted one; otherwise the older one is obsolete. `delivered` is the
    /// message of the last enrolment, with its stage. The latest of all ledgers counts.
    pub fn restore(
        participant: Participant,
        mut records: Vec<Record>,
        delivered: Option<(u32, Vec<u8>)>,
        ledger: Ledger,
    ) -> Self {
        let ledgers = records.iter().map(|record| record.ledger.clone()).chain([ledger]);
        let ledger = ledgers.max_by_key(Ledger::entries).unwrap_or_default();
        records.sort_by_key(|record| record.ledger.entries());
        let staged = records.pop();
        let base = staged.as_ref().and_then(|record| record.base);
        let committed = records.pop().filter(|record| Some(record.at) == base);
        Self { participant, stage: None, delivered, committed, staged, ledger }
    }

    /// The whole state as bytes.
    pub fn save(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.delivered.put(&mut bytes);
        self.committed.put(&mut bytes);
        self.staged.put(&mut bytes);
        self.ledger.put(&mut bytes);
        bytes
    }

    /// A client from its saved state.
    pub fn load(participant: Participant, mut bytes: &[u8]) -> Result<Self> {
        let from = &mut bytes;
        let (delivered, committed) = (Wire::take(from)?, Wire::take(from)?);
        let (staged, ledger) = (Wire::take(from)?, Wire::take(from)?);
        match from.len() {
            0 => Ok(Self { participant, stage: None, delivered, committed, staged, ledger }),
            left => Err(Error::peer(format!("{left} bytes too many at the end of a client"))),
        }
    }

    /// The last accepted step.
    pub fn committed(&self) -> Option<&Record> {
        self.committed.as_ref()
    }

    /// The step that the server has neither accepted nor rejected yet.
    pub fn staged(&self) -> Option<&Record> {
        self.staged.as_ref()
    }

    /// The record of all answers.
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// The stage under way, its answered rounds, and their maximum if the job has one.
    pub fn progress(&self) -> Option<(&'static str, u32, Option<u32>)> {
        let open = self.stage.as_ref()?;
        let (rounds, most) = self.ledger.rounds(&open.agreement, open.index)?;
        Some((open.agreement.stage, rounds, most))
    }

    /// Renews the user's consent to the job.
    pub fn renew(&mut self) {
        self.ledger.renew();
    }

    /// Answers a question.
    pub fn answer(&mut self, question: &Question) -> Result<Vec<u8>> {
        self.answer_hashed(question, &sha256(&question.message.to_bytes()))
    }

    /// [`ClientMachine::answer`] with the hash of the message, which many clients may share in
    /// part.
    pub fn answer_hashed(&mut self, question: &Question, asked: &[u8; 32]) -> Result<Vec<u8>> {
        Ok(match self.reply(question, asked)? {
            Reply::Staged(record) => record.upload.clone(),
            Reply::Told(answer) => answer,
        })
    }

    /// [`ClientMachine::answer`] without a copy of the upload, which is staged.
    pub fn reply(&mut self, question: &Question, asked: &[u8; 32]) -> Result<Reply<'_>> {
        self.ledger.check_client(question.client)?;
        if question.purpose == Purpose::Evaluate {
            return self.evaluate(question, asked).map(Reply::Told);
        }
        if self.answered(question, asked).is_none() {
            let (state, upload) = match question.purpose {
                Purpose::Enrol => self.enrol(question, asked)?,
                _ => self.exchange(question, asked)?,
            };
            let base = self.committed.as_ref().map(|record| record.at);
            let (at, client, asked) = (question.at, question.client, asked.to_vec());
            let ledger = self.ledger.clone();
            self.staged = Some(Record { at, base, client, asked, state, upload, ledger });
        }
        self.staged.as_ref().map(Reply::Staged).ok_or_else(no_stage)
    }

    /// The staged answer to the same question.
    pub fn answered(&self, question: &Question, asked: &[u8]) -> Option<&Record> {
        let same = |record: &&Record| {
            record.at == question.at && record.client == question.client && record.asked == asked
        };
        self.staged.as_ref().filter(same)
    }

    /// Commits or drops the staged step, once the server has accepted or rejected it. Other steps
    /// are ignored as obsolete.
    pub fn acknowledge(&mut self, at: StepId, accepted: bool) {
        if self.staged.as_ref().is_some_and(|record| record.at == at) {
            if accepted { self.accept() } else { self.drop_staged() }
        }
    }

    /// Commits the staged step.
    pub fn accept(&mut self) {
        if let Some(staged) = self.staged.take() {
            self.committed = Some(staged);
        }
    }

    /// Drops the staged step, which was rejected or could not be made durable.
    pub fn drop_staged(&mut self) {
        self.staged = None;
    }

    /// Drops all steps of this stage. If exchanges were answered, the user must have renewed the
    /// consent.
    pub fn forget(&mut self) -> Result<()> {
        self.ledger.check_forgotten()?;
        (self.committed, self.staged) = (None, None);
        Ok(())
    }

    /// The client's personal artifact after the last accepted step.
    pub fn artifact(&mut self) -> Result<Option<Artifact>> {
        let Some(stage) = self.committed.as_ref().map(|record| record.at.stage) else {
            return Ok(None);
        };
        let state = self.current(stage)?;
        let open = self.open()?;
        open.method.client_artifact(&state, &open.data)
    }

    fn enrol(&mut self, question: &Question, asked: &[u8]) -> Result<(Vec<u8>, Vec<u8>)> {
        let stage = question.at.stage;
        if question.at.number().is_some() {
            return Err(Error::peer("an enrolment with the number of an exchange"));
        }
        self.ledger.check_enrolment(stage, asked)?;
        self.delivered = Some((stage, question.message.to_bytes()));
        self.enter(stage)?;
        let open = self.open()?;
        let key = StageKeys::new(self.participant.seed, stage).enrol(question.client);
        let (state, summary) = open.method.enroll(&open.data, key)?;
        let state = state.save();
        let most = open.agreement.sizes.summary;
        self.ledger.check_bytes(&open.agreement, most, (Purpose::Enrol, question.at), &summary)?;
        self.ledger.enrolled(question.client, stage, asked, summary.len());
        Ok((state, summary))
    }

    fn exchange(&mut self, question: &Question, asked: &[u8]) -> Result<(Vec<u8>, Vec<u8>)> {
        let at = question.at;
        // To be asked is to be enrolled: a late joiner is told of both together.
        self.acknowledge(StepId::enrolment(at.stage), true);
        let number = at.number().ok_or_else(|| Error::peer("an exchange without a number"))?;
        let state = self.current(at.stage)?;
        let open = self.open()?;
        let (message, method) = (&question.message, &open.method);
        let place = method.place(&state, message)?;
        self.ledger.check_exchange(&open.agreement, (at.stage, number), place.kind, asked)?;
        let drawn = self.ledger.check_asides(&open.agreement, number, place.asides)?;
        let keys = StageKeys::new(self.participant.seed, at.stage).exchange_of(drawn, open.steps);
        let key = keys.local(question.client);
        let done = match method.local_step(&state, message, &open.data, key) {
            Ok(done) => done,
            Err(error) => {
                // That the rows failed tells of them; a refused message does not.
                if matches!(error, Error::Data { .. } | Error::Numerical { .. }) {
                    self.ledger.attempted(number, asked);
                }
                return Err(error);
            }
        };
        let agreed = open.agreement.kinds.get(place.kind).copied();
        let most = open.agreement.upload_max(agreed);
        self.ledger.check_bytes(&open.agreement, most, (Purpose::Exchange, at), &done.up)?;
        self.ledger.exchanged(agreed, (number, place.kind), asked, &done);
        Ok((done.client.save(), done.up))
    }

    fn evaluate(&mut self, question: &Question, asked: &[u8]) -> Result<Vec<u8>> {
        let at = question.at;
        let state = self.current(at.stage)?;
        let open = self.open()?;
        self.ledger.check_evaluation(&open.agreement, at, asked)?;
        // The same question must find the same state.
        if self.committed.as_ref().is_some_and(|record| record.at >= at) {
            return Err(behind(format!("it asks for an evaluation before {at}, which is over")));
        }
        let answer = open.method.answer(&state, &question.message, &open.data)?;
        let most = open.agreement.sizes.answer;
        self.ledger.check_bytes(&open.agreement, most, (Purpose::Evaluate, at), &answer)?;
        self.ledger.evaluated(at, asked, answer.len());
        Ok(answer)
    }

    /// Opens the stage and returns the accepted state in it.
    fn current(&mut self, stage: u32) -> Result<Opaque> {
        let committed = self.committed.as_ref().filter(|record| record.at.stage == stage);
        if committed.is_none() {
            return Err(Error::peer(format!("stage {stage} is asked for before its enrolment")));
        }
        if self.stage.as_ref().is_none_or(|open| open.index != stage) {
            self.enter(stage)?;
        }
        let record = self.committed.as_ref().ok_or_else(no_stage)?;
        let open = self.open()?;
        open.method.load(StateKind::Client, &record.state)
    }

    fn open(&self) -> Result<&Open> {
        self.stage.as_ref().ok_or_else(no_stage)
    }

    /// Builds a stage and binds the rows to it.
    fn enter(&mut self, index: u32) -> Result<()> {
        let count = self.participant.chain.len();
        if index as usize >= count {
            return Err(Error::peer(format!("no stage {index}: the job has {count}")));
        }
        let delivered = match &self.delivered {
            Some((stage, message)) if *stage == index => Vec::<Artifact>::from_bytes(message)?,
            _ => {
                return Err(Error::data(format!(
                    "what was kept of this client lacks the start of stage {index}"
                )));
            }
        };
        // The stage before is over: its rows go before the next one's come.
        self.stage = None;
        let Participant { chain, consent, .. } = &self.participant;
        let agreement = Agreement::of(&chain.expected(index as usize)?, consent)?;
        let stage = chain.build(index as usize, &delivered)?;
        let method = stage.method.server()?.clone();
        let data = method.bind(&self.participant.data)?;
        let steps = method.declare().steps;
        self.stage = Some(Open { index, method, data, agreement, steps });
        Ok(())
    }
}

/// SHA-256 of a message.
pub fn sha256(bytes: &[u8]) -> [u8; 32] {
    let digest = ring::digest::digest(&ring::digest::SHA256, bytes);
    digest.as_ref().try_into().expect("SHA-256 has 32 bytes")
}

fn no_stage() -> Error {
    Error::internal("the stage that was entered does not exist")
}
