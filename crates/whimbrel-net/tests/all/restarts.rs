//! Coordinators and clients that stop at any moment and start again from their folders.

use crate::support::{Joined, Serving, Town, Toys, replay, simulate};
use std::sync::atomic::Ordering;
use std::time::Duration;
use whimbrel_net::coordinator::{Quorum, Rules};

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
    serving.shows("an exchange", |status| !status.strip.is_empty() || status.finished);
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
    let toys = Toys::new(1, 12);
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

#[test]
fn a_torn_log_goes_on_from_the_record_before() {
    let toys = Toys::new(1, 6);
    let mut town = Town::new(toys.clone(), 2);
    let serving = town.serve(false);
    let clients: Vec<Joined> = (0..2).map(|i| town.join(i)).collect();
    serving.shows("three exchanges", |s| s.strip.len() >= 3);
    let _ = serving.halt();
    // A record that was never made durable, and so never acknowledged.
    let path = town.run_folder().join("checkpoint/log");
    let mut log = std::fs::read(&path).unwrap();
    log.extend([0x55; 30]);
    std::fs::write(&path, log).unwrap();
    let (left, _) = town.serve(true).end();
    clients.into_iter().for_each(Joined::model);
    assert_eq!(left, simulate(&toys, 2).0);
}
