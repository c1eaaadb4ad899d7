//! Jobs end in the fits of scikit-learn from the same start (see `peers/fit.py`).

use crate::support::{Sandbox, fixture, flat, number};
use serde_json::{Map, Value};
use whimbrel_testkit::pairs;

/// The documented job; covariance and rounds are replaced.
const JOB: &str = include_str!("../../../whimbrel-families/tests/jobs/gmm-csv.toml");

const COVARIANCES: [&str; 3] = ["tied", "diagonal", "full"];

fn sandbox(covariance: &str, rounds: u32) -> Sandbox {
    let job = JOB.replace("\"tied\"", &format!("\"{covariance}\""));
    let sandbox = Sandbox::with_job(&job.replace("200", &rounds.to_string()));
    sandbox.write("data.csv", &fixture("data.csv"));
    sandbox.write("init.json", &fixture(&format!("init-{covariance}.json")));
    sandbox
}

fn fit(covariance: &str, iterations: u64) -> Map<String, Value> {
    let all: Value = serde_json::from_str(&fixture("fits.json")).expect("JSON");
    let fits = all["fits"].as_array().expect("a list").iter();
    let mut wanted =
        fits.filter(|f| f["covariance"] == covariance && f["iterations"] == iterations);
    wanted.next().and_then(Value::as_object).expect("a stored fit").clone()
}

#[track_caller]
fn close(found: &[f64], wanted: &[f64], tolerance: f64) {
    for (a, b) in pairs(found, wanted) {
        assert!((a - b).abs() <= tolerance * b.abs().max(1.0), "{a} is not {b}");
    }
}

/// The model's weights, means and covariances against a stored fit.
fn compare(model: &Map<String, Value>, fit: &Map<String, Value>, tolerance: f64) {
    let covariances = model.get("covariance").or(model.get("covariances")).expect("covariances");
    close(&flat(&model["weights"]), &flat(&fit["weights"]), tolerance);
    close(&flat(&model["means"]), &flat(&fit["means"]), tolerance);
    close(&flat(covariances), &flat(&fit["covariances"]), tolerance);
}

#[test]
fn the_documented_job_ends_in_the_peers_fit() {
    for covariance in COVARIANCES {
        let sandbox = sandbox(covariance, 200);
        let summary = sandbox.run_job("out");
        let fit = fit(covariance, 200);
        let objective = number(&summary, "objective");
        let log_likelihood = number(&fit, "log_likelihood");
        let gap = (-objective - log_likelihood).abs();
        assert!(gap <= 1e-8 * log_likelihood.abs(), "{covariance}: {objective}");
        assert_eq!(summary["rounds"], 200);
        compare(&sandbox.object("out/model/model.json"), &fit, 1e-6);
    }
}

/// The first round is the E-step at the start, so four rounds are four iterations.
#[test]
fn a_few_rounds_are_as_many_iterations() {
    for covariance in COVARIANCES {
        let sandbox = sandbox(covariance, 4);
        let summary = sandbox.run_job("out");
        let fit = fit(covariance, 4);
        close(&[-number(&summary, "objective")], &[number(&fit, "log_likelihood")], 1e-12);
        compare(&sandbox.object("out/model/model.json"), &fit, 1e-10);
    }
}

/// `em` on the pooled rows and `fedem` with exact full messages are the same iteration.
#[test]
fn pooled_em_agrees() {
    let sandbox = sandbox("full", 20);
    let federated = sandbox.run_job("fedem");
    let em = sandbox.read("job.toml").replace("\"fedem\"", "\"em\"").replace("participation", "#");
    sandbox.write("job.toml", em.split("[uplink]").next().unwrap());
    let pooled = sandbox.run_job("em");
    close(&[number(&federated, "objective")], &[number(&pooled, "objective")], 1e-12);
    assert_eq!(pooled["clients"], 1);
}

#[test]
fn a_model_is_a_start() {
    for covariance in COVARIANCES {
        let sandbox = sandbox(covariance, 50);
        let first = sandbox.run_job("first");
        let model = sandbox.object("first/model/model.json");
        assert_eq!(number(&model, "objective"), number(&first, "objective"));
        let start = sandbox.object("init.json");
        for (key, value) in &start {
            assert_eq!(flat(&model[key]).len(), flat(value).len(), "{key} keeps its form");
        }
        let job = sandbox.read("job.toml").replace("init.json", "first/model/model.json");
        sandbox.write("job.toml", &job);
        let second = sandbox.run_job("second");
        assert!(number(&second, "objective") <= number(&first, "objective") + 1e-12);
        let begin = number(&sandbox.metrics("second")[0], "objective");
        assert!(begin <= number(&first, "objective") + 1e-12, "it starts where the first ended");
    }
}
