//! The E-step against plain code, and its bits.

use crate::cases::{covariances, e_step, gap, model, naive_e_step, parameters, rows};
use whimbrel_core::isa::{self, Isa};
use whimbrel_models::gmm::Covariance;
use whimbrel_models::{LatentModel, Rows};
use whimbrel_testkit::pairs;

#[test]
fn agrees_with_plain_code_for_all_shapes() {
    for (components, d, n) in [
        (1, 1, 1),
        (2, 1, 7),
        (3, 2, 8),
        (2, 3, 9),
        (5, 4, 64),
        (7, 5, 65),
        (10, 20, 200),
        (4, 9, 131),
    ] {
        for covariance in covariances(d) {
            let model = model(components, d, covariance);
            let theta = parameters(&model, 0.0);
            let values = rows(&model, &theta, n, 1);
            let data = model.data_from_rows(&values).unwrap();
            let (statistic, found) = e_step(&model, &theta, &data);
            let all: Vec<&[f64]> = values.chunks(d).collect();
            let (expected, log_density) = naive_e_step(&model, &theta, &all);
            let what = format!("{components} components, {d} columns, {n} rows");
            assert!((found - log_density).abs() < 1e-11 * log_density.abs(), "{what}");
            assert!(gap(&statistic, &expected) < 1e-12, "{what}");
        }
    }
}

#[test]
fn chosen_rows_count_as_often_as_they_are_named() {
    for covariance in covariances(3) {
        let model = model(3, 3, covariance);
        let theta = parameters(&model, 0.0);
        let values = rows(&model, &theta, 90, 2);
        let data = model.data_from_rows(&values).unwrap();
        let chosen: Vec<u32> = (0..75).map(|i| (i * i + 3) % 90).chain([89, 89, 0]).collect();
        let mut statistic = vec![0.0; model.statistic_len()];
        let found = model.expect(&theta, &data, Rows::These(&chosen), &mut statistic).unwrap();
        let naive: Vec<&[f64]> = chosen.iter().map(|i| &values[*i as usize * 3..][..3]).collect();
        let (expected, log_density) = naive_e_step(&model, &theta, &naive);
        assert!((found - log_density).abs() < 1e-12 * log_density.abs());
        assert!(gap(&statistic, &expected) < 1e-12);
    }
}

#[test]
fn a_change_is_the_difference_of_two_e_steps_over_the_same_rows() {
    for covariance in covariances(3) {
        let model = model(3, 3, covariance);
        let (from, to) = (parameters(&model, 0.0), parameters(&model, 0.4));
        let values = rows(&model, &from, 5000, 2);
        let data = model.data_from_rows(&values).unwrap();
        let few: Vec<u32> = (0..75).map(|i| (i * i + 3) % 90).chain([89, 89, 0]).collect();
        // More than one chunk: 4,096 rows each.
        let many: Vec<u32> = (0..4500).map(|i| i * 7 % 5000).collect();
        for rows in [Rows::These(&few), Rows::These(&many), Rows::All] {
            let q = model.statistic_len();
            let (mut change, mut before, mut after) = (vec![1.0; q], vec![0.0; q], vec![0.0; q]);
            model.expect_change(&from, &to, &data, rows, &mut change).unwrap();
            model.expect(&from, &data, rows, &mut before).unwrap();
            model.expect(&to, &data, rows, &mut after).unwrap();
            for ((c, a), b) in pairs(pairs(&change, &after), &before) {
                // Sums of at most 5,000 terms in another order: 16 eps of their size are enough.
                assert!((c - (a - b)).abs() < 16.0 * f64::EPSILON * (1.0 + a.abs() + b.abs()));
            }
            model.expect_change(&to, &to, &data, rows, &mut change).unwrap();
            assert!(change.iter().all(|c| *c == 0.0));
        }
        let mut change = vec![0.0; model.statistic_len()];
        assert!(model.expect_change(&from, &to, &data, Rows::These(&[]), &mut change).is_err());
    }
}

#[test]
fn chosen_rows_must_exist() {
    let model = model(2, 1, Covariance::Tied);
    let theta = parameters(&model, 0.0);
    let data = model.data_from_rows(&[1.0, 2.0]).unwrap();
    let mut statistic = vec![0.0; model.statistic_len()];
    assert!(model.expect(&theta, &data, Rows::These(&[0, 2]), &mut statistic).is_err());
    assert!(model.expect(&theta, &data, Rows::These(&[]), &mut statistic).is_err());
}

#[test]
fn bits_depend_neither_on_threads_nor_on_the_instruction_set() {
    for covariance in covariances(5) {
        let model = model(3, 5, covariance);
        let theta = parameters(&model, 0.0);
        // Three chunks, the last of them short and not a whole number of tiles.
        let data = model.data_from_rows(&rows(&model, &theta, 9001, 3)).unwrap();
        let run = |threads| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            let (mut statistic, all) = pool.install(|| e_step(&model, &theta, &data));
            statistic.push(all);
            statistic.iter().map(|x| x.to_bits()).collect::<Vec<u64>>()
        };
        let best = isa::level();
        let expected = run(1);
        assert_eq!(run(2), expected);
        assert_eq!(run(5), expected);
        for level in [Isa::Baseline, Isa::V3] {
            isa::pin(level);
            let found = run(2);
            isa::pin(best);
            assert_eq!(found, expected, "{level:?}");
        }
    }
}

#[test]
fn rows_far_from_the_origin_lose_no_digits() {
    for covariance in covariances(4) {
        let model = model(3, 4, covariance);
        let (near, far) = (parameters(&model, 0.0), parameters(&model, 1e6));
        // Multiples of 2^-20 stay exact when 1e6 is added.
        let values: Vec<f64> = rows(&model, &near, 500, 4)
            .into_iter()
            .map(|x| (x * 1048576.0).round() / 1048576.0)
            .collect();
        let shifted: Vec<f64> = values.iter().map(|x| x + 1e6).collect();
        let (here, a) = e_step(&model, &near, &model.data_from_rows(&values).unwrap());
        let (there, b) = e_step(&model, &far, &model.data_from_rows(&shifted).unwrap());
        // The means, decimal numbers, round to about 1e-10 at 1e6.
        assert!((a - b).abs() < 1e-8, "{a} {b}");
        assert!(gap(&here[..3], &there[..3]) < 1e-8);
    }
}

#[test]
fn nearly_singular_covariances_far_from_the_origin_are_as_exact_as_near() {
    // Deviations across the long axis are 1e-4: a product with rows at 1e6 would lose ten digits.
    let thin = vec![1.0, 1.0 - 1e-8, 1.0 - 1e-8, 1.0];
    for covariance in [Covariance::Known(thin.clone()), Covariance::Tied, Covariance::Full] {
        let model = model(2, 2, covariance.clone());
        let own = match covariance {
            Covariance::Known(_) => Vec::new(),
            Covariance::Tied => thin.clone(),
            _ => thin.repeat(2),
        };
        let at = |x: f64| model.parameters(&[0.5, 0.5], &[x, x, x + 2.0, x + 2.0], &own).unwrap();
        let values: Vec<f64> = rows(&model, &at(0.0), 500, 16)
            .into_iter()
            .map(|x| (x * 1048576.0).round() / 1048576.0)
            .collect();
        let fit = |x: f64| {
            let shifted: Vec<f64> = values.iter().map(|v| v + x).collect();
            e_step(&model, &at(x), &model.data_from_rows(&shifted).unwrap()).1
        };
        assert!((fit(0.0) - fit(1e6)).abs() < 1e-10, "{} {}", fit(0.0), fit(1e6));
    }
}

#[test]
fn a_row_without_density_is_an_error_not_a_nan() {
    for covariance in covariances(2) {
        let model = model(2, 2, covariance.clone());
        assert!(model.data_from_rows(&[0.0, 0.0, 1e300, -1e300]).is_err());
        // A component of almost no width: squares of what is whitened overflow.
        let narrow = match covariance {
            Covariance::Known(_) => continue,
            Covariance::Tied => vec![1e-120, 0.0, 0.0, 1e-120],
            Covariance::Diagonal | Covariance::Spherical => vec![1e-120; 4],
            Covariance::Full => [1e-120, 0.0, 0.0, 1e-120].repeat(2),
        };
        let theta = model.parameters(&[0.5, 0.5], &[0.0; 4], &narrow).unwrap();
        let data = model.data_from_rows(&[0.0, 0.0, 1e99, -1e99]).unwrap();
        let mut statistic = vec![0.0; model.statistic_len()];
        let error = model.expect(&theta, &data, Rows::All, &mut statistic).unwrap_err();
        assert!(error.to_string().contains("no finite density"), "{error}");
        let error = model.responsibilities(&theta, &data).unwrap_err();
        assert!(error.to_string().contains("row 2"), "{error}");
    }
}

#[test]
fn predictions_are_the_rows_of_the_e_step() {
    for covariance in covariances(3) {
        let model = model(4, 3, covariance);
        let theta = parameters(&model, 0.0);
        let values = rows(&model, &theta, 77, 5);
        let data = model.data_from_rows(&values).unwrap();
        let prediction = model.responsibilities(&theta, &data).unwrap();
        assert_eq!(prediction.log_density.len(), 77);
        for (i, y) in values.chunks(3).enumerate() {
            let (statistic, log_density) = naive_e_step(&model, &theta, &[y]);
            let r = &prediction.responsibilities[i * 4..][..4];
            assert!(gap(r, &statistic[..4]) < 1e-11);
            assert!((prediction.log_density[i] - log_density).abs() < 1e-10);
            let label = prediction.labels[i] as usize;
            assert!(r.iter().all(|x| *x <= r[label]));
        }
    }
}
