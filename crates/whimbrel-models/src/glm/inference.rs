//! Inference from score and information: covariances, tests and intervals of any likelihood.

use crate::distributions::{chi2_tail, normal_tails, student_quantile, student_tails};
use whimbrel_core::linalg::{self, unpack};
use whimbrel_core::math;

/// One minus the level of intervals.
const LEVEL: f64 = 0.05;
/// A pivot of the correlations below this belongs to a dependent column. Exact dependence leaves rounding
/// errors of about 1e-15; columns correlated at 0.999999 have 2e-6.
const PIVOT_MIN: f64 = 1e-11;

/// A row of a table of coefficients.
#[derive(Clone, Debug, PartialEq)]
pub struct Coefficient {
    /// The name of the coefficient: `Intercept`, a column, or a column with its level.
    pub term: String,
    pub estimate: f64,
    /// Standard error.
    pub se: f64,
    /// `estimate / se`: z, or t with degrees of freedom.
    pub statistic: f64,
    /// Two-sided p-value of the hypothesis that the coefficient is zero.
    pub p: f64,
    /// Lower limit of the 95 % interval.
    pub low: f64,
    /// Its upper limit.
    pub high: f64,
}

/// A test of several coefficients.
#[derive(Clone, Debug, PartialEq)]
pub struct Test {
    pub term: String,
    pub statistic: f64,
    pub degrees: f64,
    pub p: f64,
}

impl Test {
    /// A chi-squared test.
    pub fn chi2(term: String, statistic: f64, degrees: f64) -> Self {
        let p = chi2_tail(statistic.max(0.0), degrees);
        Self { term, statistic, degrees, p }
    }
}

/// The table of coefficients; with `degrees` of freedom by Student's distribution, else the normal one.
pub fn table(
    names: &[String],
    estimates: &[f64],
    covariance: &[f64],
    degrees: Option<f64>,
) -> Vec<Coefficient> {
    let p = estimates.len();
    let width = match degrees {
        Some(degrees) => student_quantile(LEVEL, degrees),
        None => math::normal_quantile(1.0 - 0.5 * LEVEL),
    };
    let row = |(at, (name, estimate)): (usize, (&String, &f64))| {
        let variance = covariance[at * p + at];
        // A parameter at the edge of its range has no error.
        let se = if variance > 0.0 { variance.sqrt() } else { f64::NAN };
        let statistic = estimate / se;
        Coefficient {
            term: name.clone(),
            estimate: *estimate,
            se,
            statistic,
            p: degrees.map_or_else(|| normal_tails(statistic), |d| student_tails(statistic, d)),
            low: estimate - width * se,
            high: estimate + width * se,
        }
    };
    names.iter().zip(estimates).enumerate().map(row).collect()
}

/// Estimates of a coefficient from completed data sets, pooled by Rubin's rules.
#[derive(Clone, Debug, PartialEq)]
pub struct Pooled {
    pub coefficient: Coefficient,
    /// Degrees of freedom of its t-test.
    pub degrees: f64,
    /// The share of the information that is missing.
    pub missing: f64,
}

impl Pooled {
    /// Pools `(estimate, se)` of two or more data sets; `complete` are the degrees of freedom of one.
    ///
    /// D. B. Rubin, *Multiple Imputation for Nonresponse in Surveys* (1987), section 3.1: with the mean
    /// variance `W` and the variance `B` of `m` estimates, the variance is `W + (1 + 1/m) B`. Degrees of
    /// freedom: J. Barnard and D. B. Rubin (1999), *Small-sample degrees of freedom with multiple
    /// imputation*, equation 3.
    pub fn of(term: &str, fits: &[(f64, f64)], complete: f64) -> Self {
        let m = fits.len() as f64;
        let mean = |of: &dyn Fn(&(f64, f64)) -> f64| fits.iter().map(of).sum::<f64>() / m;
        let estimate = mean(&|fit| fit.0);
        let within = mean(&|fit| fit.1 * fit.1);
        let between = mean(&|fit| (fit.0 - estimate) * (fit.0 - estimate)) * m / (m - 1.0);
        let added = (1.0 + 1.0 / m) * between;
        let (total, share) = (within + added, added / (within + added));
        let observed = (complete + 1.0) / (complete + 3.0) * complete * (1.0 - share);
        let degrees = 1.0 / (share * share / (m - 1.0) + 1.0 / observed);
        let ratio = added / within;
        let coefficient =
            table(&[term.into()], &[estimate], &[total], Some(degrees)).swap_remove(0);
        let missing = (ratio + 2.0 / (degrees + 3.0)) / (ratio + 1.0);
        Self { coefficient, degrees, missing }
    }
}

/// A column that the others determine.
#[derive(Clone, Debug, PartialEq)]
pub struct Dependent {
    pub column: usize,
    /// The columns that determine it; empty if it is constant.
    pub on: Vec<usize>,
}

/// The lower Cholesky factor of a packed matrix with unit diagonal after `roots` are divided out.
pub struct Factored {
    factor: Vec<f64>,
    roots: Vec<f64>,
}

impl Factored {
    pub fn new(packed: &[f64], p: usize) -> Result<Self, Dependent> {
        let mut a = unpack(packed, p);
        let roots: Vec<f64> = (0..p).map(|i| a[i * p + i].max(0.0).sqrt()).collect();
        if let Some(column) = roots.iter().position(|root| !(*root > 0.0 && root.is_finite())) {
            return Err(Dependent { column, on: Vec::new() });
        }
        for i in 0..p {
            for j in 0..p {
                a[i * p + j] /= roots[i] * roots[j];
            }
        }
        let correlations = a.clone();
        let pivot = match linalg::cholesky(&mut a, p) {
            Ok(()) => (0..p).find(|i| a[i * p + i] * a[i * p + i] < PIVOT_MIN),
            Err(failed) => Some(failed.pivot),
        };
        match pivot {
            None => Ok(Self { factor: a, roots }),
            Some(column) => Err(Dependent { column, on: partners(&correlations, p, column) }),
        }
    }

    /// `A^-1 b`.
    pub fn solve(&self, b: &[f64]) -> Vec<f64> {
        let p = self.roots.len();
        let mut x: Vec<f64> = b.iter().zip(&self.roots).map(|(b, root)| b / root).collect();
        linalg::solve_lower(&self.factor, p, &mut x);
        linalg::solve_lower_transposed(&self.factor, p, &mut x);
        x.iter_mut().zip(&self.roots).for_each(|(x, root)| *x /= root);
        x
    }

    /// `A^-1`.
    pub fn inverse(&self) -> Vec<f64> {
        let p = self.roots.len();
        let unit = |i: usize| (0..p).map(|j| f64::from(u8::from(i == j))).collect::<Vec<_>>();
        (0..p).flat_map(|i| self.solve(&unit(i))).collect()
    }
}

/// The columns before `column` with a part in the combination that equals it.
fn partners(correlations: &[f64], p: usize, column: usize) -> Vec<usize> {
    let rows = (0..column).flat_map(|i| &correlations[i * p..][..column]);
    let mut a: Vec<f64> = rows.copied().collect();
    if linalg::cholesky(&mut a, column).is_err() {
        return Vec::new();
    }
    let mut shares = correlations[column * p..][..column].to_vec();
    linalg::solve_lower(&a, column, &mut shares);
    linalg::solve_lower_transposed(&a, column, &mut shares);
    (0..column).filter(|j| shares[*j].abs() > 1e-6).collect()
}

/// `A B A^T` of square matrices.
pub fn congruent(a: &[f64], b: &[f64], p: usize) -> Vec<f64> {
    let (mut ab, mut out) = (vec![0.0; p * p], vec![0.0; p * p]);
    linalg::matmul(&mut ab, a, b, p, p, p);
    for i in 0..p {
        linalg::matvec(&mut out[i * p..][..p], a, &ab[i * p..][..p]);
    }
    out
}

/// Heterogeneity of a coefficient between clients.
#[derive(Clone, Debug, PartialEq)]
pub struct Heterogeneity {
    /// Cochran's Q.
    pub q: f64,
    pub degrees: f64,
    pub p: f64,
    /// Share of the variation between estimates that is beyond chance.
    pub i2: f64,
}

impl Heterogeneity {
    /// From `Σ 1`, `Σ 1/v`, `Σ b/v` and `Σ b²/v` over clients; `None` for fewer than two.
    pub fn of(sums: &[f64]) -> Option<Self> {
        let &[count, weights, first, second] = sums else { return None };
        if count < 2.0 {
            return None;
        }
        let (q, degrees) = ((second - first * first / weights).max(0.0), count - 1.0);
        let i2 = if q > 0.0 { ((q - degrees) / q).max(0.0) } else { 0.0 };
        Some(Self { q, degrees, p: chi2_tail(q, degrees), i2 })
    }
}

/// The area under the ROC curve from bins of `(rows, events, Σ p)` in the order of `p`, and half its
/// uncertainty: pairs within a bin count one half.
pub fn auc(bins: &[f64]) -> (f64, f64) {
    let (mut events, mut others, mut above, mut ties) = (0.0, 0.0, 0.0, 0.0);
    for bin in bins.chunks_exact(3) {
        let (hits, misses) = (bin[1], bin[0] - bin[1]);
        above += hits * others;
        ties += 0.5 * hits * misses;
        events += hits;
        others += misses;
    }
    ((above + ties) / (events * others), ties / (events * others))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers of the formulas in numpy 2.4.6, with the t distribution of scipy 1.17.1.
    #[test]
    fn pooled_fits_follow_rubin_and_barnard() {
        let fits = [(0.52, 0.11), (0.61, 0.12), (0.47, 0.105), (0.58, 0.115), (0.55, 0.11)];
        let Pooled { coefficient: c, degrees, missing } = Pooled::of("x", &fits, 94.0);
        let found = [c.estimate, c.se, degrees, c.statistic, c.p, c.low, c.high, missing];
        let known = [
            0.546,
            0.12683059567785684,
            38.69316245987471,
            4.3049549446792135,
            0.00011015062243109533,
            0.28939584588811124,
            0.8026041541118887,
            0.256059714520777,
        ];
        for (a, b) in found.into_iter().zip(known) {
            assert!((a - b).abs() < 1e-10 * b, "{a} is not {b}");
        }
        // Equal fits: nothing is missing, and the test is that of one of them with its (d+1)/(d+3).
        let same = Pooled::of("x", &[(1.0, 0.5); 3], 10.0);
        assert_eq!((same.coefficient.se, same.degrees), (0.5, 110.0 / 13.0));
    }
}
