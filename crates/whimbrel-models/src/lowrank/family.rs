//! The distributions of a cell: `p(y; theta)` proportional to `exp(y theta - psi(theta))`.

use whimbrel_core::math::{exp, ln, ln_1p};
use whimbrel_core::{Error, Result, Stream};

/// Natural parameters of counts and of yes-or-no values stay within plus and minus this.
pub const THETA_MAX: f64 = 30.0;

/// How the value of a cell is distributed given its natural parameter `theta`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Family {
    /// A number with mean `theta`.
    Gaussian,
    /// A count with log-mean `theta`.
    Poisson,
    /// 0 or 1 with log-odds `theta`.
    Bernoulli,
}

impl Family {
    /// Every family, in the order of their codes.
    pub const ALL: [Self; 3] = [Self::Gaussian, Self::Poisson, Self::Bernoulli];

    /// The name used in jobs and reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Gaussian => "gaussian",
            Self::Poisson => "poisson",
            Self::Bernoulli => "bernoulli",
        }
    }

    /// The number that stands for it in an artifact.
    pub fn code(self) -> f64 {
        match self {
            Self::Gaussian => 0.0,
            Self::Poisson => 1.0,
            Self::Bernoulli => 2.0,
        }
    }

    /// The family of a code.
    pub fn from_code(code: f64) -> Result<Self> {
        let found = Self::ALL.into_iter().find(|family| family.code() == code);
        found.ok_or_else(|| Error::data(format!("{code} stands for no family of cells")))
    }

    /// Refuses values that the family cannot take; says what would be right.
    pub fn check(self, y: f64) -> Result<(), &'static str> {
        let fits = match self {
            Self::Gaussian => y.is_finite(),
            Self::Poisson => y >= 0.0 && y.fract() == 0.0 && y <= COUNT_MAX,
            Self::Bernoulli => y == 0.0 || y == 1.0,
        };
        let wanted = match self {
            Self::Gaussian => "a finite number",
            Self::Poisson => "a whole number from 0 to 1e12",
            Self::Bernoulli => "0 or 1",
        };
        if fits { Ok(()) } else { Err(wanted) }
    }

    /// `theta`, kept in the box where the family has one.
    #[inline(always)]
    pub fn boxed(self, theta: f64) -> f64 {
        match self {
            Self::Gaussian => theta,
            Self::Poisson | Self::Bernoulli => theta.clamp(-THETA_MAX, THETA_MAX),
        }
    }

    /// `psi(theta)`.
    #[inline(always)]
    pub fn psi(self, theta: f64) -> f64 {
        let theta = self.boxed(theta);
        match self {
            Self::Gaussian => 0.5 * theta * theta,
            Self::Poisson => exp(theta),
            Self::Bernoulli => theta.max(0.0) + ln_1p(exp(-theta.abs())),
        }
    }

    /// `psi(theta + t) - psi(theta) - psi'(theta) t`, without the box: to rounding of its own, however
    /// small `t` is.
    pub fn psi_remainder(self, theta: f64, t: f64) -> f64 {
        let small = t.abs() < REMAINDER_SERIES;
        match self {
            Self::Gaussian => 0.5 * t * t,
            Self::Poisson if small => {
                exp(theta) * (0.5 * t * t) * (1.0 + t / 3.0 * (1.0 + t / 4.0 * (1.0 + t / 5.0)))
            }
            Self::Poisson => exp(theta + t) - exp(theta) * (1.0 + t),
            Self::Bernoulli => {
                let mean = 1.0 / (1.0 + exp(-theta));
                if small {
                    // psi''' = psi'' (1 - 2 psi'), psi'''' = psi'' (1 - 6 psi'')
                    let (bend, skew) = (mean * (1.0 - mean), 1.0 - 2.0 * mean);
                    let fourth = (1.0 - 6.0 * bend) + t / 5.0 * skew * (1.0 - 12.0 * bend);
                    return bend * (0.5 * t * t) * (1.0 + t / 3.0 * (skew + t / 4.0 * fourth));
                }
                let soft = |theta: f64| theta.max(0.0) + ln_1p(exp(-theta.abs()));
                soft(theta + t) - soft(theta) - mean * t
            }
        }
    }

    /// `psi'(theta)`, the mean.
    #[inline(always)]
    pub fn mean(self, theta: f64) -> f64 {
        let theta = self.boxed(theta);
        match self {
            Self::Gaussian => theta,
            Self::Poisson => exp(theta),
            Self::Bernoulli => 1.0 / (1.0 + exp(-theta)),
        }
    }

    /// `psi''` as a function of the mean.
    #[inline(always)]
    pub fn variance(self, mean: f64) -> f64 {
        match self {
            Self::Gaussian => 1.0,
            Self::Poisson => mean,
            Self::Bernoulli => mean * (1.0 - mean),
        }
    }

    /// The `theta` whose mean this is, for means kept away from the ends of their range.
    pub fn link(self, mean: f64) -> f64 {
        match self {
            Self::Gaussian => mean,
            Self::Poisson => self.boxed(ln(mean.max(MEAN_MIN))),
            Self::Bernoulli => {
                let p = mean.clamp(MEAN_MIN, 1.0 - MEAN_MIN);
                ln(p) - ln(1.0 - p)
            }
        }
    }

    /// Twice the log-likelihood ratio between the value's own mean and `mean`.
    pub fn deviance(self, y: f64, mean: f64) -> f64 {
        // y ln(y/mean), which is 0 at y = 0
        let entropy = |y: f64, mean: f64| if y > 0.0 { y * (ln(y) - ln(mean)) } else { 0.0 };
        match self {
            Self::Gaussian => (y - mean) * (y - mean),
            Self::Poisson => 2.0 * (entropy(y, mean) - (y - mean)),
            Self::Bernoulli => 2.0 * (entropy(y, mean) + entropy(1.0 - y, 1.0 - mean)),
        }
    }

    /// The deviance by which models are compared: the mean is kept [`JUDGED_MEAN_MIN`] inside its
    /// range, so that a column of zeros does not make a count impossible. Every contender is judged
    /// by this one.
    pub fn judged_deviance(self, y: f64, mean: f64) -> f64 {
        let inside = match self {
            Self::Gaussian => mean,
            Self::Poisson => mean.max(JUDGED_MEAN_MIN),
            Self::Bernoulli => mean.clamp(JUDGED_MEAN_MIN, 1.0 - JUDGED_MEAN_MIN),
        };
        self.deviance(y, inside)
    }

    /// A value drawn from the family; `sd` is a Gaussian's.
    pub fn draw(self, mean: f64, sd: f64, stream: &mut Stream) -> f64 {
        match self {
            Self::Gaussian => mean + sd * stream.normal(),
            Self::Poisson => stream.poisson(mean) as f64,
            Self::Bernoulli => f64::from(u8::from(stream.uniform() < mean)),
        }
    }
}

/// Remainders of shorter steps are summed as series: what those leave out is below 1e-14 of them.
const REMAINDER_SERIES: f64 = 1e-3;
/// Counts above this lose their unit beside the sums they enter.
const COUNT_MAX: f64 = 1e12;
/// Starting means are kept so far inside their range.
const MEAN_MIN: f64 = 1e-6;
/// How far inside their range means are kept when models are compared.
pub const JUDGED_MEAN_MIN: f64 = 1e-3;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn means_and_variances_are_the_derivatives_of_psi() {
        let h = 1e-4;
        for family in Family::ALL {
            for theta in [-3.0, -0.4, 0.0, 0.7, 2.5] {
                let slope = (family.psi(theta + h) - family.psi(theta - h)) / (2.0 * h);
                let mean = family.mean(theta);
                assert!((slope - mean).abs() < 1e-6 * (1.0 + mean.abs()), "{family:?} {theta}");
                let bend = (family.mean(theta + h) - family.mean(theta - h)) / (2.0 * h);
                let variance = family.variance(mean);
                assert!((bend - variance).abs() < 1e-6 * (1.0 + variance), "{family:?} {theta}");
                assert!((family.link(mean) - theta).abs() < 1e-12, "{family:?} {theta}");
            }
        }
    }

    /// The two ways meet where one gives way to the other; far from there the differences of `psi`
    /// themselves are exact enough.
    #[test]
    fn remainders_are_those_of_a_tangent() {
        for family in Family::ALL {
            for theta in [-4.0, -0.3, 0.0, 1.2, 6.0] {
                for t in [-3.0, -0.2, 0.1, 2.0] {
                    let wanted = family.psi(theta + t) - family.psi(theta) - family.mean(theta) * t;
                    let gap = family.psi_remainder(theta, t) - wanted;
                    assert!(gap.abs() < 1e-12 * (1.0 + wanted), "{family:?} {theta} {t} {gap}");
                }
                for sign in [-1.0, 1.0] {
                    let at = |t: f64| family.psi_remainder(theta, sign * t) / (t * t);
                    let (short, long) = (at(0.999 * 1e-3), at(1.001 * 1e-3));
                    assert!((short / long - 1.0).abs() < 1e-5, "{family:?} {theta}");
                    let bend = family.variance(family.mean(theta));
                    assert!((at(1e-9) / (0.5 * bend) - 1.0).abs() < 1e-8, "{family:?} {theta}");
                }
            }
        }
    }

    #[test]
    fn deviance_is_zero_at_the_value_itself_and_twice_the_ratio_elsewhere() {
        for (family, y, theta) in [
            (Family::Gaussian, 1.5, 0.2),
            (Family::Poisson, 3.0, 0.2),
            (Family::Poisson, 0.0, -1.0),
            (Family::Bernoulli, 1.0, 0.4),
            (Family::Bernoulli, 0.0, 0.4),
        ] {
            // psi(theta) - y theta, less its minimum over theta
            let loss = family.psi(theta) - y * theta;
            let least = match family {
                Family::Gaussian => -0.5 * y * y,
                Family::Poisson if y > 0.0 => y - y * y.ln(),
                _ => 0.0,
            };
            let deviance = family.deviance(y, family.mean(theta));
            assert!((deviance - 2.0 * (loss - least)).abs() < 1e-12, "{family:?} {y}");
        }
        assert_eq!(Family::Poisson.deviance(4.0, 4.0), 0.0);
    }

    #[test]
    fn values_outside_a_family_are_refused() {
        assert!(Family::Poisson.check(2.5).is_err() && Family::Poisson.check(-1.0).is_err());
        assert!(
            Family::Poisson.check(f64::INFINITY).is_err() && Family::Poisson.check(7.0).is_ok()
        );
        assert!(Family::Bernoulli.check(0.5).is_err() && Family::Bernoulli.check(1.0).is_ok());
        assert!(Family::Gaussian.check(f64::NAN).is_err());
        assert!(Family::from_code(1.0) == Ok(Family::Poisson) && Family::from_code(7.0).is_err());
    }
}
