//! The distributions of a cell.

use whimbrel_models::lowrank::Family;

#[test]
fn means_and_variances_are_the_derivatives_of_psi() {
    let h = 1e-4;
    for family in Family::ALL {
        for theta in [-3.0, -0.4, 0.0, 0.7, 2.5] {
            let slope = (family.psi(theta + h) - family.psi(theta - h)) / (2.0 * h);
            let mean = family.mean(theta);
            assert!((slope - mean).abs() < 1e-6 * (1.0 + mean.abs()), "{family:?} {theta}");
            let bend = (family.mean(theta + h) - family.mean(theta - h)) / (2.0 * h);
            let variance = family.variance(mean);
            assert!((bend - variance).abs() < 1e-6 * (1.0 + variance), "{family:?} {theta}");
            assert!((family.link(mean) - theta).abs() < 1e-12, "{family:?} {theta}");
        }
    }
}

#[test]
fn deviance_is_zero_at_the_value_itself_and_twice_the_ratio_elsewhere() {
    for (family, y, theta) in [
        (Family::Gaussian, 1.5, 0.2),
        (Family::Poisson, 3.0, 0.2),
        (Family::Poisson, 0.0, -1.0),
        (Family::Bernoulli, 1.0, 0.4),
        (Family::Bernoulli, 0.0, 0.4),
    ] {
        // psi(theta) - y theta, less its minimum over theta
        let loss = family.psi(theta) - y * theta;
        let least = match family {
            Family::Gaussian => -0.5 * y * y,
            Family::Poisson if y > 0.0 => y - y * y.ln(),
            _ => 0.0,
        };
        let deviance = family.deviance(y, family.mean(theta));
        assert!((deviance - 2.0 * (loss - least)).abs() < 1e-12, "{family:?} {y}");
    }
    assert_eq!(Family::Poisson.deviance(4.0, 4.0), 0.0);
}

#[test]
fn values_outside_a_family_are_refused() {
    assert!(Family::Poisson.check(2.5).is_err() && Family::Poisson.check(-1.0).is_err());
    assert!(Family::Poisson.check(f64::INFINITY).is_err() && Family::Poisson.check(7.0).is_ok());
    assert!(Family::Bernoulli.check(0.5).is_err() && Family::Bernoulli.check(1.0).is_ok());
    assert!(Family::Gaussian.check(f64::NAN).is_err());
    assert!(Family::from_code(1.0) == Ok(Family::Poisson) && Family::from_code(7.0).is_err());
}
