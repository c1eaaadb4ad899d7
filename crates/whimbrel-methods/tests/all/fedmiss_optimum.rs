//! Convergence on hard tables: without noise, and with everything penalised, the gradient of `F` in every
//! unknown is far below the standard error of counts, the root of the largest total of a row or column.

use crate::fedmiss::{Setup, all_cells, client, given, gradient, run};
use whimbrel_core::{Cell, ClientData, Key};
use whimbrel_engine::Participation;
use whimbrel_methods::fedmiss::Copies;
use whimbrel_models::lowrank::{Effects, Family, Settings, Term};

const ROWS: usize = 40;
const COLUMNS: usize = 15;
const CLIENTS: usize = 5;
/// Rounds within which each fit converges, and with the paper's copies.
const ROUNDS: u32 = 300;
const PAPER_ROUNDS: u32 = 3000;
/// The largest gradient over that root.
const NEAR: f64 = 1e-2;

/// A rank-2 table, each cell observed with this probability, by one client; `edit` changes its values.
fn table(
    family: Family,
    observed: f64,
    key: Key,
    edit: impl Fn(usize, usize, f64) -> f64,
) -> Vec<ClientData> {
    let mut stream = key.stream();
    let mut normal = |n: usize| (0..n).map(|_| 0.7 * stream.normal()).collect::<Vec<f64>>();
    let (u, v) = (normal(2 * ROWS), normal(2 * COLUMNS));
    let mut cells = vec![Vec::new(); CLIENTS];
    for row in 0..ROWS {
        for column in 0..COLUMNS {
            if stream.uniform() >= observed {
                continue;
            }
            let theta = 0.8 + u[2 * row] * v[2 * column] + u[2 * row + 1] * v[2 * column + 1];
            let value = edit(row, column, family.draw(family.mean(theta), 0.3, &mut stream));
            let place = stream.below(CLIENTS as u64) as usize;
            cells[place].push(Cell { row: row as u32, column: column as u32, value });
        }
    }
    cells.into_iter().map(|cells| client([ROWS, COLUMNS], cells, Vec::new())).collect()
}

/// The largest gradient at the end, over the root of the largest total, is small.
fn converges(setup: &Setup, data: &[ClientData]) {
    let (server, _) = run(setup, data, Participation::Everyone, None);
    let cells = all_cells(data);
    let mut totals = [vec![0.0; ROWS], vec![0.0; COLUMNS]];
    for cell in &cells {
        totals[0][cell.row as usize] += cell.value;
        totals[1][cell.column as usize] += cell.value;
    }
    let total = totals.iter().flatten().copied().fold(0.0, f64::max);
    let largest = gradient(setup, &server.factors, &cells, CLIENTS as f64) / total.sqrt();
    let Settings { rank, effects, .. } = &setup.settings;
    assert!(largest <= NEAR, "{} cells, rank {rank}, {effects:?}: {largest:e}", cells.len());
}

fn setup(family: Family, rank: usize, lambda: f64, effects: Effects) -> Setup {
    let settings = Settings { rank, lambda, effects, ..Settings::new(ROWS, COLUMNS, family) };
    Setup { settings, rounds: ROUNDS, ..Setup::new(family) }
}

/// An unobserved cell may be extrapolated to a mean of many millions, which would block the factors; the
/// effects' penalty is nine orders of magnitude below the curvature.
#[test]
fn counts_of_thousands_with_effects() {
    for (observed, rank, key) in [(1.0, 2, 21), (1.0, 3, 22), (0.6, 2, 23), (0.5, 3, 24)] {
        let data = table(Family::Poisson, observed, Key::root(key), |_, _, count| 500.0 * count);
        converges(&setup(Family::Poisson, rank, 0.2, Effects::row_column()), &data);
    }
}

#[test]
fn counts_of_millions_with_effects() {
    for key in [27, 28] {
        let data = table(Family::Poisson, 1.0, Key::root(key), |_, _, count| 1e6 * count);
        converges(&setup(Family::Poisson, 2, 0.2, Effects::row_column()), &data);
    }
}

#[test]
fn a_row_of_zeros_under_a_small_penalty() {
    for (observed, effects) in
        [(0.6, Effects::none()), (1.0, Effects::none()), (0.6, Effects::of(vec![Term::row()]))]
    {
        let zero = |row, _, count| if row == 3 { 0.0 } else { count };
        let data = table(Family::Poisson, observed, Key::root(25), zero);
        converges(&setup(Family::Poisson, 3, 0.01, effects), &data);
    }
}

/// Rows and columns of equal values have no finite effect without a penalty.
#[test]
fn yes_or_no_values_that_effects_separate() {
    let edit = |row, column, value| match (row, column) {
        (3 | 17, _) => 1.0,
        (_, 4) => 0.0,
        _ => value,
    };
    for (observed, effects, lambda) in [
        (0.6, Effects::row_column(), 0.2),
        (1.0, Effects::row_column(), 0.05),
        (0.6, Effects::row_column(), 0.005),
        (0.6, Effects::none(), 0.002),
    ] {
        let data = table(Family::Bernoulli, observed, Key::root(26), edit);
        converges(&setup(Family::Bernoulli, 2, lambda, effects), &data);
    }
}

/// The paper's step and copies take longer.
#[test]
fn a_step_of_one_ends_there_too() {
    for (family, effects) in [
        (Family::Poisson, Effects::row_column()),
        (Family::Poisson, Effects::none()),
        (Family::Bernoulli, Effects::row_column()),
    ] {
        let data = table(family, 0.6, Key::root(29), |_, _, value| value);
        let (step, copies, rounds) = (given(1.0), Copies::Clients, PAPER_ROUNDS);
        let paper = Setup { step, copies, rounds, ..setup(family, 2, 0.2, effects) };
        converges(&paper, &data);
    }
}
