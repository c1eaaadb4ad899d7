//! Federations whose labels come from a mixture of logistic models.
//!
//! Marfoq, Neglia, Bellet, Kameni and Vidal (*Federated multi-task learning under a mixture of
//! distributions*, 2021, App. I.1.5). Components have `theta_m ~ U[-1, 1]^d`. Client `t` has
//! `pi_t ~ Dir(alpha)` and `n_t = min(50 + m_t, 1000)` samples, `ln m_t ~ N(4, 2^2)`. A sample has
//! `x ~ U[-1, 1]^d`, `z ~ pi_t`, `e ~ N(0, 1)` and `y ~ Bernoulli(sigmoid(<x, theta_z> + e))`. The
//! text prints the noise as a vector; a logit takes a number.
//!
//! The draws of client `t` depend on the key and `t` only.

use crate::split::client_name;
use crate::{Error, Result};
use rayon::prelude::*;
use whimbrel_core::vector::dot;
use whimbrel_core::{Inputs, Key, Samples, Stream, Targets, math};

/// A mixture of logistic models to draw. Default: the paper's.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LogisticMixtureSpec {
    /// Default 300.
    pub clients: usize,
    /// Default 3.
    pub components: usize,
    /// The number of features; default 150.
    pub dimension: usize,
    /// The concentration of the clients' weights; with 0, client `t` has component `t mod components`
    /// only. Default 0.4.
    pub alpha: f64,
    /// Additional test samples of each client; default 0.
    pub test_samples: usize,
}

/// A drawn federation.
#[derive(Debug, Clone, PartialEq)]
pub struct LogisticMixture {
    /// The clients' names and samples.
    pub clients: Vec<(String, Samples)>,
    /// The additional test samples by client; empty if none were requested.
    pub tests: Vec<Samples>,
    pub truth: LogisticTruth,
}

/// The law of a drawn federation.
#[derive(Debug, Clone, PartialEq)]
pub struct LogisticTruth {
    /// The parameters of each component.
    pub components: Vec<Vec<f64>>,
    /// The weights of the components, by client.
    pub weights: Vec<Vec<f64>>,
}

impl Default for LogisticMixtureSpec {
    fn default() -> Self {
        Self { clients: 300, components: 3, dimension: 150, alpha: 0.4, test_samples: 0 }
    }
}

impl LogisticMixtureSpec {
    /// Draws the components, and each client's weights and samples.
    pub fn draw(&self, key: Key) -> Result<LogisticMixture> {
        self.check()?;
        let mut stream = key.child(tag::COMPONENTS).stream();
        let mut theta = || (0..self.dimension).map(|_| 2.0 * stream.uniform() - 1.0).collect();
        let components: Vec<Vec<f64>> = (0..self.components).map(|_| theta()).collect();
        let client = |t: usize| {
            let key = key.child(tag::CLIENTS).child(t as u64);
            let pi = self.weights(t, key.child(tag::WEIGHTS));
            let rows = |tag, count| self.samples(&components, &pi, count, key.child(tag));
            let own = rows(tag::SAMPLES, sample_count(key.child(tag::COUNT)))?;
            let test = match self.test_samples {
                0 => None,
                count => Some(rows(tag::TESTS, count)?),
            };
            Ok((own, test, pi))
        };
        let drawn: Vec<_> = (0..self.clients).into_par_iter().map(client).collect::<Result<_>>()?;
        let (mut clients, mut tests, mut weights) = (Vec::new(), Vec::new(), Vec::new());
        for (t, (own, test, pi)) in drawn.into_iter().enumerate() {
            clients.push((client_name(t, self.clients), own));
            tests.extend(test);
            weights.push(pi);
        }
        Ok(LogisticMixture { clients, tests, truth: LogisticTruth { components, weights } })
    }

    fn weights(&self, t: usize, key: Key) -> Vec<f64> {
        if self.alpha > 0.0 {
            return key.stream().dirichlet(&vec![self.alpha; self.components]);
        }
        (0..self.components).map(|m| f64::from(u8::from(m == t % self.components))).collect()
    }

    fn samples(
        &self,
        components: &[Vec<f64>],
        pi: &[f64],
        count: usize,
        key: Key,
    ) -> Result<Samples> {
        let mut features = key.child(tag::FEATURES).stream();
        let mut labels = key.child(tag::LABELS).stream();
        let mut inputs = vec![0.0; count * self.dimension];
        let mut of = Vec::with_capacity(count);
        let mut wide = vec![0.0; self.dimension];
        let mut words = vec![0; self.dimension.div_ceil(2)];
        for x in inputs.chunks_exact_mut(self.dimension) {
            fill_uniform(&mut features, &mut words, x);
            wide.iter_mut().zip(&*x).for_each(|(wide, x)| *wide = f64::from(*x));
            let z = labels.categorical(pi);
            let logit = dot(&wide, &components[z]) + labels.normal();
            of.push(u16::from(labels.uniform() < 1.0 / (1.0 + math::exp(-logit))));
        }
        let targets = Targets::Classes { of, count: 2 };
        Ok(Samples::new(vec![self.dimension], Inputs::Real(inputs), targets)?)
    }

    fn check(&self) -> Result<()> {
        let Self { clients, components, dimension, alpha, .. } = *self;
        if clients == 0 || components == 0 || dimension == 0 {
            return Err(Error::config(format!(
                "{clients} clients, {components} components, {dimension} dimensions: all must be positive"
            )));
        }
        if !(alpha >= 0.0 && alpha.is_finite()) {
            let what = format!("alpha = {alpha} is not the concentration of a Dirichlet law");
            return Err(Error::config(what).hint("give a positive number, or 0 for one component"));
        }
        Ok(())
    }
}

/// The noise of a logit on a grid: `P(y = 1 | u) = sum_k w_k sigmoid(u + e_k)` by the trapezoid
/// rule, exact to rounding with this step and these ends.
const NOISE_STEP: f64 = 0.5;
const NOISE_POINTS: usize = 33;

impl LogisticTruth {
    /// [`bayes_accuracy`](Self::bayes_accuracy) of each client on its test samples.
    pub fn bayes_accuracies(&self, tests: &[Option<&Samples>]) -> Vec<Option<f64>> {
        let each = tests.par_iter().enumerate();
        each.map(|(t, test)| test.and_then(|test| self.bayes_accuracy(t, test))).collect()
    }

    /// The accuracy on these samples of a client's Bayes rule, which knows the components, the
    /// client's weights and the law of the noise. `None` without samples.
    pub fn bayes_accuracy(&self, client: usize, samples: &Samples) -> Option<f64> {
        let (Inputs::Real(inputs), Targets::Classes { of, .. }) =
            (&samples.inputs, &samples.targets)
        else {
            return None;
        };
        let noise = noise();
        let rows = inputs.chunks_exact(samples.width()).zip(of);
        let right = rows.filter(|(x, y)| {
            let p = self.positive_under(&noise, client, x);
            u16::from(p > 0.5) == **y
        });
        (!of.is_empty()).then(|| right.count() as f64 / of.len() as f64)
    }

    /// `P(y = 1 | x)` at a client.
    pub fn positive(&self, client: usize, x: &[f32]) -> f64 {
        self.positive_under(&noise(), client, x)
    }

    fn positive_under(&self, noise: &[[f64; 2]], client: usize, x: &[f32]) -> f64 {
        let x: Vec<f64> = x.iter().map(|x| f64::from(*x)).collect();
        let weighted = self.weights[client].iter().zip(&self.components);
        weighted
            .filter(|(pi, _)| **pi > 0.0)
            .map(|(pi, theta)| {
                let odds = math::exp(-dot(&x, theta));
                pi * noise.iter().map(|[w, factor]| w / (1.0 + odds * factor)).sum::<f64>()
            })
            .sum()
    }
}

/// The weight and `exp(-e)` of each value of the noise.
fn noise() -> [[f64; 2]; NOISE_POINTS] {
    let middle = (NOISE_POINTS / 2) as f64;
    let at = |k: usize| NOISE_STEP * (k as f64 - middle);
    let mut grid = std::array::from_fn(|k| [math::exp(-0.5 * at(k) * at(k)), math::exp(-at(k))]);
    let total: f64 = grid.iter().map(|[w, _]| w).sum();
    grid.iter_mut().for_each(|[w, _]| *w /= total);
    grid
}

/// `min(50 + m, 1000)` with `ln m ~ N(4, 2^2)`.
fn sample_count(key: Key) -> usize {
    let m = math::exp(4.0 + 2.0 * key.stream().normal());
    (50.0 + m.floor()).min(1000.0) as usize
}

/// Uniform in [-1, 1), multiples of 2^-23, two from each word.
fn fill_uniform(stream: &mut Stream, words: &mut [u64], out: &mut [f32]) {
    const STEP: f32 = 1.0 / (1u32 << 23) as f32;
    stream.fill(words);
    for (pair, word) in out.chunks_mut(2).zip(words) {
        for (x, bits) in pair.iter_mut().zip([*word >> 40, *word & 0xFF_FFFF]) {
            *x = bits as f32 * STEP - 1.0;
        }
    }
}

/// Key tags.
mod tag {
    pub const COMPONENTS: u64 = 1;
    pub const CLIENTS: u64 = 2;
    pub const WEIGHTS: u64 = 3;
    pub const COUNT: u64 = 4;
    pub const SAMPLES: u64 = 5;
    pub const TESTS: u64 = 6;
    pub const FEATURES: u64 = 7;
    pub const LABELS: u64 = 8;
}
