//! The M-step: argmin, clipping, dead components.

use crate::cases::{Drawn, covariances, drawn, e_step, gap, model, parameters};
use proptest::prelude::*;
use whimbrel_models::gmm::{Covariance, Gmm, GmmParameters, GmmPenalty, GmmSettings};
use whimbrel_models::{LatentModel, MixtureModel};

/// `psi(theta) + R(theta) - <s, phi(theta)>`.
fn surrogate(model: &Gmm, theta: &GmmParameters, statistic: &[f64], moments: &[f64]) -> f64 {
    let inner: f64 = model.natural(theta).iter().zip(statistic).map(|(p, s)| p * s).sum();
    let d = model.columns();
    let mut psi = 0.0;
    if model.settings().covariance == Covariance::Tied {
        // (1/2) ln det Sigma + (1/2) <E[y y'], Sigma^-1>, the latter as a sum over the columns of
        // Sigma^-1 read off the natural parameter of a one-component mixture with unit means.
        let one = crate::cases::model(1, d, Covariance::Full);
        let sigma = theta.covariance(0);
        let unit = one.parameters(&[1.0], &vec![0.0; d], &sigma).unwrap();
        let phi = one.natural(&unit);
        psi -= phi[0];
        psi -= phi[1 + d..].iter().zip(&moments[d..]).map(|(p, m)| p * m).sum::<f64>();
    }
    psi + model.penalty(theta) - inner
}

fn with_penalty(covariance: Covariance, penalty: GmmPenalty) -> Gmm {
    Gmm::new(GmmSettings { penalty, ..GmmSettings::new(3, 2, covariance) }).unwrap()
}

#[test]
fn the_m_step_is_a_stationary_point_and_below_its_neighbours() {
    let some = GmmPenalty { dirichlet: 0.2, wishart_degrees: 0.7, wishart_scale: 0.4 };
    for penalty in [GmmPenalty::default(), some] {
        for covariance in covariances(2).into_iter().chain([Covariance::Spherical]) {
            let model = with_penalty(covariance, penalty);
            let Drawn { statistic, moments, .. } = drawn(&model, &parameters(&model, 0.0), 200, 6);
            let found = model.maximize(&statistic, &moments).unwrap();
            assert_eq!((found.repairs, found.dead.len()), (0, 0));
            let least = surrogate(&model, &found.theta, &statistic, &moments);
            let at = model.to_vector(&found.theta);
            for i in 0..at.len() {
                let value = |h: f64| {
                    let mut moved = at.clone();
                    moved[i] += h;
                    if i < 3 {
                        moved[(i + 1) % 3] -= h; // weights stay of sum 1
                    }
                    let theta = model.from_vector(&moved).unwrap();
                    surrogate(&model, &theta, &statistic, &moments)
                };
                let h = 1e-5;
                let slope = (value(h) - value(-h)) / (2.0 * h);
                assert!(slope.abs() < 1e-7, "coordinate {i}: slope {slope}");
                assert!(value(1e-2) > least && value(-1e-2) > least, "coordinate {i}");
            }
        }
    }
}

#[test]
fn the_ridge_is_added_to_the_diagonal() {
    for covariance in [Covariance::Tied, Covariance::Diagonal, Covariance::Full] {
        let plain = model(2, 2, covariance.clone());
        let settings = GmmSettings { reg_covar: 0.25, ..GmmSettings::new(2, 2, covariance) };
        let ridge = Gmm::new(settings).unwrap();
        let Drawn { statistic, moments, .. } = drawn(&plain, &parameters(&plain, 0.0), 50, 7);
        let a = plain.maximize(&statistic, &moments).unwrap().theta.covariance(1);
        let b = ridge.maximize(&statistic, &moments).unwrap().theta.covariance(1);
        let difference: Vec<f64> = b.iter().zip(&a).map(|(b, a)| b - a).collect();
        assert!(gap(&difference, &[0.25, 0.0, 0.0, 0.25]) < 1e-12);
    }
}

/// A relative ridge is a share of the variance of each column over all components.
#[test]
fn a_relative_ridge_follows_the_spread_of_the_columns() {
    for covariance in [Covariance::Diagonal, Covariance::Full] {
        let plain = model(2, 2, covariance.clone());
        let one = model(1, 2, covariance.clone());
        let settings =
            GmmSettings { reg_covar: 0.25, relative: true, ..GmmSettings::new(2, 2, covariance) };
        let ridge = Gmm::new(settings).unwrap();
        let Drawn { statistic, .. } = drawn(&plain, &parameters(&plain, 0.0), 50, 7);
        // The statistic of one component is the sum over both.
        let size = (statistic.len() - 6) / 2;
        let summed: Vec<f64> = [&statistic[..2], &statistic[2..6], &statistic[6..]]
            .into_iter()
            .zip([1, 2, size])
            .flat_map(|(part, width)| {
                (0..width).map(|j| part[j] + part[width + j]).collect::<Vec<_>>()
            })
            .collect();
        let pooled = one.maximize(&summed, &[]).unwrap().theta.covariance(0);
        let a = plain.maximize(&statistic, &[]).unwrap().theta.covariance(1);
        let b = ridge.maximize(&statistic, &[]).unwrap().theta.covariance(1);
        let difference: Vec<f64> = b.iter().zip(&a).map(|(b, a)| b - a).collect();
        assert!(gap(&difference, &[0.25 * pooled[0], 0.0, 0.0, 0.25 * pooled[3]]) < 1e-12);
    }
}

#[test]
fn a_dead_component_is_named_and_stays_where_the_data_are() {
    for covariance in covariances(2) {
        let model = model(3, 2, covariance);
        let Drawn { data, mut statistic, moments } =
            drawn(&model, &parameters(&model, 10.0), 300, 8);
        for dying in [0.0, -0.01, 1e-13] {
            statistic[1] = dying;
            let found = model.maximize(&statistic, &moments).unwrap();
            assert_eq!(found.dead, [1]);
            assert!(found.repairs >= 1);
            assert!(found.theta.weights()[1] >= 0.99e-10 && found.theta.weights()[1] < 1e-9);
            assert!(found.theta.mean(1).iter().all(|m| (0.0..20.0).contains(m)));
            e_step(&model, &found.theta, &data);
        }
    }
}

#[test]
fn a_statistic_without_living_components_or_finite_numbers_is_refused() {
    for covariance in covariances(2) {
        let model = model(2, 2, covariance);
        let moments = vec![1.0; model.moments_len()];
        let zero = vec![0.0; model.statistic_len()];
        let error = model.maximize(&zero, &moments).unwrap_err().to_string();
        assert!(error.contains("no component"), "{error}");
        let mut bad = vec![0.5; model.statistic_len()];
        bad[3] = f64::NAN;
        let error = model.maximize(&bad, &moments).unwrap_err().to_string();
        assert!(error.contains("not finite"), "{error}");
    }
}

#[test]
fn equal_rows_meet_the_floor_and_can_be_scored() {
    for value in [0.0, 3.0, 1e6] {
        for covariance in covariances(2) {
            let model = model(2, 2, covariance.clone());
            let mut theta = parameters(&model, value);
            let data = model.data_from_rows(&[value; 40]).unwrap();
            let moments = model.moments(&data).unwrap();
            for _ in 0..5 {
                let (statistic, _) = e_step(&model, &theta, &data);
                let found = model.maximize(&statistic, &moments).unwrap();
                let known = matches!(covariance, Covariance::Known(_));
                assert!(known || value == 1e6 || found.repairs > 0, "{covariance:?} {value}");
                theta = found.theta;
            }
        }
    }
}

#[test]
fn coordinates_come_back_and_any_finite_vector_is_a_parameter() {
    for covariance in covariances(3) {
        let model = model(4, 3, covariance);
        let theta = parameters(&model, 1.0);
        let vector = model.to_vector(&theta);
        assert_eq!(vector.len(), model.coordinates_len());
        let back = model.from_vector(&vector).unwrap();
        // A logarithm and an exponential each way: a few units in the last place.
        assert!(gap(back.weights(), theta.weights()) < 1e-14);
        assert!(gap(back.means(), theta.means()) < 1e-14);
        for k in 0..4 {
            assert!(gap(&back.covariance(k), &theta.covariance(k)) < 1e-14);
        }
        assert!(model.from_vector(&vector[1..]).is_err());
        let mut bad = vector.clone();
        bad[5] = f64::NAN;
        assert!(model.from_vector(&bad).is_err());
        let wild: Vec<f64> = (0..vector.len()).map(|i| 40.0 * (i as f64).sin()).collect();
        let wild = model.from_vector(&wild).unwrap();
        assert!((wild.weights().iter().sum::<f64>() - 1.0).abs() < 1e-12);
        assert!(model.to_vector(&wild).iter().all(|x| x.is_finite()));
    }
}

#[test]
fn statistics_have_the_length_of_the_layout() {
    let lengths: Vec<usize> = covariances(20).map(|c| model(10, 20, c).statistic_len()).to_vec();
    assert_eq!(lengths, [210, 210, 410, 2310]);
}

proptest! {
    #[test]
    fn wild_statistics_give_sane_parameters_or_an_error(
        kind in 0usize..4,
        seeds in proptest::collection::vec((-1.0f64..1.0, -12i32..12), 64),
        huge in 0usize..8,
    ) {
        let model = model(3, 2, covariances(2)[kind].clone());
        let mut numbers = seeds.iter().map(|(x, e)| x * 10f64.powi(*e)).cycle();
        let mut statistic: Vec<f64> = numbers.by_ref().take(model.statistic_len()).collect();
        let moments: Vec<f64> = numbers.take(model.moments_len()).collect();
        if huge == 0 {
            statistic[4] = 1e300;
        }
        if let Ok(found) = model.maximize(&statistic, &moments) {
            let vector = model.to_vector(&found.theta);
            prop_assert!(vector.iter().all(|x| x.is_finite()), "{:?}", vector);
            prop_assert!(found.theta.weights().iter().all(|w| *w >= 0.5e-10));
            prop_assert!(model.from_vector(&vector).is_ok());
            prop_assert!(found.dead.iter().all(|k| statistic[*k] < 1e-9 * 3e12));
        }
    }
}
