//! Histograms of scores on a fixed grid, which clients send instead of the scores.

use std::collections::BTreeMap;
use whimbrel_core::math::{exp, ln};
use whimbrel_core::wire::{put_varint, take_varint};
use whimbrel_core::{Error, Result, Wire};

/// Logarithm of the ratio of neighbouring edges (2 %), and one of the edges.
const LOG_RATIO: f64 = 0.02;
const EDGE: f64 = 1e-3;
/// Number of bins below that edge, and in total: from 1e-30 to 1e30. Scores of a Gaussian table have
/// the units of its values, so the grid is wide; a histogram stores nonempty bins only.
const BELOW: u32 = 3_109;
pub const BINS: u32 = 6_910;
/// Number of octaves of the means; the first ends at `2^FIRST_OCTAVE`.
pub const OCTAVES: u32 = 32;
const FIRST_OCTAVE: f64 = -9.0;
/// Number of folds of the held-out cells.
pub const PARTS: u32 = 5;
/// Classes of the number of observations of a cell's row or column, whichever is smaller: up to 1, 3, 7,
/// 15, and more.
pub const CLASSES: u32 = 5;
/// Sources of a score: a held-out cell, or a cell predicted from a subsample of its row.
const SOURCES: u32 = 2;
pub const STRATA: u32 = SOURCES * CLASSES * PARTS * OCTAVES;
/// Largest total count of a histogram.
const COUNT_MAX: u64 = 1 << 48;

/// Counts of scores by [`Stratum`] and bin. Bin `i` of the geometric grid holds scores in
/// `(edge(i - 1), edge(i)]`; the last bin also holds all larger scores.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Histogram(BTreeMap<u32, u64>);

/// A stratum of scores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stratum {
    /// Whether the cell was predicted from a subsample of its row, rather than held out.
    pub thinned: bool,
    /// The class of its number of observations.
    pub class: u32,
    /// The fold.
    pub part: u32,
    /// The octave of its mean.
    pub octave: u32,
}

impl Stratum {
    fn number(self) -> u32 {
        let source = u32::from(self.thinned);
        ((source * CLASSES + self.class) * PARTS + self.part) * OCTAVES + self.octave
    }

    fn of_number(number: u32) -> Self {
        let (rest, octave) = (number / OCTAVES, number % OCTAVES);
        let (rest, part) = (rest / PARTS, rest % PARTS);
        Self { thinned: rest >= CLASSES, class: rest % CLASSES, part, octave }
    }
}

/// The class of a number of observations.
pub fn class_of(observations: u32) -> u32 {
    (observations.max(1).ilog2()).min(CLASSES - 1)
}

impl Histogram {
    /// The octave of a positive mean.
    pub fn octave(mean: f64) -> u32 {
        let octave = (ln(mean.max(1e-300)) / std::f64::consts::LN_2 - FIRST_OCTAVE).ceil();
        octave.clamp(0.0, f64::from(OCTAVES - 1)) as u32
    }

    /// The midpoint of an octave, which represents its means.
    pub fn mean_of(octave: u32) -> f64 {
        0.75 * exp(std::f64::consts::LN_2 * (f64::from(octave) + FIRST_OCTAVE))
    }

    pub fn add(&mut self, stratum: Stratum, score: f64) {
        // NaN, which finite values cannot produce, goes to the last bin.
        let bin = (ln(score / EDGE) / LOG_RATIO).ceil() + f64::from(BELOW);
        let bin = if bin <= 0.0 { 0 } else { bin.min(f64::from(BINS - 1)) as u32 };
        let bin = if score.is_nan() { BINS - 1 } else { bin };
        *self.0.entry(stratum.number() * BINS + bin).or_default() += 1;
    }

    /// The upper edge of a bin.
    pub fn edge(bin: u32) -> f64 {
        EDGE * exp(LOG_RATIO * (f64::from(bin) - f64::from(BELOW)))
    }

    pub fn count(&self) -> u64 {
        self.0.values().sum()
    }

    /// Adds another histogram.
    pub fn merge(&mut self, other: &Self) -> Result<()> {
        let total = self.count().checked_add(other.count());
        if total.is_none_or(|total| total > COUNT_MAX) {
            return Err(Error::peer("a client sent more scores than a table can have cells"));
        }
        other.0.iter().for_each(|(bin, count)| *self.0.entry(*bin).or_default() += count);
        Ok(())
    }

    /// Stratum, bin and count of the nonempty bins of some strata.
    fn of(&self, strata: impl Fn(Stratum) -> bool) -> impl Iterator<Item = (Stratum, u32, u64)> {
        let each =
            self.0.iter().map(|(at, count)| (Stratum::of_number(at / BINS), at % BINS, *count));
        each.filter(move |(stratum, ..)| strata(*stratum))
    }

    /// The scores of some strata, summed by bin.
    pub fn within(&self, strata: impl Fn(Stratum) -> bool) -> Self {
        let mut bins = Self::default();
        self.of(strata).for_each(|(_, bin, count)| *bins.0.entry(bin).or_default() += count);
        bins
    }

    /// The scores of some strata, each multiplied by the factor of its octave, to the nearest bin.
    pub fn rescaled(&self, strata: impl Fn(Stratum) -> bool, factor: impl Fn(u32) -> f64) -> Self {
        let shifts: Vec<f64> = (0..OCTAVES).map(|o| (ln(factor(o)) / LOG_RATIO).round()).collect();
        let mut out = Self::default();
        for (stratum, bin, count) in self.of(strata) {
            let moved = f64::from(bin) + shifts[stratum.octave as usize];
            // Scores in the outermost bins have no finite value to rescale.
            let is_end = bin == 0 || bin == BINS - 1;
            let bin = if is_end { bin } else { moved.clamp(0.0, f64::from(BINS - 2)) as u32 };
            *out.0.entry(stratum.number() * BINS + bin).or_default() += count;
        }
        out
    }

    /// Count and sum of squares of the scores of these strata, by octave, with scores at the middle of
    /// their bins.
    pub fn squares(&self, strata: impl Fn(Stratum) -> bool) -> Vec<[f64; 2]> {
        let mut out = vec![[0.0; 2]; OCTAVES as usize];
        for (stratum, bin, count) in self.of(strata) {
            let own = &mut out[stratum.octave as usize];
            own[0] += count as f64;
            own[1] += count as f64 * middle(bin).powi(2);
        }
        out
    }

    /// Number of scores in bins up to this one.
    pub fn count_to(&self, bin: u32) -> u64 {
        self.0.range(..=bin).map(|(_, count)| count).sum()
    }

    /// Mean squared score, with scores at the middle of their bins.
    pub fn mean_square(&self) -> f64 {
        let square = |(bin, count): (&u32, &u64)| *count as f64 * middle(*bin).powi(2);
        self.0.iter().map(square).sum::<f64>() / (self.count() as f64).max(1.0)
    }

    /// The bin of the conformal quantile, the `ceil((n + 1) level)`-th smallest of `n` scores. `None` with
    /// too few scores, or in the last bin, which has no upper edge.
    pub fn quantile_bin(&self, level: f64) -> Option<u32> {
        let wanted = ((self.count() + 1) as f64 * level).ceil() as u64;
        let mut below = 0;
        let found = self.0.iter().find_map(|(bin, count)| {
            below += count;
            (below >= wanted).then_some(*bin)
        });
        found.filter(|bin| *bin < BINS - 1)
    }

    /// The quantile at one standard error above the level, as far as the number of scores allows: too
    /// small a quantile would affect all cells of its group.
    pub fn upper_quantile_bin(&self, level: f64) -> Option<u32> {
        let n = self.count() as f64;
        let margin = (level * (1.0 - level) / n.max(1.0)).sqrt();
        self.quantile_bin((level + margin).min(n / (n + 1.0)).max(level))
    }
}

/// The geometric middle of a bin.
fn middle(bin: u32) -> f64 {
    Histogram::edge(bin) * exp(-0.5 * LOG_RATIO)
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
            let bin = last.checked_add(step).filter(|bin| *bin < u64::from(STRATA * BINS));
            let ordered = at == 0 || step > 0;
            let (Some(bin), true) = (bin, ordered && count > 0 && count <= COUNT_MAX) else {
                return Err(Error::peer("the bins of a histogram of scores are not in order"));
            };
            all.0.insert(bin as u32, count);
            last = bin;
        }
        Ok(all)
    }
}
