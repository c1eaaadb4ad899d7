//! The server and the roster check every field of what clients send.

use crate::federation::{Federation, Lost, clients, id, refused, roster, rules, task, words};
use whimbrel_core::{ClientId, Error, Wire};
use whimbrel_privacy::masks::{
    Accepted, Enrolment, MaskClient, MaskServer, MaskedUpload, Outcome, Roster, Rules, Shares,
    ShortHash, Vouch,
};

#[test]
fn false_uploads_are_refused_and_change_nothing() {
    let mut federation = Federation::new(5);
    federation.server.open(task(4, 0)).unwrap();
    let honest = federation.clients[1].upload(&task(4, 0), &words(1, 0)).unwrap();
    let before = federation.server.to_bytes();
    let mut refuses = |from, word: &str, change: fn(&mut MaskedUpload)| {
        let mut upload = honest.clone();
        change(&mut upload);
        refused(federation.server.absorb(from, upload), word);
        assert!(federation.server.to_bytes() == before);
    };
    refuses(id(4), "not expected", |_| ());
    refuses(ClientId(77), "not expected", |_| ());
    refuses(id(1), "another task", |u| u.exchange = 1);
    refuses(id(1), "another task", |u| u.task[0] ^= 1);
    refuses(id(1), "wrong length", |u| u.body.truncate(u.body.len() - 1));
    refuses(id(1), "wrong length", |u| u.fingerprints.truncate(u.fingerprints.len() - 1));
    refuses(id(1), "wrong length", |u| u.boxes.truncate(u.boxes.len() - 1));
    refuses(id(1), "wrong length", |u| u.boxes[0].push(0));
    federation.server.absorb(id(1), honest.clone()).unwrap();
    refused(federation.server.absorb(id(1), honest.clone()), "twice");
    federation.server.close_uploads().unwrap();
    refused(federation.server.absorb(id(0), honest), "not expected");
}

#[test]
fn false_vouches_and_shares_are_refused() {
    let mut federation = Federation::new(5);
    let mut lost = [Lost::Never; 5];
    lost[3] = Lost::BeforeUpload;
    federation.upload_all(0, &lost);
    let message = federation.server.survivors(id(0)).unwrap();
    let vouch = federation.clients[0].vouch(&message).unwrap();
    let mut refuses = |from, word: &str, change: fn(&mut Vouch)| {
        let mut vouch = vouch.clone();
        change(&mut vouch);
        refused(federation.server.absorb_vouch(from, &vouch), word);
    };
    refuses(id(3), "not expected", |_| ());
    refuses(id(1), "did not vouch", |_| ());
    refuses(id(0), "did not vouch", |v| v.exchange = 1);
    refuses(id(0), "did not vouch", |v| v.signature[0] ^= 1);
    federation.vouch_all(&lost);
    refused(federation.server.absorb_vouch(id(0), &vouch), "not expected");
    let vouches = federation.server.close_vouches().unwrap().unwrap();
    let shares = federation.clients[0].shares(&vouches).unwrap();
    let mut refuses = |from, word: &str, change: fn(&mut Shares)| {
        let mut shares = shares.clone();
        change(&mut shares);
        refused(federation.server.absorb_shares(from, shares), word);
    };
    refuses(id(3), "not expected", |_| ());
    refuses(id(0), "other survivors", |s| s.exchange = 1);
    refuses(id(0), "other survivors", |s| s.told[0] ^= 1);
    refuses(id(0), "7 of 8", |s| s.shares.truncate(s.shares.len() - 1));
    refuses(id(0), "8 of 6", |s| s.unopened = vec![id(1)]);
    for strange in [vec![id(0)], vec![id(3)], vec![id(2), id(1)], vec![ClientId(99)]] {
        let shares = Shares { unopened: strange, ..shares.clone() };
        refused(federation.server.absorb_shares(id(0), shares), "did not receive");
    }
    federation.server.absorb_shares(id(0), shares.clone()).unwrap();
    refused(federation.server.absorb_shares(id(0), shares), "twice");
}

#[test]
fn shares_without_a_vouch_are_refused_and_wrong_shares_leave_a_void_round() {
    let mut federation = Federation::new(5);
    federation.upload_all(0, &[Lost::Never; 5]);
    let mut silent = [Lost::Never; 5];
    silent[4] = Lost::BeforeVouch;
    assert!(federation.vouch_all(&silent));
    let message = federation.server.survivors(id(4)).unwrap();
    let vouches = federation.server.close_vouches().unwrap().unwrap();
    federation.clients[4].vouch(&message).unwrap();
    let late = federation.clients[4].shares(&vouches).unwrap();
    refused(federation.server.absorb_shares(id(4), late), "not expected");
    for i in 0..4 {
        let mut shares = federation.clients[i].shares(&vouches).unwrap();
        if i == 2 {
            shares.shares.swap(0, 1);
        }
        federation.server.absorb_shares(id(i), shares).unwrap();
    }
    match federation.server.finish().unwrap() {
        Outcome::Void { reason } => assert!(reason.contains("do not fit"), "{reason}"),
        sum => panic!("{sum:?}"),
    }
    // A void exchange is over, for both sides.
    refused(federation.server.open(task(5, 0)), "is over");
    federation.server.open(task(5, 1)).unwrap();
    refused(federation.server.open(task(5, 2)), "another one is open");
}

#[test]
fn rosters_are_checked() {
    let mut clients = clients(4);
    let members = roster(&clients).members().to_vec();
    let refuses = |word: &str, change: fn(&mut Vec<(ClientId, Enrolment)>)| {
        let mut members = members.clone();
        change(&mut members);
        refused(Roster::new(rules(), members), word);
    };
    refuses("same number", |m| m[1].0 = m[0].0);
    refuses("same number or key", |m| m[1].1 = m[0].1.clone());
    refuses("low order", |m| m[1].1.key = [0; 32]);
    refuses("not signed", |m| m[1].1.key[0] ^= 1);
    refuses("not signed", |m| m[1].1.signature = m[0].1.signature);
    let mut small = rules();
    small.min_cohort = 2;
    assert!(matches!(Roster::new(small, members.clone()), Err(Error::Config { .. })));

    let client = &mut clients[0];
    refused(client.upload(&task(4, 0), &words(0, 0)), "no roster");
    let of = |rules, members: &[_]| Roster::new(rules, members.to_vec()).unwrap();
    let first = of(rules(), &members[..3]);
    refused(client.agree(of(rules(), &members[1..])), "lacks");
    client.agree(first.clone()).unwrap();
    let least_four = Rules { min_cohort: 4, ..rules() };
    refused(client.agree(of(least_four, &members)), "changes");
    refused(client.agree(of(rules(), &[&members[..1], &members[2..]].concat())), "changes");
    let grown = of(rules(), &members);
    client.agree(grown.clone()).unwrap();
    let mut server = MaskServer::new(first.clone());
    refused(server.open(task(4, 0)), "not on the roster");
    let (id, keys) = members[3].clone();
    refused(first.check(ClientId(1), &keys), "same number");
    refused(first.check(id, &members[0].1), "same number or key");
    first.check(id, &keys).unwrap();
    server.admit(id, keys);
    server.open(task(4, 0)).unwrap();
    assert!(first.fingerprint() != grown.fingerprint());
    assert!(Roster::from_bytes(&grown.to_bytes()).unwrap() == grown);
    let mut without_vouches = rules().to_bytes();
    *without_vouches.last_mut().unwrap() = 0;
    refused(Rules::from_bytes(&without_vouches), "without vouches");
    let mut elsewhere = MaskClient::new([1; 32], [8; 32]);
    refused(elsewhere.agree(grown), "another run");
}

#[test]
fn rosters_neither_lose_nor_gain_clients() {
    let rules = Rules { run: [7; 32], min_cohort: 3 };
    let of = |ids: std::ops::Range<u8>| {
        let keys = |id: u8| MaskClient::new([id; 32], rules.run).enrol();
        let members = ids.map(|id| (ClientId(u32::from(id)), keys(id))).collect();
        Roster::new(rules.clone(), members).unwrap()
    };
    let line = |id: u8| format!("c{id} {}\n", ShortHash::of_secret(&[id; 32]));
    let known = Accepted::parse(&(1..5).map(line).collect::<String>()).unwrap();
    known.check_same(&of(1..5)).unwrap();
    for (others, why) in
        [(1..4, "`c4` is missing"), (1..6, "client 5 is new"), (2..6, "`c1` is missing")]
    {
        let said = known.check_same(&of(others)).unwrap_err().to_string();
        assert!(said.contains(why), "{said}");
    }
}
