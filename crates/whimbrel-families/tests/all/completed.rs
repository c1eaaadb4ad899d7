//! Completed tables: rows and columns that nobody observed, and draws.

use whimbrel_families::table::completed::Completed;
use whimbrel_families::table::sheet::{Place, Sheet};
use whimbrel_models::lowrank::{
    Calibration, Counted, Coverage, Effects, Factors, Family, Group, LowRank, LowRankFit, Settings,
    Uncertainty,
};

/// Means `10 row + column` of a 6 x 3 table without factors and next to no noise; nobody observed the
/// `bare` ones, whose effects are zero.
fn table(bare: [&[usize]; 2], calibration: Option<Calibration>, personal: bool) -> Completed {
    let settings = Settings {
        rank: 0,
        effects: Effects::row_column(),
        lambda_effects: 0.0,
        ..Settings::new(6, 3, Family::Gaussian)
    };
    let model = LowRank::new(settings).unwrap();
    let mut factors = Factors::zero(&model);
    factors.effects[0] = (0..6).map(|row| 10.0 * f64::from(row)).collect();
    factors.effects[1] = (0..3).map(f64::from).collect();
    let mut observations = [vec![20; 6], vec![20; 3]];
    for (counts, bare) in observations.iter_mut().zip(bare) {
        bare.iter().for_each(|at| counts[*at] = 0);
    }
    for (effects, counts) in factors.effects.iter_mut().zip(&observations) {
        effects.iter_mut().zip(counts).filter(|(_, n)| **n == 0).for_each(|(x, _)| *x = 0.0);
    }
    let cells = (0..18u64).filter(|at| {
        observations[0][*at as usize / 3] > 0 && observations[1][*at as usize % 3] > 0
    });
    let cells: Vec<Counted> = cells.map(|at| (at, 1)).collect();
    let uncertainty = Uncertainty::new(&model, &factors, 2, &still(), &cells).unwrap();
    let fit = LowRankFit {
        model,
        factors,
        ceiling: None,
        clients: 2,
        observations,
        calibration,
        uncertainty: Some(uncertainty),
    };
    let names = |n: usize| (0..n).map(|i| i.to_string()).collect();
    Completed::new(&fit.to_artifact(), names(6), names(3), personal).unwrap()
}

/// Next to no noise.
fn still() -> Calibration {
    let group = Group { class: 4, last: 31, quantile: 1e-9, dispersion: 1e-18 };
    Calibration {
        dispersion: 1e-18,
        groups: vec![group],
        calibrated: true,
        coverage: None,
        doubtful: false,
    }
}

#[test]
fn a_row_nobody_observed_differs_as_the_others_do() {
    let table = table([&[5], &[2]], None, false);
    let close = |spread: f64, square: f64| (spread * spread / square - 1.0).abs() < 1e-9;
    assert!(table.cell(4, 1, 0.0).parameter.spread < 1e-8);
    // Effects of 0, 10, 20, 30 and 40 have a mean square of 600.
    let bare = table.cell(5, 1, 0.0).parameter;
    assert!(bare.theta == 1.0 && close(bare.spread, 600.0), "{bare:?}");
    // Effects of 0 and 1.
    let column = table.cell(3, 2, 0.0).parameter;
    assert!(close(column.spread, 0.5), "{column:?}");
    let both = table.cell(5, 2, 0.0).parameter;
    assert!(close(both.spread, 600.5), "{both:?}");
    // A row that is nowhere in the run is one of them, too.
    let any = Place::New(table.fit.new_row(&[], 0.5).unwrap());
    let any = table.cell_of(&any, 0, 1, 0.5).parameter;
    assert!(any.theta == 1.5 && close(any.spread, 600.0), "{any:?}");
    let estimate = table.estimate(bare);
    assert!(estimate.lower < -35.0 && estimate.upper > 35.0, "{estimate:?}");
}

#[test]
fn numbers_of_observations_that_do_not_fit_the_table_are_refused() {
    let whole = table([&[], &[]], None, false);
    for counts in [vec![1.0; 7], vec![0.0; 6]] {
        let mut artifact = whole.fit.to_artifact();
        artifact.tensors.retain(|tensor| tensor.name != "row_observations");
        artifact.add("row_observations", &[counts.len()], counts);
        let labels = (whole.rows.clone(), whole.columns.clone());
        assert!(Completed::new(&artifact, labels.0, labels.1, false).is_err());
    }
}

#[test]
fn intervals_without_the_effects_they_were_found_with_are_not_called_calibrated() {
    let group = Group { class: 4, last: 31, quantile: 1.7, dispersion: 1.0 };
    let found = Calibration {
        dispersion: 1.0,
        groups: vec![group],
        calibrated: true,
        coverage: Some(Coverage { share: 0.9, cells: 40 }),
        doubtful: false,
    };
    let plain = table([&[], &[]], Some(found.clone()), false);
    assert!(plain.intervals().contains("90 %, calibrated on the held-out cells"));
    assert_eq!(plain.intervals_without_effects(), plain.intervals());
    let personal = table([&[], &[]], Some(found), true);
    let said = personal.intervals_without_effects();
    assert!(said.contains("not calibrated") && !said.contains("cross-checked"), "{said}");
    let unchecked = table([&[], &[]], None, true);
    assert_eq!(unchecked.intervals_without_effects(), unchecked.intervals());
}

/// A row without a cell errs as one in an imputation: with no noise to speak of, its draws differ from
/// the estimates by one normal number times each column's own spread.
#[test]
fn a_bare_row_errs_as_one() {
    let table = table([&[5], &[]], Some(still()), false);
    let rows = (0..6).map(|row| (row.to_string(), Place::Known(row))).collect();
    let sheet = Sheet { table: &table, rows, effect: 0.0, seen: None, seed: 7 };
    for number in 1..=20 {
        let error = |column: usize| {
            let parameter = table.cell(5, column, 0.0).parameter;
            (sheet.draw(5, column, number) - parameter.theta) / parameter.spread
        };
        assert!((error(0) - error(1)).abs() < 1e-6 && (error(0) - error(2)).abs() < 1e-6);
        assert!((sheet.draw(4, 1, number) - 41.0).abs() < 1e-6);
    }
    let errors: Vec<f64> = (1..=20).map(|number| sheet.draw(5, 0, number)).collect();
    assert!(errors.windows(2).all(|pair| pair[0] != pair[1]), "{errors:?}");
}

#[test]
fn a_draw_is_addressed_by_seed_number_and_cell() {
    let table = table([&[], &[]], None, false);
    let draw = |row, column, seed, number| {
        let rows = (0..6).map(|row| (row.to_string(), Place::Known(row))).collect();
        Sheet { table: &table, rows, effect: 0.0, seen: None, seed }.draw(row, column, number)
    };
    assert_eq!(draw(2, 1, 7, 4), draw(2, 1, 7, 4));
    for other in [draw(2, 2, 7, 4), draw(2, 1, 8, 4), draw(2, 1, 7, 5)] {
        assert_ne!(draw(2, 1, 7, 4), other);
    }
}
