//! Dispersion, and prediction intervals calibrated on held-out cells.
//!
//! Federated conformal prediction. A client sends a histogram of the scores `s = |y - mu| / scale(mu)` of
//! its held-out cells, by number of observations of row and column and by octave of `mu`. Neighbouring
//! classes and octaves are merged to groups of at least [`GROUP_MIN`] cells. Counts of a group have the
//! negative binomial variance `mu + alpha mu^2`, with `alpha` estimated by moments. The 90 % quantile `q`
//! of the scores relative to that standard deviation, raised by one standard error of the level, gives
//! the intervals `mu +- q scale(mu)`. Small and large counts, and frequently and rarely observed rows,
//! thus have the nominal coverage, whatever the growth of the variance.
//!
//! Rarely observed rows have few held-out cells. A client therefore also predicts each held-out cell from
//! a subsample of one to fifteen other cells of its row, with the columns fixed. These scores calibrate
//! the classes of few observations.
//!
//! Coverage is estimated by cross-validation: cells are assigned to five folds by their position, and
//! each fold is compared with the quantiles of the others.

pub use super::histogram::{BINS, CLASSES, Histogram, OCTAVES, Stratum, class_of};
use super::histogram::{PARTS, STRATA};
use super::{Family, Settings, Variance};
use std::ops::RangeInclusive;
use whimbrel_core::sum::ExactSum;
use whimbrel_core::{Error, Key, Result, vector, wire};

/// The nominal coverage of intervals.
pub const LEVEL: f64 = 0.9;
/// Fewest held-out cells of a group; with fewer in total, there is a single group.
pub const GROUP_MIN: u64 = 100;
const GROUPS_MAX: u64 = 10;
/// The two-sided normal quantile of [`LEVEL`], used if nothing was held out.
pub const NORMAL_QUANTILE: f64 = 1.644_853_626_951_472_2;
/// The key that assigns held-out cells to folds.
const DEAL: u64 = 0xCA11;

/// The scale of a value around its mean, up to a factor found by calibration: the family's standard
/// deviation, with a floor on the variance for means near the end of their range.
pub fn scale(family: Family, mean: f64) -> f64 {
    (family.variance(mean) + floor(family)).sqrt()
}

fn floor(family: Family) -> f64 {
    match family {
        Family::Gaussian => 0.0,
        Family::Poisson => 0.05,
        Family::Bernoulli => 0.01,
    }
}

/// `|y - mu| / scale(mu)`.
pub fn score(family: Family, y: f64, mean: f64) -> f64 {
    (y - mean).abs() / scale(family, mean)
}

/// The octave of a mean. Only counts are stratified by mean, since their variance may grow faster than
/// the family's.
fn octave(family: Family, mean: f64) -> u32 {
    match family {
        Family::Poisson => Histogram::octave(mean),
        Family::Gaussian | Family::Bernoulli => 0,
    }
}

impl Stratum {
    /// The stratum of a cell, from its index in the table and its number of observations.
    fn of(family: Family, (position, observations): (u64, u32), mean: f64) -> Self {
        let part = (Key::root(DEAL).child(position).uniform() * f64::from(PARTS)) as u32;
        let (class, octave) = (class_of(observations), octave(family, mean));
        Self { thinned: false, class, part, octave }
    }
}

/// Sums of errors over some cells.
#[derive(Clone, Copy, Debug, PartialEq, Default)]
pub struct Tally {
    pub count: u64,
    /// Sum of squared errors.
    pub squared: f64,
    /// Sum of [judged deviances](Family::judged_deviance).
    pub deviance: f64,
    /// Sum of squared scores: Pearson's chi-square.
    pub pearson: f64,
}

wire!(Tally { count, squared, deviance, pearson });

impl Tally {
    pub fn add(&mut self, family: Family, y: f64, mean: f64) {
        let s = score(family, y, mean);
        self.count += 1;
        self.squared += (y - mean) * (y - mean);
        self.deviance += family.judged_deviance(y, mean);
        self.pearson += s * s;
    }

    /// The root mean squared error; `None` without cells.
    pub fn rmse(&self) -> Option<f64> {
        self.per_cell(self.squared).map(f64::sqrt)
    }

    /// The mean deviance; `None` without cells.
    pub fn mean_deviance(&self) -> Option<f64> {
        self.per_cell(self.deviance)
    }

    fn per_cell(&self, sum: f64) -> Option<f64> {
        (self.count > 0).then(|| sum / self.count as f64)
    }
}

/// A client's evaluation of the fit on its cells.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Scores {
    /// Cells used by the fit.
    pub observed: Tally,
    pub held_out: Tally,
    pub histogram: Histogram,
}

wire!(Scores { observed, held_out, histogram });

impl Scores {
    /// Upper bound on the encoded length of the scores of `held_out` cells: each cell fills one bin of at
    /// most eleven bytes.
    pub fn bytes_max(family: Family, held_out: usize) -> usize {
        let octaves = if family == Family::Poisson { 1 } else { OCTAVES };
        let bins = held_out.min((STRATA / octaves * BINS) as usize);
        64 + 10 + 11 * bins
    }

    /// Adds a held-out cell, given its index in the table and its number of observations.
    pub fn add_held_out(
        &mut self,
        family: Family,
        (position, observations): (u64, u32),
        y: f64,
        mean: f64,
    ) {
        self.held_out.add(family, y, mean);
        let stratum = Stratum::of(family, (position, observations), mean);
        self.histogram.add(stratum, score(family, y, mean));
    }

    /// Adds a cell predicted from a subsample of its row of this size.
    pub fn add_thinned(
        &mut self,
        family: Family,
        (position, observations): (u64, u32),
        y: f64,
        mean: f64,
    ) {
        let stratum = Stratum::of(family, (position, observations), mean);
        self.histogram.add(Stratum { thinned: true, ..stratum }, score(family, y, mean));
    }

    /// The cross-validated coverage of intervals of this level; `None` with too few cells.
    pub fn coverage(&self, family: Family, level: f64) -> Option<Coverage> {
        let (mut inside, mut cells) = (0, 0);
        for group in self.groups() {
            let scores = self.relative(family, &group, self.clustering(family, &group));
            for own in 0..PARTS {
                let others = scores.within(|s| s.part != own);
                if let Some(bin) = others.upper_quantile_bin(level) {
                    let part = scores.within(|s| s.part == own && !s.thinned);
                    inside += part.count_to(bin);
                    cells += part.count();
                }
            }
        }
        (cells > 0).then(|| Coverage { share: inside as f64 / cells as f64, cells })
    }

    /// The `alpha` of a group's counts; 0 for other families.
    fn clustering(&self, family: Family, group: &GroupStrata) -> f64 {
        if family != Family::Poisson {
            return 0.0;
        }
        let octaves = self.histogram.squares(|s| group.has(s));
        let squares = octaves.iter().map(|[_, squares]| squares).sum();
        let means = (0..).map(Histogram::mean_of);
        clustering(squares, octaves.iter().map(|[count, _]| *count).zip(means))
    }

    /// The scores of a group, standardised by the variance `mu + alpha mu^2`.
    fn relative(&self, family: Family, group: &GroupStrata, alpha: f64) -> Histogram {
        let factor = |octave| {
            let mean = Histogram::mean_of(octave);
            let base = scale(family, mean).powi(2);
            (base / (base + alpha * mean * mean)).sqrt()
        };
        self.histogram.rescaled(|s| group.has(s), factor)
    }

    /// The strata of each group. Classes of observations are merged upwards until they have enough cells,
    /// and within them octaves of the mean; a remainder with too few cells joins the last group.
    fn groups(&self) -> Vec<GroupStrata> {
        let mut groups = Vec::new();
        let classes = joined(CLASSES, |classes| {
            self.histogram.within(|s| classes.contains(&s.class)).count() >= GROUP_MIN
        });
        for classes in classes {
            let of = |octaves: &RangeInclusive<u32>| {
                let inside = |s: Stratum| classes.contains(&s.class) && octaves.contains(&s.octave);
                self.histogram.within(inside).count()
            };
            let enough = GROUP_MIN.max(of(&(0..=OCTAVES - 1)).div_ceil(GROUPS_MAX));
            let octaves = joined(OCTAVES, |octaves| of(octaves) >= enough);
            groups.extend(
                octaves
                    .into_iter()
                    .map(|octaves| GroupStrata { classes: classes.clone(), octaves }),
            );
        }
        groups
    }
}

/// The strata of a group.
#[derive(Clone, Debug, PartialEq)]
struct GroupStrata {
    classes: RangeInclusive<u32>,
    octaves: RangeInclusive<u32>,
}

impl GroupStrata {
    fn has(&self, s: Stratum) -> bool {
        self.classes.contains(&s.class) && self.octaves.contains(&s.octave)
    }
}

/// Merges neighbouring numbers from 0 on until `enough`; a remainder joins the last range.
fn joined(count: u32, enough: impl Fn(&RangeInclusive<u32>) -> bool) -> Vec<RangeInclusive<u32>> {
    let (mut groups, mut first) = (Vec::new(), 0);
    for last in 0..count {
        if enough(&(first..=last)) {
            groups.push(first..=last);
            first = last + 1;
        }
    }
    let rest = groups.pop().map_or(0, |group| *group.start());
    groups.push(rest..=count - 1);
    groups
}

/// The scores of several clients, summed exactly: bits do not depend on the order.
#[derive(Clone, Debug, PartialEq)]
pub struct ScoreSums {
    /// The tallies of observed and of held-out cells.
    tallies: ExactSum,
    histogram: Histogram,
}

wire!(ScoreSums { tallies, histogram });

impl Default for ScoreSums {
    fn default() -> Self {
        Self { tallies: ExactSum::new(2 * TALLY), histogram: Histogram::default() }
    }
}

const TALLY: usize = 4;

impl ScoreSums {
    /// Adds a client's scores.
    pub fn absorb(&mut self, scores: &Scores) -> Result<()> {
        let of = |t: &Tally| [t.count as f64, t.squared, t.deviance, t.pearson];
        let tallies = [of(&scores.observed), of(&scores.held_out)].concat();
        if !vector::all_finite(&tallies) {
            return Err(Error::peer("a client sent sums over cells that are not finite"));
        }
        // A refused answer leaves the sums unchanged.
        let mut next = self.clone();
        next.histogram.merge(&scores.histogram)?;
        next.tallies.add(&tallies, 1.0)?;
        *self = next;
        Ok(())
    }

    /// Adds the sums of other clients.
    pub fn merge(&mut self, other: &Self) -> Result<()> {
        self.histogram.merge(&other.histogram)?;
        self.tallies.merge(&other.tallies)
    }

    /// The scores of all clients.
    pub fn value(&self) -> Scores {
        let tallies = self.tallies.value();
        let of = |at: usize| {
            let of = &tallies[at * TALLY..][..TALLY];
            Tally { count: of[0] as u64, squared: of[1], deviance: of[2], pearson: of[3] }
        };
        Scores { observed: of(0), held_out: of(1), histogram: self.histogram.clone() }
    }
}

/// The calibration of a group of similar cells.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Group {
    /// The last class of observations.
    pub class: u32,
    /// The last octave of the means.
    pub last: u32,
    /// Intervals are `mu +- quantile scale(mu)`.
    pub quantile: f64,
    /// For counts `alpha` of the variance `mu + alpha mu^2`; for other families the ratio of the variance
    /// to the family's.
    pub dispersion: f64,
}

wire!(Group { class, last, quantile, dispersion });

impl Group {
    /// The variance of a value around its mean.
    pub fn variance(&self, family: Family, mean: f64) -> f64 {
        match family {
            Family::Poisson => mean + self.dispersion * mean * mean,
            Family::Gaussian | Family::Bernoulli => self.dispersion * family.variance(mean),
        }
    }

    /// The factor of the quantile in an interval.
    pub fn scale(&self, family: Family, mean: f64) -> f64 {
        match family {
            Family::Poisson => (self.variance(family, mean) + floor(family)).sqrt(),
            Family::Gaussian | Family::Bernoulli => scale(family, mean),
        }
    }
}

/// `alpha` by moments: equates the sum of squared scores with its expectation under variances
/// `mu + alpha mu^2`, given counts and means of the cells.
fn clustering(squares: f64, cells: impl Iterator<Item = (f64, f64)>) -> f64 {
    let (mut poisson, mut excess) = (0.0, 0.0);
    for (count, mean) in cells {
        let share = count * mean / scale(Family::Poisson, mean).powi(2);
        poisson += share;
        excess += share * mean;
    }
    if excess > 0.0 { ((squares - poisson) / excess).max(0.0) } else { 0.0 }
}

/// A share of held-out cells inside their intervals.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Coverage {
    pub share: f64,
    /// The number of these cells; 0 if a model of an earlier version does not state it.
    pub cells: u64,
}

wire!(Coverage { share, cells });

/// The calibration of intervals from all clients' scores.
#[derive(Clone, Debug, PartialEq)]
pub struct Calibration {
    /// The dispersion over all cells: Pearson's chi-square per degree of freedom, at least 1 for counts
    /// and binary values. For a Gaussian, the variance (1 if fixed by the model).
    pub dispersion: f64,
    /// At least one, ascending by class of observations and then by mean.
    pub groups: Vec<Group>,
    /// Whether quantiles were estimated on held-out cells; otherwise they are normal.
    pub calibrated: bool,
    /// The cross-validated coverage of the intervals.
    pub coverage: Option<Coverage>,
    /// Whether nothing was held out and the fit has too many parameters for a reliable dispersion.
    pub doubtful: bool,
}

wire!(Calibration { dispersion, groups, calibrated, coverage, doubtful });

impl Calibration {
    /// From the scores of all clients. `parameters` is the effective number of parameters, and `means`
    /// holds the mean and the number of observations of each observed cell; both are used only if fewer
    /// than [`HELD_OUT_MIN`] cells were held out.
    pub fn new(
        settings: &Settings,
        scores: &Scores,
        parameters: usize,
        means: &[(f64, u32)],
    ) -> Self {
        let family = settings.family;
        let unit = family == Family::Gaussian && settings.variance == Variance::Unit;
        // Counts and binary values vary at least as much as their family implies; smaller residuals are
        // due to overfitting.
        let floor = if family == Family::Gaussian { 0.0 } else { 1.0 };
        let dispersion = if unit { 1.0 } else { dispersion(scores, parameters).max(floor) };
        let group = |strata: &GroupStrata| {
            let alpha = scores.clustering(family, strata);
            let bins = scores.relative(family, strata, alpha).within(|_| true);
            // The chi-square of a single group is that of all cells.
            let alone = bins.count() == scores.held_out.count || unit;
            Some(Group {
                class: *strata.classes.end(),
                last: *strata.octaves.end(),
                quantile: Histogram::edge(bins.upper_quantile_bin(LEVEL)?),
                dispersion: match family {
                    Family::Poisson => alpha,
                    _ if alone => dispersion,
                    _ => bins.mean_square().max(floor),
                },
            })
        };
        // If any group lacks a quantile (too few cells, or scores beyond the grid), intervals follow
        // from the dispersion.
        let found: Option<Vec<Group>> = scores.groups().iter().map(group).collect();
        let few = (scores.observed.count as f64) < FREEDOM_MIN * parameters as f64;
        Self {
            dispersion,
            calibrated: found.is_some(),
            coverage: found.as_ref().and_then(|_| scores.coverage(family, LEVEL)),
            doubtful: few && scores.held_out.count < HELD_OUT_MIN,
            groups: found.unwrap_or_else(|| vec![unchecked(family, dispersion, means)]),
        }
    }

    /// The variance of a value around its mean in frequently observed rows and columns.
    pub fn noise(&self, family: Family, mean: f64) -> f64 {
        self.group_of(family, mean, u32::MAX).variance(family, mean)
    }

    /// The group of cells with this mean and number of observations.
    pub fn group_of(&self, family: Family, mean: f64, observations: u32) -> Group {
        let (octave, class) = (octave(family, mean), class_of(observations));
        let found = self.groups.iter().find(|group| class <= group.class && octave <= group.last);
        *found.unwrap_or(&self.groups[self.groups.len() - 1])
    }
}

/// A single group, from the dispersion and the means of the observed cells.
fn unchecked(family: Family, dispersion: f64, means: &[(f64, u32)]) -> Group {
    let (class, last) = (CLASSES - 1, OCTAVES - 1);
    if family != Family::Poisson {
        return Group { class, last, quantile: NORMAL_QUANTILE * dispersion.sqrt(), dispersion };
    }
    let cells = means.iter().map(|(mean, count)| (f64::from(*count), *mean));
    let count: f64 = means.iter().map(|(_, count)| f64::from(*count)).sum();
    let alpha = clustering(dispersion * count, cells);
    Group { class, last, quantile: NORMAL_QUANTILE, dispersion: alpha }
}

/// Fewest held-out cells for a quantile of [`LEVEL`] and a dispersion.
pub const HELD_OUT_MIN: u64 = 9;
/// Fewest observations per parameter for which residuals can estimate the noise.
const FREEDOM_MIN: f64 = 2.0;
/// Smallest ratio of degrees of freedom to observations.
const FREEDOM_SHARE_MIN: f64 = 0.1;

/// The dispersion of the held-out cells. Without enough of them, that of the observed cells over the
/// residual degrees of freedom; if these are few, the generalised cross-validation error
/// `sum r^2 / N / (1 - p/N)^2`.
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
