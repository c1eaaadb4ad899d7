//! A federation on a network ends in the bits of its simulation.

use crate::support::{Town, Toys, replay, simulate};
use whimbrel_core::Probability;
use whimbrel_engine::Participation;

#[test]
fn two_clients_end_in_the_simulators_bits() {
    let toys = Toys::new(1, 6);
    let mut town = Town::new(toys.clone(), 2);
    let serving = town.serve(false);
    let outcome = serving.ends_as_simulated(town.join_all(), &toys);
    let whole = simulate(&toys, 2).1;
    assert_eq!((outcome.traffic, &outcome.tallies), (whole.traffic, &whole.tallies));
    assert_eq!(outcome.own, whole.own);
    let rows = |o: &whimbrel_engine::Outcome| o.last.as_ref().map(|r| r.figures.clone());
    assert_eq!(rows(&outcome), rows(&whole));
}

#[test]
fn stages_and_sampled_cohorts_end_in_the_simulators_bits() {
    let half = Participation::Bernoulli(Probability::new(0.5).unwrap());
    let toys = Toys { participation: half, ..Toys::new(3, 5) };
    let mut town = Town::new(toys.clone(), 5);
    let serving = town.serve(false);
    let clients = (0..5).rev().map(|i| town.join(i)).collect();
    let outcome = serving.ends_as_simulated(clients, &toys);
    assert_eq!(outcome.traffic, simulate(&toys, 5).1.traffic);
}

#[test]
fn clients_evaluate_only_with_consent() {
    let toys = Toys::new(1, 4);
    let mut town = Town::new(toys.clone(), 2);
    (town.evaluates, town.agrees) = (false, false);
    let serving = town.serve(false);
    let (left, outcome) = serving.end_with(town.join_all());
    assert_eq!(left, simulate(&Toys { evaluate: None, ..toys.clone() }, 2).0);
    // A simulation that replays this journal does not evaluate either.
    assert_eq!(left, replay(&toys, 2, &left.journal));
    assert_eq!((outcome.traffic.eval, outcome.last), (0, None));

    // A coordinator that asks nevertheless is refused.
    let mut town = Town::new(toys, 1);
    town.agrees = false;
    let serving = town.serve(false);
    let error = town.join(0).error().to_string();
    assert!(error.contains("none was agreed to"), "{error}");
    serving.shows("the reason", |s| s.log.iter().any(|l| l.text.contains("none was agreed to")));
    assert!(serving.halt().is_ok());
}
