//! A lying server: clients refuse, or the round is void.

use crate::federation::{Federation, Lost, id, refused, task, words};
use whimbrel_core::{ClientId, Segment, Wire};
use whimbrel_privacy::masks::{
    Adversary, MaskClient, MaskTask, Outcome, Survivors, Vouch, Vouches,
};

/// Five clients after their uploads.
fn uploaded() -> Federation {
    let mut federation = Federation::new(5, Adversary::Lying);
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
    refuses("does not open", |m| m.boxes[1][20] ^= 1);
    refuses("does not open", |m| m.boxes.swap(1, 2));
    refuses("does not open", |m| m.boxes[3].truncate(11));
    refuses("missing", |m| m.boxes.truncate(m.boxes.len() - 1));
    refuses("too many", |m| m.boxes.push(Vec::new()));
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
    let mut federation = Federation::new(5, Adversary::Lying);
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
    for i in 0..5 {
        let message = federation.server.survivors(id(i)).unwrap();
        let word = if i == 2 { "another task" } else { "does not open" };
        refused(federation.clients[i].vouch(&message), word);
    }
    assert!(matches!(federation.server.finish().unwrap(), Outcome::Void { .. }));
}

#[test]
fn steps_out_of_turn_are_refused() {
    let mut federation = Federation::new(5, Adversary::Lying);
    let none = Vouches { exchange: 0, signatures: Vec::new() };
    refused(federation.clients[0].shares(&none), "no upload");
    federation.upload_all(0, &[Lost::Never; 5]);
    refused(federation.clients[0].shares(&none), "before the survivors");
    let message = federation.server.survivors(id(0)).unwrap();
    refused(federation.clients[0].shares_unvouched(&message), "Curious");
    let mut curious = Federation::new(5, Adversary::Curious);
    curious.upload_all(0, &[Lost::Never; 5]);
    let message = curious.server.survivors(id(0)).unwrap();
    refused(curious.clients[0].vouch(&message), "Lying");
    let vouch = Vouch { exchange: 0, signature: [0; 64] };
    refused(curious.server.absorb_vouch(id(0), &vouch), "not expected");
}
