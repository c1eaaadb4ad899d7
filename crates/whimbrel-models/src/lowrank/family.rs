//! The distributions of a cell: `p(y; theta)` proportional to `exp(y theta - psi(theta))`.

use whimbrel_core::math::{exp, exp_above_tangent, ln, ln_1p, ln_1p_below_tangent};
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

    /// `psi(theta + t) - psi(theta) - psi'(theta) t`, without the box: to 1e-14 of itself, however
    /// small `t` is and however near the mean is to an end of its range.
    pub fn psi_remainder(self, theta: f64, t: f64) -> f64 {
        match self {
            Self::Gaussian => 0.5 * t * t,
            Self::Poisson if t > REMAINDER_LONG => exp(theta + t) - exp(theta) * (1.0 + t),
            Self::Poisson => exp(theta) * exp_above_tangent(t),
            Self::Bernoulli => {
                // psi(theta) = theta + psi(-theta), and beside the smaller mean nothing is lost.
                let (theta, t) = if theta > 0.0 { (-theta, -t) } else { (theta, t) };
                let mean = 1.0 / (1.0 + exp(-theta));
                let above = exp_above_tangent(t);
                // psi(theta + t) - psi(theta) = ln(1 + x)
                let x = mean * (above + t);
                if t > REMAINDER_LONG || x > 1.0 {
                    let soft = |theta: f64| theta.max(0.0) + ln_1p(exp(-theta.abs()));
                    return soft(theta + t) - soft(theta) - mean * t;
                }
                // ln(1 + x) - mean t
                mean * above - ln_1p_below_tangent(x)
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

/// Over longer steps `psi` itself is far above its tangent, and `e^t` alone could overflow.
const REMAINDER_LONG: f64 = 30.0;
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

    /// Family, `theta`, `t`, and the remainder to 20 digits (mpmath 1.4.1 at 60 digits).
    #[rustfmt::skip]
    #[allow(clippy::excessive_precision)]
    const REMAINDERS: [(Family, f64, f64, f64); 22] = [
        (Family::Poisson, 20.0, 0.002, 9.7097760131967778017e+2),
        (Family::Poisson, -20.0, -0.002, 4.1195604136001549047e-15),
        (Family::Poisson, 0.5, 0.001, 8.2463549093897537577e-7),
        (Family::Poisson, -1.25, 0.00095, 1.2932623965004099604e-7),
        (Family::Poisson, 3.0, -1e-9, 1.0042768458246245635e-17),
        (Family::Poisson, 28.0, 0.3, 7.2108652673943805002e+10),
        (Family::Poisson, -25.0, -0.7, 2.7301656637319936766e-12),
        (Family::Poisson, 1.5, 2.0, 1.9670384747678119283e+1),
        (Family::Poisson, -6.0, 7.0, 2.698451811045714368),
        (Family::Poisson, 12.0, -13.5, 2.0344351158677091585e+6),
        (Family::Poisson, -29.0, 45.0, 8.8861105205078726251e+6),
        (Family::Bernoulli, 20.0, 0.002, 4.1195603966293731855e-15),
        (Family::Bernoulli, -20.0, -0.002, 4.1195603966293731855e-15),
        (Family::Bernoulli, 0.5, 0.001, 1.1749225928766350494e-7),
        (Family::Bernoulli, -1.25, 0.00095, 7.8127253455311807169e-8),
        (Family::Bernoulli, 3.0, -1e-9, 2.2588329872271331583e-20),
        (Family::Bernoulli, 28.0, 0.3, 2.8223350944642307318e-14),
        (Family::Bernoulli, -25.0, -0.7, 2.7301656636696374868e-12),
        (Family::Bernoulli, 1.5, 2.0, 1.9318818790258083648e-1),
        (Family::Bernoulli, -6.0, 7.0, 1.2934776402840489642),
        (Family::Bernoulli, 12.0, -13.5, 1.701324187432144778),
        (Family::Bernoulli, -29.0, 45.0, 1.6000000112523467525e+1),
    ];

    #[test]
    fn remainders_keep_their_digits() {
        for (family, theta, t, right) in REMAINDERS {
            let found = family.psi_remainder(theta, t);
            assert!((found / right - 1.0).abs() < 1e-14, "{family:?} {theta} {t}: {found}");
        }
    }

    #[test]
    fn remainders_are_those_of_a_tangent() {
        for family in Family::ALL {
            for theta in [-4.0, -0.3, 0.0, 1.2, 6.0] {
                for t in [-3.0, -0.2, 0.1, 2.0] {
                    let wanted = family.psi(theta + t) - family.psi(theta) - family.mean(theta) * t;
                    let gap = family.psi_remainder(theta, t) - wanted;
                    assert!(gap.abs() < 1e-12 * (1.0 + wanted), "{family:?} {theta} {t} {gap}");
                }
            }
            // Steps so long that `e^t` overflows, from where a row of zeros leaves a cell.
            let far = family.psi_remainder(-1000.0, 1002.0);
            let wanted = match family {
                Family::Gaussian => 0.5 * 1002.0 * 1002.0,
                Family::Poisson | Family::Bernoulli => family.psi(2.0),
            };
            assert!((far / wanted - 1.0).abs() < 1e-14, "{family:?} {far}");
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
