//! Sums that rest on a smallest group of rows: supports, restricted E-steps, bounded losses.

use crate::cases::{log_normal, model, parameters, rows};
use crate::convex::{classes, labelled, numbers, problems};
use crate::mixed::{COLUMNS, mixed, table};
use whimbrel_core::{ClientData, FeatureRows, Key, Table};
use whimbrel_models::gmm::{Covariance, Gmm, GmmParameters};
use whimbrel_models::mixed::{ColumnKind, Mixed, MixedData, MixedParameters, Numeric};
use whimbrel_models::{LatentModel, MixtureModel, Rows};
use whimbrel_testkit::pairs;

const GROUP: u32 = 5;

/// A mixture over columns of numbers without gaps, and its parameters of a Gaussian mixture.
fn over_numbers(gmm: &Gmm, theta: &GmmParameters) -> (Mixed, MixedParameters) {
    let (numeric, k) = match gmm.settings().covariance {
        Covariance::Diagonal => (Numeric::Diagonal, gmm.components()),
        _ => (Numeric::Full, gmm.components()),
    };
    let model = mixed(k, &vec![ColumnKind::Number; gmm.columns()], numeric);
    let means: Vec<f64> = (0..k).flat_map(|k| theta.mean(k).to_vec()).collect();
    let d = gmm.columns();
    let covariances = (0..k).flat_map(|k| match numeric {
        Numeric::Full => theta.covariance(k),
        Numeric::Diagonal => theta.covariance(k).into_iter().step_by(d + 1).collect(),
    });
    let covariances: Vec<f64> = covariances.collect();
    let theta = model.parameters(theta.weights(), &means, &covariances, &[], &[]).unwrap();
    (model, theta)
}

/// Responsibilities by plain loops, row by row.
fn responsibilities(theta: &GmmParameters, rows: &[f64]) -> Vec<Vec<f64>> {
    let each = rows.chunks(theta.columns()).map(|y| {
        let scores: Vec<f64> = (0..theta.components())
            .map(|k| theta.weights()[k].ln() + log_normal(y, theta.mean(k), &theta.covariance(k)))
            .collect();
        let top = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let total: f64 = scores.iter().map(|s| (s - top).exp()).sum();
        scores.iter().map(|s| (s - top).exp() / total).collect()
    });
    each.collect()
}

#[test]
fn supports_are_those_of_plain_loops() {
    for covariance in [Covariance::Diagonal, Covariance::Full] {
        let gmm = model(4, 3, covariance);
        let plain = parameters(&gmm, 10.0);
        // More than one chunk.
        let rows = rows(&gmm, &plain, 1037, 5);
        let (model, theta) = over_numbers(&gmm, &plain);
        let data = model.data_from_rows(&rows).unwrap();
        let found = model.supports(&theta, &data, Rows::All, 5.0).unwrap();
        let r = responsibilities(&plain, &rows);
        assert_eq!(found.len(), 4);
        for (k, found) in found.iter().enumerate() {
            let mass: f64 = r.iter().map(|r| r[k]).sum();
            let largest = r.iter().map(|r| r[k]).fold(0.0, f64::max);
            assert!((found.mass - mass).abs() < 1e-9 * mass, "{found:?} {mass}");
            assert!((found.rows - mass / largest).abs() < 1e-9 * found.rows, "{found:?}");
        }
    }
}

/// The statistic and the components left out, of a smallest group.
fn restricted(
    (model, theta): &(Mixed, MixedParameters),
    rows: &[f64],
    chosen: Rows<'_>,
    group: Option<u32>,
) -> Result<(Vec<f64>, u32), String> {
    let data = model.data_from_rows(rows).unwrap();
    let mut statistic = vec![0.0; model.statistic_len()];
    let found = model.expect_supported(theta, &data, chosen, group, &mut statistic);
    found.map(|found| (statistic, found.left_out)).map_err(|error| error.to_string())
}

#[test]
fn without_weak_components_an_e_step_is_the_usual_one() {
    let gmm = model(3, 2, Covariance::Full);
    let theta = parameters(&gmm, 0.0);
    let rows = rows(&gmm, &theta, 300, 1);
    let mixture = over_numbers(&gmm, &theta);
    let mut usual = vec![0.0; mixture.0.statistic_len()];
    let data = mixture.0.data_from_rows(&rows).unwrap();
    mixture.0.expect(&mixture.1, &data, Rows::All, &mut usual).unwrap();
    for group in [None, Some(1), Some(GROUP)] {
        assert_eq!(restricted(&mixture, &rows, Rows::All, group), Ok((usual.clone(), 0)));
    }
}

/// A mixture with a narrow component at each of some rows, and one for all others.
fn spikes(components: usize, rows: &[f64], at: &[usize]) -> (Mixed, MixedParameters) {
    let gmm = model(components, 2, Covariance::Full);
    let d = gmm.columns();
    let weights = vec![1.0 / components as f64; components];
    let mut means: Vec<f64> = at.iter().flat_map(|i| rows[i * d..][..d].to_vec()).collect();
    means.resize(components * d, 0.0);
    let variance = |k: usize| if k < at.len() { 1e-6 } else { 100.0 };
    let covariance: Vec<f64> = (0..components)
        .flat_map(|k| (0..d * d).map(move |i| if i % (d + 1) == 0 { variance(k) } else { 0.0 }))
        .collect();
    over_numbers(&gmm, &gmm.parameters(&weights, &means, &covariance).unwrap())
}

#[test]
fn a_component_at_a_single_row_is_left_out_and_nothing_can_be_subtracted() {
    let (n, d) = (200, 2);
    let rows = numbers(4, n * d);
    for components in [2, 10] {
        let first_moment: Vec<f64> =
            (0..d).map(|j| rows.iter().skip(j).step_by(d).sum::<f64>() / n as f64).collect();
        for first in (0..n).step_by(components - 1).take(20) {
            let at: Vec<usize> = (first..first + components - 1).collect();
            let mixture = spikes(components, &rows, &at);
            // Without the rule each spike gives its row away.
            let (open, _) = restricted(&mixture, &rows, Rows::All, None).unwrap();
            let mean: Vec<f64> = (0..d).map(|j| open[components + j] / open[0]).collect();
            assert!((mean[0] - rows[first * d]).abs() < 1e-2, "{mean:?}");
            // With it, everything is in the one component that all rows determine.
            let (statistic, left_out) =
                restricted(&mixture, &rows, Rows::All, Some(GROUP)).unwrap();
            assert_eq!(left_out as usize, components - 1);
            let weights = &statistic[..components];
            assert!(weights[..components - 1].iter().all(|w| *w == 0.0), "{weights:?}");
            let whole = &statistic[components + (components - 1) * d..][..d];
            for (found, moment) in pairs(whole, &first_moment) {
                assert!((found - moment).abs() < 1e-12, "{found} {moment}");
            }
        }
    }
}

#[test]
fn no_row_carries_a_repeated_share_of_a_minibatch() {
    let rows = numbers(4, 400);
    // Row 7 five times: a spike of mass 5 that is still one row.
    let mut chosen = vec![7; 5];
    chosen.extend(20..60);
    let mixture = spikes(2, &rows, &[7]);
    let (statistic, left_out) =
        restricted(&mixture, &rows, Rows::These(&chosen), Some(GROUP)).unwrap();
    assert_eq!((left_out, statistic[0]), (1, 0.0));
}

#[test]
fn fewer_rows_than_a_group_give_nothing() {
    let rows = numbers(4, 8);
    let error = restricted(&spikes(2, &rows, &[1]), &rows, Rows::All, Some(GROUP)).unwrap_err();
    assert!(error.contains("min_group"), "{error}");
}

/// A column that a component observes in few rows is a sum over those.
#[test]
fn components_of_a_table_rest_on_observed_cells() {
    let model = mixed(2, &COLUMNS, Numeric::Diagonal);
    let values = table(120, 0.1, 6);
    let names: Vec<String> = (0..COLUMNS.len()).map(|j| j.to_string()).collect();
    let bind = |values: &[f64]| {
        let table = Table::new(names.clone(), values.to_vec()).unwrap();
        model.bind(&ClientData::Table(table)).unwrap()
    };
    let data = bind(&values);
    let theta = model.initial_from_moments(&model.moments(&data).unwrap(), Key::root(3)).unwrap();
    let rows_of = |data: &MixedData| {
        let supports = model.supports(&theta, data, Rows::All, 5.0).unwrap();
        supports.iter().map(|support| support.rows).fold(f64::INFINITY, f64::min)
    };
    let complete = rows_of(&data);
    assert!(complete > f64::from(GROUP), "{complete}");
    // Six rows keep their first number: its sums rest on no more.
    let with_first = |kept: usize| {
        let mut few = values.clone();
        few.chunks_mut(COLUMNS.len()).skip(kept).for_each(|row| row[0] = f64::NAN);
        rows_of(&bind(&few))
    };
    let six = with_first(6);
    assert!(six <= 6.0, "{six}");
    // Four values leave at enrolment or not at all: they do not decide here.
    let four = with_first(4);
    assert!(four > f64::from(GROUP), "{four}");
}

#[test]
fn a_gradient_rests_on_the_rows_whose_own_gradients_are_large() {
    let (n, d) = (60, 4);
    let data = labelled(d, FeatureRows::Dense(numbers(1, n * d)), classes(2, n));
    for problem in problems(0.0, true) {
        let examples = problem.bind(&data).unwrap();
        let w = numbers(3, d + 1);
        let norm = |i: usize| {
            let mut g = vec![0.0; d + 1];
            problem.gradient(&w, &examples, Rows::These(&[i as u32]), &mut g).unwrap();
            g.iter().map(|g| g * g).sum::<f64>().sqrt()
        };
        let norms: Vec<f64> = (0..n).map(norm).collect();
        let support = problem.gradient_support(&w, &examples, Rows::All).unwrap();
        let right = norms.iter().sum::<f64>() / norms.iter().copied().fold(0.0, f64::max);
        assert!((support.rows - right).abs() < 1e-10 * right, "{} {right}", support.rows);
    }
}

#[test]
fn losses_of_few_rows_are_lowered_and_others_are_not() {
    let (n, d) = (60, 2);
    let data = labelled(d, FeatureRows::Dense(numbers(1, n * d)), classes(2, n));
    let [_, logistic] = problems(0.0, false);
    let examples = logistic.bind(&data).unwrap();
    let w = numbers(3, d);
    let (loss, groups) = (
        logistic.loss(&w, &examples).unwrap(),
        logistic.loss_of_groups(&w, &examples, GROUP).unwrap(),
    );
    assert!((loss - groups).abs() < 1e-14, "{loss} {groups}");
    // One row far on the wrong side: alone it would be the sum.
    let mut values = vec![1.0; n];
    values[17] = -1.0;
    let one = labelled(1, FeatureRows::Dense(values), vec![1.0; n]);
    let one = logistic.bind(&one).unwrap();
    for scale in [50.0, 100.0, 1000.0] {
        let loss = logistic.loss(&[scale], &one).unwrap();
        assert!((loss - scale / n as f64).abs() < 1e-12, "{loss}");
        let groups = logistic.loss_of_groups(&[scale], &one, GROUP).unwrap();
        assert!(groups < 1e-18, "{groups}");
    }
}
