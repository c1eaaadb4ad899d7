//! Coordinators and clients that stop at any moment and start again from their folders.

use crate::support::{Joined, Serving, Town, Toys, replay, simulate};
use std::sync::atomic::Ordering;
use std::time::Duration;
use whimbrel_engine::{Ending, Stopping};
use whimbrel_net::Invitation;
use whimbrel_net::coordinator::{Quorum, Rules};
use whimbrel_net::registry::Standing;
use whimbrel_net::status::Status;
use whimbrel_net::wal::Wal;

/// Stops everything in order whenever a new round shows, and starts it again.
#[test]
fn a_coordinator_that_stops_after_every_round_ends_in_the_same_bits() {
    let toys = Toys::new(2, 4);
    let mut town = Town::new(toys.clone(), 3);
    let clients: Vec<Joined> = (0..3).map(|i| town.join(i)).collect();
    let mut serving = town.serve(false);
    let mut restarts = 0;
    let end = loop {
        if restarts < 12 {
            serving.stop.store(true, Ordering::Relaxed);
        }
        match serving.result() {
            Ok(Some(end)) => break end,
            // Stopped in the middle of a stage, or while it waited for its enrolment.
            Ok(None) => {}
            Err(error) => assert!(error.to_string().contains("interrupted"), "{error}"),
        }
        restarts += 1;
        serving = town.serve(true);
        if restarts < 12 {
            progresses(&serving);
        }
    };
    clients.into_iter().for_each(Joined::model);
    assert_eq!(end.0, simulate(&toys, 3).0);
}

/// Waits for one more exchange of this process, or for its end.
fn progresses(serving: &Serving) {
    serving.shows("an exchange", |status| {
        !status.strip.is_empty() || status.finished || status.state.contains("the model is ready")
    });
}

#[test]
fn clients_that_stop_and_come_back_end_in_the_same_bits() {
    let toys = Toys::new(2, 8);
    let mut town = Town::new(toys.clone(), 3);
    let serving = town.serve(false);
    let steady: Vec<Joined> = (0..2).map(|i| town.join(i)).collect();
    let mut restless = town.join(2);
    for exchanges in 1..8 {
        serving.shows("another exchange", |s| s.strip.len() >= exchanges || s.finished);
        restless.halt();
        restless = town.join(2);
    }
    let (left, _) = serving.end();
    steady.into_iter().for_each(Joined::model);
    restless.halt();
    assert_eq!(left, simulate(&toys, 3).0);
}

#[test]
fn with_a_deadline_a_slow_client_is_left_out_and_the_journal_replays_it() {
    let toys = Toys::new(1, 200);
    let mut town = Town::new(toys.clone(), 3);
    town.rules = Rules { quorum: Quorum::Number(2), deadline: Some(Duration::from_millis(40)) };
    let serving = town.serve(false);
    let steady: Vec<Joined> = (0..2).map(|i| town.join(i)).collect();
    let mut restless = town.join(2);
    for exchanges in [2, 5, 8] {
        serving.shows("some exchanges", |s| s.strip.len() >= exchanges || s.finished);
        restless.halt();
        serving.shows("a round without it", |s| {
            s.finished || s.strip.iter().any(|e| !e.accepted.contains(&2))
        });
        restless = town.join(2);
    }
    let (left, _) = serving.end();
    steady.into_iter().for_each(Joined::model);
    restless.halt();
    assert_ne!(left.journal, simulate(&toys, 3).0.journal, "nobody was left out");
    assert_eq!(left, replay(&toys, 3, &left.journal));
}

/// With a deadline of minutes, a client that is not there costs no time once a quorum has answered,
/// and people are told once.
#[test]
fn at_quorum_nobody_waits_for_a_client_that_is_not_connected() {
    let toys = Toys::new(1, 200);
    let mut town = Town::new(toys.clone(), 3);
    town.rules = Rules { quorum: Quorum::Number(2), deadline: Some(crate::support::PATIENCE) };
    let serving = town.serve(false);
    let steady: Vec<Joined> = (0..2).map(|i| town.join(i)).collect();
    let away = town.join(2);
    serving.shows("some exchanges", |s| s.strip.len() >= 2);
    away.halt();
    let board = serving.board.clone();
    let ended = || board.watch().borrow().state.contains("the model is ready");
    crate::support::wait(ended, "the rounds are over before a deadline", &board);
    let status = board.watch().borrow().clone();
    let told = status.log.iter().filter(|l| l.text.contains("goes on without `c02`")).count();
    assert_eq!(told, 1, "{:#?}", status.log);
    assert!(status.clients["c02"].missed > 0 && status.clients["c00"].missed == 0);
    let last = town.join(2);
    let (left, _) = serving.end();
    steady.into_iter().chain([last]).for_each(Joined::model);
    assert_eq!(left, replay(&toys, 3, &left.journal));
}

/// The objective is a sum over those who answer: it is lowest while the one furthest off is away,
/// so when a job stops depends on who was heard at each evaluation.
#[test]
fn with_a_deadline_a_stopping_rule_is_replayed_from_who_answered() {
    let stopping = Stopping { patience: Some(300), ..Stopping::default() };
    let toys = Toys { evaluate: Some(1), stopping, ..Toys::new(1, 4000) };
    let mut town = Town::new(toys.clone(), 3);
    town.rules = Rules { quorum: Quorum::Number(2), deadline: Some(Duration::from_millis(40)) };
    let mut serving = town.serve(false);
    let steady: Vec<Joined> = (1..3).map(|i| town.join(i)).collect();
    let restless = town.join(0);
    serving.shows("some exchanges", |s| s.strip.len() >= 2);
    restless.halt();
    serving.shows("a round without it", |s| s.strip.iter().any(|e| !e.accepted.contains(&0)));
    // The coordinator goes away and comes back in between; what it knows of evaluations stays.
    serving.stop.store(true, Ordering::Relaxed);
    assert!(serving.result().unwrap().is_none(), "the job was over too soon");
    serving = town.serve(true);
    // Between two rounds lies an evaluation.
    serving.shows("rounds without it", |s| {
        s.strip.iter().filter(|e| !e.accepted.contains(&0)).count() >= 2
    });
    let restless = town.join(0);
    let (left, _) = serving.end();
    steady.into_iter().for_each(Joined::model);
    restless.halt();
    assert!(matches!(left.ending, Ending::Early(_)), "{:?}", left.ending);
    assert!(left.journal.contains("\"answered\":\"1-2\""), "it was always heard");
    assert_eq!(left, replay(&toys, 3, &left.journal));
    assert_ne!(left.metrics, simulate(&toys, 3).0.metrics, "it made no difference who answered");
}

#[test]
fn a_torn_log_goes_on_from_the_record_before() {
    let toys = Toys { evaluate: None, ..Toys::new(1, 400) };
    let mut town = Town::new(toys.clone(), 2);
    let serving = town.serve(false);
    let mut clients: Vec<Joined> = (0..2).map(|i| town.join(i)).collect();
    serving.shows("three exchanges", |s| s.strip.len() >= 3);
    // Without its second client the job waits, and its files are what a crash would leave.
    clients.pop().unwrap().halt();
    serving.shows("a wait", |s| s.state.contains("(not connected)"));
    let kept: Vec<_> = ["checkpoint/state", "checkpoint/log", "journal", "metrics.jsonl"]
        .map(|file| town.run_folder().join(file))
        .into_iter()
        .map(|path| (std::fs::read(&path).unwrap(), path))
        .collect();
    let _ = serving.halt();
    // An orderly stop makes a checkpoint and empties the log: take that back.
    kept.iter().for_each(|(bytes, path)| std::fs::write(path, bytes).unwrap());
    let (log, path) = &kept[1];
    let mut records = 0;
    let count = |_: &[u8]| {
        records += 1;
        Ok(())
    };
    drop(Wal::open(path, count).unwrap());
    assert!(records >= 3, "no records to go on from");
    // Behind them a record that was never made durable, and so never acknowledged: the first one
    // again, but for its last byte.
    let length = u32::from_le_bytes(log[20..24].try_into().unwrap()) as usize;
    let torn = &log[20..20 + 12 + length - 1];
    std::fs::write(path, [log, torn].concat()).unwrap();
    let serving = town.serve(true);
    clients.push(town.join(1));
    let (left, _) = serving.end();
    clients.into_iter().for_each(Joined::model);
    assert_eq!(left, simulate(&toys, 2).0);
}

#[test]
fn a_checkpoint_that_cannot_be_written_pauses_the_job_and_loses_nothing() {
    let toys = Toys::new(2, 4);
    let mut town = Town::new(toys.clone(), 2);
    // Where the next checkpoint would be written first, there is something that is no file.
    let place = town.run_folder().join("checkpoint/state.tmp");
    std::fs::create_dir_all(&place).unwrap();
    let serving = town.serve(false);
    let clients: Vec<Joined> = (0..2).map(|i| town.join(i)).collect();
    serving.shows("a pause", |s| s.state.starts_with("paused, nothing is lost: "));
    assert!(serving.board.watch().borrow().strip.is_empty(), "an exchange before its checkpoint");
    std::fs::remove_dir(&place).unwrap();
    let (left, _) = serving.end();
    clients.into_iter().for_each(Joined::model);
    assert_eq!(left, simulate(&toys, 2).0);
}

#[test]
fn a_client_invited_late_joins_and_one_declared_dead_is_not_waited_for() {
    let toys = Toys { evaluate: None, ..Toys::new(1, 400) };
    let mut town = Town::new(toys, 2);
    let serving = town.serve(false);
    let first = town.join(0);
    let second = town.join(1);
    serving.shows("a round", |s| s.round >= 1);
    // Without its first client the job waits until the third one is there.
    first.halt();
    let registry = town.registry();
    let token = registry.invite("c02", 1).unwrap();
    let late = Invitation { name: "c02".into(), token, ..town.invitations[0].clone() };
    let third = town.join_with(2, Box::new(town.toys.clone()), late);
    serving.shows("the late client", |s| s.clients.get("c02").is_some_and(|c| c.connected));
    let first = town.join(0);
    let took_part = |id| move |s: &Status| s.strip.iter().any(|e| e.accepted.contains(&id));
    serving.shows("the late client's upload", took_part(2));
    // The second one goes away: the job waits for it until it is declared dead.
    second.halt();
    registry.stand("c01", Standing::Dead).unwrap();
    let (left, outcome) = serving.end();
    first.model();
    third.model();
    assert_eq!(left.names, ["c00", "c01", "c02"]);
    assert!(left.journal.contains("\"joined\":\"2\""), "{}", left.journal);
    assert_eq!(outcome.rounds, 400);
    assert!(left.rounds[0] == 400 && left.rounds[1] < 400 && left.rounds[2] > 0);
    assert_eq!(left, replay(&town.toys, 3, &left.journal));
}

/// A stage that begins without somebody is replayed without it.
#[test]
fn a_client_that_is_dead_by_the_next_stage_is_not_in_its_replay_either() {
    let toys = Toys { evaluate: None, ..Toys::new(2, 400) };
    let mut town = Town::new(toys, 3);
    let serving = town.serve(false);
    let steady: Vec<Joined> = (0..2).map(|i| town.join(i)).collect();
    let third = town.join(2);
    serving.shows("a round", |s| s.round >= 1);
    third.halt();
    town.registry().stand("c02", Standing::Dead).unwrap();
    let (left, _) = serving.end();
    steady.into_iter().for_each(Joined::model);
    assert!(left.journal.contains("{\"stage\":1,\"enrolled\":\"0-1\"}"), "it was there");
    assert_eq!(left.rounds, [400, 400, 0]);
    assert_eq!(left, replay(&town.toys, 3, &left.journal));
}

/// Both ends stop again and again while a third client joins; the journal says when it did.
#[test]
fn a_late_joiner_survives_restarts_of_both_ends() {
    let toys = Toys { evaluate: None, ..Toys::new(1, 1200) };
    let mut town = Town::new(toys, 2);
    let mut serving = town.serve(false);
    let steady: Vec<Joined> = (0..2).map(|i| town.join(i)).collect();
    serving.shows("a round", |s| s.round >= 1);
    let token = town.registry().invite("c02", 1).unwrap();
    let late = Invitation { name: "c02".into(), token, ..town.invitations[0].clone() };
    let enter = |town: &Town| town.join_with(2, Box::new(town.toys.clone()), late.clone());
    let mut third = enter(&town);
    for _ in 0..5 {
        serving.shows("the third client", |s| s.clients.get("c02").is_some_and(|c| c.connected));
        serving.stop.store(true, Ordering::Relaxed);
        if let Some(end) = serving.result().unwrap() {
            panic!("the job was over too soon: {:?}", end.0.rounds);
        }
        third.halt();
        serving = town.serve(true);
        third = enter(&town);
    }
    let (left, _) = serving.end();
    steady.into_iter().for_each(Joined::model);
    third.model();
    assert!(left.rounds[2] > 0, "it never took part");
    assert_eq!(left, replay(&town.toys, 3, &left.journal));
}

#[test]
fn a_client_that_lost_its_state_is_refused_and_the_job_waits_for_the_operator() {
    let toys = Toys { evaluate: None, ..Toys::new(1, 400) };
    let mut town = Town::new(toys, 2);
    let serving = town.serve(false);
    let (first, second) = (town.join(0), town.join(1));
    serving.shows("a round", |s| s.round >= 2);
    second.halt();
    for slot in ["slot-a", "slot-b"] {
        std::fs::remove_file(town.folder.path().join("c01").join(slot)).unwrap();
    }
    let error = town.join(1).error().to_string();
    assert!(error.contains("the client's state is not the one that was acknowledged"), "{error}");
    town.registry().stand("c01", Standing::Revoked).unwrap();
    let (left, _) = serving.end();
    first.model();
    assert_eq!(left.rounds[0], 400);
}
