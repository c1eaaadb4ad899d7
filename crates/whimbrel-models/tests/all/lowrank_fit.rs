//! A fitted table: parameters, predictions for new cells, rows and clients, and their uncertainty.

use crate::lowrank_cases::{bare, calibration};
use whimbrel_core::{Cell, Key, vector};
use whimbrel_models::lowrank::interval::NORMAL_QUANTILE;
use whimbrel_models::lowrank::{
    Calibration, Ceiling, Counted, Coverage, Delivered, Effects, ErrorPart, ErrorSource, Factors,
    Family, LowRank, LowRankFit, PERSONAL_MAX, Parameter, Settings, Term, Uncertainty,
    effective_parameters,
};
use whimbrel_testkit::pairs;

fn with_effects(effects: Effects, rank: usize) -> LowRank {
    let settings = Settings { effects, rank, ..Settings::new(5, 4, Family::Poisson) };
    LowRank::new(settings).unwrap()
}

#[test]
fn factors_come_back_from_their_coordinates() {
    for effects in [
        Effects::none(),
        Effects::of(vec![Term::row()]),
        Effects::of(vec![Term::column()]),
        Effects::row_column(),
    ] {
        let model = with_effects(effects, 2);
        let factors = Factors::start(&model, 3.0, Key::root(1));
        let sent = factors.to_vector(&model);
        assert_eq!(sent.len(), model.blocks().iter().sum::<usize>());
        assert_eq!(Factors::from_vector(&model, &sent).unwrap(), factors);
        assert!(Factors::from_vector(&model, &sent[1..]).is_err());
        let mut odd = sent;
        odd[3] = f64::NAN;
        assert!(Factors::from_vector(&model, &odd).is_err());
    }
}

fn fit(family: Family) -> LowRankFit {
    let settings = Settings { effects: Effects::row_column(), ..Settings::new(6, 5, family) };
    let model = LowRank::new(settings).unwrap();
    let factors = Factors::start(&model, 0.7, Key::root(3));
    let calibration = calibration(2.5, &[(9, 2.0), (31, 3.0)], true);
    let calibration =
        Some(Calibration { coverage: Some(Coverage { share: 0.9, cells: 40 }), ..calibration });
    let ceiling = Ceiling::over(&model, &factors, [3, 8].into_iter());
    LowRankFit { ceiling, calibration, ..bare(model, factors, 4) }
}

/// The posterior of a fit to these cells.
fn errors(fit: &LowRankFit, cells: &[Counted]) -> Uncertainty {
    let calibration = fit.calibration.as_ref().unwrap();
    Uncertainty::new(&fit.model, &fit.factors, fit.clients, calibration, cells).unwrap()
}

#[test]
fn a_fit_comes_back_from_its_artifact() {
    for family in Family::ALL {
        let mut fit = fit(family);
        assert_eq!(LowRankFit::from_artifact(&fit.to_artifact()).unwrap(), fit);
        fit.uncertainty = Some(errors(&fit, &[(3, 1), (8, 2)]));
        assert_eq!(LowRankFit::from_artifact(&fit.to_artifact()).unwrap(), fit);
        fit.calibration = None;
        assert_eq!(LowRankFit::from_artifact(&fit.to_artifact()).unwrap(), fit);
    }
    let mut artifact = fit(Family::Gaussian).to_artifact();
    artifact.tensors.retain(|t| t.name != "v");
    assert!(LowRankFit::from_artifact(&artifact).is_err());
    let mut sure = fit(Family::Poisson);
    sure.uncertainty = Some(errors(&sure, &[(3, 1), (8, 2)]));
    for (name, value) in [("row_prior", -1.0), ("column_errors", 0.0), ("usual_variance", f64::NAN)]
    {
        let mut artifact = sure.to_artifact();
        let hostile = artifact.tensors.iter_mut().find(|tensor| tensor.name == name).unwrap();
        hostile.values[0] = value;
        assert!(LowRankFit::from_artifact(&artifact).is_err(), "{name}");
    }
    let mut earlier = sure.to_artifact();
    earlier.tensors.retain(|tensor| tensor.name != "usual_variance");
    assert!(
        LowRankFit::from_artifact(&earlier).unwrap_err().to_string().contains("another version")
    );
}

/// 20,000 draws: five standard errors of the mean are allowed, and of the variance, which is known to
/// about 3 % (the kurtosis of a count of such `alpha` is about 20).
#[test]
fn draws_have_the_mean_and_the_variance_of_the_fit() {
    for family in Family::ALL {
        let fit = fit(family);
        let mean = fit.mean(2, 3);
        let wanted = match family {
            Family::Bernoulli => mean * (1.0 - mean),
            Family::Poisson => mean + 2.5 * mean * mean,
            Family::Gaussian => 2.5,
        };
        let mut stream = Key::root(4).stream();
        let draws: Vec<f64> =
            (0..20_000).map(|_| fit.draw(parameter(&fit, 2, 3), 0.0, &mut stream)).collect();
        let average = draws.iter().sum::<f64>() / 20_000.0;
        let spread = draws.iter().map(|d| (d - average).powi(2)).sum::<f64>() / 20_000.0;
        let error = (wanted / 20_000.0).sqrt();
        assert!((average - mean).abs() < 5.0 * error, "{family:?} {average} {mean}");
        assert!((spread / wanted - 1.0).abs() < 0.16, "{family:?} {spread} {wanted}");
    }
}

/// A table of 30 x 8 counts of which two cells in three were observed, `mean + mean^2/5` around means
/// about 4, with the posterior of its effects.
fn clustered(calibrated: bool) -> LowRankFit {
    let settings = Settings {
        rank: 0,
        effects: Effects::row_column(),
        ..Settings::new(30, 8, Family::Poisson)
    };
    let model = LowRank::new(settings).unwrap();
    let mut factors = Factors::zero(&model);
    factors.intercept = 1.4;
    let mut stream = Key::root(8).stream();
    factors.effects.iter_mut().flatten().for_each(|x| *x = 0.5 * stream.normal());
    let calibration = Some(calibration(0.2, &[(31, 1.6)], calibrated));
    let observations = [vec![5; 30], vec![20; 8]];
    let mut fit = LowRankFit { observations, calibration, ..bare(model, factors, 1) };
    let cells: Vec<Counted> = (0..240).filter(|cell| cell % 3 > 0).map(|cell| (cell, 1)).collect();
    fit.uncertainty = Some(errors(&fit, &cells));
    fit
}

fn parameter(fit: &LowRankFit, row: usize, column: usize) -> Parameter {
    fit.with_errors(fit.point(row, column, 0.0), &fit.error_parts(row, column))
}

/// The posterior of an effect in closed form under the estimated prior, which is a fixed point of EM to the
/// tolerance of 1 %.
#[test]
fn the_error_of_an_effect_is_that_of_its_posterior() {
    let fit = clustered(true);
    let prior = fit.uncertainty.as_ref().unwrap().lines[0].prior[0];
    let mut seconds = 0.0;
    for row in 0..30 {
        let observed = (0..8usize).filter(|column| (row * 8 + column) % 3 > 0);
        let means: Vec<f64> = observed.map(|column| fit.mean(row, column)).collect();
        let a: f64 = means.iter().sum();
        let phi = means.iter().map(|mean| mean + 0.2 * mean * mean).sum::<f64>() / a;
        let (x, variance) = (fit.factors.effects[0][row], 1.0 / (a / phi + prior));
        let step = variance * (a + 1e-3) * x / phi - x;
        let step = if step > 0.0 { step.ln_1p() } else { step };
        seconds += ((x + step).powi(2) + variance) / 30.0;
        let skew = 0.5 * (2.0 / phi - 1.0) * variance * variance * a / phi;
        let shares = fit.error_parts(row, 2);
        let of_row = shares.iter().find(|share| share.source == ErrorSource::Row(row)).unwrap();
        assert!((of_row.variance() / variance - 1.0).abs() < 1e-9, "{shares:?}");
        assert!((of_row.shift - (step - skew)).abs() < 1e-9, "{shares:?}");
    }
    assert!((seconds * prior - 1.0).abs() < 0.01, "{seconds} {prior}");
    let total: f64 = fit.error_parts(4, 2).iter().map(ErrorPart::variance).sum();
    // Errors on held-out cells have it in them; without such cells intervals must allow for it.
    let [held_out, none] = [true, false].map(|held_out| parameter(&clustered(held_out), 4, 2));
    assert!(held_out.spread == 0.0 && (held_out.measured / total - 1.0).abs() < 1e-12);
    assert!(none.measured == 0.0 && (none.variance() / total - 1.0).abs() < 1e-12);
}

/// 4,000 imputations of the ten unobserved cells of a column. The variance of their total is
/// `sum_missing noise + sum_sources |sum_missing mean w|^2` to first order, about twice the sum over the
/// single cells, which independent draws would have. Its standard error is 2.5 %, and second-order terms
/// are below 5 %: 15 % are four standard errors and these, so one run in 15,000 fails. Means have standard
/// errors of 0.5 % of the total's and below 1.5 % of a cell's: five are allowed.
#[test]
fn draws_of_a_column_share_its_error() {
    for calibrated in [true, false] {
        let fit = clustered(calibrated);
        let rows: Vec<usize> = (0..30).filter(|row| (row * 8 + 3) % 3 == 0).collect();
        let (draws, mut totals) = (4_000, Vec::new());
        let (mut sums, mut squares) = (vec![0.0; rows.len()], vec![0.0; rows.len()]);
        for number in 0..draws {
            let key = Key::root(3).child(number);
            let mut total = 0.0;
            for (i, row) in rows.iter().enumerate() {
                let (parameter, shares) = (parameter(&fit, *row, 3), fit.error_parts(*row, 3));
                let deviation = fit.deviation(parameter, &shares, key.child(u64::MAX));
                let y = fit.draw(parameter, deviation, &mut key.child(*row as u64).stream());
                (sums[i], squares[i], total) = (sums[i] + y, squares[i] + y * y, total + y);
            }
            totals.push(total);
        }
        let n = draws as f64;
        let average = totals.iter().sum::<f64>() / n;
        let variance = totals.iter().map(|x| (x - average).powi(2)).sum::<f64>() / n;
        let cells = sums.iter().zip(&squares).map(|(sum, square)| square / n - (sum / n).powi(2));
        let apart: f64 = cells.clone().sum();
        let (mut noise, mut column, mut own) = (0.0, 0.0, 0.0);
        for row in &rows {
            let mean = fit.expected(parameter(&fit, *row, 3));
            noise += fit.noise(parameter(&fit, *row, 3));
            for ErrorPart { source, weights, .. } in fit.error_parts(*row, 3) {
                match source {
                    ErrorSource::Column(3) => column += mean * weights[0],
                    _ => own += (mean * weights[0]).powi(2),
                }
            }
        }
        let wanted = noise + own + column * column;
        assert!((variance / wanted - 1.0).abs() < 0.15, "{variance} {wanted}");
        assert!(variance > 1.3 * apart, "{variance} {apart}");
        for ((sum, row), variance) in pairs(pairs(&sums, &rows), cells) {
            let expected = fit.expected(parameter(&fit, *row, 3));
            let error = (sum / n - expected).abs() / (variance / n).sqrt();
            assert!(error < 5.0, "the mean of draws is what is expected: {error}");
        }
    }
}

/// 40,000 draws of a mean that is uncertain, under a ceiling or none: five standard errors of the mean, and
/// for yes-or-no values the 0.01 that the normal curve is off by.
#[test]
fn what_is_expected_is_the_mean_of_draws() {
    let fit = fit(Family::Poisson);
    let yes_no = self::fit(Family::Bernoulli);
    for (fit, theta, shift, spread, ceiling) in [
        (&fit, 0.5, 0.3, 0.7, f64::INFINITY),
        (&fit, 0.0, 0.2, 2.0, 3.0),
        (&fit, -1.0, 0.0, 3.0, 1.0),
        (&yes_no, -3.0, 0.1, 2.0, f64::INFINITY),
        (&yes_no, 1.0, -0.2, 1.0, f64::INFINITY),
    ] {
        let at = Parameter { spread, shift, ceiling, ..Parameter::exact(theta, 20) };
        let mut stream = Key::root(12).stream();
        let mut draw = || {
            let deviation = spread * stream.normal();
            fit.draw(at, deviation, &mut stream)
        };
        let draws: Vec<f64> = (0..40_000).map(|_| draw()).collect();
        let mean = draws.iter().sum::<f64>() / 40_000.0;
        let sd = (draws.iter().map(|y| (y - mean).powi(2)).sum::<f64>() / 40_000.0).sqrt();
        let slack = if fit.model.family() == Family::Bernoulli { 0.01 } else { 0.0 };
        let error = (mean - fit.expected(at)).abs();
        assert!(error < 5.0 * sd / 200.0 + slack, "{at:?}: {mean} {}", fit.expected(at));
        // The fourth moment of these counts is known to about a tenth.
        assert!((sd / fit.sd(at) - 1.0).abs() < 0.15, "{at:?}: {sd} {}", fit.sd(at));
    }
}

/// Without cells the prior is as wide as the fitted effects, for any ridge.
#[test]
fn a_model_without_cells_has_priors_as_wide_as_its_effects() {
    let mut fit = bare_fit(Family::Poisson, Effects::row_column());
    fit.clients = 1000;
    Key::root(13).stream().fill_normal(&mut fit.factors.effects[0]);
    let row = fit.new_row(&[(1, 4.0)], 0.0).unwrap();
    let square = fit.factors.effects[0].iter().map(|x| x * x).sum::<f64>() / 9.0;
    assert!((row.prior[2] * square - 1.0).abs() < 1e-9, "{:?} {square}", row.prior);
    assert!(fit.new_row_error_parts(&row, 0, 1)[0].variance().is_finite());
}

#[test]
fn draws_and_intervals_stay_below_the_ceiling() {
    let fit = clustered(false);
    let low = Parameter { spread: 2.0, ceiling: 1.0, ..Parameter::exact(0.0, 20) };
    let mut stream = Key::root(6).stream();
    // A mean of at most e, however far off the parameter is.
    let draws = (0..2_000).map(|_| fit.draw(low, 50.0, &mut stream));
    let average = draws.sum::<f64>() / 2_000.0;
    // Five standard errors of a count of variance e + 0.2 e^2.
    assert!((average - 1f64.exp()).abs() < 0.23, "{average}");
    let wide = Parameter { ceiling: f64::INFINITY, ..low };
    assert!(fit.interval(low).1 < 8.0 && fit.interval(wide).1 > 20.0);
    // An estimate above its ceiling stays where it is.
    let above = Parameter { ceiling: -5.0, ..Parameter::exact(2.0, 20) };
    assert_eq!(fit.interval(above), fit.interval(Parameter::exact(2.0, 20)));
}

#[test]
fn intervals_of_counts_end_at_whole_numbers_and_hold_one() {
    let fit = fit(Family::Poisson);
    for mean in [1e-3, 0.3, 0.5, 0.97, 4.2, 117.6] {
        let theta = Family::Poisson.link(mean);
        let (low, high) = fit.interval(Parameter::exact(theta, 20));
        assert!(low.fract() == 0.0 && high.fract() == 0.0 && low <= high, "{mean}: {low} {high}");
        let group = fit.calibration.as_ref().unwrap().group_of(Family::Poisson, mean, 20);
        let reach = group.quantile * (mean + 0.05 + 2.5 * mean * mean).sqrt();
        assert!(low >= mean - reach && low - 1.0 < (mean - reach).max(0.0), "{mean}: {low}");
        assert!(high <= mean + reach && high + 1.0 > mean + reach, "{mean}: {high}");
    }
}

#[test]
fn intervals_stay_in_the_range_of_the_family() {
    let of = |family: Family, spread| {
        let fit = fit(family);
        fit.interval(Parameter { spread, ..Parameter::exact(family.link(0.1), 20) })
    };
    assert_eq!((of(Family::Poisson, 0.0).0, of(Family::Bernoulli, 9.0)), (0.0, (0.0, 1.0)));
    assert_eq!(of(Family::Gaussian, 0.0), (0.1 - 2.0, 0.1 + 2.0));
    // 2 for the noise and 1.645 for a mean known up to 1.
    let (low, high) = of(Family::Gaussian, 1.0);
    let reach = (4.0 + NORMAL_QUANTILE * NORMAL_QUANTILE).sqrt();
    assert!((high - 0.1 - reach).abs() < 1e-12 && (low - 0.1 + reach).abs() < 1e-12);
    let sd =
        |family, theta| fit(family).sd(Parameter { spread: 1.0, ..Parameter::exact(theta, 20) });
    assert!((sd(Family::Gaussian, 0.1) - 3.5f64.sqrt()).abs() < 1e-12);
    // Of a count whose logarithm of the mean is normal around 0: moments of sqrt(e) and e^2.
    let (mean, square) = (0.5f64.exp(), 2f64.exp());
    let variance = mean + 2.5 * square + square - mean * mean;
    assert!((sd(Family::Poisson, 0.0) - variance.sqrt()).abs() < 1e-9);
}

fn bare_fit(family: Family, effects: Effects) -> LowRankFit {
    let settings = Settings { effects, lambda: 0.05, ..Settings::new(9, 7, family) };
    let model = LowRank::new(settings).unwrap();
    let mut factors = Factors::start(&model, 0.6, Key::root(3));
    vector::scale(&mut factors.v, 5.0);
    bare(model, factors, 3)
}

#[test]
fn a_new_client_counts_no_more_than_one_of_the_run() {
    let fit = bare_fit(Family::Poisson, Effects::none());
    let cells: Vec<Cell> = (0..5).map(|column| Cell { row: 0, column, value: 1e6 }).collect();
    assert_eq!(fit.own_effect(&cells).unwrap(), PERSONAL_MAX);
}

#[test]
fn a_new_row_is_where_its_gradient_vanishes() {
    for family in Family::ALL {
        for effects in [Effects::none(), Effects::row_column()] {
            let fit = bare_fit(family, effects.clone());
            let cells = [(0, 1.0), (2, 0.0), (5, 1.0), (6, 1.0)];
            let row = fit.new_row(&cells, 0.25).unwrap();
            for k in 0..2 {
                let slope: f64 = cells
                    .iter()
                    .map(|(l, y)| {
                        let theta = fit.new_row_point(&row, *l as usize, 0.25).theta;
                        (family.mean(theta) - y) * fit.factors.v[*l as usize * 2 + k]
                    })
                    .sum();
                let slope = slope + 3.0 * 0.05 * row.own[k];
                assert!(slope.abs() < 1e-10, "{family:?} {effects:?}: {slope}");
            }
        }
    }
    assert!(bare_fit(Family::Poisson, Effects::none()).new_row(&[(1, 0.5)], 0.0).is_err());
    assert!(bare_fit(Family::Poisson, Effects::none()).new_row(&[(7, 1.0)], 0.0).is_err());
}

/// Without a penalty, repeated observations of one column leave most of a row undetermined; it stays near zero.
#[test]
fn a_new_row_that_little_determines_stays_small() {
    for family in Family::ALL {
        let mut fit = bare_fit(family, Effects::row_column());
        let free = Settings { lambda: 0.0, ..fit.model.settings().clone() };
        fit.model = LowRank::new(free).unwrap();
        let again = [(1, 1.0), (1, 0.0), (1, 1.0), (4, 0.0), (4, 1.0), (4, 0.0)];
        for cells in [&again[..3], &again] {
            let row = fit.new_row(cells, 0.0).unwrap();
            assert!(row.own.iter().all(|x| x.abs() < 30.0), "{family:?}: {:?}", row.own);
        }
    }
}

/// Counts of 600 rows of the table's own kind, of which one to three cells are known: the other
/// cells are to be inside their intervals in nine of ten. Rows count once each, so the share
/// has a standard deviation of at most 1.5 %.
#[test]
fn intervals_of_new_rows_with_few_cells_cover() {
    let settings = Settings {
        rank: 1,
        effects: Effects::row_column(),
        lambda: 0.1,
        ..Settings::new(200, 20, Family::Poisson)
    };
    let model = LowRank::new(settings).unwrap();
    let mut factors = Factors::zero(&model);
    let mut stream = Key::root(21).stream();
    let mut normals = |sd: f64, out: &mut Vec<f64>| {
        out.iter_mut().for_each(|x| *x = sd * stream.normal());
    };
    factors.intercept = 1.5;
    normals(0.8, &mut factors.effects[0]);
    normals(0.4, &mut factors.effects[1]);
    normals(0.6, &mut factors.u);
    normals(0.6, &mut factors.v);
    let fit = bare(model, factors, 4);
    for known in 1..=3 {
        let (mut inside, mut all) = (0, 0);
        for _ in 0..600 {
            let (a, u) = (0.8 * stream.normal(), 0.6 * stream.normal());
            let mut count = |l: usize| {
                let theta = 1.5 + a + fit.factors.effects[1][l] + u * fit.factors.v[l];
                Family::Poisson.draw(Family::Poisson.mean(theta), 1.0, &mut stream)
            };
            let counts: Vec<f64> = (0..20).map(&mut count).collect();
            let cells: Vec<(u32, f64)> = (0..known).map(|l| (l, counts[l as usize])).collect();
            let row = fit.new_row(&cells, 0.0).unwrap();
            for (l, count) in counts.iter().enumerate().skip(known as usize) {
                let shares = fit.new_row_error_parts(&row, 0, l);
                let (low, high) =
                    fit.interval(fit.with_errors(fit.new_row_point(&row, l, 0.0), &shares));
                inside += u32::from((low..=high).contains(count));
                all += 1;
            }
        }
        let share = f64::from(inside) / f64::from(all);
        assert!(share > 0.85, "{share} with {known} cells");
    }
}

/// A new row shares the error of a column with the rows of the run, in addition to its own.
#[test]
fn a_new_row_shares_the_error_of_a_column() {
    let fit = clustered(true);
    let column = |shares: Vec<ErrorPart>| {
        shares.into_iter().find(|share| share.source == ErrorSource::Column(3)).unwrap()
    };
    let rows = [vec![(0, 5.0)], vec![(1, 2.0), (2, 4.0)]];
    for (number, cells) in rows.iter().enumerate() {
        let row = fit.new_row(cells, 0.0).unwrap();
        let shares = fit.new_row_error_parts(&row, number, 3);
        assert_eq!(shares[0].source, ErrorSource::NewRow(number));
        assert_eq!(column(shares.clone()), column(fit.error_parts(0, 3)));
        // Held-out errors have the column's in them, and not the new row's.
        let parameter = fit.with_errors(fit.new_row_point(&row, 3, 0.0), &shares);
        assert!((parameter.spread.powi(2) / shares[0].variance() - 1.0).abs() < 1e-12);
        assert!((parameter.measured / shares[1].variance() - 1.0).abs() < 1e-12);
    }
}

fn fitted(lambda: f64) -> (LowRank, Factors, Vec<Counted>) {
    let settings = Settings {
        lambda,
        effects: Effects::row_column(),
        ..Settings::new(8, 6, Family::Gaussian)
    };
    let model = LowRank::new(settings).unwrap();
    let factors = Factors::start(&model, 1.0, Key::root(5));
    let cells = (0..48).filter(|cell| cell % 3 != 0 && cell / 6 != 7).map(|cell| (cell, 1));
    (model, factors, cells.collect())
}

#[test]
fn a_stronger_ridge_leaves_fewer_parameters() {
    let count = |lambda| {
        let (model, factors, cells) = fitted(lambda);
        effective_parameters(&model, &factors, 1, &cells).unwrap()
    };
    let (free, held, tight) = (count(1e-9), count(0.1), count(1e9));
    // Seven rows and four columns have cells: three unknowns each, or the effects alone.
    assert!((free - 33.0).abs() < 0.1 && (tight - 11.0).abs() < 0.1, "{free} {tight}");
    assert!(free > held && held > tight, "{held}");
}

/// Without a penalty a row with one cell determines one unknown, for counts of any size.
#[test]
fn rows_with_fewer_cells_than_unknowns_count_their_cells() {
    let settings = Settings { rank: 2, ..Settings::new(9, 4, Family::Poisson) };
    let model = LowRank::new(settings).unwrap();
    let factors = Factors::start(&model, 4e6, Key::root(7));
    let cells: Vec<Counted> = (0..9).map(|row| (4 * row + row % 4, 1)).collect();
    let count = effective_parameters(&model, &factors, 1, &cells).unwrap();
    // One per row, and two for each of the four columns, which have two cells or three.
    assert!((count - 17.0).abs() < 0.1, "{count}");
}

#[test]
fn a_row_without_cells_is_less_sure_than_the_others() {
    let (model, mut factors, cells) = fitted(0.1);
    for part in [&mut factors.effects[0], &mut factors.u, &mut factors.v] {
        Key::root(6).stream().fill_normal(part);
    }
    let calibration = calibration(0.5, &[(31, 1.2)], false);
    let sure = Uncertainty::new(&model, &factors, 1, &calibration, &cells).unwrap();
    let spread = |row| {
        let shares = sure.error_parts(&model, &factors, [row, 1]);
        shares.iter().map(ErrorPart::variance).sum::<f64>()
    };
    assert!((0..7).all(|row| spread(row) < spread(7)), "{:?}", (spread(0), spread(7)));
}

fn counts_model(family: Family) -> LowRank {
    let settings = Settings::new(6, 5, family);
    LowRank::new(Settings { effects: Effects::row_column(), rank: 2, ..settings }).unwrap()
}

#[test]
fn no_observed_cell_is_moved_and_no_other_goes_beyond_its_row_and_column() {
    let model = counts_model(Family::Poisson);
    let mut factors = Factors::start(&model, 3.0, Key::root(1));
    // A row and a column that are large, and were not seen together.
    (factors.effects[0][3], factors.effects[1][0]) = (2.0, 2.0);
    // Row 5 and column 4 were never seen.
    let cells: Vec<u64> = (0..25).filter(|i| i % 5 != 4 && i % 3 != 0).collect();
    let ceiling = Ceiling::over(&model, &factors, cells.iter().copied());
    let table = Delivered { factors: factors.clone(), ceiling };
    let theta = |cell: u64| model.theta(&factors, cell as usize / 5, cell as usize % 5);
    let largest = |of: &dyn Fn(u64) -> bool| {
        let seen = cells.iter().filter(|cell| of(**cell)).map(|cell| theta(*cell));
        seen.fold(f64::NEG_INFINITY, f64::max)
    };
    let all = largest(&|_| true);
    for cell in 0..30u64 {
        let (row, column) = (cell / 5, cell % 5);
        let bound = match (row, column) {
            (5, _) | (_, 4) => all,
            _ => largest(&|c| c / 5 == row).max(largest(&|c| c % 5 == column)),
        };
        let found = table.theta(&model, row as usize, column as usize);
        assert_eq!(found, theta(cell).min(bound), "{row} {column}");
        assert!(!cells.contains(&cell) || found == theta(cell));
    }
    let moved =
        (0..30).filter(|cell| table.theta(&model, cell / 5, cell % 5) != theta(*cell as u64));
    assert!(moved.count() > 0, "a ceiling that nothing reaches tests nothing");
}

#[test]
fn only_counts_have_one_and_only_where_something_was_seen() {
    for family in Family::ALL {
        let model = counts_model(family);
        let factors = Factors::zero(&model);
        let found = Ceiling::over(&model, &factors, [7].into_iter());
        assert_eq!(found.is_some(), family == Family::Poisson);
        assert_eq!(Ceiling::over(&model, &factors, [].into_iter()), None);
    }
}

#[test]
fn a_ceiling_of_another_shape_is_refused() {
    let model = counts_model(Family::Poisson);
    let factors = Factors::start(&model, 3.0, Key::root(1));
    let theta = factors.to_vector(&model);
    let good = Ceiling::over(&model, &factors, 0..12).unwrap();
    let table = Delivered::received(&model, &theta, Some(&good)).unwrap();
    assert_eq!(table, Delivered { factors, ceiling: Some(good.clone()) });
    let broken: [fn(&mut Ceiling); 2] =
        [|ceiling| ceiling.rows.push(1.0), |ceiling| ceiling.columns[0] = f64::INFINITY];
    for spoil in broken {
        let mut bad = good.clone();
        spoil(&mut bad);
        assert!(Delivered::received(&model, &theta, Some(&bad)).is_err());
    }
}

/// Counts a thousand times above the initial mean, where undamped Newton steps overshoot.
#[test]
fn damped_steps_find_far_rows() {
    let mut fit = bare_fit(Family::Poisson, Effects::row_column());
    fit.factors.intercept = -5.0;
    let row = fit.new_row(&[(0, 1e4), (1, 1e4), (2, 1e4)], 0.0).unwrap();
    let slope = |l: usize| Family::Poisson.mean(fit.new_row_point(&row, l, 0.0).theta) - 1e4;
    let slope = (0..3).map(slope).sum::<f64>() + 3.0 * 1e-3 * fit.new_row_effect(&row);
    assert!(slope.abs() < 1e-6, "{slope}");
}
