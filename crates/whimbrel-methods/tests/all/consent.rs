//! A coordinator that asks for a statistic again, at parameters of its choice.

use crate::federation::*;
use std::sync::Arc;
use whimbrel_core::method::Artifact;
use whimbrel_core::{ClientData, ClientId, DynMethod, Result, Wire};
use whimbrel_engine::keys::StageKeys;
use whimbrel_engine::{
    Chain, ClientMachine, Consent, Faults, Machine, Participant, Participation, Purpose, Question,
    Stage, StepId, Stopping,
};

struct Fit(Arc<dyn DynMethod>);

impl Chain for Fit {
    fn len(&self) -> usize {
        1
    }

    fn build(&self, _: usize, _: &[Artifact]) -> Result<Stage> {
        Ok(Stage {
            name: "fit",
            method: self.0.clone().into(),
            participation: Participation::Everyone,
            faults: Faults::default(),
            evaluate_every: None,
            stopping: Stopping::default(),
        })
    }
}

/// The first question of a server that starts from these clients: its parameters depend on them.
fn first_question(method: &Arc<dyn DynMethod>, summaries: &[(ClientId, &[u8])]) -> Vec<u8> {
    let keys = StageKeys::new(summaries.len() as u64, 0);
    let machine = Machine::start(method.clone(), keys, Participation::Everyone, summaries).unwrap();
    let exchange = machine.open().unwrap().unwrap();
    machine.message(&exchange, ClientId(0)).unwrap().1.to_bytes()
}

#[test]
fn the_exact_statistic_is_told_once() {
    let setup = dithered(12);
    let method: Arc<dyn DynMethod> = setup.erased();
    let clients: Vec<ClientData> = unequal(14).into_iter().map(ClientData::Table).collect();
    let summary = |i: u32| {
        let data = method.bind(&clients[i as usize]).unwrap();
        method.enroll(&data, StageKeys::new(3, 0).enrol(ClientId(i))).unwrap().1
    };
    let summaries: Vec<Vec<u8>> = (0..4).map(summary).collect();
    let roster: Vec<(ClientId, &[u8])> =
        summaries.iter().zip(0..).map(|(s, i)| (ClientId(i), &s[..])).collect();
    let participant = Participant {
        chain: Box::new(Fit(method.clone())),
        data: clients[0].clone(),
        seed: 3,
        consent: Consent::default(),
    };
    let mut client = ClientMachine::new(participant);
    let mut ask = |purpose, at, message: Vec<u8>| {
        let question = Question { purpose, at, client: ClientId(0), message: message.into() };
        let answer = client.answer(&question).map_err(|e| e.to_string());
        client.acknowledge(at, true);
        answer
    };
    let nothing = Vec::<Artifact>::new().to_bytes();
    ask(Purpose::Enrol, StepId::enrolment(0), nothing).unwrap();
    let first = first_question(&method, &roster);
    // Other parameters, if only in the last bit of one.
    let mut other = first.clone();
    let last = other.len() - 8;
    other[last] ^= 1;
    ask(Purpose::Exchange, StepId::exchange(0, 0), first.clone()).unwrap();
    // Nobody was heard: the same question again tells nothing new.
    ask(Purpose::Exchange, StepId::exchange(0, 1), first).unwrap();
    let said = ask(Purpose::Exchange, StepId::exchange(0, 2), other).unwrap_err();
    assert!(said.contains("of the kind `first state` than the 1"), "{said}");
}
