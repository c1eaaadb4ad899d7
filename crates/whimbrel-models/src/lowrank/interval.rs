//! How far off the fit is: dispersion, and intervals calibrated on cells that were held out.
//!
//! Federated conformal prediction. A client answers with a histogram of the scores
//! `s = |y - mu| / scale(mu)` of its held-out cells, by how often their row and column were observed
//! and by octave of `mu`. Both are joined to groups of at least [`GROUP_MIN`] cells. Counts of a group
//! have the variance `mu + alpha mu^2` of a negative binomial law, with its `alpha` by moments. Its
//! scores are taken relative to the root of that (each at the middle of its octave), and their 90 %
//! quantile `q`, with one standard error of the share more, makes the intervals `mu +- q scale(mu)` of
//! its cells: so small and large counts, and well and hardly known rows, are each covered, however the
//! spread grows.
//!
//! Of hardly known rows few cells are held out. So a client also predicts each held-out cell from one
//! to fifteen of its others in the row, with the columns as they are: what the fit would say of the
//! cell if that were all that was observed of the row. Such scores stand beside those of the fit.
//!
//! How many such intervals hold is found by cross-checking: the cells fall into five parts that
//! depend only on where a cell lies, and each part is held against the quantiles of the others.

pub use super::histogram::{BINS, CLASSES, Histogram, OCTAVES, Stratum, class_of};
use super::histogram::{PARTS, STRATA};
use super::{Family, Settings, Variance};
use std::ops::RangeInclusive;
use whimbrel_core::sum::ExactSum;
use whimbrel_core::{Error, Key, Result, vector, wire};

/// The share of values that an interval is to hold.
pub const LEVEL: f64 = 0.9;
/// The fewest held-out cells whose means make a group; with fewer, all are one group.
pub const GROUP_MIN: u64 = 100;
/// The most groups.
const GROUPS_MAX: u64 = 10;
/// The normal quantile that goes with [`LEVEL`] on two sides, used where nothing was held out.
pub const NORMAL_QUANTILE: f64 = 1.644_853_626_951_472_2;
/// The stream that deals the held-out cells to parts.
const DEAL: u64 = 0xCA11;

/// The spread of a value around its mean, up to one factor that calibration finds: the family's
/// own, and a little more so that a mean near the end of its range does not promise certainty.
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

/// Where a mean belongs. The spread of counts grows with the mean in ways that the family does not
/// know; other values are all treated alike.
fn octave(family: Family, mean: f64) -> u32 {
    match family {
        Family::Poisson => Histogram::octave(mean),
        Family::Gaussian | Family::Bernoulli => 0,
    }
}

impl Stratum {
    /// Of a cell with this number in the table, whose row or column was observed so often.
    fn of(family: Family, (position, observations): (u64, u32), mean: f64) -> Self {
        let part = (Key::root(DEAL).child(position).uniform() * f64::from(PARTS)) as u32;
        let (class, octave) = (class_of(observations), octave(family, mean));
        Self { thinned: false, class, part, octave }
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

    /// The root mean squared error; none where there is no cell.
    pub fn rmse(&self) -> Option<f64> {
        self.per_cell(self.squared).map(f64::sqrt)
    }

    /// The mean deviance; none where there is no cell.
    pub fn mean_deviance(&self) -> Option<f64> {
        self.per_cell(self.deviance)
    }

    fn per_cell(&self, sum: f64) -> Option<f64> {
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
    /// Scores of the held-out cells.
    pub histogram: Histogram,
}

wire!(Scores { observed, held_out, histogram });

impl Scores {
    /// The most bytes that the scores of a number of held-out cells take: a cell is in one bin, and
    /// a bin is at most eleven bytes.
    pub fn bytes_max(family: Family, held_out: usize) -> usize {
        let octaves = if family == Family::Poisson { 1 } else { OCTAVES };
        let bins = held_out.min((STRATA / octaves * BINS) as usize);
        64 + 10 + 11 * bins
    }

    /// Adds a held-out cell whose row and column were observed so often, whichever is less; the part
    /// it belongs to follows from its number in the table.
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

    /// Adds a cell, with the number of cells of its row from which it was predicted.
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

    /// The share of held-out cells inside the interval of this level that the other parts' scores
    /// make; none where there are too few.
    pub fn coverage(&self, family: Family, level: f64) -> Option<f64> {
        let (mut inside, mut checked) = (0, 0);
        for group in self.groups() {
            let scores = self.relative(family, &group, self.clustering(family, &group));
            for own in 0..PARTS {
                let others = scores.within(|s| s.part != own);
                if let Some(bin) = others.upper_quantile_bin(level) {
                    let part = scores.within(|s| s.part == own && !s.thinned);
                    inside += part.count_to(bin);
                    checked += part.count();
                }
            }
        }
        (checked > 0).then(|| inside as f64 / checked as f64)
    }

    /// `alpha` of a group's counts; 0 for other values.
    fn clustering(&self, family: Family, group: &Together) -> f64 {
        if family != Family::Poisson {
            return 0.0;
        }
        let octaves = self.histogram.squares(|s| group.has(s));
        let squares = octaves.iter().map(|[_, squares]| squares).sum();
        let means = (0..).map(Histogram::mean_of);
        clustering(squares, octaves.iter().map(|[count, _]| *count).zip(means))
    }

    /// The scores of a group relative to the variance that its `alpha` gives.
    fn relative(&self, family: Family, group: &Together, alpha: f64) -> Histogram {
        let factor = |octave| {
            let mean = Histogram::mean_of(octave);
            let base = scale(family, mean).powi(2);
            (base / (base + alpha * mean * mean)).sqrt()
        };
        self.histogram.rescaled(|s| group.has(s), factor)
    }

    /// Which strata make up each group: classes of observations are joined, the fewest first, until
    /// they have enough cells, and within them octaves, small means first; a rest that has not enough
    /// goes with the group before it.
    fn groups(&self) -> Vec<Together> {
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
                octaves.into_iter().map(|octaves| Together { classes: classes.clone(), octaves }),
            );
        }
        groups
    }
}

/// Strata that make up a group.
#[derive(Clone, Debug, PartialEq)]
struct Together {
    classes: RangeInclusive<u32>,
    octaves: RangeInclusive<u32>,
}

impl Together {
    fn has(&self, s: Stratum) -> bool {
        self.classes.contains(&s.class) && self.octaves.contains(&s.octave)
    }
}

/// Neighbouring numbers from 0 on, joined until they are enough; a rest goes with those before it.
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

/// The scores of several clients, added exactly: the same bits in whatever order.
#[derive(Clone, Debug, PartialEq)]
pub struct ScoreSums {
    /// Of the observed cells and of those held out: the count, then the sums of the tally.
    tallies: ExactSum,
    histogram: Histogram,
}

wire!(ScoreSums { tallies, histogram });

impl Default for ScoreSums {
    fn default() -> Self {
        Self { tallies: ExactSum::new(2 * TALLY), histogram: Histogram::default() }
    }
}

/// Numbers of a tally.
const TALLY: usize = 4;

impl ScoreSums {
    /// Adds a client's.
    pub fn absorb(&mut self, scores: &Scores) -> Result<()> {
        let of = |t: &Tally| [t.count as f64, t.squared, t.deviance, t.pearson];
        let tallies = [of(&scores.observed), of(&scores.held_out)].concat();
        if !vector::all_finite(&tallies) {
            return Err(Error::peer("a client's sums over cells are not finite"));
        }
        // A refused answer changes nothing.
        let mut next = self.clone();
        next.histogram.merge(&scores.histogram)?;
        next.tallies.add(&tallies, 1.0)?;
        *self = next;
        Ok(())
    }

    /// Adds those of others.
    pub fn merge(&mut self, other: &Self) -> Result<()> {
        self.histogram.merge(&other.histogram)?;
        self.tallies.merge(&other.tallies)
    }

    /// The scores of all.
    pub fn value(&self) -> Scores {
        let tallies = self.tallies.value();
        let of = |at: usize| {
            let of = &tallies[at * TALLY..][..TALLY];
            Tally { count: of[0] as u64, squared: of[1], deviance: of[2], pearson: of[3] }
        };
        Scores { observed: of(0), held_out: of(1), histogram: self.histogram.clone() }
    }
}

/// What is known about cells that are alike.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Group {
    /// The last class of how often rows and columns were observed.
    pub class: u32,
    /// The last octave of the means.
    pub last: u32,
    /// Intervals are `mu +- quantile scale(mu)`.
    pub quantile: f64,
    /// Of counts `alpha`, whose variance is `mu + alpha mu^2`; of other values the factor by which
    /// variances exceed the family's.
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

    /// What quantiles are multiplied with.
    pub fn scale(&self, family: Family, mean: f64) -> f64 {
        match family {
            Family::Poisson => (self.variance(family, mean) + floor(family)).sqrt(),
            Family::Gaussian | Family::Bernoulli => scale(family, mean),
        }
    }
}

/// `alpha` by moments: such that squared scores, which sum to this, are what variances of
/// `mu + alpha mu^2` lead to expect of cells with these means.
fn clustering(squares: f64, cells: impl Iterator<Item = (f64, f64)>) -> f64 {
    let (mut poisson, mut excess) = (0.0, 0.0);
    for (count, mean) in cells {
        let share = count * mean / scale(Family::Poisson, mean).powi(2);
        poisson += share;
        excess += share * mean;
    }
    if excess > 0.0 { ((squares - poisson) / excess).max(0.0) } else { 0.0 }
}

/// What the scores of everyone amount to.
#[derive(Clone, Debug, PartialEq)]
pub struct Calibration {
    /// By how much variances exceed the family's, over all cells: Pearson's chi-square per degree
    /// of freedom, at least 1 for counts and yes-or-no values. The variance itself for a Gaussian (1
    /// where the model says so).
    pub dispersion: f64,
    /// By the class of observations and then by the size of the mean, ascending; at least one.
    pub groups: Vec<Group>,
    /// Whether the quantiles were found on held-out cells; else they are the normal one.
    pub calibrated: bool,
    /// The share of held-out cells inside the intervals, cross-checked.
    pub coverage: Option<f64>,
    /// Whether nothing was held out and the fit has too many parameters for its residuals.
    pub doubtful: bool,
}

wire!(Calibration { dispersion, groups, calibrated, coverage, doubtful });

impl Calibration {
    /// From the scores of all clients. `parameters` is how many the observed cells determine, and
    /// `means` are theirs, with how often each was observed; both matter where fewer than
    /// [`HELD_OUT_MIN`] cells were held out.
    pub fn new(
        settings: &Settings,
        scores: &Scores,
        parameters: usize,
        means: &[(f64, u32)],
    ) -> Self {
        let family = settings.family;
        let unit = family == Family::Gaussian && settings.variance == Variance::Unit;
        // Counts and yes-or-no values spread at least as much as their family says; if residuals
        // are smaller, that is the fit's doing.
        let floor = if family == Family::Gaussian { 0.0 } else { 1.0 };
        let dispersion = if unit { 1.0 } else { dispersion(scores, parameters).max(floor) };
        let group = |together: &Together| {
            let alpha = scores.clustering(family, together);
            let bins = scores.relative(family, together, alpha).within(|_| true);
            // A single group is everyone, and its chi-square is known better.
            let alone = bins.count() == scores.held_out.count || unit;
            Some(Group {
                class: *together.classes.end(),
                last: *together.octaves.end(),
                quantile: Histogram::edge(bins.upper_quantile_bin(LEVEL)?),
                dispersion: match family {
                    Family::Poisson => alpha,
                    _ if alone => dispersion,
                    _ => bins.mean_square().max(floor),
                },
            })
        };
        // A group without a quantile (too few cells, or scores beyond the grid) leaves all to the
        // dispersion.
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

    /// The variance of a value around its mean, as in rows and columns that were observed often.
    pub fn noise(&self, family: Family, mean: f64) -> f64 {
        self.group_of(family, mean, u32::MAX).variance(family, mean)
    }

    /// What is known about cells with such a mean, whose row and column were observed so often.
    pub fn group_of(&self, family: Family, mean: f64, observations: u32) -> Group {
        let (octave, class) = (octave(family, mean), class_of(observations));
        let found = self.groups.iter().find(|group| class <= group.class && octave <= group.last);
        *found.unwrap_or(&self.groups[self.groups.len() - 1])
    }
}

/// One group for all, from the dispersion and the means of the observed cells.
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
/// With fewer observations per parameter than this, residuals cannot tell noise from fit.
const FREEDOM_MIN: f64 = 2.0;
/// At least this share of the observations counts as degrees of freedom.
const FREEDOM_SHARE_MIN: f64 = 0.1;

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
