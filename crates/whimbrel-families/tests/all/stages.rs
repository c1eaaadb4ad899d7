//! Stages before a fit: what they give it, and who is heard in them.

use crate::plans::{read, run};
use std::path::Path;
use tempfile::TempDir;
use whimbrel_core::Key;
use whimbrel_engine::{Ending, Outcome};
use whimbrel_testkit::pairs;

/// Two groups of patients, in columns whose scales are a thousand apart.
fn wards(folder: &Path, leave_out: Option<&str>) {
    wards_in(folder, leave_out, 1.0);
}

/// The same with the column in grams in units larger by this factor.
fn wards_in(folder: &Path, leave_out: Option<&str>, unit: f64) {
    let mut stream = Key::root(5).stream();
    let mut text = String::from("ward,years,grams,beats\n");
    for row in 0..200 {
        let far = f64::from(row % 3 / 2);
        let years = 50.0 + 10.0 * far + 5.0 * stream.normal();
        let grams = 0.1 * (stream.normal() - 2.0 * far) / unit;
        let beats = 900.0 + 100.0 * (stream.normal() + 2.0 * far);
        let ward = format!("w{}", row % 5);
        if leave_out != Some(ward.as_str()) {
            text += &format!("{ward},{years},{grams},{beats}\n");
        }
    }
    std::fs::write(folder.join("wards.csv"), text).unwrap();
    let spread = 0.01 / (unit * unit);
    let matrix = format!("[[30, 0, 0], [0, {spread:e}, 0], [0, 0, 1e4]]");
    let init = format!(
        "{{\"weights\": [0.5, 0.5], \"means\": [[48, 0, 900], [62, {:e}, 1100]], \
         \"covariance\": {matrix}}}",
        -0.2 / unit
    );
    std::fs::write(folder.join("init.json"), init).unwrap();
}

fn job(folder: &Path, standardize: bool, model: &str, method: &str) -> Outcome {
    let outcome = ended(folder, standardize, model, method);
    assert!(outcome.ending.is_over(), "{:?}", outcome.ending);
    outcome
}

/// The same, however it ends.
fn ended(folder: &Path, standardize: bool, model: &str, method: &str) -> Outcome {
    let path = folder.join("job.toml");
    let text = format!(
        "[data]\nsource = \"csv\"\npath = \"wards.csv\"\nclient = \"ward\"\n\
         standardize = {standardize}\n[model]\nkind = \"gmm\"\ncomponents = 2\n{model}\n\
         [method]\n{method}\n"
    );
    std::fs::write(&path, text).unwrap();
    run(&read(&path))
}

fn objective(outcome: &Outcome) -> f64 {
    outcome.last.as_ref().unwrap().number("objective").unwrap()
}

fn tensor(outcome: &Outcome, stage: usize, name: &str) -> Vec<f64> {
    outcome.delivered[stage].tensor(name).unwrap().values.clone()
}

/// EM is equivariant under the scales of columns: standardised or not, pooled or not.
#[test]
fn a_standardised_fit_is_that_of_em() {
    let folder = TempDir::new().unwrap();
    wards(folder.path(), None);
    let model = "init = \"init.json\"\ncovariance = \"full\"";
    let em = job(folder.path(), false, model, "kind = \"em\"\nrounds = 80");
    let standardised = job(folder.path(), true, model, "kind = \"em\"\nrounds = 80");
    let federated = job(folder.path(), true, model, "kind = \"fedem\"\nrounds = 80\nstep = 1.0");
    for other in [&standardised, &federated] {
        let gap = (objective(other) - objective(&em)).abs();
        assert!(gap <= 1e-8 * objective(&em).abs(), "off by {gap:e}");
        assert_eq!(other.delivered.len(), 2, "standardise, then fit");
        for name in ["means", "covariances"] {
            let (found, wanted) = (tensor(other, 1, name), tensor(&em, 0, name));
            for (a, b) in pairs(&found, &wanted) {
                // Covariances of columns that are not correlated are small differences.
                assert!((a - b).abs() <= 1e-7 * b.abs() + 1e-9, "{name}: {found:?} {wanted:?}");
            }
        }
    }
}

/// Nor do columns a hundred million apart: floors are in units of each column.
#[test]
fn units_that_differ_wildly_do_not_change_the_fit() {
    let folder = TempDir::new().unwrap();
    for covariance in ["tied", "diagonal", "full"] {
        let fit = |unit: f64, standardize| {
            wards_in(folder.path(), None, unit);
            let model = format!("init = \"init.json\"\ncovariance = \"{covariance}\"");
            let method = "kind = \"fedem\"\nrounds = 80\nstep = 1.0";
            let outcome = job(folder.path(), standardize, &model, method);
            assert_eq!(outcome.last.as_ref().unwrap().number("repairs"), Some(0.0));
            objective(&outcome)
        };
        // A density in units `u` times larger is `u` times as high: its logarithm moves by ln u.
        let (unit, near) = (1e5, fit(1.0, false));
        for far in [fit(unit, false), fit(unit, true)] {
            let gap = (far + unit.ln() - near).abs();
            assert!(gap <= 1e-8 * near.abs(), "{covariance}: off by {gap:e}");
        }
    }
}

/// One level for a whole vector drowns columns in grams beside those in beats in the statistic's own
/// coordinates; in the Fisher frame units do not matter.
#[test]
fn one_level_is_enough_whatever_the_units() {
    let folder = TempDir::new().unwrap();
    wards(folder.path(), None);
    let em = job(folder.path(), true, "", "kind = \"em\"\nrounds = 200");
    let one_level = "kind = \"fedem\"\nrounds = 1500\n[uplink]\n\
                     codec = { kind = \"dithering\", levels = 1 }";
    for standardize in [true, false] {
        let fit = job(folder.path(), standardize, "", one_level);
        let gap = (objective(&fit) - objective(&em)).abs();
        assert!(gap <= 1e-6, "off by {gap:e}");
    }
    let raw = ended(folder.path(), false, "", &format!("{one_level}\nframe = \"raw\""));
    assert!(matches!(raw.ending, Ending::Degenerate(_)), "{:?}", raw.ending);
    let raw_gap = (objective(&raw) - objective(&em)).abs();
    assert!(raw_gap > 1e-2, "in raw coordinates the small columns drown: {raw_gap:e}");
}

/// Who joins late is not heard in the stages before the fit: they are what they would be without.
#[test]
fn late_clients_are_left_out_of_earlier_stages() {
    let (with, without) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    wards(with.path(), None);
    wards(without.path(), Some("w4"));
    let method = "kind = \"fedem\"\nrounds = 6\nstep = \"theory\"\n[uplink]\n\
                  codec = { kind = \"dithering\", levels = 4 }\n";
    let late = format!("{method}[simulation]\nlate = [{{ client = \"w4\", round = 4 }}]\n");
    let never = job(without.path(), true, "", method);
    let everyone = job(with.path(), true, "", method);
    let late = job(with.path(), true, "", &late);
    assert_eq!(late.delivered.len(), 4, "standardise, k-means, constants, fit");
    for stage in 0..3 {
        assert_eq!(late.delivered[stage], never.delivered[stage], "stage {stage}");
        assert_ne!(late.delivered[stage], everyone.delivered[stage], "stage {stage}");
    }
    assert_ne!(late.delivered[3], never.delivered[3], "it is heard in the fit");
    let rounds: Vec<u32> = late.tallies.iter().map(|tally| tally.rounds).collect();
    assert_eq!(rounds, [6, 6, 6, 6, 3]);
}
