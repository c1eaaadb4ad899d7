//! How far off the fit is: dispersion, and intervals calibrated on cells that were held out.
//!
//! Federated conformal prediction. A client answers with histograms of the scores
//! `s = |y - mu| / scale(mu)` of its held-out cells, by octave of `mu`. Octaves are joined to
//! groups of at least [`GROUP_MIN`] cells, and the 90 % quantile `q` of a group's scores makes the
//! intervals `mu +- q scale(mu)` of its means: so small and large counts are each covered, however
//! their spread grows with the mean.
//!
//! How many such intervals hold is found by cross-checking: the cells fall into [`PARTS`] parts
//! that depend only on where a cell lies, and each part is held against the quantiles of the
//! others. With a few dozen held-out cells, that share is far steadier than that of one half
//! checked against the other.

use super::histogram::{BINS, Bins, Histogram, OCTAVES};
use super::{Family, Settings, Variance};
use whimbrel_core::sum::ExactSum;
use whimbrel_core::{Error, Key, Result, Wire, wire};

/// The share of values that an interval is to hold.
pub const LEVEL: f64 = 0.9;
/// Parts of the held-out cells, for cross-checking.
pub const PARTS: usize = 5;
/// The fewest held-out cells whose means make a group; with fewer, all are one group.
pub const GROUP_MIN: u64 = 100;
/// The most groups.
pub const GROUPS_MAX: usize = 10;
/// The normal quantile that goes with [`LEVEL`] on two sides, used where nothing was held out.
pub(super) const NORMAL_QUANTILE: f64 = 1.644_853_626_951_472_2;
/// The stream that deals the held-out cells to parts.
const DEAL: u64 = 0xCA11;

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

/// Where a mean belongs. The spread of counts grows with the mean in ways that the family does not
/// know; other values are all treated alike.
fn octave(family: Family, mean: f64) -> u32 {
    match family {
        Family::Poisson => Histogram::octave(mean),
        Family::Gaussian | Family::Bernoulli => 0,
    }
}

/// Sums over some cells.
#[derive(Clone, Copy, Debug, PartialEq, Default)]
pub struct Tally {
    /// How many.
    pub count: u64,
    /// Squared errors of the mean.
    pub squared: f64,
    /// Deviances, as models are compared by.
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
        self.deviance += family.judged_deviance(y, mean);
        self.pearson += s * s;
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
    /// Scores of the held-out cells, by part.
    pub parts: [Histogram; PARTS],
}

impl Wire for Scores {
    fn put(&self, out: &mut Vec<u8>) {
        self.observed.put(out);
        self.held_out.put(out);
        self.parts.iter().for_each(|part| part.put(out));
    }
    fn take(from: &mut &[u8]) -> Result<Self> {
        let (observed, held_out) = (Tally::take(from)?, Tally::take(from)?);
        let mut parts: [Histogram; PARTS] = Default::default();
        for part in &mut parts {
            *part = Histogram::take(from)?;
        }
        Ok(Self { observed, held_out, parts })
    }
}

impl Scores {
    /// The most bytes that the scores of so many held-out cells take: a cell is in one bin, and a
    /// bin is at most eleven bytes.
    pub fn bytes_max(family: Family, held_out: usize) -> usize {
        let octaves = if family == Family::Poisson { OCTAVES } else { 1 };
        let bins = held_out.min(PARTS * (octaves * BINS) as usize);
        64 + 10 * PARTS + 11 * bins
    }

    /// Adds a held-out cell; the part it belongs to follows from its number in the table.
    pub fn add_held_out(&mut self, family: Family, position: u64, y: f64, mean: f64) {
        self.held_out.add(family, y, mean);
        let part = (Key::root(DEAL).fold(position).uniform() * PARTS as f64) as usize;
        self.parts[part].add(octave(family, mean), score(family, y, mean));
    }

    /// With the counts and histograms of others added.
    fn with_counts(&self, other: &Self) -> Result<Self> {
        let mut out = self.clone();
        let pairs = [
            (&mut out.observed.count, other.observed.count),
            (&mut out.held_out.count, other.held_out.count),
        ];
        for (own, other) in pairs {
            let sum = own.checked_add(other);
            *own = sum.ok_or_else(|| Error::peer("a client has more cells than any table"))?;
        }
        out.parts.iter_mut().zip(&other.parts).try_for_each(|(part, other)| part.merge(other))?;
        Ok(out)
    }

    /// The share of held-out cells inside the interval of this level that the other parts' scores
    /// make; none where there are too few.
    pub fn coverage(&self, level: f64) -> Option<f64> {
        let (mut inside, mut checked) = (0, 0);
        let mut first = 0;
        for last in self.last_octaves() {
            let parts = self.parts.each_ref().map(|part| part.between(first, last));
            for (i, part) in parts.iter().enumerate() {
                let mut others = Bins::default();
                (0..PARTS).filter(|j| *j != i).for_each(|j| others.add(&parts[j]));
                if let Some(bin) = others.quantile_bin(level) {
                    inside += part.count_to(bin);
                    checked += part.count();
                }
            }
            first = last + 1;
        }
        (checked > 0).then(|| inside as f64 / checked as f64)
    }

    /// The last octave of each group: octaves are joined, small means first, until a group has
    /// enough cells; a rest that has not goes with the group before it.
    fn last_octaves(&self) -> Vec<u32> {
        let within = |first, last| -> u64 {
            self.parts.iter().map(|part| part.between(first, last).count()).sum()
        };
        let enough = GROUP_MIN.max(within(0, OCTAVES - 1).div_ceil(GROUPS_MAX as u64));
        let (mut groups, mut first) = (Vec::new(), 0);
        for last in 0..OCTAVES {
            if within(first, last) >= enough {
                groups.push(last);
                first = last + 1;
            }
        }
        match groups.last_mut() {
            Some(last) => *last = OCTAVES - 1,
            None => groups.push(OCTAVES - 1),
        }
        groups
    }
}

/// The scores of several clients, added exactly: the same bits in whatever order.
#[derive(Clone, Debug, PartialEq)]
pub struct ScoreSums {
    /// The sums of both tallies.
    sums: ExactSum,
    /// Counts and histograms; its sums stay at zero.
    counts: Scores,
}

wire!(ScoreSums { sums, counts });

impl Default for ScoreSums {
    fn default() -> Self {
        Self::new()
    }
}

impl ScoreSums {
    /// Of nobody.
    pub fn new() -> Self {
        Self { sums: ExactSum::new(6), counts: Scores::default() }
    }

    /// Adds a client's.
    pub fn absorb(&mut self, scores: &Scores) -> Result<()> {
        let of = |tally: &Tally| [tally.squared, tally.deviance, tally.pearson];
        let sums = [of(&scores.observed), of(&scores.held_out)].concat();
        if !sums.iter().all(|sum| sum.is_finite()) {
            return Err(Error::peer("a client's sums over cells are not finite"));
        }
        let counts = self.counts.with_counts(scores)?;
        self.sums.add(&sums, 1.0)?;
        self.counts = counts;
        Ok(())
    }

    /// Adds those of others.
    pub fn merge(&mut self, other: &Self) -> Result<()> {
        self.counts = self.counts.with_counts(&other.counts)?;
        self.sums.merge(&other.sums)
    }

    /// The scores of all.
    pub fn value(&self) -> Scores {
        let sums = self.sums.value();
        let tally = |count, sums: &[f64]| Tally {
            count,
            squared: sums[0],
            deviance: sums[1],
            pearson: sums[2],
        };
        let Scores { observed, held_out, parts } = self.counts.clone();
        let (observed, held_out) =
            (tally(observed.count, &sums[..3]), tally(held_out.count, &sums[3..]));
        Scores { observed, held_out, parts }
    }
}

/// What is known about cells whose means are alike.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Group {
    /// The last octave of the means.
    pub last: u32,
    /// Intervals are `mu +- quantile scale(mu)`.
    pub quantile: f64,
    /// By how much variances exceed the family's.
    pub dispersion: f64,
}

wire!(Group { last, quantile, dispersion });

/// What the scores of everyone amount to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Calibration {
    /// By how much variances exceed the family's, over all cells: Pearson's chi-square per degree
    /// of freedom, at least 1 for counts and yes-or-no values. The variance itself for a Gaussian (1
    /// where the model says so).
    pub dispersion: f64,
    /// By the size of the mean, ascending; those after the first `group_count` mean nothing.
    groups: [Group; GROUPS_MAX],
    group_count: u8,
    /// Whether the quantiles were found on held-out cells; else they are the normal one.
    pub calibrated: bool,
    /// The share of held-out cells inside the intervals, cross-checked.
    pub coverage: Option<f64>,
    /// Whether nothing was held out and the residuals of so many parameters say next to nothing.
    pub doubtful: bool,
}

impl Wire for Calibration {
    fn put(&self, out: &mut Vec<u8>) {
        self.dispersion.put(out);
        self.groups().to_vec().put(out);
        self.calibrated.put(out);
        self.coverage.put(out);
        self.doubtful.put(out);
    }
    fn take(from: &mut &[u8]) -> Result<Self> {
        let (dispersion, groups) = (f64::take(from)?, Vec::<Group>::take(from)?);
        let all = Self::from_parts(dispersion, &groups, bool::take(from)?, Wire::take(from)?)?;
        Ok(Self { doubtful: bool::take(from)?, ..all })
    }
}

impl Calibration {
    /// From the scores of all clients. `parameters` is how many the observed cells determine; it
    /// matters where fewer than [`HELD_OUT_MIN`] cells were held out.
    pub fn new(settings: &Settings, scores: &Scores, parameters: usize) -> Self {
        let unit = settings.family == Family::Gaussian && settings.variance == Variance::Unit;
        let floor = dispersion_min(settings.family);
        let dispersion = if unit { 1.0 } else { dispersion(scores, parameters).max(floor) };
        let everywhere =
            Group { last: OCTAVES - 1, quantile: NORMAL_QUANTILE * dispersion.sqrt(), dispersion };
        let (mut groups, mut first) = (Vec::new(), 0);
        for last in scores.last_octaves() {
            let mut bins = Bins::default();
            scores.parts.iter().for_each(|part| bins.add(&part.between(first, last)));
            first = last + 1;
            groups.push(bins.quantile_bin(LEVEL).map(|bin| Group {
                last,
                quantile: Histogram::edge(bin),
                // A single group is everyone, and its chi-square is known better.
                dispersion: if bins.count() < scores.held_out.count && !unit {
                    bins.mean_square().max(floor)
                } else {
                    dispersion
                },
            }));
        }
        // A group without a quantile (too few cells, or scores beyond the grid) leaves all to the
        // dispersion.
        let found: Option<Vec<Group>> = groups.into_iter().collect();
        let calibrated = found.is_some();
        let coverage = if calibrated { scores.coverage(LEVEL) } else { None };
        let found = found.unwrap_or_else(|| vec![everywhere]);
        let all = Self::from_parts(dispersion, &found, calibrated, coverage)
            .expect("groups from octaves are in order");
        let few = (scores.observed.count as f64) < FREEDOM_MIN * parameters as f64;
        Self { doubtful: few && scores.held_out.count < HELD_OUT_MIN, ..all }
    }

    /// Checks and puts together what was stored.
    pub fn from_parts(
        dispersion: f64,
        found: &[Group],
        calibrated: bool,
        coverage: Option<f64>,
    ) -> Result<Self> {
        let ordered = found.windows(2).all(|pair| pair[0].last < pair[1].last);
        let (Some(last), true) = (found.last(), ordered && found.len() <= GROUPS_MAX) else {
            return Err(Error::data("the groups of a calibration are not in order"));
        };
        let mut groups = [*last; GROUPS_MAX];
        groups[..found.len()].copy_from_slice(found);
        let group_count = found.len() as u8;
        Ok(Self { dispersion, groups, group_count, calibrated, coverage, doubtful: false })
    }

    /// What is known about means of each size, ascending.
    pub fn groups(&self) -> &[Group] {
        &self.groups[..usize::from(self.group_count)]
    }

    /// What is known about cells with such a mean.
    pub fn group_of(&self, family: Family, mean: f64) -> Group {
        let octave = octave(family, mean);
        let groups = self.groups();
        let found = groups.iter().find(|group| octave <= group.last);
        *found.unwrap_or(&groups[groups.len() - 1])
    }
}

/// So many held-out cells make a quantile of [`LEVEL`], and a dispersion.
pub const HELD_OUT_MIN: u64 = 9;
/// With fewer observations per parameter than this, residuals cannot tell noise from fit.
const FREEDOM_MIN: f64 = 2.0;
/// At least this share of the observations counts as degrees of freedom.
const FREEDOM_SHARE_MIN: f64 = 0.1;

/// Counts and yes-or-no values spread at least as much as their family says; if residuals are
/// smaller, that is the fit's doing.
fn dispersion_min(family: Family) -> f64 {
    match family {
        Family::Gaussian => 0.0,
        Family::Poisson | Family::Bernoulli => 1.0,
    }
}

/// Held-out cells measure the spread around the fit without having shaped it. Without them the
/// observed ones must do, over the degrees of freedom that are left. Where these are few the
/// squares of a fit that could follow most values are scaled up by as much again: the cross-
/// validation error of a linear fit, `sum r^2 / N / (1 - p/N)^2`.
fn dispersion(scores: &Scores, parameters: usize) -> f64 {
    let Scores { observed, held_out, .. } = scores;
    if held_out.count >= HELD_OUT_MIN {
        return held_out.pearson / held_out.count as f64;
    }
    let (n, p) = (observed.count.max(1) as f64, parameters as f64);
    let free = (1.0 - p / n).max(FREEDOM_SHARE_MIN);
    let freedom = if n < FREEDOM_MIN * p { n * free * free } else { n * free };
    observed.pearson / freedom
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts whose variance is `mean + mean^2/2`, around known means from 0.2 to 2,000.
    fn overdispersed(cells: u64, seed: u64) -> (Scores, Vec<(f64, f64)>) {
        let mut stream = Key::root(seed).stream();
        let (mut scores, mut values) = (Scores::default(), Vec::new());
        for position in 0..cells {
            let mean = 0.2 * 10f64.powf(4.0 * stream.uniform());
            let rate = mean * stream.gamma(2.0) / 2.0;
            let y = stream.poisson(rate) as f64;
            scores.add_held_out(Family::Poisson, position, y, mean);
            values.push((y, mean));
        }
        (scores, values)
    }

    /// 8,000 cells: a binomial standard deviation of 0.34 % of the share inside, of 0.6 % in a
    /// third of them; 1.5 % and 2.5 % are four of those.
    #[test]
    fn calibrated_intervals_cover_small_and_large_means_alike() {
        let (scores, values) = overdispersed(8_000, 6);
        let settings = Settings::new(100, 80, Family::Poisson);
        let calibration = Calibration::new(&settings, &scores, 0);
        let coverage = calibration.coverage.unwrap();
        assert!((coverage - LEVEL).abs() < 0.015, "{coverage}");
        assert!(calibration.groups().len() > 3, "{calibration:?}");
        for (low, high) in [(0.0, 4.0), (4.0, 90.0), (90.0, 1e9)] {
            let third = values.iter().filter(|(_, mean)| (low..high).contains(mean));
            let inside = third.clone().filter(|(y, mean)| {
                let group = calibration.group_of(Family::Poisson, *mean);
                score(Family::Poisson, *y, *mean) <= group.quantile
            });
            let share = inside.count() as f64 / third.count() as f64;
            assert!((share - LEVEL).abs() < 0.025, "{share} from {low} to {high}");
        }
        let first = calibration.groups()[0].dispersion;
        assert!(calibration.dispersion > 10.0 * first, "spreads grow with means: {calibration:?}");
    }

    /// Forty held-out cells: one group, and a share that a half against a half would put anywhere
    /// from 75 % to 100 %.
    #[test]
    fn few_cells_are_one_group_and_still_checked() {
        let settings = Settings::new(10, 8, Family::Poisson);
        for seed in 0..20 {
            let (scores, _) = overdispersed(40, 100 + seed);
            let calibration = Calibration::new(&settings, &scores, 0);
            assert!(calibration.calibrated && calibration.groups().len() == 1);
            let coverage = calibration.coverage.unwrap();
            assert!((0.82..=1.0).contains(&coverage), "{coverage}");
        }
        let (scores, _) = overdispersed(5, 7);
        let calibration = Calibration::new(&settings, &scores, 0);
        assert!(!calibration.calibrated && calibration.coverage.is_none());
        assert_eq!(
            calibration.groups()[0].quantile,
            NORMAL_QUANTILE * calibration.dispersion.sqrt()
        );
    }

    /// A hundred cells whose residuals the fit has made a tenth of what they were.
    #[test]
    fn residuals_of_many_parameters_promise_little() {
        let of = |family, held_out, parameters| {
            let mut scores = Scores::default();
            for position in 0..100u64 {
                let y = f64::from(position % 2 == 0);
                scores.observed.add(family, y, 0.5 + 0.4 * (2.0 * y - 1.0));
                if position < held_out {
                    scores.add_held_out(family, position, y, 0.5);
                }
            }
            Calibration::new(&Settings::new(20, 10, family), &scores, parameters)
        };
        let near = |x: f64, y: f64| (x - y).abs() < 1e-12;
        let free = of(Family::Gaussian, 0, 20);
        assert!(near(free.dispersion, 0.01 / 0.8) && !free.doubtful && !free.calibrated);
        let full = of(Family::Gaussian, 0, 75);
        assert!(near(full.dispersion, 0.01 / 0.0625) && full.doubtful, "{full:?}");
        let checked = of(Family::Gaussian, 12, 75);
        assert!(near(checked.dispersion, 0.25) && !checked.doubtful && checked.calibrated);
        assert_eq!(of(Family::Bernoulli, 0, 20).dispersion, 1.0);
        assert_eq!(Calibration::from_bytes(&full.to_bytes()).unwrap(), full);
    }

    /// Errors around zero with this standard deviation.
    fn gaussian(sd: f64) -> Calibration {
        let mut stream = Key::root(12).stream();
        let mut scores = Scores::default();
        for position in 0..2_000 {
            scores.add_held_out(Family::Gaussian, position, sd * stream.normal(), 0.0);
        }
        Calibration::new(&Settings::new(50, 40, Family::Gaussian), &scores, 0)
    }

    /// 2,000 cells: the share inside has a standard deviation of 0.7 %, so the quantile one of
    /// 0.03 standard deviations; a bin adds 2 %. Five of those are 0.15 + 0.03.
    #[test]
    fn intervals_do_not_depend_on_the_units_of_a_gaussian_table() {
        for sd in [1e-9, 1.0, 1e5, 1e20] {
            let calibration = gaussian(sd);
            let reach = calibration.groups()[0].quantile / sd;
            assert!((reach - NORMAL_QUANTILE).abs() < 0.18, "{reach} at {sd}");
            let coverage = calibration.coverage.unwrap();
            assert!(calibration.calibrated && (coverage - LEVEL).abs() < 0.035, "{coverage}");
        }
    }

    #[test]
    fn scores_beyond_the_grid_calibrate_nothing() {
        let calibration = gaussian(1e40);
        assert!(!calibration.calibrated && calibration.coverage.is_none());
        let reach = calibration.groups()[0].quantile;
        assert_eq!(reach, NORMAL_QUANTILE * calibration.dispersion.sqrt());
    }

    #[test]
    fn calibrations_and_scores_survive_their_bytes() {
        let (scores, _) = overdispersed(900, 8);
        assert_eq!(Scores::from_bytes(&scores.to_bytes()).unwrap(), scores);
        let calibration = Calibration::new(&Settings::new(30, 30, Family::Poisson), &scores, 0);
        assert_eq!(Calibration::from_bytes(&calibration.to_bytes()).unwrap(), calibration);
        let backwards: Vec<Group> = calibration.groups().iter().rev().copied().collect();
        assert!(Calibration::from_parts(1.0, &backwards, true, None).is_err());
        assert!(Calibration::from_parts(1.0, &[], true, None).is_err());
    }

    #[test]
    fn a_fit_is_judged_by_the_floor_of_its_contenders() {
        let mut tally = Tally::default();
        tally.add(Family::Poisson, 1.0, 1e-9);
        assert_eq!(tally.deviance, Family::Poisson.deviance(1.0, crate::lowrank::JUDGED_MEAN_MIN));
        assert_eq!(Family::Poisson.judged_deviance(1.0, 0.4), Family::Poisson.deviance(1.0, 0.4));
        let certain = Family::Bernoulli.judged_deviance(0.0, 1.0);
        assert!(certain.is_finite() && certain > 10.0, "{certain}");
        assert_eq!(Family::Gaussian.judged_deviance(1.0, -2.0), 9.0);
    }

    #[test]
    fn merged_scores_are_those_of_all_cells() {
        let (mut one, values) = overdispersed(300, 9);
        let mut both = one.clone();
        for (i, (y, mean)) in values.iter().enumerate() {
            both.add_held_out(Family::Poisson, 300 + i as u64, *y, *mean);
        }
        let mut other = Scores::default();
        for (i, (y, mean)) in values.iter().enumerate() {
            other.add_held_out(Family::Poisson, 300 + i as u64, *y, *mean);
        }
        let [mut sums, mut others] = [ScoreSums::new(), ScoreSums::new()];
        sums.absorb(&one).unwrap();
        others.absorb(&other).unwrap();
        sums.merge(&others).unwrap();
        let all = sums.value();
        assert_eq!((&all.parts, all.held_out.count), (&both.parts, both.held_out.count));
        let gap = all.held_out.deviance / both.held_out.deviance - 1.0;
        assert!(gap.abs() < 1e-12, "{gap}");
        one.held_out.squared = f64::NAN;
        assert!(sums.absorb(&one).is_err());
        assert_eq!(sums.value(), all);
    }
}
