//! The store of a client: the state that it keeps of its answers.

use crate::support::{SEED, Toys};
use crate::toy;
use whimbrel_core::Wire;
use whimbrel_core::method::Artifact;
use whimbrel_engine::Consent;
use whimbrel_engine::client::{Participant, StepId};
use whimbrel_net::client::ClientStore;
use whimbrel_net::proto::{Kind, Verdict};

/// The toy's message down: the round and the number of accepted uploads.
fn down(round: u32, known: u32) -> Vec<u8> {
    [round.to_le_bytes(), known.to_le_bytes()].concat()
}

/// A client whose enrolment was accepted.
fn enrolled(folder: &std::path::Path) -> ClientStore {
    let data = toy::clients(1).pop().unwrap().1;
    let chain = Box::new(Toys::new(1, 4));
    let participant = Participant { chain, data, seed: SEED, consent: Consent::default() };
    let mut store = ClientStore::open(participant, 1000, folder).unwrap();
    let nothing = Vec::<Artifact>::new().to_bytes();
    store.work(Kind::Enrol, StepId::enrolment(0), 0, &nothing).unwrap();
    store.acknowledged(Kind::Enrol, StepId::enrolment(0), true);
    store
}

/// An evaluation and the exchange after it share a step. The refusal of a late evaluation comes
/// while the exchange is staged, and the coordinator commits that exchange.
#[test]
fn a_late_evaluation_keeps_the_staged_exchange() {
    let folder = tempfile::tempdir().unwrap();
    let mut store = enrolled(folder.path());
    let at = StepId::exchange(0, 0);
    store.work(Kind::Exchange, at, 0, &down(0, 0)).unwrap();
    for accepted in [false, true] {
        store.acknowledged(Kind::Evaluate, at, accepted);
        assert_eq!(store.standing(), (Some(StepId::enrolment(0)), Some(at)));
    }
    store.acknowledged(Kind::Exchange, at, true);
    // The toy refuses a message that lacks this upload.
    store.work(Kind::Exchange, StepId::exchange(0, 1), 0, &down(1, 1)).unwrap();
}

#[test]
fn a_staged_upload_answers_only_its_own_message() {
    let folder = tempfile::tempdir().unwrap();
    let mut store = enrolled(folder.path());
    let at = StepId::exchange(0, 0);
    let first = store.work(Kind::Exchange, at, 0, &down(0, 0)).unwrap();
    // The same message again, as after a broken connection.
    assert_eq!(store.work(Kind::Exchange, at, 0, &down(0, 0)).unwrap(), first);
    // Another message for the same step is a violation.
    let other = store.work(Kind::Exchange, at, 0, &down(0, 1)).unwrap_err().to_string();
    assert!(other.contains("asks for exchange 1 of toy again, with another message"), "{other}");
    store.learn(Verdict::Accepted).unwrap();
    store.work(Kind::Exchange, StepId::exchange(0, 1), 0, &down(1, 1)).unwrap();
}
