//! Distributions of a cell: `p(y; theta)` proportional to `exp(y theta - psi(theta))`.

use whimbrel_core::math::{exp, ln, ln_1p};
use whimbrel_core::{Error, Result, Stream};

/// Bound on the natural parameters of the Poisson and Bernoulli families, in absolute value.
pub const THETA_MAX: f64 = 30.0;

/// The distribution of a cell given its natural parameter `theta`.
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
    /// All families, in the order of their codes.
    pub const ALL: [Self; 3] = [Self::Gaussian, Self::Poisson, Self::Bernoulli];

    /// The name used in jobs and reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Gaussian => "gaussian",
            Self::Poisson => "poisson",
            Self::Bernoulli => "bernoulli",
        }
    }

    /// The family's code in an artifact.
    pub fn code(self) -> f64 {
        f64::from(self as u8)
    }

    pub fn from_code(code: f64) -> Result<Self> {
        let found = Self::ALL.into_iter().find(|family| family.code() == code);
        found.ok_or_else(|| Error::data(format!("{code} is not the code of a family of cells")))
    }

    /// Refuses values outside the family's support; the error describes the support.
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

    /// Clips `theta` to [`THETA_MAX`] for the Poisson and Bernoulli families.
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

    /// The canonical link: the `theta` of a mean, after moving the mean inside its range.
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

    /// The unit deviance: twice the log-likelihood ratio of the saturated model to `mean`.
    pub fn deviance(self, y: f64, mean: f64) -> f64 {
        // y ln(y/mean), which is 0 at y = 0
        let entropy = |y: f64, mean: f64| if y > 0.0 { y * (ln(y) - ln(mean)) } else { 0.0 };
        match self {
            Self::Gaussian => (y - mean) * (y - mean),
            Self::Poisson => 2.0 * (entropy(y, mean) - (y - mean)),
            Self::Bernoulli => 2.0 * (entropy(y, mean) + entropy(1.0 - y, 1.0 - mean)),
        }
    }

    /// The deviance used to compare models. The mean is moved [`JUDGED_MEAN_MIN`] inside its range, so
    /// that a positive count in a column fitted as zero has a finite deviance.
    pub fn judged_deviance(self, y: f64, mean: f64) -> f64 {
        let inside = match self {
            Self::Gaussian => mean,
            Self::Poisson => mean.max(JUDGED_MEAN_MIN),
            Self::Bernoulli => mean.clamp(JUDGED_MEAN_MIN, 1.0 - JUDGED_MEAN_MIN),
        };
        self.deviance(y, inside)
    }

    /// Draws a value; `sd` is the standard deviation of a Gaussian cell.
    pub fn draw(self, mean: f64, sd: f64, stream: &mut Stream) -> f64 {
        match self {
            Self::Gaussian => mean + sd * stream.normal(),
            Self::Poisson => stream.poisson(mean) as f64,
            Self::Bernoulli => f64::from(u8::from(stream.uniform() < mean)),
        }
    }
}

/// Larger counts would be lost to rounding in sums.
const COUNT_MAX: f64 = 1e12;
/// Distance of the means of [`Family::link`] from the ends of their range.
const MEAN_MIN: f64 = 1e-6;
/// Distance of the means of [`Family::judged_deviance`] from the ends of their range.
pub const JUDGED_MEAN_MIN: f64 = 1e-3;
