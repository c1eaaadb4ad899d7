//! Mixtures under differential privacy: the same noise in every runner, and the end of the budget.

use crate::federation::*;
use whimbrel_core::{ClientData, Erased};
use whimbrel_engine::{Faults, Participation};
use whimbrel_methods::fedem::{FedEm, FrameKind, PrivateEm};
use whimbrel_methods::federated::{BindRows, Release, Unit};
use whimbrel_models::gmm::{Covariance, Gmm};
use whimbrel_privacy::accountant::Releases;
use whimbrel_privacy::noise::Source;
use whimbrel_testkit::runners::runners_agree;

/// A fit of at most nine rounds with noise for six.
fn method(unit: Unit, source: Source) -> FedEm<Gmm> {
    let setup = Setup {
        covariance: Covariance::Full,
        rounds: 9,
        memory: false,
        frame: FrameKind::Fisher,
        ..Setup::default()
    };
    let mut method = setup.typed();
    let releases = Releases { multiplier: 0.1, rate: 1.0 };
    let release = Release { unit, releases, rounds: 6, source, stage: 0, share: None };
    method.terms.privacy.release = Some(release);
    let row_bound = (unit == Unit::Row).then_some(3.0);
    method.oracle.private = Some(PrivateEm { row_bound, averaged: 4..6 });
    method
}

#[test]
fn noise_of_a_seed_is_the_same_in_every_runner() {
    let tables: Vec<ClientData> = unequal(14).into_iter().map(ClientData::Table).collect();
    for unit in [Unit::Row, Unit::Client { bound: 0.3 }] {
        let method = Erased(method(unit, Source::Seed(3)), BindRows);
        runners_agree("private", method, &tables);
    }
}

#[test]
fn the_run_ends_before_its_budget_is_exceeded() {
    let source = Source::secret().unwrap();
    let method = std::sync::Arc::new(Erased(method(Unit::Row, source), BindRows));
    let tables = unequal(14);
    let mut simulator = simulator(method, &tables, Participation::Everyone, Faults::default());
    let mut rounds = 0;
    while let Some(done) = simulator.step().unwrap() {
        rounds += u32::from(done.round.is_some());
    }
    assert_eq!(rounds, 6);
}
