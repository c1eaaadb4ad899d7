//! Main effects of what describes the rows and columns of a table.

use crate::support::{Sandbox, number};
use whimbrel::parts::core::Key;
use whimbrel::parts::core::math::{exp, ln};
use whimbrel_testkit::pairs;

const JOB: &str = r#"name = "survey"
seed = 1
[data]
source = "csv"
path = "counts.csv"
client = "observer"
row = "site"
column = ["year", "month"]
value = "count"
holdout = 0.1
[model]
kind = "low-rank"
family = "poisson"
rank = 0
effects = ["site", "year", "month"]
covariates = ["height"]
[method]
kind = "fedmiss"
rounds = 60
step = "auto"
[uplink]
codec = "exact"
"#;

const SITES: usize = 40;
const YEARS: usize = 5;
const MONTHS: usize = 6;

/// Counts with effects of site, year, month and the height of a site, 70 % of the cells seen; the
/// logarithms of their means, by site, year and month.
fn survey() -> (String, Vec<f64>) {
    let mut stream = Key::root(8).stream();
    let mut draw = |sd: f64| sd * stream.normal();
    let sites: Vec<f64> = (0..SITES).map(|_| draw(0.6)).collect();
    let years: Vec<f64> = (0..YEARS).map(|_| draw(0.4)).collect();
    let months: Vec<f64> = (0..MONTHS).map(|_| draw(0.5)).collect();
    let mut text = String::from("observer,site,year,month,height,habitat,count\n");
    let (mut truth, mut stream) = (Vec::new(), Key::root(9).stream());
    for (site, of_site) in sites.iter().enumerate() {
        let height = 100 * (site % 8);
        for (year, of_year) in years.iter().enumerate() {
            for (month, of_month) in months.iter().enumerate() {
                let theta = 1.2 + of_site + of_year + of_month + 0.001 * height as f64;
                truth.push(theta);
                let count = stream.poisson(exp(theta));
                if stream.uniform() < 0.7 {
                    let habitat = if site % 2 == 0 { "heath" } else { "wood" };
                    let (observer, year) = (site % 5, 2000 + year);
                    text += &format!(
                        "o{observer},s{site},{year},{},{height},{habitat},{count}\n",
                        month + 1
                    );
                }
            }
        }
    }
    (text, truth)
}

fn sandbox(job: &str) -> Sandbox {
    let sandbox = Sandbox::with_job(job);
    sandbox.write("counts.csv", &survey().0);
    sandbox
}

/// Estimates of all cells, in the order of the truth.
fn estimates(sandbox: &Sandbox) -> Vec<f64> {
    sandbox.ok(&["impute", "out", "--out", "all.csv"]);
    let text = sandbox.read("all.csv");
    let mut all = vec![f64::NAN; SITES * YEARS * MONTHS];
    for line in text.lines().skip(1) {
        let cells: Vec<&str> = line.split(',').collect();
        let site: usize = cells[0][1..].parse().unwrap();
        let (year, month) = cells[1].split_once('-').unwrap();
        let year = year.parse::<usize>().unwrap() - 2000;
        let at = (site * YEARS + year) * MONTHS + month.parse::<usize>().unwrap() - 1;
        all[at] = cells[4].parse().unwrap();
    }
    all
}

/// The sum over cells of `mean (theta_hat - theta)^2` of a regression is chi-square with as many
/// degrees of freedom as it has parameters, times all cells over those of the fit: 51 here over 0.63.
/// With 51 degrees of freedom 1.7 times the mean is 3.4 standard deviations.
#[test]
fn effects_of_labels_and_covariates_are_recovered() {
    let sandbox = sandbox(JOB);
    sandbox.run_job("out");
    let (_, truth) = survey();
    let square = |(found, theta): (f64, &f64)| exp(*theta) * (ln(found) - theta).powi(2);
    let sum: f64 = pairs(estimates(&sandbox), &truth).map(square).sum();
    let wanted = (1 + SITES + (YEARS - 1) + (MONTHS - 1) + 1) as f64 / 0.63;
    assert!(sum < 1.7 * wanted, "{sum} for {wanted}");
    let summary = sandbox.object("out/summary.json");
    assert_eq!(summary["effects"], "site, year, month");
    let ridges = summary["ridges"].as_object().unwrap();
    assert!(["site", "year", "month", "height"].iter().all(|name| ridges.contains_key(*name)));
    assert!(number(&summary, "holdout_deviance") < 1.3, "{summary:?}");
    // What the numbers of a term stand for.
    let model = sandbox.object("out/model/model.json");
    let of = |name: &str| {
        let all = model["attributes"].as_array().unwrap();
        all.iter().find(|one| one["name"] == name).unwrap().clone()
    };
    assert_eq!(of("month")["levels"], serde_json::json!(["1", "2", "3", "4", "5", "6"]));
    assert_eq!((&of("month")["of"], &of("height")["of"]), (&"column".into(), &"row".into()));
}

#[test]
fn a_list_of_the_rows_and_columns_is_the_word_for_both() {
    let given = "rank = 1\nlambda = 0.1\nlambda_effects = 0.01\n";
    let list = "rank = 0\neffects = [\"site\", \"year\", \"month\"]\ncovariates = [\"height\"]\n";
    let model = |effects: &str| {
        let sandbox = sandbox(&JOB.replace(list, &format!("{given}effects = {effects}\n")));
        sandbox.run_job("out");
        std::fs::read(sandbox.path("out/model/model.safetensors")).unwrap()
    };
    let word = model("\"row+column\"");
    assert!(model("[\"site\", \"year:month\"]") == word);
    assert!(model("[\"column\", \"row\"]") == word);
}

#[test]
fn a_factor_of_one_level_is_refused() {
    let sandbox = sandbox(&JOB.replace("\"month\"]\ncov", "\"month\", \"habitat\"]\ncov"));
    sandbox.write("counts.csv", &survey().0.replace("heath", "wood"));
    let said = sandbox.run(&["run", "job.toml", "--out", "out"]).stderr;
    assert!(said.contains("\"habitat\" has a single level, \"wood\""), "{said}");
}

#[test]
fn terms_and_numbers_that_make_no_sense_are_refused() {
    let with = |from: &str, to: &str, counts: &str| {
        let sandbox = sandbox(&JOB.replace(from, to));
        sandbox.write("counts.csv", counts);
        let run = sandbox.run(&["run", "job.toml", "--out", "out"]);
        (run.code, run.stderr)
    };
    let counts = survey().0;
    let (code, said) = with("\"month\"]\ncov", "\"month:month\"]\ncov", &counts);
    assert!(code == 2 && said.contains("names \"month\" twice"), "{code} {said}");
    let (code, said) = with("none", "none", &counts.replace(",700,", ",1e300,"));
    assert!(code == 3 && said.contains("\"height\" has values too large"), "{code} {said}");
    let first = counts.lines().nth(1).unwrap();
    let huge = counts.replacen(first, &format!("{}1e300", &first[..=first.rfind(',').unwrap()]), 1);
    let (code, said) = with("\"poisson\"", "\"gaussian\"", &huge);
    assert!(
        code == 3 && said.contains("line 2") && said.contains("1e300 is too large"),
        "{code} {said}"
    );
}

#[test]
fn hardly_observed_rows_are_warned_of_and_listed() {
    let sandbox = sandbox(JOB);
    let some = (0..12).map(|k| format!("o1,new{k:02},2000,{},100,wood,3\n", k % 6 + 1));
    sandbox.write("counts.csv", &(survey().0 + &some.collect::<String>()));
    let run = sandbox.run(&["run", "job.toml", "--out", "out", "--quiet"]);
    let summary = sandbox.object("out/summary.json");
    let listed = summary["hardly_observed_rows"].as_array().unwrap();
    // One cell in ten is held out, of rows that have one cell, too.
    assert!(listed.len() >= 8 && listed.iter().all(|row| row.as_str().unwrap().starts_with("new")));
    let said = format!("{} rows have fewer than five observations", listed.len());
    assert!(run.stderr.contains("warning") && run.stderr.contains(&said), "{}", run.stderr);
}

#[test]
fn attributes_that_contradict_the_model_are_named() {
    let sandbox = sandbox(JOB);
    sandbox.run_job("out");
    sandbox.write("new.csv", "site,year,month,height,count\ns3,2001,2,350,4\nx1,2001,2,10,4\n");
    let said = sandbox.ok(&["adapt", "out", "--data", "new.csv", "--out", "own"]).stderr;
    assert!(said.contains("\"height\" of \"s3\" is \"350\", but \"300\" in the model"), "{said}");
    assert!(!said.contains("x1\" is"), "{said}");
}

#[test]
fn what_describes_no_row_and_no_column_is_refused() {
    let refused = |from: &str, to: &str| {
        let ran = sandbox(&JOB.replace(from, to)).run(&["run", "job.toml", "--out", "out"]);
        assert_ne!(ran.code, 0);
        ran.stderr
    };
    let list = "[\"site\", \"year\", \"month\"]";
    let error = refused(list, "[\"site\", \"count\"]");
    assert!(error.contains("\"count\" describes neither rows nor columns"), "{error}");
    let error = refused(list, "[\"site\", \"sites\"]");
    assert!(error.contains("sites"), "{error}");
    let error = refused(list, "[\"site\", \"row\"]");
    assert!(error.contains("are the same"), "{error}");
    let error = refused("[\"height\"]", "[\"habitat\"]");
    assert!(error.contains("covariate \"habitat\" has the value \"heath\""), "{error}");
    let error = refused(list, "\"none\"");
    assert!(error.contains("covariates require main effects"), "{error}");
}

#[test]
fn a_covariate_that_is_no_number_is_refused_with_its_line() {
    for wrong in ["tall", "inf"] {
        let sandbox = sandbox(JOB);
        let text = sandbox.read("counts.csv").replacen(",0,heath,", &format!(",{wrong},heath,"), 1);
        sandbox.write("counts.csv", &text);
        sandbox.fails(&["run", "job.toml", "--out", "out"], 3, "line 2 (row 1), column \"height\"");
    }
}
