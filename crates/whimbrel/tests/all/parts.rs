//! Rows that are kept out of the fit: what is reported of them.

use crate::support::{Sandbox, mixture_job, number};
use std::fmt::Write as _;
use whimbrel::parts::core::math::ln;

const JOB: &str = r#"name = "wards"
seed = 3
[data]
source = "csv"
path = "rows.csv"
client = "ward"
target = "y"
role = "use"
[model]
kind = "logistic"
[method]
kind = "sgd"
rounds = 40
step = "1/L"
weights = "samples"
"#;

/// Rows of four wards, three in five of them for training.
fn sandbox() -> Sandbox {
    let sandbox = Sandbox::with_job(JOB);
    let (mut all, mut tests) = (String::from("a,b,y,ward,use\n"), String::from("a,b,y\n"));
    for i in 0..200usize {
        let wave = |step: usize| ((i * step) % 97) as f64 / 97.0 - 0.5;
        let (a, b, ward) = (3.0 * wave(31), wave(57), i % 4);
        let y = u8::from(a - b + 2.0 * wave(11) > 0.0);
        let part = ["train", "test", "train", "validation", "train"][i % 5];
        writeln!(all, "{a},{b},{y},w{ward},{part}").unwrap();
        if part == "test" {
            writeln!(tests, "{a},{b},{y}").unwrap();
        }
    }
    sandbox.write("rows.csv", &all);
    sandbox.write("tests.csv", &tests);
    sandbox
}

/// Loss and accuracy on the test rows, recomputed from predictions alone, are the run's.
#[test]
fn figures_of_test_rows_are_those_of_their_predictions() {
    let sandbox = sandbox();
    let summary = sandbox.run_job("out");
    sandbox.ok(&["predict", "out", "--data", "tests.csv", "--out", "p.csv"]);
    let (tests, found) = (sandbox.read("tests.csv"), sandbox.read("p.csv"));
    let at = found.lines().next().unwrap().split(',').position(|c| c == "probability").unwrap();
    let p = found.lines().skip(1).map(|l| l.split(',').nth(at).unwrap().parse::<f64>().unwrap());
    let y = tests.lines().skip(1).map(|line| line.ends_with(",1"));
    let pairs: Vec<(bool, f64)> = y.zip(p).collect();
    assert_eq!(pairs.len(), 40);
    let right = pairs.iter().filter(|(y, p)| *y == (*p >= 0.5)).count();
    assert_eq!(number(&summary, "test_accuracy"), right as f64 / 40.0);
    let loss = |(y, p): &(bool, f64)| -ln(if *y { *p } else { 1.0 - p });
    let mean = pairs.iter().map(loss).sum::<f64>() / 40.0;
    // Probabilities are written with seven digits.
    assert!((number(&summary, "test_loss") - mean).abs() < 1e-6);
    // Without a ridge the objective is the mean loss of the training rows.
    let gap = number(&summary, "train_loss") - number(&summary, "objective");
    assert!(gap.abs() < 1e-12, "{gap}");
    assert_eq!(summary["rows"], 120);
    assert!(number(&summary, "test_accuracy_p10") <= number(&summary, "test_accuracy"));
    assert!(number(&summary, "validation_accuracy") > 0.5);

    let clients = sandbox.read("out/clients.csv");
    let head: Vec<&str> = clients.lines().next().unwrap().split(',').collect();
    let column = head.iter().position(|name| *name == "test_accuracy").unwrap();
    let own = clients.lines().skip(1).map(|l| l.split(',').nth(column).unwrap().parse().unwrap());
    let own: Vec<f64> = own.collect();
    // Each ward has ten test rows.
    let pooled = own.iter().sum::<f64>() / 4.0;
    assert!((pooled - number(&summary, "test_accuracy")).abs() < 1e-12);
    let page = sandbox.read("out/report.html");
    assert!(page.contains("Test accuracy over clients"), "a histogram");
}

#[test]
fn a_row_without_a_role_is_refused() {
    let sandbox = sandbox();
    let broken = sandbox.read("rows.csv").replacen("test", "tset", 1);
    sandbox.write("rows.csv", &broken);
    sandbox.fails(&["run", "job.toml", "--out", "out"], 3, "\"tset\" is not a role");
}

#[test]
fn mixtures_report_the_likelihood_of_test_rows() {
    let job = mixture_job("", "kind = \"fedem\"\nrounds = 5");
    let job = job.replacen("[data]\n", "[data]\ntest = 0.25\n", 1);
    let sandbox = Sandbox::with_job(&job);
    let summary = sandbox.run_job("out");
    let (test, train) =
        (number(&summary, "test_log_likelihood"), number(&summary, "train_log_likelihood"));
    assert!(test.is_finite() && train.is_finite());
    // The objective is the negative log-likelihood of the training rows and a penalty.
    assert!(train >= -number(&summary, "objective") - 1e-9, "{train} {summary:?}");
    assert!(summary.get("validation_log_likelihood").is_none());
}
