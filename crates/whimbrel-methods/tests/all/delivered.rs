//! Held-out cells are judged by the delivered table: below its ceiling, where it has one.

use crate::fedmiss::{self, Setup, all_cells, clients, held_out};
use std::sync::Arc;
use whimbrel_core::method::MetricValue;
use whimbrel_core::{Cell, ClientData, Key, Method};
use whimbrel_models::lowrank::{Effects, Factors, Family, LowRankFit, Settings};

/// The last factors, the delivered fit, and the reported deviance.
fn finished(family: Family, ceiling: bool, data: &[ClientData]) -> (Factors, LowRankFit, f64) {
    let setup = Setup { rounds: 40, ..Setup::new(family) };
    let settings =
        Settings { effects: Effects::row_column(), lambda: 0.05, ..setup.settings.clone() };
    let mut method = Setup { settings, ..setup }.method();
    Arc::get_mut(&mut method).expect("one owner").0.ceiling = ceiling;
    let mut simulator = fedmiss::finished(method.clone(), data);
    let (metrics, _) = simulator.evaluate().unwrap();
    let said = metrics.iter().find(|metric| metric.name == "held_out_deviance").unwrap();
    let MetricValue::Number(said) = said.value else { panic!("no number") };
    let server = fedmiss::server(&simulator).clone();
    let fit = LowRankFit::from_artifact(&method.0.artifact(&server).unwrap()).unwrap();
    (server.factors, fit, said)
}

fn deviance(family: Family, cells: &[Cell], mean: impl Fn(usize, usize) -> f64) -> f64 {
    let one = |cell: &Cell| {
        family.judged_deviance(cell.value, mean(cell.row as usize, cell.column as usize))
    };
    cells.iter().map(one).sum::<f64>() / cells.len() as f64
}

#[test]
fn what_is_judged_is_what_is_delivered() {
    for family in Family::ALL {
        let data = clients(family, 4, 30, Key::root(5));
        let cells = held_out(&data);
        for ceiling in [true, false] {
            let (fitted, delivered, said) = finished(family, ceiling, &data);
            let found = deviance(family, &cells, |row, column| delivered.mean(row, column));
            assert!((found / said - 1.0).abs() < 1e-12, "{family:?} {found} {said}");
            assert_eq!(delivered.factors, fitted);
            assert_eq!(delivered.ceiling.is_some(), ceiling && family == Family::Poisson);
        }
    }
}

#[test]
fn a_ceiling_lowers_some_held_out_count_and_no_observed_one() {
    let data = clients(Family::Poisson, 4, 30, Key::root(5));
    let (fitted, delivered, _) = finished(Family::Poisson, true, &data);
    let theta =
        |cell: &Cell| delivered.model.theta(&fitted, cell.row as usize, cell.column as usize);
    let bare = |cell: &Cell| Family::Poisson.mean(theta(cell));
    let lower = |cell: &&Cell| delivered.mean(cell.row as usize, cell.column as usize) < bare(cell);
    assert!(held_out(&data).iter().filter(lower).count() > 0);
    assert_eq!(all_cells(&data).iter().filter(lower).count(), 0);
}
