//! Priors: gradients, moments, curvature, natural steps.

use whimbrel_core::linalg::packed_len;
use whimbrel_core::{Key, Stream, math};
use whimbrel_models::prior::{Prior, Shape};

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

/// The mean over points of the gradient of `-ln p` in `beta`.
fn mean_gradient(prior: &Prior, beta: &[f64], points: &[[f64; D]]) -> Vec<f64> {
    let (mut density, mut gradient) = (prior.at(beta).unwrap(), vec![0.0; beta.len()]);
    for z in points {
        density.add_parameter_gradient(z, 1.0 / points.len() as f64, &mut gradient);
    }
    gradient
}

/// Points with correlated coordinates of scales 30, 1, 0.01 and 1, a mean of their own.
fn correlated(count: usize) -> Vec<[f64; D]> {
    let mut stream = Key::root(7).stream();
    let mut point = || {
        let e: Vec<f64> = (0..D).map(|_| stream.normal()).collect();
        [30.0 * e[0] + 5.0, e[1] - 2.0, 0.01 * (e[0] + 0.3 * e[2]), 0.9 * e[1] + 0.1 * e[3]]
    };
    (0..count).map(|_| point()).collect()
}

#[test]
fn natural_steps_are_those_of_a_diagonal_prior_without_correlations() {
    let [diagonal, full, ..] = priors();
    let logs = [0.3, -1.0, 0.0, 2.0];
    let plain: Vec<f64> = [&[0.5; D][..], &logs].concat();
    let mut beta = vec![0.5; D];
    beta.resize(full.parameters(), 0.0);
    full.log_scales().into_iter().zip(logs).for_each(|(at, log)| beta[at] = log);
    // Points on both sides of the mean along each axis have no correlations.
    let points: Vec<[f64; D]> = (0..2 * D)
        .map(|at| {
            let mut z = [0.5; D];
            z[at / 2] += [3.0, -2.0][at % 2];
            z
        })
        .collect();
    let step = 0.7;
    let moves = full.natural_moves(&beta, &mean_gradient(&full, &beta, &points), (step, 0.5));
    let (moves, gradient) = (moves.unwrap(), mean_gradient(&diagonal, &plain, &points));
    let close = |a: f64, b: f64| assert!((a - b).abs() < 1e-12, "{a} {b}");
    for j in 0..D {
        close(moves[j], -step * gradient[j] * math::exp(2.0 * logs[j]));
    }
    for (j, at) in full.log_scales().into_iter().enumerate() {
        close(moves[at], (-0.5 * step * gradient[D + j]).clamp(-0.5, 0.5));
    }
}

/// From scales that are 300 times too small and 10 times too large; near its end the step is Newton's.
#[test]
fn natural_steps_find_mean_and_covariance_from_afar() {
    let (full, points) = (Prior::new(D, Shape::Full).unwrap(), correlated(50));
    let mut beta = full.start(0.1, Key::root(1)).unwrap();
    for _ in 0..60 {
        let moves =
            full.natural_moves(&beta, &mean_gradient(&full, &beta, &points), (1.0, 0.5)).unwrap();
        // The volume changes by at most e^(1/2) along each axis.
        let volume: f64 = full.log_scales().into_iter().map(|at| moves[at]).sum();
        assert!(volume.abs() <= 0.5 * D as f64 + 1e-9, "{volume}");
        beta.iter_mut().zip(&moves).for_each(|(b, by)| *b += by);
    }
    let found = full.at(&beta).unwrap();
    let moment =
        |of: &dyn Fn(&[f64; D]) -> f64| points.iter().map(of).sum::<f64>() / points.len() as f64;
    let mean: Vec<f64> = (0..D).map(|j| moment(&|z| z[j])).collect();
    for i in 0..D {
        assert!((found.mean()[i] - mean[i]).abs() < 1e-9 * (1.0 + mean[i].abs()));
        for j in 0..i {
            let [pair] = found.marginals(i, j)[..] else { panic!() };
            for (a, k) in [i, j].into_iter().enumerate() {
                for (b, l) in [i, j].into_iter().enumerate() {
                    let expected = moment(&|z| (z[k] - mean[k]) * (z[l] - mean[l]));
                    let scale = (found.variances()[k] * found.variances()[l]).sqrt();
                    let off = pair.covariance[a][b] - expected;
                    assert!(off.abs() < 1e-8 * scale, "{k} {l}: {off} of {scale}");
                }
            }
        }
    }
}

/// Which coordinate comes first does not matter, while steps are cut too.
#[test]
fn natural_steps_do_not_depend_on_the_order_of_coordinates() {
    let (full, points) = (Prior::new(D, Shape::Full).unwrap(), correlated(20));
    let reversed: Vec<[f64; D]> = points.iter().map(|z| [z[3], z[2], z[1], z[0]]).collect();
    let ends = [&points, &reversed].map(|points| {
        let mut beta = full.start(0.3, Key::root(1)).unwrap();
        for _ in 0..3 {
            let gradient = mean_gradient(&full, &beta, points);
            let moves = full.natural_moves(&beta, &gradient, (1.0, 0.5)).unwrap();
            beta.iter_mut().zip(&moves).for_each(|(b, by)| *b += by);
        }
        full.at(&beta).unwrap()
    });
    for i in 0..D {
        for j in 0..D {
            let [one, two] = [&ends[0].marginals(i, j)[0], &ends[1].marginals(3 - i, 3 - j)[0]];
            let off = one.covariance[0][1] - two.covariance[0][1];
            assert!(off.abs() < 1e-9 * (1.0 + one.covariance[0][1].abs()), "{i} {j}: {off}");
        }
    }
}

#[test]
fn a_full_prior_is_seen_through_a_preconditioner() {
    let mut stream = Key::root(9).stream();
    let full = Prior::new(D, Shape::Full).unwrap();
    let beta = normals(&mut stream, full.parameters(), 0.7);
    let mut density = full.at(&beta).unwrap();
    let mean = density.mean();
    for diagonal in [[1.0; D], [1.0, 0.01, 0.3, 4.0]] {
        let largest = density.curvature_through(Some(&diagonal));
        let least = 1.0 / density.widest_through(Some(&diagonal));
        let (mut low, mut high) = (f64::INFINITY, 0.0f64);
        for _ in 0..2000 {
            let v = normals(&mut stream, D, 1.0);
            let z: Vec<f64> = (0..D).map(|j| mean[j] + diagonal[j].sqrt() * v[j]).collect();
            let mut gradient = [0.0; D];
            density.potential_and_gradient(&z, &mut gradient);
            let along: f64 = (0..D).map(|j| gradient[j] * diagonal[j].sqrt() * v[j]).sum();
            let along = along / v.iter().map(|v| v * v).sum::<f64>();
            (low, high) = (low.min(along), high.max(along));
        }
        assert!(high <= largest * (1.0 + 1e-9) && high > 0.5 * largest, "{high} {largest}");
        assert!(low >= least * (1.0 - 1e-6) && low < 4.0 * least, "{low} {least}");
    }
}

#[test]
fn projections_know_no_unit() {
    let [diagonal, full, ..] = priors();
    let norm = |beta: &[f64]| beta.iter().map(|b| b * b).sum::<f64>().sqrt();
    let mut stream = Key::root(11).stream();
    let mut plain = normals(&mut stream, diagonal.parameters(), 2.0);
    let (before, length) = (plain.clone(), norm(&plain));
    diagonal.project(&mut plain, 0.5 * length);
    plain.iter().zip(&before).for_each(|(b, was)| assert!((b - 0.5 * was).abs() < 1e-12));
    // Scales of a thousand: entries of the factor are as large and stay, correlated as they were.
    let mut beta = normals(&mut stream, full.parameters(), 1.0);
    for i in 0..D {
        let row = &mut beta[D + packed_len(i)..][..i + 1];
        row[i] = math::ln(1000.0);
        row[..i].iter_mut().for_each(|l| *l *= 1000.0);
    }
    let before = beta.clone();
    full.project(&mut beta, 50.0);
    assert_eq!(beta, before);
    full.project(&mut beta, 5.0);
    let unit = |beta: &[f64]| beta[D + 1] / math::exp(beta[D + 2]);
    let share = beta[0] / before[0];
    assert!(share < 0.5 && (unit(&beta) / unit(&before) / share - 1.0).abs() < 1e-12, "{share}");
}
