//! A coordinator that lies under masks: each lie is refused by a client, or the server it runs has no
//! sum that holds the client.

use crate::federation::*;
use std::sync::Arc;
use whimbrel_codec::Inclusion;
use whimbrel_core::method::{Artifact, ClientGroup};
use whimbrel_core::{
    ClientData, ClientId, DynMethod, Erased, Key, Result, Shared, StateKind, Wire,
};
use whimbrel_data::Sizes;
use whimbrel_engine::{
    Agreement, ClientMachine, Consent, Machine, Participant, Participation, Protocol, Purpose,
    Question, Stage, StepId,
};
use whimbrel_methods::fedem::{self, Form};
use whimbrel_methods::federated::BindRows;
use whimbrel_methods::masked::{
    Accepted, Asked, BindMasked, Down, MaskSecret, Masked, Masks, Roster, ShortHash, Trust, Up,
    Watch,
};
use whimbrel_privacy::masks::{Enrolment, MaskClient, Survivors, hash_bytes};

const CLIENTS: usize = 5;
/// The client that is lied to.
const VICTIM: usize = 1;

type Message = Down<fedem::Down, fedem::Ask>;

/// Clients of a masked stage, and the coordinator's machine.
struct Town {
    machine: Machine,
    clients: Vec<ClientMachine>,
    participant: Box<dyn Fn(usize) -> Participant>,
    /// Names and identities of the clients, as users exchange them.
    lines: String,
}

impl Town {
    fn new(form: Form, trust: Trust) -> Self {
        let codec = crate::grid::codec(16, CLIENTS, Inclusion::Equal(1.0));
        let setup = Setup { codec, form, gamma: 0.1, rounds: 12, ..Setup::default() };
        let method = |trust: Trust| -> Arc<dyn DynMethod> {
            let secret = MaskSecret::Random([9; 32]);
            let masks = Masks { least: 3, clients: CLIENTS, seed: 1, secret, trust };
            Arc::new(Erased(Masked::new(setup.typed(), &masks), BindMasked(BindRows)))
        };
        let (of_clients, method) = (method(trust), method(Trust::default()));
        let tables = tables(CLIENTS, Sizes::Equal(40));
        let participant = move |i: usize| {
            let stage = Stage::new("fit", of_clients.clone());
            let stage = Stage { evaluate_every: Some(5), ..stage };
            let (chain, data) = (Box::new(vec![stage]), ClientData::Table(tables[i].clone()));
            Participant { chain, data, seed: 1, consent: Consent::default() }
        };
        let mut clients: Vec<ClientMachine> = Vec::new();
        let mut summaries = Vec::new();
        for i in 0..CLIENTS {
            let mut client = ClientMachine::new(participant(i));
            summaries.push(enrol(&mut client, i).unwrap());
            clients.push(client);
        }
        let roster = summaries.iter().zip(0..).map(|(s, i)| (ClientId(i), &s[..]));
        let roster: Vec<(ClientId, &[u8])> = roster.collect();
        let machine = Machine::start(method, keys(), Participation::Everyone, &roster).unwrap();
        let line = |(id, summary): &(ClientId, &[u8])| {
            let keys = Enrolment::take(&mut &summary[..]).unwrap();
            format!("c{id} {}\n", ShortHash::of_identity(&keys.identity))
        };
        let lines = roster.iter().map(line).collect();
        Self { machine, clients, participant: Box::new(participant), lines }
    }

    /// One step of an exchange: the refusals of clients and of the coordinator's own sum.
    fn step(
        &mut self,
        lie: impl Fn(&mut Message),
        falsify: impl Fn(&mut Up),
    ) -> Vec<(ClientId, String)> {
        let exchange = self.machine.open().unwrap().unwrap();
        let mut shard = self.machine.shard(&exchange);
        let mut refusals = Vec::new();
        for invited in exchange.cohort.clone() {
            let i = invited.id.0 as usize;
            let (peer, message) = self.machine.message(&exchange, invited.id).unwrap();
            let mut message = Message::from_bytes(&message.to_bytes()).unwrap();
            if i == VICTIM {
                lie(&mut message);
            }
            let at = StepId::exchange(0, exchange.number);
            let message = message.to_bytes().into();
            let question = Question { purpose: Purpose::Exchange, at, client: invited.id, message };
            let answer = self.clients[i].answer(&question).and_then(|up| {
                let mut up = Up::from_bytes(&up).unwrap();
                if i == VICTIM {
                    falsify(&mut up);
                }
                shard.accept(invited, peer, &up.to_bytes())
            });
            self.clients[i].acknowledge(at, answer.is_ok());
            refusals.extend(answer.err().map(|error| (invited.id, error.to_string())));
        }
        self.machine.close(exchange, vec![shard]).unwrap();
        refusals
    }

    /// A copy of the lied-to client, which answers the next question with a lie and is told that its
    /// answer counts or not, while the client itself answers in truth.
    fn forks(
        &self,
        twin: Option<ClientMachine>,
        lie: fn(&mut Message),
        counts: bool,
    ) -> ClientMachine {
        let copy = || {
            let saved = self.clients[VICTIM].save();
            ClientMachine::load((self.participant)(VICTIM), &saved).unwrap()
        };
        let mut twin = twin.unwrap_or_else(copy);
        let exchange = self.machine.open().unwrap().unwrap();
        let (_, message) = self.machine.message(&exchange, id()).unwrap();
        let mut message = Message::from_bytes(&message.to_bytes()).unwrap();
        lie(&mut message);
        let at = StepId::exchange(0, exchange.number);
        let message = message.to_bytes().into();
        let question = Question { purpose: Purpose::Exchange, at, client: id(), message };
        twin.answer(&question).unwrap();
        twin.acknowledge(at, counts);
        twin
    }

    fn honest(&mut self, steps: usize) {
        for _ in 0..steps {
            let refusals = self.step(|_| (), |_| ());
            assert!(refusals.is_empty(), "{refusals:?}");
        }
    }
}

fn enrol(client: &mut ClientMachine, number: usize) -> Result<Vec<u8>> {
    let (purpose, at) = (Purpose::Enrol, StepId::enrolment(0));
    let message = Vec::<Artifact>::new().to_bytes().into();
    let question = Question { purpose, at, client: ClientId(number as u32), message };
    let answer = client.answer(&question);
    client.acknowledge(at, answer.is_ok());
    answer
}

/// One lie to one client, after some honest steps: the others answer, the lie is refused by the
/// client, or its answer does not fit the others'.
#[test]
fn lies_to_one_client() {
    type Lie = (&'static str, Form, usize, fn(&mut Message), &'static str);
    let cases: [Lie; 12] = [
        ("cohort of one", Form::Pair, 0, |m| asked(m).cohort = vec![id()], "a cohort of 1"),
        (
            "cohort without the client",
            Form::Pair,
            0,
            |m| asked(m).cohort.retain(|i| *i != id()),
            "the cohort lacks this client",
        ),
        ("smaller cohort", Form::Pair, 0, |m| asked(m).cohort.truncate(4), "answers another task"),
        ("replayed task", Form::Pair, 3, |m| asked(m).exchange = 0, "exchange 0 is over"),
        ("skipped exchange", Form::Pair, 3, |m| asked(m).exchange += 1, "answers another task"),
        ("void list", Form::Pair, 3, |m| asked(m).history.voids = vec![0], "answers another task"),
        ("altered grid", Form::Pair, 3, alter_grid, "answers another task"),
        ("split view of the model", Form::Pair, 3, alter_model, "answers another task"),
        (
            "private part",
            Form::State,
            3,
            |m| asked(m).message.private.as_mut().unwrap()[0] += 1e-9,
            "answers another task",
        ),
        ("survivors", Form::Pair, 1, leave_one_out, "did not vouch for the survivors"),
        (
            "two survivors",
            Form::Pair,
            1,
            |m| survivors(m).survivors.truncate(2),
            "2 survivors: at least 3 were agreed",
        ),
        ("second vouch", Form::Pair, 2, second_vouch, "a step of another exchange"),
    ];
    for (name, form, after, lie, why) in cases {
        let mut town = Town::new(form, Trust::default());
        town.honest(after);
        let refusals = town.step(lie, |_| ());
        let fits = matches!(&refusals[..], [(of, said)] if *of == id() && said.contains(why));
        assert!(fits, "{name}: {refusals:?}");
    }
}

/// The same lies within an evaluation, and an evaluation beside it.
#[test]
fn lies_about_evaluations() {
    type Lie = (&'static str, usize, fn(&mut Message), &'static str);
    let cases: [Lie; 8] = [
        ("cohort of one", 0, |m| judged(m).cohort = vec![id()], "a cohort of 1"),
        ("smaller cohort", 0, |m| judged(m).cohort.truncate(4), "answers another task"),
        ("replayed task", 0, |m| judged(m).exchange = 0, "exchange 0 is over"),
        ("void list", 0, |m| judged(m).history.voids = vec![0], "answers another task"),
        ("split view of the model", 0, alter_model, "answers another task"),
        (
            "draws of an earlier exchange",
            0,
            |m| judged(m).history.evaluations += 100,
            "it counts 300 exchanges as evaluations",
        ),
        ("survivors", 1, leave_one_out, "did not vouch for the survivors"),
        ("second vouch", 2, second_vouch, "a step of another exchange"),
    ];
    for (name, after, lie, why) in cases {
        let mut town = Town::new(Form::Pair, Trust::default());
        town.honest(3);
        assert!(town.machine.begin_evaluation().unwrap(), "{name}");
        town.honest(after);
        let refusals = town.step(lie, |_| ());
        let fits = matches!(&refusals[..], [(of, said)] if *of == id() && said.contains(why));
        assert!(fits, "{name}: {refusals:?}");
    }
}

/// An evaluation is a masked sum over everyone, counted and refused beyond the agreement; a question
/// outside of it gets an empty answer.
#[test]
fn evaluations_under_masks_are_counted_and_have_no_other_way() {
    let mut town = Town::new(Form::Pair, Trust::default());
    town.honest(3);
    let objective = |town: &mut Town| {
        assert!(town.machine.begin_evaluation().unwrap());
        town.honest(3);
        assert!(!town.machine.begin_evaluation().unwrap(), "its sums are there");
        let (server, method) = (town.machine.server(), town.machine.method());
        let metrics = method.conclude(server, &mut std::iter::empty(), ClientGroup::Trained);
        let metrics = metrics.unwrap().into_iter();
        metrics.filter(|metric| metric.name == "objective").count()
    };
    let stage = Stage::new("fit", town.machine.method().clone());
    let agreed = Agreement::of(&Stage { evaluate_every: Some(5), ..stage }, &Consent::default());
    let kinds = agreed.unwrap().kinds;
    let most = kinds.iter().find(|kind| kind.name == "evaluations").unwrap().most;
    // One in five of the rounds and of the openings, which may be repeated.
    assert!((3..=12).contains(&most), "{most}");
    for _ in 0..most {
        assert_eq!(objective(&mut town), 1);
        town.honest(3);
    }
    let message = ().to_bytes().into();
    let at = StepId::exchange(0, town.machine.exchanges());
    let question = Question { purpose: Purpose::Evaluate, at, client: id(), message };
    let said = town.clients[VICTIM].answer(&question).unwrap_err().to_string();
    assert!(said.contains("an evaluation of fit, and none was agreed to"), "{said}");
    town.machine.begin_evaluation().unwrap();
    let refusals = town.step(|_| (), |_| panic!("an answer left"));
    let why = format!("of the kind `evaluations` than the {most} that were agreed to");
    assert!(refusals.len() == CLIENTS, "{refusals:?}");
    assert!(refusals.iter().all(|(_, said)| said.contains(&why)), "{refusals:?}");
}

/// Sums with and without a client differ by its own part: no answer leaves without `--partial-rounds`.
#[test]
fn sums_without_a_client_of_the_roster_are_refused() {
    type Lie = (&'static str, usize, fn(&mut Message));
    let cases: [Lie; 2] =
        [("cohort", 0, |m| asked(m).cohort.truncate(4)), ("survivors", 1, leave_one_out)];
    let trust = Trust { whole: true, ..Trust::default() };
    for (name, after, lie) in cases {
        let mut town = Town::new(Form::Pair, trust);
        town.honest(after);
        let entries = town.clients[VICTIM].ledger().entries();
        let refusals = town.step(lie, |_| panic!("{} left", "an answer"));
        let why = "of a roster of";
        let fits = matches!(&refusals[..], [(_, said)] if said.contains(why));
        assert!(fits, "{name}: {refusals:?}");
        assert_eq!(town.clients[VICTIM].ledger().entries(), entries, "{name}");
    }
    Town::new(Form::Pair, trust).honest(6);
}

/// A client whose memory follows another model than the others know of is refused by its own next
/// answer, in rounds and in evaluations, with and without `--partial-rounds`: the sum less the others'
/// part would be the difference of two gradients of its own.
#[test]
fn a_client_with_another_past_sends_nothing() {
    for whole in [false, true] {
        for evaluates in [false, true] {
            let mut town = Town::new(Form::Pair, Trust { whole, ..Trust::default() });
            town.honest(6);
            let twin = town.forks(None, alter_model, true);
            town.honest(3);
            town.clients[VICTIM] = twin;
            assert!(!evaluates || town.machine.begin_evaluation().unwrap());
            let refusals = town.step(|_| (), |_| panic!("an answer left"));
            let why = "the last sum belongs to another task";
            let fits = matches!(&refusals[..], [(of, said)] if *of == id() && said.contains(why));
            assert!(fits, "whole: {whole}, evaluates: {evaluates}: {refusals:?}");
        }
    }
    // Named to the client alone, the task that it answered binds its masks and leaves noise.
    let mut town = Town::new(Form::Pair, Trust::default());
    town.honest(6);
    let refusals = town.step(|m| asked(m).history.base[0] ^= 1, |_| panic!("an answer left"));
    assert!(matches!(&refusals[..], [(_, said)] if said.contains("another task")), "{refusals:?}");
}

/// A client whose uploads of some rounds were refused to it alone would return with a memory of
/// long ago, though nobody was missing: without `--partial-rounds` it sends nothing.
#[test]
fn a_client_whose_uploads_were_refused_does_not_return() {
    for whole in [false, true] {
        let mut town = Town::new(Form::Pair, Trust { whole, ..Trust::default() });
        town.honest(6);
        let mut twin = None;
        // Without partial rounds the first refusal is the last.
        for _ in 0..if whole { 1 } else { 3 } {
            twin = Some(town.forks(twin, |_| (), false));
            town.honest(3);
        }
        town.clients[VICTIM] = twin.unwrap();
        let refusals = town.step(|_| (), |_| assert!(!whole, "an answer left"));
        let why = "the last sum lacks this client";
        match &refusals[..] {
            [(of, said)] => assert!(whole && *of == id() && said.contains(why), "{said}"),
            _ => assert!(!whole && refusals.is_empty(), "{refusals:?}"),
        }
    }
}

fn id() -> ClientId {
    ClientId(VICTIM as u32)
}

fn leave_one_out(message: &mut Message) {
    let told = survivors(message);
    told.survivors.pop();
    told.boxes.pop();
}

/// Another set of survivors in place of the vouches for the first one.
fn second_vouch(message: &mut Message) {
    let Down::Vouches(vouches) = message else { panic!("not the last step") };
    let told = Survivors {
        exchange: vouches.exchange,
        task: [0; 32],
        survivors: (0..4).map(ClientId).collect(),
        boxes: Vec::new(),
    };
    *message = Down::Survivors(told);
}

fn survivors(message: &mut Message) -> &mut Survivors {
    let Down::Survivors(told) = message else { panic!("not the second step") };
    told
}

fn asked(message: &mut Message) -> &mut Asked<fedem::Down> {
    let Down::Upload(asked) = message else { panic!("not the first step") };
    asked
}

fn judged(message: &mut Message) -> &mut Asked<Shared<fedem::Ask>> {
    let Down::Evaluate(asked) = message else { panic!("not the first step of an evaluation") };
    asked
}

fn alter_grid(message: &mut Message) {
    let grid = asked(message).message.grid.as_mut().unwrap();
    grid.total += 1.0;
}

fn alter_model(message: &mut Message) {
    // The last number of the model, in its last bit but a few.
    let mut bytes = message.to_bytes();
    let last = bytes.len() - 8;
    bytes[last] ^= 16;
    *message = Message::from_bytes(&bytes).unwrap();
}

/// Stored states have a version: those of another one, or without one, are refused by name.
#[test]
fn states_of_another_version_are_refused() {
    let mut town = Town::new(Form::Pair, Trust::default());
    town.honest(4);
    let method = town.machine.method().clone();
    let rows = method.bind(&ClientData::Table(tables(1, Sizes::Equal(40)).remove(0))).unwrap();
    let (client, _) = method.enroll(&rows, Key::root(1)).unwrap();
    let states =
        [(StateKind::Server, town.machine.server().save()), (StateKind::Client, client.save())];
    for (kind, whole) in states {
        assert_eq!(method.load(kind, &whole).unwrap().save(), whole);
        let mut other = whole.clone();
        other[4] = 7;
        for (bytes, version) in [(&other[..], 7), (&whole[5..], 1)] {
            let said = method.load(kind, bytes).err().unwrap().to_string();
            let why =
                format!("it has version {version}, this program reads 3\nhint: finish the run");
            assert!(said.contains(&why), "{kind:?}: {said}");
        }
    }
}

/// A new enrolment would have new masks for old exchanges.
#[test]
fn a_second_enrolment_under_masks_is_refused() {
    let mut town = Town::new(Form::Pair, Trust::default());
    town.honest(3);
    let said = enrol(&mut town.clients[VICTIM], VICTIM).unwrap_err().to_string();
    assert!(said.contains("a second enrolment in stage 0, after exchanges of it"), "{said}");
}

/// A client's false words, shares and low-order keys leave a void round, or are refused: the run
/// goes on.
#[test]
fn a_lying_client_ends_no_run() {
    type Lie = (&'static str, usize, fn(&mut Up));
    let cases: [Lie; 3] = [
        // A number of clips that no client has.
        ("words", 6, |up| {
            let Up::Words(words) = up else { panic!("not the first step") };
            words.body.iter_mut().rev().take(8).for_each(|byte| *byte ^= 0x5a);
        }),
        ("boxes", 0, |up| {
            let Up::Words(words) = up else { panic!("not the first step") };
            words.boxes.iter_mut().for_each(|sealed| sealed[20] ^= 1);
        }),
        ("shares", 2, |up| {
            let Up::Shares(shares) = up else { panic!("not the last step") };
            shares.shares.reverse();
        }),
    ];
    for (name, after, falsify) in cases {
        let mut town = Town::new(Form::Pair, Trust::default());
        town.honest(after);
        let refusals = town.step(|_| (), falsify);
        assert!(refusals.is_empty(), "{name}: {refusals:?}");
        town.honest(11 - after);
    }
}

/// False keys for all other clients, made by the coordinator.
fn forge(message: &mut Message) {
    let run = hash_bytes(&("whimbrel masks".to_owned(), 1u64).to_bytes());
    for (other, keys) in asked(message).newcomers.iter_mut().filter(|(other, _)| *other != id()) {
        *keys = MaskClient::new([other.0 as u8; 32], run).enrol();
    }
}

struct Only(Accepted);

impl Watch for Only {
    fn roster(&self, roster: &Roster) -> Result<()> {
        self.0.check(roster)
    }
    fn unopened(&self, _: ClientId, _: Option<ClientId>) {}
}

/// Without an accepted roster a client masks its words for false keys, whose owner can remove them
/// (`false_keys_open_a_client_and_an_accepted_roster_refuses_them`). With one, nothing leaves.
#[test]
fn false_keys_are_refused_before_a_masked_word_leaves() {
    let mut town = Town::new(Form::Pair, Trust::default());
    let refusals = town.step(forge, |up| assert!(matches!(up, Up::Words(..))));
    // The honest sum does not take them: a coordinator that forges keys has another one.
    assert!(matches!(&refusals[..], [(_, said)] if said.contains("another task")), "{refusals:?}");
    assert_eq!(town.clients[VICTIM].ledger().entries(), 2);

    let watch: &'static Only = Box::leak(Box::new(Only(Accepted::parse(&town.lines).unwrap())));
    let trust = Trust { watch: Some(watch), ..Trust::default() };
    let mut town = Town::new(Form::Pair, trust);
    let refusals = town.step(forge, |_| panic!("an answer left"));
    let why = "is not on the accepted roster";
    assert!(matches!(&refusals[..], [(_, said)] if said.contains(why)), "{refusals:?}");
    assert_eq!(town.clients[VICTIM].ledger().entries(), 1);
    // The true roster is accepted, by all of its clients.
    Town::new(Form::Pair, trust).honest(6);
}
