//! Honest questions that tell rows apart by values that few of them have, with and without the rule of the
//! smallest group.

use crate::attacks::{Spy, normal};
use crate::federation::{Setup, equal_terms};
use std::sync::Arc;
use whimbrel_codec::Codec;
use whimbrel_codec::channel::{Downlink, UpRule, Uplink};
use whimbrel_core::linalg::packed_len;
use whimbrel_core::{ClientData, DynMethod, Erased, FeatureRows, Labelled, Table};
use whimbrel_methods::federated::BindRows;
use whimbrel_methods::guard;
use whimbrel_methods::kmeans::FederatedKmeans;
use whimbrel_methods::mixture::MixtureStart;
use whimbrel_methods::newton::Newton;
use whimbrel_methods::one_shot::Once;
use whimbrel_methods::pooled::Pooled;
use whimbrel_methods::prepare::Pca;
use whimbrel_methods::settings::Privacy;
use whimbrel_methods::sgd::{Gradient, Sgd};
use whimbrel_models::convex::Problem;
use whimbrel_models::glm::{Asked, Design, Errors, Factor, Family, Model, Rows, Scaling, Term};
use whimbrel_models::gmm::{Covariance, Gmm, GmmSettings};
use whimbrel_models::mixed::{ColumnKind, Mixed, MixedSettings, Numeric};
use whimbrel_models::{LatentModel, MixtureModel, Rows as Chosen};

const ROWS: usize = 200;
const GROUP: u32 = 5;
/// Places of the regression's columns.
const RARE: usize = 1;
const AGE: usize = 2;
const INCOME: usize = 3;
const WARD: usize = 4;
const ARM: usize = 5;
/// The row with a rare value.
const ONE: usize = 17;
/// The row with a rare pair of levels.
const PAIR: usize = 40;

/// A target of two classes, a column that is 1 in one row, two of numbers, and two factors that only one
/// row has both of.
fn table() -> Table {
    let names = ["y", "rare", "age", "income", "ward", "arm"].map(str::to_owned).to_vec();
    let (age, income) = (normal(ROWS, 21), normal(ROWS, 22));
    let flag = |is: bool| f64::from(u8::from(is));
    let row = |i: usize| {
        let (ward, arm) = (flag(i.is_multiple_of(4)), flag(i % 4 == 1 || i == PAIR));
        let y = flag(age[i] + normal(1, 500 + i as u64)[0] > 0.0);
        [y, flag(i == ONE), age[i], income[i], ward, arm]
    };
    Table::new(names, (0..ROWS).flat_map(row).collect()).unwrap()
}

fn regression(family: Family, errors: Errors, min_group: Option<u32>, table: &Table) -> Newton {
    let columns = table.columns.to_vec();
    let term = |column: usize| {
        let levels = if column < WARD { vec![] } else { vec!["no".to_owned(), "yes".to_owned()] };
        let factors = vec![Factor { column, levels, reference: 0 }];
        Term { name: columns[column].clone(), factors }
    };
    let terms = (1..columns.len()).map(term).collect();
    let design = Design { intercept: true, terms, columns, ..Design::default() };
    let asked = Asked { errors, heterogeneity: false, frequencies: false, min_group: 1 };
    let model = Model { family, design, by_client: false };
    Newton { model, ridge: 0.0, asked, tests: false, rounds: 30, min_group, baseline: false }
}

/// The client's rows as a regression reads them.
fn read(newton: &Newton, mut table: Table) -> Rows {
    if let Some(group) = newton.min_group {
        guard::rows(&mut table, &newton.model, group).unwrap();
    }
    newton.read(&ClientData::Table(table)).unwrap()
}

fn unscaled() -> Scaling {
    Scaling { means: vec![0.0; 5], scales: vec![1.0; 5] }
}

/// An entry of a packed matrix.
fn entry(packed: &[f64], i: usize, j: usize) -> f64 {
    packed[packed_len(i.max(j)) + i.min(j)]
}

fn is_near(x: f64, y: f64) -> bool {
    (x - y).abs() < 1e-9 * y.abs()
}

#[test]
fn a_regression_withholds_rows_with_rare_values() {
    let told = |min_group| {
        let newton = regression(Family::Binomial, Errors::Model, min_group, &table());
        let rows = read(&newton, table());
        let beta = [0.1, 0.0, 0.6, -0.2, 0.3, 0.1];
        let sums = newton.model.evaluate(&rows, &unscaled(), &beta).unwrap();
        let cell =
            |column| entry(&sums.information, RARE, column) / entry(&sums.information, RARE, RARE);
        let table = table();
        let row = table.row(ONE);
        let is_read = [AGE, INCOME].iter().all(|at| is_near(cell(*at), row[*at]));
        // The working weight of the only row with both levels is one equation for its other cells.
        let eta =
            |row: &[f64]| -> f64 { beta.iter().zip(row).skip(1).map(|(b, x)| b * x).sum::<f64>() };
        let p = 1.0 / (1.0 + (-beta[0] - eta(table.row(PAIR))).exp());
        (is_read, is_near(entry(&sums.information, WARD, ARM), p * (1.0 - p)), rows.len())
    };
    assert_eq!(told(None), (true, true, ROWS));
    assert_eq!(told(Some(GROUP)), (false, false, ROWS - 1));
}

/// Rows that share a weight keep their total, and scores are those of all rows: the estimate stays, its
/// standard errors change little.
#[test]
fn shared_weights_keep_the_estimate() {
    let beta = [0.1, 0.0, 0.6, -0.2, 0.3, 0.1];
    let sums = |exposed: bool| {
        let newton = regression(Family::Binomial, Errors::Model, Some(GROUP), &table());
        let mut rows = read(&newton, table());
        assert_eq!(rows.groups.exposed.iter().filter(|is| **is).count(), GROUP as usize);
        if !exposed {
            rows.groups.exposed.clear();
        }
        newton.model.evaluate(&rows, &unscaled(), &beta).unwrap()
    };
    let [shared, own] = [true, false].map(sums);
    assert_eq!(shared.score, own.score);
    assert!(is_near(entry(&shared.information, 0, 0), entry(&own.information, 0, 0)));
    assert!(!is_near(entry(&shared.information, WARD, ARM), entry(&own.information, WARD, ARM)));
}

/// A class that few rows have, and clients with few rows, send nothing.
#[test]
fn regressions_of_few_events_or_rows_send_zeros() {
    let newton = regression(Family::Binomial, Errors::Model, Some(GROUP), &table());
    let zeros = |table: Table| {
        let rows = read(&newton, table);
        let sums = newton.model.evaluate(&rows, &unscaled(), &[0.1; 6]).unwrap();
        rows.is_empty() && sums.score.iter().chain(&sums.information).all(|x| *x == 0.0)
    };
    let mut one_event = table();
    one_event
        .values
        .iter_mut()
        .step_by(6)
        .enumerate()
        .for_each(|(i, y)| *y = f64::from(u8::from(i == 3)));
    assert!(zeros(one_event));
    // As many rows as coefficients: two matrices of products have the rows as common axes.
    for (rows, expected) in [(3, true), (6, true), (60, false)] {
        let some: Vec<usize> = (100..100 + rows).collect();
        assert_eq!(zeros(table().at(&some)), expected, "{rows}");
    }
}

/// At steep coefficients one row misses by 1 and all others by little: the products of scores weigh it by the
/// square.
#[test]
fn robust_products_rest_on_a_group() {
    let told = |min_group| {
        let newton = regression(Family::Gaussian, Errors::Robust, min_group, &table());
        let mut table = table();
        for (i, row) in table.values.chunks_exact_mut(6).enumerate() {
            row[RARE] = f64::from(u8::from(i % 2 == 0));
            row[0] = 3.0 * row[AGE] + if i == 99 { 1.0 } else { 0.03 + 1e-3 * row[AGE] };
        }
        let rows = read(&newton, table.clone());
        let asked = Asked { errors: Errors::Robust, ..newton.asked };
        let point = [0.0, 0.0, 3.0, 0.0, 0.0, 0.0];
        let sums = newton.model.evaluate(&rows, &unscaled(), &point).unwrap();
        assert!(sums.support > f64::from(GROUP));
        let misfit = newton.model.misfit(&rows, &unscaled(), &point, &asked, &sums.score).unwrap();
        let products = &misfit[misfit.len() - packed_len(6)..];
        let guess = [AGE, INCOME].map(|at| products[packed_len(at)] / products[0]);
        let row = table.row(99);
        (guess[0] - row[AGE]).abs().max((guess[1] - row[INCOME]).abs())
    };
    let [without, with] = [None, Some(GROUP)].map(told);
    println!("robust products: the row up to {without:.2} without a group, {with:.2} with one");
    assert!(without < 0.25 && with > 0.5, "{without} {with}");
}

/// Slopes of single rows in the coordinates of columns that they alone have: one round for each column
/// gives the row.
#[test]
fn gradients_of_sparse_columns() {
    let (dense, sparse) = (6, 30);
    let d = dense + sparse;
    let values = normal(ROWS * dense, 31);
    let signs: Vec<f64> = normal(ROWS, 32).iter().map(|x| x.signum()).collect();
    let rows_read = |guarded: bool| {
        let (mut starts, mut columns, mut cells) = (vec![0], Vec::new(), Vec::new());
        for row in 0..ROWS {
            columns.extend(0..dense as u32);
            cells.extend(&values[row * dense..][..dense]);
            if row < sparse {
                columns.push((dense + row) as u32);
                cells.push(1.0);
            }
            starts.push(columns.len());
        }
        let rows = FeatureRows::Sparse { starts, columns, values: cells };
        let names = (0..d).map(|j| j.to_string()).collect();
        let mut data = ClientData::Labelled(Labelled::new(names, rows, signs.clone()).unwrap());
        if guarded {
            let withheld = guard::cells(&mut data, &[], GROUP);
            assert_eq!((withheld.cells, withheld.rows), (sparse as u64, 0));
        }
        let uplink = Uplink::new(Codec::Exact, UpRule::Plain, d).unwrap();
        let method = Sgd {
            oracle: Gradient::new(Problem::logistic(0.0, false).unwrap(), d),
            terms: whimbrel_methods::federated::Terms {
                privacy: Privacy { min_group: Some(GROUP), ..Privacy::default() },
                ..equal_terms(uplink, Downlink::exact(d), dense as u32)
            },
        };
        let mut spy = Spy::new(Arc::new(Erased(method, BindRows)), data);
        let mut found = vec![Vec::new(); sparse];
        for j in 0..dense {
            let mut w = vec![0.0; d];
            w[j] = 0.5;
            let told = spy.round(&w, None::<()>, (), d).unwrap();
            for (row, found) in found.iter_mut().enumerate() {
                // The slope is -y / (1 + exp(y x / 2)).
                let slope = told[dense + row] * ROWS as f64;
                found.push(-2.0 * slope.signum() * (1.0 / slope.abs() - 1.0).ln());
            }
        }
        let is_read = |(row, found): &(usize, Vec<f64>)| {
            found.iter().zip(&values[row * dense..]).all(|(x, y)| is_near(*x, *y))
        };
        found.into_iter().enumerate().filter(is_read).count()
    };
    let read = [false, true].map(rows_read);
    println!("sparse columns: {read:?} of {sparse} rows in {dense} rounds");
    assert_eq!(read, [sparse, 0]);
}

/// Whether a message holds all these numbers, as sums or as means over the rows.
fn holds(message: &[u8], numbers: &[f64]) -> bool {
    let found = |x: f64| {
        let near = |bytes: &[u8]| {
            let told = f64::from_le_bytes(bytes.try_into().unwrap());
            [1.0, ROWS as f64].iter().any(|scale| (told * scale - x).abs() < 1e-12 * x.abs())
        };
        message.windows(8).any(near)
    };
    numbers.iter().all(|x| found(*x))
}

/// Products with a column that is 1 in one row are that row: of the enrolment of a mixture, of its start
/// and of principal components.
#[test]
fn products_with_almost_constant_columns() {
    let columns = 3;
    let mut settings = GmmSettings::new(2, columns, Covariance::Full);
    settings.want_moments = true;
    let model = Gmm::new(settings).unwrap();
    let values: Vec<f64> =
        table().values.chunks(6).flat_map(|row| [row[1], row[2], row[3]]).collect();
    let names = ["rare", "age", "income"].map(str::to_owned).to_vec();
    let rows = Table::new(names, values).unwrap();
    let setup = Setup { rounds: 2, ..Setup::default() };
    let methods: [(&str, Arc<dyn DynMethod>); 3] = [
        ("mixture", Arc::new(Erased(setup.fit(model.clone(), MixtureStart::Moments), BindRows))),
        ("start", Arc::new(Erased(Once(FederatedKmeans { model, rows_min: 5 }), BindRows))),
        ("pca", Arc::new(Erased(Once(Pca::new(columns, 2).unwrap()), BindRows))),
    ];
    for (name, method) in methods {
        let read = [false, true].map(|guarded| {
            let mut data = ClientData::Table(rows.clone());
            if guarded {
                assert_eq!(guard::cells(&mut data, &[], GROUP).cells, 1);
            }
            holds(&Spy::new(method.clone(), data).summary, &rows.row(ONE)[1..])
        });
        assert_eq!(read, [true, false], "{name}");
    }
}

/// The sum over a level of one row is that row's responsibility, and so is the sum over rows without a
/// value, whose variance the parameters choose.
#[test]
fn rare_levels_and_gaps_of_a_mixed_table() {
    let kinds = vec![ColumnKind::Number, ColumnKind::Levels(3), ColumnKind::Number];
    let model = Mixed::new(MixedSettings::new(2, kinds, Numeric::Diagonal)).unwrap();
    let (a, b) = (normal(ROWS, 41), normal(ROWS, 42));
    let row = |i: usize| {
        let level = if i == ONE { 2.0 } else { (i % 2) as f64 };
        [a[i], level, if i == PAIR { f64::NAN } else { b[i] }]
    };
    let names = ["a", "level", "b"].map(str::to_owned).to_vec();
    let rows = Table::new(names, (0..ROWS).flat_map(row).collect()).unwrap();
    let levels = [vec![], ["x", "y", "z"].map(str::to_owned).to_vec(), vec![]];
    let told = |guarded: bool| {
        let mut data = ClientData::Table(rows.clone());
        if guarded {
            let withheld = guard::cells(&mut data, &levels, GROUP);
            // One level, and four more gaps beside the one.
            assert_eq!(withheld.cells, 1 + 4);
        }
        let data = model.bind(&data).unwrap();
        let moments = model.moments(&data).unwrap();
        let theta = model.initial_from_moments(&moments, whimbrel_core::Key::root(3)).unwrap();
        let statistic = |rows: Chosen<'_>| {
            let mut statistic = vec![0.0; model.statistic_len()];
            model.expect(&theta, &data, rows, &mut statistic).unwrap();
            statistic
        };
        let all = statistic(Chosen::All);
        let own = statistic(Chosen::These(&[ONE as u32]));
        all.iter().any(|x| is_near(x * ROWS as f64, own[0]))
    };
    assert_eq!([false, true].map(told), [true, false]);
}

/// Values of columns as the rule leaves them.
#[test]
fn cells_that_stand_out_take_the_most_frequent_value() {
    let gap = f64::NAN;
    let cases: [(Vec<f64>, bool, Vec<f64>); 6] = [
        // Four rows differ from zero.
        ([vec![0.0; 36], vec![1.0, 2.0, 3.0, 4.0]].concat(), false, vec![0.0; 40]),
        // Five do.
        ([vec![0.0; 35], vec![1.0, 2.0, 3.0, 4.0, 5.0]].concat(), false, {
            [vec![0.0; 35], vec![1.0, 2.0, 3.0, 4.0, 5.0]].concat()
        }),
        // Three numbers are told apart.
        ([vec![0.0; 20], vec![1.0; 19], vec![2.0]].concat(), false, {
            [vec![0.0; 20], vec![1.0; 19], vec![0.0]].concat()
        }),
        // Levels, one of which few rows have.
        (
            [vec![0.0; 10], vec![1.0; 10], vec![2.0; 10], vec![3.0; 6], vec![4.0; 4]].concat(),
            true,
            { [vec![0.0; 10], vec![1.0; 10], vec![2.0; 10], vec![3.0; 6], vec![0.0; 4]].concat() },
        ),
        // Three observed values are none.
        ([vec![gap; 37], vec![1.5, 2.5, 3.5]].concat(), false, vec![gap; 40]),
        // Two gaps are five.
        ((0..40).map(|i| if i < 2 { gap } else { i as f64 }).collect(), false, {
            (0..40).map(|i| if !(2..37).contains(&i) { gap } else { i as f64 }).collect()
        }),
    ];
    for (values, has_levels, expected) in cases {
        let levels = vec![vec!["level".to_owned(); if has_levels { 5 } else { 0 }]];
        let mut data = ClientData::Table(Table::new(vec!["x".into()], values.clone()).unwrap());
        guard::cells(&mut data, &levels, GROUP);
        let ClientData::Table(table) = &data else { unreachable!() };
        let bits = |all: &[f64]| all.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(&table.values), bits(&expected), "{values:?}");
        // Dense and sparse rows follow the same rule.
        if !values.iter().any(|x| x.is_nan()) && !has_levels {
            let sparse: Vec<(usize, f64)> =
                values.iter().copied().enumerate().filter(|(_, x)| *x != 0.0).collect();
            let mut starts = vec![0];
            let mut filled = 0;
            for row in 0..values.len() {
                filled += usize::from(sparse.iter().any(|(at, _)| *at == row));
                starts.push(filled);
            }
            let given = [
                FeatureRows::Dense(values.clone()),
                FeatureRows::Sparse {
                    starts,
                    columns: vec![0; sparse.len()],
                    values: sparse.iter().map(|(_, x)| *x).collect(),
                },
            ];
            for rows in given {
                let targets = (0..values.len()).map(|i| (i % 7) as f64).collect();
                let labelled = Labelled::new(vec!["x".into()], rows, targets).unwrap();
                let mut data = ClientData::Labelled(labelled);
                guard::cells(&mut data, &[], GROUP);
                let ClientData::Labelled(rows) = &data else { unreachable!() };
                let found = match &rows.rows {
                    FeatureRows::Dense(values) => values.clone(),
                    FeatureRows::Sparse { starts, values, .. } => (0..40)
                        .map(|row| values[starts[row]..starts[row + 1]].iter().sum())
                        .collect(),
                };
                assert_eq!(found, expected);
            }
        }
    }
}
