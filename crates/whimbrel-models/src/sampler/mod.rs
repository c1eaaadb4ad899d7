//! Markov chains whose stationary law is exactly or approximately a density known up to a constant.
//!
//! With `U(z) = -ln p(z) + const` ([`Potential`]), one step `gamma`, `h = sqrt(2 gamma)` and
//! `xi ~ N(0, I)`:
//!
//! | [`Kernel`] | one step | gradients |
//! |---|---|---|
//! | `ula` | `z - gamma grad U(z) + h xi` | 1 |
//! | `preconditioned-ula` | `z - gamma D grad U(z) + h D^(1/2) xi`, `D` diagonal | 1 |
//! | `underdamped` | `z`, momentum `v`: half a drift, half a kick, friction and noise, half a kick, half a drift (ABOBA) with time step `h`, in the coordinates `D^(-1/2) z` | 1 |
//! | `mala` | ULA's move, accepted or refused | 2 |
//! | `hmc` | `n` leapfrog steps of length `h`, `n` uniform on `1..=leapfrog`; accepted or refused | `n + 1` |
//!
//! `gamma` has the unit of a variance for every kernel, so one choice serves all: a kernel is stable for
//! `gamma L < 2`, with `L` the largest curvature of `U`, and `1 / L` is a sound default. MALA is HMC with
//! one leapfrog step.
//!
//! Stochastic-gradient Langevin dynamics is `ula` over a potential that draws a minibatch at every
//! evaluation. Adjusted kernels need an exact potential.
//!
//! On a Gaussian with precision `P` the means are exact and the stationary covariances are
//! `(P - gamma P^2 / 2)^-1` (ULA), `(P - gamma P D P / 2)^-1` (preconditioned) and, for underdamped,
//! `P^-1` of the position (exact) and `(I - gamma P / 2)^-1` of the momentum. The error is of first order
//! in `gamma`; ABOBA is of second order in its time step `h`, and its position has an error of order
//! `gamma` on non-Gaussian targets only. MALA and HMC have no error.

mod curvature;
mod diagnostics;
mod steps;

pub use curvature::curvature;
pub use diagnostics::{effective_sample_size, split_r_hat};

use whimbrel_core::{Error, Result, Stream, math, vector, wire};

/// A function `U` whose `exp(-U)` is integrable: a negative log-density up to a constant.
pub trait Potential {
    /// The dimension.
    fn len(&self) -> usize;
    /// Whether the dimension is zero.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Writes the gradient at `z` and returns `U(z)`, or NaN if they cannot be computed. A stochastic
    /// potential draws its minibatch here and returns unbiased estimates.
    fn potential_and_gradient(&mut self, z: &[f64], gradient: &mut [f64]) -> f64;
    /// Sets whether subsequent gradients use all samples; for potentials that draw minibatches.
    fn take_all(&mut self, _all: bool) {}
}

/// The transition kernel of a chain.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kernel {
    /// Unadjusted Langevin.
    Ula,
    /// Unadjusted Langevin with the diagonal matrix of the [`Scratch`].
    PreconditionedUla,
    /// Underdamped Langevin, with the same diagonal matrix.
    Underdamped {
        /// Per unit of time: a step keeps `exp(-friction h)` of the momentum.
        friction: f64,
    },
    /// Metropolis-adjusted Langevin.
    Mala,
    /// Hamiltonian Monte Carlo.
    Hmc {
        /// Maximal number of leapfrog steps of a move. The number is drawn, since with a fixed one
        /// trajectories may be periodic: at `gamma = 1 / L` the stiffest direction returns to its start
        /// after four steps.
        leapfrog: u32,
    },
}

impl Kernel {
    /// The names of all kernels in jobs.
    pub const NAMES: [&str; 5] = ["ula", "preconditioned-ula", "underdamped", "mala", "hmc"];

    /// The default friction.
    pub const FRICTION: f64 = 1.0;
    /// The default bound on leapfrog steps.
    pub const LEAPFROG: u32 = 10;

    /// The kernel of this name, with default settings.
    pub fn named(name: &str) -> Option<Self> {
        Some(match name {
            "ula" => Self::Ula,
            "preconditioned-ula" => Self::PreconditionedUla,
            "underdamped" => Self::Underdamped { friction: Self::FRICTION },
            "mala" => Self::Mala,
            "hmc" => Self::Hmc { leapfrog: Self::LEAPFROG },
            _ => return None,
        })
    }

    /// The name in jobs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ula => "ula",
            Self::PreconditionedUla => "preconditioned-ula",
            Self::Underdamped { .. } => "underdamped",
            Self::Mala => "mala",
            Self::Hmc { .. } => "hmc",
        }
    }

    /// Whether moves are accepted or rejected, so that the target itself is stationary.
    pub fn is_adjusted(self) -> bool {
        matches!(self, Self::Mala | Self::Hmc { .. })
    }

    /// Moves the chain by one step. Allocates nothing except the first momentum.
    ///
    /// A divergent chain is an error that states the step and a stable one; the chain keeps its last
    /// position. Adjusted kernels reject such moves instead.
    pub fn step<P: Potential + ?Sized>(
        self,
        state: &mut ChainState,
        potential: &mut P,
        gamma: f64,
        stream: &mut Stream,
        scratch: &mut Scratch,
    ) -> Result<()> {
        assert!(gamma > 0.0 && gamma.is_finite(), "{gamma} is not a step");
        assert_eq!(state.position.len(), scratch.gradient.len(), "lengths differ");
        match self {
            Self::Mala => adjusted(1, state, potential, gamma, stream, scratch),
            Self::Hmc { leapfrog } => {
                let count = 1 + stream.below(u64::from(leapfrog)) as u32;
                adjusted(count, state, potential, gamma, stream, scratch)
            }
            _ => self.unadjusted(state, potential, gamma, stream, scratch),
        }
    }

    fn unadjusted<P: Potential + ?Sized>(
        self,
        state: &mut ChainState,
        potential: &mut P,
        gamma: f64,
        stream: &mut Stream,
        scratch: &mut Scratch,
    ) -> Result<()> {
        let h = (2.0 * gamma).sqrt();
        scratch.proposal.copy_from_slice(&state.position);
        let (z, gradient) = (&mut scratch.proposal, &mut scratch.gradient);
        if let Self::Underdamped { friction } = self {
            if state.momentum.is_empty() {
                state.momentum.resize(z.len(), 0.0);
                stream.fill_normal(&mut state.momentum);
            }
            stream.fill_normal(&mut scratch.noise);
            scratch.momentum.copy_from_slice(&state.momentum);
            steps::drift(z, &scratch.momentum, &scratch.roots, 0.5 * h);
            potential.potential_and_gradient(z, gradient);
            gradient.iter_mut().zip(&scratch.roots).for_each(|(g, root)| *g *= root);
            let keep = math::exp(-friction * h);
            steps::kick_and_refresh(&mut scratch.momentum, gradient, &scratch.noise, 0.5 * h, keep);
            steps::drift(z, &scratch.momentum, &scratch.roots, 0.5 * h);
        } else {
            stream.fill_normal(&mut scratch.noise);
            potential.potential_and_gradient(z, gradient);
            if self == Self::Ula {
                steps::langevin(z, gradient, &scratch.noise, gamma, h);
            } else {
                let scales = (&scratch.diagonal[..], &scratch.roots[..]);
                steps::preconditioned(z, gradient, &scratch.noise, scales, gamma, h);
            }
        }
        if vector::norm_inf(&scratch.proposal) > state.bound
            || !vector::all_finite(&scratch.proposal)
        {
            let diagonal = (self != Self::Ula).then_some(&scratch.diagonal[..]);
            state.bound = curvature::checked_bound(
                potential,
                &state.position,
                &scratch.proposal,
                diagonal,
                [gamma, scratch.unit],
            )?;
        }
        std::mem::swap(&mut state.position, &mut scratch.proposal);
        if let Self::Underdamped { .. } = self {
            std::mem::swap(&mut state.momentum, &mut scratch.momentum);
        }
        Ok(())
    }
}

/// `count` leapfrog steps from a fresh momentum, accepted with probability `min(1, exp(H - H'))`,
/// `H = U(z) + |v|^2 / 2`.
fn adjusted<P: Potential + ?Sized>(
    count: u32,
    state: &mut ChainState,
    potential: &mut P,
    gamma: f64,
    stream: &mut Stream,
    scratch: &mut Scratch,
) -> Result<()> {
    let h = (2.0 * gamma).sqrt();
    let Scratch { gradient, proposal: z, noise: v, .. } = scratch;
    stream.fill_normal(v);
    let uniform = stream.uniform_open();
    z.copy_from_slice(&state.position);
    let before = potential.potential_and_gradient(z, gradient);
    if !before.is_finite() {
        return Err(Error::numerical("the potential is not finite at the state of the chain"));
    }
    let start = before + 0.5 * vector::norm2_squared(v);
    let mut end = f64::NAN;
    vector::axpy(v, -0.5 * h, gradient);
    for i in 1..=count {
        vector::axpy(z, h, v);
        end = potential.potential_and_gradient(z, gradient);
        vector::axpy(v, if i < count { -h } else { -0.5 * h }, gradient);
    }
    end += 0.5 * vector::norm2_squared(v);
    state.proposed += 1;
    // A move to a non-finite energy is rejected.
    if math::ln(uniform) < start - end && end.is_finite() {
        state.accepted += 1;
        std::mem::swap(&mut state.position, z);
    }
    Ok(())
}

/// The state of a chain.
#[derive(Clone, Debug, PartialEq)]
pub struct ChainState {
    /// `z`.
    pub position: Vec<f64>,
    /// The momentum; empty until a kernel with momentum has moved.
    pub momentum: Vec<f64>,
    pub proposed: u64,
    pub accepted: u64,
    /// Size of a coordinate beyond which the chain is checked for divergence.
    bound: f64,
}

wire!(ChainState { position, momentum, proposed, accepted, bound });

impl ChainState {
    pub fn at(position: Vec<f64>) -> Self {
        let bound = curvature::GROWTH * (1.0 + vector::norm_inf(&position));
        Self { position, momentum: Vec::new(), proposed: 0, accepted: 0, bound }
    }
}

/// Buffers of a step, and the preconditioner of `preconditioned-ula` and `underdamped`. Steps rely on the
/// preconditioner alone, so one instance serves any number of chains of its dimension.
#[derive(Clone, Debug)]
pub struct Scratch {
    gradient: Vec<f64>,
    noise: Vec<f64>,
    proposal: Vec<f64>,
    momentum: Vec<f64>,
    diagonal: Vec<f64>,
    roots: Vec<f64>,
    /// The unit of steps in messages.
    pub unit: f64,
}

impl Scratch {
    /// Buffers for chains of this dimension, with the identity as preconditioner.
    pub fn new(len: usize) -> Self {
        let zeros = || vec![0.0; len];
        Self {
            gradient: zeros(),
            noise: zeros(),
            proposal: zeros(),
            momentum: zeros(),
            diagonal: vec![1.0; len],
            roots: vec![1.0; len],
            unit: 1.0,
        }
    }

    /// Sets the diagonal, in the unit of a variance relative to `gamma`; refuses entries that are
    /// not positive and finite.
    pub fn precondition(&mut self, diagonal: &[f64]) -> Result<()> {
        assert_eq!(diagonal.len(), self.diagonal.len(), "lengths differ");
        if let Some(at) = diagonal.iter().position(|d| !(*d > 0.0 && d.is_finite())) {
            let what = format!("entry {} of the preconditioner is {}", at + 1, diagonal[at]);
            return Err(Error::numerical(format!("{what}, not a positive number")));
        }
        self.diagonal.copy_from_slice(diagonal);
        self.roots.iter_mut().zip(diagonal).for_each(|(root, d)| *root = d.sqrt());
        Ok(())
    }
}
