//! Least squares and logistic regression: derivatives, layouts, constants, refused input.

use whimbrel_core::isa::{self, Isa};
use whimbrel_core::{ClientData, Error, FeatureRows, Key, Labelled, Table, linalg, math, vector};
use whimbrel_models::Rows;
use whimbrel_models::convex::{Examples, Penalty, Problem};
use whimbrel_testkit::{gap, pairs};

pub fn problems(ridge: f64, intercept: bool) -> [Problem; 2] {
    [Problem::least_squares, Problem::logistic].map(|new| new(ridge, intercept).unwrap())
}

pub fn labelled(width: usize, rows: FeatureRows, targets: Vec<f64>) -> ClientData {
    let names = (0..width).map(|j| format!("c{j}")).collect();
    let none = Labelled::new(names, FeatureRows::Dense(vec![]), vec![]).unwrap();
    // Also rows that `Labelled::new` refuses: a problem must not trust them.
    ClientData::Labelled(Labelled { rows, targets, ..none })
}

pub fn numbers(tag: u64, n: usize) -> Vec<f64> {
    let mut out = vec![0.0; n];
    Key::root(77).child(tag).stream().fill_normal(&mut out);
    out
}

pub fn classes(tag: u64, n: usize) -> Vec<f64> {
    numbers(tag, n).iter().map(|x| x.signum()).collect()
}

/// Rows of which about a third of the cells are not zero, dense and sparse.
fn both_layouts(rows: usize, width: usize) -> [ClientData; 2] {
    let mut values = numbers(1, rows * width);
    values.iter_mut().for_each(|x| *x = if *x > 0.4 { *x } else { 0.0 });
    let (mut starts, mut columns, mut kept) = (vec![0], Vec::new(), Vec::new());
    for row in values.chunks(width) {
        for (j, x) in row.iter().enumerate().filter(|(_, x)| **x != 0.0) {
            columns.push(j as u32);
            kept.push(*x);
        }
        starts.push(columns.len());
    }
    let targets = classes(2, rows);
    let sparse = FeatureRows::Sparse { starts, columns, values: kept };
    [labelled(width, FeatureRows::Dense(values), targets.clone()), labelled(width, sparse, targets)]
}

/// Every cell of a client's rows, with the column of ones where there is one: at `w = 0` one row's
/// least-squares gradient is `-y x`.
fn cells(data: &Examples) -> Vec<Vec<f64>> {
    let squares = Problem::least_squares(0.0, false).unwrap();
    let zero = vec![0.0; data.dimension()];
    let one = |i: usize| {
        let mut x = zero.clone();
        squares.gradient(&zero, data, Rows::These(&[i as u32]), &mut x).unwrap();
        x.iter().map(|g| -g / data.targets()[i]).collect()
    };
    (0..data.rows()).map(one).collect()
}

#[test]
fn gradients_are_means_of_each_rows_own_derivative() {
    for (rows, width) in [(1, 1), (3, 2), (33, 8), (70, 13), (129, 20)] {
        for intercept in [false, true] {
            for data in both_layouts(rows, width) {
                let d = width + usize::from(intercept);
                let w = numbers(5, d);
                let squares = Problem::least_squares(0.0, intercept).unwrap();
                let x = cells(&squares.bind(&data).unwrap());
                if intercept {
                    assert!(x.iter().all(|x| x[d - 1] == 1.0));
                }
                for (k, problem) in problems(0.3, intercept).iter().enumerate() {
                    let data = problem.bind(&data).unwrap();
                    let some: Vec<u32> =
                        (0..2 * rows as u32).map(|i| i * 7 % rows as u32).collect();
                    let all: Vec<u32> = (0..rows as u32).collect();
                    for (chosen, asked) in [(&all, Rows::All), (&some, Rows::These(&some))] {
                        let (mut loss, mut right) = (0.0, vec![0.0; d]);
                        for i in chosen.iter().map(|i| *i as usize) {
                            let (z, y) = (vector::dot(&x[i], &w), data.targets()[i]);
                            let (value, slope) = if k == 0 {
                                (0.5 * (z - y) * (z - y), z - y)
                            } else {
                                (math::ln_1p(math::exp(-y * z)), -y / (1.0 + math::exp(y * z)))
                            };
                            loss += value / chosen.len() as f64;
                            vector::axpy(&mut right, slope / chosen.len() as f64, &x[i]);
                        }
                        loss += 0.15 * vector::norm2_squared(&w);
                        vector::axpy(&mut right, 0.3, &w);
                        let mut found = vec![f64::NAN; d];
                        let value = problem.gradient(&w, &data, asked, &mut found).unwrap();
                        assert!((value - loss).abs() < 1e-12 * (1.0 + loss), "{value} {loss}");
                        assert!(gap(&found, &right) < 1e-12);
                    }
                }
            }
        }
    }
}

#[test]
fn derivatives_agree_with_differences() {
    for intercept in [false, true] {
        let bounded = Problem::penalised_logistic(Penalty::Bounded(0.4), intercept).unwrap();
        for problem in problems(0.1, intercept).into_iter().chain([bounded]) {
            for data in both_layouts(67, 11) {
                let data = problem.bind(&data).unwrap();
                let d = data.dimension();
                let (w, v) = (numbers(5, d), numbers(6, d));
                let at = |t: f64| {
                    let mut moved = w.clone();
                    vector::axpy(&mut moved, t, &v);
                    let mut gradient = vec![0.0; d];
                    let f = problem.gradient(&moved, &data, Rows::All, &mut gradient).unwrap();
                    let loss = problem.loss(&moved, &data).unwrap();
                    assert!((f - loss).abs() <= 1e-14 * f.abs());
                    (f, gradient)
                };
                // Central differences: the error is of the order of h^2, rounding eps / h.
                let h = 1e-5;
                let ((up, g_up), (down, g_down), (_, g)) = (at(h), at(-h), at(0.0));
                let slope = (up - down) / (2.0 * h);
                assert!((slope - vector::dot(&g, &v)).abs() < 1e-8, "{slope}");
                let mut image = vec![0.0; d];
                problem.hessian_vector(&w, &data, &v, &mut image).unwrap();
                let differences: Vec<f64> =
                    g_up.iter().zip(&g_down).map(|(a, b)| (a - b) / (2.0 * h)).collect();
                assert!(gap(&image, &differences) < 1e-8);

                let mut hessian = vec![0.0; d * d];
                problem.add_hessian(&w, &data, 0.5, &mut hessian).unwrap();
                problem.add_hessian(&w, &data, 0.5, &mut hessian).unwrap();
                let full = linalg::unpack(&linalg::pack(&hessian, d), d);
                let mut product = vec![0.0; d];
                linalg::matvec(&mut product, &full, &v);
                assert!(gap(&product, &image) < 1e-13);
            }
        }
    }
}

#[test]
fn constants_are_eigenvalues_of_the_gram_matrix() {
    for (rows, width) in [(1, 3), (4, 9), (60, 5), (90, 12)] {
        for data in both_layouts(rows, width) {
            for (problem, curvature) in pairs(problems(0.01, true), [1.0, 0.25]) {
                let data = problem.bind(&data).unwrap();
                let (x, d) = (cells(&data), data.dimension());
                let mut gram = vec![0.0; d * d];
                for x in &x {
                    for i in 0..d {
                        vector::axpy(&mut gram[i * d..][..d], x[i] / rows as f64, x);
                    }
                }
                let values = linalg::symmetric_eigen(&gram, d).unwrap().values;
                let smooth = curvature * values[d - 1] + 0.01;
                assert!((problem.smoothness(&data) - smooth).abs() < 1e-10 * smooth);
                let norm = curvature * vector::norm2_squared(&gram).sqrt() + 0.01;
                assert!((problem.frobenius(&data) - norm).abs() < 1e-10 * norm);
                let convex = if curvature == 1.0 { values[0].max(0.0) + 0.01 } else { 0.01 };
                assert!((problem.strong_convexity(&data) - convex).abs() < 1e-10);
            }
        }
    }
}

#[test]
fn wide_gram_matrices_have_the_eigenvalues_of_their_transposes() {
    // 40 rows of 900 columns: the non-zero eigenvalues of A^T A / n are those of A A^T / n.
    let (rows, width) = (40, 900);
    let values = numbers(8, rows * width);
    let mut outer = vec![0.0; rows * rows];
    for i in 0..rows {
        for j in 0..rows {
            let (a, b) = (&values[i * width..][..width], &values[j * width..][..width]);
            outer[i * rows + j] = vector::dot(a, b) / rows as f64;
        }
    }
    let right = linalg::largest_eigenvalue(&outer, rows).unwrap();
    let problem = Problem::least_squares(0.0, false).unwrap();
    let data = labelled(width, FeatureRows::Dense(values), classes(9, rows));
    let data = problem.bind(&data).unwrap();
    let found = problem.smoothness(&data);
    assert!((found - right).abs() <= 1e-10 * right, "{found} {right}");
    assert_eq!(problem.strong_convexity(&data), 0.0);

    // Enough rows for full rank: columns scaled so that the extremes are known up to the ridge.
    let (rows, width) = (600, 600);
    let mut values = vec![0.0; rows * width];
    (0..rows).for_each(|i| values[i * width + i] = (rows as f64 * (2.0 + i as f64)).sqrt());
    let data = labelled(width, FeatureRows::Dense(values), classes(9, rows));
    let data = problem.bind(&data).unwrap();
    assert!((problem.smoothness(&data) - 601.0).abs() < 601e-10);
    assert!((problem.strong_convexity(&data) - 2.0).abs() < 601e-10);
}

#[test]
fn large_margins_neither_overflow_nor_vanish() {
    let problem = Problem::logistic(0.0, false).unwrap();
    let data = labelled(1, FeatureRows::Dense(vec![1.0, 1.0]), vec![1.0, -1.0]);
    let data = problem.bind(&data).unwrap();
    let mut out = [0.0];
    for w in [1e4, 1e300] {
        // One row pays its whole margin, the other nothing.
        assert_eq!(problem.gradient(&[w], &data, Rows::All, &mut out).unwrap(), 0.5 * w);
        assert_eq!(out, [0.5]);
        assert_eq!(problem.gradient(&[-w], &data, Rows::All, &mut out).unwrap(), 0.5 * w);
        assert_eq!(out, [-0.5]);
    }
    // ln(1 + e^-40) keeps its digits where 1 + e^-40 has lost them.
    let tiny = problem.gradient(&[40.0], &data, Rows::These(&[0]), &mut out).unwrap();
    assert!((tiny / 4.248_354_255_291_589e-18 - 1.0).abs() < 1e-15);
    assert!((out[0] / -4.248_354_255_291_589e-18 - 1.0).abs() < 1e-15);
    let mut predictions = [0.0; 2];
    problem.predict(&[-2.0], &data, &mut predictions).unwrap();
    assert!((predictions[0] - 0.119_202_922_022_117_56).abs() < 1e-16);
}

#[test]
fn predictions_need_no_targets() {
    let names = vec!["a".to_string(), "b".to_string()];
    let table = ClientData::Table(Table::new(names, vec![1.0, 2.0, 0.0, -1.0]).unwrap());
    let [squares, logistic] = problems(0.0, true);
    let (w, mut out) = ([1.0, 0.5, -2.0], [f64::NAN; 2]);
    let data = squares.bind_features(&table).unwrap();
    squares.predict(&w, &data, &mut out).unwrap();
    assert_eq!(out, [0.0, -2.5]);
    logistic.predict(&w, &data, &mut out).unwrap();
    assert_eq!(out[0], 0.5);
    assert!((out[1] - 1.0 / (1.0 + math::exp(2.5))).abs() < 1e-16);
    let strange = labelled(2, FeatureRows::Dense(vec![0.0; 2]), vec![f64::NAN]);
    assert_eq!(logistic.bind_features(&strange).unwrap().rows(), 1);
    assert!(squares.bind(&table).unwrap_err().to_string().contains("no targets"));
}

#[test]
fn bits_do_not_depend_on_the_instruction_set() {
    let fingerprint = || {
        let mut bits = Vec::new();
        for problem in problems(0.01, true) {
            for data in both_layouts(101, 29) {
                let data = problem.bind(&data).unwrap();
                let d = data.dimension();
                let (w, some) = (numbers(5, d), [3, 99, 3, 50, 7, 100, 0]);
                let (mut g, mut h) = (vec![0.0; d], vec![0.0; d * d]);
                for rows in [Rows::All, Rows::These(&some)] {
                    bits.push(problem.gradient(&w, &data, rows, &mut g).unwrap());
                    bits.extend(&g);
                }
                problem.hessian_vector(&w, &data, &g, &mut h[..d]).unwrap();
                problem.add_hessian(&w, &data, 0.7, &mut h).unwrap();
                bits.extend(&h);
                let mut predictions = vec![0.0; data.rows()];
                problem.predict(&w, &data, &mut predictions).unwrap();
                bits.extend(predictions);
                bits.extend([problem.smoothness(&data), problem.frobenius(&data)]);
                let clients = [(1.0, &data)];
                let found = whimbrel_models::convex::solve(&problem, &clients, 1e-10).unwrap();
                bits.extend(found.w);
            }
        }
        bits.into_iter().map(f64::to_bits).collect::<Vec<u64>>()
    };
    let best = isa::level();
    let expected = fingerprint();
    for level in [Isa::Baseline, Isa::V3] {
        isa::pin(level);
        let found = fingerprint();
        isa::pin(best);
        assert!(found == expected, "{level:?}");
    }
}

#[test]
fn unusable_data_are_refused_with_the_place() {
    let [squares, logistic] = problems(0.0, false);
    let refuse = |problem: &Problem, data: ClientData| {
        let error = problem.bind(&data).expect_err("must be refused");
        assert!(matches!(error, Error::Data { .. }), "{error}");
        error.to_string()
    };
    let dense = |values: &[f64], targets: &[f64]| {
        labelled(2, FeatureRows::Dense(values.to_vec()), targets.to_vec())
    };
    let sparse = |starts: &[usize], columns: &[u32], values: &[f64], rows: usize| {
        let (starts, columns, values) = (starts.to_vec(), columns.to_vec(), values.to_vec());
        labelled(3, FeatureRows::Sparse { starts, columns, values }, vec![1.0; rows])
    };
    assert!(refuse(&squares, dense(&[], &[])).contains("no rows"));
    assert!(refuse(&squares, dense(&[1.0; 3], &[1.0; 2])).contains("3 values"));
    let nan = refuse(&squares, dense(&[1.0, 2.0, 3.0, f64::NAN], &[1.0; 2]));
    assert!(nan.contains("row 2, column `c1` holds NaN"), "{nan}");
    let target = refuse(&squares, dense(&[1.0; 4], &[1.0, f64::INFINITY]));
    assert!(target.contains("row 2: the target is inf"), "{target}");
    for (targets, row) in
        [([1.0, 2.0], "row 2"), ([-1.0, 0.0], "row 1"), ([f64::NAN, 1.0], "row 1")]
    {
        let error = refuse(&logistic, dense(&[1.0; 4], &targets));
        assert!(error.contains(row) && error.contains("logistic"), "{error}");
    }
    let none = labelled(0, FeatureRows::Dense(vec![]), vec![1.0]);
    assert!(refuse(&squares, none.clone()).contains("no columns"));
    assert_eq!(problems(0.0, true)[0].bind(&none).unwrap().dimension(), 1);

    assert!(refuse(&squares, sparse(&[0, 1], &[3], &[1.0], 1)).contains("row 1 names column 4"));
    assert!(refuse(&squares, sparse(&[0, 2], &[1, 1], &[1.0; 2], 1)).contains("ascend"));
    let infinite = refuse(&squares, sparse(&[0, 0, 1], &[2], &[f64::INFINITY], 2));
    assert!(infinite.contains("row 2, column `c2`"), "{infinite}");
    for starts in [&[0, 2][..], &[0], &[1, 1], &[], &[0, 1, 1]] {
        assert!(refuse(&squares, sparse(starts, &[0], &[1.0], 1)).contains("starts"));
    }
    assert!(refuse(&squares, sparse(&[0, 2, 1], &[0], &[1.0], 2)).contains("starts"));

    let read = logistic.bind(&dense(&[1.0; 6], &[0.0, 1.0, 0.0])).unwrap();
    assert_eq!(read.targets(), [-1.0, 1.0, -1.0]);
    for ridge in [-1.0, f64::NAN, f64::INFINITY] {
        assert!(matches!(Problem::logistic(ridge, true), Err(Error::Config { .. })));
        assert!(matches!(Problem::least_squares(ridge, true), Err(Error::Config { .. })));
    }
}

#[test]
fn calls_that_do_not_fit_are_errors() {
    for problem in problems(0.0, false) {
        let data = labelled(2, FeatureRows::Dense(vec![1.0, 2.0, 3.0, 4.0]), vec![1.0, -1.0]);
        let data = problem.bind(&data).unwrap();
        let mut out = [0.0; 2];
        assert!(problem.gradient(&[0.0; 3], &data, Rows::All, &mut out).is_err());
        assert!(problem.gradient(&[0.0; 2], &data, Rows::All, &mut out[..1]).is_err());
        assert!(problem.gradient(&[0.0; 2], &data, Rows::These(&[]), &mut out).is_err());
        assert!(problem.gradient(&[0.0; 2], &data, Rows::These(&[0, 2]), &mut out).is_err());
        assert!(problem.loss(&[0.0; 1], &data).is_err());
        assert!(problem.hessian_vector(&[0.0; 2], &data, &[0.0; 1], &mut out).is_err());
        assert!(problem.add_hessian(&[0.0; 2], &data, 1.0, &mut out).is_err());
        assert!(problem.predict(&[0.0; 2], &data, &mut out[..1]).is_err());
        for w in [f64::NAN, f64::INFINITY] {
            let error = problem.gradient(&[w, 0.0], &data, Rows::All, &mut out).unwrap_err();
            assert!(matches!(error, Error::Numerical { .. }), "{error}");
        }
        let huge = labelled(1, FeatureRows::Dense(vec![1e300]), vec![1.0]);
        let huge = problem.bind(&huge).unwrap();
        assert_eq!(problem.smoothness(&huge), f64::INFINITY);
        assert_eq!(problem.strong_convexity(&huge), 0.0);
    }
}
