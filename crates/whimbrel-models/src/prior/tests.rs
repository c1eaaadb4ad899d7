use super::*;
use whimbrel_core::Stream;

const D: usize = 4;

fn priors() -> [Prior; 4] {
    let shapes = [
        Shape::Diagonal,
        Shape::Full,
        Shape::Mixture { components: 3 },
        Shape::Mixture { components: 1 },
    ];
    shapes.map(|shape| Prior::new(D, shape).unwrap())
}

fn normals(stream: &mut Stream, n: usize, scale: f64) -> Vec<f64> {
    (0..n).map(|_| scale * stream.normal()).collect()
}

fn value(prior: &Prior, beta: &[f64], z: &[f64]) -> f64 {
    prior.at(beta).unwrap().potential_and_gradient(z, &mut [0.0; D])
}

/// Central differences with `e = 1e-4`: truncation `e^2 |f'''| / 6` and rounding `eps |f| / e`, for
/// derivatives up to a few hundred well below 1e-5.
fn assert_derivative(x: &[f64], gradient: &[f64], f: impl Fn(&[f64]) -> f64) {
    assert_eq!(x.len(), gradient.len());
    let mut moved = x.to_vec();
    for j in 0..x.len() {
        let e = 1e-4;
        moved[j] = x[j] + e;
        let ahead = f(&moved);
        moved[j] = x[j] - e;
        let behind = f(&moved);
        moved[j] = x[j];
        let slope = (ahead - behind) / (2.0 * e);
        assert!((slope - gradient[j]).abs() < 1e-5 * (1.0 + slope.abs()), "{j}: {slope}");
    }
}

#[test]
fn gradients_are_differences() {
    let mut stream = Key::root(1).stream();
    for prior in priors() {
        for _ in 0..20 {
            let beta = normals(&mut stream, prior.parameters(), 0.7);
            let z = normals(&mut stream, D, 1.5);
            let mut density = prior.at(&beta).unwrap();
            let mut gradient = [0.0; D];
            density.potential_and_gradient(&z, &mut gradient);
            assert_derivative(&z, &gradient, |z| value(&prior, &beta, z));
            let mut gradient = vec![0.0; beta.len()];
            density.add_parameter_gradient(&z, 0.5, &mut gradient);
            density.add_parameter_gradient(&z, 0.5, &mut gradient);
            assert_derivative(&beta, &gradient, |beta| value(&prior, beta, &z));
        }
    }
}

#[test]
fn simple_cases_agree() {
    let mut stream = Key::root(2).stream();
    let (mean, logs) = (normals(&mut stream, D, 1.0), normals(&mut stream, D, 0.5));
    let z = normals(&mut stream, D, 1.0);
    let [diagonal, full, mixture, single] = priors();
    let plain = [&mean[..], &logs].concat();
    let expected: f64 = (0..D)
        .map(|j| {
            let x = (z[j] - mean[j]) / math::exp(logs[j]);
            0.5 * x * x + logs[j] + 0.5 * math::ln(std::f64::consts::TAU)
        })
        .sum();
    let mut factor = vec![0.0; packed_len(D)];
    (0..D).for_each(|i| factor[packed_len(i) + i] = logs[i]);
    let close = |found: f64| assert!((found - expected).abs() < 1e-13 * expected.abs().max(1.0));
    close(value(&diagonal, &plain, &z));
    close(value(&full, &[&mean[..], &factor].concat(), &z));
    close(value(&single, &[&[0.3][..], &plain].concat(), &z));
    close(value(&mixture, &[&[0.1, 2.0, -1.0][..], &plain, &plain, &plain].concat(), &z));
}

#[test]
fn draws_have_the_mean_and_the_variances() {
    // Each of 2 x 4 x 4 figures is within 5 standard errors but for 6e-7 each: 2e-5 in all. The
    // fourth moment of a mixture is at most that of its widest part, here taken from the draws.
    const N: usize = 20_000;
    for (at, prior) in priors().iter().enumerate() {
        let mut stream = Key::root(3).child(at as u64).stream();
        let beta = normals(&mut stream, prior.parameters(), 0.6);
        let density = prior.at(&beta).unwrap();
        let (mean, variances) = (density.mean(), density.variances());
        let mut draws = vec![[0.0; D]; N];
        draws.iter_mut().for_each(|z| density.draw(&mut stream, z));
        for j in 0..D {
            let moment = |power: i32| {
                draws.iter().map(|z| (z[j] - mean[j]).powi(power)).sum::<f64>() / N as f64
            };
            assert!(moment(1).abs() < 5.0 * (variances[j] / N as f64).sqrt());
            let error = ((moment(4) - variances[j] * variances[j]) / N as f64).sqrt();
            assert!((moment(2) - variances[j]).abs() < 5.0 * error, "{}", prior.name());
        }
        let marginals = density.marginals(3, 1);
        let mut total = [0.0; 2];
        for part in &marginals {
            (0..2).for_each(|at| {
                let away = part.mean[at] - mean[[3, 1][at]];
                total[at] += part.weight * (part.covariance[at][at] + away * away);
            });
        }
        assert!((total[0] - variances[3]).abs() < 1e-12 && (total[1] - variances[1]).abs() < 1e-12);
    }
}

#[test]
fn curvature_bounds_the_hessian() {
    let mut stream = Key::root(4).stream();
    for prior in priors() {
        let beta = normals(&mut stream, prior.parameters(), 0.7);
        let mut density = prior.at(&beta).unwrap();
        let bound = density.curvature();
        let mut largest = 0.0f64;
        for _ in 0..200 {
            let (z, v) = (normals(&mut stream, D, 1.0), normals(&mut stream, D, 1.0));
            let mut slope = |sign: f64| {
                let at: Vec<f64> = z.iter().zip(&v).map(|(z, v)| z + sign * 1e-4 * v).collect();
                let mut gradient = [0.0; D];
                density.potential_and_gradient(&at, &mut gradient);
                gradient.iter().zip(&v).map(|(g, v)| g * v).sum::<f64>()
            };
            let along = (slope(1.0) - slope(-1.0)) / 2e-4;
            largest = largest.max(along / v.iter().map(|v| v * v).sum::<f64>());
        }
        assert!(largest <= bound * (1.0 + 1e-6) && largest > 0.2 * bound, "{largest} {bound}");
        // A preconditioner that is a number scales the bound.
        let half = density.curvature_through(Some(&[0.5; D]));
        assert!((half - 0.5 * bound).abs() < 1e-12 * bound, "{half} {bound}");
    }
}

#[test]
fn improper_priors_are_named() {
    let [diagonal, full, mixture, _] = priors();
    let refused = |prior: &Prior, at: usize, x: f64| {
        let mut beta = prior.start(1.0, Key::root(5)).unwrap();
        beta[at] = x;
        prior.at(&beta).unwrap_err().to_string()
    };
    let zero = "improper prior: the scale of coordinate 2 is zero (its logarithm is -800)";
    assert!(refused(&diagonal, D + 1, -800.0).starts_with(zero));
    assert!(refused(&full, D + 2, -800.0).starts_with(zero));
    assert!(refused(&mixture, 3 + 2 * D + D + 1, -800.0).starts_with(zero));
    assert!(refused(&diagonal, D, 400.0).contains("coordinate 1 is infinite"));
    assert_eq!(refused(&full, 0, f64::NAN), "improper prior: parameter 1 is NaN");
    assert!(diagonal.start(0.0, Key::root(5)).unwrap_err().to_string().contains("improper"));
    assert!(Prior::new(0, Shape::Full).is_err());
    assert!(Prior::new(2, Shape::Mixture { components: 0 }).is_err());
    for prior in priors() {
        let beta = prior.start(0.5, Key::root(5)).unwrap();
        let mean = prior.at(&beta).unwrap();
        assert!(mean.variances().iter().all(|v| *v >= 0.25 - 1e-15));
    }
}
