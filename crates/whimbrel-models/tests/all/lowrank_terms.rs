//! Main effects of what describes rows and columns.

use crate::lowrank_cases::{bare, rounds};
use whimbrel_core::linalg::{cholesky, solve_lower, solve_lower_transposed};
use whimbrel_core::{Key, Stream};
use whimbrel_models::lowrank::{
    Classes, Effects, Factors, Family, Lines, LowRank, LowRankFit, Settings, Term,
};

const ROWS: usize = 20;
const COLUMNS: usize = 12;
const CLIENTS: f64 = 4.0;

/// Two habitats, four seasons, a slope of a covariate of the rows, and a number for each row and season.
fn terms() -> Vec<Term> {
    let classes = |count: usize, of: Vec<u32>| Lines::of(Classes::Of { count, of });
    let habitat = classes(2, (0..ROWS as u32).map(|row| row % 2).collect());
    let season = || classes(4, (0..COLUMNS as u32).map(|column| column % 4).collect());
    let weights = (0..ROWS).map(|row| (row as f64 - 9.5) / 6.0).collect();
    let slope = Lines { classes: Classes::All, weights };
    let all = || Lines::of(Classes::All);
    let term = |name: &str, sides| Term { name: name.into(), sides };
    vec![
        term("habitat", [habitat, all()]),
        term("season", [all(), season()]),
        term("slope", [slope, all()]),
        term("row:season", [Lines::of(Classes::Each), season()]),
    ]
}

fn model(family: Family, rank: usize, terms: Vec<Term>) -> LowRank {
    let term_ridges = [0.01, 0.02, 0.005, 0.3][..terms.len()].to_vec();
    let effects = Effects::of(terms);
    let base = Settings::new(ROWS, COLUMNS, family);
    LowRank::new(Settings { rank, effects, term_ridges, lambda: 0.2, ..base }).unwrap()
}

/// Observed cells, three in five, drawn from a truth with all four terms.
fn observed(family: Family, stream: &mut Stream) -> Vec<(u64, f64)> {
    let mut cells = Vec::new();
    for cell in 0..ROWS * COLUMNS {
        let (row, column) = (cell / COLUMNS, cell % COLUMNS);
        let of_both = if (row + column % 4) % 3 == 0 { 0.5 } else { 0.0 };
        let theta = 0.4 * (row % 2) as f64 - 0.3 * (column % 4) as f64
            + of_both
            + 0.25 * (row as f64 - 9.5) / 6.0;
        let y = family.draw(family.mean(theta), 0.4, stream);
        if stream.uniform() < 0.6 {
            cells.push((cell as u64, y));
        }
    }
    cells
}

fn fitted(model: &LowRank, cells: &[(u64, f64)], count: usize) -> Factors {
    rounds(model, Factors::start(model, 1.0, Key::root(3)), cells, (CLIENTS, false, count))
}

/// The same regression by dense Newton steps on an explicit design: intercept, then every term's
/// indicator columns; written apart from the solver under test.
fn dense_regression(family: Family, cells: &[(u64, f64)]) -> Vec<f64> {
    let q = 1 + 2 + 4 + 1 + ROWS * 4;
    let ridge = |k: usize| match k {
        0 => 0.0,
        1..=2 => 0.01 * CLIENTS,
        3..=6 => 0.02 * CLIENTS,
        7 => 0.005 * CLIENTS,
        _ => 0.3 * CLIENTS,
    };
    let design = |cell: u64| {
        let (row, column) = (cell as usize / COLUMNS, cell as usize % COLUMNS);
        let slope = (row as f64 - 9.5) / 6.0;
        let season = column % 4;
        [(0, 1.0), (1 + row % 2, 1.0), (3 + season, 1.0), (7, slope), (8 + row * 4 + season, 1.0)]
    };
    let mut beta = vec![0.0; q];
    for _ in 0..60 {
        let (mut g, mut h) = (vec![0.0; q], vec![0.0; q * q]);
        for k in 0..q {
            g[k] = ridge(k) * beta[k];
            h[k * q + k] = ridge(k) + 1e-12;
        }
        for (cell, y) in cells {
            let z = design(*cell);
            let mean = family.mean(z.iter().map(|(k, x)| x * beta[*k]).sum());
            for (k, x) in z {
                g[k] += x * (mean - y);
                z.iter().for_each(|(m, w)| h[k * q + m] += family.variance(mean) * x * w);
            }
        }
        cholesky(&mut h, q).unwrap();
        solve_lower(&h, q, &mut g);
        solve_lower_transposed(&h, q, &mut g);
        beta.iter_mut().zip(&g).for_each(|(beta, step)| *beta -= step.clamp(-1.0, 1.0));
    }
    let theta = |cell: u64| design(cell).iter().map(|(k, x)| x * beta[*k]).sum();
    (0..(ROWS * COLUMNS) as u64).map(theta).collect()
}

#[test]
fn effects_alone_are_the_penalised_regression_on_their_design() {
    for (family, seed) in [(Family::Poisson, 1), (Family::Gaussian, 2), (Family::Bernoulli, 3)] {
        let cells = observed(family, &mut Key::root(seed).stream());
        let model = model(family, 0, terms());
        let factors = fitted(&model, &cells, 4);
        let wanted = dense_regression(family, &cells);
        for (cell, wanted) in wanted.iter().enumerate() {
            let found = model.theta(&factors, cell / COLUMNS, cell % COLUMNS);
            // Both stop where Newton's steps are rounding: some hundred units of it.
            assert!((found - wanted).abs() < 1e-9, "{family:?} cell {cell}: {found} for {wanted}");
        }
    }
}

#[test]
fn beside_factors_the_optimum_is_stationary_in_every_unknown() {
    for family in Family::ALL {
        let cells = observed(family, &mut Key::root(7).stream());
        let model = model(family, 2, terms());
        let factors = fitted(&model, &cells, 300);
        let ridges = [0.01, 0.02, 0.005, 0.3].map(|ridge| ridge * CLIENTS);
        let mut slopes: Vec<Vec<f64>> = factors
            .effects
            .iter()
            .zip(ridges)
            .map(|(own, ridge)| own.iter().map(|beta| ridge * beta).collect())
            .collect();
        let mut of_factors = [&factors.u, &factors.v]
            .map(|side| side.iter().map(|x| 0.2 * CLIENTS * x).collect::<Vec<f64>>());
        for (cell, y) in &cells {
            let (row, column) = (*cell as usize / COLUMNS, *cell as usize % COLUMNS);
            let d = family.mean(model.theta(&factors, row, column)) - y;
            let x = (row as f64 - 9.5) / 6.0;
            let places = [(row % 2, 1.0), (column % 4, 1.0), (0, x), (row * 4 + column % 4, 1.0)];
            slopes.iter_mut().zip(places).for_each(|(own, (at, x))| own[at] += x * d);
            for k in 0..2 {
                of_factors[0][2 * row + k] += d * factors.v[2 * column + k];
                of_factors[1][2 * column + k] += d * factors.u[2 * row + k];
            }
        }
        slopes.extend(of_factors);
        let most = slopes.iter().flatten().fold(0.0, |most: f64, slope| most.max(slope.abs()));
        assert!(most < 1e-7, "{family:?}: {most:e}");
    }
}

#[test]
fn a_table_with_copies_alike_has_the_same_optimum() {
    // Effects are then fitted to the whole completed table, sweep by sweep.
    let (family, rank) = (Family::Poisson, 1);
    let cells = observed(family, &mut Key::root(7).stream());
    let model = model(family, rank, terms());
    let wanted = fitted(&model, &cells, 300);
    let mut factors = wanted.clone();
    factors.effects.iter_mut().flatten().for_each(|beta| *beta += 0.3);
    let factors = rounds(&model, factors, &cells, (CLIENTS, true, 3000));
    for cell in 0..ROWS * COLUMNS {
        let theta = |f| model.theta(f, cell / COLUMNS, cell % COLUMNS);
        let gap = theta(&factors) - theta(&wanted);
        assert!(gap.abs() < 1e-4, "cell {cell}: {gap:e}");
    }
}

#[test]
fn a_row_and_a_column_term_are_the_row_and_column_effects() {
    let cells = observed(Family::Poisson, &mut Key::root(5).stream());
    let of = |effects| {
        let base = Settings::new(ROWS, COLUMNS, Family::Poisson);
        LowRank::new(Settings { rank: 2, effects, lambda: 0.1, ..base }).unwrap()
    };
    let named = of(Effects::of(vec![Term::column(), Term::row()]));
    let usual = of(Effects::row_column());
    assert_eq!(fitted(&named, &cells, 20), fitted(&usual, &cells, 20));
}

#[test]
fn terms_survive_the_artifact() {
    let cells = observed(Family::Poisson, &mut Key::root(9).stream());
    let mut all = terms();
    all.truncate(3);
    all.push(Term::row());
    let model = model(Family::Poisson, 1, all);
    let factors = fitted(&model, &cells, 5);
    let fit = bare(model, factors, 4);
    let back = LowRankFit::from_artifact(&fit.to_artifact()).unwrap();
    assert_eq!(back.factors, fit.factors);
    assert_eq!(back.model.settings().term_ridges, fit.model.settings().term_ridges);
    for cell in 0..ROWS * COLUMNS {
        let (row, column) = (cell / COLUMNS, cell % COLUMNS);
        assert_eq!(back.theta(row, column), fit.theta(row, column));
    }
}
