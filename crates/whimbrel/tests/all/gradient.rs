//! The gradient family as a user meets it: fits, predictions, stops and failures.

use crate::examples::{JOB, LINEAR, ROWS, doses, labels, sandbox};
use crate::outputs::{bits, client_bits};
use crate::support::{Sandbox, number};
use serde_json::Value;
use whimbrel::parts::core::math;
use whimbrel_testkit::pairs;

/// The named column of a table of predictions.
fn column(sandbox: &Sandbox, file: &str, name: &str) -> Vec<String> {
    let text = sandbox.read(file);
    let mut lines = text.lines();
    let header: Vec<&str> = lines.next().unwrap().split(',').collect();
    let at = header.iter().position(|h| *h == name).unwrap_or_else(|| panic!("{name}: {header:?}"));
    lines.map(|line| line.split(',').nth(at).unwrap().to_string()).collect()
}

fn numbers(sandbox: &Sandbox, file: &str, name: &str) -> Vec<f64> {
    column(sandbox, file, name).iter().map(|cell| cell.parse().unwrap()).collect()
}

#[test]
fn bits_add_up_over_clients() {
    for kind in ["sgd", "diana", "artemis", "dore", "double-squeeze", "mcm", "rand-mcm"] {
        let mut job = JOB.replace("\"mcm\"\n", &format!("\"{kind}\"\nparticipation = 0.5\n"));
        // What a preset does not compress has no codec.
        let (head, channels) = job.split_at(job.find("[uplink]").unwrap());
        job = match kind {
            "sgd" => head.into(),
            "diana" => format!("{head}{}", &channels[..channels.find("[downlink]").unwrap()]),
            _ => job,
        };
        let sandbox = sandbox(&job);
        let summary = sandbox.run_job("out");
        assert_eq!(bits(&summary), client_bits(&sandbox, "out"), "{kind}");
        let last = sandbox.metrics("out").pop().unwrap();
        assert_eq!(bits(&summary), bits(&last), "{kind}");
        let excess = number(&summary, "objective") - number(&summary, "f_star");
        assert!((number(&summary, "excess_loss") - excess).abs() < 1e-15, "{kind}");
    }
}

#[test]
fn the_row_of_table_1_and_the_constants_are_said_and_reported() {
    let sandbox = sandbox(JOB);
    let ran = sandbox.ok(&["run", "job.toml", "--out", "out", "--diagnostics"]);
    for wanted in ["mcm: compression two-way", "update point non-degraded", "minimum of the loss"] {
        assert!(ran.stderr.contains(wanted), "{wanted}: {}", ran.stderr);
        assert!(sandbox.read("out/report.html").contains(wanted), "{wanted}");
    }
    // The minimum is found once for all jobs on these rows.
    let again = sandbox.ok(&["run", "job.toml", "--out", "again", "--diagnostics"]);
    assert!(!ran.stderr.contains("from the cache"), "{}", ran.stderr);
    assert!(again.stderr.contains("from the cache"), "{}", again.stderr);
    assert_eq!(sandbox.result_bytes("out"), sandbox.result_bytes("again"));
}

#[test]
fn the_constants_of_the_theory_are_in_the_summary() {
    let sandbox = sandbox(&JOB.replace("step = \"1/L\"", "step = \"theory\""));
    let summary = sandbox.run_job("out");
    let theory = summary["theory"].as_object().expect("constants");
    for name in ["L", "omega_up", "omega_down", "alpha_up", "alpha_down", "gamma_max", "gamma"] {
        assert!(number(theory, name) > 0.0, "{name}");
    }
    assert!(number(theory, "gamma") <= number(theory, "gamma_max"));
    assert!(number(theory, "mu") >= 0.0);
}

/// The loss of the training rows, recomputed from the predictions alone, is the run's objective.
#[test]
fn predictions_of_a_logistic_run() {
    let job = JOB.replace("step = \"1/L\"", "weights = \"samples\"\nstep = \"1/L\"");
    let sandbox = sandbox(&job);
    let summary = sandbox.run_job("out");
    let args = ["predict", "out", "--data", "rows.libsvm", "--libsvm", "--out", "p.csv", "--json"];
    let report = sandbox.ok(&args).json();
    assert_eq!(report["rows"], ROWS);
    let (labels, p) = (labels(&sandbox), numbers(&sandbox, "p.csv", "probability"));
    let loss = |(y, p): (&f64, &f64)| -math::ln(if *y > 0.0 { *p } else { 1.0 - p });
    let mean = pairs(&labels, &p).map(loss).sum::<f64>() / ROWS as f64;
    let objective = number(&summary, "objective");
    // Predictions have seven digits.
    assert!((mean - objective).abs() <= 1e-6, "{mean} and {objective}");
    let share = p.iter().filter(|p| **p >= 0.5).count() as f64 / ROWS as f64;
    assert_eq!(number(&report, "share"), share);
    for (label, p) in pairs(column(&sandbox, "p.csv", "label"), &p) {
        assert_eq!(label, if *p >= 0.5 { "1" } else { "-1" });
    }
    let right = labels.iter().zip(&p).filter(|(y, p)| (**y > 0.0) == (**p >= 0.5)).count();
    assert!(right > ROWS * 6 / 10, "it learnt: {right} of {ROWS}");
}

#[test]
fn predictions_of_a_linear_run() {
    let sandbox = doses(LINEAR);
    let summary = sandbox.run_job("out");
    let args = ["predict", "out", "--data", "doses.csv", "--out", "p.csv", "--json"];
    let report = sandbox.ok(&args).json();
    let (doses, found) =
        (numbers(&sandbox, "doses.csv", "dose"), numbers(&sandbox, "p.csv", "prediction"));
    assert_eq!(found.len(), 90);
    let half_squares = |(y, p): (&f64, &f64)| 0.5 * (y - p) * (y - p);
    let mean = pairs(&doses, &found).map(half_squares).sum::<f64>() / 90.0;
    let objective = number(&summary, "objective");
    // Predictions have seven digits.
    assert!((mean - objective).abs() <= 1e-6, "{mean} and {objective}");
    assert!(mean < 0.02, "noise of 0.1: {mean}");
    let average = found.iter().sum::<f64>() / 90.0;
    assert!((number(&report, "mean_prediction") - average).abs() < 1e-6);
    sandbox.write("less.csv", "ward,age\nw0,50\n");
    sandbox.fails(
        &["predict", "out", "--data", "less.csv", "--out", "x.csv"],
        2,
        "no column \"weight\"",
    );
}

#[test]
fn a_small_excess_stops_the_run() {
    let job = JOB
        .replace("batch = 10\n", "evaluate = { every = 1 }\nstop = { excess_loss = 1e-3 }\n")
        .replace("rounds = 120", "rounds = 5000");
    let sandbox = sandbox(&job);
    let ran = sandbox.ok(&["run", "job.toml", "--out", "out"]);
    assert!(ran.stderr.contains("stopped after "), "{}", ran.stderr);
    let summary = sandbox.object("out/summary.json");
    assert_eq!(summary["ending"], "stopped", "{summary:?}");
    assert!(number(&summary, "rounds") < 5000.0);
    let rows = sandbox.metrics("out");
    let (last, earlier) = rows.split_last().unwrap();
    assert!(number(last, "excess_loss") <= 1e-3);
    assert!(earlier.iter().all(|row| number(row, "excess_loss") > 1e-3), "it stops at the first");
}

#[test]
fn a_run_that_diverges_keeps_what_it_has() {
    let sandbox = doses(&LINEAR.replace("rounds", "step = 100\nevaluate = { every = 1 }\nrounds"));
    let ran = sandbox.fails(&["run", "job.toml", "--out", "out"], 1, "error: round ");
    assert!(ran.stderr.contains("hint: take a smaller step"), "{}", ran.stderr);
    let page = sandbox.read("out/report.html");
    assert!(page.contains("<strong>Diverged</strong>") && page.trim_end().ends_with("</html>"));
    assert!(!sandbox.path("out/model").exists());
    sandbox.ok(&["report", "out", "--out", "page.html"]);
    assert_eq!(sandbox.read("page.html"), page);
}

#[test]
fn an_absurd_step_on_a_logistic_loss_is_a_divergence_too() {
    let sandbox = sandbox(&JOB.replace("step = \"1/L\"", "step = 1e9"));
    sandbox.fails(&["run", "job.toml", "--out", "out"], 1, "error: round 1: the state diverged");
    assert!(sandbox.read("out/report.html").contains("<strong>Diverged</strong>"));
}

/// An MCM memory that never moves, or that carries all noise on, fails as the paper says.
#[test]
fn memories_at_the_ends_of_their_range_are_for_showing_only() {
    let end = |alpha: &str| {
        let job = JOB.replace("rounds", "allow_divergence = true\nrounds");
        let sandbox = sandbox(&format!("{job}alpha = {alpha}\n"));
        let ran = sandbox.run(&["run", "job.toml", "--out", "out"]);
        let summary = sandbox.object("out/summary.json");
        // A run that diverged has no excess to compare.
        let excess = summary.get("excess_loss").and_then(Value::as_f64).unwrap_or(f64::INFINITY);
        (ran.code, excess)
    };
    let (code, usual) = end("\"auto\"");
    assert_eq!(code, 0);
    for alpha in ["0", "1"] {
        let (code, excess) = end(alpha);
        assert!(code == 1 || excess > 2.0 * usual, "alpha = {alpha}: {excess} beside {usual}");
    }
}
