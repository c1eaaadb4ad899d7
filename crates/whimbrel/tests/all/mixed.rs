//! Mixed tables with gaps, from a file to filled cells.

use crate::support::{Sandbox, number};
use std::path::Path;
use whimbrel_testkit::pairs;

const SCHEMA: &str = "[schema]\nfalls = { type = \"count\" }\nsmoker = { type = \"yes-no\" }\n\
                      housing = { type = \"category\" }\n";

fn survey(method: &str, more: &str) -> String {
    format!(
        "name = \"survey\"\nseed = 1\n[data]\nsource = \"csv\"\npath = \"survey.csv\"\n\
         client = \"clinic\"\n{SCHEMA}[model]\nkind = \"mixture\"\ncomponents = 3\n{more}\n\
         [method]\nkind = \"{method}\"\nrounds = 60\n"
    )
}

fn sandbox(job: &str) -> Sandbox {
    let sandbox = Sandbox::with_job(job);
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../jobs/survey/survey.csv");
    sandbox.write("survey.csv", &std::fs::read_to_string(file).unwrap());
    sandbox
}

#[test]
fn federated_em_is_pooled_em_and_fills_the_gaps() {
    for more in ["", "numeric = \"full\""] {
        let sandbox = sandbox(&survey("em", &format!("init = \"moments\"\n{more}")));
        let pooled = number(&sandbox.run_job("pooled"), "objective");
        sandbox.write("job.toml", &survey("fedem", &format!("init = \"moments\"\n{more}")));
        let federated = number(&sandbox.run_job("federated"), "objective");
        assert!((pooled - federated).abs() < 1e-9, "{pooled} {federated}");
        sandbox.ok(&["predict", "federated", "--data", "survey.csv", "--out", "filled.csv"]);
        let filled = sandbox.read("filled.csv");
        let mut lines = filled.lines();
        assert_eq!(
            lines.next().unwrap(),
            "row,label,log_density,p1,p2,p3,age,age_low,age_high,pressure,pressure_low,\
             pressure_high,falls,falls_low,falls_high,smoker,smoker_p,housing,housing_p"
        );
        let original = sandbox.read("survey.csv");
        for (line, row) in pairs(lines, original.lines().skip(1)) {
            let cells: Vec<&str> = line.split(',').collect();
            let known: Vec<&str> = row.split(',').collect();
            let number = |at: usize| cells[at].parse::<f64>().unwrap();
            for (at, column) in [(6, 1), (9, 2), (12, 3)] {
                let (value, low, high) = (number(at), number(at + 1), number(at + 2));
                match known[column].parse::<f64>() {
                    Ok(x) => assert!(value == x && low == x && high == x, "{line}"),
                    Err(_) => assert!(low < high && value > low && value < high, "{line}"),
                }
            }
            for (at, column) in [(15, 4), (17, 5)] {
                match known[column] {
                    "" => assert!(number(at + 1) < 1.0 && !cells[at].is_empty()),
                    level => assert!(cells[at] == level && number(at + 1) == 1.0),
                }
            }
        }
        let report = sandbox.read("federated/report.html");
        for shown in ["Rates of counts", "housing = alone", "smoker = yes"] {
            assert!(report.contains(shown), "{shown}");
        }
    }
}

#[test]
fn starts_and_numbers_of_components_are_chosen() {
    let job = survey("fedem", "starts = 3").replace("components = 3", "components = [1, 2, 3]");
    let sandbox = sandbox(&job);
    let summary = sandbox.run_job("out");
    assert!([2.0, 3.0].contains(&number(&summary, "components")), "{summary:?}");
}

#[test]
fn a_new_job_of_a_mixed_table_can_be_checked() {
    let sandbox = sandbox(&survey("em", ""));
    sandbox.ok(&["new", "survey.csv", "--out", "new.toml"]);
    let job = sandbox.read("new.toml");
    assert!(job.contains("kind = \"mixture\""), "{job}");
    let schema = "falls = { type = \"count\" }\nsmoker = { type = \"yes-no\" }\n\
                  housing = { type = \"category\", levels = [\"alone\", \"family\", \"home\"] }\n";
    assert!(job.contains(schema), "{job}");
    let limits = "# age = { unit = \"years\", min = 0, max = 120 }";
    assert!(job.contains(limits), "{job}");
    assert!(!job.contains("standardize"), "{job}");
    sandbox.ok(&["check", "new.toml"]);
}

#[test]
fn what_a_column_cannot_hold_is_an_error_with_its_line() {
    let sandbox = sandbox(&survey("em", ""));
    let good = sandbox.read("survey.csv");
    let job = |schema: &str| survey("em", "").replace(SCHEMA, &format!("[schema]\n{schema}\n"));
    let fails = |file: &str, types: &str, part: &str| {
        sandbox.write("survey.csv", file);
        sandbox.write("job.toml", &job(types));
        let run = sandbox.run(&["run", "job.toml", "--out", "failed"]);
        assert!(run.code == 2 || run.code == 3, "{}", run.stderr);
        assert!(run.stderr.contains(part), "{}", run.stderr);
    };
    let row = |text: &str| good.clone() + text;
    let levels = "housing = { type = \"category\", levels = [\"alone\", \"family\", \"home\"] }";
    fails(
        &row("ash,50,120,1,no,hotel\n"),
        levels,
        "line 452 (row 451), column \"housing\": \"hotel\"",
    );
    let counts = "falls = { type = \"count\" }";
    fails(
        &row("ash,50,120,1.5,no,home\n"),
        counts,
        "line 452 (row 451), column \"falls\": 1.5 is no",
    );
    fails(&row("ash,50,120,1e12,no,home\n"), counts, "column \"falls\": 1e12 is too large");
    fails(&row("ash,50,1e50,1,no,home\n"), counts, "column \"pressure\": 1e50 is too large");
    fails(&good, "housing = { type = \"yes-no\" }", "\"housing\" holds 3 levels");
    fails(&good, "hausing = { type = \"category\" }", "has no column \"hausing\"");
    fails(&good, "housing = { type = \"kind\" }", "housing");
    let years = "age = { unit = \"years\", min = 18, max = 110 }";
    fails(
        &row("ash,130,120,1,no,home\n"),
        years,
        "line 452 (row 451), column \"age\": 130 is above `max`, 110 years",
    );
    fails(&good, "age = { min = 50, max = 20 }", "`min` of column \"age\" is not below its `max`");
    fails(&good, "age = { levels = [\"a\", \"b\"] }", "only a category has levels");
}

#[test]
fn a_column_without_a_value_is_refused() {
    let sandbox = sandbox(&survey("em", ""));
    let without_falls = |line: &str| {
        let mut cells: Vec<&str> = line.split(',').collect();
        cells[3] = "";
        cells.join(",")
    };
    let text = sandbox.read("survey.csv");
    let (header, rows) = text.split_once('\n').unwrap();
    let rows: Vec<String> = rows.lines().map(without_falls).collect();
    sandbox.write("survey.csv", &format!("{header}\n{}\n", rows.join("\n")));
    sandbox.fails(
        &["run", "job.toml", "--out", "out"],
        3,
        "\"falls\" has no value in any training row",
    );
}
