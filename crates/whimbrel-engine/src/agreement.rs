//! The limits that a client agreed to, and the answers counted against them.
//!
//! A method declares its kinds of exchange and the maximum of each ([`Allowance`]); together with
//! the job's number of evaluations they form the [`Agreement`] of a stage. The [`Ledger`] counts
//! answers. A client refuses a question beyond the agreement, over every transport.
//!
//! - Each exchange is answered once. A repeated question gets the same answer and does not count;
//!   another message with the same number is a breach. A client's id, which addresses its random draws,
//!   is fixed: another id would give another answer to the same message.
//! - Exchanges come in the order of their numbers and of their ranks, and their number stays below the
//!   sum of all allowances.
//! - No answer is longer than its method declares for the job alone, whatever earlier stages
//!   delivered, and all answers together stay within the consent.
//! - An opening that is repeated because no client answered does not count: its answer is the same.

use crate::client::{Purpose, StepId};
use crate::run::Stage;
use whimbrel_core::method::Allowance;
use whimbrel_core::{ClientId, DynDone, Error, Result, wire};

/// The user's limits beyond those of the job.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Consent {
    pub evaluates: bool,
    /// The maximum of exchanges of one kind if the job does not bound them, such as one that counts
    /// epochs.
    pub unbounded_max: u32,
    /// The maximum of bytes of all answers together.
    pub bytes_max: u64,
}

impl Default for Consent {
    fn default() -> Self {
        Self { evaluates: true, unbounded_max: 10_000, bytes_max: u64::MAX }
    }
}

/// The limits of a client's answers in one stage.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Agreement {
    pub stage: &'static str,
    /// Kinds of exchange and the maximum of each.
    pub kinds: Vec<Kind>,
    /// Consecutive exchanges that form one.
    pub steps: u32,
    /// The maximum of evaluations that are not exchanges.
    pub evaluations: u32,
    /// The maximum length of each kind of answer.
    pub sizes: Sizes,
    /// The maximum of bytes of all stages together.
    pub bytes_max: u64,
}

/// The declared maximum of bytes of each kind of answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sizes {
    pub summary: u64,
    pub up: u64,
    pub answer: u64,
}

/// A kind of exchange with its maximum.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Kind {
    pub name: &'static str,
    /// Position in the order of kinds.
    pub rank: u8,
    /// The maximum of exchanges.
    pub most: u32,
    /// Whether the maximum comes from the job; otherwise from the consent.
    pub bounded: bool,
}

impl Kind {
    fn is_between(&self) -> bool {
        self.rank >= Allowance::EVALUATIONS
    }

    fn evaluates(&self) -> bool {
        self.rank == Allowance::EVALUATIONS
    }
}

impl Agreement {
    /// The agreement of a stage.
    pub fn of(stage: &Stage, consent: &Consent) -> Result<Self> {
        let kind = |allowed: Allowance| Kind {
            name: allowed.name,
            rank: allowed.rank,
            most: allowed.most.unwrap_or(consent.unbounded_max),
            bounded: allowed.most.is_some(),
        };
        let declared = stage.method.server()?.declare();
        let kinds = declared.exchanges.into_iter().map(kind).collect();
        let bytes = |message: &str| {
            let each = declared.disclosures.iter().filter(|d| d.message == message);
            each.map(|d| d.bytes_max as u64).collect::<Vec<u64>>()
        };
        let sum = |message: &str| bytes(message).iter().sum::<u64>();
        // Disclosures of one enrolment or answer share a message. Those of exchanges do not, except for
        // the lanes of a grid, whose words take less than half of the bound.
        let up = bytes("up").into_iter().max().unwrap_or(0);
        let sizes = Sizes { summary: sum("summary"), up, answer: sum("answer") };
        let bytes_max = consent.bytes_max;
        let (stage_name, steps) = (stage.name, declared.steps);
        let mut agreement =
            Self { stage: stage_name, kinds, steps, evaluations: 0, sizes, bytes_max };
        let evaluations = stage.evaluate_every.filter(|_| consent.evaluates).map_or(0, |every| {
            // Before the first round, after each `every` of them, and at the end.
            agreement.rounds().div_ceil(every.max(1)).saturating_add(1)
        });
        agreement.kinds.iter_mut().filter(|kind| kind.evaluates()).for_each(|kind| {
            (kind.most, kind.bounded) = (evaluations, true);
        });
        if !agreement.kinds.iter().any(Kind::evaluates) {
            agreement.evaluations = evaluations;
        }
        // Every exchange has as many continuations.
        let continued = agreement.continuations();
        let between = agreement.kinds.iter_mut().filter(|k| k.is_between() && !k.evaluates());
        between.for_each(|kind| (kind.most, kind.bounded) = (continued, true));
        Ok(agreement)
    }

    /// The maximum of bytes of all answers in this stage.
    pub fn bytes(&self) -> u64 {
        let times = |count: u32, bytes: u64| u64::from(count).saturating_mul(bytes);
        let Sizes { summary, up, answer } = self.sizes;
        summary
            .saturating_add(times(self.rounds(), up))
            .saturating_add(times(self.evaluations, answer))
            .saturating_add(times(self.pooled_evaluations(), answer))
    }

    /// The maximum of evaluations that are exchanges.
    fn pooled_evaluations(&self) -> u32 {
        self.kinds.iter().filter(|kind| kind.evaluates()).map(|kind| kind.most).sum()
    }

    /// The maximum of evaluations, exchanges or not.
    pub fn all_evaluations(&self) -> u32 {
        self.evaluations.saturating_add(self.pooled_evaluations())
    }

    /// The maximum of exchanges that continue another one.
    pub fn continuations(&self) -> u32 {
        let begun = self.rounds().saturating_add(self.pooled_evaluations());
        begun.saturating_mul(self.steps - 1)
    }

    /// The maximum length of an upload in an exchange of this kind.
    pub(crate) fn upload_max(&self, kind: Option<Kind>) -> u64 {
        if kind.is_some_and(|kind| kind.evaluates()) { self.sizes.answer } else { self.sizes.up }
    }

    /// The maximum of exchanges of all kinds, continuations included.
    pub fn exchanges(&self) -> u32 {
        self.rounds().saturating_add(self.pooled_evaluations()).saturating_mul(self.steps)
    }

    /// The maximum of openings and rounds; kinds of one rank share theirs.
    pub fn rounds(&self) -> u32 {
        let kinds = || self.kinds.iter().filter(|kind| !kind.is_between());
        let mut ranks: Vec<u8> = kinds().map(|kind| kind.rank).collect();
        ranks.sort_unstable();
        ranks.dedup();
        let of_rank = |rank: u8| {
            kinds().filter(|kind| kind.rank == rank).map(|kind| kind.most).max().unwrap_or(0)
        };
        ranks.into_iter().fold(0, |sum: u32, rank| sum.saturating_add(of_rank(rank)))
    }
}

/// The record of a client's answers.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Ledger {
    /// Answers of all kinds: of two ledgers the later one has more.
    entries: u64,
    pub renewals: u32,
    /// Answers before the last renewal.
    pub before: u64,
    /// Bytes of those answers.
    pub bytes_before: u64,
    /// The client's id, once it has been asked.
    client: Option<ClientId>,
    pub stages: Vec<Answered>,
}

/// The answers in one stage.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Answered {
    /// The stage, from zero.
    pub stage: u32,
    /// SHA-256 of the message at its enrolment.
    enrolled: Vec<u8>,
    /// The number of exchanges and the SHA-256 of the last message, by kind.
    kinds: Vec<(u32, Vec<u8>)>,
    /// The last exchange and the SHA-256 of its message.
    last: Option<(u32, Vec<u8>)>,
    /// The step of the last evaluation and the SHA-256 of its message.
    evaluated: Option<(u32, Vec<u8>)>,
    pub evaluations: u32,
    pub bytes: u64,
    /// Parts withheld from uploads because too few rows determine them.
    pub withheld: u64,
}

wire!(Ledger { entries, renewals, before, bytes_before, client, stages });
wire!(Answered { stage, enrolled, kinds, last, evaluated, evaluations, bytes, withheld });

impl Answered {
    /// Exchanges answered, of one kind.
    pub fn of_kind(&self, kind: usize) -> u32 {
        self.kinds.get(kind).map_or(0, |(count, _)| *count)
    }

    /// Uploads, without the exchanges that continue them.
    pub fn uploads(&self, agreed: &Agreement) -> u64 {
        let own = self.kinds.iter().zip(&agreed.kinds).filter(|(_, kind)| !kind.is_between());
        own.map(|((count, _), _)| u64::from(*count)).sum()
    }
}

impl Ledger {
    /// The last round of a stage that was answered, and the maximum of rounds if the job has one.
    /// Openings are not counted. Where an exchange has several steps, rounds of others are not known.
    pub fn rounds(&self, agreed: &Agreement, stage: u32) -> Option<(u32, Option<u32>)> {
        let answered = self.of_stage(stage)?;
        let of_rank = |is: fn(&u8) -> bool| {
            agreed.kinds.iter().enumerate().filter(move |(_, kind)| is(&kind.rank))
        };
        let rounds = || of_rank(|rank| *rank == Allowance::ROUNDS);
        let most = rounds().map(|(_, kind)| kind.bounded.then_some(kind.most)).max()?;
        let own: u32 = rounds().map(|(at, _)| answered.of_kind(at)).sum();
        let opened: u32 =
            of_rank(|rank| *rank < Allowance::ROUNDS).map(|(at, _)| answered.of_kind(at)).sum();
        let all = match &answered.last {
            Some((number, _)) if agreed.exchanges() == agreed.rounds() => {
                (number + 1).saturating_sub(opened)
            }
            _ => own,
        };
        Some((most.map_or(all, |most| all.min(most)), most))
    }

    /// The number of answers so far: of two ledgers of one client the later one has more.
    pub fn entries(&self) -> u64 {
        self.entries
    }

    /// Answers of all kinds.
    pub fn answers(&self) -> u64 {
        self.entries - u64::from(self.renewals)
    }

    /// Bytes of the answers since the last renewal.
    pub fn bytes(&self) -> u64 {
        self.stages.iter().map(|answered| answered.bytes).sum()
    }

    /// Parts withheld from these answers because too few rows determine them.
    pub fn withheld(&self) -> u64 {
        self.stages.iter().map(|answered| answered.withheld).sum()
    }

    /// Renews the consent: the limits count from the current stage on.
    pub fn renew(&mut self) {
        self.before = self.answers();
        self.bytes_before += self.bytes();
        self.renewals += 1;
        self.entries += 1;
        self.stages.clear();
    }

    fn of_stage(&self, stage: u32) -> Option<&Answered> {
        self.stages.last().filter(|answered| answered.stage == stage)
    }

    /// Refuses a question to a client of another id.
    pub(crate) fn check_client(&self, client: ClientId) -> Result<()> {
        match self.client {
            Some(known) if known != client => Err(behind(format!(
                "it asks client {client}, and this client has been number {known}"
            ))),
            _ => Ok(()),
        }
    }

    /// Refuses an enrolment beyond the agreement.
    pub(crate) fn check_enrolment(&self, stage: u32, asked: &[u8]) -> Result<()> {
        match self.stages.last() {
            Some(last) if last.stage > stage => {
                Err(behind(format!("it asks for an enrolment in stage {stage}, which is over")))
            }
            Some(last) if last.stage == stage && last.enrolled != asked => Err(behind(format!(
                "it asks for a second enrolment in stage {stage}, with another message"
            ))),
            // A new state would forget what the exchanges so far must not be repeated with.
            Some(last) if last.stage == stage && last.last.is_some() => Err(behind(format!(
                "it asks for a second enrolment in stage {stage}, after exchanges of it"
            ))),
            _ => Ok(()),
        }
    }

    /// Refuses to restart the current stage without a renewed consent.
    pub(crate) fn check_forgotten(&self) -> Result<()> {
        if self.stages.last().is_some_and(|answered| answered.last.is_some()) {
            return Err(Error::peer(format!(
                "the coordinator lost state and was repaired, and begins this stage anew with its \
                 clients; {RENEW}"
            )));
        }
        Ok(())
    }

    /// Refuses an exchange beyond the agreement.
    pub(crate) fn check_exchange(
        &self,
        agreement: &Agreement,
        (stage, number): (u32, u32),
        kind: usize,
        asked: &[u8],
    ) -> Result<()> {
        let name = agreement.stage;
        let Some(agreed) = agreement.kinds.get(kind) else {
            return Err(breach(format!("{name} has no exchange of such a kind")));
        };
        // Numbers go on from where a repaired coordinator stands.
        let most = agreement.exchanges().saturating_mul(self.renewals.saturating_add(1));
        if number >= most {
            return Err(beyond(format!(
                "it asks for exchange {} of {name}, and {most} were agreed to",
                u64::from(number) + 1
            )));
        }
        let Some(answered) = self.of_stage(stage) else {
            return Err(breach(format!("it asks for an exchange of {name} before its enrolment")));
        };
        match &answered.last {
            Some((last, message)) if *last == number && message == asked => return Ok(()),
            Some((last, _)) if *last == number => {
                return Err(behind(format!(
                    "it asks for exchange {} of {name} again, with another message",
                    number + 1
                )));
            }
            Some((last, _)) if *last > number => {
                return Err(behind(format!(
                    "it asks for exchange {} of {name} after exchange {}",
                    number + 1,
                    last + 1
                )));
            }
            _ => {}
        }
        let begun = answered.kinds.iter().zip(&agreement.kinds);
        if let Some((_, later)) = begun
            .filter(|((count, _), k)| *count > 0 && !k.is_between())
            .find(|(_, k)| k.rank > agreed.rank)
        {
            return Err(breach(format!(
                "it asks for `{}` of {name} after `{}`",
                agreed.name, later.name
            )));
        }
        if answered.of_kind(kind) >= agreed.most && !answered.repeats(agreed, kind, asked) {
            return Err(beyond(format!(
                "it asks for more exchanges of {name} of the kind `{}` than the {} that were agreed to",
                agreed.name, agreed.most
            )));
        }
        Ok(())
    }

    /// The number that addresses the draws of an exchange. Refuses more asides than the evaluations
    /// that were agreed to: without evaluations no draw, such as a share of noise, is repeated.
    pub(crate) fn check_asides(
        &self,
        agreement: &Agreement,
        number: u32,
        asides: u32,
    ) -> Result<u32> {
        let evaluations = agreement.pooled_evaluations().saturating_mul(agreement.steps);
        let most = evaluations.saturating_mul(self.renewals.saturating_add(1));
        let drawn = number.checked_sub(asides).filter(|_| asides <= most);
        drawn.ok_or_else(|| breach(format!("it counts {asides} exchanges as evaluations")))
    }

    /// Refuses an evaluation beyond the agreement.
    pub(crate) fn check_evaluation(
        &self,
        agreement: &Agreement,
        at: StepId,
        asked: &[u8],
    ) -> Result<()> {
        let name = agreement.stage;
        if agreement.evaluations == 0 {
            return Err(breach(format!(
                "it asks for an evaluation of {name}, and none was agreed to"
            )));
        }
        let Some(answered) = self.of_stage(at.stage) else {
            return Err(breach(format!(
                "it asks for an evaluation of {name} before its enrolment"
            )));
        };
        match &answered.evaluated {
            Some((step, message)) if *step == at.step && message == asked => return Ok(()),
            Some((step, _)) if *step == at.step => {
                return Err(behind(format!(
                    "it asks for an evaluation of {name} again, with another message"
                )));
            }
            Some((step, _)) if *step > at.step => {
                return Err(behind(format!("it asks for an earlier evaluation of {name}")));
            }
            _ => {}
        }
        if answered.evaluations >= agreement.evaluations {
            return Err(beyond(format!(
                "it asks for more evaluations of {name} than the {} that were agreed to",
                agreement.evaluations
            )));
        }
        Ok(())
    }

    /// Refuses an answer longer than its declared maximum; without a declaration only the maximum
    /// of all answers together applies.
    pub(crate) fn check_bytes(
        &self,
        agreement: &Agreement,
        declared: u64,
        (purpose, at): (Purpose, StepId),
        answer: &[u8],
    ) -> Result<()> {
        let (name, bytes) = (agreement.stage, answer.len() as u64);
        if declared > 0 && bytes > declared {
            return Err(breach(format!(
                "it asks for an answer of {bytes} bytes in {name}, and {declared} were agreed to"
            )));
        }
        if self.has_answered(purpose, at) {
            return Ok(());
        }
        let all = self.bytes().saturating_add(bytes);
        if all > agreement.bytes_max {
            return Err(beyond(format!(
                "with this answer {all} bytes would have left, and {} were agreed to",
                agreement.bytes_max
            )));
        }
        Ok(())
    }

    /// Notes an answered enrolment.
    pub(crate) fn enrolled(&mut self, client: ClientId, stage: u32, asked: &[u8], bytes: usize) {
        self.entries += 1;
        self.client = Some(client);
        if self.of_stage(stage).is_none() {
            let (kinds, enrolled) = (Vec::new(), asked.to_vec());
            let (last, evaluated, evaluations) = (None, None, 0);
            self.stages.push(Answered {
                stage,
                enrolled,
                kinds,
                last,
                evaluated,
                evaluations,
                bytes: 0,
                withheld: 0,
            });
            self.sent(bytes);
        }
    }

    /// Notes an exchange whose answer failed: only the same message may be tried again.
    pub(crate) fn attempted(&mut self, number: u32, asked: &[u8]) {
        self.entries += 1;
        if let Some(answered) = self.stages.last_mut() {
            answered.last = Some((number, asked.to_vec()));
        }
    }

    /// Notes an answered exchange.
    pub(crate) fn exchanged(
        &mut self,
        agreed: Option<Kind>,
        (number, kind): (u32, usize),
        asked: &[u8],
        done: &DynDone,
    ) {
        self.entries += 1;
        let Some(answered) = self.stages.last_mut() else { return };
        let is_new = !matches!(&answered.last, Some((last, _)) if *last == number);
        answered.bytes += if is_new { done.up.len() as u64 } else { 0 };
        answered.withheld += if is_new { u64::from(done.withheld) } else { 0 };
        let repeats = agreed.is_some_and(|agreed| answered.repeats(&agreed, kind, asked));
        let counts = is_new && !repeats;
        if answered.kinds.len() <= kind {
            answered.kinds.resize(kind + 1, (0, Vec::new()));
        }
        let (count, last) = &mut answered.kinds[kind];
        *count += u32::from(counts);
        *last = asked.to_vec();
        answered.last = Some((number, asked.to_vec()));
    }

    /// Whether the question was answered before: a repeated answer reveals nothing new.
    fn has_answered(&self, purpose: Purpose, at: StepId) -> bool {
        let Some(answered) = self.of_stage(at.stage) else { return false };
        match purpose {
            Purpose::Enrol => true,
            Purpose::Exchange => {
                answered.last.as_ref().is_some_and(|(last, _)| Some(*last) == at.number())
            }
            Purpose::Evaluate => {
                answered.evaluated.as_ref().is_some_and(|(step, _)| *step == at.step)
            }
        }
    }

    /// Notes an answered evaluation; `false` if it repeats the last one.
    pub(crate) fn evaluated(&mut self, at: StepId, asked: &[u8], bytes: usize) -> bool {
        if self.has_answered(Purpose::Evaluate, at) {
            return false;
        }
        let Some(answered) = self.stages.last_mut() else { return false };
        answered.evaluations += 1;
        answered.evaluated = Some((at.step, asked.to_vec()));
        self.entries += 1;
        self.sent(bytes);
        true
    }

    fn sent(&mut self, bytes: usize) {
        if let Some(answered) = self.stages.last_mut() {
            answered.bytes += bytes as u64;
        }
    }
}

impl Answered {
    /// Whether a message repeats that of an opening.
    fn repeats(&self, agreed: &Kind, kind: usize, asked: &[u8]) -> bool {
        agreed.most == 1
            && self.kinds.get(kind).is_some_and(|(count, last)| *count > 0 && last == asked)
    }
}

fn breach(what: String) -> Error {
    Error::peer(format!("the coordinator breaks the agreement: {what}"))
}

fn beyond(what: String) -> Error {
    breach(format!("{what}; {RENEW}"))
}

/// A question that the client has answered differently or that is out of order. A coordinator sends
/// it after it was restored from an older copy, or if it is malicious.
pub(crate) fn behind(what: String) -> Error {
    Error::peer(format!("the coordinator lost state, or breaks the agreement: {what}"))
}

const RENEW: &str = "`join --renew` agrees to as much again";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_go_on_while_a_client_is_away() {
        let kind = |rank, most| Kind { name: "", rank, most, bounded: true };
        let kinds = vec![kind(0, 1), kind(Allowance::ROUNDS, 50), kind(Allowance::ROUNDS + 1, 1)];
        let sizes = Sizes { summary: 0, up: 0, answer: 0 };
        let (steps, evaluations, bytes_max) = (1, 0, u64::MAX);
        let mut agreed = Agreement { stage: "", kinds, steps, evaluations, sizes, bytes_max };
        let kinds = [1, 5, 0].map(|count| (count, Vec::new())).to_vec();
        let answered = Answered { kinds, last: Some((30, Vec::new())), ..Answered::default() };
        let ledger = Ledger { stages: vec![answered], ..Ledger::default() };
        // The opening and 30 rounds, of which it answered five.
        assert_eq!(ledger.rounds(&agreed, 0), Some((30, Some(50))));
        agreed.steps = 3;
        assert_eq!(ledger.rounds(&agreed, 0), Some((5, Some(50))));
    }
}
