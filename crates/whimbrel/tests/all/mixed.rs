//! A table on which cross-validation cannot tell a low rank from rank 0: the run says so, and what it
//! delivers is a third of the one and two thirds of the other.

use crate::support::{Sandbox, number};
use serde_json::Value;
use whimbrel::core::Key;
use whimbrel::core::math::exp;

const SITES: usize = 40;
const MONTHS: usize = 15;

fn job(model: &str) -> String {
    format!(
        r#"name = "faint"
seed = 1
[data]
source = "csv"
path = "counts.csv"
client = "observer"
row = "site"
column = "month"
value = "count"
[model]
kind = "low-rank"
family = "poisson"
effects = "row+column"
{model}
[method]
kind = "fedmiss"
rounds = 60
step = "auto"
"#
    )
}

/// Counts with a product that is hardly there.
fn counts() -> String {
    let mut text = String::from("observer,site,month,count\n");
    let mut stream = Key::root(2).stream();
    for site in 0..SITES {
        for month in 0..MONTHS {
            let sign = if (site % 2 == 0) == (month % 2 == 0) { 0.3 } else { -0.3 };
            let count = stream.poisson(exp(1.0 + 0.04 * site as f64 + sign));
            if stream.below(3) == 0 {
                text += &format!("o{},s{site:02},m{month:02},{count}\n", site / 10);
            }
        }
    }
    text
}

fn list(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect()
}

/// `theta` of every cell, from the model that a run wrote.
fn thetas(sandbox: &Sandbox, run: &str) -> Vec<f64> {
    let model = sandbox.object(&format!("{run}/model/model.json"));
    let rows = |name: &str| -> Vec<Vec<f64>> {
        model[name].as_array().unwrap().iter().map(list).collect()
    };
    let (a, b) = (list(&model["row_effects"]), list(&model["column_effects"]));
    let (u, v) = (rows("u"), rows("v"));
    let theta = |row: usize, column: usize| {
        // Rank 0 has no list for any row.
        let product: f64 = match (u.get(row), v.get(column)) {
            (Some(u), Some(v)) => u.iter().zip(v).map(|(u, v)| u * v).sum(),
            _ => 0.0,
        };
        number(&model, "intercept") + a[row] + b[column] + product
    };
    (0..SITES * MONTHS).map(|cell| theta(cell / MONTHS, cell % MONTHS)).collect()
}

#[test]
fn what_is_not_clear_is_mixed_and_said() {
    let sandbox = Sandbox::with_job(&job("rank = \"auto\"\nlambda = \"auto\""));
    sandbox.write("counts.csv", &counts());
    let ran = sandbox.ok(&["run", "job.toml", "--out", "mixed"]);
    assert!(ran.stderr.contains("it is not clear that this is better"), "{}", ran.stderr);
    assert!(sandbox.read("mixed/report.html").contains("It is not clear that it is better"));
    let summary = sandbox.object("mixed/summary.json");
    assert!((number(&summary, "share") - 1.0 / 3.0).abs() < 1e-15);
    let tried = summary["selection"].as_array().unwrap();
    let has_share = |of: &&Value| of["share"].as_f64().unwrap() > 0.0;
    let shared: Vec<&Value> = tried.iter().filter(has_share).collect();
    assert_eq!(shared.len(), 2, "{shared:?}");
    let (plain, low) = (shared[0], shared[1]);
    assert_eq!((&plain["rank"], &low["rank"]), (&0.into(), &summary["rank"]));

    // The same models, each by itself.
    for (run, of) in [("plain", plain), ("low", low)] {
        let model = format!(
            "rank = {}\nlambda = {}\nlambda_effects = {}",
            of["rank"], of["lambda"], of["lambda_effects"]
        );
        sandbox.write("alone.toml", &job(&model));
        sandbox.ok(&["run", "alone.toml", "--out", run]);
    }
    let [mixed, plain, low] = ["mixed", "plain", "low"].map(|run| thetas(&sandbox, run));
    for (cell, theta) in mixed.iter().enumerate() {
        let wanted = low[cell] / 3.0 + 2.0 * plain[cell] / 3.0;
        assert!((theta - wanted).abs() < 1e-4, "cell {cell}: {theta} {wanted}");
    }
    let apart = mixed.iter().zip(&plain).any(|(mixed, plain)| (mixed - plain).abs() > 0.05);
    assert!(apart, "two tables that are alike test nothing");
}
