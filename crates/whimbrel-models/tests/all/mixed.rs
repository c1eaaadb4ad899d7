//! Mixtures over tables: against the Gaussian mixture, latent class analysis, and an independent EM.

use crate::cases::rows as gaussian_rows;
use crate::mixed_em::Naive;
use whimbrel_core::{ClientData, Frame, Key, Table};
use whimbrel_models::gmm::{Covariance, Gmm, GmmSettings};
use whimbrel_models::mixed::{
    ColumnKind, Filled, Mixed, MixedData, MixedParameters, MixedSettings, Numeric,
};
use whimbrel_models::{LatentModel, MixtureModel, Rows};
use whimbrel_testkit::pairs;

pub const COLUMNS: [ColumnKind; 7] = [
    ColumnKind::Number,
    ColumnKind::Count,
    ColumnKind::Levels(2),
    ColumnKind::Number,
    ColumnKind::Levels(3),
    ColumnKind::Number,
    ColumnKind::Levels(2),
];

pub fn mixed(components: usize, columns: &[ColumnKind], numeric: Numeric) -> Mixed {
    Mixed::new(MixedSettings::new(components, columns.to_vec(), numeric)).unwrap()
}

/// Rows of `COLUMNS` from three groups; this share of the cells is missing.
pub fn table(n: usize, gaps: f64, seed: u64) -> Vec<f64> {
    let mut stream = Key::root(seed).stream();
    let mut values = Vec::new();
    for _ in 0..n {
        let k = stream.categorical(&[0.5, 0.3, 0.2]);
        let shared = stream.normal();
        let mut row = [0.0; 7];
        row[0] = [40.0, 55.0, 70.0][k] + 6.0 * shared;
        row[1] = stream.poisson([1.0, 4.0, 9.0][k]) as f64;
        row[2] = stream.categorical(&[[0.8, 0.2], [0.5, 0.5], [0.1, 0.9]][k]) as f64;
        row[3] = [0.0, 1.0, -2.0][k] + 0.5 * shared + 0.7 * stream.normal();
        row[4] = stream.categorical(&[[0.7, 0.2, 0.1], [0.2, 0.6, 0.2], [0.1, 0.1, 0.8]][k]) as f64;
        row[5] = [3.0, -1.0, 2.0][k] + stream.normal();
        row[6] = stream.categorical(&[[0.6, 0.4], [0.3, 0.7], [0.2, 0.8]][k]) as f64;
        values.extend(row.map(|x| if stream.uniform() < gaps { f64::NAN } else { x }));
    }
    values
}

/// Equal lengths, and numbers equal to this tolerance, relative above one.
fn assert_near(found: &[f64], expected: &[f64], tolerance: f64) {
    assert_eq!(found.len(), expected.len());
    for (x, y) in pairs(found, expected) {
        assert!((x - y).abs() < tolerance * y.abs().max(1.0), "{x} {y}");
    }
}

fn start(model: &Mixed, data: &MixedData) -> MixedParameters {
    let moments = model.moments(data).unwrap();
    model.initial_from_moments(&moments, Key::root(3)).unwrap()
}

/// One EM step; the log-likelihood before it.
fn step(model: &Mixed, data: &MixedData, theta: &mut MixedParameters) -> f64 {
    let mut statistic = vec![0.0; model.statistic_len()];
    let log_likelihood = model.expect(theta, data, Rows::All, &mut statistic).unwrap();
    *theta = model.maximize(&statistic, &[]).unwrap().theta;
    log_likelihood
}

#[test]
fn numbers_without_gaps_are_the_gaussian_mixture() {
    for (numeric, covariance) in
        [(Numeric::Diagonal, Covariance::Diagonal), (Numeric::Full, Covariance::Full)]
    {
        let (k, d) = (3, 4);
        let gmm = Gmm::new(GmmSettings::new(k, d, covariance)).unwrap();
        let values = gaussian_rows(&gmm, &crate::cases::parameters(&gmm, 1.0), 1300, 5);
        let model = mixed(k, &[ColumnKind::Number; 4], numeric);
        assert_eq!(model.statistic_len(), gmm.statistic_len());
        assert_eq!(model.coordinates_len(), gmm.coordinates_len());
        assert_eq!(model.free_parameters(), gmm.free_parameters());
        let data = model.data_from_rows(&values).unwrap();
        let plain = gmm.data_from_rows(&values).unwrap();
        let mut theta = start(&model, &data);
        let mut expected = theta.gaussian().unwrap().clone();
        let mut statistics = [vec![0.0; gmm.statistic_len()], vec![0.0; gmm.statistic_len()]];
        for _ in 0..30 {
            let [own, other] = &mut statistics;
            let found = model.expect(&theta, &data, Rows::All, own).unwrap();
            let wanted = gmm.expect(&expected, &plain, Rows::All, other).unwrap();
            assert!((found - wanted).abs() < 1e-11, "{found} {wanted}");
            assert_near(own, other, 1e-9);
            theta = model.maximize(own, &[]).unwrap().theta;
            expected = gmm.maximize(other, &[]).unwrap().theta;
        }
        let (baseline, one) = (
            model.baseline(&statistics[0], &model.moments(&data).unwrap()).unwrap(),
            gmm.baseline(&statistics[1], &[]).unwrap(),
        );
        // A full covariance is compared with independent columns.
        match numeric {
            Numeric::Diagonal => assert!((baseline - one).abs() < 1e-10),
            Numeric::Full => assert!(baseline >= one),
        }
    }
}

#[test]
fn levels_alone_are_latent_class_analysis() {
    let columns = [ColumnKind::Levels(2); 6];
    let mut stream = Key::root(8).stream();
    let mut values = Vec::new();
    for _ in 0..700 {
        let k = stream.categorical(&[0.6, 0.4]);
        let yes = [[0.9, 0.8, 0.7, 0.2, 0.3, 0.1], [0.2, 0.1, 0.4, 0.8, 0.9, 0.6]][k];
        values.extend(yes.map(|p| f64::from(u8::from(stream.uniform() < p))));
    }
    let model = mixed(2, &columns, Numeric::Diagonal);
    let data = model.data_from_rows(&values).unwrap();
    let mut theta = start(&model, &data);
    let mut naive = Naive::of(&model, &theta);
    for round in 0..200 {
        let (own, other) = (step(&model, &data, &mut theta), naive.step(&values));
        assert!((own - other).abs() < 1e-11, "step {round}: {own} {other}");
    }
    for (k, cells) in naive.cells.iter().enumerate() {
        for (j, cell) in cells.iter().enumerate() {
            assert!((theta.levels()[k * 12 + 2 * j + 1] - cell[1]).abs() < 1e-9);
        }
    }
}

#[test]
fn a_table_with_gaps_has_the_likelihood_of_an_em_of_its_own() {
    for numeric in [Numeric::Diagonal, Numeric::Full] {
        let values = table(300, 0.2, 41);
        let model = mixed(3, &COLUMNS, numeric);
        let data = model.data_from_rows(&values).unwrap();
        let mut theta = start(&model, &data);
        let mut naive = Naive::of(&model, &theta);
        assert!(
            (step(&model, &data, &mut theta.clone()) - naive.clone().step(&values)).abs() < 1e-11
        );
        // Gaps are latent here and left out there: the steps differ, the fixed points do not.
        let (mut own, mut other, mut before) = (0.0, 0.0, f64::NEG_INFINITY);
        for round in 0..1500 {
            own = step(&model, &data, &mut theta);
            other = naive.step(&values);
            assert!(own >= before - 1e-12, "step {round}: the likelihood fell");
            before = own;
        }
        assert!((own - other).abs() < 1e-8, "{numeric:?}: {own} {other}");
        for row in values.chunks_exact(7).take(200) {
            let one = model.data_from_rows(row).unwrap();
            let found = model.predict(&theta, &one, 0.9).unwrap();
            let (density, r, moments) = Naive::of(&model, &theta).row(row);
            assert!((found.log_density[0] - density).abs() < 1e-9);
            assert_near(&found.responsibilities, &r, 1e-9);
            assert_eq!(found.filled.len(), row.iter().filter(|x| x.is_nan()).count());
            let fitted = Naive::of(&model, &theta);
            for cell in &found.filled {
                let (expected, mean) = match cell {
                    Filled::Scalar { place: (_, j), mean, interval, .. } => {
                        assert!(interval[0] <= interval[1]);
                        let number = [0, 9, 9, 1, 9, 2, 9][*j];
                        let each = (0..3).map(|k| match number {
                            9 => r[k] * fitted.cells[k][*j][0],
                            at => r[k] * moments[k].0[at],
                        });
                        (each.sum::<f64>(), *mean)
                    }
                    Filled::Levels { place: (_, j), probabilities } => {
                        assert!((probabilities.iter().sum::<f64>() - 1.0).abs() < 1e-12);
                        let each = (0..3).map(|k| r[k] * fitted.cells[k][*j][1]);
                        (each.sum::<f64>(), probabilities[1])
                    }
                };
                assert!((expected - mean).abs() < 1e-9 * mean.abs().max(1.0));
            }
        }
    }
}

/// Values, squares and products of a row's missing cells over 20,000 draws, against their expectations under
/// an independent computation of the conditional distributions. A bound of 4.9 standard errors fails once
/// in a million: 40 figures, once in 25,000.
#[test]
fn draws_have_the_conditional_moments() {
    let (nan, count) = (f64::NAN, 20_000);
    for numeric in [Numeric::Diagonal, Numeric::Full] {
        let model = mixed(3, &COLUMNS, numeric);
        let data = model.data_from_rows(&table(300, 0.2, 41)).unwrap();
        let mut theta = start(&model, &data);
        for _ in 0..30 {
            step(&model, &data, &mut theta);
        }
        let row = [nan, nan, 1.0, 0.4, nan, nan, 0.0];
        let other = table(1, 0.0, 3);
        let data = model.data_from_rows(&[other, row.to_vec()].concat()).unwrap();
        let keys: Vec<Key> = (0..count).map(Key::root).collect();
        let draws = model.draw(&theta, &data, &keys).unwrap();
        let fitted = Naive::of(&model, &theta);
        let (_, r, moments) = fitted.row(&row);
        assert!(r.iter().filter(|r| **r > 0.05).count() > 1, "{r:?} is one component");
        // The cells, with two indicators of levels: numbers 0 and 2, the count, levels 1 and 2.
        let coded = |draw: &[f64]| {
            let level = |l: f64| f64::from(u8::from(draw[2] == l));
            [draw[0], draw[3], draw[1], level(1.0), level(2.0)]
        };
        let mean_of = |k: usize| {
            let (mean, cells) = (&moments[k].0, &fitted.cells[k]);
            [mean[0], mean[2], cells[1][0], cells[4][1], cells[4][2]]
        };
        let product = |k: usize, a: usize, b: usize| {
            let mean = mean_of(k);
            let covariance = match (a, b) {
                (0 | 1, 0 | 1) => moments[k].1[6 * a + 2 * b],
                (2, 2) => mean[2],
                (3 | 4, 3 | 4) => f64::from(u8::from(a == b)) * mean[a] - mean[a] * mean[b],
                _ => 0.0,
            };
            mean[a] * mean[b] + covariance
        };
        let check = |of: &dyn Fn(&[f64; 5]) -> f64, expected: f64, what: &str| {
            let values: Vec<f64> = draws.iter().map(|draw| of(&coded(draw))).collect();
            let n = values.len() as f64;
            let mean = values.iter().sum::<f64>() / n;
            let variance = values.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / (n - 1.0);
            let bound = 4.9 * (variance / n).sqrt();
            assert!((mean - expected).abs() <= bound, "{what}: {mean} {expected} {bound}");
        };
        let mixed = |of: &dyn Fn(usize) -> f64| (0..3).map(|k| r[k] * of(k)).sum::<f64>();
        for a in 0..5 {
            check(&|x| x[a], mixed(&|k| mean_of(k)[a]), &format!("{numeric:?} {a}"));
            for b in 0..=a {
                let expected = mixed(&|k| product(k, a, b));
                check(&|x| x[a] * x[b], expected, &format!("{numeric:?} {a} {b}"));
            }
        }
        let found = model.predict(&theta, &data, 0.9).unwrap().filled;
        for (cell, at) in [(0, 0), (1, 2), (3, 1)] {
            let Filled::Scalar { mean, sd, .. } = &found[cell] else { panic!("a number") };
            let variance = mixed(&|k| product(k, at, at)) - mean * mean;
            assert!((sd * sd - variance).abs() < 1e-9 * variance, "{sd} {variance}");
        }
        // A draw depends on its key and row alone.
        assert_eq!(model.draw(&theta, &data, &keys[7..8]).unwrap()[0], draws[7]);
    }
}

/// Refitted rates vary around the fit as a mean of all its rows, of which all or a quarter are at hand: the others
/// stay. Of 400 values the mean lies within five standard errors and the variance, with its relative error of
/// 7 %, within a third: all four fail once in 100,000.
#[test]
fn refitted_parameters_vary_as_the_fit_does() {
    let model = mixed(1, &COLUMNS, Numeric::Full);
    let data = model.data_from_rows(&table(250, 0.0, 6)).unwrap();
    let mut theta = start(&model, &data);
    step(&model, &data, &mut theta);
    for (seed, total) in [(6, 250), (60, 1000)] {
        let values = table(250, 0.0, seed);
        let counts: Vec<f64> = values.iter().copied().skip(1).step_by(7).collect();
        let data = model.data_from_rows(&values).unwrap();
        let mean = counts.iter().sum::<f64>() / 250.0;
        let variance = counts.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / 250.0;
        let refitted = |k| model.refitted(&theta, &data, total, Key::root(k)).unwrap().rates()[0];
        let found: Vec<f64> = (0..400).map(refitted).collect();
        let centre = found.iter().sum::<f64>() / 400.0;
        let spread = found.iter().map(|x| (x - centre) * (x - centre)).sum::<f64>() / 399.0;
        assert!((centre - theta.rates()[0]).abs() < 5.0 * (spread / 400.0).sqrt(), "{centre}");
        let expected = variance / 250.0 * (250.0 / total as f64).powi(2);
        assert!((spread / expected - 1.0).abs() < 0.35, "{spread} {expected}");
    }
}

#[test]
fn chosen_rows_count_as_often_as_they_are_chosen() {
    let model = mixed(2, &COLUMNS, Numeric::Full);
    let values = table(40, 0.3, 2);
    let data = model.data_from_rows(&values).unwrap();
    let theta = start(&model, &data);
    let chosen = [7, 3, 3, 39, 0];
    let copies: Vec<f64> =
        chosen.iter().flat_map(|i| values[*i as usize * 7..][..7].to_vec()).collect();
    let copies = model.data_from_rows(&copies).unwrap();
    let q = model.statistic_len();
    let (mut some, mut all) = (vec![0.0; q], vec![0.0; q]);
    let own = model.expect(&theta, &data, Rows::These(&chosen), &mut some).unwrap();
    let other = model.expect(&theta, &copies, Rows::All, &mut all).unwrap();
    assert!((own - other).abs() < 1e-12);
    assert_near(&some, &all, 1e-9);
}

#[test]
fn coordinates_and_frames_go_both_ways() {
    for numeric in [Numeric::Diagonal, Numeric::Full] {
        for columns in [&COLUMNS[..], &[ColumnKind::Levels(4), ColumnKind::Count], &COLUMNS[..1]] {
            let model = mixed(3, columns, numeric);
            let cells = table(60, 0.2, 5);
            let values: Vec<f64> = cells
                .chunks_exact(7)
                .flat_map(|row| match columns.len() {
                    2 => vec![row[4], row[1]],
                    width => row[..width].to_vec(),
                })
                .collect();
            let data = model.data_from_rows(&values).unwrap();
            let theta = start(&model, &data);
            let vector = model.to_vector(&theta);
            assert_eq!(vector.len(), model.coordinates_len());
            let back = model.to_vector(&model.from_vector(&vector).unwrap());
            assert_near(&vector, &back, 1e-9);
            assert_eq!(model.natural(&theta).len(), model.statistic_len());
            let frames: [(Box<dyn Frame>, usize); 2] = [
                (model.frame(&theta).unwrap(), model.statistic_len()),
                (model.coordinates_frame(&theta).unwrap(), model.coordinates_len()),
            ];
            for (frame, length) in frames {
                let x: Vec<f64> = (0..length).map(|i| ((i * 7 + 3) % 11) as f64 - 5.0).collect();
                let mut y = x.clone();
                frame.forward(&mut y);
                frame.inverse(&mut y);
                assert_near(&x, &y, 1e-9);
            }
        }
    }
}

#[test]
fn in_the_frame_a_row_has_the_identity_as_its_second_moment() {
    // Every row of two columns of levels, and counts up to 60, beyond which there is nothing.
    let columns = [ColumnKind::Levels(3), ColumnKind::Levels(2), ColumnKind::Count];
    let model = mixed(2, &columns, Numeric::Diagonal);
    let (weights, rates) = ([0.3, 0.7], [2.0, 5.0]);
    let levels = [0.2, 0.5, 0.3, 0.9, 0.1, 0.6, 0.1, 0.3, 0.4, 0.6];
    let theta = model.parameters(&weights, &[], &[], &rates, &levels).unwrap();
    let frame = model.frame(&theta).unwrap();
    let q = model.statistic_len();
    let mut second = vec![0.0; q * q];
    for k in 0..2 {
        let mut poisson = (-rates[k]).exp();
        for count in 0..60 {
            for a in 0..3 {
                for b in 0..2 {
                    let p = weights[k] * levels[5 * k + a] * levels[5 * k + 3 + b] * poisson;
                    let mut s = vec![0.0; q];
                    s[k] = 1.0;
                    s[2 + k] = f64::from(count);
                    if a > 0 {
                        s[4 + 3 * k + a - 1] = 1.0;
                    }
                    s[4 + 3 * k + 2] = b as f64;
                    frame.forward(&mut s);
                    for i in 0..q {
                        for j in 0..q {
                            second[i * q + j] += p * s[i] * s[j];
                        }
                    }
                }
            }
            poisson *= rates[k] / f64::from(count + 1);
        }
    }
    for (at, x) in second.iter().enumerate() {
        let unit = f64::from(u8::from(at % (q + 1) == 0));
        assert!((x - unit).abs() < 1e-10, "{at}: {x}");
    }
}

#[test]
fn cells_that_a_column_cannot_hold_are_refused() {
    let model = mixed(2, &COLUMNS[..3], Numeric::Diagonal);
    let names = vec!["age".to_string(), "falls".into(), "smoker".into()];
    let bind = |row: [f64; 3]| {
        let table = Table::new(names.clone(), row.to_vec()).unwrap();
        model.bind(&ClientData::Table(table)).map(|_| ()).map_err(|e| e.to_string())
    };
    assert!(bind([40.0, 2.0, 1.0]).is_ok());
    assert!(bind([f64::NAN; 3]).is_ok());
    for (row, part) in [
        ([f64::INFINITY, 1.0, 0.0], "\"age\": inf is above 1e40"),
        ([40.0, 1.5, 0.0], "\"falls\": 1.5 is not a count"),
        ([40.0, 1e12, 0.0], "\"falls\": 1000000000000 is not a count: an integer from 0 to 1e10"),
        ([40.0, -1.0, 0.0], "\"falls\": -1 is not a count"),
        ([40.0, 1.0, 2.0], "\"smoker\": 2 is not a level"),
    ] {
        let message = bind(row).unwrap_err();
        assert!(message.contains(part), "{message}");
    }
}

#[test]
fn starts_come_from_sums_and_from_centres() {
    let model = mixed(3, &COLUMNS, Numeric::Full);
    let mut values = table(200, 0.2, 9);
    // The last column is not observed.
    values.iter_mut().skip(6).step_by(7).for_each(|x| *x = f64::NAN);
    let data = model.data_from_rows(&values).unwrap();
    let moments = model.moments(&data).unwrap();
    assert_eq!(moments.len(), model.moments_len());
    let width = model.point_len();
    assert_eq!(model.point_gaps(&moments), [width - 2, width - 1]);
    let points = model.points(&data);
    assert_eq!(points.len(), 200 * width);
    assert!(points.iter().all(|x| x.is_finite()));
    let theta =
        model.initial_from_centres(&points[..3 * width], &[1.0, 2.0, 1.0], &moments).unwrap();
    assert_eq!(theta.weights(), [0.25, 0.5, 0.25]);
    let mut statistic = vec![0.0; model.statistic_len()];
    assert!(model.expect(&theta, &data, Rows::All, &mut statistic).unwrap().is_finite());
}
