//! The moves of a client's chains in a round: step, friction, preconditioner, thinning.

use super::posterior::Posterior;
use super::{Own, Part, Rate, Soul};
use whimbrel_core::{Error, Result, Stream};
use whimbrel_models::sampler::{ChainState, Kernel, Scratch};

/// The most steps from one kept sample to the next, by default.
const THIN_MAX: f64 = 100.0;

pub(super) struct Pace {
    kernel: Kernel,
    gamma: f64,
    scratch: Scratch,
    /// The remedy of a chain that diverges.
    remedy: &'static str,
    /// Steps from one kept sample to the next.
    pub thin: u32,
}

impl Pace {
    /// Moves a chain by one step.
    pub fn step(
        &mut self,
        chain: &mut ChainState,
        posterior: &mut Posterior<'_>,
        stream: &mut Stream,
    ) -> Result<()> {
        let moved = self.kernel.step(chain, posterior, self.gamma, stream, &mut self.scratch);
        moved.map_err(|error| error.hint(self.remedy))
    }
}

impl Soul {
    /// The pace of this client's chains; `factor` is the decay of `gamma`.
    pub(super) fn pace(
        &self,
        kernel: Kernel,
        own: &mut Own,
        posterior: &mut Posterior<'_>,
        factor: f64,
    ) -> Result<Pace> {
        let mut scratch = Scratch::new(self.model.personal());
        let preconditioned =
            matches!(kernel, Kernel::PreconditionedUla | Kernel::Underdamped { .. });
        let diagonal = preconditioned.then(|| posterior.diagonal());
        if let Some(diagonal) = &diagonal {
            scratch.precondition(diagonal)?;
        }
        let curvature =
            posterior.smoothness(diagonal.as_deref(), self.chains.batch).unwrap_or_else(|| {
                // The losses' curvature costs dozens of gradients: it is updated after 1, 2, 4, ... rounds.
                // The prior's changes every round and is added. Preconditioners have entries of at most one.
                if own.rounds.is_power_of_two() || own.curvature == 0.0 {
                    own.curvature = posterior.curvature_of_losses(&own.chains[0].position);
                }
                posterior.curvature(own.curvature, self.chains.batch)
            });
        let gamma = match self.chains.gamma {
            // A number refers to the final noise; during annealing the step is the same share of the
            // largest stable one.
            Rate::Fixed(gamma) if self.anneal => {
                let of_prior = posterior.density().curvature_through(diagonal.as_deref());
                let squares = (posterior.noise() / self.model.noise_value()).powi(2);
                scratch.unit = (squares * (curvature - of_prior) + of_prior) / curvature;
                gamma * scratch.unit
            }
            rate => rate.at(curvature, Some(kernel)),
        } * factor;
        if !(gamma > 0.0 && gamma.is_finite()) {
            return Err(Error::numerical(format!(
                "no step is small enough for a curvature of {curvature:.1e}: bring inputs to a common scale"
            )));
        }
        // The least curvature of the prior under the preconditioner: losses are convex in a head.
        let least = 1.0 / posterior.density().widest_through(diagonal.as_deref());
        let thin = self.chains.thin.unwrap_or_else(|| match self.model.part {
            Part::Head => relaxation(kernel, gamma, least).ceil().clamp(1.0, THIN_MAX) as u32,
            Part::All => self.chains.steps,
        });
        let kernel = match kernel {
            Kernel::Underdamped { friction } => {
                Kernel::Underdamped { friction: friction * 2.0 * least.sqrt() }
            }
            other => other,
        };
        let remedy = match self.chains.gamma {
            Rate::Auto => "kernel = \"mala\" rejects such moves; or set a smaller `gamma`",
            _ => "gamma = \"auto\" finds a step for every client and round",
        };
        Ok(Pace { kernel, gamma, scratch, remedy, thin })
    }
}

/// Steps in which a chain forgets its start along a coordinate of this curvature `m`: `1/(gamma m)` of Langevin
/// kernels, the same over the mean square of the leapfrog steps of HMC. Underdamped chains, at the critical
/// friction `2 sqrt(m)` and with time steps `h = sqrt(2 gamma)`, have the autocorrelation
/// `(1 + sqrt(m) t) exp(-sqrt(m) t)`, whose integral is `2/sqrt(m)`.
fn relaxation(kernel: Kernel, gamma: f64, curvature: f64) -> f64 {
    match kernel {
        Kernel::Underdamped { .. } => 2.0 / (2.0 * gamma * curvature).sqrt(),
        Kernel::Hmc { leapfrog } => {
            let n = f64::from(leapfrog);
            6.0 / (gamma * curvature * (n + 1.0) * (2.0 * n + 1.0))
        }
        Kernel::Ula | Kernel::PreconditionedUla | Kernel::Mala => 1.0 / (gamma * curvature),
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Noise, Personalised};
    use super::*;
    use std::sync::Arc;
    use whimbrel_core::{Inputs, Key, Samples, Targets};
    use whimbrel_models::prior::{Prior, Shape};
    use whimbrel_models::sampler::{Potential, effective_sample_size};
    use whimbrel_nn::{Learner, LinearRepresentation, Network};

    const ROWS: usize = 30;

    fn samples(width: usize, scales: &[f64], classes: Option<u16>) -> Samples {
        let mut stream = Key::root(3).stream();
        let x: Vec<f32> = (0..ROWS * width)
            .map(|at| (scales[at % width % scales.len()] * stream.normal()) as f32)
            .collect();
        let targets = match classes {
            Some(count) => Targets::Classes {
                of: (0..ROWS).map(|row| row as u16 % 2).collect(),
                count: usize::from(count),
            },
            None => Targets::Values((0..ROWS).map(|_| stream.normal() as f32).collect()),
        };
        Samples::new(vec![width], Inputs::Real(x), targets).unwrap()
    }

    /// A client's posterior: the prior has mean zero and these scales in turn.
    fn posterior<'a>(
        model: &'a Personalised,
        phi: &[f32],
        scales: &[f64],
        data: &'a Samples,
    ) -> Posterior<'a> {
        let d = model.personal();
        let prior = Prior::new(d, Shape::Diagonal).unwrap();
        let logs = (0..d).map(|j| scales[j % scales.len()].ln());
        let beta: Vec<f64> = vec![0.0; d].into_iter().chain(logs).collect();
        let density = prior.at(&beta).unwrap();
        Posterior::new(model, phi, (density, true), model.noise_value(), data).unwrap()
    }

    /// `v^T D^(1/2) H D^(1/2) v <= L |v|^2` anywhere, for the bound `L` of the smoothness.
    #[test]
    fn the_smoothness_through_a_preconditioner_bounds_the_curvature() {
        let network: Arc<dyn Learner> = Arc::new(Network::mlp(4, &[6], 3));
        let data = samples(4, &[1.0, 3.0], Some(3));
        let model = Personalised::new(network.clone(), Part::Head, Noise::None).unwrap();
        let phi: Vec<f32> = model.start(&[], Key::root(7)).unwrap();
        let mut posterior = posterior(&model, &phi, &[0.2, 1.5, 0.7], &data);
        let mut stream = Key::root(8).stream();
        let d = model.personal();
        for diagonal in [None, Some(posterior.diagonal())] {
            let bound = posterior.smoothness(diagonal.as_deref(), None).unwrap();
            let ones = vec![1.0; d];
            let diagonal = diagonal.as_deref().unwrap_or(&ones);
            let mut largest = 0.0f64;
            for draw in 0..200 {
                let size = if draw % 2 == 0 { 0.01 } else { 1.0 };
                let z: Vec<f64> = (0..d).map(|_| size * stream.normal()).collect();
                let v: Vec<f64> = (0..d).map(|_| stream.normal()).collect();
                let mut slope = |step: f64| -> f64 {
                    let moved = z.iter().zip(&v).zip(diagonal);
                    let at: Vec<f64> = moved.map(|((z, v), d)| z + step * d.sqrt() * v).collect();
                    let mut gradient = vec![0.0; d];
                    posterior.potential_and_gradient(&at, &mut gradient);
                    let terms = gradient.iter().zip(&v).zip(diagonal);
                    terms.map(|((g, v), d)| g * v * d.sqrt()).sum()
                };
                let along = (slope(1e-2) - slope(-1e-2)) / 2e-2;
                largest = largest.max(along / v.iter().map(|v| v * v).sum::<f64>());
            }
            // Gradients have single precision.
            assert!(largest <= bound * (1.0 + 1e-3) && largest > 0.0, "{largest} {bound}");
        }
    }

    /// Features of scales 1 and 30: a preconditioner makes the step that of the narrower curvature.
    #[test]
    fn a_preconditioned_step_is_as_long_as_the_preconditioner_allows() {
        let learner: Arc<dyn Learner> = Arc::new(LinearRepresentation::new(2, 2));
        let model = Personalised::new(learner, Part::Head, Noise::Known(1.0)).unwrap();
        let data = samples(2, &[1.0, 30.0], None);
        let posterior = posterior(&model, &[1.0, 0.0, 0.0, 1.0], &[1.0], &data);
        let diagonal = posterior.diagonal();
        let plain = posterior.smoothness(None, None).unwrap();
        let through = posterior.smoothness(Some(&diagonal), None).unwrap();
        assert!(through < 0.01 * plain, "{through} {plain}");
    }

    /// Twenty coordinates with the prior's curvature 1 and one of 400: kept a relaxation time apart, a hundred
    /// samples of the widest coordinate have about `n (1 - r)/(1 + r)` effective ones, `r` their correlation
    /// (46 for Langevin, 40 for underdamped chains, which need `sqrt(2 * 400)/2` times fewer steps).
    #[test]
    fn samples_a_relaxation_time_apart_are_nearly_independent() {
        struct Stiff;
        impl Potential for Stiff {
            fn len(&self) -> usize {
                21
            }
            fn potential_and_gradient(&mut self, z: &[f64], gradient: &mut [f64]) -> f64 {
                gradient.copy_from_slice(z);
                gradient[0] *= 400.0;
                0.5 * z.iter().zip(gradient).map(|(z, g)| z * *g).sum::<f64>()
            }
        }
        let gamma = 1.0 / 400.0;
        for kernel in [Kernel::Ula, Kernel::Underdamped { friction: 2.0 }] {
            let thin = relaxation(kernel, gamma, 1.0).ceil() as usize;
            let mut stream = Key::root(11).stream();
            let (mut scratch, mut chain) = (Scratch::new(21), ChainState::at(vec![0.0; 21]));
            let mut kept = vec![Vec::new(); 20];
            for step in 0..500 * thin {
                kernel.step(&mut chain, &mut Stiff, gamma, &mut stream, &mut scratch).unwrap();
                if step % thin == 0 {
                    kept.iter_mut().zip(&chain.position[1..]).for_each(|(all, z)| all.push(*z));
                }
            }
            let sizes = kept.iter().map(|all| effective_sample_size(std::slice::from_ref(all)));
            let mean = sizes.sum::<f64>() / 20.0;
            // The estimate of one coordinate is off by about a fifth, the mean of twenty by a twentieth.
            assert!(mean > 150.0 && mean < 350.0, "{kernel:?}: {mean}");
            let steps = if kernel == Kernel::Ula { 400 } else { 29 };
            assert_eq!(thin, steps);
        }
    }
}
