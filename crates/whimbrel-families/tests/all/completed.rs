//! Completed tables: rows and columns that nobody observed, and draws.

use whimbrel_families::table::completed::Completed;
use whimbrel_families::table::sheet::{Place, Sheet};
use whimbrel_models::lowrank::{
    Calibration, Effects, Factors, Family, Group, LowRank, LowRankFit, Settings,
};

/// Means `10 row + column` of a 6 x 3 table without factors; nobody observed the `bare` ones.
fn table(bare: [&[usize]; 2], calibration: Option<Calibration>, personal: bool) -> Completed {
    let settings = Settings {
        rank: 0,
        effects: Effects::row_column(),
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
    let fit = LowRankFit {
        model,
        factors,
        ceiling: None,
        clients: 2,
        observations,
        calibration,
        uncertainty: None,
    };
    let names = |n: usize| (0..n).map(|i| i.to_string()).collect();
    Completed::new(&fit.to_artifact(), names(6), names(3), personal).unwrap()
}

#[test]
fn a_row_nobody_observed_differs_as_the_others_do() {
    let table = table([&[5], &[2]], None, false);
    assert_eq!(table.parameter(4, 1, 0.0).spread, 0.0);
    // From 51 to 1, 11, 21, 31 and 41: a mean square of 1100.
    let bare = table.parameter(5, 1, 0.0);
    assert_eq!((bare.theta, bare.spread), (51.0, 1100f64.sqrt()));
    // From 32 to 30 and 31.
    let column = table.parameter(3, 2, 0.0);
    assert!((column.spread - 2.5f64.sqrt()).abs() < 1e-12, "{column:?}");
    // From 52 to 2, 12, 22, 32 and 42, and to 50 and 51.
    let both = table.parameter(5, 2, 0.0);
    assert!((both.spread - 1102.5f64.sqrt()).abs() < 1e-12, "{both:?}");
    // A row that is nowhere in the run is one of the five: a mean of 21 and a variance of 200.
    let any = table.any_row(1, 0.5);
    assert_eq!(any.theta, 21.5);
    assert!((any.spread - 200f64.sqrt()).abs() < 1e-9, "{any:?}");
    let estimate = table.estimate(bare);
    assert!(estimate.lower < 1.0 && estimate.upper > 100.0, "{estimate:?}");
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
        coverage: Some(0.9),
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
