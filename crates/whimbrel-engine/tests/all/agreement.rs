//! What a client answers at most, whatever its coordinator asks.

use crate::toy::{SOUND, Toy, clients, erased};
use whimbrel_core::method::Artifact;
use whimbrel_core::{ClientId, Result, Wire};
use whimbrel_engine::{
    Chain, ClientMachine, Consent, Participant, Purpose, Question, Stage, StepId,
};

/// Three rounds, an opening before them, and evaluations after every second; what it declares of its
/// uploads.
struct Short(usize);

const ROUNDS: u32 = 3;

impl Chain for Short {
    fn len(&self) -> usize {
        2
    }

    fn build(&self, _: usize, _: &[Artifact]) -> Result<Stage> {
        let toy = Toy { rounds: ROUNDS, up_bytes: self.0, ..SOUND };
        Ok(Stage { evaluate_every: Some(2), ..Stage::new("toy", erased(toy)) })
    }
}

fn participant(evaluates: bool) -> Participant {
    let consent = Consent { evaluates, ..Consent::default() };
    Participant { chain: Box::new(Short(0)), data: clients(3).remove(2).1, seed: 5, consent }
}

/// A client that is killed after every question.
struct Asked(Vec<u8>, bool);

impl Asked {
    fn new(evaluates: bool) -> Self {
        Self(ClientMachine::new(participant(evaluates)).save(), evaluates)
    }

    fn with<T>(&mut self, act: impl FnOnce(&mut ClientMachine) -> T) -> T {
        let mut machine = ClientMachine::load(participant(self.1), &self.0).unwrap();
        let done = act(&mut machine);
        self.0 = machine.save();
        done
    }

    fn ask(&mut self, purpose: Purpose, at: StepId, message: Vec<u8>) -> Result<Vec<u8>, String> {
        self.ask_as(2, purpose, at, message)
    }

    fn ask_as(
        &mut self,
        client: u32,
        purpose: Purpose,
        at: StepId,
        message: Vec<u8>,
    ) -> Result<Vec<u8>, String> {
        let question = Question { purpose, at, client: ClientId(client), message: message.into() };
        let before = self.0.clone();
        let answer = self.with(|client| client.answer(&question)).map_err(|e| e.to_string());
        if let Err(said) = &answer {
            let ledger = |bytes: &[u8]| {
                ClientMachine::load(participant(true), bytes).unwrap().ledger().clone()
            };
            assert_eq!(ledger(&self.0), ledger(&before), "{said}");
        }
        answer
    }

    fn enrol(&mut self, stage: u32) -> Result<Vec<u8>, String> {
        let nothing = Vec::<Artifact>::new().to_bytes();
        let enrolled = self.ask(Purpose::Enrol, StepId::enrolment(stage), nothing);
        self.with(|client| client.accept());
        enrolled
    }

    /// An exchange whose upload is accepted.
    fn exchange(&mut self, number: u32, known: u32) -> Result<Vec<u8>, String> {
        let at = StepId::exchange(0, number);
        let answer = self.ask(Purpose::Exchange, at, down(number, known));
        self.with(|client| client.acknowledge(at, true));
        answer
    }

    fn evaluate(&mut self, number: u32, theta: f64) -> Result<Vec<u8>, String> {
        self.ask(Purpose::Evaluate, StepId::exchange(0, number), theta.to_bytes())
    }
}

/// The toy's message: a number, and how many uploads were accepted.
fn down(round: u32, known: u32) -> Vec<u8> {
    [round.to_le_bytes(), known.to_le_bytes()].concat()
}

#[track_caller]
fn refused(answer: Result<Vec<u8>, String>, why: &str) {
    let said = answer.expect_err("it was answered");
    assert!(said.contains("breaks the agreement") && said.contains(why), "{said}");
}

#[test]
fn no_more_rounds_are_answered_than_the_job_has() {
    let mut client = Asked::new(true);
    client.enrol(0).unwrap();
    refused(client.exchange(4_000_000_000, 0), "exchange 4000000001 of toy, and 4 were agreed to");
    refused(client.exchange(u32::MAX - 1, 0), "4 were agreed to");
    for number in 0..=ROUNDS {
        client.exchange(number, number).unwrap();
    }
    refused(client.exchange(ROUNDS + 1, ROUNDS + 1), "`join --renew`");
    // Agreed again, as much again.
    client.with(|client| client.renew());
    client.with(|client| client.forget()).unwrap();
    client.enrol(0).unwrap();
    for number in 0..=ROUNDS {
        client.exchange(number, number).unwrap();
    }
    refused(client.exchange(ROUNDS + 1, ROUNDS + 1), "`join --renew`");
}

#[test]
fn an_exchange_is_answered_once() {
    let mut client = Asked::new(true);
    client.enrol(0).unwrap();
    let at = StepId::exchange(0, 1);
    let first = client.ask(Purpose::Exchange, at, down(0, 0)).unwrap();
    assert_eq!(client.ask(Purpose::Exchange, at, down(0, 0)).unwrap(), first);
    refused(client.ask(Purpose::Exchange, at, down(1, 0)), "again, with another message");
    // Whether it was accepted or dropped.
    client.with(|client| client.acknowledge(at, false));
    assert_eq!(client.ask(Purpose::Exchange, at, down(0, 0)).unwrap(), first);
    client.with(|client| client.acknowledge(at, false));
    refused(client.ask(Purpose::Exchange, at, down(2, 0)), "again, with another message");
    refused(client.exchange(0, 0), "exchange 1 of toy after exchange 2");
    assert_eq!(client.with(|client| client.ledger().stages[0].of_kind(0)), 1);
    // A stage does not begin anew, nor does an earlier one.
    let other = vec![Artifact::new("other")].to_bytes();
    let again = client.ask(Purpose::Enrol, StepId::enrolment(0), other);
    refused(again, "a second enrolment in stage 0, with another message");
    refused(client.enrol(0), "a second enrolment in stage 0, after exchanges of it");
    let forgotten = client.with(|client| client.forget()).unwrap_err().to_string();
    assert!(forgotten.contains("begins this stage anew"), "{forgotten}");
    client.enrol(1).unwrap();
    refused(client.enrol(0), "stage 0, which is over");
}

/// Random draws come from the number: the same message to another number has another answer.
#[test]
fn a_clients_number_stays_as_it_was() {
    let mut client = Asked::new(true);
    let (nothing, first) = (Vec::<Artifact>::new().to_bytes(), StepId::enrolment(0));
    client.ask(Purpose::Enrol, first, nothing.clone()).unwrap();
    let other = client.ask_as(3, Purpose::Enrol, first, nothing.clone());
    refused(other, "it asks client 3, and this client has been number 2");
    // Whether its enrolment was accepted or dropped.
    client.with(|client| client.acknowledge(first, false));
    refused(client.ask_as(3, Purpose::Enrol, first, nothing), "has been number 2");
    client.enrol(0).unwrap();
    let at = StepId::exchange(0, 0);
    client.ask(Purpose::Exchange, at, down(0, 0)).unwrap();
    refused(client.ask_as(7, Purpose::Exchange, at, down(0, 0)), "has been number 2");
    refused(client.ask_as(7, Purpose::Evaluate, at, 1.0f64.to_bytes()), "has been number 2");
    client.with(|client| client.renew());
    refused(client.ask_as(7, Purpose::Exchange, at, down(0, 0)), "has been number 2");
}

#[test]
fn evaluations_are_those_that_were_listed() {
    let mut client = Asked::new(true);
    client.enrol(0).unwrap();
    // Before the first round, after each second of at most four exchanges, and at the end.
    let first = client.evaluate(0, 1.0).unwrap();
    assert_eq!(client.evaluate(0, 1.0).unwrap(), first, "a repeated question does not count");
    refused(client.evaluate(0, 2.0), "an evaluation of toy again, with another message");
    client.exchange(0, 0).unwrap();
    client.evaluate(1, 1.0).unwrap();
    refused(client.evaluate(0, 1.0), "an earlier evaluation");
    client.exchange(1, 1).unwrap();
    client.evaluate(2, 1.0).unwrap();
    client.exchange(2, 2).unwrap();
    refused(client.evaluate(3, 1.0), "more evaluations of toy than the 3");
    // An evaluation of a state that the client has left would find another.
    let mut silent = Asked::new(false);
    silent.enrol(0).unwrap();
    refused(silent.evaluate(0, 1.0), "none was agreed to");
}

/// A client that takes its first steps with so much declared and agreed to; the bytes that left.
fn sent(up_bytes: usize, bytes_max: u64) -> (u64, Option<String>) {
    let consent = Consent { bytes_max, ..Consent::default() };
    let data = clients(3).remove(2).1;
    let mut client = ClientMachine::new(Participant {
        chain: Box::new(Short(up_bytes)),
        data,
        seed: 5,
        consent,
    });
    let mut ask = |purpose, at, message: Vec<u8>| {
        let question = Question { purpose, at, client: ClientId(2), message: message.into() };
        let answer = client.answer(&question).map(|answer| answer.len() as u64);
        client.accept();
        answer.map_err(|error| error.to_string())
    };
    let nothing = Vec::<Artifact>::new().to_bytes();
    let mut questions = vec![(Purpose::Enrol, StepId::enrolment(0), nothing)];
    for number in 0..=ROUNDS {
        let at = StepId::exchange(0, number);
        questions.push((Purpose::Exchange, at, down(number, number)));
        if number == 1 {
            questions.push((Purpose::Evaluate, StepId::exchange(0, 2), 1.0f64.to_bytes()));
        }
    }
    let mut sent = 0;
    for (purpose, at, message) in questions {
        match ask(purpose, at, message) {
            Ok(bytes) => sent += bytes,
            Err(said) => return (sent, Some(said)),
        }
    }
    (sent, None)
}

#[test]
fn no_more_bytes_leave_than_were_agreed_to() {
    let (all, said) = sent(0, u64::MAX);
    assert_eq!(said, None);
    assert_eq!(sent(0, all), (all, None), "just as much");
    for most in 0..all {
        let (left, said) = sent(0, most);
        let said = said.expect("more left than was agreed to");
        assert!(left <= most && said.contains(&format!("and {most} were agreed to")), "{said}");
    }
    // Each message by itself.
    let up = 8;
    assert_eq!(sent(up, all), (all, None));
    let (_, said) = sent(up - 1, all);
    let said = said.expect("a longer message left");
    assert!(
        said.contains(&format!("of {up} bytes in toy, and {} were agreed to", up - 1)),
        "{said}"
    );
}

/// After a renewal the ledger still says what left before it.
#[test]
fn a_ledger_knows_what_left_before_a_renewal() {
    let mut client = Asked::new(true);
    let first = client.enrol(0).unwrap().len() + client.exchange(0, 0).unwrap().len();
    let again = client.ask(Purpose::Exchange, StepId::exchange(0, 1), down(1, 1)).unwrap().len();
    // Dropped and asked for once more: the same bytes tell nothing new.
    client.with(|client| client.acknowledge(StepId::exchange(0, 1), false));
    client.exchange(1, 1).unwrap();
    let ledger = client.with(|client| client.ledger().clone());
    assert_eq!((ledger.bytes(), ledger.bytes_before), ((first + again) as u64, 0));
    client.with(|client| client.renew());
    let renewed = client.with(|client| client.ledger().clone());
    assert_eq!((renewed.bytes(), renewed.bytes_before), (0, ledger.bytes()));
    assert_eq!((renewed.before, renewed.answers()), (ledger.answers(), ledger.answers()));
}

/// A chain that declares longer uploads after something was delivered.
struct Growing;

impl Chain for Growing {
    fn len(&self) -> usize {
        1
    }

    fn build(&self, index: usize, delivered: &[Artifact]) -> Result<Stage> {
        Short(if delivered.is_empty() { 7 } else { 1000 }).build(index, delivered)
    }
}

/// Earlier results come from the coordinator: limits are those of the job alone.
#[test]
fn limits_do_not_grow_with_what_is_delivered() {
    let (data, consent) = (clients(3).remove(2).1, Consent::default());
    let chain = Box::new(Growing);
    let mut client = ClientMachine::new(Participant { chain, data, seed: 5, consent });
    let mut ask = |purpose, at, message: Vec<u8>| {
        let question = Question { purpose, at, client: ClientId(2), message: message.into() };
        let answer = client.answer(&question).map_err(|error| error.to_string());
        client.accept();
        answer
    };
    let delivered = vec![Artifact::new("invented")].to_bytes();
    ask(Purpose::Enrol, StepId::enrolment(0), delivered).unwrap();
    let answer = ask(Purpose::Exchange, StepId::exchange(0, 0), down(0, 0));
    refused(answer, "of 8 bytes in toy, and 7 were agreed to");
}
