//! Automatic rank and ridge, and baselines: the choice on data with a known truth.

use crate::fedmiss::{all_cells, begun, cells_of, client, dither, held_out};
use std::sync::Arc;
use whimbrel_codec::channel::UpRule;
use whimbrel_core::method::Artifact;
use whimbrel_core::{Cell, Cells, ClientData, ClientId, DynMethod, Erased, Key};
use whimbrel_engine::{Faults, Participation, Protocol, Simulator};
use whimbrel_methods::fedmiss::select::{self, BASELINES, Given, Select, Selection};
use whimbrel_methods::fedmiss::{BindCells, FedMiss};
use whimbrel_models::lowrank::{Effects, Factors, Family, LowRank, LowRankFit, Settings};

const ROWS: usize = 40;
const COLUMNS: usize = 15;

/// Counts with row and column effects and a product of this rank, whose factors are signs.
pub fn counts(rank: usize, key: Key) -> Vec<ClientData> {
    let mut stream = key.stream();
    let mut normal = |n: usize| (0..n).map(|_| stream.normal()).collect::<Vec<f64>>();
    let (a, b) = (normal(ROWS), normal(COLUMNS));
    let (u, v) = (normal(ROWS * rank), normal(COLUMNS * rank));
    let mean = |row: usize, column: usize| {
        let sign = |k: usize| (u[row * rank + k] * v[column * rank + k]).signum();
        let product: f64 = (0..rank).map(sign).sum();
        (2.0 + 0.3 * a[row] + 0.3 * b[column] + 0.6 * product).exp()
    };
    drawn(|c| key.child(1 + c), mean, |_, _| true)
}

/// Counts of these means for four clients with ten rows each. One cell in twelve is held out; three in
/// four of those with `seen` are observed.
fn drawn(
    key: impl Fn(u64) -> Key,
    mean: impl Fn(usize, usize) -> f64,
    seen: impl Fn(usize, usize) -> bool,
) -> Vec<ClientData> {
    let one = |c: usize| {
        let mut stream = key(c as u64).stream();
        let (mut observed, mut held_out) = (Vec::new(), Vec::new());
        for at in 10 * c * COLUMNS..10 * (c + 1) * COLUMNS {
            let (row, column) = (at / COLUMNS, at % COLUMNS);
            let value = stream.poisson(mean(row, column)) as f64;
            let cell = Cell { row: row as u32, column: column as u32, value };
            match stream.below(12) {
                0 => held_out.push(cell),
                1..10 if seen(row, column) => observed.push(cell),
                _ => {}
            }
        }
        client([ROWS, COLUMNS], observed, held_out)
    };
    (0..4).map(one).collect()
}

fn settings() -> Settings {
    Settings { effects: Effects::row_column(), ..Settings::new(ROWS, COLUMNS, Family::Poisson) }
}

pub fn selecting(rounds: u32) -> Arc<Erased<Select, BindCells>> {
    Arc::new(Erased(Select::new(settings(), Given::default(), rounds, 1).unwrap(), BindCells))
}

pub fn comparing() -> Arc<Erased<Select, BindCells>> {
    Arc::new(Erased(Select::baselines(settings()).unwrap(), BindCells))
}

/// The artifact of a stage.
fn finished(method: Arc<dyn DynMethod>, data: &[ClientData]) -> Artifact {
    finished_with(1, method, data, Faults::default()).0
}

fn finished_with(
    seed: u64,
    method: Arc<dyn DynMethod>,
    data: &[ClientData],
    faults: Faults,
) -> (Artifact, Simulator) {
    let mut simulator = begun(method.clone(), data, seed, Participation::Everyone, faults);
    while simulator.step().unwrap().is_some() {}
    (method.artifact(simulator.machine().server()).unwrap(), simulator)
}

/// The result of a choice with these given settings.
fn selected(given: Given, data: &[ClientData]) -> (Selection, Artifact) {
    let select = Select::new(settings(), given, select::ROUNDS, 1).unwrap();
    let found = finished(Arc::new(Erased(select, BindCells)), data);
    (Selection::from_artifact(&found).unwrap(), found)
}

#[test]
fn effects_alone_are_told_from_a_low_rank() {
    for seed in [11, 12, 13] {
        let (found, _) = selected(Given::default(), &counts(0, Key::root(seed)));
        assert_eq!(found.chosen.rank, 0, "{found:?}");
    }
    for (seed, rank) in [(21, 1), (22, 2), (23, 3)] {
        let (found, _) = selected(Given::default(), &counts(rank, Key::root(seed)));
        assert_eq!(found.chosen.rank, rank, "{found:?}");
        assert!(found.chosen.lambda > 0.0 && found.tried.len() <= select::candidates_max(2));
    }
}

#[test]
fn held_out_cells_play_no_part_in_the_choice() {
    let data = counts(2, Key::root(31));
    let without = |data: &ClientData| {
        ClientData::Cells(Cells { held_out: Vec::new(), ..cells_of(data).clone() })
    };
    let without: Vec<ClientData> = data.iter().map(without).collect();
    assert_eq!(finished(selecting(8), &data), finished(selecting(8), &without));
}

/// Both baselines are far off on clear rank-2 data; row and column effects win on data without factors.
#[test]
fn baselines_say_where_a_simpler_model_wins() {
    let found = finished(comparing(), &counts(0, Key::root(41)));
    let [columns, effects] = [0, 1].map(|i| found.number(BASELINES[i]).unwrap());
    assert!(found.number(BASELINES[2]).is_err(), "the model has no other terms");
    assert!(effects < columns, "{found:?}");
    // Counts around their own means have a deviance of about one; 50 held-out cells.
    assert!((0.7..1.6).contains(&effects), "{effects}");
    assert!(found.number("held_out_cells").unwrap() > 30.0);
    let found = finished(comparing(), &counts(2, Key::root(42)));
    assert!(found.number("row_column_effects").unwrap() > 2.0, "{found:?}");
}

/// Half of the sites were observed in the first years, the others in the last, and few in both: the
/// comparison of the halves depends on those few and on the ridge.
fn halves(key: Key) -> Vec<ClientData> {
    let seen = |row, column| row == 10 || (row % 2 == 0) == (column < COLUMNS / 2);
    drawn(|c| key.child(c), |row, _| (1.5 + 0.05 * row as f64).exp(), seen)
}

/// Where rank 0 is chosen, the fit is the baseline of row and column effects: the fit starts from that of
/// the selection, and a few rounds do not change it.
#[test]
fn a_fit_of_rank_zero_is_the_baseline() {
    let data = halves(Key::root(71));
    let (found, _) = selected(Given::default(), &data);
    assert_eq!(found.chosen.rank, 0);
    let chosen = found.chosen.of(&settings());
    let baselines = Arc::new(Erased(Select::baselines(chosen.clone()).unwrap(), BindCells));
    let baseline = finished(baselines, &data).number("row_column_effects").unwrap();
    let model = LowRank::new(chosen).unwrap();
    let deviance = |method: FedMiss| {
        let fit = finished(Arc::new(Erased(method, BindCells)), &data);
        let fit = LowRankFit::from_artifact(&fit).unwrap();
        let each = held_out(&data).into_iter().map(|cell| {
            let mean = fit.mean(cell.row as usize, cell.column as usize);
            Family::Poisson.judged_deviance(cell.value, mean)
        });
        let each: Vec<f64> = each.collect();
        each.iter().sum::<f64>() / each.len() as f64
    };
    let cold = deviance(FedMiss::exact(model.clone(), 5));
    let warm =
        deviance(FedMiss { start: found.factors.clone(), ..FedMiss::exact(model.clone(), 1) });
    // Coarse dithering moves a fit that starts where residuals settle by as much as it moves them.
    let noisy = FedMiss {
        codecs: vec![dither(4)],
        rule: UpRule::Memory { alpha: None },
        open_memories: true,
        ..FedMiss::exact(model, 100)
    };
    let noisy = deviance(FedMiss { start: found.factors, ..noisy });
    for (name, fit) in [("cold", cold), ("warm", warm), ("noisy", noisy)] {
        assert!((fit / baseline - 1.0).abs() < 1e-7, "{name}: {fit} {baseline}");
    }
}

/// Ten observers who differ by up to a factor of eleven, each at a site for three of twelve columns:
/// without personal effects the table appears to have factors.
fn observers(key: Key) -> Vec<ClientData> {
    let mut stream = key.stream();
    let mut cells: Vec<Vec<Cell>> = vec![Vec::new(); 10];
    for row in 0..ROWS {
        let site = 1.5 + 0.4 * stream.normal();
        for block in 0..4 {
            let c = stream.below(10) as usize;
            let own = -1.2 + 2.4 * c as f64 / 9.0;
            for column in 3 * block..3 * (block + 1) {
                let value = stream.poisson((site + own).exp()) as f64;
                cells[c].push(Cell { row: row as u32, column: column as u32, value });
            }
        }
    }
    cells.into_iter().map(|cells| client([ROWS, COLUMNS], cells, Vec::new())).collect()
}

#[test]
fn candidates_have_the_personal_effects_that_the_job_has() {
    let data = observers(Key::root(81));
    let select = |personal| {
        let (found, artifact) = selected(Given { personal, ..Given::default() }, &data);
        (found.chosen.rank, artifact.number("validation_deviance").unwrap())
    };
    let (with, without) = (select(true), select(false));
    assert!(with.0 == 0 && without.0 > 0, "{with:?} {without:?}");
    assert!(with.1 < without.1, "{with:?} {without:?}");
}

/// One client is lost and another joins in the middle: the stages end with the remaining ones, and a
/// clear rank is still found.
#[test]
fn stages_end_without_a_client_that_died_and_with_one_that_came_late() {
    // Of the keys 61 to 75 two end in a worse optimum of rank 2 in a fold, and choose rank 3.
    let data = counts(2, Key::root(63));
    let faults = || Faults {
        drops: (30..5_000).map(|round| (round, [ClientId(1)].into())).collect(),
        late: [(ClientId(3), 20)].into(),
        ..Faults::default()
    };
    let (found, simulator) = finished_with(1, selecting(select::ROUNDS), &data, faults());
    let rounds = simulator.machine().round();
    assert!((100..4_000).contains(&rounds), "the loss lasts to the end: {rounds}");
    let folds = found.number("folds").unwrap();
    let cells = found.number("validation_cells").unwrap();
    // The last exchange of scores of each fold is with those who are there: each of their cells was
    // hidden once, the late client's too.
    assert_eq!(folds, 5.0);
    let all: usize = [0, 2, 3].iter().map(|c| cells_of(&data[*c]).observed.len()).sum();
    assert_eq!(cells, all as f64);
    assert_eq!(Selection::from_artifact(&found).unwrap().chosen.rank, 2);
    let (found, _) = finished_with(1, comparing(), &data, faults());
    assert!(found.number("held_out_cells").unwrap() > 20.0);
}

#[test]
fn settings_that_leave_nothing_to_choose_from_are_refused() {
    let without = Settings { effects: Effects::none(), ..settings() };
    let free = Given::default();
    assert!(Select::new(without, Given::default(), 10, 1).is_err());
    assert!(Select::new(settings(), Given { rank: Some(COLUMNS), ..free }, 10, 1).is_err());
    assert!(Select::new(settings(), Given { lambda: Some(-1.0), ..free }, 10, 1).is_err());
    assert!(Select::new(settings(), free, 0, 1).is_err());
}

/// A single factor has an optimum near each of two true ones: a fit from one random start sometimes ends
/// in the worse one, the fit that a selection delivers does not.
#[test]
fn the_fit_that_is_handed_on_is_the_best_of_several() {
    let mut worse = 0;
    for table in [64, 72, 80] {
        let data = counts(2, Key::root(table));
        let (found, _) = selected(Given { rank: Some(1), ..Given::default() }, &data);
        let model = LowRank::new(found.chosen.of(&settings())).unwrap();
        let objective = |factors: &Factors| {
            let each = all_cells(&data).into_iter().map(|cell| {
                let theta = model.theta(factors, cell.row as usize, cell.column as usize);
                Family::Poisson.psi(theta) - cell.value * theta
            });
            each.sum::<f64>() / data.len() as f64 + model.penalty(factors)
        };
        let handed_on = Factors::from_vector(&model, &found.factors.unwrap()).unwrap();
        let handed_on = objective(&handed_on);
        for seed in 1..=6 {
            let fit = Arc::new(Erased(FedMiss::exact(model.clone(), 200), BindCells));
            let (fit, _) = finished_with(seed, fit, &data, Faults::default());
            let fit = LowRankFit::from_artifact(&fit).unwrap();
            let single = objective(&fit.factors);
            // It has only begun to converge.
            assert!(handed_on <= single + 1e-2, "table {table}: {handed_on}, {single}");
            worse += u32::from(single > handed_on + 0.1);
        }
    }
    assert!(worse > 0, "no start is worse than another: the tables do not tell");
}
