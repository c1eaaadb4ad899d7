//! The client half of a job as a state machine without I/O: questions in, answers out.
//!
//! Whoever carries bytes drives it: the network client, an embedding program, a test. A question
//! names its step ([`StepId`]). An answer to an enrolment or an exchange is *staged*: the state
//! after it waits until the server says whether it accepted the upload
//! ([`ClientMachine::acknowledge`]), and the same question is answered with the same bytes. A store
//! makes [`ClientMachine::staged`] durable before the answer leaves, and restores both records with
//! [`ClientMachine::restore`].

use crate::keys::StageKeys;
use crate::run::Chain;
use std::sync::Arc;
use whimbrel_core::method::Artifact;
use whimbrel_core::wire::take_varint;
use whimbrel_core::{
    ClientData, ClientId, DynMethod, Error, Message, Opaque, Part, Result, Wire, wire,
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

/// What takes part: the job's stages and the rows.
pub struct Participant {
    /// The stages.
    pub chain: Box<dyn Chain + Send>,
    /// The rows.
    pub data: ClientData,
    /// The seed of every draw.
    pub seed: u64,
    /// Whether it was agreed to answer evaluations.
    pub evaluates: bool,
}

/// What a client is asked.
#[derive(Clone, Debug)]
pub struct Question {
    /// For what.
    pub purpose: Purpose,
    /// Of which step; an evaluation has that of the exchange after it.
    pub at: StepId,
    /// The client's number: the address of its random draws.
    pub client: ClientId,
    /// What earlier stages delivered (enrolment), the method's message, or its evaluation's.
    pub message: Message,
}

/// What a question is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Purpose {
    /// To enrol in a stage.
    Enrol,
    /// One exchange.
    Exchange,
    /// An evaluation, which changes nothing.
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

/// One step, as it is kept.
#[derive(Clone, PartialEq, Debug)]
pub struct Record {
    /// Which step.
    pub at: StepId,
    /// The accepted step that it builds on.
    pub base: Option<StepId>,
    /// The client's number when it was made.
    pub client: ClientId,
    /// A hash of the message that it answers.
    pub asked: Vec<u8>,
    /// The state after it.
    pub state: Vec<u8>,
    /// What is uploaded for it.
    pub upload: Vec<u8>,
}

wire!(Record { at, base, client, asked, state, upload });

/// A participant and what it remembers.
pub struct ClientMachine {
    participant: Participant,
    stage: Option<Open>,
    /// What the stages before this one delivered, as it came.
    delivered: Option<(u32, Vec<u8>)>,
    committed: Option<Record>,
    staged: Option<Record>,
}

/// The stage under way.
struct Open {
    index: u32,
    method: Arc<dyn DynMethod>,
    data: Opaque,
}

impl ClientMachine {
    /// A client that has taken no step.
    pub fn new(participant: Participant) -> Self {
        Self { participant, stage: None, delivered: None, committed: None, staged: None }
    }

    /// A client where its records say: the newer one waits for its fate, and the older one is what
    /// it builds on; if it is something else, it is from before and has been overtaken. `delivered`
    /// is the message of the last enrolment, with its stage.
    pub fn restore(
        participant: Participant,
        mut records: Vec<Record>,
        delivered: Option<(u32, Vec<u8>)>,
    ) -> Self {
        records.sort_by_key(|record| record.at);
        let staged = records.pop();
        let base = staged.as_ref().and_then(|record| record.base);
        let committed = records.pop().filter(|record| Some(record.at) == base);
        Self { participant, stage: None, delivered, committed, staged }
    }

    /// Everything that it remembers, as bytes.
    pub fn save(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.delivered.put(&mut bytes);
        self.committed.put(&mut bytes);
        self.staged.put(&mut bytes);
        bytes
    }

    /// A client where it was saved.
    pub fn load(participant: Participant, mut bytes: &[u8]) -> Result<Self> {
        let from = &mut bytes;
        let (delivered, committed) = (Wire::take(from)?, Wire::take(from)?);
        let staged = Wire::take(from)?;
        match from.len() {
            0 => Ok(Self { participant, stage: None, delivered, committed, staged }),
            left => Err(Error::peer(format!("{left} bytes too many at the end of a client"))),
        }
    }

    /// The last step known to be accepted.
    pub fn committed(&self) -> Option<&Record> {
        self.committed.as_ref()
    }

    /// The step whose fate is not known.
    pub fn staged(&self) -> Option<&Record> {
        self.staged.as_ref()
    }

    /// Answers a question.
    pub fn answer(&mut self, question: &Question) -> Result<Vec<u8>> {
        self.answer_hashed(question, &sha256(&question.message.to_bytes()))
    }

    /// The same where a hash of the message is known: many clients may have its end in common.
    pub fn answer_hashed(&mut self, question: &Question, asked: &[u8; 32]) -> Result<Vec<u8>> {
        match question.purpose {
            Purpose::Evaluate => self.evaluate(question),
            Purpose::Enrol | Purpose::Exchange => {
                if let Some(record) = self.answered(question, asked) {
                    return Ok(record.upload.clone());
                }
                let (state, upload) = match question.purpose {
                    Purpose::Enrol => self.enrol(question)?,
                    _ => self.exchange(question)?,
                };
                let base = self.committed.as_ref().map(|record| record.at);
                let (at, client, asked) = (question.at, question.client, asked.to_vec());
                let record = Record { at, base, client, asked, state, upload: upload.clone() };
                self.staged = Some(record);
                Ok(upload)
            }
        }
    }

    /// What was computed for this question before: a server that came back may let other clients
    /// join before the step, and then its message is another one.
    pub fn answered(&self, question: &Question, asked: &[u8]) -> Option<&Record> {
        let same = |record: &&Record| {
            record.at == question.at && record.client == question.client && record.asked == asked
        };
        self.staged.as_ref().filter(same)
    }

    /// Learns whether the server accepted the upload of a step. Anything but the staged one is old.
    pub fn acknowledge(&mut self, at: StepId, accepted: bool) {
        if self.staged.as_ref().is_some_and(|record| record.at == at) {
            if accepted { self.accept() } else { self.drop_staged() }
        }
    }

    /// The staged step was accepted.
    pub fn accept(&mut self) {
        if let Some(staged) = self.staged.take() {
            self.committed = Some(staged);
        }
    }

    /// The staged step was not accepted, or could not be kept.
    pub fn drop_staged(&mut self) {
        self.staged = None;
    }

    /// No step counts; the next one is the first.
    pub fn forget(&mut self) {
        (self.committed, self.staged) = (None, None);
    }

    /// What this client has of its own after the last accepted step.
    pub fn artifact(&mut self) -> Result<Option<Artifact>> {
        let Some(stage) = self.committed.as_ref().map(|record| record.at.stage) else {
            return Ok(None);
        };
        let (open, state) = self.current(stage)?;
        open.method.client_artifact(&state, &open.data)
    }

    fn enrol(&mut self, question: &Question) -> Result<(Vec<u8>, Vec<u8>)> {
        let stage = question.at.stage;
        self.delivered = Some((stage, question.message.to_bytes()));
        self.enter(stage)?;
        let open = self.open()?;
        let key = StageKeys::new(self.participant.seed, stage).enrol(question.client);
        let (state, summary) = open.method.enroll(&open.data, key)?;
        Ok((open.method.save(Part::Client, &state)?, summary))
    }

    fn exchange(&mut self, question: &Question) -> Result<(Vec<u8>, Vec<u8>)> {
        let at = question.at;
        // To be asked is to be enrolled: a late joiner is told of both together.
        self.acknowledge(StepId::enrolment(at.stage), true);
        let number = at.number().ok_or_else(|| Error::peer("an exchange without a number"))?;
        let keys = StageKeys::new(self.participant.seed, at.stage).exchange(number);
        let (open, state) = self.current(at.stage)?;
        let (message, method) = (&question.message, &open.method);
        let key = keys.local(question.client);
        let (state, upload) = method.local_step(&state, message, &open.data, key)?;
        Ok((method.save(Part::Client, &state)?, upload))
    }

    fn evaluate(&mut self, question: &Question) -> Result<Vec<u8>> {
        if !self.participant.evaluates {
            return Err(Error::peer("an evaluation is asked for, which was not agreed to"));
        }
        let (open, state) = self.current(question.at.stage)?;
        open.method.answer(&state, &question.message, &open.data)
    }

    /// The stage and the accepted state in it.
    fn current(&mut self, stage: u32) -> Result<(&Open, Opaque)> {
        let committed = self.committed.as_ref().filter(|record| record.at.stage == stage);
        if committed.is_none() {
            return Err(Error::peer(format!("stage {stage} is asked for before its enrolment")));
        }
        if self.stage.as_ref().is_none_or(|open| open.index != stage) {
            self.enter(stage)?;
        }
        let record = self.committed.as_ref().ok_or_else(no_stage)?;
        let open = self.open()?;
        let state = open.method.load(Part::Client, &record.state)?;
        Ok((open, state))
    }

    fn open(&self) -> Result<&Open> {
        self.stage.as_ref().ok_or_else(no_stage)
    }

    /// Builds a stage and binds the rows to it.
    fn enter(&mut self, index: u32) -> Result<()> {
        if index as usize >= self.participant.chain.len() {
            return Err(Error::peer(format!("stage {index} is asked for, and there is none")));
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
        let stage = self.participant.chain.build(index as usize, &delivered)?;
        let method = stage.method.server()?.clone();
        let data = method.bind(&self.participant.data)?;
        self.stage = Some(Open { index, method, data });
        Ok(())
    }
}

/// SHA-256 of a message.
pub fn sha256(bytes: &[u8]) -> [u8; 32] {
    let digest = ring::digest::digest(&ring::digest::SHA256, bytes);
    digest.as_ref().try_into().expect("SHA-256 has 32 bytes")
}

fn no_stage() -> Error {
    Error::internal("a stage was entered and is not there")
}
