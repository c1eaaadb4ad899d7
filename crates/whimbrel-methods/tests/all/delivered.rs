//! Held-out cells are judged by the table that is handed out: below its ceiling, and mixed where the
//! selection said so.

use crate::fedmiss::{Setup, clients, federation};
use std::sync::Arc;
use whimbrel_core::method::MetricValue;
use whimbrel_core::{Cell, ClientData, Key, Method};
use whimbrel_engine::keys::StageKeys;
use whimbrel_engine::{Faults, Participation, Simulator};
use whimbrel_methods::fedmiss::{Mix, Server};
use whimbrel_models::lowrank::{Effects, Factors, Family, LowRank, LowRankFit, Settings};

fn held_out(data: &[ClientData]) -> Vec<Cell> {
    let cells = data.iter().flat_map(|d| match d {
        ClientData::Cells(cells) => cells.held_out.clone(),
        _ => panic!("cells"),
    });
    cells.collect()
}

/// The factors that the fit ended at, what was delivered, and the deviance that was reported.
fn finished(family: Family, mix: Option<Mix>, data: &[ClientData]) -> (Factors, LowRankFit, f64) {
    let setup = Setup { rounds: 40, ..Setup::new(family) };
    let settings = Settings { effects: Effects::RowColumn, lambda: 0.05, ..setup.settings.clone() };
    let mut method = Setup { settings, ..setup }.method();
    Arc::get_mut(&mut method).expect("one owner").0.mix = mix;
    method.0.check().unwrap();
    let federation = federation(&*method, data);
    let (keys, everyone) = (StageKeys::new(1, 0), Participation::Everyone);
    let mut simulator =
        Simulator::start(method.clone(), federation.clone(), keys, everyone, Faults::default())
            .unwrap();
    while simulator.step().unwrap().is_some() {}
    let (metrics, _) = simulator.evaluate().unwrap();
    let said = metrics.iter().find(|metric| metric.name == "held_out_deviance").unwrap();
    let MetricValue::Number(said) = said.value else { panic!("no number") };
    let server = simulator.machine().server().downcast_ref::<Server>().unwrap().clone();
    let fit = LowRankFit::from_artifact(&method.0.artifact(&server).unwrap()).unwrap();
    (server.factors, fit, said)
}

fn deviance(family: Family, cells: &[Cell], mean: impl Fn(usize, usize) -> f64) -> f64 {
    let one = |cell: &Cell| {
        family.judged_deviance(cell.value, mean(cell.row as usize, cell.column as usize))
    };
    cells.iter().map(one).sum::<f64>() / cells.len() as f64
}

/// Row and column effects that differ from the fit's.
fn plain(family: Family) -> Factors {
    let settings = Setup::new(family).settings;
    let model =
        LowRank::new(Settings { rank: 0, effects: Effects::RowColumn, ..settings }).unwrap();
    let mut plain = Factors::start(&model, 0.6, Key::root(9));
    plain.row_effects.iter_mut().enumerate().for_each(|(i, a)| *a = 0.1 * (i % 3) as f64);
    plain
}

#[test]
fn what_is_judged_is_what_is_delivered() {
    for family in Family::ALL {
        let data = clients(family, 4, 30, Key::root(5));
        let cells = held_out(&data);
        for mix in [None, Some(Mix { share: 1.0 / 3.0, plain: plain(family) })] {
            let (fitted, delivered, said) = finished(family, mix.clone(), &data);
            let found = deviance(family, &cells, |row, column| delivered.mean(row, column));
            assert!((found / said - 1.0).abs() < 1e-12, "{family:?} {found} {said}");
            let expected = match &mix {
                None => fitted.clone(),
                Some(Mix { share, plain }) => fitted.mixed(plain, *share),
            };
            assert_eq!(delivered.factors, expected);
            assert_eq!(delivered.ceiling.is_some(), family == Family::Poisson);
        }
    }
}

#[test]
fn a_ceiling_lowers_some_held_out_count_and_no_observed_one() {
    let data = clients(Family::Poisson, 4, 30, Key::root(5));
    let (fitted, delivered, _) = finished(Family::Poisson, None, &data);
    let bare =
        |cell: &Cell| Family::Poisson.mean(fitted.theta(cell.row as usize, cell.column as usize));
    let lower = |cell: &&Cell| delivered.mean(cell.row as usize, cell.column as usize) < bare(cell);
    assert!(held_out(&data).iter().filter(lower).count() > 0);
    assert_eq!(crate::fedmiss::all_cells(&data).iter().filter(lower).count(), 0);
}

#[test]
fn a_table_to_mix_with_has_effects_alone_and_a_share_is_one() {
    let check = |mix: Mix| {
        let mut method = Setup::new(Family::Poisson).method();
        Arc::get_mut(&mut method).expect("one owner").0.mix = Some(mix);
        method.0.check()
    };
    let good = Mix { share: 0.5, plain: plain(Family::Poisson) };
    check(good.clone()).unwrap();
    for share in [0.0, 1.5, f64::NAN] {
        assert!(check(Mix { share, ..good.clone() }).is_err());
    }
    let narrow = Factors { row_effects: vec![0.0; 3], ..good.plain.clone() };
    assert!(check(Mix { plain: narrow, ..good }).is_err());
}
