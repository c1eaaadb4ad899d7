//! A lying server: clients refuse, or the round is void.

use crate::federation::{
    Federation, Lost, RUN, clients, id, plain_sum, refused, roster, task, words,
};
use whimbrel_core::{ClientId, Segment, Wire};
use whimbrel_privacy::masks::{
    Accepted, Enrolment, MaskClient, MaskServer, MaskTask, Outcome, Roster, ShortHash, Survivors,
    Vouch, Vouches,
};

/// Five clients after their uploads.
fn uploaded() -> Federation {
    let mut federation = Federation::new(5);
    assert_eq!(federation.upload_all(3, &[Lost::Never; 5]).len(), 5);
    federation
}

/// The message of a server that leaves out one client, to another one.
fn without(federation: &Federation, left_out: usize, to: usize) -> Survivors {
    let mut message = federation.server.survivors(id(to)).unwrap();
    message.survivors.retain(|&i| i != id(left_out));
    // The receiver's own box is not sent, so the places after it move.
    message.boxes.remove(left_out - usize::from(left_out > to));
    message
}

#[test]
fn a_client_answers_for_one_set_of_survivors_ever() {
    let mut federation = uploaded();
    let honest = federation.server.survivors(id(0)).unwrap();
    let vouch = federation.clients[0].vouch(&honest).unwrap();
    assert_eq!(federation.clients[0].vouch(&honest).unwrap(), vouch);
    federation.restarts = true;
    let other = without(&federation, 4, 0);
    refused(federation.client(0).vouch(&other), "other survivors");
}

#[test]
fn two_sets_told_to_two_groups_unmask_nothing() {
    let mut federation = uploaded();
    // Three are told of five survivors, two of four: neither set has the vouches of four clients.
    let mut vouches = Vec::new();
    for i in 0..5 {
        let message = match i {
            0..3 => federation.server.survivors(id(i)).unwrap(),
            _ => without(&federation, 0, i),
        };
        vouches.push((id(i), federation.clients[i].vouch(&message).unwrap().signature));
    }
    for group in [0..3, 3..5] {
        let told = |signatures: &[_]| Vouches { exchange: 3, signatures: signatures.to_vec() };
        for i in group.clone() {
            refused(federation.clients[i].shares(&told(&vouches)), "same survivors");
            refused(federation.clients[i].shares(&told(&vouches[group.clone()])), "4 must");
        }
    }
    assert!(federation.server.close_vouches().unwrap().is_none());
    assert!(matches!(federation.server.finish().unwrap(), Outcome::Void { .. }));
}

#[test]
fn forged_repeated_and_foreign_vouches_are_refused() {
    let mut federation = uploaded();
    federation.vouch_all(&[Lost::Never; 5]);
    let honest = federation.server.close_vouches().unwrap().unwrap();
    let altered = |change: fn(&mut Vouches)| {
        let mut vouches = honest.clone();
        change(&mut vouches);
        vouches
    };
    let client = &federation.clients[0];
    refused(client.shares(&altered(|v| v.signatures[2].1[5] ^= 1)), "same survivors");
    refused(client.shares(&altered(|v| v.signatures[2].0 = ClientId(8))), "same survivors");
    refused(client.shares(&altered(|v| v.signatures[1] = v.signatures[0])), "ascending");
    refused(client.shares(&altered(|v| v.signatures.truncate(3))), "4 must");
    refused(client.shares(&altered(|v| v.exchange = 4)), "no upload");
    client.shares(&altered(|v| v.signatures.truncate(4))).unwrap();
}

#[test]
fn false_survivors_are_refused() {
    let federation = uploaded();
    let honest = federation.server.survivors(id(0)).unwrap();
    let refuses = |word: &str, change: fn(&mut Survivors)| {
        let (mut message, mut client) = (honest.clone(), federation.clients[0].clone());
        change(&mut message);
        refused(client.vouch(&message), word);
        // A refusal fixes nothing: the honest set is still answered for.
        client.vouch(&honest).unwrap();
    };
    refuses("no upload", |m| m.exchange = 2);
    refuses("another task", |m| m.task[0] ^= 1);
    refuses("subset", |m| m.survivors.push(ClientId(99)));
    refuses("subset", |m| m.survivors.swap(1, 2));
    refuses("subset", |m| m.survivors[2] = m.survivors[1]);
    refuses("at least 3", |m| m.survivors.truncate(2));
    refuses("this client among", |m| m.survivors.retain(|i| *i != id(0)));
    refuses("missing", |m| m.boxes.truncate(m.boxes.len() - 1));
    refuses("more sealed boxes", |m| m.boxes.push(Vec::new()));
}

#[test]
fn small_foreign_and_replayed_tasks_are_refused() {
    let mut federation = uploaded();
    let client = &mut federation.clients[1];
    let refuses =
        |client: &mut MaskClient, word: &str, change: fn(&mut MaskTask, &mut Vec<Segment>)| {
            let (mut task, mut words) = (task(5, 3), words(1, 3));
            change(&mut task, &mut words);
            refused(client.upload(&task, &words), word);
        };
    refuses(client, "at least 3", |task, _| task.cohort = vec![id(1)]);
    refuses(client, "lacks this client", |task, _| task.cohort.retain(|i| *i != id(1)));
    refuses(client, "not on the roster", |task, _| task.cohort.push(ClientId(99)));
    refuses(client, "ascending", |task, _| task.cohort.swap(0, 1));
    refuses(client, "form", |_, words| words.truncate(words.len() - 1));
    refuses(client, "is over", |task, _| task.exchange = 2);
    refuses(client, "another upload", |task, _| task.content[0] ^= 1);
    refuses(client, "another upload", |task, _| task.cohort.truncate(task.cohort.len() - 1));
    refuses(client, "another upload", |_, words| words[0].words[0] ^= 1);
    // The same task and words give the same bytes.
    let sent = federation.sent[1].clone();
    let again = federation.clients[1].upload(&task(5, 3), &words(1, 3)).unwrap();
    assert!(again.to_bytes() == sent);
}

#[test]
fn a_client_with_another_model_leaves_a_void_round() {
    let mut federation = Federation::new(5);
    let (honest, mut other) = (task(5, 0), task(5, 0));
    other.content = [77; 32];
    federation.server.open(honest.clone()).unwrap();
    for i in 0..5 {
        let told = if i == 2 { &other } else { &honest };
        let mut upload = federation.clients[i].upload(told, &words(i, 0)).unwrap();
        let honest_hash = federation.clients[0].clone().upload(&honest, &words(0, 0)).unwrap().task;
        if i == 2 {
            refused(federation.server.absorb(id(i), upload.clone()), "another task");
            upload.task = honest_hash;
        }
        federation.server.absorb(id(i), upload).unwrap();
    }
    federation.server.close_uploads().unwrap();
    let told = federation.server.survivors(id(2)).unwrap();
    refused(federation.clients[2].vouch(&told), "another task");
    for i in [0, 1, 3, 4] {
        let message = federation.server.survivors(id(i)).unwrap();
        let vouch = federation.clients[i].vouch(&message).unwrap();
        federation.server.absorb_vouch(id(i), &vouch).unwrap();
    }
    let vouches = federation.server.close_vouches().unwrap().unwrap();
    for i in [0, 1, 3, 4] {
        let shares = federation.clients[i].shares(&vouches).unwrap();
        assert_eq!(shares.unopened, [id(2)]);
        federation.server.absorb_shares(id(i), shares).unwrap();
    }
    void(&mut federation, "0 of 4 shares of client 7's seeds");
}

fn void(federation: &mut Federation, why: &str) {
    match federation.server.finish().unwrap() {
        Outcome::Void { reason } => assert!(reason.contains(why), "{reason}"),
        sum => panic!("{sum:?}"),
    }
}

/// False boxes of client 1, by itself or by the server: each costs client 1 one holder of its seeds,
/// nobody refuses, and both sides know of it.
#[test]
fn a_box_that_does_not_open_costs_its_sender_a_holder() {
    type Lie = (&'static [usize], fn(&mut Vec<u8>));
    let cases: [Lie; 4] = [
        (&[3], |sealed| sealed[20] ^= 1),
        (&[0], |sealed| sealed.truncate(11)),
        (&[4], Vec::clear),
        (&[0, 2], |sealed| sealed[0] ^= 1),
    ];
    for (victims, falsify) in cases {
        let mut federation = uploaded();
        for i in 0..5 {
            let mut message = federation.server.survivors(id(i)).unwrap();
            if victims.contains(&i) {
                falsify(&mut message.boxes[usize::from(i > 0)]);
            }
            let vouch = federation.clients[i].vouch(&message).unwrap();
            federation.server.absorb_vouch(id(i), &vouch).unwrap();
        }
        let vouches = federation.server.close_vouches().unwrap().unwrap();
        for i in 0..5 {
            let shares = federation.clients[i].shares(&vouches).unwrap();
            let reported: &[_] = if victims.contains(&i) { &[id(1)] } else { &[] };
            assert_eq!(shares.unopened, reported);
            federation.server.absorb_shares(id(i), shares).unwrap();
        }
        let reports: Vec<_> = victims.iter().map(|&i| (id(1), id(i))).collect();
        assert_eq!(federation.server.unopened(), reports);
        match victims.len() {
            1 => {
                let (segments, survivors) = (plain_sum(3, 0..5), (0..5).map(id).collect());
                let sum = Outcome::Sum { segments, survivors };
                assert_eq!(federation.server.finish().unwrap(), sum);
            }
            _ => void(&mut federation, "3 of 4 shares of client 4's seeds"),
        }
    }
}

/// A coordinator that hands one client keys of its own making, for the clients' numbers: it answers
/// for all others with words of zeros, and the sum is the client's vector. No step of the protocol
/// refuses; an accepted roster does, in both of its forms.
#[test]
fn false_keys_open_a_client_and_an_accepted_roster_refuses_them() {
    let honest = clients(5);
    let truth = roster(&honest);
    let mut fakes = clients(5);
    for (i, fake) in fakes.iter_mut().enumerate().skip(1) {
        *fake = MaskClient::new([100 + i as u8; 32], RUN);
    }
    let forged = roster(&fakes);
    let mut federation = Federation::new(5);
    federation.server = MaskServer::new(forged.clone());
    federation.clients = fakes;
    federation.clients[0] = honest[0].clone();
    federation.clients.iter_mut().for_each(|client| client.agree(forged.clone()).unwrap());
    federation.server.open(task(5, 3)).unwrap();
    for i in 0..5 {
        let mut own = words(i, 3);
        if i > 0 {
            own.iter_mut().for_each(|segment| segment.words.fill(0));
        }
        let upload = federation.clients[i].upload(&task(5, 3), &own).unwrap();
        federation.server.absorb(id(i), upload).unwrap();
    }
    federation.server.close_uploads().unwrap();
    assert!(federation.vouch_all(&[Lost::Never; 5]));
    federation.shares_all(&[Lost::Never; 5]);
    let Outcome::Sum { segments, .. } = federation.server.finish().unwrap() else { panic!() };
    assert_eq!(segments, plain_sum(3, 0..1));

    let lines = |roster: &Roster| -> String {
        let line = |(id, keys): &(ClientId, _)| format!("c{id} {}\n", identity(keys));
        roster.members().iter().map(line).collect()
    };
    for accepted in [truth.fingerprint().to_string(), lines(&truth)] {
        let accepted = Accepted::parse(&accepted).unwrap();
        accepted.check(&truth).unwrap();
        refused(accepted.check(&forged), "nothing was sent");
        // One false key among true ones.
        let mut members = truth.members().to_vec();
        members[4] = forged.members()[4].clone();
        let mixed = Roster::new(truth.rules().clone(), members).unwrap();
        refused(accepted.check(&mixed), "nothing was sent");
    }
    // A late client: refused by the fingerprint, accepted if its line was known.
    let grown = clients(6);
    let grown = roster(&grown);
    refused(Accepted::Roster(truth.fingerprint()).check(&grown), "roster of 6 clients");
    refused(Accepted::parse(&lines(&truth)).unwrap().check(&grown), "client 16");
    Accepted::parse(&lines(&grown)).unwrap().check(&truth).unwrap();
    // A client's key signed by another identity never gets on a roster.
    let mut members = truth.members().to_vec();
    members[4].1.key = forged.members()[4].1.key;
    refused(Roster::new(truth.rules().clone(), members), "not signed by its identity");
}

fn identity(keys: &Enrolment) -> ShortHash {
    ShortHash::of_identity(&keys.identity)
}

/// Vouches of an earlier run with the same seed, task and identities do not count: the hash of the
/// task covers the keys.
#[test]
fn vouches_of_an_earlier_run_are_refused() {
    let run = |secret: u8| {
        let client = |i: u8| MaskClient::new([secret + i; 32], RUN).with_identity([i; 32]);
        let mut clients: Vec<MaskClient> = (0..5).map(client).collect();
        let roster = roster(&clients);
        clients.iter_mut().for_each(|client| client.agree(roster.clone()).unwrap());
        let (server, sent) = (MaskServer::new(roster), Vec::new());
        let mut federation = Federation { server, clients, restarts: false, sent };
        federation.upload_all(3, &[Lost::Never; 5]);
        federation.vouch_all(&[Lost::Never; 5]);
        federation
    };
    let (mut before, now) = (run(50), run(150));
    let same = |federation: &Federation| federation.server.roster().fingerprint();
    assert_eq!(same(&before), same(&now));
    let replayed = before.server.close_vouches().unwrap().unwrap();
    refused(now.clients[0].shares(&replayed), "same survivors");
}

#[test]
fn steps_out_of_turn_are_refused() {
    let mut federation = Federation::new(5);
    let none = Vouches { exchange: 0, signatures: Vec::new() };
    refused(federation.clients[0].shares(&none), "no upload");
    federation.upload_all(0, &[Lost::Never; 5]);
    refused(federation.clients[0].shares(&none), "before the survivors");
    assert!(federation.server.close_vouches().unwrap().is_none());
    let vouch = Vouch { exchange: 0, signature: [0; 64] };
    refused(federation.server.absorb_vouch(id(0), &vouch), "not expected");
}
