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
        f64::from(self as u8)
    }

    /// The family of a code.
    pub fn from_code(code: f64) -> Result<Self> {
        let found = Self::ALL.into_iter().find(|family| family.code() == code);
        found.ok_or_else(|| Error::data(format!("{code} stands for no family of cells")))
    }

    /// Refuses values that the family cannot take; says what would be right.
    pub fn check(self, y: f64) -> Result<(), &'static str> {
        let (fits, wanted) = match self {
            Self::Gaussian => (y.is_finite(), "a finite number"),
            Self::Poisson => {
                let is_count = y >= 0.0 && y.fract() == 0.0 && y <= COUNT_MAX;
                (is_count, "a whole number from 0 to 1e12")
            }
            Self::Bernoulli => (y == 0.0 || y == 1.0, "0 or 1"),
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

/// Counts above this lose their unit beside the sums they enter.
const COUNT_MAX: f64 = 1e12;
/// Starting means are kept so far inside their range.
const MEAN_MIN: f64 = 1e-6;
/// How far inside their range means are kept when models are compared.
pub const JUDGED_MEAN_MIN: f64 = 1e-3;
