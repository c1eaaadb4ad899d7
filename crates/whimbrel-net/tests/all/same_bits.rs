//! A federation on a network leaves what a simulation leaves.

use crate::support::{Joined, Town, Toys, replay, simulate};
use whimbrel_core::Probability;
use whimbrel_engine::Participation;

#[test]
fn two_clients_end_in_the_simulators_bits() {
    let toys = Toys::new(1, 6);
    let mut town = Town::new(toys.clone(), 2);
    let serving = town.serve(false);
    let clients: Vec<Joined> = (0..2).map(|i| town.join(i)).collect();
    let (left, outcome) = serving.end();
    clients.into_iter().for_each(Joined::model);
    let (simulated, whole) = simulate(&toys, 2);
    assert_eq!(left, simulated);
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
    let clients: Vec<Joined> = (0..5).rev().map(|i| town.join(i)).collect();
    let (left, outcome) = serving.end();
    clients.into_iter().for_each(Joined::model);
    let (simulated, whole) = simulate(&toys, 5);
    assert_eq!(left, simulated);
    assert_eq!(outcome.traffic, whole.traffic);
}

#[test]
fn evaluations_happen_only_where_clients_agreed_to_them() {
    let toys = Toys::new(1, 4);
    let mut town = Town::new(toys.clone(), 2);
    (town.evaluates, town.agrees) = (false, false);
    let serving = town.serve(false);
    let clients: Vec<Joined> = (0..2).map(|i| town.join(i)).collect();
    let (left, outcome) = serving.end();
    clients.into_iter().for_each(Joined::model);
    assert_eq!(left, simulate(&Toys { evaluate: None, ..toys.clone() }, 2).0);
    // Not even a simulation asks, where it replays what happened there.
    assert_eq!(left, replay(&toys, 2, &left.journal));
    assert_eq!((outcome.traffic.eval, outcome.last), (0, None));

    // A coordinator that asks all the same hears no.
    let mut town = Town::new(toys, 1);
    town.agrees = false;
    let serving = town.serve(false);
    let error = town.join(0).error().to_string();
    assert!(error.contains("none was agreed to"), "{error}");
    serving.shows("the reason", |s| s.log.iter().any(|l| l.text.contains("none was agreed to")));
    assert!(serving.halt().is_ok());
}
