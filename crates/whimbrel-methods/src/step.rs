//! Step sizes.

use whimbrel_core::{Error, Result, StepSize, math};

/// The step size over the rounds.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Schedule {
    /// The same in every round.
    Constant(StepSize),
    /// `initial (1 + k/delay)^-power` in round k.
    Decreasing {
        /// The first step.
        initial: StepSize,
        /// The decay exponent; stochastic approximation requires (1/2, 1].
        power: f64,
        /// The number of rounds after which the step has fallen to `2^-power`.
        delay: f64,
    },
}

impl Schedule {
    /// The first step of a decreasing schedule, by default.
    pub const INITIAL: f64 = 1.0;
    /// The exponent of its decay.
    pub const POWER: f64 = 0.6;
    /// The time scale of its decay, in rounds.
    pub const DELAY: f64 = 10.0;

    /// A constant step.
    pub fn constant(gamma: f64) -> Result<Self> {
        Ok(Self::Constant(StepSize::new(gamma)?))
    }

    /// A decreasing step.
    pub fn decreasing(initial: f64, power: f64, delay: f64) -> Result<Self> {
        if !(0.0..=1.0).contains(&power) {
            return Err(Error::config(format!("power = {power} is not in [0, 1]")));
        }
        if !(delay > 0.0 && delay.is_finite()) {
            return Err(Error::config(format!("delay = {delay} is not positive")));
        }
        Ok(Self::Decreasing { initial: StepSize::new(initial)?, power, delay })
    }

    /// The step of round `k`, counted from zero.
    pub fn at(&self, k: u32) -> f64 {
        match *self {
            Self::Constant(gamma) => gamma.value(),
            Self::Decreasing { initial, power, delay } => {
                initial.value() * math::pow(1.0 + f64::from(k) / delay, -power)
            }
        }
    }
}

/// `omega + (1 - p)(1 + omega)/p`: the variance constant of compression and sampling together
/// (Theorem 4 of FedEM).
pub fn omega_with_sampling(omega: f64, p: f64) -> f64 {
    omega + (1.0 - p) * (1.0 + omega) / p
}

/// The least participation probability at which automatic steps omit the theorems' constants. Below it
/// memories are outdated: at one tenth 10 of 16 fits with full covariances collapsed without the
/// constant, at one fifth none did.
pub const OFTEN_HEARD: f64 = 0.2;

/// The default step: Theorem 4's compression bound
/// `p sqrt(n) / (2 sqrt(2) L (1 + omega) sqrt(omega_p))` with `L = 1`, without its `2 sqrt(2)` unless
/// participation is rare ([`OFTEN_HEARD`]), and at most `v_min / (2 L_W) = 1/2`; one without noise.
/// `n_eff` is `1 / sum w_i^2` with the clients' shares `w_i`: the number of equal clients whose mean has
/// the same variance.
pub fn auto_step(omega: f64, p: f64, n_eff: f64) -> f64 {
    let omega_p = omega_with_sampling(omega, p);
    if omega_p == 0.0 {
        return 1.0;
    }
    let constant = if p < OFTEN_HEARD { 8f64.sqrt() } else { 1.0 };
    (p * n_eff.sqrt() / (constant * (1.0 + omega) * omega_p.sqrt())).min(0.5)
}

/// The share of the step without compression that automatic levels keep.
const STEP_KEPT: f64 = 0.7;
/// The most automatic levels.
const LEVELS_MAX: u16 = 1024;

/// The least number of levels at which compression takes at most three tenths of the automatic step:
/// `auto_step(omega(levels), p, 1) >= 0.7 auto_step(0, p, 1)`. The shares of the clients are unknown
/// when a codec is agreed, so that one client may hold nearly all rows (`n_eff = 1`).
pub fn auto_levels(omega: impl Fn(u16) -> f64, p: f64) -> u16 {
    let least = STEP_KEPT * auto_step(0.0, p, 1.0).min(0.5);
    (1..LEVELS_MAX).find(|levels| auto_step(omega(*levels), p, 1.0) >= least).unwrap_or(LEVELS_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_decreasing_step_starts_at_its_first_value_and_falls_at_its_power() {
        let schedule = Schedule::decreasing(0.5, 0.6, 10.0).unwrap();
        assert_eq!(schedule.at(0), 0.5);
        let ratio = schedule.at(10_230) / schedule.at(310);
        assert!((ratio - 32f64.powf(-0.6)).abs() < 1e-12, "{ratio}");
    }

    #[test]
    fn auto_is_one_without_noise_and_smaller_with_it() {
        assert_eq!(auto_step(0.0, 1.0, 10.0), 1.0);
        // n = 4, omega = 3, p = 0.5: omega_p = 7, bound 0.5 * 2 / (4 * 2.646).
        assert!((auto_step(3.0, 0.5, 4.0) - 1.0 / (4.0 * 7f64.sqrt())).abs() < 1e-15);
        assert_eq!(auto_step(0.1, 1.0, 100.0), 0.5);
        // omega = 0, p = 0.1: omega_p = 9, and the theorem's constant stays in.
        assert!((auto_step(0.0, 0.1, 100.0) - 1.0 / (3.0 * 8f64.sqrt())).abs() < 1e-15);
    }

    /// Buckets of 64 coordinates with the Euclidean norm.
    #[test]
    fn automatic_levels_grow_as_clients_take_part_less_often() {
        let omega =
            |s: u16| if s <= 4 { 8.0 / f64::from(s) - 1.0 } else { 16.0 / f64::from(s).powi(2) };
        let levels = [1.0, 0.5, 0.2, 0.1].map(|p| auto_levels(omega, p));
        assert_eq!(levels, [4, 9, 9, 8]);
        assert_eq!(auto_levels(|_| 0.0, 1.0), 1);
        assert_eq!(auto_levels(|_| 9.0, 1.0), LEVELS_MAX);
    }

    #[test]
    fn impossible_steps_are_refused() {
        assert!(Schedule::constant(0.0).is_err());
        assert!(Schedule::constant(f64::NAN).is_err());
        assert!(Schedule::decreasing(1.0, 1.5, 10.0).is_err());
        assert!(Schedule::decreasing(1.0, 0.5, 0.0).is_err());
    }
}
