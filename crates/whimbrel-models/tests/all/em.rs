//! EM as a whole: the penalised log-likelihood never falls.

use crate::cases::{covariances, e_step, parameters, rows};
use whimbrel_core::Key;
use whimbrel_models::gmm::{Covariance, Gmm, GmmPenalty, GmmSettings};
use whimbrel_models::{LatentModel, MixtureModel};

/// A mixture whose moments are wanted for the start.
fn with_moments(components: usize, d: usize, covariance: Covariance, penalty: GmmPenalty) -> Gmm {
    let base = GmmSettings::new(components, d, covariance);
    Gmm::new(GmmSettings { want_moments: true, penalty, ..base }).unwrap()
}

fn trace(model: &Gmm, values: &[f64], iterations: usize) -> Vec<f64> {
    let data = model.data_from_rows(values).unwrap();
    let moments = model.moments(&data).unwrap();
    let mut theta = model.initial_from_moments(&moments, Key::root(11)).unwrap();
    (0..iterations)
        .map(|_| {
            let (statistic, fit) = e_step(model, &theta, &data);
            let objective = fit - model.penalty(&theta);
            theta = model.maximize(&statistic, &moments).unwrap().theta;
            objective
        })
        .collect()
}

#[test]
fn the_objective_never_falls() {
    let some = GmmPenalty { dirichlet: 0.05, wishart_degrees: 0.1, wishart_scale: 0.02 };
    for (components, d, n) in [(3, 2, 400), (2, 1, 150), (1, 3, 60), (4, 5, 900)] {
        for penalty in [GmmPenalty::default(), some] {
            for covariance in covariances(d) {
                let model = with_moments(components, d, covariance, penalty);
                let values = rows(&model, &parameters(&model, 2.0), n, 9);
                let objective = trace(&model, &values, 50);
                for pair in objective.windows(2) {
                    assert!(pair[1] >= pair[0] - 1e-12 * pair[0].abs(), "{pair:?}");
                }
                if components > 1 {
                    assert!(objective[49] > objective[0], "EM made no progress");
                }
            }
        }
    }
}

#[test]
fn one_component_is_fitted_in_one_step() {
    for covariance in covariances(2).into_iter().skip(1) {
        let model = with_moments(1, 2, covariance, GmmPenalty::default());
        let objective = trace(&model, &[1.0, 2.0, 3.0, 5.0, 2.0, 2.0, -1.0, 0.5, 0.0, 1.0], 3);
        assert!((objective[2] - objective[1]).abs() < 1e-12);
    }
}

#[test]
fn data_far_from_the_origin_are_fitted_to_the_digits_that_raw_moments_leave() {
    for covariance in covariances(2).into_iter().skip(1) {
        let model = with_moments(1, 2, covariance, GmmPenalty::default());
        let theta = parameters(&model, 1e6);
        let values = rows(&model, &theta, 3000, 10);
        let shifted: Vec<f64> = values.iter().map(|x| x - 1e6).collect();
        let (far, near) = (trace(&model, &values, 3), trace(&model, &shifted, 3));
        assert!((far[2] - near[2]).abs() < 1e-3, "{} {}", far[2], near[2]);
    }
}
