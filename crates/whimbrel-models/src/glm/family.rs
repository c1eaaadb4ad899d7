//! Families with their links: the log-likelihood of a row and its derivatives in the linear predictor.

use super::Rows;
use crate::distributions::digamma_steps;
use whimbrel_core::kernel;
use whimbrel_core::math::{exp, ln, ln_1p, ln_gamma};

/// The distribution of the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// Numbers; identity link.
    Gaussian,
    /// 0 or 1, or shares; logit link.
    Binomial,
    /// Counts; log link.
    Poisson,
    /// Positive numbers; inverse link.
    Gamma,
    /// Counts with variance `mu + alpha mu^2`; log link.
    NegativeBinomial,
    /// One of several classes, with log-odds against the first.
    Multinomial { classes: usize },
    /// Times of events, by Cox's partial likelihood.
    Cox,
}

/// The log-likelihood of a row with its slope, the first derivative in the linear predictor, and its
/// curvature, the negative second derivative. For canonical links observed and expected information
/// agree.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Local {
    pub log_likelihood: f64,
    pub slope: f64,
    pub curvature: f64,
}

/// Derivatives in `a = ln alpha`: score, information, and information with the linear predictor.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct InDispersion {
    pub slope: f64,
    pub curvature: f64,
    pub cross: f64,
}

impl Family {
    /// Number of linear predictors.
    pub fn predictors(self) -> usize {
        if let Self::Multinomial { classes } = self { classes - 1 } else { 1 }
    }

    /// Whether the variance has a factor that is estimated beside the coefficients.
    pub fn has_dispersion(self) -> bool {
        matches!(self, Self::Gaussian | Self::Gamma)
    }

    /// Whether `ln alpha` is a parameter.
    pub fn has_alpha(self) -> bool {
        self == Self::NegativeBinomial
    }

    /// Whether coefficients can be infinite.
    pub fn can_separate(self) -> bool {
        !self.has_dispersion()
    }

    /// The valid targets in words, unless `y` is one.
    pub(super) fn outside(self, y: f64) -> Option<&'static str> {
        let is_count = y >= 0.0 && y.fract() == 0.0;
        match self {
            Self::Gaussian => (!y.is_finite()).then_some("finite"),
            Self::Binomial => (!(0.0..=1.0).contains(&y)).then_some("from 0 to 1"),
            Self::Gamma => (y <= 0.0).then_some("positive"),
            Self::Cox => (y < 0.0).then_some("a time of 0 or more"),
            Self::Poisson | Self::NegativeBinomial => (!is_count).then_some("a count"),
            Self::Multinomial { classes } => {
                (!is_count || y >= classes as f64).then_some("a class")
            }
        }
    }

    /// Sorts the rows of Cox's model by time, latest first.
    pub(super) fn order(self, rows: &mut Rows) {
        if self != Self::Cox || rows.y.is_empty() {
            return;
        }
        let mut order: Vec<usize> = (0..rows.y.len()).collect();
        order.sort_by(|i, j| rows.y[*j].total_cmp(&rows.y[*i]));
        let width = rows.width;
        rows.x = order.iter().flat_map(|i| &rows.x[i * width..][..width]).copied().collect();
        for column in [&mut rows.y, &mut rows.event] {
            if !column.is_empty() {
                *column = order.iter().map(|i| column[*i]).collect();
            }
        }
        rows.kept = order.iter().map(|i| rows.kept[*i]).collect();
    }

    /// The linear predictor of a mean.
    pub fn link(self, mean: f64) -> f64 {
        match self {
            Self::Gaussian => mean,
            Self::Binomial => ln(mean / (1.0 - mean)),
            Self::Poisson | Self::NegativeBinomial => ln(mean),
            Self::Gamma => 1.0 / mean,
            Self::Multinomial { .. } | Self::Cox => 0.0,
        }
    }

    /// The mean at a linear predictor; of Cox's model the relative hazard.
    pub fn mean(self, eta: f64) -> f64 {
        match self {
            Self::Gaussian => eta,
            Self::Binomial => 1.0 / (1.0 + exp(-eta)),
            Self::Gamma => 1.0 / eta,
            Self::Poisson | Self::NegativeBinomial | Self::Multinomial { .. } | Self::Cox => {
                exp(eta)
            }
        }
    }

    /// `None` outside the domain of the link. Terms without the linear predictor are left out: they are
    /// [`Self::constant`], or unknown in families with a dispersion.
    #[inline(always)]
    pub(super) fn local(self, y: f64, eta: f64, alpha: f64) -> Option<Local> {
        let (log_likelihood, slope, curvature) = match self {
            Self::Gaussian => (-0.5 * (y - eta) * (y - eta), y - eta, 1.0),
            Self::Binomial => {
                let e = exp(-eta.abs());
                let softplus = eta.max(0.0) + ln_1p(e);
                let inverse = 1.0 / (1.0 + e);
                let p = if eta > 0.0 { inverse } else { e * inverse };
                (y * eta - softplus, y - p, e * inverse * inverse)
            }
            Self::Poisson => {
                let mu = exp(eta);
                (y * eta - mu, y - mu, mu)
            }
            Self::Gamma if eta <= 0.0 => return None,
            Self::Gamma => (ln(eta) - y * eta, 1.0 / eta - y, 1.0 / (eta * eta)),
            Self::NegativeBinomial => {
                let (mu, k) = (exp(eta), 1.0 / alpha);
                let spread = 1.0 + alpha * mu;
                let binomial = ln_gamma(y + k) - ln_gamma(k);
                let fit = binomial - k * ln_1p(alpha * mu) + y * (ln(alpha) + eta - ln(spread));
                (fit, (y - mu) / spread, mu * (1.0 + alpha * y) / (spread * spread))
            }
            Self::Multinomial { .. } | Self::Cox => return None,
        };
        let found = Local { log_likelihood, slope, curvature };
        (log_likelihood.is_finite() && slope.is_finite()).then_some(found)
    }

    /// The term of a row's log-likelihood that no parameter changes.
    pub(super) fn constant(self, y: f64) -> f64 {
        match self {
            Self::Poisson | Self::NegativeBinomial => -ln_gamma(y + 1.0),
            _ => 0.0,
        }
    }

    /// Derivatives of the negative binomial's log-likelihood in `ln alpha`.
    pub(super) fn in_dispersion(y: f64, eta: f64, alpha: f64) -> InDispersion {
        let (mu, k) = (exp(eta), 1.0 / alpha);
        let spread = 1.0 + alpha * mu;
        let (first, second) = digamma_steps(k, y);
        // d/dk and d^2/dk^2 with k = 1/alpha, then the chain rule of k = exp(-a).
        let by_k = first - ln_1p(alpha * mu) + (mu - y) / (k + mu);
        let by_kk = mu / (k * (k + mu)) - second - (mu - y) / ((k + mu) * (k + mu));
        InDispersion {
            slope: -k * by_k,
            curvature: -(k * by_k + k * k * by_kk),
            cross: alpha * (y - mu) * mu / (spread * spread),
        }
    }

    /// Contributions of a row to the deviance and to Pearson's statistic.
    pub(super) fn misfit(self, y: f64, eta: f64, alpha: f64) -> (f64, f64) {
        let mu = self.mean(eta);
        let y_ln = |ratio: f64| if y > 0.0 { y * ln(ratio) } else { 0.0 };
        match self {
            Self::Gaussian => ((y - mu) * (y - mu), (y - mu) * (y - mu)),
            Self::Binomial => {
                let rest = if y < 1.0 { (1.0 - y) * ln((1.0 - y) / (1.0 - mu)) } else { 0.0 };
                (2.0 * (y_ln(y / mu) + rest), (y - mu) * (y - mu) / (mu * (1.0 - mu)))
            }
            Self::Poisson => (2.0 * (y_ln(y / mu) - (y - mu)), (y - mu) * (y - mu) / mu),
            Self::Gamma => {
                let share = (y - mu) / mu;
                (2.0 * (share - ln(y / mu)), share * share)
            }
            Self::NegativeBinomial => {
                let rest = (y + 1.0 / alpha) * ln((1.0 + alpha * y) / (1.0 + alpha * mu));
                let variance = mu + alpha * mu * mu;
                (2.0 * (y_ln(y / mu) - rest), (y - mu) * (y - mu) / variance)
            }
            Self::Multinomial { .. } | Self::Cox => (0.0, 0.0),
        }
    }
}

/// The loop of [`locals`] for one family: a closure would not be compiled for the kernel's level.
macro_rules! each {
    ($family:expr, $alpha:expr, $y:ident, $eta:ident, [$value:ident, $slope:ident, $curvature:ident]) => {
        for at in 0..$y.len() {
            let found = $family.local($y[at], $eta[at], $alpha);
            let nothing = Local { log_likelihood: f64::NAN, slope: 0.0, curvature: 0.0 };
            let found = found.unwrap_or(nothing);
            $value[at] = found.log_likelihood;
            $slope[at] = found.slope;
            $curvature[at] = found.curvature;
        }
    };
}

kernel! {
    /// [`Family::local`] of rows: log-likelihoods, slopes and curvatures; NaN and zeros outside the
    /// domain of the link.
    pub(super) fn locals(
        family: Family,
        alpha: f64,
        y: &[f64],
        eta: &[f64],
        out: [&mut [f64]; 3],
    ) {
        let [value, slope, curvature] = out;
        let (eta, value) = (&eta[..y.len()], &mut value[..y.len()]);
        let (slope, curvature) = (&mut slope[..y.len()], &mut curvature[..y.len()]);
        match family {
            Family::Gaussian => each!(Family::Gaussian, 0.0, y, eta, [value, slope, curvature]),
            Family::Binomial => each!(Family::Binomial, 0.0, y, eta, [value, slope, curvature]),
            Family::Poisson => each!(Family::Poisson, 0.0, y, eta, [value, slope, curvature]),
            Family::Gamma => each!(Family::Gamma, 0.0, y, eta, [value, slope, curvature]),
            other => each!(other, alpha, y, eta, [value, slope, curvature]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Central differences with steps of 1e-5, whose error is about 1e-9 for these values.
    #[test]
    fn derivatives_are_those_of_the_log_likelihood() {
        let h = 1e-5;
        let families =
            [Family::Gaussian, Family::Binomial, Family::Poisson, Family::NegativeBinomial];
        for (family, y) in families.into_iter().flat_map(|f| [(f, 0.0), (f, 1.0)]) {
            let at = |eta| family.local(y, eta, 0.7).unwrap();
            let (low, here, high) = (at(0.4 - h), at(0.4), at(0.4 + h));
            let slope = (high.log_likelihood - low.log_likelihood) / (2.0 * h);
            let curvature = (low.slope - high.slope) / (2.0 * h);
            assert!((here.slope - slope).abs() < 1e-8, "{family:?}");
            assert!((here.curvature - curvature).abs() < 1e-8, "{family:?}");
        }
        let nb = |a: f64| {
            let alpha = exp(a);
            let local = Family::NegativeBinomial.local(3.0, 0.4, alpha).unwrap();
            (local, Family::in_dispersion(3.0, 0.4, alpha))
        };
        let ((low, before), (_, here), (high, after)) = (nb(-0.2 - h), nb(-0.2), nb(-0.2 + h));
        assert!((here.slope - (high.log_likelihood - low.log_likelihood) / (2.0 * h)).abs() < 1e-8);
        assert!((here.curvature - (before.slope - after.slope) / (2.0 * h)).abs() < 1e-8);
        assert!((here.cross - (low.slope - high.slope) / (2.0 * h)).abs() < 1e-8);
        assert!(Family::Gamma.local(1.0, -0.1, 0.0).is_none());
    }
}
