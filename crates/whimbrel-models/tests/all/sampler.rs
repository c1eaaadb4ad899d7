//! Samplers against posteriors in closed form: linear models with Gaussian noise and a Gaussian prior.
//!
//! Statistical bounds: a figure is compared within `Z = 5` standard errors, from the effective sample
//! size of its own series; a correct sampler fails one comparison with probability 6e-7. Seeds are fixed,
//! so results are reproducible.

use whimbrel_core::{Key, Stream, linalg, math};
use whimbrel_models::prior::{Density, Prior, Shape};
use whimbrel_models::sampler::{
    ChainState, Kernel, Potential, Scratch, effective_sample_size, split_r_hat,
};
use whimbrel_testkit::pairs;

const D: usize = 2;
const Z: f64 = 5.0;

/// `y = A z + noise`, `z ~ N(mean, scales^2)`.
struct Linear {
    a: Vec<[f64; D]>,
    y: Vec<f64>,
    noise: f64,
    prior: Density,
}

impl Linear {
    /// Rows drawn with unit scale; `z` and then the targets drawn from the model. Returns `z` too.
    fn draw(rows: usize, noise: f64, stream: &mut Stream) -> (Self, [f64; D]) {
        let prior = Prior::new(D, Shape::Diagonal).unwrap();
        let prior = prior.at(&[0.5, -1.0, 0.0, math::ln(0.7)]).unwrap();
        let a: Vec<[f64; D]> =
            (0..rows).map(|_| std::array::from_fn(|_| stream.normal())).collect();
        let mut z = [0.0; D];
        prior.draw(stream, &mut z);
        let y = a.iter().map(|a| a[0] * z[0] + a[1] * z[1] + noise * stream.normal()).collect();
        (Self { a, y, noise, prior }, z)
    }

    /// `P = A^T A / noise^2 + scales^-2`
    fn precision(&self) -> [f64; D * D] {
        let mut p = [1.0, 0.0, 0.0, 1.0 / 0.49];
        for a in &self.a {
            for at in 0..D * D {
                p[at] += a[at / D] * a[at % D] / (self.noise * self.noise);
            }
        }
        p
    }

    /// `P^-1 (A^T y / noise^2 + scales^-2 mean)`
    fn mean(&self) -> [f64; D] {
        let mut right = [0.5, -1.0 / 0.49];
        for (a, y) in self.a.iter().zip(&self.y) {
            (0..D).for_each(|j| right[j] += a[j] * y / (self.noise * self.noise));
        }
        let inverse = inverse(self.precision());
        std::array::from_fn(|i| inverse[i * D] * right[0] + inverse[i * D + 1] * right[1])
    }

    fn smoothness(&self) -> f64 {
        linalg::largest_eigenvalue(&self.precision(), D).unwrap()
    }
}

impl Potential for Linear {
    fn len(&self) -> usize {
        D
    }

    fn potential_and_gradient(&mut self, z: &[f64], gradient: &mut [f64]) -> f64 {
        gradient.fill(0.0);
        let mut value = self.prior.potential_and_gradient(z, gradient);
        let weight = 1.0 / (self.noise * self.noise);
        for (a, y) in self.a.iter().zip(&self.y) {
            let residual = a[0] * z[0] + a[1] * z[1] - y;
            value += 0.5 * weight * residual * residual;
            (0..D).for_each(|j| gradient[j] += weight * residual * a[j]);
        }
        value
    }
}

fn inverse(m: [f64; D * D]) -> [f64; D * D] {
    let determinant = m[0] * m[3] - m[1] * m[2];
    [m[3], -m[1], -m[2], m[0]].map(|x| x / determinant)
}

fn product(a: [f64; D * D], b: [f64; D * D]) -> [f64; D * D] {
    std::array::from_fn(|at| a[at / D * D] * b[at % D] + a[at / D * D + 1] * b[D + at % D])
}

/// `(P - gamma P D P / 2)^-1`
fn langevin_covariance(p: [f64; D * D], diagonal: [f64; D], gamma: f64) -> [f64; D * D] {
    let curved = product(product(p, [diagonal[0], 0.0, 0.0, diagonal[1]]), p);
    inverse(std::array::from_fn(|at| p[at] - 0.5 * gamma * curved[at]))
}

/// Positions and momenta of a chain, after a tenth as burn-in.
fn run(
    kernel: Kernel,
    model: &mut Linear,
    gamma: f64,
    diagonal: [f64; D],
    steps: usize,
    key: Key,
) -> (Vec<[f64; D]>, Vec<[f64; D]>, ChainState) {
    let mut scratch = Scratch::new(D);
    scratch.precondition(&diagonal).unwrap();
    let (mut state, mut stream) = (ChainState::at(vec![0.0; D]), key.stream());
    let (mut positions, mut momenta) = (Vec::new(), Vec::new());
    for step in 0..steps + steps / 10 {
        kernel.step(&mut state, model, gamma, &mut stream, &mut scratch).unwrap();
        if step >= steps / 10 {
            positions.push([state.position[0], state.position[1]]);
            momenta.extend(state.momentum.first_chunk::<D>());
        }
    }
    (positions, momenta, state)
}

/// The mean of a series is `expected` within `Z` standard errors, which it returns.
fn assert_mean(series: &[f64], expected: f64, what: &str) -> f64 {
    let n = series.len() as f64;
    let mean = series.iter().sum::<f64>() / n;
    let variance = series.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / n;
    let error = (variance / effective_sample_size(&[series])).sqrt();
    assert!((mean - expected).abs() <= Z * error, "{what}: {mean}, not {expected} +- {error}");
    error
}

/// Means and covariances around the expected mean; returns the largest standard error of a variance.
fn assert_moments(draws: &[[f64; D]], mean: [f64; D], covariance: [f64; D * D], what: &str) -> f64 {
    let series = |of: &dyn Fn(&[f64; D]) -> f64| draws.iter().map(of).collect::<Vec<f64>>();
    let mut largest = 0.0f64;
    for i in 0..D {
        assert_mean(&series(&|z| z[i]), mean[i], &format!("{what}, mean {i}"));
        for j in 0..=i {
            let products = series(&|z| (z[i] - mean[i]) * (z[j] - mean[j]));
            let what = format!("{what}, covariance {i} {j}");
            largest = largest.max(assert_mean(&products, covariance[i * D + j], &what));
        }
    }
    largest
}

fn model() -> Linear {
    Linear::draw(5, 0.8, &mut Key::root(1).stream()).0
}

const ONES: [f64; D] = [1.0; D];

#[test]
fn adjusted_kernels_have_the_posterior() {
    let mut model = model();
    let (mean, covariance) = (model.mean(), inverse(model.precision()));
    let gamma = 0.7 / model.smoothness();
    for kernel in [Kernel::Mala, Kernel::Hmc { leapfrog: 5 }] {
        let (draws, _, state) = run(kernel, &mut model, gamma, ONES, 100_000, Key::root(2));
        assert_moments(&draws, mean, covariance, kernel.name());
        let acceptance = state.accepted as f64 / state.proposed as f64;
        // Refusals happen, and most moves are accepted.
        assert!((0.5..0.999).contains(&acceptance), "{acceptance}");
    }
}

#[test]
fn unadjusted_langevin_has_its_own_covariance_of_first_order_in_the_step() {
    let mut model = model();
    let (mean, p) = (model.mean(), model.precision());
    let posterior = inverse(p);
    let unequal = [1.0 / p[0], 1.0 / p[3]];
    // The curvature in the metric of the diagonal: the largest eigenvalue of D^(1/2) P D^(1/2), whose
    // diagonal is one.
    let off = p[1] / (p[0] * p[3]).sqrt();
    let cases = [
        (Kernel::Ula, ONES, model.smoothness()),
        (Kernel::PreconditionedUla, unequal, 1.0 + off.abs()),
    ];
    for (kernel, diagonal, smoothness) in cases {
        let mut distances = Vec::new();
        for (at, share) in [0.8, 0.4, 0.2, 0.1].into_iter().enumerate() {
            let gamma = share / smoothness;
            let key = Key::root(3).child(at as u64);
            let (draws, _, _) = run(kernel, &mut model, gamma, diagonal, 400_000, key);
            let own = langevin_covariance(p, diagonal, gamma);
            let what = format!("{} at {share} / L", kernel.name());
            let error = assert_moments(&draws, mean, own, &what);
            let gap = |at: usize| (own[at] - posterior[at]).abs();
            let distance = gap(0).max(gap(3));
            // At the larger steps the test could not pass with the posterior's covariance.
            assert!(share < 0.4 || distance > 2.0 * Z * error, "{what}: {distance} {error}");
            distances.push(distance);
        }
        for (pair, share) in pairs(distances.windows(2), [0.8, 0.4, 0.2]) {
            // In an eigenvector the distance is (share / 2) / (1 - share / 2) of the variance: halving
            // the step halves it, up to the ratio of the two denominators.
            let ratio = pair[0] / pair[1];
            let most = 2.0 * (1.0 - 0.25 * share) / (1.0 - 0.5 * share);
            assert!((2.0..=most + 1e-12).contains(&ratio), "{ratio} beyond {most}");
        }
    }
}

#[test]
fn underdamped_positions_are_exact_and_momenta_of_first_order_in_the_step() {
    let mut model = model();
    let (mean, p) = (model.mean(), model.precision());
    let posterior = inverse(p);
    let kernel = Kernel::Underdamped { friction: 1.5 };
    for (at, share) in [0.8, 0.4, 0.2].into_iter().enumerate() {
        let gamma = share / model.smoothness();
        let key = Key::root(4).child(at as u64);
        let (draws, momenta, _) = run(kernel, &mut model, gamma, ONES, 200_000, key);
        let what = format!("position at {share} / L");
        assert_moments(&draws, mean, posterior, &what);
        let identity = [1.0, 0.0, 0.0, 1.0];
        let own = inverse(std::array::from_fn(|at| identity[at] - 0.5 * gamma * p[at]));
        let error = assert_moments(&momenta, [0.0; D], own, &format!("momentum at {share} / L"));
        let distance = (own[0] - 1.0).max(own[3] - 1.0);
        assert!(share < 0.4 || distance > 2.0 * Z * error, "{distance} {error}");
    }
    // Seen through the diagonal the precision has ones on its own.
    let (unequal, off) = ([1.0 / p[0], 1.0 / p[3]], p[1] / (p[0] * p[3]).sqrt());
    let gamma = 0.8 / (1.0 + off.abs());
    let (draws, _, _) = run(kernel, &mut model, gamma, unequal, 200_000, Key::root(5));
    assert_moments(&draws, mean, posterior, "preconditioned");
}

/// `U(z) = z^2 / 2 + cos(2 z) / 2`, whose curvature lies between -1 and 3.
struct Rippled;

impl Potential for Rippled {
    fn len(&self) -> usize {
        1
    }

    fn potential_and_gradient(&mut self, z: &[f64], gradient: &mut [f64]) -> f64 {
        let z = z[0];
        gradient[0] = z - (2.0 * z).sin();
        0.5 * z * z + 0.5 * (2.0 * z).cos()
    }
}

#[test]
fn off_gaussian_targets_underdamped_errs_at_second_order_in_time() {
    let density = |z: f64| math::exp(-Rippled.potential_and_gradient(&[z], &mut [0.0]));
    // The trapezoidal rule converges exponentially here.
    let grid = || (-10_000..=10_000).map(|i| f64::from(i) * 1e-3);
    let exact = grid().map(|z| z * z * density(z)).sum::<f64>() / grid().map(density).sum::<f64>();
    let kernel = Kernel::Underdamped { friction: 1.0 };
    let bias = |gamma: f64, key: Key| {
        let (mut state, mut stream) = (ChainState::at(vec![0.0]), key.stream());
        let mut scratch = Scratch::new(1);
        // Batches of 2000 steps are far longer than the correlation.
        let batches: Vec<f64> = (0..1000)
            .map(|_| {
                let step = |_| {
                    kernel
                        .step(&mut state, &mut Rippled, gamma, &mut stream, &mut scratch)
                        .unwrap();
                    state.position[0] * state.position[0]
                };
                (0..2000).map(step).sum::<f64>() / 2000.0
            })
            .collect();
        let mean = batches.iter().sum::<f64>() / 1000.0;
        let spread: f64 = batches.iter().map(|b| (b - mean) * (b - mean)).sum();
        (mean - exact, spread.sqrt() / 1000.0)
    };
    let (large, large_error) = bias(0.16, Key::root(5));
    let (small, small_error) = bias(0.04, Key::root(6));
    assert!(large.abs() > 10.0 * large_error, "{large} +- {large_error}");
    // A quarter of gamma is half the time step: a quarter of the bias. The next order is relative to
    // gamma (0.16), and 5 standard errors are allowed for.
    let slack = Z * (large_error * large_error + 16.0 * small_error * small_error).sqrt();
    assert!((large - 4.0 * small).abs() <= slack + 0.16 * large.abs(), "{large} {small} {slack}");
}

#[test]
fn parallel_chains_of_every_kernel_mix() {
    let mut model = model();
    let gamma = 0.5 / model.smoothness();
    for name in Kernel::NAMES {
        let kernel = Kernel::named(name).unwrap();
        let chains: Vec<Vec<f64>> = (0..4)
            .map(|c| run(kernel, &mut model, gamma, ONES, 5000, Key::root(7).child(c)).0)
            .map(|draws| draws.iter().map(|z| z[0]).collect())
            .collect();
        // Mixed chains exceed 1 by about half the inverse of the draws one chain is worth.
        let worth = effective_sample_size(&chains);
        assert!(worth > 500.0, "{name}: {worth}");
        assert!(split_r_hat(&chains) < 1.02, "{name}");
    }
}

/// Simulation-based calibration (Talts et al., 2018): the rank of the true `z` among 19 draws of the
/// posterior is uniform on 20 values. Chi-square with 19 degrees of freedom over each coordinate;
/// 56.4 is its quantile at 1 - 1.7e-5 (3 kernels x 2 coordinates: a false alarm rate of 1e-4).
#[test]
fn ranks_of_the_truth_are_uniform() {
    const SIMULATIONS: usize = 1500;
    const DRAWS: usize = 19;
    // ULA's variance at 0.05 / L is at most 2.5 % too large, its scale `e = 1.25 %`: chi-square with so
    // many simulations has a non-centrality of `2 e^2` times their number, below 0.5, and cannot see it.
    let cases = [(Kernel::Mala, 0.7), (Kernel::Hmc { leapfrog: 5 }, 0.7), (Kernel::Ula, 0.05)];
    for (case, (kernel, share)) in cases.into_iter().enumerate() {
        let mut counts = [[0.0; DRAWS + 1]; D];
        for simulation in 0..SIMULATIONS {
            let key = Key::root(8).child(case as u64).child(simulation as u64);
            let mut stream = key.stream();
            let (mut model, truth) = Linear::draw(5, 0.8, &mut stream);
            let (smooth, p) = (model.smoothness(), model.precision());
            // Between kept draws the slowest direction forgets all but e^-4 at step `share / L`.
            let smallest = p[0] + p[3] - smooth;
            let thin = (4.0 * smooth / (smallest * share)).ceil() as usize;
            let (mut state, mut scratch) = (ChainState::at(vec![0.0; D]), Scratch::new(D));
            let gamma = share / smooth;
            let mut rank = [0; D];
            for draw in 0..=DRAWS {
                for _ in 0..thin {
                    kernel.step(&mut state, &mut model, gamma, &mut stream, &mut scratch).unwrap();
                }
                // The first is burn-in.
                for j in 0..D {
                    rank[j] += usize::from(draw > 0 && state.position[j] < truth[j]);
                }
            }
            (0..D).for_each(|j| counts[j][rank[j]] += 1.0);
        }
        let expected = SIMULATIONS as f64 / (DRAWS + 1) as f64;
        for counts in counts {
            let chi: f64 = counts.iter().map(|c| (c - expected) * (c - expected) / expected).sum();
            assert!(chi < 56.4, "{}: chi-square {chi}, {counts:?}", kernel.name());
        }
    }
}
