//! Predictions of a fitted mixture: labels, densities, and missing cells.

use super::estep::Scorer;
use super::{ColumnKind, Mixed, MixedData, MixedParameters};
use crate::distributions::upper_gamma;
use whimbrel_core::{Error, Key, Result, math};

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
        /// The conditional standard deviation.
        sd: f64,
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
        let (components, places) = (self.components(), self.places());
        let mut scorer = Scorer::new(self, theta);
        let mut out = MixedPrediction::default();
        let tails = [0.5 - 0.5 * coverage, 0.5 + 0.5 * coverage];
        for row in 0..data.rows() {
            let log_density = density(&mut scorer, data, row)?;
            let r = &scorer.scores;
            let label = (1..components).fold(0, |best, k| if r[k] > r[best] { k } else { best });
            out.labels.push(label as u32);
            out.responsibilities.extend_from_slice(r);
            out.log_density.push(log_density);
            let gaps = places.iter().enumerate().filter(|(j, _)| data.row(row)[*j].is_nan());
            let fill = |(j, at): (usize, &Place)| self.filled(theta, &scorer, (row, j), *at, tails);
            out.filled.extend(gaps.map(fill));
        }
        Ok(out)
    }

    /// A missing cell of the row that was scored last.
    fn filled(
        &self,
        theta: &MixedParameters,
        scorer: &Scorer<'_>,
        place: (usize, usize),
        at: Place,
        tails: [f64; 2],
    ) -> Filled {
        let (d, c, all) = (self.numbers.len(), self.counts.len(), self.all_levels());
        let each = scorer.scores.iter().copied().enumerate();
        match at {
            Place::Number(at) => {
                let part = |(k, weight): (usize, f64)| Normal {
                    weight,
                    mean: scorer.numbers[k * d + at],
                    deviation: scorer.conditionals[k].variance(at).max(0.0).sqrt(),
                };
                let parts: Vec<Normal> = each.map(part).collect();
                let moments = parts.iter().map(|p| (p.weight, p.mean, p.deviation * p.deviation));
                let (mean, sd) = mean_and_sd(moments);
                Filled::Scalar {
                    place,
                    mean,
                    sd,
                    interval: tails.map(|p| normal_quantile(&parts, p)),
                }
            }
            Place::Count(at) => {
                let parts: Vec<(f64, f64)> =
                    each.map(|(k, weight)| (weight, theta.rates[k * c + at])).collect();
                let (mean, sd) = mean_and_sd(parts.iter().map(|(w, rate)| (*w, *rate, *rate)));
                Filled::Scalar {
                    place,
                    mean,
                    sd,
                    interval: tails.map(|p| poisson_quantile(&parts, p)),
                }
            }
            Place::Levels { from, count } => {
                let probability = |l: usize| {
                    each.clone().map(|(k, r)| r * theta.levels[k * all + from + l]).sum()
                };
                Filled::Levels { place, probabilities: (0..count).map(probability).collect() }
            }
        }
    }

    /// Imputations of the missing cells, row by row, for each key: a component is drawn from the row's
    /// responsibilities, and the cells given this component and the observed ones. A draw depends on its
    /// key, the number of the row and the row's cells alone.
    pub fn draw(
        &self,
        theta: &MixedParameters,
        data: &MixedData,
        keys: &[Key],
    ) -> Result<Vec<Vec<f64>>> {
        let (d, c, all) = (self.numbers.len(), self.counts.len(), self.all_levels());
        let mut scorer = Scorer::new(self, theta);
        let (mut out, places) = (vec![Vec::new(); keys.len()], self.places());
        for row in (0..data.rows()).filter(|row| data.row(*row).iter().any(|x| x.is_nan())) {
            density(&mut scorer, data, row)?;
            for (key, out) in keys.iter().zip(&mut out) {
                let mut stream = key.child(row as u64).stream();
                let k = stream.categorical(&scorer.scores);
                let mut numbers = scorer.numbers[k * d..][..d].to_vec();
                if d > 0 {
                    let seen = &data.patterns[data.pattern[row] as usize];
                    scorer.conditionals[k].draw(&mut numbers, seen, &mut stream)?;
                }
                for (at, _) in places.iter().zip(data.row(row)).filter(|(_, x)| x.is_nan()) {
                    out.push(match *at {
                        Place::Number(at) => numbers[at],
                        Place::Count(at) => stream.poisson(theta.rates[k * c + at]) as f64,
                        Place::Levels { from, count } => {
                            stream.categorical(&theta.levels[k * all + from..][..count]) as f64
                        }
                    });
                }
            }
        }
        Ok(out)
    }
}

/// The place of a column among the parameters of its kind.
#[derive(Clone, Copy)]
enum Place {
    Number(usize),
    Count(usize),
    Levels { from: usize, count: usize },
}

impl Mixed {
    fn places(&self) -> Vec<Place> {
        let (mut numbers, mut counts, mut levels) = (0.., 0.., 0);
        let place = |kind: &ColumnKind| match *kind {
            ColumnKind::Number => Place::Number(numbers.next().unwrap_or(0)),
            ColumnKind::Count => Place::Count(counts.next().unwrap_or(0)),
            ColumnKind::Levels(count) => {
                levels += count;
                Place::Levels { from: levels - count, count }
            }
        };
        self.columns().iter().map(place).collect()
    }
}

/// Scores a row, which must have a density.
fn density(scorer: &mut Scorer<'_>, data: &MixedData, row: usize) -> Result<f64> {
    let log_density = scorer.score(data, row)?;
    if !log_density.is_finite() {
        let row = row + 1;
        let what = format!("row {row} lies too far from every component to have a density");
        return Err(Error::numerical(what));
    }
    Ok(log_density)
}

/// Mean and standard deviation of a mixture, from weights, means and variances.
fn mean_and_sd(parts: impl Iterator<Item = (f64, f64, f64)> + Clone) -> (f64, f64) {
    let mean: f64 = parts.clone().map(|(weight, mean, _)| weight * mean).sum();
    let spread = |(weight, own, variance): (f64, f64, f64)| {
        weight * (variance + (own - mean) * (own - mean))
    };
    (mean, parts.map(spread).sum::<f64>().sqrt())
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
