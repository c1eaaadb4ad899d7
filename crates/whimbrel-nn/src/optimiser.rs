//! Optimisers of flat vectors: SGD with momentum, and Adam, with weight decay and a proximal term.

use whimbrel_core::kernel;

use crate::{Role, Tensor};

/// The rule of a step. Weight decay adds `weight_decay w` to the gradient.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Optimiser {
    /// `v <- momentum v + g`, `w <- w - step v`.
    Sgd {
        /// Decay factor of the velocity; 0 for plain SGD.
        momentum: f32,
        /// The coefficient of `w` in the gradient.
        weight_decay: f32,
    },
    /// Kingma and Ba (2015), Algorithm 1, with bias correction.
    Adam {
        /// Decay factor of the mean gradient.
        beta1: f32,
        /// Decay factor of the mean squared gradient.
        beta2: f32,
        /// Added to the root mean square.
        epsilon: f32,
        /// The coefficient of `w` in the gradient.
        weight_decay: f32,
    },
}

/// The state of an optimiser. Vectors are empty until a step needs them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OptimiserState {
    pub steps: u64,
    /// The velocity, or Adam's mean gradient.
    pub first: Vec<f32>,
    /// Adam's mean squared gradient.
    pub second: Vec<f32>,
}

/// The proximal term `mu / 2 |w - centre|^2`.
#[derive(Clone, Copy, Debug)]
pub struct Proximal<'a> {
    pub mu: f32,
    pub centre: &'a [f32],
}

impl Default for Optimiser {
    fn default() -> Self {
        Self::PLAIN
    }
}

impl Optimiser {
    /// Plain stochastic gradient descent.
    pub const PLAIN: Self = Self::Sgd { momentum: 0.0, weight_decay: 0.0 };

    /// Adam with the constants of the paper.
    pub const fn adam(weight_decay: f32) -> Self {
        Self::Adam { beta1: 0.9, beta2: 0.999, epsilon: 1e-8, weight_decay }
    }

    /// One step. `gradient` comes from a learner: running statistics take their new values from it,
    /// without weight decay and proximal term.
    pub fn step(
        self,
        state: &mut OptimiserState,
        step: f32,
        proximal: Option<Proximal<'_>>,
        tensors: &[Tensor],
        gradient: &[f32],
        w: &mut [f32],
    ) {
        assert_eq!(gradient.len(), w.len(), "lengths differ");
        state.steps += 1;
        let adam = matches!(self, Self::Adam { .. });
        let momentum = matches!(self, Self::Sgd { momentum, .. } if momentum != 0.0);
        if adam || momentum {
            state.first.resize(w.len(), 0.0);
        }
        if adam {
            state.second.resize(w.len(), 0.0);
        }
        let (mu, centre) = proximal.map_or((0.0, None), |p| (p.mu, Some(p.centre)));
        for (from, to, statistic) in runs(tensors) {
            let (w, gradient) = (&mut w[from..to], &gradient[from..to]);
            if statistic {
                w.copy_from_slice(gradient);
                continue;
            }
            let centre = centre.map_or(gradient, |centre| &centre[from..to]);
            match self {
                Self::Sgd { weight_decay, .. } if !momentum => {
                    plain(w, gradient, centre, mu, weight_decay, step);
                }
                Self::Sgd { momentum, weight_decay } => {
                    let velocity = &mut state.first[from..to];
                    with_momentum(w, velocity, gradient, centre, mu, weight_decay, momentum, step);
                }
                Self::Adam { beta1, beta2, epsilon, weight_decay } => {
                    let power = i32::try_from(state.steps).unwrap_or(i32::MAX);
                    let constants = Constants {
                        mu,
                        weight_decay,
                        beta1,
                        beta2,
                        step: step / (1.0 - f64::from(beta1).powi(power)) as f32,
                        correction: (1.0 / (1.0 - f64::from(beta2).powi(power))) as f32,
                        epsilon,
                    };
                    let (first, second) = (&mut state.first[from..to], &mut state.second[from..to]);
                    adam_step(w, first, second, gradient, centre, constants);
                }
            }
        }
    }
}

/// Ranges of the flat vector, with whether they are running statistics.
fn runs(tensors: &[Tensor]) -> impl Iterator<Item = (usize, usize, bool)> {
    let mut next = 0;
    let statistic = |tensor: &Tensor| tensor.role == Role::Statistic;
    tensors.chunk_by(move |a, b| statistic(a) == statistic(b)).map(move |run| {
        let from = next;
        next += run.iter().map(Tensor::len).sum::<usize>();
        (from, next, statistic(&run[0]))
    })
}

kernel! {
    fn plain(w: &mut [f32], gradient: &[f32], centre: &[f32], mu: f32, decay: f32, step: f32) {
        for ((w, g), c) in w.iter_mut().zip(gradient).zip(centre) {
            *w -= step * derivative(*w, *g, *c, mu, decay);
        }
    }
}

kernel! {
    fn with_momentum(
        w: &mut [f32],
        velocity: &mut [f32],
        gradient: &[f32],
        centre: &[f32],
        mu: f32,
        decay: f32,
        momentum: f32,
        step: f32,
    ) {
        for (((w, v), g), c) in w.iter_mut().zip(velocity).zip(gradient).zip(centre) {
            *v = momentum * *v + derivative(*w, *g, *c, mu, decay);
            *w -= step * *v;
        }
    }
}

/// The constants of one step of Adam; `step` and `correction` include the bias corrections.
#[derive(Clone, Copy)]
struct Constants {
    mu: f32,
    weight_decay: f32,
    beta1: f32,
    beta2: f32,
    step: f32,
    correction: f32,
    epsilon: f32,
}

kernel! {
    fn adam_step(
        w: &mut [f32],
        first: &mut [f32],
        second: &mut [f32],
        gradient: &[f32],
        centre: &[f32],
        c: Constants,
    ) {
        let moments = first.iter_mut().zip(second);
        for (((w, (m, v)), g), centre) in w.iter_mut().zip(moments).zip(gradient).zip(centre) {
            let g = derivative(*w, *g, *centre, c.mu, c.weight_decay);
            *m = c.beta1 * *m + (1.0 - c.beta1) * g;
            *v = c.beta2 * *v + (1.0 - c.beta2) * g * g;
            *w -= c.step * *m / ((c.correction * *v).sqrt() + c.epsilon);
        }
    }
}

/// The gradient with weight decay and proximal term; `centre` is ignored if `mu` is zero.
#[inline(always)]
fn derivative(w: f32, g: f32, centre: f32, mu: f32, decay: f32) -> f32 {
    let pull = if mu == 0.0 { 0.0 } else { mu * (w - centre) };
    g + decay * w + pull
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensors() -> Vec<Tensor> {
        vec![
            Tensor::new("a", &[2], Role::Weight),
            Tensor::new("mean", &[1], Role::Statistic),
            Tensor::new("b", &[1], Role::Head),
        ]
    }

    #[test]
    fn momentum_decay_and_proximal_term_by_hand() {
        let optimiser = Optimiser::Sgd { momentum: 0.5, weight_decay: 0.25 };
        let (mut state, mut w) = (OptimiserState::default(), vec![4.0, 0.0, 9.0, -8.0]);
        let centre = [2.0, 0.0, 0.0, 0.0];
        let proximal = Some(Proximal { mu: 0.5, centre: &centre });
        optimiser.step(&mut state, 0.5, proximal, &tensors(), &[1.0, 1.0, 3.0, 1.0], &mut w);
        // g = (1 + 1 + 1, 1, -, 1 - 2 - 4), the statistic is replaced
        assert_eq!(w, [2.5, -0.5, 3.0, -5.5]);
        optimiser.step(&mut state, 0.5, None, &tensors(), &[0.0, 0.0, 5.0, 0.0], &mut w);
        // v = (1.5 + 0.625, 0.5 - 0.125, -, -2.5 - 1.375)
        assert_eq!(w, [2.5 - 1.0625, -0.5 - 0.1875, 5.0, -5.5 + 1.9375]);
        assert_eq!(state.steps, 2);
    }

    #[test]
    fn the_first_step_of_adam_is_the_sign() {
        let (mut state, mut w) = (OptimiserState::default(), vec![1.0, 1.0, 0.0, 1.0]);
        let gradient = [3.0, -0.01, 2.0, 0.5];
        Optimiser::adam(0.0).step(&mut state, 0.1, None, &tensors(), &gradient, &mut w);
        assert_eq!(w.len(), 4);
        for (w, right) in w.iter().zip([0.9, 1.1, 2.0, 0.9]) {
            // epsilon against |g| = 0.01 is 1e-6 of the step.
            assert!((w - right).abs() < 1e-6, "{w}");
        }
        let resumed = state.clone();
        let (mut state_b, mut w_b) = (resumed, w.clone());
        Optimiser::adam(0.0).step(&mut state, 0.1, None, &tensors(), &gradient, &mut w);
        Optimiser::adam(0.0).step(&mut state_b, 0.1, None, &tensors(), &gradient, &mut w_b);
        assert_eq!((w, state), (w_b, state_b));
    }

    #[test]
    fn no_proximal_weight_leaves_the_centre_out() {
        let (mut a, mut b) = (vec![1.0, 2.0, 3.0, 4.0], vec![1.0, 2.0, 3.0, 4.0]);
        let gradient = [0.1, 0.2, 0.3, 0.4];
        let centre = [f32::NAN; 4];
        let none = Some(Proximal { mu: 0.0, centre: &centre });
        let optimiser = Optimiser::PLAIN;
        optimiser.step(&mut OptimiserState::default(), 0.1, none, &tensors(), &gradient, &mut a);
        optimiser.step(&mut OptimiserState::default(), 0.1, None, &tensors(), &gradient, &mut b);
        assert_eq!(a, b);
    }
}
