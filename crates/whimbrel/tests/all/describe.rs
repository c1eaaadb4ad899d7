//! `describe`: the tables of pandas, the curves of lifelines (see `peers/describe.py`), and cells that
//! small groups withhold.

use crate::federation::{NAMES, same_model, serve_to_end};
use crate::support::{Sandbox, fixture, flat};
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use whimbrel_testkit::pairs;

const DATA: &str =
    "name = \"d\"\nseed = 1\n[data]\nsource = \"csv\"\npath = \"d.csv\"\nclient = \"site\"\n";
const TIMES: &str = "times = [5, 10, 15, 20, 25, 30, 35, 40, 45, 50, 55, 60, 65, 70, 75, 80, 85, 90, \
                     95, 100]\n";

fn described(more: &str, privacy: &str) -> (Sandbox, Map<String, Value>) {
    let sandbox = Sandbox::with_job(&format!(
        "{DATA}[model]\nkind = \"summary\"\n{more}[schema]\nempty = {{ type = \"number\" }}\n\
         [method]\nkind = \"describe\"\n{TIMES}{privacy}"
    ));
    sandbox.write("d.csv", &fixture("describe.csv"));
    let summary = sandbox.run_job("out");
    (sandbox, summary)
}

fn stored() -> Value {
    serde_json::from_str(&fixture("describe.json")).expect("JSON")
}

/// Sums of 300 numbers in another order.
#[track_caller]
fn close(found: &Value, wanted: &Value, what: &str) {
    let (Some(a), Some(b)) = (found.as_f64(), wanted.as_f64()) else {
        assert_eq!(found, wanted, "{what}");
        return;
    };
    assert!((a - b).abs() <= 1e-12 * b.abs().max(1.0), "{what}: {a} is not {b}");
}

fn list(value: &Value) -> &[Value] {
    value.as_array().expect("a list")
}

fn check_column(found: &Value, wanted: &Value, what: &str) {
    assert_eq!(found["count"], wanted["count"], "{what}");
    if let Some(counts) = wanted["categories"].as_array() {
        let found: Vec<&Value> = list(&found["categories"]).iter().map(|it| &it["count"]).collect();
        assert_eq!(found, counts.iter().collect::<Vec<_>>(), "{what}");
        return;
    }
    if let Some(counts) = found["categories"].as_array() {
        // A column of 0 and 1, of which pandas has the mean.
        let count = |at: usize| counts[at]["count"].as_f64().expect("a count");
        let ones = wanted["mean"].as_f64().map_or(0.0, |mean| mean * (count(0) + count(1)));
        assert!((count(1) - ones).abs() < 1e-9, "{what}: {found}");
        return;
    }
    for key in ["mean", "sd"] {
        close(&found[key], &wanted[key], &format!("{what}: {key}"));
    }
    let Some(quantiles) = found["quantiles"].as_array() else { return };
    for (quantile, right) in pairs(quantiles, list(&wanted["quantiles"])) {
        let Some(right) = right.as_f64() else { continue };
        let of = |key: &str| quantile[key].as_f64();
        let [low, high] = [of("low").unwrap_or(f64::MIN), of("high").unwrap_or(f64::MAX)];
        // An edge at a value is rounded.
        let slack = 1e-12 * right.abs();
        assert!(low - slack <= right && right <= high + slack, "{what}: {quantile} {right}");
        let estimate = of("estimate").unwrap_or(low);
        assert!((low..=high).contains(&estimate), "{what}: {quantile}");
        let is_count = what.contains("\"time\"");
        let is_whole = of("estimate").is_none_or(|x| x.fract() == 0.0);
        assert!(is_whole || !is_count, "{what}: {quantile}");
    }
}

#[test]
fn tables_are_those_of_pandas() {
    let (sandbox, summary) = described("", "");
    let stored = stored();
    for (found, wanted) in pairs(list(&summary["columns"]), list(&stored["columns"])) {
        assert_eq!(found["column"], wanted["column"]);
        let name = &found["column"];
        check_column(&found["pooled"], &wanted["pooled"], &format!("{name}"));
        for (site, wanted) in wanted["clients"].as_object().unwrap() {
            check_column(&found["clients"][site], wanted, &format!("{name} of {site}"));
        }
    }
    let kinds = || list(&summary["columns"]).iter().map(|it| (&it["column"], &it["kind"]));
    assert!(kinds().any(|(column, kind)| column == "dead" && kind == "category"));
    // Bins of a twelfth of a deviation.
    let age = &list(&summary["columns"])[0]["pooled"];
    for quantile in list(&age["quantiles"]) {
        let width = quantile["high"].as_f64().unwrap() - quantile["low"].as_f64().unwrap();
        assert!(width <= age["sd"].as_f64().unwrap() / 12.0, "{quantile}");
    }
    assert_eq!(list(&summary["columns"])[1]["pooled"]["missing"], 33);
    let ran = sandbox.ok(&["describe", "job.toml", "--out", "again"]);
    for shown in
        ["median", "placebo", "300 rows of 12 clients; summary of the columns", "categories: "]
    {
        assert!(ran.stdout.contains(shown), "{}", ran.stdout);
    }
    let report = sandbox.read("again/report.html");
    assert!(!ran.stdout.contains("converged after"), "{}", ran.stdout);
    assert!(report.contains("Numbers by client") && report.contains("tiny"));
    assert!(!report.contains("no objective"));
    assert_eq!(summary["ending"], "converged");
}

#[test]
fn columns_with_limits_are_cut_into_equal_bins() {
    let (_, summary) = described("", "bins = 240\n[schema.age]\nmin = 0\nmax = 120\n");
    for quantile in list(&list(&summary["columns"])[0]["pooled"]["quantiles"]) {
        let width = quantile["high"].as_f64().unwrap() - quantile["low"].as_f64().unwrap();
        assert_eq!(width, 0.5);
    }
}

fn curve_of<'a>(summary: &'a Map<String, Value>, group: &str) -> &'a Value {
    let curves = list(&summary["survival"]["curves"]).iter();
    curves.into_iter().find(|curve| curve["group"] == group).expect("a curve")
}

fn check_curve(found: &Value, wanted: &Value) {
    assert_eq!((&found["rows"], &found["median"]), (&wanted["rows"], &wanted["median"]));
    let points = list(&found["points"]);
    for key in ["survival", "low", "high"] {
        for (point, right) in pairs(points, list(&wanted[key])) {
            close(&point[key], right, key);
        }
    }
}

#[test]
fn curves_are_those_of_lifelines() {
    let stored = stored();
    let survival = "time = \"time\"\nevent = \"dead\"\n";
    let (_, summary) = described(survival, "");
    let all = curve_of(&summary, "all");
    check_curve(all, &stored["pooled"]);
    // Censoring within bins.
    let error = all["binning_error"].as_f64().unwrap();
    assert!(error < 0.03);
    for (point, exact) in pairs(list(&all["points"]), &flat(&stored["exact"])) {
        let above = point["survival"].as_f64().unwrap() - exact;
        assert!((-1e-12..=error + 1e-12).contains(&above), "{point} {exact}");
    }
    let (sandbox, summary) = described(&format!("{survival}by = \"arm\"\n"), "");
    for (arm, wanted) in stored["by_arm"].as_object().unwrap() {
        check_curve(curve_of(&summary, arm), wanted);
    }
    let test = &summary["survival"]["log_rank"];
    for key in ["statistic", "p"] {
        close(&test[key], &stored["log_rank"][key], key);
    }
    assert!(sandbox.read("out/report.html").contains("Kaplan-Meier"));
}

/// With a smallest group everything that a client published is zero or at least the group, and so are the
/// differences to its totals; the pooled tables are sums of the published ones.
#[test]
fn small_cells_follow_from_no_margin() {
    let survival = "time = \"time\"\nevent = \"dead\"\nby = \"arm\"\n";
    let (_, summary) = described(survival, "[privacy]\nmin_group = 5\n");
    let rows = fixture("describe.csv");
    let size =
        |site: &str| rows.lines().filter(|l| l.split(',').next() == Some(site)).count() as u64;
    let safe = |n: u64| assert!(n == 0 || n >= 5, "{n}");
    let mut hidden = 0;
    for column in list(&summary["columns"]) {
        let mut sums: Vec<[u64; 2]> = Vec::new();
        for (site, found) in column["clients"].as_object().unwrap() {
            let of = |key: &str| found[key].as_u64().unwrap();
            let rows = of("count") + of("missing_at_most");
            assert_eq!(rows, if site == "tiny" { 0 } else { size(site) });
            [of("count"), of("missing_at_most")].into_iter().for_each(safe);
            let Some(categories) = found["categories"].as_array() else { continue };
            let counts = || categories.iter().map(|it| it["count"].as_u64());
            counts().flatten().for_each(safe);
            let withheld = counts().filter(Option::is_none).count();
            assert!(withheld != 1, "{site}: {found}");
            hidden += withheld;
            // The rest of the total, and each merged count.
            safe(of("count") - counts().flatten().sum::<u64>());
            categories.iter().for_each(|it| safe(it["bounds"][1].as_u64().unwrap()));
            sums.resize(categories.len(), [0; 2]);
            for (sum, it) in pairs(&mut sums, categories) {
                let end = |at: usize| it["bounds"][at].as_u64().unwrap();
                *sum = [sum[0] + end(0), sum[1] + end(1)];
            }
        }
        let Some(pooled) = column["pooled"]["categories"].as_array() else { continue };
        for (it, sum) in pairs(pooled, &sums) {
            assert_eq!(it["bounds"], serde_json::json!(sum));
            assert_eq!(it["count"].as_u64().is_some(), sum[0] == sum[1]);
        }
    }
    assert!(hidden > 0, "the data have small cells");
    // No edge is left, and the totals stay.
    let all = curve_of(&summary, "all");
    assert!(list(&all["points"]).is_empty() && all["events"].as_f64() > Some(4.0), "{all}");
}

/// Figures of rows summed in another order; edges follow from means.
#[track_caller]
fn same_but_for_rounding(masked: &Value, plain: &Value, what: &str) {
    match (masked, plain) {
        (Value::Array(masked), Value::Array(plain)) => {
            pairs(masked, plain).for_each(|(a, b)| same_but_for_rounding(a, b, what));
        }
        (Value::Object(masked), Value::Object(plain)) => {
            assert!(masked.keys().eq(plain.keys()), "{what}: {masked:?} {plain:?}");
            plain.iter().for_each(|(key, b)| {
                same_but_for_rounding(&masked[key], b, &format!("{what}: {key}"))
            });
        }
        _ => close(masked, plain, what),
    }
}

/// Under masks the pooled tables are the same, also under a smallest group, and clients have none.
#[test]
fn pooled_tables_are_the_same_under_masks() {
    let survival = "time = \"time\"\nevent = \"dead\"\nby = \"arm\"\n";
    for group in ["", "min_group = 5\n"] {
        let (_, plain) = described(survival, &format!("[privacy]\n{group}"));
        let (sandbox, masked) = described(survival, &format!("[privacy]\nmasks = true\n{group}"));
        for (masked, plain) in pairs(list(&masked["columns"]), list(&plain["columns"])) {
            same_but_for_rounding(
                &masked["pooled"],
                &plain["pooled"],
                &plain["column"].to_string(),
            );
            assert_eq!(
                (&masked["kind"], &masked["clients"]),
                (&plain["kind"], &serde_json::json!({}))
            );
        }
        assert_eq!(masked["survival"], plain["survival"]);
        assert_eq!(masked["ending"], "converged");
        let report = sandbox.read("out/report.html");
        assert!(
            report.contains("no tables of single clients") && !report.contains("Numbers by client")
        );
    }
}

fn network(privacy: &str) -> Sandbox {
    let sandbox = Sandbox::with_job(&format!(
        "{DATA}[model]\nkind = \"summary\"\ntime = \"t\"\nevent = \"e\"\nby = \"arm\"\n[method]\n\
         kind = \"describe\"\n[privacy]\nmin_group = 5\n{privacy}[federation]\n\
         clients = [\"west\", \"east\", \"north\"]\nlisten = \"127.0.0.1:0\"\ndashboard = false\n\
         heartbeat_s = 1\n"
    ));
    let mut all = String::from("x,arm,t,e,site\n");
    for (w, name) in NAMES.iter().enumerate() {
        let mut own = String::from("x,arm,t,e\n");
        for i in 0..60 + 30 * w {
            let wave = |step: usize| (i * step + 13 * w) % 97;
            let arm = if wave(31) % 3 == 0 { "high" } else { "low" };
            let x = if i == 7 { String::new() } else { wave(57).to_string() };
            let row = format!("{x},{arm},{},{}", wave(41) as f64 / 4.0, wave(23) % 2);
            writeln!(own, "{row}").unwrap();
            writeln!(all, "{row},{name}").unwrap();
        }
        sandbox.write(&format!("{name}.csv"), &own);
    }
    sandbox.write("d.csv", &all);
    sandbox
}

/// A served description, which has the bits of the simulation.
fn served(privacy: &str) -> (Sandbox, [Value; 2]) {
    let sandbox = network(privacy);
    serve_to_end(&sandbox);
    same_model(&sandbox);
    let tables = |run: &str| {
        let summary = sandbox.object(&format!("{run}/summary.json"));
        ["columns", "survival"].map(|key| summary[key].clone())
    };
    let found = tables("served");
    assert_eq!(found, tables("simulated"));
    (sandbox, found)
}

#[test]
fn a_served_description_under_masks_has_the_bits_of_the_simulation() {
    let (sandbox, [columns, _]) = served("masks = true\n");
    assert_eq!(columns[0]["pooled"]["missing_at_most"], 15);
    assert_eq!(columns[0]["clients"], serde_json::json!({}));
    let told = sandbox.read("north.log");
    assert!(told.contains("at least 3 clients"), "{told}");
}

#[test]
fn a_served_description_has_the_bits_of_the_simulation() {
    let (sandbox, [columns, survival]) = served("");
    let told = sandbox.read("north.log");
    for said in
        ["count of each category", "events and of censored times", "at least 5 of your rows"]
    {
        assert!(told.contains(said), "{told}");
    }
    let points = |group: &str| -> Vec<[f64; 4]> {
        let curves = list(&survival["curves"]).iter();
        let curve = curves.into_iter().find(|curve| curve["group"] == group).expect("a curve");
        let of = |point: &Value, key: &str| point[key].as_f64().unwrap();
        let keys = ["time", "events", "censored", "survival"];
        list(&curve["points"]).iter().map(|point| keys.map(|key| of(point, key))).collect()
    };
    // Ends of bins that all three clients keep.
    assert_eq!(points("low").iter().map(|point| point[0]).collect::<Vec<_>>()[..2], [16.0, 24.0]);
    for [_, events, censored, survival] in ["all", "high", "low"].into_iter().flat_map(points) {
        assert!([events, censored].iter().all(|n| *n == 0.0 || *n >= 5.0));
        assert!((0.0..1.0).contains(&survival));
    }
    assert_eq!(columns[0]["clients"]["north"]["missing_at_most"], 5);
}

/// Jobs with the levels in other orders would otherwise merge other categories: small ones follow from two.
#[test]
fn categories_merge_alike_in_any_order_of_the_levels() {
    let counts = [("a", 3), ("b", 9), ("c", 7), ("d", 2), ("e", 11), ("f", 4)];
    let rows: String = counts
        .iter()
        .flat_map(|(level, n)| std::iter::repeat_n(format!("{level},one\n"), *n))
        .collect();
    let bounds = |order: &str| {
        let levels: Vec<String> = order.chars().map(|level| format!("{level:?}")).collect();
        let levels = levels.join(", ").replace('\'', "\"");
        let sandbox = Sandbox::with_job(&format!(
            "[data]\nsource = \"csv\"\npath = \"d.csv\"\nclient = \"site\"\n[schema.c]\ntype = \"category\"\n\
             levels = [{levels}]\n[model]\nkind = \"summary\"\n[method]\nkind = \"describe\"\n\
             [privacy]\nmin_group = 5\n"
        ));
        sandbox.write("d.csv", &format!("c,site\n{rows}"));
        let summary = sandbox.run_job("out");
        let categories = list(&list(&summary["columns"])[0]["pooled"]["categories"]);
        let of =
            |it: &Value| (it["category"].as_str().unwrap().to_owned(), it["bounds"].to_string());
        let names: String = categories.iter().filter_map(|it| it["category"].as_str()).collect();
        assert_eq!(names, order);
        categories.iter().map(of).collect::<BTreeMap<_, _>>()
    };
    let [first, others @ ..] = ["abcdef", "bcdefa", "acebdf", "fdbeca"].map(bounds);
    assert!(first["a"].starts_with("[0"));
    assert_eq!(others, [(); 3].map(|()| first.clone()));
}

#[test]
fn any_job_with_a_csv_file_can_be_described() {
    let sandbox = Sandbox::with_job(
        "[data]\nsource = \"csv\"\npath = \"d.csv\"\nclient = \"site\"\ntarget = \"time\"\n\
         columns = [\"age\", \"arm\"]\n[model]\nkind = \"cox\"\nevent = \"dead\"\n[method]\n\
         kind = \"newton\"\n",
    );
    sandbox.write("d.csv", &fixture("describe.csv"));
    let described = |more: &[&str]| {
        sandbox.ok(&[&["describe", "job.toml", "--json"][..], more].concat()).json()
    };
    let summary = described(&["--by", "arm"]);
    assert!(summary["survival"]["log_rank"]["p"].is_number());
    let names: Vec<&Value> =
        list(&summary["columns"]).iter().map(|column| &column["column"]).collect();
    assert_eq!(names, ["age", "arm", "time", "dead"]);
    // The job's smallest group applies.
    sandbox.write("job.toml", &(sandbox.read("job.toml") + "[privacy]\nmin_group = 5\n"));
    let summary = described(&["--out", "grouped"]);
    assert!(list(&summary["columns"])[0]["pooled"]["missing_at_most"].is_number());
    for (model, data) in [
        (
            "kind = \"gmm\"\ncomponents = 2\n[method]\nkind = \"fedem\"",
            "columns = [\"age\", \"cost\"]\nclient = \"site\"\nstandardize = true\nlabel = \"arm\"\ntest = 0.2",
        ),
        (
            "kind = \"gmm\"\ncomponents = 2\n[method]\nkind = \"em\"",
            "columns = [\"age\", \"cost\"]",
        ),
        (
            "kind = \"logistic\"\n[method]\nkind = \"mcm\"\nrounds = 5\nstep = \"1/L\"",
            "columns = [\"age\"]\nclient = \"site\"\ntarget = \"dead\"",
        ),
    ] {
        sandbox.write(
            "job.toml",
            &format!("[data]\nsource = \"csv\"\npath = \"d.csv\"\n{data}\n[model]\n{model}\n"),
        );
        let summary = described(&["--out", "other", "--force"]);
        let age = &list(&summary["columns"])[0];
        assert_eq!((&age["column"], &age["pooled"]["count"]), (&"age".into(), &300.into()));
    }
}

#[test]
fn faults_are_named() {
    let (sandbox, _) = described("", "");
    let job = sandbox.read("job.toml");
    let rows = sandbox.read("d.csv");
    let refused = |job: &str, code: i32, why: &str| {
        sandbox.write("job.toml", job);
        sandbox.fails(&["run", "job.toml", "--out", "fault", "--force"], code, why);
    };
    let model = |more: &str| job.replace("[schema]", &format!("{more}[schema]"));
    refused(&model("time = \"arm\"\n"), 2, "column \"arm\" holds categories");
    refused(&model("time = \"time\"\nby = \"age\"\n"), 2, "column \"age\" holds numbers");
    refused(&model("time = \"when\"\n"), 2, "when");
    refused(&model("by = \"arm\"\n"), 2, "describe survival times");
    let late = "[privacy]\nmasks = true\n[simulation]\nlate = [{ client = \"s4\", round = 2 }]\n";
    refused(&format!("{job}{late}"), 2, "describe under masks takes no client after");
    refused(&format!("{job}[privacy]\nepsilon = 1.0\n"), 2, "nothing bounds the influence");
    refused(&format!("{job}[uplink]\ncodec = \"natural\"\n"), 2, "without a codec");
    refused(&model("time = \"time\"\nevent = \"one\"\n"), 3, "an event of 2.5");
    sandbox.write("d.csv", &rows.replace(",13.0,1\n", ",-13.0,1\n"));
    refused(&model("time = \"time\"\nevent = \"dead\"\n"), 3, "a time of -13");
    sandbox.fails(&["predict", "out", "--data", "d.csv", "--out", "p"], 2, "predicts nothing");
}
