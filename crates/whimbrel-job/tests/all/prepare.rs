//! `[data.prepare]`: what it delivers is that of the pooled rows, and a fit after it is the fit of a
//! table prepared beforehand.

use crate::plans::{read, run};
use crate::{PLAIN, refusal};
use std::fmt::Write as _;
use std::path::Path;
use tempfile::TempDir;
use whimbrel_core::Key;
use whimbrel_core::linalg::symmetric_eigen;
use whimbrel_engine::{Ending, Outcome};
use whimbrel_methods::prepare::Preparation;

const ROWS: usize = 240;
const COLUMNS: usize = 6;

/// Rows that vary in six directions by different amounts, about means far from zero, in three
/// groups.
fn rows() -> Vec<f64> {
    let mut stream = Key::root(11).stream();
    let mix: Vec<f64> = (0..COLUMNS * COLUMNS).map(|_| stream.normal()).collect();
    let mut out = Vec::new();
    for i in 0..ROWS {
        let z: Vec<f64> = (0..COLUMNS)
            .map(|j| {
                let group =
                    if j < 2 { 6.0 * ((i % 3) as f64 - 1.0) * (j as f64 + 1.0) } else { 0.0 };
                (stream.normal() + group) * 3.0 / (j as f64 + 1.0)
            })
            .collect();
        for j in 0..COLUMNS {
            let x: f64 = (0..COLUMNS).map(|k| mix[j * COLUMNS + k] * z[k]).sum();
            out.push(100.0 * j as f64 + x);
        }
    }
    out
}

/// Writes rows with a column that names one of `clients`.
fn write(path: &Path, rows: &[f64], columns: usize, client: impl Fn(usize) -> usize) {
    let mut text = String::from("client");
    (0..columns).for_each(|j| write!(text, ",x{j}").unwrap());
    for (i, row) in rows.chunks(columns).enumerate() {
        write!(text, "\nc{:02}", client(i)).unwrap();
        row.iter().for_each(|x| write!(text, ",{x}").unwrap());
    }
    std::fs::write(path, text + "\n").unwrap();
}

fn fit(folder: &Path, prepare: &str, rest: &str) -> Outcome {
    let path = folder.join("job.toml");
    let text = format!(
        "[data]\nsource = \"csv\"\npath = \"data.csv\"\nclient = \"client\"\n{prepare}\n\
         [model]\nkind = \"gmm\"\ncomponents = 3\n[method]\nkind = \"fedem\"\nrounds = 25\n\
         step = 1.0\n{rest}\n"
    );
    std::fs::write(&path, text).unwrap();
    let outcome = run(&read(&path));
    assert_eq!(outcome.ending, Ending::Finished);
    outcome
}

fn tensor(outcome: &Outcome, stage: usize, name: &str) -> Vec<f64> {
    outcome.delivered[stage].tensor(name).unwrap().values.clone()
}

/// The covariance of all rows, by plain sums about the plain mean.
fn covariance(rows: &[f64], d: usize, scaled: bool) -> Vec<f64> {
    let n = (rows.len() / d) as f64;
    let mean: Vec<f64> =
        (0..d).map(|j| rows.chunks(d).map(|row| row[j]).sum::<f64>() / n).collect();
    let entry = |i: usize, j: usize| {
        rows.chunks(d).map(|r| (r[i] - mean[i]) * (r[j] - mean[j])).sum::<f64>() / n
    };
    let scale = |i: usize| if scaled { entry(i, i).sqrt() } else { 1.0 };
    (0..d * d).map(|at| entry(at / d, at % d) / (scale(at / d) * scale(at % d))).collect()
}

#[test]
fn federated_components_are_those_of_the_pooled_rows_however_they_are_split() {
    let folder = TempDir::new().unwrap();
    let rows = rows();
    for standardize in [false, true] {
        let eigen = symmetric_eigen(&covariance(&rows, COLUMNS, standardize), COLUMNS).unwrap();
        let splits: [&dyn Fn(usize) -> usize; 3] = [&|i| i % 5, &|i| i * i % 7, &|_| 0];
        for split in splits {
            write(&folder.path().join("data.csv"), &rows, COLUMNS, split);
            let prepare = format!("[data.prepare]\nstandardize = {standardize}\npca = 3");
            let found = fit(folder.path(), &prepare, "");
            let (axes, variances) = (tensor(&found, 1, "axes"), tensor(&found, 1, "variances"));
            for k in 0..3 {
                let right = eigen.values[COLUMNS - 1 - k];
                assert!((variances[k] / right - 1.0).abs() < 1e-10, "{k}: {variances:?}");
                let (axis, other) = (&axes[k * COLUMNS..][..COLUMNS], {
                    &eigen.vectors[(COLUMNS - 1 - k) * COLUMNS..][..COLUMNS]
                });
                let cosine: f64 = axis.iter().zip(other).map(|(a, b)| a * b).sum();
                assert!((cosine.abs() - 1.0).abs() < 1e-10, "axis {k}: cosine {cosine}");
                let largest = axis.iter().max_by(|a, b| a.abs().total_cmp(&b.abs())).unwrap();
                assert!(*largest > 0.0, "{axis:?}");
            }
        }
    }
}

/// Rows prepared beforehand are, number for number, what the stages make of them.
#[test]
fn a_fit_after_preparation_is_the_fit_of_prepared_rows() {
    let (folder, other) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let mut rows = rows();
    for row in rows.chunks_mut(COLUMNS) {
        row[2] = 7.5;
    }
    write(&folder.path().join("data.csv"), &rows, COLUMNS, |i| i % 5);
    let all = "[data.prepare]\ndrop_constant = true\nstandardize = true\npca = 3";
    let found = fit(folder.path(), all, "");
    let names: Vec<&str> = found.delivered.iter().map(|a| a.kind.as_str()).collect();
    assert_eq!(names, ["prepare-columns", "prepare-pca", "start", "gmm"]);
    assert_eq!(tensor(&found, 0, "kept"), [0.0, 1.0, 3.0, 4.0, 5.0]);

    let map = Preparation::from_delivered(&found.delivered).unwrap();
    let prepared = map.forward(&rows, COLUMNS).unwrap();
    write(&other.path().join("data.csv"), &prepared, 3, |i| i % 5);
    let plain = fit(other.path(), "", "");
    for name in ["weights", "means", "covariance"] {
        let (a, b) = (tensor(&found, 3, name), tensor(&plain, 1, name));
        // The start is drawn by the stage's key, which counts stages: two fits, one optimum.
        assert_eq!(a.len(), b.len(), "{name}");
    }
    let objective = |o: &Outcome| o.last.as_ref().unwrap().number("objective").unwrap();
    let gap = (objective(&found) - objective(&plain)).abs();
    assert!(gap < 1e-6 * objective(&plain).abs(), "{gap:e}");
}

#[test]
fn impossible_preparations_are_refused() {
    let message = refusal(&format!("{PLAIN}[data.prepare]\npca = 0\n"));
    assert!(message.contains("`pca` takes an integer of at least 1, not 0"), "{message}");
}
