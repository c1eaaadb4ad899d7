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

/// Family, `theta`, `t`, and the remainder to 20 digits (mpmath 1.4.1 at 60 digits).
#[rustfmt::skip]
#[allow(clippy::excessive_precision)]
const REMAINDERS: [(Family, f64, f64, f64); 22] = [
    (Family::Poisson, 20.0, 0.002, 9.7097760131967778017e+2),
    (Family::Poisson, -20.0, -0.002, 4.1195604136001549047e-15),
    (Family::Poisson, 0.5, 0.001, 8.2463549093897537577e-7),
    (Family::Poisson, -1.25, 0.00095, 1.2932623965004099604e-7),
    (Family::Poisson, 3.0, -1e-9, 1.0042768458246245635e-17),
    (Family::Poisson, 28.0, 0.3, 7.2108652673943805002e+10),
    (Family::Poisson, -25.0, -0.7, 2.7301656637319936766e-12),
    (Family::Poisson, 1.5, 2.0, 1.9670384747678119283e+1),
    (Family::Poisson, -6.0, 7.0, 2.698451811045714368),
    (Family::Poisson, 12.0, -13.5, 2.0344351158677091585e+6),
    (Family::Poisson, -29.0, 45.0, 8.8861105205078726251e+6),
    (Family::Bernoulli, 20.0, 0.002, 4.1195603966293731855e-15),
    (Family::Bernoulli, -20.0, -0.002, 4.1195603966293731855e-15),
    (Family::Bernoulli, 0.5, 0.001, 1.1749225928766350494e-7),
    (Family::Bernoulli, -1.25, 0.00095, 7.8127253455311807169e-8),
    (Family::Bernoulli, 3.0, -1e-9, 2.2588329872271331583e-20),
    (Family::Bernoulli, 28.0, 0.3, 2.8223350944642307318e-14),
    (Family::Bernoulli, -25.0, -0.7, 2.7301656636696374868e-12),
    (Family::Bernoulli, 1.5, 2.0, 1.9318818790258083648e-1),
    (Family::Bernoulli, -6.0, 7.0, 1.2934776402840489642),
    (Family::Bernoulli, 12.0, -13.5, 1.701324187432144778),
    (Family::Bernoulli, -29.0, 45.0, 1.6000000112523467525e+1),
];

#[test]
fn remainders_keep_their_digits() {
    for (family, theta, t, right) in REMAINDERS {
        let found = family.psi_remainder(theta, t);
        assert!((found / right - 1.0).abs() < 1e-14, "{family:?} {theta} {t}: {found}");
    }
}

#[test]
fn remainders_are_those_of_a_tangent() {
    for family in Family::ALL {
        for theta in [-4.0, -0.3, 0.0, 1.2, 6.0] {
            for t in [-3.0, -0.2, 0.1, 2.0] {
                let wanted = family.psi(theta + t) - family.psi(theta) - family.mean(theta) * t;
                let gap = family.psi_remainder(theta, t) - wanted;
                assert!(gap.abs() < 1e-12 * (1.0 + wanted), "{family:?} {theta} {t} {gap}");
            }
        }
        // Steps so long that `e^t` overflows, from where a row of zeros leaves a cell.
        let far = family.psi_remainder(-1000.0, 1002.0);
        let wanted = match family {
            Family::Gaussian => 0.5 * 1002.0 * 1002.0,
            Family::Poisson | Family::Bernoulli => family.psi(2.0),
        };
        assert!((far / wanted - 1.0).abs() < 1e-14, "{family:?} {far}");
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
