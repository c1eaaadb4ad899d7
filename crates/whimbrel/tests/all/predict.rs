//! A fitted mixture on rows it has seen, and on files that differ.

use crate::support::{Sandbox, fixture, mixture_job, number};
use whimbrel::parts::core::Key;

const JOB: &str = "name = \"wards\"\nseed = 1\n[data]\nsource = \"csv\"\npath = \"data.csv\"\n\
    client = \"client\"\n[model]\nkind = \"gmm\"\ncomponents = 3\ncovariance = \"full\"\n\
    init = \"federated-kmeans\"\n[method]\nkind = \"fedem\"\nrounds = 40\nstep = 1.0\n";

fn fitted() -> Sandbox {
    let sandbox = Sandbox::with_job(JOB);
    sandbox.write("data.csv", &fixture("data.csv"));
    sandbox.run_job("out");
    sandbox
}

fn predict(sandbox: &Sandbox, data: &str, out: &str) -> serde_json::Map<String, serde_json::Value> {
    sandbox.ok(&["predict", "out", "--data", data, "--out", out, "--json"]).json()
}

#[test]
fn the_mean_log_density_of_the_training_rows_is_the_objective() {
    let sandbox = fitted();
    let report = predict(&sandbox, "data.csv", "found.csv");
    let objective = number(&sandbox.object("out/summary.json"), "objective");
    let mean = number(&report, "mean_log_density");
    assert!((mean + objective).abs() <= 1e-12 * objective.abs(), "{mean} and {objective}");
    let text = sandbox.read("found.csv");
    let mut lines = text.lines();
    assert_eq!(lines.next(), Some("row,label,log_density,p1,p2,p3"));
    let mut total = 0.0;
    for (n, line) in lines.enumerate() {
        let cells: Vec<f64> = line.split(',').map(|cell| cell.parse().unwrap()).collect();
        assert_eq!(cells[0], (n + 1) as f64);
        let shares = &cells[3..];
        // Seven digits each.
        assert!((shares.iter().sum::<f64>() - 1.0).abs() < 3e-7, "{line}");
        let largest = (0..3).max_by(|a, b| shares[*a].total_cmp(&shares[*b])).unwrap();
        assert_eq!(cells[1], (largest + 1) as f64, "labels are the likeliest component");
        total += cells[2];
    }
    assert!((total / 240.0 - mean).abs() < 1e-6 * mean.abs());
    assert!(text.lines().all(|line| line.split(',').all(|cell| cell.len() <= 12)), "{text}");
    assert_eq!(report["rows"], 240);
}

#[test]
fn the_order_of_columns_does_not_matter() {
    let sandbox = fitted();
    let turned: String = fixture("data.csv")
        .lines()
        .map(|line| {
            let cells: Vec<&str> = line.split(',').collect();
            format!("{},{},{},{}\n", cells[3], cells[0], cells[1], cells[2])
        })
        .collect();
    sandbox.write("turned.csv", &turned);
    predict(&sandbox, "data.csv", "a.csv");
    predict(&sandbox, "turned.csv", "b.csv");
    assert_eq!(sandbox.read("a.csv"), sandbox.read("b.csv"));
}

#[test]
fn a_missing_column_is_named() {
    let sandbox = fitted();
    sandbox.write("less.csv", "height,weight\n1,2\n");
    sandbox.fails(
        &["predict", "out", "--data", "less.csv", "--out", "x.csv"],
        2,
        "less.csv has no column \"age\"",
    );
    assert!(!sandbox.path("x.csv").exists());
}

#[test]
fn bad_cells_are_named() {
    let sandbox = fitted();
    sandbox.write("bad.csv", "height,weight,age\n1,2,3\n1,inf,3\n");
    sandbox.fails(
        &["predict", "out", "--data", "bad.csv", "--out", "x.csv"],
        3,
        "line 3 (row 2), column \"weight\"",
    );
}

const PREPARED: &str = "client = \"client\"\n[data.prepare]\nstandardize = true\npca = 2\n";

/// Raw rows are prepared as those of the fit were, whatever the threads.
#[test]
fn what_was_prepared_is_prepared_again() {
    let sandbox = Sandbox::with_job(&JOB.replace("client = \"client\"\n", PREPARED));
    sandbox.write("data.csv", &fixture("data.csv"));
    let threads = |n: &str, out: &str| {
        sandbox.ok(&["run", "job.toml", "--out", out, "--threads", n]);
        sandbox.result_bytes(out)
    };
    assert!(threads("1", "out") == threads("3", "other"), "bits depend on threads");
    let model = sandbox.object("out/model/model.json");
    assert_eq!(model["space"], "components");
    assert_eq!(sandbox.object("out/summary.json")["space"], "components");
    let columns = model["columns"].as_array().unwrap().len();
    assert_eq!(model["prepare"]["axes"].as_array().unwrap().len(), 2);
    assert_eq!(model["means"][0].as_array().unwrap().len(), 2);
    assert_eq!(model["data_means"][0].as_array().unwrap().len(), columns);

    let report = predict(&sandbox, "data.csv", "found.csv");
    let objective = number(&sandbox.object("out/summary.json"), "objective");
    let mean = number(&report, "mean_log_density");
    assert!((mean + objective).abs() <= 1e-12 * objective.abs(), "{mean} and {objective}");

    let renamed = fixture("data.csv").replacen(model["columns"][0].as_str().unwrap(), "other", 1);
    sandbox.write("renamed.csv", &renamed);
    sandbox.fails(
        &["predict", "out", "--data", "renamed.csv", "--out", "x.csv"],
        2,
        "renamed.csv has no column",
    );
}

#[cfg(unix)]
#[test]
fn rows_from_a_pipe_are_refused_as_what_they_are() {
    let sandbox = Sandbox::with_job(&mixture_job("", "kind = \"em\"\nrounds = 3"));
    sandbox.ok(&["run", "job.toml", "--out", "run"]);
    sandbox.fails(
        &["predict", "run", "--data", "/dev/null", "--out", "p.csv"],
        2,
        "/dev/null is a pipe or a device",
    );
}

/// `predict` reads the spelling of the job's file.
#[test]
fn a_file_is_predicted_as_it_was_fitted() {
    let mut stream = Key::root(26).stream();
    let sandbox = Sandbox::new();
    let mut rows = String::from("works;load;power\n");
    for i in 0..120 {
        let load = 1000.0 + 900.0 * stream.uniform();
        let spelled = |x: f64| {
            format!("{}.{:06.2}", x as u64 / 1000, x % 1000.0)
                .replace('.', ",")
                .replacen(',', ".", 1)
        };
        rows += &format!(
            "w{};{};{}\n",
            i % 3,
            spelled(load),
            spelled(2.0 * load + 99.0 * stream.normal())
        );
    }
    sandbox.write("d.csv", &rows);
    for args in [&["--model", "gmm"][..], &["--model", "linear", "--target", "power"]] {
        sandbox.ok(&[&["new", "d.csv", "--out", "job.toml", "--force"], args].concat());
        sandbox.ok(&["run", "job.toml", "--out", "out", "--force"]);
        sandbox.ok(&["predict", "out", "--data", "d.csv", "--out", "p.csv", "--force"]);
        assert_eq!(sandbox.read("p.csv").lines().count(), 121);
    }
}
