//! Step-size schedules.

/// A step size as a function of the round.
#[derive(Clone, Debug, PartialEq)]
pub enum Schedule {
    Constant,
    /// Multiplied by `factor` at each fraction `at` of the rounds.
    Milestones {
        /// Between 0 and 1.
        at: Vec<f64>,
        factor: f64,
    },
    /// `a_0 / sqrt(K)` in each of `K` rounds, as in the theorems.
    InverseRoot,
}

impl Schedule {
    /// The step size of a round, counted from 0.
    pub fn step(&self, first: f64, round: u32, rounds: u32) -> f64 {
        match self {
            Self::Constant => first,
            Self::Milestones { at, factor } => {
                let passed = at.iter().filter(|at| f64::from(round) >= *at * f64::from(rounds));
                passed.fold(first, |step, _| step * factor)
            }
            Self::InverseRoot => first / f64::from(rounds.max(1)).sqrt(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn milestones_take_effect_at_their_round() {
        let schedule = Schedule::Milestones { at: vec![0.5, 0.75], factor: 0.1 };
        let steps = [0, 99, 100, 149, 150, 199].map(|round| schedule.step(5.0, round, 200));
        assert_eq!(steps, [5.0, 5.0, 0.5, 0.5, 0.5 * 0.1, 0.5 * 0.1]);
        assert_eq!(Schedule::Constant.step(0.3, 7, 9), 0.3);
        assert_eq!(Schedule::InverseRoot.step(3.0, 7, 9), 1.0);
    }
}
