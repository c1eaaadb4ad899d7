//! The round protocol, fed by hand.

use crate::toy::{Client, Peer, SOUND, Server, Toy, clients, erased, federation, invariants, view};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use whimbrel_core::{Bound, ClientId, DynMethod, Error, Opaque, Result, Wire};
use whimbrel_engine::keys::StageKeys;
use whimbrel_engine::machine::{Exchange, Shard};
use whimbrel_engine::{Faults, Journal, Machine, Participation, Protocol, Simulator};

fn keys() -> StageKeys {
    StageKeys::new(3, 0)
}

/// A machine with three clients in its first round, and the clients' first states.
struct Hands {
    method: Arc<dyn DynMethod>,
    data: Vec<Bound>,
    clients: Vec<Opaque>,
    machine: Machine,
}

impl Hands {
    fn new(method: Arc<dyn DynMethod>) -> Self {
        let bind = |(_, data)| method.bind(&data).unwrap();
        let data: Vec<Bound> = clients(3).into_iter().map(bind).collect();
        let enrolled: Vec<_> =
            data.iter().map(|d| method.enroll(d, keys().enrol(ClientId(0))).unwrap()).collect();
        let (clients, summaries): (Vec<_>, Vec<_>) = enrolled.into_iter().unzip();
        let roster: Vec<(ClientId, &[u8])> =
            summaries.iter().enumerate().map(|(i, s)| (ClientId(i as u32), &s[..])).collect();
        let machine =
            Machine::start(method.clone(), keys(), Participation::Everyone, &roster).unwrap();
        Self { method, data, clients, machine }
    }

    /// Sends down, computes, and hands the upload to a shard.
    fn upload(&self, exchange: &Exchange, rank: usize, shard: &mut Shard) {
        let invited = exchange.cohort[rank];
        let i = invited.id.0 as usize;
        let (peer, down) = self.machine.message(exchange, invited.id).unwrap();
        let key = exchange.keys.local(invited.id);
        let done = self.method.local_step(&self.clients[i], &down, &self.data[i], key).unwrap();
        shard.accept(invited, peer, &done.up).unwrap();
    }
}

/// A simulation of the toy.
fn start(
    toy: Toy,
    clients: u32,
    participation: Participation,
    faults: Faults,
) -> Result<Simulator> {
    let method = erased(toy);
    let federation = federation(&*method, clients);
    Simulator::start(method, federation, keys(), participation, faults)
}

fn no_opening() -> Toy {
    Toy { opening: false, ..SOUND }
}

#[test]
fn only_accepted_uploads_move_the_servers_records() {
    let method = erased(no_opening());
    let mut hands = Hands::new(method);
    let exchange = hands.machine.open().unwrap().unwrap();
    let mut shard = hands.machine.shard(&exchange);
    hands.upload(&exchange, 1, &mut shard);
    // A message alone moves nothing.
    hands.machine.message(&exchange, ClientId(2)).unwrap();
    assert_eq!(hands.machine.close(exchange, vec![shard]).unwrap(), [ClientId(1)]);
    let accepted =
        [0, 1, 2].map(|i| view::<Peer>(hands.machine.peer(ClientId(i)).unwrap()).accepted);
    assert_eq!(accepted, [0, 1, 0]);
}

/// The exchange cannot be closed so, and the machine stays where it was.
fn refused(hands: &mut Hands, exchange: Exchange, shards: Vec<Shard>, why: &str) {
    let before = hands.machine.save().unwrap();
    let error = hands.machine.close(exchange, shards).unwrap_err();
    assert!(error.to_string().contains(why), "{error}");
    assert_eq!(hands.machine.save().unwrap(), before);
}

#[test]
fn an_upload_counts_once_and_only_if_it_was_asked_for() {
    let method = erased(no_opening());
    let mut hands = Hands::new(method);
    let exchange = hands.machine.open().unwrap().unwrap();
    let mut shards = [(); 2].map(|()| hands.machine.shard(&exchange));
    shards.iter_mut().for_each(|shard| hands.upload(&exchange, 1, shard));
    refused(&mut hands, exchange, shards.into(), "client 1 was accepted twice");

    let mut exchange = hands.machine.open().unwrap().unwrap();
    let mut shard = hands.machine.shard(&exchange);
    hands.upload(&exchange, 2, &mut shard);
    exchange.cohort.truncate(2);
    refused(&mut hands, exchange, vec![shard], "client 2 was accepted but never asked");

    let exchange = hands.machine.open().unwrap().unwrap();
    let stale = hands.machine.shard(&exchange);
    hands.machine.close(exchange, Vec::new()).unwrap();
    let exchange = hands.machine.open().unwrap().unwrap();
    let why = "uploads of exchange 0 were gathered for exchange 1";
    refused(&mut hands, exchange, vec![stale], why);
}

#[test]
fn a_malformed_upload_is_refused_and_the_others_still_count() {
    let method = erased(no_opening());
    let mut hands = Hands::new(method);
    let exchange = hands.machine.open().unwrap().unwrap();
    let mut shard = hands.machine.shard(&exchange);
    hands.upload(&exchange, 0, &mut shard);
    for up in [&b""[..], b"short", b"far too long a message", &f64::NAN.to_le_bytes()] {
        let (peer, _) = hands.machine.message(&exchange, ClientId(1)).unwrap();
        assert!(shard.accept(exchange.cohort[1], peer, up).is_err());
    }
    assert_eq!(hands.machine.close(exchange, vec![shard]).unwrap(), [ClientId(0)]);
}

#[test]
fn a_client_is_admitted_once() {
    let method = erased(no_opening());
    let mut hands = Hands::new(method);
    let before = hands.machine.save().unwrap();
    let error = hands.machine.admit(ClientId(1), &1u32.to_bytes()).unwrap_err();
    assert!(matches!(error, Error::Peer { .. }), "{error}");
    assert_eq!(hands.machine.save().unwrap(), before);
}

#[test]
fn an_empty_cohort_is_a_round() {
    let mut simulator = start(SOUND, 4, Participation::Fixed(0), Faults::default()).unwrap();
    while let Some(done) = simulator.step().unwrap() {
        invariants(&simulator).unwrap();
        assert_eq!(done.cohort.is_empty(), done.round.is_some());
    }
    assert_eq!(simulator.machine().round(), SOUND.rounds);
}

#[test]
fn lost_uploads_are_counted_as_bytes_and_not_as_rounds() {
    let drops = (1..=SOUND.rounds).map(|r| (r, BTreeSet::from([ClientId(1)]))).collect();
    let faults = Faults { drops, ..Faults::default() };
    let mut simulator = start(no_opening(), 2, Participation::Everyone, faults).unwrap();
    while simulator.step().unwrap().is_some() {}
    let [heard, lost] = [0, 1].map(|i| simulator.tallies()[i]);
    assert_eq!((heard.rounds, lost.rounds), (SOUND.rounds, 0));
    assert_eq!((heard.bytes_up, heard.bytes_down), (lost.bytes_up, lost.bytes_down));
    assert_eq!(view::<Client>(&simulator.clients()[1]).accepted, 0);
}

#[test]
fn nobody_joins_a_run_that_is_over() {
    let late = BTreeMap::from([(ClientId(1), SOUND.rounds + 1)]);
    let faults = Faults { late, ..Faults::default() };
    let mut simulator = start(SOUND, 2, Participation::Everyone, faults).unwrap();
    while simulator.step().unwrap().is_some() {}
    assert_eq!(simulator.machine().enrolled(), [ClientId(0)]);
    assert_eq!(simulator.tallies()[1].bytes_up, 0, "it never said anything");
}

#[test]
fn faults_that_name_nobody_are_refused() {
    let faults = Faults { late: BTreeMap::from([(ClientId(2), 1)]), ..Faults::default() };
    let start = start(SOUND, 2, Participation::Everyone, faults);
    assert!(matches!(start.err(), Some(Error::Config { .. })));
}

#[test]
fn an_opening_that_nobody_ever_answers_ends_in_an_error() {
    let faults = Faults { lost: 1.0, ..Faults::default() };
    let mut simulator = start(SOUND, 2, Participation::Everyone, faults).unwrap();
    let error = (0..2000).find_map(|_| simulator.step().err()).expect("the run gives up");
    assert!(matches!(error, Error::Peer { .. }), "{error}");
}

#[test]
fn a_replay_ends_where_its_journal_does() {
    let lines = concat!(
        "{\"stage\":0,\"enrolled\":\"0-1\"}\n",
        "{\"stage\":0,\"exchange\":0,\"round\":null,\"cohort\":\"0-1\",\"accepted\":\"0\"}\n"
    );
    let replay = Some(Journal::parse(lines, 0).unwrap());
    let faults = Faults { replay, ..Faults::default() };
    let mut simulator = start(SOUND, 2, Participation::Everyone, faults).unwrap();
    assert_eq!(simulator.step().unwrap().unwrap().accepted, [ClientId(0)]);
    let error = simulator.step().unwrap_err().to_string();
    assert_eq!(error, "journal: it ends before exchange 1");
}

#[test]
fn divergence_names_the_round() {
    for (growth, round) in [(2000.0, 2), (f64::INFINITY, 1), (f64::NAN, 1)] {
        let mut simulator =
            start(Toy { growth, ..no_opening() }, 2, Participation::Everyone, Faults::default())
                .unwrap();
        let error = (0..SOUND.rounds).find_map(|_| simulator.step().err()).expect("it diverges");
        let Error::Numerical { round: Some(at), .. } = error else { panic!("{error}") };
        assert_eq!(at, round, "growth {growth}");
    }
}

#[test]
fn the_first_failure_is_reported_whatever_the_threads() {
    // Whether others fail before the first does is chance: fifty tries.
    let pool = rayon::ThreadPoolBuilder::new().num_threads(4).build().unwrap();
    for _ in 0..50 {
        pool.install(|| {
            let mut simulator = start(
                Toy { fails: Some((ClientId(5), 2)), ..no_opening() },
                40,
                Participation::Everyone,
                Faults::default(),
            )
            .unwrap();
            simulator.step().unwrap();
            let before: Server = view::<Server>(simulator.machine().server()).clone();
            let error = simulator.step().unwrap_err();
            assert_eq!(error.to_string(), "round 2: client `c05`: the numbers of client 5 failed");
            // Nothing of a failed exchange can be gone on with, or saved.
            assert!(matches!(simulator.step(), Err(Error::Internal { .. })));
            assert!(matches!(simulator.save(), Err(Error::Internal { .. })));
            assert_eq!(before.round, view::<Server>(simulator.machine().server()).round);
        });
    }
}
