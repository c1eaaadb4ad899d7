//! Predictions of a fitted mixture: labels, densities, and missing cells.

use super::estep::Scorer;
use super::{ColumnKind, Levels, Mixed, MixedData, MixedParameters};
use crate::distributions::upper_gamma;
use whimbrel_core::{Error, Result, math};

/// Predictions for rows.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct MixedPrediction {
    /// The most probable component of each row, from 0; the first of ties.
    pub labels: Vec<u32>,
    /// The component probabilities, row after row.
    pub responsibilities: Vec<f64>,
    /// `ln p` of the observed cells of each row.
    pub log_density: Vec<f64>,
    /// The missing cells, row by row.
    pub filled: Vec<Filled>,
}

/// A missing cell.
#[derive(Clone, Debug, PartialEq)]
pub enum Filled {
    /// A number or a count: its mean given the observed cells, and a central interval.
    Scalar {
        /// Its row and column.
        place: (usize, usize),
        /// The conditional mean.
        mean: f64,
        /// The ends of the interval; integers for a count.
        interval: [f64; 2],
    },
    /// The probability of each level given the observed cells.
    Levels {
        /// Its row and column.
        place: (usize, usize),
        /// The probabilities.
        probabilities: Vec<f64>,
    },
}

impl Mixed {
    /// Labels, responsibilities, log-densities and missing cells of rows, with intervals of this coverage.
    pub fn predict(
        &self,
        theta: &MixedParameters,
        data: &MixedData,
        coverage: f64,
    ) -> Result<MixedPrediction> {
        let (components, d) = (self.components(), self.numbers.len());
        let mut scorer = Scorer::new(self, theta);
        let mut out = MixedPrediction::default();
        let tails = [0.5 - 0.5 * coverage, 0.5 + 0.5 * coverage];
        for row in 0..data.rows() {
            let log_density = scorer.score(data, row)?;
            if !log_density.is_finite() {
                return Err(Error::numerical(format!(
                    "row {} lies too far from every component to have a density",
                    row + 1
                )));
            }
            let r = &scorer.scores;
            let label = (1..components).fold(0, |best, k| if r[k] > r[best] { k } else { best });
            out.labels.push(label as u32);
            out.responsibilities.extend_from_slice(r);
            out.log_density.push(log_density);
            let cells = data.row(row);
            for (column, kind) in self.columns().iter().enumerate() {
                if !cells[column].is_nan() {
                    continue;
                }
                let place = (row, column);
                out.filled.push(match kind {
                    ColumnKind::Number => {
                        let at = self.numbers.iter().position(|j| *j == column).unwrap_or(0);
                        let parts: Vec<Normal> = (0..components)
                            .map(|k| Normal {
                                weight: r[k],
                                mean: scorer.numbers[k * d + at],
                                deviation: scorer.conditionals[k].variance(at).max(0.0).sqrt(),
                            })
                            .collect();
                        let mean = parts.iter().map(|part| part.weight * part.mean).sum();
                        let interval = tails.map(|p| normal_quantile(&parts, p));
                        Filled::Scalar { place, mean, interval }
                    }
                    ColumnKind::Count => {
                        let at = self.counts.iter().position(|j| *j == column).unwrap_or(0);
                        let c = self.counts.len();
                        let parts: Vec<(f64, f64)> =
                            (0..components).map(|k| (r[k], theta.rates[k * c + at])).collect();
                        let mean = parts.iter().map(|(weight, rate)| weight * rate).sum();
                        let interval = tails.map(|p| poisson_quantile(&parts, p));
                        Filled::Scalar { place, mean, interval }
                    }
                    ColumnKind::Levels(count) => {
                        let own = self.levels.iter().find(|levels| levels.column == column);
                        let from = own.map_or(0, |Levels { from, .. }| *from);
                        let all = self.all_levels();
                        let probability = |l: usize| {
                            (0..components).map(|k| r[k] * theta.levels[k * all + from + l]).sum()
                        };
                        let probabilities = (0..*count).map(probability).collect();
                        Filled::Levels { place, probabilities }
                    }
                });
            }
        }
        Ok(out)
    }
}

struct Normal {
    weight: f64,
    mean: f64,
    deviation: f64,
}

/// Bisections of a quantile, enough for full precision.
const BISECTIONS: usize = 60;

/// The quantile of a mixture of normal distributions.
fn normal_quantile(parts: &[Normal], p: f64) -> f64 {
    let z = math::normal_quantile(p);
    let ends = parts.iter().map(|part| part.mean + z * part.deviation);
    let (mut low, mut high) =
        ends.fold((f64::INFINITY, f64::NEG_INFINITY), |(l, h), x| (l.min(x), h.max(x)));
    for _ in 0..BISECTIONS {
        let middle = 0.5 * (low + high);
        let below: f64 = parts
            .iter()
            .map(|part| {
                let is_point = part.deviation <= 0.0;
                let step = || f64::from(u8::from(middle >= part.mean));
                let curve = || normal_cdf((middle - part.mean) / part.deviation);
                part.weight * if is_point { step() } else { curve() }
            })
            .sum();
        *if below < p { &mut low } else { &mut high } = middle;
    }
    0.5 * (low + high)
}

/// The quantile of a mixture of Poisson distributions (weight, rate): the smallest count with distribution
/// function at least `p`.
fn poisson_quantile(parts: &[(f64, f64)], p: f64) -> f64 {
    let below =
        |x: f64| -> f64 { parts.iter().map(|(weight, rate)| weight * poisson_cdf(x, *rate)).sum() };
    let top = parts.iter().fold(0.0, |top: f64, (_, rate)| top.max(*rate));
    // Ten standard deviations suffice for any level in use.
    let (mut low, mut high) = (-1.0, (top + 10.0 * top.sqrt() + 10.0).ceil());
    while high - low > 1.0 {
        let middle = ((low + high) * 0.5).floor();
        *if below(middle) < p { &mut low } else { &mut high } = middle;
    }
    high
}

/// `P(Z <= x)` of a standard normal variable: the series of Marsaglia (2004).
pub(crate) fn normal_cdf(x: f64) -> f64 {
    if x.abs() > 7.5 {
        return f64::from(u8::from(x > 0.0));
    }
    let (mut term, mut sum, mut n) = (x, x, 1.0);
    while term.abs() > 1e-17 * sum.abs() {
        n += 2.0;
        term *= x * x / n;
        sum += term;
    }
    const INVERSE_ROOT_TAU: f64 = 0.398_942_280_401_432_7;
    (0.5 + sum * INVERSE_ROOT_TAU * math::exp(-0.5 * x * x)).clamp(0.0, 1.0)
}

/// `P(X <= x)` of a Poisson variable.
fn poisson_cdf(x: f64, rate: f64) -> f64 {
    upper_gamma(x + 1.0, rate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distribution_functions_have_their_known_values() {
        // Sums of the probabilities in sixty decimal digits.
        for (x, p) in [(0.0, 0.5), (1.0, 0.841344746068543), (-3.0, 0.0013498980316300933)] {
            assert!((normal_cdf(x) - p).abs() < 1e-15, "{x}");
        }
        for (x, rate, p) in [
            (0.0, 0.5, 0.6065306597126334),
            (3.0, 2.5, 0.7575761331330659),
            (90.0, 100.0, 0.1713851193217614),
            (1010.0, 1000.0, 0.6318369541385921),
        ] {
            assert!((poisson_cdf(x, rate) - p).abs() < 1e-12, "{x}: {}", poisson_cdf(x, rate));
        }
    }

    #[test]
    fn quantiles_split_the_mixture() {
        let part = |weight, mean, deviation| Normal { weight, mean, deviation };
        let one = [part(1.0, 2.0, 3.0)];
        assert!((normal_quantile(&one, 0.95) - (2.0 + 3.0 * 1.6448536269514722)).abs() < 1e-9);
        let two = [part(0.5, -100.0, 1.0), part(0.5, 100.0, 1.0)];
        // 5 % of all is 10 % of the first.
        assert!((normal_quantile(&two, 0.05) - (-100.0 - 1.2815515655446004)).abs() < 1e-9);
        assert_eq!(poisson_quantile(&[(1.0, 4.0)], 0.05), 1.0);
        assert_eq!(poisson_quantile(&[(1.0, 4.0)], 0.95), 8.0);
        assert_eq!(poisson_quantile(&[(1.0, 1e-10)], 0.95), 0.0);
    }
}
