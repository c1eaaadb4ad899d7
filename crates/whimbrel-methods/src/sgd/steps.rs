//! Steps of the gradient family: constants, `1/L`, and the steps of the theorems.

use super::{Gradient, Reference, Summary};
use crate::federated::Terms;
use crate::settings::{Batch, Budget};
use crate::step::{Schedule, omega_with_sampling};
use whimbrel_codec::channel::DownRule;
use whimbrel_core::{Error, Key, Result, vector, wire};
use whimbrel_models::Rows;
use whimbrel_models::convex::{Examples, Problem};

/// The number of rows by whose gradients a client estimates its noise.
const LOOKED_MAX: usize = 200;

/// The rule of the step.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum StepRule {
    /// A number or a decreasing sequence.
    Given(Schedule),
    /// `factor/L`.
    OverSmoothness {
        /// One by default.
        factor: f64,
        /// Frobenius norms in place of spectral ones, as the paper's code has it.
        frobenius: bool,
    },
    /// `1/(L sqrt(k))`.
    OverSmoothnessRoot,
    /// Theorems 1 and 2 (Appendix G for heterogeneous clients), and Theorem S11 for non-convex losses.
    Theory,
}

/// The constants behind a step, fixed at the start.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Bounds {
    /// `L`, the clients' mean; under [`StepRule::Theory`] the largest, because the proofs apply Lemma
    /// S7 to every client with one `L`.
    pub smoothness: f64,
    /// `μ`, the clients' mean.
    pub strong_convexity: f64,
    /// `σ²`, the clients' mean.
    pub sigma2: f64,
    /// `γ_max` of section 3 and Appendix G; of Theorem S11 for non-convex losses.
    pub gamma_max: f64,
    /// The constant step of Theorem 2 or S11; unused if `decreasing`.
    pub gamma: f64,
    /// Whether Theorem 1's `2/(μ(k + 1) + L̃)` applies.
    pub decreasing: bool,
}

wire!(Bounds { smoothness, strong_convexity, sigma2, gamma_max, gamma, decreasing });

impl StepRule {
    /// Whether the summary should carry Frobenius norms.
    pub fn wants_frobenius(&self) -> bool {
        matches!(self, Self::OverSmoothness { frobenius: true, .. })
    }

    /// The step of round `k`, counted from zero.
    pub fn at(&self, k: u32, bounds: &Bounds) -> f64 {
        let k = f64::from(k);
        match self {
            Self::Given(schedule) => schedule.at(k as u32),
            Self::OverSmoothness { factor, .. } => factor / bounds.smoothness,
            Self::OverSmoothnessRoot => 1.0 / (bounds.smoothness * (k + 1.0).sqrt()),
            Self::Theory if bounds.decreasing => {
                // γ_K = 2/(μ(K + 1) + L̃)                                         (Theorem 1)
                // The print has γ_max = 1/(2 L̃), with which γ_0 is four times γ_max; the proof
                // (App. E.3) wants γ_K <= γ_max, so L̃ = 2/γ_max.
                let l_tilde = 2.0 / bounds.gamma_max;
                2.0 / (bounds.strong_convexity * (k + 1.0) + l_tilde)
            }
            Self::Theory => bounds.gamma,
        }
    }
}

/// Sums over the roster.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sums {
    total: f64,
    clients: f64,
    /// `Σ n_i²`.
    squares: f64,
    smoothness: f64,
    smoothness_max: f64,
    strong_convexity: f64,
    sigma2: f64,
    rows: f64,
}

impl Sums {
    pub(super) fn add(&mut self, weight: f64, rows: u64, summary: &Summary) {
        self.total += weight;
        self.clients += 1.0;
        self.squares += weight * weight;
        self.smoothness += weight * summary.smoothness;
        self.smoothness_max = self.smoothness_max.max(summary.smoothness);
        self.strong_convexity += weight * summary.strong_convexity;
        self.sigma2 += weight * summary.sigma2;
        self.rows += rows as f64;
    }

    pub(super) fn bounds(&self, method: &Gradient, terms: &Terms) -> Result<Bounds> {
        if self.clients == 0.0 {
            return Err(Error::data("there is no client"));
        }
        let mut bounds = Bounds {
            smoothness: self.smoothness / self.total,
            strong_convexity: self.strong_convexity / self.total,
            sigma2: self.sigma2 / self.total,
            ..Bounds::default()
        };
        let flat = !(bounds.smoothness > 0.0 && bounds.smoothness.is_finite());
        if flat && !matches!(method.step, StepRule::Given(_)) {
            return Err(Error::data("the loss has no curvature, so there is no step 1/L"));
        }
        if method.step != StepRule::Theory {
            return Ok(bounds);
        }
        bounds.smoothness = self.smoothness_max;
        // A weighted mean has the variance of one over this number of equal clients.
        let clients = self.total * self.total / self.squares;
        let covered = terms.uplinks.iter().all(|u| u.has_memory() || u.omega() == Some(0.0));
        let down = match terms.downlink.rule() {
            DownRule::Exact => Some(None),
            DownRule::Preserved { alpha, .. } => terms.downlink.omega().map(|w| Some((w, *alpha))),
            _ => None,
        };
        let omegas = terms.uplinks.iter().map(|u| u.omega()).collect::<Option<Vec<f64>>>();
        let (true, Some(down), Some(omegas)) = (covered, down, omegas) else {
            return Err(Error::config(
                "step = \"theory\" covers memories on both ways and nothing else",
            )
            .hint("for other channels give the step as a number"));
        };
        let omega = omegas.into_iter().fold(0.0, f64::max);
        let omega_up = omega_with_sampling(omega, method.participation);
        let gap = method.problem.gap_at_zero();
        let largest = if gap.is_some() { non_convex_max } else { gamma_max };
        bounds.gamma_max = largest(bounds.smoothness, omega_up, down, clients);
        let batch = match method.batch {
            Batch::Full => None,
            Batch::Sample { size, local_steps, .. } => {
                Some(f64::from(size) * f64::from(local_steps))
            }
        };
        let noisy = batch.filter(|_| bounds.sigma2 > 0.0);
        bounds.decreasing = noisy.is_some() && bounds.strong_convexity > 0.0;
        bounds.gamma = match (noisy, gap) {
            (Some(b), Some(gap)) => {
                let nb = b * clients;
                theorem_s11(&bounds, gap, nb, omega_up, self.rounds(method, terms))
            }
            (Some(b), None) if !bounds.decreasing => {
                let reference = method.reference.as_ref().ok_or_else(needs_reference)?;
                let nb = b * clients;
                theorem_2(&bounds, reference, nb, omega_up, self.rounds(method, terms))
            }
            _ => bounds.gamma_max,
        };
        Ok(bounds)
    }

    /// `K`.
    fn rounds(&self, method: &Gradient, terms: &Terms) -> f64 {
        match terms.budget {
            Budget::Rounds(rounds) | Budget::Converged(rounds) => f64::from(rounds),
            Budget::Epochs(epochs) => {
                let each = method.batch.expectations((self.rows / self.clients) as u64) as f64;
                epochs * self.rows / (each * self.clients * method.participation)
            }
        }
    }
}

fn needs_reference() -> Error {
    Error::config("step = \"theory\" needs the distance to the optimum")
        .hint("only simulations know it: over a network give the step as a number")
}

/// `γ_max` of section 3 with Appendix G's terms for heterogeneous clients; the downlink by its
/// `ω` and `α` (the paper's `α_dwn = 1/(8 ω_dwn)` gives its printed form).
pub fn gamma_max(l: f64, omega_up: f64, down: Option<(f64, f64)>, clients: f64) -> f64 {
    let up = omega_up / clients;
    let mut bound = 1.0 / (2.0 * l * (1.0 + up));
    if omega_up > 0.0 {
        bound = bound.min(1.0 / (16.0 * l * up));
    }
    if let Some((omega, alpha)) = down.filter(|(omega, _)| *omega > 0.0) {
        bound = bound.min((alpha / (8.0 * omega)).sqrt() / l);
        bound = bound.min(1.0 / (4.0 * l * (omega / alpha * (1.0 / alpha + up)).sqrt()));
        if up > 0.0 {
            bound = bound.min(1.0 / (8.0 * l * (2.0 * omega / alpha * up).sqrt()));
        }
    }
    bound
}

/// `sqrt(||w_0 − w_*||² N b / ((1 + ω_up) σ² K))`, at most `γ_max`; `w_0 = 0`.
fn theorem_2(bounds: &Bounds, at: &Reference, nb: f64, omega_up: f64, rounds: f64) -> f64 {
    let distance2 = vector::norm2_squared(&at.w);
    (distance2 * nb / ((1.0 + omega_up) * bounds.sigma2 * rounds)).sqrt().min(bounds.gamma_max)
}

/// The bound on the step of Theorem S11, for non-convex losses. The print has `α_dwn = 1/(8 ω_dwn)`;
/// for other memory steps the bound follows from the proof.
pub fn non_convex_max(l: f64, omega_up: f64, down: Option<(f64, f64)>, clients: f64) -> f64 {
    let up = omega_up / clients;
    let mut bound = 1.0 / (2.0 * l * (1.0 + up));
    if let Some((omega, alpha)) = down.filter(|(omega, _)| *omega > 0.0) {
        // 1/(8 ω), and 1/(8 sqrt(ω² (8 ω + ω_up/N)))
        bound = bound.min((alpha / (8.0 * omega)).sqrt() / l);
        bound = bound.min((alpha / (8.0 * omega * (1.0 / alpha + up))).sqrt() / l);
    }
    bound
}

/// The step of Theorem S11: `sqrt(2 N b (F(w_0) − F_*) / (σ² L (1 + ω_up) K))`, within its bound.
fn theorem_s11(bounds: &Bounds, gap: f64, nb: f64, omega_up: f64, rounds: f64) -> f64 {
    let noise = bounds.sigma2 * bounds.smoothness * (1.0 + omega_up);
    (2.0 * nb * gap / (noise * rounds)).sqrt().min(bounds.gamma_max)
}

/// `E||g(w_0) − ∇F_i(w_0)||²` of a single row's gradient; zero for full batches.
pub(super) fn gradient_variance(
    problem: &Problem,
    data: &Examples,
    dimension: usize,
    batch: Batch,
    key: Key,
) -> Result<f64> {
    if batch == Batch::Full {
        return Ok(0.0);
    }
    let w = vec![0.0; dimension];
    let (mut mean, mut one) = (w.clone(), w.clone());
    problem.gradient(&w, data, Rows::All, &mut mean)?;
    let looked = key.stream().choose(data.rows(), data.rows().min(LOOKED_MAX));
    let mut spread = 0.0;
    for row in &looked {
        problem.gradient(&w, data, Rows::These(&[*row as u32]), &mut one)?;
        vector::axpy(&mut one, -1.0, &mean);
        spread += vector::norm2_squared(&one);
    }
    Ok(spread / looked.len() as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gamma_max_is_the_least_of_its_terms() {
        // No compression: 1/(2L).
        assert_eq!(gamma_max(2.0, 0.0, None, 20.0), 0.25);
        // omega_up = omega_down = 10, N = 20, L = 1: 1/(2*1.5), 1/80, 1/(8 sqrt2 10 sqrt(80.5)),
        // 1/8, 1/(8 sqrt(2*8*100*0.5)); the third is the least.
        let third = 1.0 / (8.0 * 2f64.sqrt() * 10.0 * 80.5f64.sqrt());
        let alpha = 1.0 / 80.0;
        assert!((gamma_max(1.0, 10.0, Some((10.0, alpha)), 20.0) - third).abs() < 1e-17);
    }

    #[test]
    fn theorem_1_starts_below_gamma_max_and_falls_like_one_over_k() {
        let bounds = Bounds {
            strong_convexity: 0.1,
            gamma_max: 0.05,
            decreasing: true,
            ..Bounds::default()
        };
        let first = StepRule::Theory.at(0, &bounds);
        assert!((first - 2.0 / (0.1 + 40.0)).abs() < 1e-15 && first < 0.05);
        let late = StepRule::Theory.at(1_000_000, &bounds);
        assert!((late - 2.0 / (0.1 * 1_000_001.0 + 40.0)).abs() < 1e-15);
    }

    #[test]
    fn the_non_convex_step_stays_within_its_bound() {
        // alpha = 1/(8 omega): the printed 1/(8 sqrt(omega^2 (8 omega + omega_up/N))).
        let printed = 1.0 / (8.0 * 3.0 * (24.0f64 + 0.15).sqrt());
        let bound = non_convex_max(1.0, 3.0, Some((3.0, 1.0 / 24.0)), 20.0);
        assert!((bound - printed).abs() < 1e-15);
        assert_eq!(non_convex_max(2.0, 20.0, None, 20.0), 0.125);
        let bounds =
            Bounds { smoothness: 1.0, sigma2: 1e-9, gamma_max: bound, ..Bounds::default() };
        assert_eq!(theorem_s11(&bounds, 1.0, 100.0, 3.0, 10.0), bound);
        // sqrt(2 * 100 * 0.5 / (1e6 * 4 * 25)) = 1e-3
        let noisy = Bounds { sigma2: 1e6, ..bounds };
        assert!((theorem_s11(&noisy, 0.5, 100.0, 3.0, 25.0) - 1e-3).abs() < 1e-15);
    }
}
