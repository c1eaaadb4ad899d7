//! Regressions end in the fits of statsmodels and lifelines (see `peers/glm.py`).

use crate::support::{Sandbox, fixture, flat, number};
use serde_json::{Map, Value};
use whimbrel::parts::core::Key;
use whimbrel_testkit::pairs;

fn job(target: &str, model: &str, method: &str) -> String {
    format!(
        "name = \"g\"\nseed = 1\n[data]\nsource = \"csv\"\npath = \"glm.csv\"\nclient = \"site\"\n\
         target = \"{target}\"\ncolumns = [\"age\", \"bmi\", \"arm\"]\n[model]\n{model}\n[method]\n\
         kind = \"newton\"\n{method}\n"
    )
}

fn sandbox(job: &str) -> Sandbox {
    let sandbox = Sandbox::with_job(job);
    sandbox.write("glm.csv", &fixture("glm.csv"));
    sandbox
}

fn column(summary: &Map<String, Value>, key: &str) -> Vec<f64> {
    let rows = summary["coefficients"].as_array().expect("a list").iter();
    rows.map(|row| row[key].as_f64().unwrap_or(f64::NAN)).collect()
}

/// Both sides stop at gradients of rounding size; their standard errors and tails differ by it.
#[track_caller]
fn close(found: &[f64], wanted: &[f64], what: &str) {
    for (a, b) in pairs(found, wanted) {
        assert!((a - b).abs() <= 1e-8 * b.abs().max(1e-6), "{what}: {a} is not {b}");
    }
}

#[test]
fn fits_are_those_of_pooled_software() {
    let stored: Value = serde_json::from_str(&fixture("glm.json")).expect("JSON");
    for fit in stored["fits"].as_array().expect("a list") {
        let text = |key: &str| fit[key].as_str().expect("text");
        let what = format!("{} {} {}", text("target"), text("model"), text("method"));
        let sandbox = sandbox(&job(text("target"), text("model"), text("method")));
        let summary = sandbox.run_job("out");
        for key in ["estimate", "se", "p"] {
            close(&column(&summary, key), &flat(&fit[key]), &format!("{what}: {key}"));
        }
        for key in ["log_likelihood", "aic"] {
            if let (Some(known), false) = (fit[key].as_f64(), summary[key].is_null()) {
                close(&[number(&summary, key)], &[known], &format!("{what}: {key}"));
            }
        }
        if fit["tests"].is_array() {
            let tests = summary["tests"].as_array().expect("a list").iter();
            let found: Vec<f64> = tests.map(|test| test["statistic"].as_f64().unwrap()).collect();
            close(&found, &flat(&fit["tests"]), &what);
        }
        assert!(number(&summary, "rounds") <= if fit["tests"].is_array() { 20.0 } else { 12.0 });
    }
}

/// Baseline hazards of each client's stratum, on request.
#[test]
fn baseline_hazards_are_those_of_lifelines() {
    let stored: Value = serde_json::from_str(&fixture("glm.json")).expect("JSON");
    let cox = |more: &str| job("time", &format!("kind = \"cox\"\nevent = \"dead\"\n{more}"), "");
    let sandbox = sandbox(&cox("baseline = true"));
    let curves = |summary: &Map<String, Value>| -> Vec<(String, Vec<f64>, Vec<f64>)> {
        let each = summary["baselines"].as_array().expect("a list").iter();
        let of = |it: &Value| {
            (
                it["client"].as_str().unwrap().to_owned(),
                flat(&it["time"]),
                flat(&it["cumulative_hazard"]),
            )
        };
        each.map(of).collect()
    };
    let exact = curves(&sandbox.run_job("exact"));
    assert_eq!(exact.len(), stored["baselines"].as_object().unwrap().len());
    for (client, times, hazards) in &exact {
        let wanted = &stored["baselines"][client];
        close(times, &flat(&wanted[0]), &format!("{client}: times"));
        close(hazards, &flat(&wanted[1]), &format!("{client}: hazards"));
    }
    assert!(sandbox.read("exact/report.html").contains("Baseline hazards"));
    sandbox.write("job.toml", &(cox("baseline = true") + "[privacy]\nmasks = true\n"));
    sandbox.fails(&["check", "job.toml"], 2, "a baseline hazard is one client's");
    sandbox.write("job.toml", &cox(""));
    assert!(sandbox.run_job("plain").get("baselines").is_none());
}

/// Masks change no bit, whatever the fit asks for; an upload that is lost delays it.
#[test]
fn masks_do_not_change_a_regression() {
    let gaussian = "kind = \"glm\"";
    for (target, model, method) in [
        ("sick", "kind = \"glm\"\nfamily = \"binomial\"", "tests = true\nheterogeneity = true"),
        ("pressure", gaussian, "errors = \"clustered\""),
        ("pressure", "kind = \"glm\"\nby_client = \"intercept\"", "errors = \"robust\""),
        ("time", "kind = \"cox\"\nevent = \"dead\"", ""),
    ] {
        let text = job(target, model, method);
        let plain = sandbox(&text);
        plain.run_job("out");
        let lost = "[privacy]\nmasks = true\n[simulation]\nlost = 0.01\n";
        let masked = sandbox(&format!("{text}{lost}"));
        masked.run_job("out");
        let model = |of: &Sandbox| std::fs::read(of.path("out/model/model.safetensors")).unwrap();
        assert!(model(&plain) == model(&masked), "{text}");
    }
    let late = "[privacy]\nmasks = true\n[simulation]\nlate = [{ client = \"s1\", round = 2 }]\n";
    let ran =
        sandbox(&format!("{}{late}", job("pressure", gaussian, ""))).run(&["check", "job.toml"]);
    assert!(ran.code == 2 && ran.stderr.contains("takes no client after its first exchange"));
}

/// The job of the guide: text columns are factors, and the report shows table and forest plot.
#[test]
fn a_short_job_prints_and_shows_its_coefficients() {
    let rows = fixture("glm.csv");
    let cut = |line: &str| {
        let cells: Vec<&str> = line.split(',').collect();
        [0, 1, 2, 3, 6].map(|at| cells[at]).join(",")
    };
    let sandbox = Sandbox::with_job(
        "name = \"g\"\nseed = 1\n[data]\nsource = \"csv\"\npath = \"d.csv\"\nclient = \"site\"\n\
         target = \"sick\"\n[model]\nkind = \"glm\"\nfamily = \"binomial\"\n[method]\nkind = \"newton\"\n",
    );
    sandbox.write("d.csv", &rows.lines().map(cut).collect::<Vec<_>>().join("\n"));
    let ran = sandbox.ok(&["run", "job.toml", "--out", "out"]);
    for shown in ["arm[T.placebo]", "odds ratio", "97.5 %"] {
        assert!(ran.stdout.contains(shown), "{}", ran.stdout);
    }
    let report = sandbox.read("out/report.html");
    for shown in ["Coefficients", "arm[T.high]", "Calibration", "95 % intervals"] {
        assert!(report.contains(shown), "{shown}");
    }
    sandbox.ok(&["predict", "out", "--data", "d.csv", "--out", "p.csv"]);
    let predicted = sandbox.read("p.csv");
    let events: f64 =
        rows.lines().skip(1).map(|l| l.split(',').nth(6).unwrap().parse::<f64>().unwrap()).sum();
    let expected: f64 = predicted
        .lines()
        .skip(1)
        .map(|l| l.split(',').nth(1).unwrap().parse::<f64>().unwrap())
        .sum();
    // The score of the intercept is zero; predictions have seven digits.
    assert!((events - expected).abs() < 1e-4, "{events} {expected}");
}

/// Counts without overdispersion: the parameter at its edge is no further degree of freedom.
#[test]
fn tests_have_the_degrees_of_their_terms_where_alpha_is_zero() {
    let mut rows = String::from("site,x,arm,falls\n");
    for i in 0..240 {
        let (x, arm) = (f64::from(i % 24) / 12.0 - 1.0, ["a", "b", "c"][i as usize % 3]);
        rows += &format!("s{},{x:.4},{arm},{}\n", i % 4, 1 + i % 2 + u32::from(x > 0.0));
    }
    let sandbox = Sandbox::with_job(
        "name = \"g\"\nseed = 1\n[data]\nsource = \"csv\"\npath = \"d.csv\"\nclient = \"site\"\n\
         target = \"falls\"\n[model]\nkind = \"glm\"\nfamily = \"negative-binomial\"\n[method]\n\
         kind = \"newton\"\ntests = true\n",
    );
    sandbox.write("d.csv", &rows);
    let summary = sandbox.run_job("out");
    let tests = summary["tests"].as_array().expect("a list").iter();
    let degrees: Vec<(&str, f64)> =
        tests.map(|test| (test["term"].as_str().unwrap(), test["df"].as_f64().unwrap())).collect();
    assert_eq!(degrees, [("x", 1.0), ("arm", 2.0)]);
    let alpha = summary["coefficients"].as_array().unwrap().last().unwrap();
    assert!(alpha["term"] == "alpha" && alpha["se"].is_null() && alpha["p"].is_null(), "{alpha}");
}

/// A term is tested without the products that contain it: whatever the reference level, with the statistic of the
/// model without interactions.
#[test]
fn tests_of_main_effects_do_not_depend_on_the_reference() {
    let tests = |model: &str| {
        let model = format!("kind = \"glm\"\nfamily = \"binomial\"\n{model}");
        let summary = sandbox(&job("sick", &model, "tests = true")).run_job("out");
        let tests = summary["tests"].as_array().expect("a list").iter();
        let found: Vec<f64> = tests.map(|test| test["statistic"].as_f64().unwrap()).collect();
        (found, number(&summary, "log_likelihood"))
    };
    let (main, without) = tests("");
    let with = "interactions = [\"age:arm\", \"age:bmi\"]\nreference";
    let [(drug, full), (high, _)] =
        ["drug", "high"].map(|level| tests(&format!("{with} = {{ arm = \"{level}\" }}")));
    close(&drug, &high, "other reference");
    close(&drug[..1], &main[..1], "age");
    let (own, _) = tests("interactions = [\"age:arm\"]");
    close(&[own[0], own[2]], &[main[0], main[2]], "age, arm");
    let (_, product) = tests("interactions = [\"age:bmi\"]");
    close(&drug[3..4], &[2.0 * (full - product)], "age:arm");
    assert!((own[1] - main[1]).abs() > 1e-6 && full > without, "{own:?} {main:?}");
}

/// A declared level that no row has: the other coefficients, errors and tests are those without it, and rows that have it
/// get no prediction.
#[test]
fn a_level_without_rows_has_no_coefficient() {
    let levels = |more: &str| {
        format!(
            "{}[schema.arm]\ntype = \"category\"\nlevels = [\"drug\", \"high\", {more}\"placebo\"]\n",
            job("kind", "kind = \"glm\"\nfamily = \"multinomial\"", "tests = true")
        )
    };
    let known = sandbox(&levels("")).run_job("out");
    let sandbox = sandbox(&levels("\"new\", "));
    let ran = sandbox.ok(&["run", "job.toml", "--out", "out"]);
    assert!(ran.stderr.contains("no row has this level"), "{}", ran.stderr);
    let summary: Map<String, Value> =
        serde_json::from_str(&sandbox.read("out/summary.json")).expect("JSON");
    let is_new: Vec<bool> = summary["coefficients"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|row| row["term"].as_str().unwrap().ends_with("arm[T.new]"))
        .collect();
    for key in ["estimate", "se", "p"] {
        let (absent, others): (Vec<_>, Vec<_>) =
            column(&summary, key).into_iter().zip(&is_new).partition(|(_, is_new)| **is_new);
        assert!(absent.len() == 2 && absent.iter().all(|(x, _)| x.is_nan()), "{key}: {absent:?}");
        let others: Vec<f64> = others.into_iter().map(|(x, _)| x).collect();
        close(&others, &column(&known, key), key);
    }
    let tests = |summary: &Map<String, Value>| -> Vec<f64> {
        let all = summary["tests"].as_array().expect("a list").iter();
        all.flat_map(|test| [test["statistic"].as_f64(), test["df"].as_f64()])
            .map(|x| x.expect("a number"))
            .collect()
    };
    close(&tests(&summary), &tests(&known), "tests");
    sandbox.write("rows.csv", "age,bmi,arm\n50,25,drug\n50,25,new\n50,25,high\n");
    sandbox.ok(&["predict", "out", "--data", "rows.csv", "--out", "p.csv"]);
    let predicted = sandbox.read("p.csv");
    let is_missing: Vec<bool> =
        predicted.lines().skip(1).map(|line| line.ends_with(",NaN,NaN,NaN")).collect();
    assert_eq!(is_missing, [false, true, false], "{predicted}");
}

/// Marks of gaps hold wherever rows are read; numbers and dates in text are no factors.
#[test]
fn predictions_read_gaps_as_the_fit_does_and_text_of_numbers_is_refused() {
    let mut rows = String::from("site,x,price,sick\n");
    for i in 0..60 {
        let x = if i % 20 == 3 { "n/a".into() } else { format!("{}", (i * 7) % 11) };
        rows += &format!("s{},{x},${},{}\n", i % 3, i % 9, u32::from(i % 5 < 2));
    }
    let job = "name = \"g\"\nseed = 1\n[data]\nsource = \"csv\"\npath = \"d.csv\"\nclient = \"site\"\n\
               target = \"sick\"\nna = [\"n/a\"]\ncolumns = [\"x\"]\n[model]\nkind = \"glm\"\n\
               family = \"binomial\"\n[method]\nkind = \"newton\"\n";
    let sandbox = Sandbox::with_job(job);
    sandbox.write("d.csv", &rows);
    sandbox.run_job("out");
    sandbox.ok(&["predict", "out", "--data", "d.csv", "--out", "p.csv"]);
    assert_eq!(sandbox.read("p.csv").lines().count(), 61);
    sandbox.write("job.toml", &job.replace("na = [\"n/a\"]\n", ""));
    let ran = sandbox.run(&["run", "job.toml", "--out", "again"]);
    assert!(
        ran.code == 3 && ran.stderr.contains("write na = [\"n/a\"] in [data]"),
        "{}",
        ran.stderr
    );
    sandbox.write("job.toml", &job.replace("columns = [\"x\"]\n", ""));
    let ran = sandbox.run(&["run", "job.toml", "--out", "again"]);
    assert!(
        ran.stderr.contains("column \"price\" is not a factor: its numbers have signs"),
        "{}",
        ran.stderr
    );
}

/// Large numbers, such as a turnover in cents, are no divergence: estimates have the units of the target.
#[test]
fn a_target_may_have_any_unit() {
    let sandbox = sandbox(&job("pressure", "kind = \"glm\"", ""));
    let plain = sandbox.run_job("plain");
    let rows = fixture("glm.csv").replace(",pressure,", ",tension,");
    let at = rows.lines().next().unwrap().split(',').position(|name| name == "tension").unwrap();
    let scaled = rows.lines().enumerate().map(|(n, line)| {
        let cell = line.split(',').nth(at).unwrap();
        let cell = if n == 0 { "pressure".into() } else { format!("{cell}e9") };
        format!("{line},{cell}")
    });
    sandbox.write("glm.csv", &scaled.collect::<Vec<_>>().join("\n"));
    let scaled = sandbox.run_job("scaled");
    let wanted: Vec<f64> = column(&plain, "estimate").iter().map(|x| x * 1e9).collect();
    close(&column(&scaled, "estimate"), &wanted, "estimates");
    assert_eq!(scaled["ending"], "converged");
}

/// Two completed data sets, which differ in one column: the pooled table follows from both runs'.
#[test]
fn completed_data_sets_are_pooled() {
    let sandbox = sandbox(&job("sick", "kind = \"glm\"\nfamily = \"binomial\"", ""));
    let first = sandbox.run_job("first");
    let rows = fixture("glm.csv");
    let moved = rows.lines().enumerate().map(|(at, line)| {
        let mut cells: Vec<String> = line.split(',').map(String::from).collect();
        if at % 4 == 1 {
            cells[2] = format!("{:.1}", 20.0 + (at % 13) as f64);
        }
        cells.join(",")
    });
    sandbox.write("glm.csv", &moved.collect::<Vec<_>>().join("\n"));
    let second = sandbox.run_job("second");
    let pooled = sandbox.ok(&["pool", "first", "second", "--json"]).stdout;
    let pooled: Map<String, Value> = serde_json::from_str(&pooled).expect("JSON");
    let of = |key: &str| [column(&first, key), column(&second, key)];
    let ([a, b], [v, w]) = (of("estimate"), of("se"));
    for (at, (estimate, se)) in
        column(&pooled, "estimate").into_iter().zip(column(&pooled, "se")).enumerate()
    {
        let between = (a[at] - b[at]) * (a[at] - b[at]) / 2.0;
        let variance = (v[at] * v[at] + w[at] * w[at]) / 2.0 + 1.5 * between;
        close(&[estimate, se], &[(a[at] + b[at]) / 2.0, variance.sqrt()], "pooled");
    }
    let shown = sandbox.ok(&["pool", "first", "second"]).stdout;
    assert!(shown.contains("2 completed data sets of 300 rows"), "{shown}");
    sandbox.write("job.toml", &job("falls", "kind = \"glm\"\nfamily = \"poisson\"", ""));
    sandbox.write("glm.csv", &rows.lines().take(200).collect::<Vec<_>>().join("\n"));
    sandbox.run_job("other");
    sandbox.fails(&["pool", "first", "other"], 2, "other fits another model");
}

#[test]
fn faults_of_the_design_are_named() {
    let sandbox = Sandbox::with_job(&job("sick", "kind = \"glm\"\nfamily = \"binomial\"", ""));
    let rows = fixture("glm.csv");
    let write = |of: &dyn Fn(&[&str]) -> Vec<String>| {
        let mut lines = vec!["site,age,bmi,arm,sick".to_owned()];
        for line in rows.lines().skip(1) {
            lines.push(of(&line.split(',').collect::<Vec<_>>()).join(","));
        }
        sandbox.write("glm.csv", &lines.join("\n"));
        sandbox.run(&["run", "job.toml", "--out", "out", "--force"])
    };
    let plain = |c: &[&str]| [c[0], c[1], c[2], c[3], c[6]].map(String::from).to_vec();
    // bmi = 2 age + 1
    let ran = write(&|c| {
        let twice = (2.0 * c[1].parse::<f64>().unwrap() + 1.0).to_string();
        vec![c[0].into(), c[1].into(), twice, c[3].into(), c[6].into()]
    });
    assert!(
        ran.code != 0 && ran.stderr.contains("\"bmi\" is a linear combination of \"age\""),
        "{}",
        ran.stderr
    );
    // No row of one arm is sick.
    let ran = write(&|c| {
        let mut row = plain(c);
        if c[3] == "high" {
            row[4] = "0".into();
        }
        row
    });
    assert!(ran.code != 0 && ran.stderr.contains("separation"), "{}", ran.stderr);
    assert!(ran.stderr.contains("arm[T.high]"), "{}", ran.stderr);
    // Complete cases are used, and counted.
    let ran = write(&|c| {
        let mut row = plain(c);
        if c[1].starts_with("61") {
            row[2] = String::new();
        }
        row
    });
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    assert!(ran.stdout.contains("with missing or withheld cells left out"), "{}", ran.stdout);
}

/// The levels 2, 3 and 10 have coefficients against 2, as if they were listed in this order.
#[test]
fn levels_that_are_numbers_are_in_their_order() {
    let rows = fixture("glm.csv").lines().enumerate().fold(String::new(), |all, (at, line)| {
        let ward = if at == 0 { "ward" } else { ["10", "3", "2", "10"][at % 4] };
        format!("{all}{line},{ward}\n")
    });
    let text = |schema: &str| {
        let columns = "\"age\", \"ward\"";
        let job = job("pressure", "kind = \"glm\"", "");
        let job = job.replace("\"age\", \"bmi\", \"arm\"", columns);
        job.replace("[model]", &format!("[schema]\nward = {schema}\n[model]"))
    };
    let sandbox = Sandbox::with_job(&text("{ type = \"category\" }"));
    sandbox.write("glm.csv", &rows);
    let found = sandbox.run_job("found");
    let terms = |of: &Map<String, Value>| -> Vec<String> {
        let rows = of["coefficients"].as_array().expect("a list").iter();
        rows.map(|row| row["term"].as_str().expect("text").to_owned()).collect()
    };
    assert_eq!(terms(&found), ["Intercept", "age", "ward[T.3]", "ward[T.10]"]);
    sandbox.write("job.toml", &text("{ type = \"category\", levels = [\"2\", \"3\", \"10\"] }"));
    let listed = sandbox.run_job("listed");
    assert_eq!(found["coefficients"], listed["coefficients"]);
}

/// A class that a column separates is named with the column.
#[test]
fn a_separated_class_is_named() {
    let mut rows = String::from("site,age,kind\n");
    for i in 0..90 {
        let (kind, age) = ([["a", "b"][i / 7 % 2], "c"][i % 3 / 2], 30 + i * 7 % 40);
        rows += &format!("s{},{},{kind}\n", i % 4, if kind == "c" { age + 100 } else { age });
    }
    let sandbox = Sandbox::with_job(
        &job("kind", "kind = \"glm\"\nfamily = \"multinomial\"", "")
            .replace("\"age\", \"bmi\", \"arm\"", "\"age\""),
    );
    sandbox.write("glm.csv", &rows);
    let ran = sandbox.run(&["run", "job.toml", "--out", "out"]);
    let said = "the fit is degenerate: separation: the estimate of c: age is infinite";
    assert!(ran.code == 1 && ran.stderr.contains(said), "{}", ran.stderr);
}

/// Offsets far from zero move the intercept alone, and columns far from zero no hazard ratio.
#[test]
fn offsets_and_columns_may_lie_far_from_zero() {
    let moved = |column: usize, by: f64| {
        let rows = fixture("glm.csv");
        let mut lines = rows.lines();
        let mut all = lines.next().expect("a header").to_owned();
        for line in lines {
            let mut cells: Vec<String> = line.split(',').map(String::from).collect();
            cells[column] = format!("{:.2}", cells[column].parse::<f64>().unwrap() + by);
            all += &format!("\n{}", cells.join(","));
        }
        all
    };
    let fit = |text: &str, rows: &str| {
        let sandbox = Sandbox::with_job(text);
        sandbox.write("glm.csv", rows);
        let summary = sandbox.run_job("out");
        assert_eq!(summary["ending"], "converged", "{text}");
        [column(&summary, "estimate"), column(&summary, "se")]
    };
    for (target, family) in
        [("sick", "binomial"), ("falls", "poisson"), ("visits", "negative-binomial")]
    {
        let model = format!("kind = \"glm\"\nfamily = \"{family}\"\noffset = \"off\"");
        let text = job(target, &model, "");
        let [mut near, near_errors] = fit(&text, &fixture("glm.csv"));
        let [far, far_errors] = fit(&text, &moved(5, 40.0));
        near[0] -= 40.0;
        close(&far, &near, family);
        close(&far_errors, &near_errors, family);
    }
    let text = job("time", "kind = \"cox\"\nevent = \"dead\"", "");
    let [near, near_errors] = fit(&text, &fixture("glm.csv"));
    let [far, far_errors] = fit(&text, &moved(1, 1e6));
    close(&far, &near, "cox");
    close(&far_errors, &near_errors, "cox");
}

/// Under `min_group` a stratum of few events and counts with one large value are left out, since few rows carry
/// their sums: the fit is that of the other clients.
#[test]
fn clients_whose_sums_rest_on_few_rows_are_left_out() {
    let mut stream = Key::root(31).stream();
    let (mut rows, mut others) = (String::from("site,time,died,count,x\n"), 0);
    for i in 0..412 {
        let (x, late) = (stream.normal(), -stream.uniform().ln());
        let died = u32::from(i >= 400 || stream.uniform() < 0.7);
        let count = if i == 411 { 60 } else { stream.poisson(1.0) };
        let site = if i < 400 { format!("s{}", i % 4) } else { "small".into() };
        rows += &format!("{site},{late:.6},{died},{count},{x:.4}\n");
        others = if i < 400 { rows.len() } else { others };
    }
    for (target, columns, model) in [
        ("time", "\"x\"", "kind = \"cox\"\nevent = \"died\""),
        ("count", "\"x\"", "kind = \"glm\"\nfamily = \"poisson\""),
    ] {
        let sandbox = Sandbox::with_job(&format!(
            "name = \"g\"\nseed = 1\n[data]\nsource = \"csv\"\npath = \"d.csv\"\nclient = \"site\"\n\
             target = \"{target}\"\ncolumns = [{columns}]\n[model]\n{model}\n[method]\n\
             kind = \"newton\"\n[privacy]\nmin_group = 5\n"
        ));
        sandbox.write("d.csv", &rows);
        let all = sandbox.run_job("all");
        sandbox.write("d.csv", &rows[..others]);
        let without = sandbox.run_job("without");
        assert_eq!((&all["ending"], &all["rows_used"]), (&"converged".into(), &400.into()));
        assert_eq!(all["coefficients"], without["coefficients"], "{target}");
        let is_said = all["notes"].to_string().contains("standard errors are approximate");
        assert_eq!(is_said, target == "count", "{target}");
    }
}

/// Rows with a column for each fault: values per site, times in reverse, no events, a separated reference
/// level, an exact target, classes 1 and 2.
fn odd_rows() -> String {
    let mut stream = Key::root(31).stream();
    let mut rows =
        String::from("site,x,g,size,time,dead,late,never,sick,falls,ref,line,kind,cost,w\n");
    for i in 0..120 {
        let (x, g) = (stream.normal(), ["u", "v", "w"][stream.below(3) as usize]);
        let time = if i == 0 { 0.0 } else { (100.0 * stream.uniform()).round() / 4.0 };
        let [sick, dead] = [0.3, 0.7].map(|p| u32::from(stream.uniform() < p));
        let (falls, cost) = (stream.poisson(2.0), (0.2 * stream.normal()).exp());
        let is_ref = if g == "u" { 1 } else { stream.below(2) };
        rows += &format!(
            "s{},{x:.3},{g},{},{time},{dead},{},0,{sick},{falls},{is_ref},{},{},{cost:.3},{:.2}\n",
            i % 4,
            [0.1, 0.7, 1.3, 2.9][i % 4],
            -time,
            1.0 + 2.0 * format!("{x:.3}").parse::<f64>().unwrap(),
            1 + i % 2,
            0.5 + stream.uniform(),
        );
    }
    rows
}

/// Fits without a maximum, without residuals or without a meaning, and jobs that end early, say so.
#[test]
fn odd_data_get_a_verdict() {
    let glm = |family: &str| format!("kind = \"glm\"\nfamily = \"{family}\"");
    let cox = |event: &str| format!("kind = \"cox\"\nevent = \"{event}\"");
    let sandbox = Sandbox::with_job("");
    sandbox.write("glm.csv", &odd_rows());
    let each = "\"size\" does not vary within clients";
    for (target, columns, model, method, code, said) in [
        ("sick", "x,size", glm("binomial") + "\nby_client = \"intercept\"", "", 3, each),
        ("falls", "x,size", glm("poisson") + "\nby_client = \"intercept\"", "", 3, each),
        ("line", "x,size", glm("gaussian") + "\nby_client = \"intercept\"", "", 3, each),
        ("time", "x,late", cox("dead"), "", 1, "the estimate of late is infinite"),
        ("time", "x", cox("never"), "", 3, "there are no events"),
        ("time", "x", cox("dead"), "", 0, "converged: next step "),
        (
            "ref",
            "x,g",
            glm("binomial"),
            "",
            1,
            "the estimate of g[u] (the reference level) is infinite",
        ),
        ("line", "x", glm("gaussian"), "", 0, "the fit is exact, with 120 rows and 2 coefficients"),
        (
            "sick",
            "x",
            glm("binomial"),
            "rounds = 2",
            0,
            "stopped after 2 rounds, not converged: next step ",
        ),
        (
            "kind",
            "x",
            glm("binomial"),
            "",
            3,
            "rows cannot be used\n  line 3 (row 2): 2 in column \"kind\" is not from 0 to 1\n",
        ),
        ("cost", "x", glm("gamma") + "\nweights = \"w\"", "", 0, "no log-likelihood"),
        ("line", "g,size", glm("gaussian"), "errors = \"clustered\"", 0, "4 clients and 4 coef"),
    ] {
        let names: Vec<String> = columns.split(',').map(|name| format!("\"{name}\"")).collect();
        let text = job(target, &model, method);
        let text = text.replace("\"age\", \"bmi\", \"arm\"", &names.join(", "));
        sandbox.write("job.toml", &text);
        let ran = sandbox.run(&["run", "job.toml", "--out", "out", "--force"]);
        assert!(ran.code == code && ran.stderr.contains(said), "{target} {model}: {}", ran.stderr);
        assert!(!ran.stdout.contains("log-likelihood NaN"), "{}", ran.stdout);
        if ran.code != 0 {
            continue;
        }
        let summary = sandbox.object("out/summary.json");
        let detail = format!("{} {}", summary["ending"], summary["ending_detail"]);
        let kept = format!("{} {}", detail.replace('"', ""), summary["notes"]);
        let said = said.strip_prefix("converged: ").unwrap_or(said);
        assert!(kept.contains(said), "{said}: {kept}");
        if said.contains("exact") {
            assert!(column(&summary, "se").iter().all(|se| se.is_nan()), "{summary:?}");
        }
    }
}
