//! `[data.prepare]`: what it delivers is that of the pooled rows, and a fit after it is the fit of a
//! table prepared beforehand.

use crate::plans::{read, run};
use crate::{PLAIN, has, refusal, run_clients};
use std::fmt::Write as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use tempfile::TempDir;
use whimbrel_core::Key;
use whimbrel_core::linalg::symmetric_eigen;
use whimbrel_engine::{Ending, Limits, Observer, Outcome, StageRules};
use whimbrel_families::load::load;
use whimbrel_families::plan::Plan;
use whimbrel_methods::prepare::{Columns, Preparation};
use whimbrel_testkit::pairs;

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

/// The same with one value in a column.
fn with_constant_column() -> Vec<f64> {
    let mut rows = rows();
    rows.iter_mut().skip(2).step_by(COLUMNS).for_each(|x| *x = 7.5);
    rows
}

const ALL: &str = "[data.prepare]\ndrop_constant = true\nstandardize = true\npca = 3";

fn fit(folder: &Path, prepare: &str, model: &str, rest: &str) -> Outcome {
    let path = folder.join("job.toml");
    let text = format!(
        "[data]\nsource = \"csv\"\npath = \"data.csv\"\nclient = \"client\"\n{prepare}\n\
         [model]\nkind = \"gmm\"\ncomponents = 3\n{model}\n[method]\nkind = \"fedem\"\n\
         rounds = 25\nstep = 1.0\n{rest}\n"
    );
    std::fs::write(&path, text).unwrap();
    let outcome = run(&read(&path));
    assert!(outcome.ending.is_over(), "{:?}", outcome.ending);
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
            let found = fit(folder.path(), &prepare, "", "");
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

/// Stored numbers of another program (see `peers/pca.py`).
#[test]
fn components_are_those_that_scikit_learn_finds() {
    let peers = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/peers");
    let folder = TempDir::new().unwrap();
    std::fs::copy(peers.join("rows.csv"), folder.path().join("data.csv")).unwrap();
    let text = std::fs::read_to_string(peers.join("pca.json")).unwrap();
    let stored: serde_json::Value = serde_json::from_str(&text).unwrap();
    let flat = |value: &serde_json::Value| -> Vec<f64> {
        let rows = value.as_array().unwrap().iter();
        rows.flat_map(|row| row.as_array().cloned().unwrap_or_else(|| vec![row.clone()]))
            .map(|x| x.as_f64().unwrap())
            .collect()
    };
    for (case, standardize) in [("raw", false), ("standardized", true)] {
        let prepare =
            format!("[data.prepare]\ndrop_constant = true\nstandardize = {standardize}\npca = 3");
        let found = fit(folder.path(), &prepare, "", "");
        for name in ["variances", "axes"] {
            let (found, wanted) = (tensor(&found, 1, name), flat(&stored[case][name]));
            assert_eq!(found.len(), wanted.len());
            for (a, b) in pairs(&found, &wanted) {
                assert!((a - b).abs() <= 1e-10 * b.abs().max(1.0), "{case}, {name}: {a} {b}");
            }
        }
    }
}

/// Rows prepared beforehand are, number for number, what the stages make of them.
#[test]
fn a_fit_after_preparation_is_the_fit_of_prepared_rows() {
    let (folder, other) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let rows = with_constant_column();
    write(&folder.path().join("data.csv"), &rows, COLUMNS, |i| i % 5);
    let start = r#"{"weights": [0.2, 0.5, 0.3], "means": [[-1, 0, 0], [0, 1, 0], [1, 0, 0]],
                    "covariance": [[2, 0, 0], [0, 1, 0], [0, 0, 1]]}"#;
    for folder in [&folder, &other] {
        std::fs::write(folder.path().join("start.json"), start).unwrap();
    }
    let found = fit(folder.path(), ALL, "init = \"start.json\"", "");
    let kinds: Vec<&str> = found.delivered.iter().map(|a| a.kind.as_str()).collect();
    assert_eq!(kinds, ["prepare-columns", "prepare-pca", "gmm"]);
    assert_eq!(tensor(&found, 0, "kept"), [0.0, 1.0, 3.0, 4.0, 5.0]);

    let stage = Columns { columns: COLUMNS, drop_constant: true, standardize: true, centre: true };
    let map = Preparation::delivered(&stage, Some(3), &found.delivered[..2]).unwrap().unwrap();
    let prepared = map.forward(&rows, COLUMNS).unwrap();
    write(&other.path().join("data.csv"), &prepared, 3, |i| i % 5);
    let plain = fit(other.path(), "", "init = \"start.json\"", "");
    for name in ["weights", "means", "covariance"] {
        assert_eq!(tensor(&found, 2, name), tensor(&plain, 0, name), "{name}");
    }
    let back = tensor(&found, 2, "data_means");
    assert_eq!(back, map.backward(&tensor(&found, 2, "means")));
}

/// Without a projection the fit is told in the units of the columns that are left.
#[test]
fn constant_columns_are_dropped_and_the_rest_keeps_its_units() {
    let folder = TempDir::new().unwrap();
    let rows = with_constant_column();
    write(&folder.path().join("data.csv"), &rows, COLUMNS, |i| i % 5);
    let moments = "init = \"moments\"";
    let dropped = fit(folder.path(), "[data.prepare]\ndrop_constant = true", moments, "");
    let listed = "columns = [\"x0\", \"x1\", \"x3\", \"x4\", \"x5\"]";
    let plain = fit(folder.path(), listed, moments, "");
    // Starts are drawn with the key of the stage, of which there is one more: two fits that agree
    // in their mean, which every mixture's M-step keeps.
    let mean = |outcome: &Outcome| -> Vec<f64> {
        let last = outcome.delivered.len() - 1;
        let (weights, means) = (tensor(outcome, last, "weights"), tensor(outcome, last, "means"));
        (0..5).map(|j| (0..3).map(|k| weights[k] * means[k * 5 + j]).sum()).collect()
    };
    for (a, b) in pairs(mean(&dropped), mean(&plain)) {
        assert!((a - b).abs() < 1e-9 * b.abs().max(1.0), "{a} {b}");
    }
}

/// Known limits scale the columns without a message: the fit is that of rows scaled beforehand, told
/// in the units of the data.
#[test]
fn limits_scale_columns_without_a_stage() {
    let (folder, other) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let rows = rows();
    let scaled = |at: usize| ((rows[at] - 100.0 * (at % COLUMNS) as f64) / 128.0) / 0.5;
    let scaled: Vec<f64> = (0..rows.len()).map(scaled).collect();
    write(&folder.path().join("data.csv"), &rows, COLUMNS, |i| i % 5);
    write(&other.path().join("data.csv"), &scaled, COLUMNS, |i| i % 5);
    let range = |j: usize| {
        format!("x{j} = {{ min = {}, max = {} }}\n", 100 * j as i64 - 128, 100 * j as i64 + 128)
    };
    let limits: String = (0..COLUMNS).map(range).collect();
    let prepare = format!("[data.prepare]\nlimits = true\n[schema]\n{limits}");
    let found = fit(folder.path(), &prepare, "", "");
    let plain = fit(other.path(), "", "", "");
    assert_eq!(found.delivered.len(), plain.delivered.len());
    let last = found.delivered.len() - 1;
    assert_eq!(tensor(&found, last, "weights"), tensor(&plain, last, "weights"));
    let means = tensor(&plain, last, "means");
    let back = means.iter().enumerate().map(|(at, x)| x * 64.0 + 100.0 * (at % COLUMNS) as f64);
    assert_eq!(tensor(&found, last, "means"), back.collect::<Vec<f64>>());
}

/// Interrupted while a stage of the preparation is under way, and resumed.
#[test]
fn a_run_that_stops_between_stages_goes_on_in_the_same_bits() {
    struct Stop<'a>(&'a str, &'a AtomicBool);
    impl Observer for Stop<'_> {
        fn stage(&mut self, stage: &StageRules, _: usize, _: usize) {
            self.1.store(stage.name == self.0, Ordering::Relaxed);
        }
    }
    let folder = TempDir::new().unwrap();
    write(&folder.path().join("data.csv"), &with_constant_column(), COLUMNS, |i| i % 5);
    let whole = fit(folder.path(), ALL, "", "");
    let job = read(&folder.path().join("job.toml"));
    for stage in ["columns", "principal components", "federated k-means"] {
        let (out, interrupt) = (TempDir::new().unwrap(), AtomicBool::new(false));
        let go = |resume: bool, stage: &str| {
            let loaded = load(&job).unwrap();
            let plan = Plan::with_cache(&job, &loaded, None).unwrap();
            let (folder, interrupt) = (Some(out.path()), &interrupt);
            let limits = Limits { folder, resume, interrupt, ..Limits::default() };
            let mut stop = Stop(stage, interrupt);
            whimbrel_engine::run(&plan, loaded.clients, job.seed, &limits, &mut stop).unwrap()
        };
        assert_eq!(go(false, stage).ending, Ending::Interrupted, "{stage}");
        let resumed = go(true, "");
        assert!(resumed.ending.is_over(), "{:?}", resumed.ending);
        assert!(resumed.delivered == whole.delivered, "{stage}: another model");
        assert_eq!(resumed.traffic.up, whole.traffic.up, "{stage}: other bytes");
    }
}

/// Each client's products are counted byte for byte: 2 of the length, 8 of the rows.
#[test]
fn the_sums_are_counted() {
    let folder = TempDir::new().unwrap();
    write(&folder.path().join("data.csv"), &rows(), COLUMNS, |i| i % 5);
    let up = |prepare: &str| fit(folder.path(), prepare, "init = \"moments\"", "").traffic.up;
    let standardised = up("[data.prepare]\nstandardize = true");
    assert_eq!(standardised, up("standardize = true"), "the short form");
    let columns = 5 * (8 + 2 * (1 + 8 * COLUMNS as u64));
    assert_eq!(standardised, up("") + columns);
    // Six components of six columns: the fit itself sends what it sends without.
    let products = 5 * (8 + 1 + 8 * 21);
    assert_eq!(up("[data.prepare]\npca = 6"), up("") + columns + products);
}

#[test]
fn impossible_preparations_are_refused() {
    let refused = |prepare: &str| refusal(&format!("{PLAIN}[data.prepare]\n{prepare}\n"));
    has(&refused("pca = 0"), "`pca` takes an integer of at least 1, not 0");
    has(&refused("pac = 3"), "did you mean `pca`?");
    has(
        &refused("limits = true\n[schema.x]\nmin = 3\nmax = 1"),
        "`min` of column \"x\" is not below its `max`",
    );
    has(&refused("pca = 2\nlimits = true"), "write `limits` alone");
    let twice = PLAIN.replace("client = ", "standardize = true\nclient = ");
    has(
        &refusal(&format!("{twice}[data.prepare]\npca = 3\n")),
        "standardize = true in [data.prepare] only",
    );
    let target = "[data]\nsource = \"csv\"\npath = \"a.csv\"\nclient = \"c\"\ntarget = \"y\"\n\
                  [data.prepare]\npca = 2\n[model]\nkind = \"linear\"\n[method]\nkind = \"sgd\"\n\
                  rounds = 5\n";
    let message = refusal(target);
    assert!(message.contains("[data.prepare] is for rows without targets"), "{message}");
}

#[test]
fn what_the_data_cannot_give_is_refused_before_the_run() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("job.toml");
    let refused = |rows: &[f64], columns: usize, prepare: &str| {
        write(&folder.path().join("data.csv"), rows, columns, |i| i % 2);
        let job = format!("{PLAIN}[data.prepare]\n{prepare}\n");
        std::fs::write(&path, job.replace("rounds = 200", "rounds = 3")).unwrap();
        let job = read(&path);
        let planned = load(&job)
            .and_then(|loaded| Ok((Plan::with_cache(&job, &loaded, None)?, loaded.clients)));
        let failure = match planned {
            Err(failure) => failure,
            Ok((plan, clients)) => {
                let run = run_clients(&plan, clients, 1, &mut ());
                run.map(|_| ()).expect_err("the run was not refused").into()
            }
        };
        (failure.to_string(), failure.exit_code())
    };
    let rows = with_constant_column();
    let (message, code) = refused(&rows, COLUMNS, "drop_constant = true\npca = 6");
    assert!(message.contains("pca = 6 of 5 columns"), "{message}");
    assert_eq!(code, 2);
    let (message, code) = refused(&[1.0, 2.0, 1.0, 2.0, 1.0, 2.0], 2, "drop_constant = true");
    assert_eq!((message.contains("all columns are constant"), code), (true, 3), "{message}");
    let (message, code) = refused(&rows[..3 * COLUMNS], COLUMNS, "pca = 3");
    assert_eq!((message.contains("3 rows have fewer than 3 components"), code), (true, 3));
    let twins: Vec<f64> = rows.chunks(COLUMNS).flat_map(|row| [row[0], row[1], row[0]]).collect();
    let (message, code) = refused(&twins, 3, "pca = 3");
    assert_eq!((message.contains("vary in 2 directions only"), code), (true, 3), "{message}");
    for (schema, reason, expected) in [
        ("x0 = { min = 0, max = 1 }", "the limits of column `x1` are not declared", 2),
        (
            "x0 = { min = 0, max = 1 }\nx1 = { min = 0, max = 7 }\nage = { min = 0, max = 1 }",
            "no column \"age\"",
            2,
        ),
        (
            "x0 = { min = 0, max = 1 }\nx1 = { min = 0, max = 7 }",
            "line 4 (row 3), column \"x1\": 8 is above `max`, 7",
            3,
        ),
    ] {
        let rows = [0.5, 2.0, 0.1, 3.0, 0.2, 8.0, 0.9, 7.0];
        let (message, code) = refused(&rows, 2, &format!("limits = true\n[schema]\n{schema}"));
        assert_eq!((message.contains(reason), code), (true, expected), "{message}");
    }
}

#[test]
fn constant_columns_are_named() {
    let folder = TempDir::new().unwrap();
    write(&folder.path().join("data.csv"), &with_constant_column(), COLUMNS, |i| i % 5);
    let path = folder.path().join("job.toml");
    let plan = |prepare: &str| {
        std::fs::write(&path, format!("{PLAIN}{prepare}\n")).unwrap();
        let job = read(&path);
        Plan::with_cache(&job, &load(&job).unwrap(), None)
    };
    let dropped = plan("[data.prepare]\ndrop_constant = true\npca = 2").unwrap();
    assert!(dropped.warnings().is_empty());
    let notes = dropped.notes();
    assert_eq!(notes[1], "column `x2` is constant and left out");
    assert_eq!(notes[2], "likelihoods refer to 2 principal components, not to the columns");
    let refused = plan("").err().unwrap().to_string();
    has(&refused, "column `x2` is constant: the likelihood is unbounded");
    has(&refused, "drop constant columns");
}

/// A positive `reg_covar` or a known covariance gives a constant column a density.
#[test]
fn a_constant_column_is_fitted_where_variances_stay_positive() {
    let folder = TempDir::new().unwrap();
    write(&folder.path().join("data.csv"), &with_constant_column(), COLUMNS, |i| i % 5);
    for covariance in ["full", "diagonal", "tied"] {
        let model = format!("covariance = \"{covariance}\"\nreg_covar = 1e-6");
        let codec = "[uplink]\ncodec = { kind = \"dithering\", levels = 8 }";
        let outcome = fit(folder.path(), "", &model, codec);
        assert!(!matches!(outcome.ending, Ending::Degenerate(_)), "{:?}", outcome.ending);
        let means = tensor(&outcome, outcome.delivered.len() - 1, "means");
        means.chunks(COLUMNS).for_each(|mean| assert!((mean[2] - 7.5).abs() < 1e-6, "{mean:?}"));
    }
}

#[test]
fn images_are_split_by_label_writer_or_at_random() {
    let folder = TempDir::new().unwrap();
    let idx = |name: &str, kind: u8, shape: &[u32], values: &[u8]| {
        let mut bytes = vec![0, 0, kind, shape.len() as u8];
        shape.iter().for_each(|n| bytes.extend(n.to_be_bytes()));
        std::fs::write(folder.path().join(name), [&bytes, values].concat()).unwrap();
    };
    let images: Vec<u8> = (0..6 * 4).map(|n| (n * n % 251) as u8).collect();
    idx("images", 8, &[6, 2, 2], &images);
    idx("labels", 8, &[6], &[3, 1, 3, 1, 3, 3]);
    let writers: Vec<u8> = [5u32, 12, 5, 5, 12, 12]
        .iter()
        .flat_map(|w| [0, 0, *w].map(u32::to_be_bytes))
        .flatten()
        .collect();
    idx("writers", 12, &[6, 3], &writers);
    let names = |data: &str| {
        let path = folder.path().join("job.toml");
        let rest =
            "[model]\nkind = \"gmm\"\ncomponents = 1\n[method]\nkind = \"fedem\"\nrounds = 1\n";
        let text = format!("[data]\nsource = \"idx\"\npath = \"images\"\n{data}\n{rest}");
        std::fs::write(&path, text).unwrap();
        let job = read(&path);
        assert_eq!(crate::parse(&job.to_toml()), job, "the resolved job is the job");
        let loaded = load(&job).unwrap();
        assert_eq!(loaded.columns, ["p0", "p1", "p2", "p3"]);
        loaded.clients.into_iter().map(|(name, _)| name).collect::<Vec<String>>()
    };
    assert_eq!(names("writers = \"writers\""), ["writer-05", "writer-12"]);
    let by_label = "labels = \"labels\"\nsplit = { by = \"column\", column = \"label\" }";
    assert_eq!(names(by_label), ["label-1", "label-3"]);
    assert_eq!(names("scale = 1\nsplit = { by = \"iid\", clients = 3 }").len(), 3);
    let drawn = "labels = \"labels\"\nsplit = { by = \"dirichlet\", clients = 2, alpha = 0.5 }";
    assert_eq!(names(drawn).len(), 2);
    has(
        &refusal(
            "[data]\nsource = \"idx\"\npath = \"a\"\nsplit = { by = \"column\", column = \"label\" }\n",
        ),
        "images have no column \"label\" to split by",
    );
}
