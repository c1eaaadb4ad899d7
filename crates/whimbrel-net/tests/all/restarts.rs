//! Coordinators and clients that stop at any point and restart from their folders.

use crate::support::{Joined, PATIENCE, Serving, Town, Toys, replay, simulate};
use std::sync::atomic::Ordering;
use std::time::Duration;
use whimbrel_engine::{Ending, Stopping};
use whimbrel_net::coordinator::{Quorum, Rules};
use whimbrel_net::registry::Standing;
use whimbrel_net::status::Status;
use whimbrel_net::wal::Wal;

/// Stops the coordinator whenever a new round shows, and restarts it.
#[test]
fn a_coordinator_that_stops_after_every_round_ends_in_the_same_bits() {
    let toys = Toys::new(2, 4);
    let mut town = Town::new(toys.clone(), 3);
    let clients = town.join_all();
    let mut serving = town.serve(false);
    let mut restarts = 0;
    let end = loop {
        if restarts < 12 {
            serving.stop.store(true, Ordering::Relaxed);
        }
        match serving.result() {
            Ok(Some(end)) => break end,
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
    let steady = [town.join(0), town.join(1)];
    let mut restless = town.join(2);
    for exchanges in 1..8 {
        serving.shows("another exchange", |s| s.strip.len() >= exchanges || s.finished);
        restless.halt();
        restless = town.join(2);
    }
    let (left, _) = serving.end_with(steady);
    restless.halt();
    assert_eq!(left, simulate(&toys, 3).0);
}

#[test]
fn with_a_deadline_a_slow_client_is_left_out_and_the_journal_replays_it() {
    let toys = Toys::new(1, 200);
    let mut town = Town::new(toys.clone(), 3);
    town.rules = Rules { quorum: Quorum::Number(2), deadline: Some(Duration::from_millis(40)) };
    let serving = town.serve(false);
    let steady = [town.join(0), town.join(1)];
    let mut restless = town.join(2);
    for exchanges in [2, 5, 8] {
        serving.shows("some exchanges", |s| s.strip.len() >= exchanges || s.finished);
        restless.halt();
        serving.shows("a round without it", |s| {
            s.finished || s.strip.iter().any(|e| !e.accepted.contains(&2))
        });
        restless = town.join(2);
    }
    let (left, _) = serving.end_with(steady);
    restless.halt();
    assert_ne!(left.journal, simulate(&toys, 3).0.journal, "nobody was left out");
    assert_eq!(left, replay(&toys, 3, &left.journal));
}

/// With a deadline of minutes, a disconnected client costs no time once a quorum has answered, and is
/// reported once.
#[test]
fn at_quorum_rounds_do_not_wait_for_disconnected_clients() {
    let toys = Toys::new(1, 200);
    let mut town = Town::new(toys.clone(), 3);
    town.rules = Rules { quorum: Quorum::Number(2), deadline: Some(PATIENCE) };
    let serving = town.serve(false);
    let steady = [town.join(0), town.join(1)];
    let away = town.join(2);
    serving.shows("some exchanges", |s| s.strip.len() >= 2);
    away.halt();
    let board = serving.board.clone();
    let ended = || board.watch().borrow().state.contains("the model is ready");
    crate::support::wait(ended, "the rounds are over before a deadline", &board);
    let status = board.watch().borrow().clone();
    let told = status.log.iter().filter(|l| l.text.contains("continues without `c02`")).count();
    assert_eq!(told, 1, "{:#?}", status.log);
    assert!(status.clients["c02"].missed > 0 && status.clients["c00"].missed == 0);
    let last = town.join(2);
    let (left, _) = serving.end_with(steady.into_iter().chain([last]));
    assert_eq!(left, replay(&toys, 3, &left.journal));
}

/// The objective is a sum over respondents, lowest without the most distant client, so the stopping
/// round depends on the respondents of each evaluation.
#[test]
fn with_a_deadline_a_stopping_rule_is_replayed_from_the_respondents() {
    let stopping = Stopping { patience: Some(300), ..Stopping::default() };
    let toys = Toys { evaluate: Some(1), stopping, ..Toys::new(1, 4000) };
    let mut town = Town::new(toys.clone(), 3);
    town.rules = Rules { quorum: Quorum::Number(2), deadline: Some(Duration::from_millis(40)) };
    let mut serving = town.serve(false);
    let steady = [town.join(1), town.join(2)];
    let restless = town.join(0);
    serving.shows("some exchanges", |s| s.strip.len() >= 2);
    restless.halt();
    serving.shows("a round without it", |s| s.strip.iter().any(|e| !e.accepted.contains(&0)));
    // A restart in between keeps the record of evaluations.
    serving.stop.store(true, Ordering::Relaxed);
    assert!(serving.result().unwrap().is_none(), "the job was over too soon");
    serving = town.serve(true);
    // Between two rounds lies an evaluation.
    serving.shows("rounds without it", |s| {
        s.strip.iter().filter(|e| !e.accepted.contains(&0)).count() >= 2
    });
    let restless = town.join(0);
    let (left, _) = serving.end_with(steady);
    restless.halt();
    assert!(matches!(left.ending, Ending::Stopped(_)), "{:?}", left.ending);
    assert!(left.journal.contains("\"answered\":\"1-2\""), "it always answered");
    assert_eq!(left, replay(&toys, 3, &left.journal));
    assert_ne!(left.metrics, simulate(&toys, 3).0.metrics, "the respondents made no difference");
}

#[test]
fn a_torn_log_resumes_from_the_previous_record() {
    let toys = Toys { evaluate: None, ..Toys::new(1, 400) };
    let mut town = Town::new(toys.clone(), 2);
    let serving = town.serve(false);
    let mut clients = town.join_all();
    serving.shows("three exchanges", |s| s.strip.len() >= 3);
    // Without its second client the job waits, with files as after a crash.
    clients.pop().unwrap().halt();
    serving.shows("a wait", |s| s.state.contains("(not connected)"));
    let kept: Vec<_> = ["checkpoint/state", "checkpoint/log", "journal", "metrics.jsonl"]
        .map(|file| town.run_folder().join(file))
        .into_iter()
        .map(|path| (std::fs::read(&path).unwrap(), path))
        .collect();
    let _ = serving.halt();
    // Undoes the checkpoint of an orderly stop.
    kept.iter().for_each(|(bytes, path)| std::fs::write(path, bytes).unwrap());
    let (log, path) = &kept[1];
    let mut records = 0;
    let count = |_: &[u8]| {
        records += 1;
        Ok(())
    };
    drop(Wal::open(path, count).unwrap());
    assert!(records >= 3, "no records to resume from");
    // Behind them a record that never became durable, hence unacknowledged: a copy of the first
    // without its last byte.
    let length = u32::from_le_bytes(log[20..24].try_into().unwrap()) as usize;
    let torn = &log[20..20 + 12 + length - 1];
    std::fs::write(path, [log, torn].concat()).unwrap();
    let serving = town.serve(true);
    clients.push(town.join(1));
    serving.ends_as_simulated(clients, &toys);
}

#[test]
fn a_checkpoint_that_cannot_be_written_pauses_the_job_and_loses_nothing() {
    let toys = Toys::new(2, 4);
    let mut town = Town::new(toys.clone(), 2);
    // A folder blocks the temporary file of the next checkpoint.
    let place = town.run_folder().join("checkpoint/state.tmp");
    std::fs::create_dir_all(&place).unwrap();
    let serving = town.serve(false);
    let clients = town.join_all();
    serving.shows("a pause", |s| s.state.starts_with("paused, nothing is lost: "));
    assert!(serving.board.watch().borrow().strip.is_empty(), "an exchange before its checkpoint");
    std::fs::remove_dir(&place).unwrap();
    serving.ends_as_simulated(clients, &toys);
}

#[test]
fn a_client_invited_late_joins_and_one_declared_dead_is_not_waited_for() {
    let toys = Toys { evaluate: None, ..Toys::new(1, 400) };
    let mut town = Town::new(toys, 2);
    let serving = town.serve(false);
    let first = town.join(0);
    let second = town.join(1);
    serving.shows("a round", |s| s.round >= 1);
    // Without its first client the job waits until the third has joined.
    first.halt();
    let third = town.join_with(2, town.invite("c02"));
    serving.shows_connected("c02");
    let first = town.join(0);
    let took_part = |id| move |s: &Status| s.strip.iter().any(|e| e.accepted.contains(&id));
    serving.shows("the late client's upload", took_part(2));
    // The job waits for the second client until it is declared dead.
    second.halt();
    town.registry().stand("c01", Standing::Dead).unwrap();
    let (left, outcome) = serving.end_with([first, third]);
    assert_eq!(left.names, ["c00", "c01", "c02"]);
    assert!(left.journal.contains("\"joined\":\"2\""), "{}", left.journal);
    assert_eq!(outcome.rounds, 400);
    assert!(left.rounds[0] == 400 && left.rounds[1] < 400 && left.rounds[2] > 0);
    assert_eq!(left, replay(&town.toys, 3, &left.journal));
}

/// A stage that begins without a client is replayed without it.
#[test]
fn a_client_that_is_dead_by_the_next_stage_is_not_in_its_replay_either() {
    let toys = Toys { evaluate: None, ..Toys::new(2, 400) };
    let mut town = Town::new(toys, 3);
    let serving = town.serve(false);
    let steady = [town.join(0), town.join(1)];
    let third = town.join(2);
    serving.shows("a round", |s| s.round >= 1);
    third.halt();
    town.registry().stand("c02", Standing::Dead).unwrap();
    let (left, _) = serving.end_with(steady);
    assert!(left.journal.contains("{\"stage\":1,\"enrolled\":\"0-1\"}"), "it was there");
    assert_eq!(left.rounds, [400, 400, 0]);
    assert_eq!(left, replay(&town.toys, 3, &left.journal));
}

/// Both ends stop repeatedly while a third client joins; the journal records the join.
#[test]
fn a_late_joiner_survives_restarts_of_both_ends() {
    let toys = Toys { evaluate: None, ..Toys::new(1, 1200) };
    let mut town = Town::new(toys, 2);
    let mut serving = town.serve(false);
    let steady = [town.join(0), town.join(1)];
    serving.shows("a round", |s| s.round >= 1);
    let late = town.invite("c02");
    let mut third = town.join_with(2, late.clone());
    for _ in 0..5 {
        serving.shows_connected("c02");
        serving.stop.store(true, Ordering::Relaxed);
        if let Some(end) = serving.result().unwrap() {
            panic!("the job was over too soon: {:?}", end.0.rounds);
        }
        third.halt();
        serving = town.serve(true);
        third = town.join_with(2, late.clone());
    }
    let (left, _) = serving.end_with(steady);
    third.model();
    assert!(left.rounds[2] > 0, "it never took part");
    assert_eq!(left, replay(&town.toys, 3, &left.journal));
}

#[test]
fn a_client_that_lost_its_state_is_refused() {
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
    assert!(error.contains("the client's state is older than its last acknowledgement"), "{error}");
    town.registry().stand("c01", Standing::Revoked).unwrap();
    let (left, _) = serving.end_with([first]);
    assert_eq!(left.rounds[0], 400);
}
