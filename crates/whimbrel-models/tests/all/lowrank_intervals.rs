//! Scores of held-out cells, and the intervals that they calibrate.

use whimbrel_core::{Key, Wire, math::exp};
use whimbrel_models::lowrank::interval::{
    BINS, Calibration, Histogram, LEVEL, NORMAL_QUANTILE, OCTAVES, ScoreSums, Scores, Stratum,
    Tally, class_of,
};
use whimbrel_models::lowrank::{Family, JUDGED_MEAN_MIN, Settings};

/// A row that was observed more often than any class tells apart.
const OFTEN: u32 = 1000;

/// Of held-out cells of rows with four to seven observations.
fn stratum(part: u32, octave: u32) -> Stratum {
    Stratum { thinned: false, class: 2, part, octave }
}

/// Counts whose variance is `mean + mean^2/2`, around known means from 0.2 to 2,000.
fn overdispersed(cells: u64, seed: u64) -> (Scores, Vec<(f64, f64)>) {
    let mut stream = Key::root(seed).stream();
    let (mut scores, mut values) = (Scores::default(), Vec::new());
    for position in 0..cells {
        let mean = 0.2 * 10f64.powf(4.0 * stream.uniform());
        let rate = mean * stream.gamma(2.0) / 2.0;
        let y = stream.poisson(rate) as f64;
        scores.add_held_out(Family::Poisson, (position, OFTEN), y, mean);
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
    let calibration = Calibration::new(&settings, &scores, 0, &[]);
    let coverage = calibration.coverage.unwrap().share;
    assert!((coverage - LEVEL).abs() < 0.015, "{coverage}");
    assert!(calibration.groups.len() > 3, "{calibration:?}");
    for (low, high) in [(0.0, 4.0), (4.0, 90.0), (90.0, 1e9)] {
        let third = values.iter().filter(|(_, mean)| (low..high).contains(mean));
        let inside = third.clone().filter(|(y, mean)| {
            let group = calibration.group_of(Family::Poisson, *mean, OFTEN);
            (y - mean).abs() <= group.quantile * group.scale(Family::Poisson, *mean)
        });
        let share = inside.count() as f64 / third.count() as f64;
        assert!((share - LEVEL).abs() < 0.025, "{share} from {low} to {high}");
    }
    // At least 800 counts a group, whose squared errors have a coefficient of variation of about
    // sqrt(5): 8 % of alpha, and 4 % for means that stand for their octave. 40 % are four of these.
    for group in &calibration.groups[calibration.groups.len() / 2..] {
        assert!((group.dispersion - 0.5).abs() < 0.2, "the variance is that law's: {group:?}");
    }
}

/// Forty held-out cells: one group, and a share that a half against a half would put anywhere
/// from 75 % to 100 %.
#[test]
fn few_cells_are_one_group_and_still_checked() {
    let settings = Settings::new(10, 8, Family::Poisson);
    for seed in 0..20 {
        let (scores, _) = overdispersed(40, 100 + seed);
        let calibration = Calibration::new(&settings, &scores, 0, &[]);
        assert!(calibration.calibrated && calibration.groups.len() == 1);
        let coverage = calibration.coverage.unwrap().share;
        assert!((0.82..=1.0).contains(&coverage), "{coverage}");
    }
    let (scores, _) = overdispersed(5, 7);
    let calibration = Calibration::new(&settings, &scores, 0, &[]);
    assert!(!calibration.calibrated && calibration.coverage.is_none());
    assert_eq!(calibration.groups[0].quantile, NORMAL_QUANTILE);
}

/// 4,000 observed counts of variance `mean + mean^2/2` and nothing held out: squared scores have a
/// coefficient of variation of about sqrt(5), and large means weigh most: 12 % of alpha, of which
/// four are allowed.
#[test]
fn without_a_hold_out_the_law_comes_from_the_observed_means() {
    let (_, values) = overdispersed(4_000, 16);
    let mut scores = Scores::default();
    values.iter().for_each(|(y, mean)| scores.observed.add(Family::Poisson, *y, *mean));
    let means: Vec<(f64, u32)> = values.iter().map(|(_, mean)| (*mean, 1)).collect();
    let calibration = Calibration::new(&Settings::new(80, 50, Family::Poisson), &scores, 0, &means);
    let group = calibration.groups[0];
    assert!(!calibration.calibrated && calibration.groups.len() == 1);
    assert_eq!(group.quantile, NORMAL_QUANTILE);
    assert!((group.dispersion - 0.5).abs() < 0.24, "{group:?}");
    assert_eq!(calibration.noise(Family::Poisson, 4.0), group.variance(Family::Poisson, 4.0));
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
                scores.add_held_out(family, (position, OFTEN), y, 0.5);
            }
        }
        Calibration::new(&Settings::new(20, 10, family), &scores, parameters, &[])
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
        scores.add_held_out(Family::Gaussian, (position, OFTEN), sd * stream.normal(), 0.0);
    }
    Calibration::new(&Settings::new(50, 40, Family::Gaussian), &scores, 0, &[])
}

/// 2,000 cells: the share inside has a standard deviation of 0.7 %, so the quantile one of
/// 0.03 standard deviations; a bin adds 2 %. Five of those are 0.15 + 0.03.
#[test]
fn intervals_do_not_depend_on_the_units_of_a_gaussian_table() {
    for sd in [1e-9, 1.0, 1e5, 1e20] {
        let calibration = gaussian(sd);
        let reach = calibration.groups[0].quantile / sd;
        assert!((reach - NORMAL_QUANTILE).abs() < 0.18, "{reach} at {sd}");
        let coverage = calibration.coverage.unwrap().share;
        assert!(calibration.calibrated && (coverage - LEVEL).abs() < 0.035, "{coverage}");
    }
}

#[test]
fn scores_beyond_the_grid_calibrate_nothing() {
    let calibration = gaussian(1e40);
    assert!(!calibration.calibrated && calibration.coverage.is_none());
    let reach = calibration.groups[0].quantile;
    assert_eq!(reach, NORMAL_QUANTILE * calibration.dispersion.sqrt());
}

#[test]
fn calibrations_and_scores_survive_their_bytes() {
    let (scores, _) = overdispersed(900, 8);
    assert_eq!(Scores::from_bytes(&scores.to_bytes()).unwrap(), scores);
    let calibration = Calibration::new(&Settings::new(30, 30, Family::Poisson), &scores, 0, &[]);
    assert_eq!(Calibration::from_bytes(&calibration.to_bytes()).unwrap(), calibration);
}

#[test]
fn a_fit_is_judged_by_the_floor_of_its_contenders() {
    let mut tally = Tally::default();
    tally.add(Family::Poisson, 1.0, 1e-9);
    assert_eq!(tally.deviance, Family::Poisson.deviance(1.0, JUDGED_MEAN_MIN));
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
        both.add_held_out(Family::Poisson, (300 + i as u64, OFTEN), *y, *mean);
    }
    let mut other = Scores::default();
    for (i, (y, mean)) in values.iter().enumerate() {
        other.add_held_out(Family::Poisson, (300 + i as u64, OFTEN), *y, *mean);
    }
    let [mut sums, mut others] = [ScoreSums::default(), ScoreSums::default()];
    sums.absorb(&one).unwrap();
    others.absorb(&other).unwrap();
    sums.merge(&others).unwrap();
    let all = sums.value();
    assert_eq!((&all.histogram, all.held_out.count), (&both.histogram, both.held_out.count));
    let gap = all.held_out.deviance / both.held_out.deviance - 1.0;
    assert!(gap.abs() < 1e-12, "{gap}");
    one.held_out.squared = f64::NAN;
    assert!(sums.absorb(&one).is_err());
    assert_eq!(sums.value(), all);
}

#[test]
fn quantiles_of_histograms_are_within_a_bin_of_the_sorted_ones() {
    let mut stream = Key::root(5).stream();
    let mut scores: Vec<f64> = (0..999).map(|_| stream.normal().abs()).collect();
    let mut histogram = Histogram::default();
    scores.iter().for_each(|s| histogram.add(stratum(0, stream.below(5) as u32), *s));
    let bins = histogram.within(|_| true);
    scores.sort_by(f64::total_cmp);
    let exact = scores[900 - 1]; // ceil(1000 * 0.9)
    let found = Histogram::edge(bins.quantile_bin(0.9).unwrap());
    assert!(found >= exact && found <= exact * exp(0.02), "{found} for {exact}");
    // Halves of bins are 1 % of a score, 2 % of its square.
    let squares = scores.iter().map(|s| s * s).sum::<f64>() / 999.0;
    assert!((bins.mean_square() / squares - 1.0).abs() < 0.02);
}

#[test]
fn extreme_scores_have_bins_and_few_scores_no_quantile() {
    let mut histogram = Histogram::default();
    [0.0, 1e-31, 1e31, f64::INFINITY, f64::NAN]
        .into_iter()
        .for_each(|s| histogram.add(stratum(4, OCTAVES - 1), s));
    let bins = histogram.within(|s| s == stratum(4, OCTAVES - 1));
    assert_eq!((bins.count_to(0), bins.count()), (2, 5));
    assert_eq!(bins.quantile_bin(0.9), None, "six times 0.9 is more than five");
    assert!(Histogram::edge(0) < 1e-30 && Histogram::edge(BINS - 2) > 9e29);
    assert_eq!(bins.quantile_bin(0.3), Some(0));
    assert_eq!(bins.quantile_bin(0.5), None, "the last bin has no upper end");
    assert_eq!(histogram.within(|s| s.octave < OCTAVES - 1), Histogram::default());
    assert_eq!(histogram.within(|s| s.part < 4 || s.thinned || s.class != 2), Histogram::default());
}

/// Means of an octave stand for it, and rescaled scores are in the bins of their new values.
#[test]
fn scores_are_rescaled_by_octave() {
    let mut histogram = Histogram::default();
    for (octave, score) in [(3, 2.0), (7, 2.0), (7, 0.0), (7, f64::INFINITY)] {
        histogram.add(stratum(0, octave), score);
    }
    let halved = histogram.rescaled(|_| true, |octave| if octave == 7 { 0.5 } else { 1.0 });
    assert_eq!(halved.within(|s| s.octave == 3), histogram.within(|s| s.octave == 3));
    let moved = halved.within(|s| s.octave == 7);
    let found = Histogram::edge(moved.quantile_bin(0.4).unwrap());
    assert!((found / 1.0).ln().abs() < 0.03, "{found}");
    assert_eq!((moved.count_to(0), moved.count()), (1, 3));
    assert_eq!(moved.quantile_bin(0.75), None, "what is beyond the grid stays there");
    let squares = histogram.squares(|s| s.octave == 3);
    assert!(squares[3][0] == 1.0 && (squares[3][1] / 4.0 - 1.0).abs() < 0.05, "{squares:?}");
    for octave in 1..OCTAVES - 1 {
        assert_eq!(Histogram::octave(Histogram::mean_of(octave)), octave);
    }
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
    [0.1, 0.1, 3.0, 1e6]
        .into_iter()
        .enumerate()
        .for_each(|(i, s)| histogram.add(stratum(1, i as u32), s));
    let bytes = histogram.to_bytes();
    assert_eq!(Histogram::from_bytes(&bytes).unwrap(), histogram);
    assert!(Histogram::from_bytes(&[2, 5, 1, 0, 1]).is_err(), "a bin twice");
    assert!(Histogram::from_bytes(&[1, 5, 0]).is_err(), "an empty bin");
}

/// Counts of variance `mean + mean^2/4` around estimates that are off by a log-normal factor of
/// variance `1/n` in rows observed `n` times: nine cells in ten of such rows are thinned, none held out.
/// 2,000 cells a class: a share has a standard deviation of 0.7 %, and its quantile's group another; 4 %
/// are four of both.
#[test]
fn hardly_observed_rows_have_intervals_and_dispersions_of_their_own() {
    let mut stream = Key::root(31).stream();
    let mut draw = |n: u32| {
        let mean = 5.0 * 8f64.powf(stream.uniform());
        let rate = mean * stream.gamma(4.0) / 4.0;
        let off = exp(stream.normal() / f64::from(n).sqrt());
        (stream.poisson(rate) as f64, mean * off)
    };
    let mut scores = Scores::default();
    for position in 0..2_000 {
        let (y, mean) = draw(1000);
        scores.add_held_out(Family::Poisson, (position, OFTEN), y, mean);
        for n in [1, 2, 4, 8] {
            let (y, mean) = draw(n);
            scores.add_thinned(Family::Poisson, (position, n), y, mean);
        }
    }
    let calibration = Calibration::new(&Settings::new(50, 40, Family::Poisson), &scores, 0, &[]);
    assert_eq!(calibration.groups.last().unwrap().class, class_of(OFTEN));
    for n in [1, 2, 4, 8, OFTEN] {
        let new: Vec<(f64, f64)> = (0..2_000).map(|_| draw(n)).collect();
        let inside = |(y, mean): &&(f64, f64)| {
            let group = calibration.group_of(Family::Poisson, *mean, n);
            (y - mean).abs() <= group.quantile * group.scale(Family::Poisson, *mean)
        };
        let share = new.iter().filter(inside).count() as f64 / 2_000.0;
        assert!((share - LEVEL).abs() < 0.04, "{share} in rows observed {n} times");
    }
    let dispersion = |n| calibration.group_of(Family::Poisson, 12.0, n).dispersion;
    assert!(dispersion(1) > 2.0 * dispersion(OFTEN), "{calibration:?}");
    // Cells that were predicted from parts of rows do not count as held out.
    assert_eq!(scores.held_out.count, 2_000);
    assert!(
        (calibration.coverage.unwrap().share - LEVEL).abs() < 0.03,
        "{:?}",
        calibration.coverage
    );
}
