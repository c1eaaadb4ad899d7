//! Losses and restarts: the outcome is the plain sum over the survivors, or void.

use crate::federation::{Federation, Lost, id, plain_sum};
use whimbrel_core::wire::hex;
use whimbrel_privacy::masks::Outcome;

const STEPS: [Lost; 4] = [Lost::Never, Lost::BeforeUpload, Lost::BeforeVouch, Lost::BeforeShares];

fn pattern(number: usize, n: u32) -> Vec<Lost> {
    (0..n).map(|i| STEPS[number >> (2 * i) & 3]).collect()
}

/// The expected outcome if at least `least` clients must answer last.
fn check(outcome: &Outcome, exchange: u32, lost: &[Lost], least: usize) {
    let uploaded = (0..lost.len()).filter(|&i| lost[i] != Lost::BeforeUpload);
    if lost.iter().filter(|&&lost| lost == Lost::Never).count() < least {
        assert!(matches!(outcome, Outcome::Void { .. }), "{lost:?}");
        return;
    }
    let segments = plain_sum(exchange, uploaded.clone());
    let survivors = uploaded.map(id).collect();
    assert!(*outcome == Outcome::Sum { segments, survivors }, "{lost:?}");
}

#[test]
fn every_loss_of_five_gives_the_plain_sum_or_void() {
    let mut federation = Federation::new(5);
    check(&federation.exchange(0, &[Lost::Never; 5]), 0, &[Lost::Never; 5], 4);
    for number in 0..1024 {
        let (lost, mut federation) = (pattern(number, 5), federation.clone());
        check(&federation.exchange(1, &lost), 1, &lost, 4);
    }
}

#[test]
fn restarts_between_any_two_messages_send_the_same_bytes() {
    let start = Federation::new(5);
    for number in [0, 0b01, 0b10_00, 0b11_00_00, 0b01_10, 0b11_01_00_00_00] {
        let lost = pattern(number, 5);
        let run = |restarts| {
            let mut federation = start.clone();
            federation.restarts = restarts;
            let outcomes = [federation.exchange(0, &lost), federation.exchange(4, &lost)];
            (outcomes, federation.sent)
        };
        assert!(run(true) == run(false), "{lost:?}");
    }
}

#[test]
fn messages_have_their_golden_bytes() {
    let mut federation = Federation::new(5);
    let mut lost = [Lost::Never; 5];
    lost[3] = Lost::BeforeUpload;
    federation.exchange(2, &lost);
    let digest = ring::digest::digest(&ring::digest::SHA256, &federation.sent.concat());
    assert_eq!(hex(&digest.as_ref()[..8]), "8ac1084f603caaf9");
}

#[test]
fn a_sparse_cohort_of_forty_survives_losses() {
    let mut federation = Federation::new(40);
    let mut lost = [Lost::Never; 40];
    for (exchange, dropped) in [0, 4, 9].into_iter().enumerate() {
        for i in 0..dropped {
            lost[(i * 7 + exchange) % 40] = STEPS[1 + i % 3];
        }
        federation.restarts = exchange == 1;
        let outcome = federation.exchange(exchange as u32, &lost);
        check(&outcome, exchange as u32, &lost, 26);
        lost.fill(Lost::Never);
    }
    // Nobody answers: nothing is known.
    check(&federation.exchange(3, &[Lost::BeforeShares; 40]), 3, &[Lost::BeforeShares; 40], 1);
}
