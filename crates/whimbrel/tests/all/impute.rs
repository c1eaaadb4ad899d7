//! A table with gaps from its job to completed tables, new clients, and messages.

use crate::same_bits::stop_in_the_middle;
use crate::support::{Sandbox, lines, number};
use serde_json::Value;
use whimbrel::parts::core::Key;
use whimbrel::parts::core::math::exp;
use whimbrel::parts::engine::{Limits, run};
use whimbrel::parts::families::Job;
use whimbrel::parts::families::family::RunData;
use whimbrel::parts::families::load::load;
use whimbrel::parts::families::plan::Plan;
use whimbrel::parts::runs::RunDir;
use whimbrel_testkit::pairs;

const JOB: &str = include_str!("../../../whimbrel-families/tests/jobs/birds.toml");

const SITES: usize = 30;
const MONTHS: usize = 12;

/// Counts of five observers at sites that differ in size and season, 60 % of the cells seen.
fn counts(personal: f64) -> String {
    let mut stream = Key::root(21).stream();
    let mut text = String::from("observer,site,month,count\n");
    let size: Vec<f64> = (0..SITES).map(|_| 1.5 + 0.8 * stream.normal()).collect();
    let season: Vec<f64> = (0..SITES).map(|_| 0.5 * stream.normal()).collect();
    for site in 0..SITES {
        for month in 0..MONTHS {
            if stream.uniform() > 0.6 {
                continue;
            }
            let observer = stream.below(5);
            let wave = (month as f64 - 5.5) / 5.5;
            let skill = personal * (observer as f64 - 2.0);
            let mean = exp(size[site] + season[site] * wave + 0.3 * wave + skill);
            text += &format!("o{observer},s{},{},{}\n", site + 1, month + 1, stream.poisson(mean));
        }
    }
    text
}

fn sandbox(job: &str) -> Sandbox {
    let sandbox = Sandbox::with_job(job);
    sandbox.write("counts.csv", &counts(0.0));
    sandbox
}

/// The lines of a completed table, split at commas.
fn table(sandbox: &Sandbox, file: &str) -> (Vec<String>, Vec<Vec<String>>) {
    let text = sandbox.read(file);
    let cells = |line: &str| line.split(',').map(String::from).collect::<Vec<_>>();
    let mut lines = text.lines().map(cells);
    (lines.next().expect("a header"), lines.collect())
}

/// `[[uplink.for]]`: one observer sends exactly what the others compress.
#[test]
fn an_observer_may_have_a_codec_of_its_own() {
    let short = JOB.replace("epochs = 150", "epochs = 20");
    let bits_up = |job: &str, observer: &str| {
        let sandbox = sandbox(job);
        sandbox.run_job("out");
        let (_, clients) = table(&sandbox, "out/clients.csv");
        let own = clients.iter().find(|line| line[0] == observer).expect("a line for each");
        own[3].parse::<f64>().unwrap()
    };
    let own = format!("{short}[[uplink.for]]\nclients = [\"o1\"]\ncodec = \"exact\"\n");
    // 64 bits a residual in each of the rounds, beside the stages, which are exact for everyone.
    assert!(bits_up(&own, "o1") > 2.0 * bits_up(&short, "o1"));
    assert!(bits_up(&own, "o2") < 1.5 * bits_up(&short, "o2"));
}

#[test]
fn the_documented_job_runs_as_written() {
    let sandbox = sandbox(JOB);
    let summary = sandbox.run_job("out");
    assert_eq!(summary["method"], "fedmiss");
    assert_eq!((summary["rank"].clone(), number(&summary, "lambda")), (2.into(), 0.1));
    let observations = sandbox.read("counts.csv").lines().count() - 1;
    assert_eq!(number(&summary, "observations"), observations as f64);
    let hidden = number(&summary, "held_out");
    assert!((hidden / observations as f64 - 0.1).abs() < 0.03, "{hidden} of {observations}");
    assert!(number(&summary, "holdout_deviance") > 0.0 && number(&summary, "holdout_rmse") > 0.0);
    // Epochs, evaluations and who wins are written down.
    let last = sandbox.metrics("out").pop().unwrap();
    assert!(number(&last, "epoch") >= 150.0);
    assert!(summary["baselines"].as_object().is_some_and(|all| all.len() == 2), "{summary:?}");
    assert!(summary["best"].is_string());
    assert!(summary["intervals"].as_str().unwrap().contains("90 %"));
    let model = sandbox.object("out/model/model.json");
    assert_eq!(model["rows"].as_array().unwrap().len(), SITES);
    assert_eq!(model["columns"][9], "10", "months in order");
    assert_eq!(model["family_name"], "poisson");
}

#[test]
fn a_step_that_is_too_long_is_cut_with_a_note() {
    let job = |step: &str| {
        let job = JOB.replace("batch = 100", "batch = 5").replace("epochs = 150", "epochs = 5");
        job.replace("step = \"auto\"", &format!("step = {step}"))
    };
    let run = |step: &str| {
        let sandbox = sandbox(&job(step));
        let ran = sandbox.ok(&["run", "job.toml", "--out", "out"]);
        (number(&sandbox.object("out/summary.json"), "step"), ran.stderr)
    };
    let (automatic, quiet) = run("\"auto\"");
    assert!(!quiet.contains("too large"), "{quiet}");
    let (used, told) = run("1.0");
    assert_eq!(used, automatic);
    assert!(told.contains("step = 1 is too large"), "{told}");
    let (short, quiet) = run("0.01");
    assert_eq!(short, 0.01);
    assert!(!quiet.contains("too large"), "{quiet}");
}

#[test]
fn what_a_report_needs_is_in_the_folder() {
    let sandbox = sandbox(JOB);
    let summary = sandbox.run_job("out");
    let series = exhibit(&sandbox, "out", "series").unwrap();
    let columns = series["points"].as_array().unwrap();
    assert_eq!(columns.len(), MONTHS);
    let missing: u64 = columns.iter().map(|c| c["count"].as_u64().unwrap()).sum();
    let seen = number(&summary, "observations") as usize;
    assert_eq!(missing as usize, SITES * MONTHS - seen, "no cell is observed twice");
    let heat = exhibit(&sandbox, "out", "heat").unwrap();
    assert_eq!(heat["shape"], serde_json::json!([SITES, MONTHS]));
    let blocks = heat["maps"][1]["values"].as_array().unwrap();
    assert!(blocks.len() == SITES * MONTHS && blocks.iter().all(Value::is_number));
    assert_eq!(summary["baselines"].as_object().unwrap().len(), 2);
    // The report says what the terminal says.
    let ran = sandbox.ok(&["run", "job.toml", "--out", "again"]);
    let said = exhibit(&sandbox, "again", "text").unwrap()["text"].as_str().unwrap().to_string();
    assert!(ran.stdout.contains(said[1..].trim_end_matches('.')), "{said}\n{}", ran.stdout);
}

/// The first exhibit of a kind in a run's folder.
pub fn exhibit(sandbox: &Sandbox, run: &str, kind: &str) -> Option<Value> {
    let shown = sandbox.object(&format!("{run}/exhibits.json"));
    let sections = shown["sections"].as_array()?.clone();
    let mut all = sections.iter().flat_map(|s| s["exhibits"].as_array().unwrap().clone());
    all.find(|exhibit| exhibit["kind"] == kind)
}

#[test]
fn a_completed_table_keeps_what_was_observed_and_bounds_the_rest() {
    let sandbox = sandbox(JOB);
    sandbox.run_job("out");
    let args = ["impute", "out", "--draws", "5", "--out", "a.csv", "--json"];
    let report = sandbox.ok(&args).json();
    let (header, lines) = table(&sandbox, "a.csv");
    assert_eq!(
        header[..8],
        ["row", "column", "observed", "value", "estimate", "se", "lower", "upper"]
    );
    assert_eq!((header.len(), lines.len()), (13, SITES * MONTHS));
    let original = sandbox.read("counts.csv");
    let mut observed = 0;
    for line in &lines {
        let at = |i: usize| line[i].parse::<f64>().unwrap();
        let (estimate, se, lower, upper) = (at(4), at(5), at(6), at(7));
        assert!(0.0 <= lower && lower <= estimate && estimate <= upper && se > 0.0, "{line:?}");
        let key = format!(",{},{},", line[0], line[1]);
        let known = original.lines().find(|l| l.contains(&key));
        assert_eq!(line[2] != "no", known.is_some(), "{line:?}");
        match known {
            Some(known) => {
                observed += 1;
                assert!(known.ends_with(&format!(",{}", line[3])), "{known} {line:?}");
                assert!(line[8..].iter().all(|draw| *draw == line[3]), "observed values stay");
            }
            None => {
                assert_eq!(line[3], "");
                assert!(line[8..].iter().all(|d| d.parse::<f64>().unwrap().fract() == 0.0));
            }
        }
    }
    assert_eq!(number(&report, "observed"), f64::from(observed));
    assert_eq!(number(&report, "imputed"), (SITES * MONTHS) as f64 - f64::from(observed));
    // Draws come again, and the first five of six are the same five.
    sandbox.ok(&["impute", "out", "--draws", "6", "--out", "b.csv"]);
    let (_, again) = table(&sandbox, "b.csv");
    for (a, b) in pairs(&lines, &again) {
        assert_eq!(a[..], b[..13]);
    }
    for (out, why) in [("out/job.toml", "part of the run"), ("counts.csv", "reads that file")] {
        sandbox.fails(&["impute", "out", "--out", out, "--force"], 2, why);
    }
    let ran = sandbox.run(&["impute", "out", "--out", "b.csv"]);
    assert_eq!((ran.code, ran.stderr.contains("--force replaces it")), (2, true));
    let printed = sandbox.ok(&["impute", "out", "--draws", "6", "--out", "-"]).stdout;
    assert_eq!(printed, sandbox.read("b.csv"));
    sandbox.ok(&["impute", "out", "--wide", "--out", "wide.csv"]);
    let (header, rows) = table(&sandbox, "wide.csv");
    assert_eq!((header.len(), rows.len()), (MONTHS + 1, SITES));
    for line in &lines {
        let row = rows.iter().find(|row| row[0] == line[0]).unwrap();
        let column = header.iter().position(|name| *name == line[1]).unwrap();
        let wanted = if line[2] == "no" { &line[4] } else { &line[3] };
        assert_eq!(row[column], *wanted);
    }
    sandbox.ok(&["impute", "out", "--wide", "--draws", "2", "--out", "w.csv"]);
    for (file, draw) in [("w-1.csv", 8), ("w-2.csv", 9)] {
        let (header, rows) = table(&sandbox, file);
        let drawn = rows.iter().flat_map(|row| pairs(&header[1..], &row[1..]).map(|(_, x)| x));
        assert!(drawn.eq(lines.iter().map(|line| &line[draw])), "{file}");
    }
}

/// The standard error is that of the draws.
#[test]
fn standard_errors_are_those_of_the_draws() {
    let sandbox = sandbox(JOB);
    sandbox.run_job("out");
    sandbox.ok(&["impute", "out", "--draws", "100", "--out", "a.csv"]);
    let (_, lines) = table(&sandbox, "a.csv");
    let at = |line: &[String], i: usize| line[i].parse::<f64>().unwrap();
    for line in lines.iter().filter(|line| line[2] == "no") {
        let draws: Vec<f64> = (8..108).map(|i| at(line, i)).collect();
        let mean = draws.iter().sum::<f64>() / 100.0;
        let squares = draws.iter().map(|x| (x - mean).powi(2)).sum::<f64>();
        let sd = (squares / 99.0).sqrt();
        assert!((at(line, 5) - sd).abs() <= 1e-4 * (1.0 + sd), "{} {sd}", line[5]);
    }
}

/// 300 imputations of row and column effects, with a hold-out and without. Independent cells would make
/// the variance of a column's total the sum of its cells' (a ratio of 1, with a standard error of 8 % in
/// a column and 2.4 % in the mean of twelve); a column whose level some 18 counts tell has more: 1.1 is
/// four standard errors above 1, so independent draws pass once in 30,000 times. The mean of all draws is
/// that of the estimates within five standard errors, which the variance of their grand total gives, and
/// 2 % for the means that the ceiling cuts.
#[test]
fn draws_share_the_errors_of_columns_and_keep_the_means() {
    for holdout in ["holdout = 0.1\n", ""] {
        let job = JOB.replace("rank = 2\nlambda = 0.1", "rank = 0\neffects = \"row+column\"");
        let sandbox = sandbox(&job.replace("holdout = 0.1\n", holdout));
        sandbox.run_job("out");
        sandbox.ok(&["impute", "out", "--draws", "300", "--out", "a.csv"]);
        let (_, lines) = table(&sandbox, "a.csv");
        let missing: Vec<&Vec<String>> = lines.iter().filter(|line| line[2] == "no").collect();
        let at = |line: &[String], i: usize| line[i].parse::<f64>().unwrap();
        let highest = lines.iter().map(|line| at(line, 4)).fold(0.0, f64::max);
        let variance = |values: &[f64]| {
            let mean = values.iter().sum::<f64>() / values.len() as f64;
            let squares = values.iter().map(|x| (x - mean).powi(2)).sum::<f64>();
            (mean, squares / values.len() as f64)
        };
        let (mut ratios, mut all, mut estimated) = (0.0, vec![0.0; 300], 0.0);
        for month in 1..=MONTHS {
            let (mut total, mut apart) = (vec![0.0; 300], 0.0);
            for line in missing.iter().filter(|line| line[1] == month.to_string()) {
                let draws: Vec<f64> = (8..308).map(|i| at(line, i)).collect();
                total.iter_mut().zip(&draws).for_each(|(sum, y)| *sum += y);
                apart += variance(&draws).1;
                estimated += at(line, 4);
                assert!(draws.iter().all(|y| *y < 20.0 * highest), "{line:?}");
            }
            all.iter_mut().zip(&total).for_each(|(sum, y)| *sum += y);
            ratios += variance(&total).1 / apart / MONTHS as f64;
        }
        assert!(ratios > 1.1, "{holdout:?}: {ratios}");
        let (mean, variance) = variance(&all);
        let allowed = 5.0 * (variance / 300.0).sqrt() + 0.02 * estimated;
        assert!((mean - estimated).abs() < allowed, "{mean} {estimated} {allowed}");
    }
}

#[test]
fn rows_and_columns_nobody_observed_get_a_warning_and_wide_intervals() {
    let labels: Vec<String> = (1..=SITES + 2).map(|i| format!("\"s{i}\"")).collect();
    let months: Vec<String> = (1..=MONTHS + 1).map(|i| format!("\"{i}\"")).collect();
    let lists = format!(
        "holdout = 0.1\nrow_labels = [{}]\ncolumn_labels = [{}]",
        labels.join(", "),
        months.join(", ")
    );
    let sandbox = sandbox(&JOB.replace("holdout = 0.1", &lists));
    let ran = sandbox.ok(&["run", "job.toml", "--out", "out"]);
    assert!(ran.stderr.contains("no cell in the fit"), "{}", ran.stderr);
    let ran = sandbox.ok(&["impute", "out", "--draws", "2", "--out", "a.csv"]);
    assert!(ran.stderr.contains("\"s31\"") && ran.stderr.contains("\"13\""), "{}", ran.stderr);
    let (_, lines) = table(&sandbox, "a.csv");
    // Relative to the estimate: counts scatter in proportion to it.
    let width = |line: &Vec<String>| {
        let [estimate, low, high] = [4, 6, 7].map(|at| line[at].parse::<f64>().unwrap());
        (high - low) / estimate
    };
    let of = |row: &str| lines.iter().filter(|l| l[0] == row && l[1] == "6").map(width).next();
    let mut known: Vec<f64> = (1..=SITES).filter_map(|i| of(&format!("s{i}"))).collect();
    known.sort_by(f64::total_cmp);
    assert!(of("s31").unwrap() > known[SITES / 2], "wider than most");
}

#[test]
fn a_new_client_is_completed_with_its_own_rows() {
    let personal =
        JOB.replace("lambda = 0.1", "lambda = 0.1\neffects = \"row+column\"\npersonal = true");
    let sandbox = Sandbox::with_job(&personal);
    sandbox.write("counts.csv", &counts(0.4));
    sandbox.run_job("out");
    // Sees three times what the run expects at sites it knows, and has a site of its own.
    sandbox.ok(&["impute", "out", "--out", "all.csv"]);
    let (_, lines) = table(&sandbox, "all.csv");
    let mut text = String::from("site,month,count\n");
    for line in lines.iter().filter(|l| ["s1", "s2", "s3", "s4"].contains(&&*l[0])).step_by(2) {
        let estimate: f64 = line[4].parse().unwrap();
        text += &format!("{},{},{}\n", line[0], line[1], (3.0 * estimate).round());
    }
    text += "new,1,12\nnew,2,9\nnew,7,30\nempty,3,NA\n";
    sandbox.write("mine.csv", &text);
    let args = ["adapt", "out", "--data", "mine.csv", "--out", "mine", "--json"];
    let report = sandbox.ok(&args).json();
    assert_eq!((number(&report, "rows"), number(&report, "new_rows")), (6.0, 1.0));
    assert!((number(&report, "effect") - 3f64.ln()).abs() < 0.3, "{report:?}");
    let model = sandbox.object("mine/model.json");
    assert_eq!(
        (model["rows"].clone(), model["u"].as_array().unwrap().len()),
        (serde_json::json!(["new"]), 1)
    );
    let (header, lines) = table(&sandbox, "mine/imputed.csv");
    assert_eq!(header.len(), 8);
    assert_eq!(lines.len(), 6 * MONTHS);
    let of = |row: &str, month: &str| {
        let line = lines.iter().find(|l| l[0] == row && l[1] == month).unwrap();
        line[4].parse::<f64>().unwrap()
    };
    assert!(of("new", "7") > of("new", "2"), "its own counts shape its row");
    sandbox.fails(&args, 2, "mine is not empty");
    sandbox.write("odd.csv", "site,month,count\ns1,13,4\n");
    sandbox.fails(
        &["adapt", "out", "--data", "odd.csv", "--out", "odd"],
        3,
        "\"13\" is not in the list of column labels",
    );
}

#[test]
fn a_client_of_the_run_gets_its_own_table() {
    let personal =
        JOB.replace("lambda = 0.1", "lambda = 0.1\neffects = \"row+column\"\npersonal = true");
    let sandbox = Sandbox::with_job(&personal);
    // From o0, who counts least, to o4.
    sandbox.write("counts.csv", &counts(0.4));
    sandbox.run_job("out");
    let ran = sandbox.ok(&["impute", "out", "--out", "all.csv"]);
    assert!(ran.stderr.contains("--client NAME writes the table of a client"), "{}", ran.stderr);
    let estimates = |file: &str| -> Vec<f64> {
        table(&sandbox, file).1.iter().map(|line| line[4].parse().unwrap()).collect()
    };
    let own = |name: &str| {
        let file = format!("{name}.csv");
        let args = ["impute", "out", "--client", name, "--out", &file, "--draws", "1", "--json"];
        let report = sandbox.ok(&args).json();
        let lines = sandbox.read("counts.csv").matches(&format!("{name},")).count();
        assert_eq!(report["observed"], lines, "its own observations only");
        estimates(&file)
    };
    let (common, least, most) = (estimates("all.csv"), own("o0"), own("o4"));
    // An effect of its own is one factor for all cells, up to six digits.
    let factor = |own: &[f64]| {
        let ratios: Vec<f64> = own.iter().zip(&common).map(|(own, all)| own / all).collect();
        assert!(ratios.iter().all(|r| (r / ratios[0] - 1.0).abs() < 1e-4), "{ratios:?}");
        ratios[0]
    };
    let apart = (factor(&most) / factor(&least)).ln();
    assert!((apart - 1.6).abs() < 0.4, "four steps of 0.4 lie between them: {apart}");
    // What the run kept of a client is its effect: the same factor, to the last round's change.
    let kept = |name: &str| {
        let file = sandbox.path(&format!("out/clients/{name}/model.safetensors"));
        let bytes = std::fs::read(file).unwrap();
        f64::from_le_bytes(bytes[bytes.len() - 8..].try_into().unwrap())
    };
    assert!((kept("o4") - kept("o0") - apart).abs() < 0.01, "{} {}", kept("o0"), kept("o4"));
    sandbox.fails(
        &["impute", "out", "--client", "nobody", "--out", "x.csv"],
        2,
        "no observation of client \"nobody\"",
    );
}

#[test]
fn bad_tables_are_refused_with_file_and_row() {
    let sandbox = sandbox(JOB);
    let try_with = |text: &str| {
        sandbox.write("counts.csv", text);
        let ran = sandbox.run(&["check", "job.toml"]);
        (ran.code, ran.stderr)
    };
    let head = "observer,site,month,count\n";
    let (code, said) = try_with(&format!("{head}a,x,1,3\na,y,1,-1\nb,x,2,2.5\n"));
    assert_eq!(code, 3, "{said}");
    assert!(said.contains("line 3 (row 2), column \"count\": -1 is negative"), "{said}");
    assert!(said.contains("line 4 (row 3), column \"count\": 2.5 is not whole"), "{said}");
    let (code, said) = try_with(&format!("{head}a,x,1,3\na,y,1,1\nb,x,2,2\n"));
    assert_eq!(code, 2, "{said}");
    assert!(said.contains("rank = 2 is not below the smaller side of a 2 x 2 table"), "{said}");
    let (_, said) = try_with(&format!("{}a,s1,1,3\na,s1,1,4\nempty,s1,1,NA\n", counts(0.0)));
    assert!(said.contains("1 repeated cell"), "{said}");
    assert!(said.contains("client \"empty\" has no observation and is left out"), "{said}");
}

#[test]
fn runs_of_another_kind_have_no_table() {
    let mixture = crate::support::mixture_job("", "kind = \"fedem\"\nrounds = 3");
    let sandbox = Sandbox::with_job(&mixture);
    sandbox.run_job("out");
    for (command, why) in [
        ("impute", "does not describe a table to complete"),
        ("adapt", "has no personal part to fit"),
    ] {
        let ran = sandbox.run(&[command, "out", "--data", "x.csv", "--out", "y"]);
        assert_eq!(ran.code, 2, "{}", ran.stderr);
        let wanted = format!("a model of kind `gmm`, which {why}");
        assert!(ran.stderr.contains(&wanted), "{}", ran.stderr);
    }
    let ran = sandbox.run(&["impute", "nowhere", "--out", "y.csv"]);
    assert!(ran.code == 2 && ran.stderr.contains("not a run's folder"), "{}", ran.stderr);
}

#[test]
fn a_killed_run_resumes_to_the_same_bits() {
    let chosen = "rank = \"auto\"\nlambda = \"auto\"\neffects = [\"site\", \"month\"]";
    let job = JOB.replace("rank = 2\nlambda = 0.1", chosen);
    let job =
        job.replace("batch = 100", "batch = 5\nparticipation = 0.8\nevaluate = { every = 5 }");
    let sandbox = sandbox(&(job + "[simulation]\ncheckpoint_seconds = 0\n"));
    sandbox.run_job("whole");
    for lines in [1, 60] {
        stop_in_the_middle(&sandbox, lines, |child| child.kill().unwrap());
        sandbox.ok(&["run", "job.toml", "--out", "out", "--resume"]);
        assert_eq!(sandbox.result_bytes("whole"), sandbox.result_bytes("out"), "at {lines}");
        assert_eq!(sandbox.read("whole/exhibits.json"), sandbox.read("out/exhibits.json"));
    }
}

#[test]
fn threads_leave_the_bits_as_they_are() {
    let sandbox = sandbox(&JOB.replace("epochs = 150", "epochs = 40\nparticipation = 0.7"));
    sandbox.ok(&["--threads", "1", "run", "job.toml", "--out", "one"]);
    sandbox.ok(&["--threads", "3", "run", "job.toml", "--out", "three"]);
    assert_eq!(sandbox.result_bytes("one"), sandbox.result_bytes("three"));
    for run in ["one", "three"] {
        sandbox.ok(&["impute", run, "--draws", "3", "--out", &format!("{run}.csv")]);
    }
    assert_eq!(sandbox.read("one.csv"), sandbox.read("three.csv"));
}

#[test]
fn a_fresh_job_for_a_long_table_is_a_low_rank_one() {
    let sandbox = sandbox(JOB);
    let ran = sandbox.ok(&["data", "inspect", "counts.csv"]);
    assert!(
        ran.stdout.contains("as a table of 30 rows (\"site\") and 12 columns"),
        "{}",
        ran.stdout
    );
    sandbox.ok(&["new", "counts.csv", "--out", "fresh.toml"]);
    let text = sandbox.read("fresh.toml");
    for line in ["client = \"observer\"", "column = \"month\"", "family = \"poisson\""] {
        assert!(text.contains(line), "{text}");
    }
    sandbox.ok(&["check", "fresh.toml"]);
}

/// A wide file: from `inspect` and `new` to a run without a key written by hand.
#[test]
fn a_wide_table_is_known_for_one() {
    let sandbox = Sandbox::new();
    let mut text = String::from("site,may,june,july,august\n");
    for site in 0..30 {
        let cell = |month: usize| match (site * 7 + month * 3) % 5 {
            0 => String::new(),
            _ => ((site % 4 + 1) * (month + 1)).to_string(),
        };
        text += &format!("s{site},{}\n", (0..4).map(cell).collect::<Vec<_>>().join(","));
    }
    sandbox.write("wide.csv", &text);
    let seen = sandbox.ok(&["data", "inspect", "wide.csv"]).stdout;
    assert!(
        seen.contains("as a table of 30 rows (\"site\") and 4 columns: 96 observations"),
        "{seen}"
    );
    sandbox.ok(&["new", "wide.csv", "--out", "job.toml"]);
    let job = sandbox.read("job.toml");
    assert!(job.contains("kind = \"low-rank\"") && job.contains("family = \"poisson\""), "{job}");
    sandbox.ok(&["run", "job.toml", "--out", "out"]);
    sandbox.ok(&["impute", "out", "--out", "full.csv"]);
    assert_eq!(sandbox.read("full.csv").lines().filter(|l| !l.starts_with('#')).count(), 1 + 120);
}

/// A fit whose description fails after the last round is finished, and has its model.
#[test]
fn a_fit_that_cannot_be_described_is_finished_with_its_model() {
    let sandbox = sandbox("");
    let mut job = Job::parse(&JOB.replace("epochs = 150", "rounds = 3"), "job.toml").unwrap();
    job.paths_mut().into_iter().for_each(|path| *path = sandbox.path("counts.csv"));
    let loaded = load(&job).unwrap();
    let (plan, facts) = (Plan::new(&job, &loaded).unwrap(), RunData::of(&loaded));
    let outcome = run(&plan, loaded.clients, job.seed, &Limits::default(), &mut ());
    let mut outcome = outcome.unwrap();
    let model = outcome.delivered.last_mut().unwrap();
    model.tensors.retain(|tensor| tensor.name != "v");
    let dir = RunDir::adopt(&sandbox.path("out"));
    let finished = dir.finish(&job, &facts, &outcome, &plan).unwrap();
    let says = |note: &String| note.starts_with("the fit cannot be described: ");
    assert!(finished.notes.iter().any(says), "{:?}", finished.notes);
    assert_eq!(dir.ending().map(|[word, _]| word).as_deref(), Some("stopped"));
    assert!(sandbox.path("out/model/model.safetensors").is_file());
    assert!(sandbox.read("out/summary.json").contains("cannot be described"));
}

/// The report's curve of coverage is that of the calibration: cells predicted from few others count, too.
#[test]
fn the_curve_of_coverage_agrees_with_its_caption() {
    let sandbox = Sandbox::new();
    sandbox.ok(&["data", "make", "birds", "--out", "."]);
    let summary = sandbox.ok(&["run", "job.toml", "--out", "run", "--json"]).json();
    let curve = lines(&sandbox, "run", "Coverage of the intervals");
    let at_90 = curve.iter().find(|point| point[0] == 0.9).unwrap()[1];
    assert_eq!(at_90, number(&summary, "coverage"));
    let report = sandbox.read("run/report.html");
    assert!(report.contains("<i class=\"dotted\"></i><span>estimated</span>"), "imputed cells");
    assert!(report.contains("the objective rises while the table takes in the observations"));
}
