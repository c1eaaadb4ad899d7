//! How far off the fit is: dispersion, and intervals calibrated on cells that were held out.
//!
//! Federated split conformal: a client answers with a histogram of the scores
//! `s = |y - mu| / scale(mu)` of its held-out cells, in two halves that depend only on where a cell
//! lies. The 90 % quantile of the first half makes intervals `mu +- q scale(mu)`; the second half
//! says how many of them hold. `scale` is all there is to choose, and it stands here alone.

use super::{Family, Settings, Variance};
use whimbrel_core::math::{exp, ln};
use whimbrel_core::wire::{put_varint, take_varint};
use whimbrel_core::{Error, Key, Result, Wire, wire};

/// The share of values that an interval is to hold.
pub const LEVEL: f64 = 0.9;
/// The normal quantile that goes with [`LEVEL`] on two sides, used where nothing was held out.
const NORMAL_QUANTILE: f64 = 1.644_853_626_951_472_2;

/// The spread of a value around its mean, up to one factor that calibration finds: the family's
/// own, and a little more so that a mean near the end of its range does not promise certainty.
pub fn scale(family: Family, mean: f64) -> f64 {
    let floor = match family {
        Family::Gaussian => 0.0,
        Family::Poisson => 0.05,
        Family::Bernoulli => 0.01,
    };
    (family.variance(mean) + floor).sqrt()
}

/// `|y - mu| / scale(mu)`.
pub fn score(family: Family, y: f64, mean: f64) -> f64 {
    (y - mean).abs() / scale(family, mean)
}

/// Sums over some cells.
#[derive(Clone, Copy, Debug, PartialEq, Default)]
pub struct Tally {
    /// How many.
    pub count: u64,
    /// Squared errors of the mean.
    pub squared: f64,
    /// Deviances.
    pub deviance: f64,
    /// Squared scores: Pearson's chi-square.
    pub pearson: f64,
}

wire!(Tally { count, squared, deviance, pearson });

impl Tally {
    /// Adds one cell.
    pub fn add(&mut self, family: Family, y: f64, mean: f64) {
        let s = score(family, y, mean);
        self.count += 1;
        self.squared += (y - mean) * (y - mean);
        self.deviance += family.deviance(y, mean);
        self.pearson += s * s;
    }

    /// Adds the sums of others.
    pub fn merge(&mut self, other: &Self) -> Result<()> {
        let sums = [other.squared, other.deviance, other.pearson];
        let count = self.count.checked_add(other.count);
        let (true, Some(count)) = (sums.iter().all(|sum| sum.is_finite()), count) else {
            return Err(Error::peer("a client's sums over cells are not finite"));
        };
        self.count = count;
        self.squared += other.squared;
        self.deviance += other.deviance;
        self.pearson += other.pearson;
        Ok(())
    }

    /// A sum over the count; none where there is nothing.
    pub fn mean_of(&self, sum: f64) -> Option<f64> {
        (self.count > 0).then(|| sum / self.count as f64)
    }
}

/// What a client says about how well the fit does on its cells.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Scores {
    /// Over the cells of the fit.
    pub observed: Tally,
    /// Over the cells held out.
    pub held_out: Tally,
    /// Scores of the held-out cells that calibrate.
    pub calibrating: Histogram,
    /// Scores of those that check the calibration.
    pub checking: Histogram,
}

wire!(Scores { observed, held_out, calibrating, checking });

impl Scores {
    /// Adds a held-out cell; the half it belongs to follows from its number in the table.
    pub fn add_held_out(&mut self, family: Family, position: u64, y: f64, mean: f64) {
        self.held_out.add(family, y, mean);
        let calibrates = Key::root(HALVES).fold(position).uniform() < 0.5;
        let half = if calibrates { &mut self.calibrating } else { &mut self.checking };
        half.add(score(family, y, mean));
    }

    /// Adds another client's.
    pub fn merge(&mut self, other: &Self) -> Result<()> {
        self.observed.merge(&other.observed)?;
        self.held_out.merge(&other.held_out)?;
        self.calibrating.merge(&other.calibrating)?;
        self.checking.merge(&other.checking)
    }
}

/// The stream that halves the held-out cells.
const HALVES: u64 = 0xCA11;

/// Counts of scores on a fixed geometric grid: bin `i` holds what is at most [`Histogram::edge`]
/// of `i` and above that of `i - 1`; the last bin holds all the rest.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Histogram(std::collections::BTreeMap<u32, u64>);

/// The edge of the first bin, the logarithm of the ratio of neighbouring edges (2 %), and the
/// number of bins: up to 1e4.
const LOWEST: f64 = 1e-3;
const LOG_RATIO: f64 = 0.02;
const BINS: u32 = 807;

impl Histogram {
    /// Adds one score.
    pub fn add(&mut self, score: f64) {
        // NaN, which no score of finite numbers is, lands in the last bin.
        let bin = (ln(score / LOWEST) / LOG_RATIO).ceil();
        let bin = if bin <= 0.0 { 0 } else { bin.min(f64::from(BINS - 1)) as u32 };
        let bin = if score.is_nan() { BINS - 1 } else { bin };
        *self.0.entry(bin).or_default() += 1;
    }

    /// The largest score of a bin.
    pub fn edge(bin: u32) -> f64 {
        LOWEST * exp(LOG_RATIO * f64::from(bin))
    }

    /// How many scores.
    pub fn count(&self) -> u64 {
        self.0.values().sum()
    }

    /// How many scores are in bins up to this one.
    pub fn count_to(&self, bin: u32) -> u64 {
        self.0.range(..=bin).map(|(_, count)| count).sum()
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

    /// The bin at whose edge `ceil((n + 1) level)` of the `n` scores are reached: split conformal's
    /// quantile. None where there are too few scores for it.
    pub fn quantile_bin(&self, level: f64) -> Option<u32> {
        let n = self.count();
        let wanted = ((n + 1) as f64 * level).ceil() as u64;
        let mut below = 0;
        self.0.iter().find_map(|(bin, count)| {
            below += count;
            (below >= wanted).then_some(*bin)
        })
    }
}

/// No histogram holds more.
const COUNT_MAX: u64 = 1 << 48;

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
            let bin = last.checked_add(step).filter(|bin| *bin < u64::from(BINS));
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

/// What the scores of everyone amount to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Calibration {
    /// By how much variances exceed the family's: Pearson's chi-square per degree of freedom. The
    /// variance itself for a Gaussian (1 where the model says so).
    pub dispersion: f64,
    /// Intervals are `mu +- quantile scale(mu)`.
    pub quantile: f64,
    /// Whether the quantile was found on held-out cells; else it is the normal one.
    pub calibrated: bool,
    /// The share of checking cells inside their interval.
    pub coverage: Option<f64>,
}

wire!(Calibration { dispersion, quantile, calibrated, coverage });

impl Calibration {
    /// From the scores of all clients. `parameters` is how many numbers the fit has.
    pub fn new(settings: &Settings, scores: &Scores, parameters: usize) -> Self {
        let dispersion =
            if settings.family == Family::Gaussian && settings.variance == Variance::Unit {
                1.0
            } else {
                dispersion(scores, parameters)
            };
        let bin = scores.calibrating.quantile_bin(LEVEL);
        let checks = scores.checking.count();
        Self {
            dispersion,
            quantile: bin.map_or(NORMAL_QUANTILE * dispersion.sqrt(), Histogram::edge),
            calibrated: bin.is_some(),
            coverage: bin
                .filter(|_| checks > 0)
                .map(|bin| scores.checking.count_to(bin) as f64 / checks as f64),
        }
    }
}

/// Fewer held-out cells than this say less than the observed ones.
const HELD_OUT_MIN: u64 = 50;

/// Held-out cells measure the spread around the fit without having shaped it. Without them the
/// observed ones must do, with as many degrees of freedom as are left, at least half: a penalised
/// fit has fewer parameters than it has numbers.
fn dispersion(scores: &Scores, parameters: usize) -> f64 {
    let Scores { observed, held_out, .. } = scores;
    if held_out.count >= HELD_OUT_MIN {
        return held_out.pearson / held_out.count as f64;
    }
    let n = observed.count as f64;
    observed.pearson / (n - parameters as f64).max(0.5 * n).max(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_of_histograms_are_within_a_bin_of_the_sorted_ones() {
        let mut stream = Key::root(5).stream();
        let mut scores: Vec<f64> = (0..999).map(|_| stream.normal().abs()).collect();
        let mut histogram = Histogram::default();
        scores.iter().for_each(|s| histogram.add(*s));
        scores.sort_by(f64::total_cmp);
        let exact = scores[900 - 1]; // ceil(1000 * 0.9)
        let found = Histogram::edge(histogram.quantile_bin(0.9).unwrap());
        assert!(found >= exact && found <= exact * exp(LOG_RATIO), "{found} for {exact}");
    }

    #[test]
    fn extreme_scores_have_bins_and_few_scores_no_quantile() {
        let mut histogram = Histogram::default();
        [0.0, 1e-9, 1e9, f64::INFINITY, f64::NAN].into_iter().for_each(|s| histogram.add(s));
        assert_eq!((histogram.count_to(0), histogram.count()), (2, 5));
        assert_eq!(histogram.quantile_bin(0.9), None, "six times 0.9 is more than five");
        assert!(Histogram::edge(BINS - 1) > 9e3);
    }

    #[test]
    fn histograms_survive_their_bytes_and_disorder_is_refused() {
        let mut histogram = Histogram::default();
        [0.1, 0.1, 3.0, 1e6].into_iter().for_each(|s| histogram.add(s));
        let bytes = histogram.to_bytes();
        assert_eq!(Histogram::from_bytes(&bytes).unwrap(), histogram);
        assert!(Histogram::from_bytes(&[2, 5, 1, 0, 1]).is_err(), "a bin twice");
        assert!(Histogram::from_bytes(&[1, 5, 0]).is_err(), "an empty bin");
    }

    /// Overdispersed counts around a known mean: calibrated intervals hold 90 % of the checking
    /// half. 4,000 cells there: a binomial standard deviation of 0.5 %, so 2 % is four of them.
    #[test]
    fn calibrated_intervals_cover_what_they_promise() {
        let mut stream = Key::root(6).stream();
        let mut scores = Scores::default();
        for position in 0..8_000 {
            let mean = 1.0 + 20.0 * stream.uniform();
            let rate = mean * stream.gamma(2.0) / 2.0;
            let y = stream.poisson(rate) as f64;
            scores.add_held_out(Family::Poisson, position, y, mean);
        }
        let settings = Settings::new(100, 80, Family::Poisson);
        let calibration = Calibration::new(&settings, &scores, 0);
        let coverage = calibration.coverage.unwrap();
        assert!((coverage - LEVEL).abs() < 0.02, "{coverage}");
        assert!(calibration.dispersion > 3.0, "mean/2 + 1 on average: {calibration:?}");
    }
}
