//! The solver: against SciPy, closed forms, and data that have no minimiser.

use crate::convex::{classes, labelled, numbers, problems};
use proptest::prelude::*;
use std::io::Read;
use whimbrel_core::{ClientData, Error, FeatureRows, vector};
use whimbrel_models::Rows;
use whimbrel_models::convex::{Examples, Problem, solve};
use whimbrel_testkit::data_file;

/// A client of the script `peers/convex.py`, bit for bit.
fn peer_client(number: u64, columns: usize, classes: bool) -> ClientData {
    let mut state = 1000 + number;
    let mut draw = || {
        let mut total = 0.0;
        for _ in 0..12 {
            state = (1_103_515_245 * state + 12345) % (1 << 31);
            total += state as f64 / (1u64 << 31) as f64;
        }
        total - 6.0
    };
    let (mut values, mut targets) = (Vec::new(), Vec::new());
    for _ in 0..40 * (number + 1) {
        let x: Vec<f64> = (0..columns).map(|_| draw()).collect();
        let value = (x[0] - 0.5 * x[1]) + (0.25 * number as f64 + draw());
        values.extend(x);
        targets.push(if classes { if value > 0.0 { 1.0 } else { -1.0 } } else { value });
    }
    labelled(columns, FeatureRows::Dense(values), targets)
}

#[test]
fn optima_are_those_of_l_bfgs() {
    let mut cases = 0;
    for line in include_str!("../peers/convex.txt").lines().filter(|l| !l.starts_with('#')) {
        let words: Vec<&str> = line.split(' ').collect();
        let numbers: Vec<f64> = words[1..].iter().map(|w| w.parse().unwrap()).collect();
        let (columns, count, ridge) = (numbers[0] as usize, numbers[1] as u64, numbers[2]);
        let [squares, logistic] = problems(ridge, numbers[3] == 1.0);
        let problem = if words[0] == "logistic" { logistic } else { squares };
        let clients: Vec<Examples> = (0..count)
            .map(|c| problem.bind(&peer_client(c, columns, words[0] == "logistic")).unwrap())
            .collect();
        let weighted: Vec<(f64, &Examples)> =
            clients.iter().map(|c| (1.0 / count as f64, c)).collect();
        let found = solve(&problem, &weighted, 1e-12).unwrap();
        assert!(found.gradient_norm <= 1e-12, "{:e}", found.gradient_norm);
        let (norm, value, w) = (numbers[4], numbers[5], &numbers[6..]);
        assert!((found.f_star - value).abs() <= 1e-13 * value, "{words:?}: {}", found.f_star);
        // The distance to the minimiser is at most the gradient's norm over the least curvature,
        // which these designs keep above 1/50.
        assert_eq!(found.w.len(), w.len());
        let distance: Vec<f64> = found.w.iter().zip(w).map(|(a, b)| a - b).collect();
        let bound = 50.0 * (norm + found.gradient_norm);
        assert!(vector::norm2_squared(&distance).sqrt() <= bound, "{words:?}");
        cases += 1;
    }
    assert_eq!(cases, 24);
}

#[test]
fn weights_move_the_optimum_as_the_closed_form_says() {
    // One column of ones: the minimiser is the weighted mean of the clients' mean targets.
    let problem = Problem::least_squares(0.0, true).unwrap();
    let bind = |targets: &[f64]| {
        let rows = FeatureRows::Dense(Vec::new());
        problem.bind(&labelled(0, rows, targets.to_vec())).unwrap()
    };
    let (a, b) = (bind(&[1.0, 3.0]), bind(&[10.0]));
    for (first, right) in [(0.5, 6.0), (2.0 / 3.0, 14.0 / 3.0), (1.0, 2.0)] {
        let found = solve(&problem, &[(first, &a), (1.0 - first, &b)], 1e-12).unwrap();
        assert!((found.w[0] - right).abs() < 1e-12, "{found:?}");
    }
    let ridged = Problem::least_squares(1.0, true).unwrap();
    let found = solve(&ridged, &[(1.0, &a)], 1e-12).unwrap();
    assert!((found.w[0] - 1.0).abs() < 1e-12, "{found:?}");
}

/// A shift of the targets moves a free intercept and nothing else.
#[test]
fn a_free_intercept_is_not_shrunk() {
    let (x, y) = (numbers(5, 60), numbers(6, 60));
    let found = |problem: Problem, shift: f64| {
        let targets = y.iter().map(|y| y + shift).collect();
        let data = problem.bind(&labelled(1, FeatureRows::Dense(x.clone()), targets)).unwrap();
        solve(&problem, &[(1.0, &data)], 1e-12).unwrap().w
    };
    let all = Problem::least_squares(0.7, true).unwrap();
    let (here, there) =
        (found(all.with_free_intercept(), 0.0), found(all.with_free_intercept(), 5.0));
    assert!((here[0] - there[0]).abs() < 1e-10 && (here[1] + 5.0 - there[1]).abs() < 1e-10);
    assert!((found(all, 5.0)[1] - there[1]).abs() > 1.0);
    let free = Problem::logistic(0.7, true).unwrap().with_free_intercept();
    let targets = classes(7, 60);
    let mean = targets.iter().sum::<f64>() / 60.0;
    let data = free.bind(&labelled(1, FeatureRows::Dense(x.clone()), targets)).unwrap();
    let w = solve(&free, &[(1.0, &data)], 1e-12).unwrap().w;
    let mut p = vec![0.0; 60];
    free.predict(&w, &data, &mut p).unwrap();
    let predicted = p.iter().map(|p| 2.0 * p - 1.0).sum::<f64>() / 60.0;
    assert!((predicted - mean).abs() < 1e-10, "{predicted} is not {mean}");
}

#[test]
fn dependent_columns_and_more_columns_than_rows_still_have_an_optimum() {
    for problem in problems(0.0, true) {
        // Column 2 is column 1 again, column 3 the intercept again, column 4 nothing.
        let x = numbers(30, 80);
        let dense: Vec<f64> = x.iter().flat_map(|x| [*x, *x, 1.0, 0.0]).collect();
        let mut targets = classes(31, 80);
        targets.iter_mut().zip(&x).for_each(|(y, x)| *y = if *x > 1.0 { 1.0 } else { *y });
        let narrow = problem.bind(&labelled(1, FeatureRows::Dense(x), targets.clone())).unwrap();
        let wide = problem.bind(&labelled(4, FeatureRows::Dense(dense), targets)).unwrap();
        let right = solve(&problem, &[(1.0, &narrow)], 1e-10).unwrap();
        let found = solve(&problem, &[(1.0, &wide)], 1e-10).unwrap();
        assert!(found.gradient_norm <= 1e-10);
        assert!((found.f_star - right.f_star).abs() < 1e-14, "{} {}", found.f_star, right.f_star);
        // The shortest of the minimisers shares a weight equally among equal columns.
        let shared = [right.w[0] / 2.0, right.w[0] / 2.0, right.w[1] / 2.0, 0.0, right.w[1] / 2.0];
        assert_eq!(found.w.len(), shared.len());
        assert!(found.w.iter().zip(shared).all(|(a, b)| (a - b).abs() < 1e-8), "{found:?}");
    }
    let problem = Problem::least_squares(0.0, false).unwrap();
    let few = labelled(30, FeatureRows::Dense(numbers(32, 300)), numbers(33, 10));
    let few = problem.bind(&few).unwrap();
    let found = solve(&problem, &[(1.0, &few)], 1e-10).unwrap();
    assert!(found.gradient_norm <= 1e-10 && found.f_star < 1e-18, "{found:?}");
}

#[test]
fn many_columns_are_solved_by_products_alone() {
    let (rows, width) = (300, 1100);
    for problem in problems(0.05, false) {
        let data =
            labelled(width, FeatureRows::Dense(numbers(40, rows * width)), classes(41, rows));
        let data = problem.bind(&data).unwrap();
        let found = solve(&problem, &[(1.0, &data)], 1e-10).unwrap();
        assert!(found.gradient_norm <= 1e-10);
        let mut gradient = vec![0.0; width];
        let f = problem.gradient(&found.w, &data, Rows::All, &mut gradient).unwrap();
        assert_eq!(f, found.f_star);
        assert!(vector::norm2_squared(&gradient).sqrt() <= 1e-10);
    }
}

#[test]
fn badly_scaled_columns_are_solved_as_far_as_rounding_allows() {
    let problem = Problem::least_squares(0.0, true).unwrap();
    let mut values = numbers(50, 200);
    values.iter_mut().step_by(2).for_each(|x| *x = 1e6 + 1e3 * *x);
    let targets: Vec<f64> = values.chunks(2).map(|x| 3.0 * x[0] - x[1] + 1e4).collect();
    let data = problem.bind(&labelled(2, FeatureRows::Dense(values), targets)).unwrap();
    let found = solve(&problem, &[(1.0, &data)], 1e-10).unwrap();
    assert!((found.w[0] - 3.0).abs() < 1e-6 && (found.w[1] + 1.0).abs() < 1e-3, "{found:?}");
}

#[test]
fn separated_classes_have_no_minimiser_without_a_ridge() {
    let x: Vec<f64> = numbers(60, 100);
    let targets: Vec<f64> = x.chunks(2).map(|x| (x[0] + 0.2 * x[1]).signum()).collect();
    let rows = labelled(2, FeatureRows::Dense(x), targets);
    let free = Problem::logistic(0.0, true).unwrap();
    let data = free.bind(&rows).unwrap();
    let error = solve(&free, &[(1.0, &data)], 1e-10).unwrap_err();
    assert!(matches!(error, Error::Numerical { .. }));
    assert!(error.to_string().contains("hint: set a ridge"), "{error}");
    // Separated in one client, not over both: the mean has a minimiser.
    let other = labelled(2, FeatureRows::Dense(numbers(61, 100)), classes(62, 50));
    let other = free.bind(&other).unwrap();
    assert!(solve(&free, &[(0.5, &data), (0.5, &other)], 1e-10).is_ok());
    let ridged = Problem::logistic(1e-6, true).unwrap();
    let found = solve(&ridged, &[(1.0, &data)], 1e-10).unwrap();
    assert!(found.gradient_norm <= 1e-10 && found.w[0] > 5.0, "{found:?}");
}

#[test]
fn impossible_requests_are_refused() {
    let problem = Problem::least_squares(0.0, false).unwrap();
    let bind = |width: usize| {
        let rows = FeatureRows::Dense(numbers(70, 5 * width));
        problem.bind(&labelled(width, rows, classes(71, 5))).unwrap()
    };
    let (two, three) = (bind(2), bind(3));
    let refuse = |clients: &[(f64, &Examples)], tolerance: f64| {
        solve(&problem, clients, tolerance).unwrap_err().to_string()
    };
    assert!(refuse(&[], 1e-10).contains("no clients"));
    assert!(refuse(&[(0.5, &two), (0.5, &three)], 1e-10).contains("client 2 has dimension 3"));
    assert!(refuse(&[(0.5, &two)], 1e-10).contains("sum to 0.5"));
    assert!(refuse(&[(2.0, &two), (-1.0, &two)], 1e-10).contains("client 2 has the weight -1"));
    assert!(refuse(&[(f64::NAN, &two)], 1e-10).contains("weight NaN"));
    for tolerance in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        assert!(refuse(&[(1.0, &two)], tolerance).contains("tolerance"));
    }
    for problem in problems(0.0, false) {
        let huge = labelled(1, FeatureRows::Dense(vec![1e300, -1e299]), vec![1.0, 1.0]);
        let huge = problem.bind(&huge).unwrap();
        let error = solve(&problem, &[(1.0, &huge)], 1e-10).unwrap_err();
        assert!(matches!(error, Error::Numerical { .. }), "{error}");
        let zero = labelled(1, FeatureRows::Dense(vec![0.0; 2]), vec![1.0, -1.0]);
        let zero = problem.bind(&zero).unwrap();
        assert_eq!(solve(&problem, &[(1.0, &zero)], 1e-10).unwrap().w, [0.0]);
    }
}

/// A published LIBSVM file.
fn libsvm(name: &str, width: usize) -> Option<ClientData> {
    let file = std::fs::File::open(data_file(name)?).unwrap();
    let mut text = String::new();
    flate2::read::GzDecoder::new(file).read_to_string(&mut text).unwrap();
    let (mut starts, mut columns) = (vec![0], Vec::new());
    let (mut values, mut targets) = (Vec::new(), Vec::new());
    for line in text.lines() {
        let mut words = line.split_whitespace();
        targets.push(words.next().unwrap().parse().unwrap());
        for (column, value) in words.map(|w| w.split_once(':').unwrap()) {
            columns.push(column.parse::<u32>().unwrap() - 1);
            values.push(value.parse().unwrap());
        }
        starts.push(columns.len());
    }
    Some(labelled(width, FeatureRows::Sparse { starts, columns, values }, targets))
}

/// SciPy's value on a9a, at a gradient of norm 2e-9 (`peers/convex.py`).
const A9A: f64 = 0.322_620_707_902_203_7;

/// a9a has columns that occur in one class only, so that its infimum is not attained and either
/// solver stops a little above it; the gradient reaches the tolerance all the same.
#[test]
fn a9a_is_solved_to_a_gradient_of_1e_10() {
    let Some(rows) = libsvm("a9a/a9a.gz", 123) else { return };
    let problem = Problem::logistic(0.0, true).unwrap();
    let data = problem.bind(&rows).unwrap();
    assert_eq!((data.rows(), data.dimension()), (32_561, 124));
    let found = solve(&problem, &[(1.0, &data)], 1e-10).unwrap();
    assert!(found.gradient_norm <= 1e-10);
    let mut gradient = vec![0.0; 124];
    problem.gradient(&found.w, &data, Rows::All, &mut gradient).unwrap();
    assert!(vector::norm2_squared(&gradient).sqrt() <= 1e-10);
    assert!((found.f_star - A9A).abs() < 1e-9, "{}", found.f_star);
}

fn hostile_number() -> impl Strategy<Value = f64> {
    prop_oneof![
        4 => -2.0..2.0f64,
        2 => Just(0.0),
        1 => prop::num::f64::NORMAL,
        1 => prop::sample::select(vec![1.0, -1.0, 1e-320, 1e160, -1e200, f64::MAX]),
    ]
}

fn hostile_rows() -> impl Strategy<Value = (usize, FeatureRows, Vec<f64>)> {
    let dense = (1..5usize, 1..40usize).prop_flat_map(|(width, rows)| {
        let values = prop::collection::vec(hostile_number(), width * rows);
        (Just(width), values.prop_map(FeatureRows::Dense), Just(rows))
    });
    let sparse = (1..5usize, 1..6usize).prop_flat_map(|(width, rows)| {
        let starts = prop::collection::vec(0..4usize, rows + 1);
        let entries = prop::collection::vec((0..6u32, hostile_number()), 0..8);
        let features = (starts, entries).prop_map(|(mut starts, entries)| {
            starts.sort_unstable();
            let (columns, values): (_, Vec<f64>) = entries.into_iter().unzip();
            // Mostly the right ends, so that some cases are accepted.
            if values.len() >= 2 {
                starts[0] = 0;
                *starts.last_mut().unwrap() = values.len();
            }
            FeatureRows::Sparse { starts, columns, values }
        });
        (Just(width), features, Just(rows))
    });
    prop_oneof![dense, sparse].prop_flat_map(|(width, features, rows)| {
        let targets = prop_oneof![
            3 => prop::collection::vec(prop::sample::select(vec![-1.0, 1.0]), rows),
            1 => prop::collection::vec(hostile_number(), 0..rows + 2),
        ];
        targets.prop_map(move |targets| (width, features.clone(), targets))
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Whatever the rows: an error, or numbers that are finite and as good as they say.
    #[test]
    fn hostile_rows_give_errors_or_optima(rows in hostile_rows(), w in prop::collection::vec(hostile_number(), 5)) {
        let rows = labelled(rows.0, rows.1, rows.2);
        for problem in problems(0.0, true) {
            let Ok(data) = problem.bind(&rows) else { continue };
            let d = data.dimension();
            let mut gradient = vec![0.0; d];
            if let Ok(loss) = problem.gradient(&w[..d], &data, Rows::All, &mut gradient) {
                prop_assert!(loss.is_finite() && vector::all_finite(&gradient));
            }
            prop_assert!(problem.smoothness(&data) >= problem.strong_convexity(&data) * (1.0 - 1e-9));
            prop_assert!(!problem.frobenius(&data).is_nan());
            if let Ok(found) = solve(&problem, &[(1.0, &data)], 1e-10) {
                let again = problem.gradient(&found.w, &data, Rows::All, &mut gradient).unwrap();
                prop_assert_eq!(again, found.f_star);
                prop_assert_eq!(vector::norm2_squared(&gradient).sqrt(), found.gradient_norm);
            }
        }
    }
}
