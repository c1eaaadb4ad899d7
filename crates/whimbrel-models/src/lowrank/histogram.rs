//! Counts of scores on a fixed grid: what clients send in place of the scores.

use std::collections::BTreeMap;
use whimbrel_core::math::{exp, ln};
use whimbrel_core::wire::{put_varint, take_varint};
use whimbrel_core::{Error, Result, Wire};

/// The logarithm of the ratio of neighbouring edges (2 %), and an edge.
const LOG_RATIO: f64 = 0.02;
const EDGE: f64 = 1e-3;
/// Bins below that edge, and bins in all: from 1e-30 to 1e30. Scores of a Gaussian table have the
/// units of its values, so the grid is wide; a histogram holds only the bins that have scores.
const BELOW: u32 = 3_109;
pub const BINS: u32 = 6_910;
/// Octaves of means that are told apart, the first up to `2^FIRST_OCTAVE`.
pub const OCTAVES: u32 = 32;
const FIRST_OCTAVE: f64 = -9.0;
/// No histogram holds more.
const COUNT_MAX: u64 = 1 << 48;

/// How many scores fell where: by octave of the mean, and within it on a geometric grid whose bin
/// `i` holds what is at most [`Histogram::edge`] of `i` and above that of `i - 1`; the last bin
/// holds all the rest.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Histogram(BTreeMap<u32, u64>);

impl Histogram {
    /// The octave of a positive mean.
    pub fn octave(mean: f64) -> u32 {
        let octave = (ln(mean.max(1e-300)) / std::f64::consts::LN_2 - FIRST_OCTAVE).ceil();
        octave.clamp(0.0, f64::from(OCTAVES - 1)) as u32
    }

    /// Adds one score of a cell whose mean is in this octave.
    pub fn add(&mut self, octave: u32, score: f64) {
        // NaN, which no score of finite numbers is, lands in the last bin.
        let bin = (ln(score / EDGE) / LOG_RATIO).ceil() + f64::from(BELOW);
        let bin = if bin <= 0.0 { 0 } else { bin.min(f64::from(BINS - 1)) as u32 };
        let bin = if score.is_nan() { BINS - 1 } else { bin };
        *self.0.entry(octave.min(OCTAVES - 1) * BINS + bin).or_default() += 1;
    }

    /// The largest score of a bin.
    pub fn edge(bin: u32) -> f64 {
        EDGE * exp(LOG_RATIO * (f64::from(bin) - f64::from(BELOW)))
    }

    /// How many scores.
    pub fn count(&self) -> u64 {
        self.0.values().sum()
    }

    /// Adds another.
    pub fn merge(&mut self, other: &Self) -> Result<()> {
        let total = self.count().checked_add(other.count());
        if total.is_none_or(|total| total > COUNT_MAX) {
            return Err(Error::peer("a client has more scores than any table has cells"));
        }
        other.0.iter().for_each(|(bin, count)| *self.0.entry(*bin).or_default() += count);
        Ok(())
    }

    /// Scores of the octaves from the first to the last named, by bin.
    pub fn between(&self, first: u32, last: u32) -> Bins {
        let mut bins = Bins::default();
        for (at, count) in self.0.range(first * BINS..(last + 1) * BINS) {
            *bins.0.entry(at % BINS).or_default() += count;
        }
        bins
    }
}

/// Scores whatever the mean, by bin.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Bins(BTreeMap<u32, u64>);

impl Bins {
    /// How many scores.
    pub fn count(&self) -> u64 {
        self.0.values().sum()
    }

    /// How many are in bins up to this one.
    pub fn count_to(&self, bin: u32) -> u64 {
        self.0.range(..=bin).map(|(_, count)| count).sum()
    }

    /// Adds others.
    pub fn add(&mut self, other: &Self) {
        other.0.iter().for_each(|(bin, count)| *self.0.entry(*bin).or_default() += count);
    }

    /// The mean of the squared scores, each taken at the middle of its bin.
    pub fn mean_square(&self) -> f64 {
        let middle = |bin: u32| Histogram::edge(bin) * exp(-0.5 * LOG_RATIO);
        let sum: f64 =
            self.0.iter().map(|(bin, count)| *count as f64 * middle(*bin) * middle(*bin)).sum();
        sum / (self.count() as f64).max(1.0)
    }

    /// The bin at whose edge `ceil((n + 1) level)` of the `n` scores are reached: conformal
    /// prediction's quantile. None where there are too few scores for it, or where it is in the
    /// last bin, which has no upper end.
    pub fn quantile_bin(&self, level: f64) -> Option<u32> {
        let wanted = ((self.count() + 1) as f64 * level).ceil() as u64;
        let mut below = 0;
        let found = self.0.iter().find_map(|(bin, count)| {
            below += count;
            (below >= wanted).then_some(*bin)
        });
        found.filter(|bin| *bin < BINS - 1)
    }
}

impl Wire for Histogram {
    fn put(&self, out: &mut Vec<u8>) {
        put_varint(self.0.len() as u64, out);
        let mut last = 0;
        for (bin, count) in &self.0 {
            put_varint(u64::from(bin - last), out);
            put_varint(*count, out);
            last = *bin;
        }
    }
    fn take(from: &mut &[u8]) -> Result<Self> {
        let bins = take_varint(from)?;
        let (mut last, mut all) = (0u64, Self::default());
        for at in 0..bins {
            let (step, count) = (take_varint(from)?, take_varint(from)?);
            let bin = last.checked_add(step).filter(|bin| *bin < u64::from(BINS * OCTAVES));
            let ordered = at == 0 || step > 0;
            let (Some(bin), true) = (bin, ordered && count > 0 && count <= COUNT_MAX) else {
                return Err(Error::peer("a histogram of scores is not in order"));
            };
            all.0.insert(bin as u32, count);
            last = bin;
        }
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use whimbrel_core::Key;

    #[test]
    fn quantiles_of_histograms_are_within_a_bin_of_the_sorted_ones() {
        let mut stream = Key::root(5).stream();
        let mut scores: Vec<f64> = (0..999).map(|_| stream.normal().abs()).collect();
        let mut histogram = Histogram::default();
        scores.iter().for_each(|s| histogram.add(stream.below(5) as u32, *s));
        let bins = histogram.between(0, OCTAVES - 1);
        scores.sort_by(f64::total_cmp);
        let exact = scores[900 - 1]; // ceil(1000 * 0.9)
        let found = Histogram::edge(bins.quantile_bin(0.9).unwrap());
        assert!(found >= exact && found <= exact * exp(LOG_RATIO), "{found} for {exact}");
        // Halves of bins are 1 % of a score, 2 % of its square.
        let squares = scores.iter().map(|s| s * s).sum::<f64>() / 999.0;
        assert!((bins.mean_square() / squares - 1.0).abs() < 0.02);
    }

    #[test]
    fn extreme_scores_have_bins_and_few_scores_no_quantile() {
        let mut histogram = Histogram::default();
        [0.0, 1e-31, 1e31, f64::INFINITY, f64::NAN].into_iter().for_each(|s| histogram.add(99, s));
        let bins = histogram.between(OCTAVES - 1, OCTAVES - 1);
        assert_eq!((bins.count_to(0), bins.count()), (2, 5));
        assert_eq!(bins.quantile_bin(0.9), None, "six times 0.9 is more than five");
        assert!(Histogram::edge(0) < 1e-30 && Histogram::edge(BINS - 2) > 9e29);
        assert_eq!(bins.quantile_bin(0.3), Some(0));
        assert_eq!(bins.quantile_bin(0.5), None, "the last bin has no upper end");
        assert_eq!(histogram.between(0, OCTAVES - 2), Bins::default());
    }

    #[test]
    fn octaves_double() {
        assert_eq!(Histogram::octave(0.0), 0);
        assert_eq!(Histogram::octave(3.0), Histogram::octave(4.0));
        assert_eq!(Histogram::octave(4.1), Histogram::octave(4.0) + 1);
        assert_eq!(Histogram::octave(1e300), OCTAVES - 1);
    }

    #[test]
    fn histograms_survive_their_bytes_and_disorder_is_refused() {
        let mut histogram = Histogram::default();
        [0.1, 0.1, 3.0, 1e6].into_iter().enumerate().for_each(|(i, s)| histogram.add(i as u32, s));
        let bytes = histogram.to_bytes();
        assert_eq!(Histogram::from_bytes(&bytes).unwrap(), histogram);
        assert!(Histogram::from_bytes(&[2, 5, 1, 0, 1]).is_err(), "a bin twice");
        assert!(Histogram::from_bytes(&[1, 5, 0]).is_err(), "an empty bin");
    }
}
