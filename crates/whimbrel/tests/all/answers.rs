//! Verdicts on runs, automatic settings, and drafts of jobs.

use crate::support::{Sandbox, mixture_job, number};
use serde_json::json;
use whimbrel::parts::core::Key;

/// The verdict is the same word everywhere; one that is not `converged` says how far the fit is.
#[test]
fn every_fit_says_whether_it_converged() {
    let init = "init = \"moments\"\ncovariance = \"tied\"";
    let sandbox = Sandbox::with_job(&mixture_job(init, "kind = \"fedem\"\nrounds = 3"));
    let ran = sandbox.ok(&["run", "job.toml", "--out", "short"]);
    let said = "warning: stopped after 3 rounds, not converged: relative field ";
    assert!(ran.stderr.contains(said), "{}", ran.stderr);
    assert!(ran.stdout.contains("  stopped  "), "{}", ran.stdout);
    let summary = sandbox.object("short/summary.json");
    assert_eq!(summary["ending"], "stopped");
    let detail = summary["ending_detail"].as_str().unwrap();
    assert!(detail.contains("above 1e-4; ") && detail.contains("run more rounds"), "{detail}");
    assert!(number(&summary, "field_relative") > 1e-4);
    assert!(sandbox.read("short/report.html").contains("<strong>Stopped</strong>"));
    sandbox.write("rows.csv", "x1,x2\n0,0\n");
    let used = sandbox.run(&["predict", "short", "--data", "rows.csv", "--out", "p.csv"]);
    assert!(used.stderr.contains("the fit of this run stopped after "), "{}", used.stderr);

    sandbox.write("job.toml", &mixture_job(init, "kind = \"fedem\""));
    let ran = sandbox.ok(&["run", "job.toml", "--out", "free"]);
    assert!(ran.stderr.contains("converged: relative field "), "{}", ran.stderr);
    assert!(!ran.stderr.contains("warning"), "{}", ran.stderr);
    let summary = sandbox.object("free/summary.json");
    assert_eq!(summary["ending"], "converged");
    assert!(number(&summary, "field_relative") < 1e-4);
    assert!(sandbox.read("free/report.html").contains(": converged after "));
}

/// Columns of unlike scales: gradient descent is far from the minimum that the program solved for.
#[test]
fn a_regression_is_compared_with_its_minimum() {
    let mut stream = Key::root(5).stream();
    let mut rows = String::from("a,b,y,client\n");
    for i in 0..200 {
        let (a, b) = (500.0 + 100.0 * stream.normal(), 0.1 * stream.normal());
        let y = 3.0 * a + 1000.0 * b + 10.0 * stream.normal();
        rows += &format!("{a},{b},{y},c{}\n", i % 4);
    }
    let job = |standardize: bool| {
        format!(
            "seed = 1\n[data]\nsource = \"csv\"\npath = \"rows.csv\"\nclient = \"client\"\n\
             target = \"y\"\nstandardize = {standardize}\n[model]\nkind = \"linear\"\n\
             [method]\nkind = \"sgd\"\nbatch = \"full\"\nrounds = 300\n"
        )
    };
    let sandbox = Sandbox::with_job(&job(false));
    sandbox.write("rows.csv", &rows);
    let raw = sandbox.run_job("raw");
    assert_eq!(raw["ending"], "stopped");
    let detail = raw["ending_detail"].as_str().unwrap();
    assert!(
        detail.contains("relative excess loss 9.") && detail.contains("standardize"),
        "{detail}"
    );
    sandbox.write("job.toml", &job(true));
    let scaled = sandbox.run_job("scaled");
    assert_eq!(scaled["ending"], "converged", "{scaled:?}");
    assert!(number(&scaled, "excess_relative") <= 1e-6);
    // Coefficients in the units of the data: with them, rows are predicted as by the program.
    let of = |term: &str| {
        let all = scaled["coefficients"].as_array().unwrap().iter();
        all.filter(|row| row["term"] == term)
            .map(|row| number(row.as_object().unwrap(), "estimate"))
            .next()
    };
    let [start, a, b] = ["Intercept", "a", "b"].map(|term| of(term).unwrap());
    sandbox.write("new.csv", "a,b\n400,0.3\n");
    sandbox.ok(&["predict", "scaled", "--data", "new.csv", "--out", "p.csv"]);
    let line = sandbox.read("p.csv").lines().nth(1).unwrap().to_owned();
    let predicted: f64 = line.rsplit(',').next().unwrap().parse().unwrap();
    let sum = start + 400.0 * a + 0.3 * b;
    // Predictions have seven digits.
    assert!((predicted - sum).abs() <= 1e-6 * predicted.abs(), "{predicted} {sum}");
    let report = sandbox.read("scaled/report.html");
    assert!(report.contains("Without standard errors") && report.contains("newton"));
}

/// The first start of several is that of a single one, and it is among those that run on.
#[test]
fn more_starts_are_not_worse() {
    for seed in 1..=6 {
        let objective = |starts: u32| {
            let model = format!("covariance = \"full\"\nstarts = {starts}");
            let job = mixture_job(&model, "kind = \"fedem\"\nallow_degenerate = true");
            let job = job.replace("seed = 3", &format!("seed = {seed}"));
            let job =
                job.replace("components = 2", "components = 4").replace("rows = 40", "rows = 80");
            number(&Sandbox::with_job(&job).run_job("out"), "objective")
        };
        let [one, five] = [1, 5].map(objective);
        // The choice ends with at most 0.1 nats of 480 rows to gain.
        assert!(five <= one + 0.1 / 480.0, "seed {seed}: {five} after {one}");
    }
}

#[test]
fn the_choice_of_components_is_in_the_summary_and_its_edge_is_named() {
    let job = mixture_job("", "kind = \"fedem\"\nrounds = 30\nallow_degenerate = true");
    let sandbox = Sandbox::with_job(&job.replace("components = 2", "components = [4, 5, 6]"));
    let ran = sandbox.ok(&["run", "job.toml", "--out", "out"]);
    let summary = sandbox.object("out/summary.json");
    let tried = summary["choice"].as_array().unwrap();
    let components: Vec<_> = tried.iter().map(|row| row["components"].clone()).collect();
    assert_eq!(components, [json!(4), json!(5), json!(6)]);
    for row in tried {
        let (bic, log_likelihood) = (row["bic"].as_f64().unwrap(), row["log_likelihood"].as_f64());
        let parameters = row["parameters"].as_f64().unwrap();
        let from = parameters * 240f64.ln() - 2.0 * 240.0 * log_likelihood.unwrap();
        assert!((bic - from).abs() < 1e-6 * bic.abs(), "{row}");
    }
    let least = tried
        .iter()
        .min_by(|a, b| a["bic"].as_f64().unwrap().total_cmp(&b["bic"].as_f64().unwrap()));
    assert_eq!(least.unwrap()["chosen"], true);
    let edge = [4, 6].contains(&summary["components"].as_u64().unwrap());
    assert_eq!(ran.stderr.contains("at the edge of the grid"), edge, "{}", ran.stderr);
    let tile = "<dt>BIC, lower is better</dt>";
    assert!(sandbox.read("out/report.html").contains(tile));
    // So has that of several starts of one number.
    sandbox.write("job.toml", &job.replace("components = 2", "components = 2\nstarts = 2"));
    sandbox.ok(&["run", "job.toml", "--out", "starts"]);
    assert!(sandbox.read("starts/report.html").contains(tile));
}

/// Levels follow from the participation; a job that names them keeps its own.
#[test]
fn levels_are_chosen_by_participation() {
    let codec = |levels: &str, p: f64| {
        let method = format!("kind = \"fedem\"\nrounds = 5\nparticipation = {p}");
        let uplink = format!("[uplink]\ncodec = {{ kind = \"dithering\", bucket = 64{levels} }}\n");
        let sandbox = Sandbox::with_job(&(mixture_job("", &method) + &uplink));
        let ran = sandbox.ok(&["check", "job.toml"]);
        let all = ran.stderr + &ran.stdout;
        let at = all.find("levels ").expect("the levels in use") + "levels ".len();
        all[at..].chars().take_while(char::is_ascii_digit).collect::<String>()
    };
    assert_eq!(codec(", levels = 1", 0.2), "1");
    let [always, rarely] = [1.0, 0.2].map(|p| codec("", p).parse::<u32>().unwrap());
    assert!(1 < always && always < rarely, "{always} {rarely}");
    assert_eq!(codec(", levels = \"auto\"", 0.2), rarely.to_string());
}

/// 0/1 columns, identifiers, constants, ages: the draft runs without an edit.
#[test]
fn a_draft_treats_columns_as_a_person_would() {
    let mut stream = Key::root(8).stream();
    let mut rows = String::from("patient,ward,age,sick,weight,device\n");
    for i in 0..300 {
        let (old, sick) = (stream.below(2), stream.below(2));
        let age = (1.0 + 40.0 * old as f64 + 30.0 * stream.uniform()).floor();
        let weight = 60.0 + 12.0 * sick as f64 + 5.0 * stream.normal();
        rows += &format!("{},w{},{age},{sick},{weight:.1},7\n", 1000 + i, i % 5);
    }
    let sandbox = Sandbox::new();
    sandbox.write("d.csv", &rows);
    sandbox.ok(&["new", "d.csv", "--out", "job.toml"]);
    let job = sandbox.read("job.toml");
    assert!(job.contains("kind = \"mixture\""), "{job}");
    assert!(job.contains("columns = [\"age\", \"sick\", \"weight\"]"), "{job}");
    assert!(job.contains("left out: \"patient\", since it identifies rows"), "{job}");
    assert!(job.contains("left out: \"device\", since it is constant"), "{job}");
    assert!(!job.contains("rounds ="), "{job}");
    assert_eq!(sandbox.run_job("out")["ending"], "converged");

    sandbox.ok(&["new", "d.csv", "--target", "sick", "--out", "job.toml", "--force"]);
    let job = sandbox.read("job.toml");
    assert!(job.contains("target = \"sick\"") && job.contains("kind = \"glm\""), "{job}");
    assert!(job.contains("family = \"binomial\""), "{job}");
    let gaussian = sandbox.ok(&["new", "d.csv", "--model", "gmm"]).stdout;
    assert!(gaussian.contains("kind = \"gmm\"") && !gaussian.contains("type ="), "{gaussian}");
    assert_eq!(sandbox.run_job("regression")["rows_used"], 300);
    // Rows with gaps are left out of a regression, and no rows are held out.
    let without_age = |line: &str| match line.strip_prefix("1007,w2,") {
        Some(rest) => format!("1007,w2,{}", &rest[rest.find(',').unwrap_or(0)..]),
        None => line.into(),
    };
    sandbox.write("d.csv", &rows.lines().map(without_age).collect::<Vec<_>>().join("\n"));
    sandbox.ok(&["new", "d.csv", "--target", "sick", "--out", "job.toml", "--force"]);
    let summary = sandbox.run_job("gap");
    assert_eq!((&summary["rows_used"], &summary["rows_missing"]), (&299.into(), &1.into()));
    let ran = sandbox.run(&["new", "d.csv", "--model", "low-rank"]);
    assert_eq!(ran.code, 2, "{}", ran.stderr);
}

/// Marks of gaps and thousands, dates, signs, row numbers, an atom, columns that depend on each other: the
/// draft says what it leaves out, and its fit is not degenerate.
#[test]
fn a_draft_of_an_untidy_file_runs_without_an_edit() {
    let mut stream = Key::root(12).stream();
    let mut rows = String::from("respondent,region,day,km,miles,income,price,visits,lead\n");
    for i in 0..240 {
        let km = 5.0 + 2.0 * stream.normal();
        let income = 900 + stream.below(90_000);
        let income = match income {
            _ if i % 20 == 3 => "n/a".into(),
            income if income < 1000 => income.to_string(),
            income => format!("\"{},{:03}\"", income / 1000, income % 1000),
        };
        let lead = if stream.uniform() < 0.7 { 0.0 } else { stream.uniform() };
        let visits = if i % 31 == 5 { ".".into() } else { stream.poisson(20.0).to_string() };
        rows += &format!(
            "{i},{},2021-{:02}-11,{km:.2},{:.2},{income},${}.50,{visits},{lead:.3}\n",
            ["north", "south", "west"][i % 3],
            1 + i % 12,
            km / 1.609,
            1 + i % 9,
        );
    }
    let sandbox = Sandbox::new();
    sandbox.write("d.csv", &rows);
    sandbox.ok(&["new", "d.csv", "--out", "job.toml"]);
    let job = sandbox.read("job.toml");
    for part in [
        "client = \"region\"",
        "na = [\".\", \"n/a\"]",
        "thousands = \",\"",
        "left out: \"respondent\", since it identifies rows",
        "left out: \"day\", since it holds dates",
        "left out: \"price\", since its numbers have signs",
        "columns = [\"km\", \"miles\", \"income\", \"visits\", \"lead\"]",
        "reg_covar = 0.01",
    ] {
        assert!(job.contains(part), "{part}: {job}");
    }
    assert_eq!(sandbox.run_job("out")["ending"], "converged");
}

/// A number that may mark gaps is named, and the line that the note states makes it one.
#[test]
fn a_draft_names_numbers_that_may_mark_gaps() {
    let mut rows = String::from("site,age,score,change,sick\n");
    for i in 0..60 {
        let age = if i % 20 == 7 { "999.0".into() } else { format!("{}.0", 20 + 7 * i % 50) };
        let score = if i % 30 == 1 { -1 } else { 1 + i % 5 };
        rows += &format!("s{},{age},{score},{},{}\n", i % 3, i % 3 - 1, (i / 4 + i % 3) % 2);
    }
    let sandbox = Sandbox::new();
    sandbox.write("d.csv", &rows);
    let ran = sandbox.ok(&["new", "d.csv", "--target", "sick", "--out", "job.toml"]);
    let said = [
        "column \"age\" holds 999 in 3 of 60 rows, far outside its other values (20 to 69); \
         if it marks a gap, write na = [\"999.0\"] in [data], for all columns\n",
        "column \"score\" holds -1 in 2 of 60 rows, far outside its other values (1 to 5); \
         if it marks a gap, write na = [\"-1\"] in [data], for all columns\n",
    ];
    assert!(said.iter().all(|said| ran.stderr.contains(said)), "{}", ran.stderr);
    assert_eq!(ran.stderr.matches("marks a gap").count(), 2, "{}", ran.stderr);
    let job = sandbox.read("job.toml");
    assert!(job.contains("# column \"age\" holds 999 in 3 of 60 rows"), "{job}");
    assert_eq!(sandbox.run_job("all")["rows_used"], 60);
    let marked = job.replacen("client =", "na = [\"999.0\"]\nclient =", 1);
    sandbox.write("job.toml", &marked);
    let summary = sandbox.run_job("gaps");
    assert_eq!((&summary["rows_used"], &summary["rows_missing"]), (&57.into(), &3.into()));
    sandbox.write("d.csv", &rows.replace("999.0", ""));
    let ran = sandbox.ok(&["new", "d.csv", "--target", "sick"]);
    assert!(!ran.stdout.contains("999"), "{}", ran.stdout);
}

/// Columns without values, with cells that are not numbers, and linear functions of others are left out.
#[test]
fn a_draft_leaves_out_columns_without_information() {
    let mut stream = Key::root(21).stream();
    let mut rows = String::from("site,celsius,kelvin,blank,profit,staff,contract,note\n");
    for i in 0..120 {
        let (t, staff) = (2000 + stream.below(900), 1 + stream.below(300));
        let profit = if i % 6 == 1 { format!("({i})") } else { (100 + i).to_string() };
        let celsius = t as f64 / 100.0;
        let (kelvin, contract) = (celsius + 273.15, 100_003 + 7001 * ((i * 53) % 120));
        rows += &format!("s{},{celsius:.2},{kelvin:.2},,{profit},{staff},{contract},\n", i % 4);
    }
    let sandbox = Sandbox::new();
    sandbox.write("d.csv", &rows);
    sandbox.ok(&["new", "d.csv", "--out", "job.toml"]);
    let job = sandbox.read("job.toml");
    for part in [
        "left out: \"kelvin\", since it is a linear function of an earlier column",
        "left out: \"blank\", since it has no values",
        "left out: \"profit\", since some of its cells are not numbers",
        "left out: \"contract\", since it looks like an identifier",
        "columns = [\"celsius\", \"staff\"]",
    ] {
        assert!(job.contains(part), "{part}: {job}");
    }
    assert_eq!(sandbox.run_job("out")["ending"], "converged");
    sandbox.ok(&["new", "d.csv", "--target", "staff", "--out", "job.toml", "--force"]);
    assert_eq!(sandbox.run_job("staff")["coefficients"].as_array().unwrap().len(), 2);
    for (target, why) in [("profit", "are not numbers"), ("blank", "has no values")] {
        sandbox.fails(&["new", "d.csv", "--target", target], 2, why);
    }
}

/// A named target gets the family of its values, gaps or not.
#[test]
fn a_draft_chooses_the_family_of_a_target() {
    let mut stream = Key::root(22).stream();
    let mut rows = String::from("site,x,claims,stage,score,alive,day,same\n");
    for i in 0..400 {
        let x = stream.normal();
        let claims = stream.poisson(0.7 + 0.2 * x.abs());
        let gap = |value: String| if i % 23 == 5 { String::new() } else { value };
        let stage = ["I", "II", "III"][stream.below(3) as usize];
        let (score, alive) = (40 + stream.below(15), ["no", "yes"][stream.below(2) as usize]);
        rows += &format!(
            "s{},{x:.3},{},{},{},{alive},2021-05-{:02},7\n",
            i % 5,
            gap(claims.to_string()),
            gap(stage.into()),
            gap(score.to_string()),
            1 + i % 28,
        );
    }
    let sandbox = Sandbox::new();
    sandbox.write("d.csv", &rows);
    for (target, family) in [
        ("claims", "poisson"),
        ("stage", "multinomial"),
        ("score", "gaussian"),
        ("alive", "binomial"),
        ("x", "gaussian"),
    ] {
        sandbox.ok(&["new", "d.csv", "--target", target, "--out", "job.toml", "--force"]);
        let job = sandbox.read("job.toml");
        assert!(job.contains(&format!("family = \"{family}\"")), "{target}: {job}");
        assert_eq!(sandbox.run_job(target)["ending"], "converged", "{target}");
    }
    for (target, why) in [("day", "holds dates"), ("same", "is constant")] {
        sandbox.fails(&["new", "d.csv", "--target", target], 2, why);
    }
}

/// A target with a usual name is predicted by the regression that its values call for, a request for a model
/// gets its job, and a request that cannot be met says why.
#[test]
fn a_draft_predicts_what_is_called_a_target() {
    let mut stream = Key::root(24).stream();
    let mut row = |i: usize| {
        let (a, b) = (stream.normal(), stream.below(40));
        let days = (1000.0 * stream.uniform()).round() / 10.0;
        let (dead, y) = (u32::from(stream.uniform() < 0.6), stream.below(2));
        format!(
            "s{},{a:.2},{b},{:.2},{days},{dead},{},{y},{:.2},{}\n",
            i % 4,
            a + b as f64,
            ["low", "mid", "high"][stream.below(3) as usize],
            stream.normal(),
            stream.poisson(2.0),
        )
    };
    let rows: String = (0..200).map(&mut row).collect();
    let sandbox = Sandbox::new();
    let file = |name: &str, at: usize| {
        let mut names =
            ["ward", "a", "b", "total", "days", "dead", "stage", "bit", "level", "falls"];
        names[at] = name;
        sandbox.write("d.csv", &format!("{}\n{rows}", names.join(",")));
    };
    for (name, at, family) in [
        ("y", 7, "binomial"),
        ("Outcome", 6, "multinomial"),
        ("label", 6, "multinomial"),
        ("target", 8, "gaussian"),
        ("y", 9, "poisson"),
    ] {
        file(name, at);
        sandbox.ok(&["new", "d.csv", "--out", "job.toml", "--force"]);
        let job = sandbox.read("job.toml");
        assert!(job.contains(&format!("family = \"{family}\"")), "{name}: {job}");
        let why = "left out: \"total\", since it is a linear function of several other columns";
        assert!(job.contains(why), "{job}");
        sandbox.ok(&["run", "job.toml", "--out", "out", "--force"]);
        assert_eq!(sandbox.object("out/summary.json")["ending"], "converged", "{name}");
    }
    file("bit", 7);
    for (args, parts) in [
        (&["--model", "cox", "--target", "days", "--event", "dead"][..], "event = \"dead\""),
        (&["--model", "cox", "--target", "days"], "event = \"dead\""),
        (&["--model", "summary"], "kind = \"describe\""),
        (&["--model", "describe"], "kind = \"summary\""),
        (&["--model", "linear", "--target", "level"], "kind = \"diana\""),
        (&["--model", "logistic", "--target", "bit"], "kind = \"diana\""),
        (&["--model", "softmax", "--target", "stage"], "kind = \"softmax\""),
    ] {
        let args = [&["new", "d.csv", "--out", "job.toml", "--force"], args].concat();
        sandbox.ok(&args);
        let job = sandbox.read("job.toml");
        assert!(job.contains(parts), "{args:?}: {job}");
        sandbox.ok(&["run", "job.toml", "--out", "out", "--force"]);
    }
    for (args, said) in [
        (&["--model", "glm"][..], "name the column to predict with --target COLUMN"),
        (&["--model", "logistc"], "did you mean \"logistic\"?"),
    ] {
        let ran = sandbox.run(&[&["new", "d.csv"], args].concat());
        assert!(ran.code == 2 && ran.stderr.contains(said), "{}", ran.stderr);
    }
    file("sick", 5);
    let ran = sandbox.run(&["new", "d.csv", "--model", "cox", "--target", "days"]);
    assert!(ran.code == 2 && ran.stderr.contains("name it with --event COLUMN"), "{}", ran.stderr);
}

/// The only column of numbers beside sites and dates is the value of a table; measurements that repeat cells
/// are not.
#[test]
fn a_survey_is_a_table_whatever_its_counts_are_called() {
    let mut stream = Key::root(23).stream();
    let [mut survey, mut repeated] = [(); 2].map(|()| String::from("plot,year,month,n_birds\n"));
    for plot in 0..12 {
        for (year, month) in (2012..2018).flat_map(|year| (1..=6).map(move |month| (year, month))) {
            let line = format!("p{plot},{year},{month},{}\n", stream.poisson(2.0));
            if stream.uniform() < 0.7 {
                survey += &line;
            }
            repeated += &line.repeat(2);
        }
    }
    let sandbox = Sandbox::new();
    for [row, year, month, value] in [
        ["plot", "year", "month", "n_birds"],
        ["Ort", "Jahr", "Monat", "Anzahl"],
        ["site", "annee", "mois", "nombre"],
    ] {
        let names = format!("{row},{year},{month},{value}");
        sandbox.write("d.csv", &survey.replacen("plot,year,month,n_birds", &names, 1));
        sandbox.ok(&["new", "d.csv", "--out", "job.toml", "--force"]);
        let job = sandbox.read("job.toml");
        let column = format!("column = [\"{year}\", \"{month}\"]");
        for part in [format!("row = \"{row}\""), column, format!("value = \"{value}\"")] {
            assert!(job.contains(&part), "{part}: {job}");
        }
    }
    sandbox.write("d.csv", &repeated);
    sandbox.ok(&["new", "d.csv", "--out", "job.toml", "--force"]);
    assert!(!sandbox.read("job.toml").contains("\nvalue = "));
}

/// Where the minimum is zero, the excess is relative to that of the start.
#[test]
fn a_minimum_of_zero_has_a_meaningful_verdict() {
    let mut stream = Key::root(24).stream();
    let mut rows = String::from("a,b,y,client\n");
    for i in 0..80 {
        let (a, b) = (stream.normal(), stream.normal());
        rows += &format!("{a},{b},{},c{}\n", 2.0 * a - b, i % 4);
    }
    let job = |rounds: u32| {
        format!(
            "seed = 1\n[data]\nsource = \"csv\"\npath = \"rows.csv\"\nclient = \"client\"\n\
             target = \"y\"\n[model]\nkind = \"linear\"\n[method]\nkind = \"sgd\"\n\
             batch = \"full\"\nrounds = {rounds}\n"
        )
    };
    let sandbox = Sandbox::with_job(&job(3));
    sandbox.write("rows.csv", &rows);
    let short = sandbox.run_job("short");
    assert_eq!(short["ending"], "stopped");
    let left = number(&short, "excess_relative");
    assert!(1e-6 < left && left < 0.5, "{left}");
    sandbox.write("job.toml", &job(300));
    assert_eq!(sandbox.run_job("long")["ending"], "converged");
    assert!(sandbox.read("long/report.html").contains("<dt>Objective</dt>"));
    sandbox.write("job.toml", &job(300).replace("seed = 1", "seed = 1\nseeds = 2"));
    let ran = sandbox.ok(&["run", "job.toml", "--out", "seeds"]);
    assert!(ran.stderr.contains("converged: all 2 seeds"), "{}", ran.stderr);
}

/// A data file in place of a job is one error with the command that writes a job.
#[test]
fn a_data_file_is_no_job() {
    let sandbox = Sandbox::new();
    sandbox.write("d.csv", "a,b\n1,2\n");
    for command in ["run", "check"] {
        let ran = sandbox.run(&[command, "d.csv"]);
        assert_eq!((ran.code, ran.stderr.matches("error").count()), (2, 1), "{}", ran.stderr);
        assert!(ran.stderr.contains("`whimbrel new d.csv --out job.toml`"), "{}", ran.stderr);
    }
}

/// Bounds and noise are for values of about one: columns in natural units are named.
#[test]
fn columns_in_natural_units_are_named_under_epsilon() {
    let model = "covariance = \"diagonal\"";
    let method = "kind = \"fedem\"\nrounds = 5\n\n[privacy]\nepsilon = 5";
    let sandbox = Sandbox::with_job(&mixture_job(model, method));
    assert!(!sandbox.ok(&["check", "job.toml"]).stderr.contains("scale of one"));
    let rows: Vec<String> =
        (0..90).map(|i| format!("{},{},c{}", 60 + i % 30, 0.1 * f64::from(i % 7), i % 3)).collect();
    sandbox.write("d.csv", &format!("age,x,client\n{}\n", rows.join("\n")));
    sandbox.write(
        "job.toml",
        &format!(
            "[data]\nsource = \"csv\"\npath = \"d.csv\"\nclient = \"client\"\n\
             [model]\nkind = \"gmm\"\ncomponents = 2\n{model}\n[method]\n{method}\n"
        ),
    );
    for command in [&["check", "job.toml"][..], &["run", "job.toml", "--out", "out"]] {
        let said = sandbox.ok(command).stderr;
        assert!(
            said.contains("\"age\" (") && said.contains("write limits = true in [data.prepare]"),
            "{said}"
        );
        assert!(!said.contains("\"x\" ("), "{said}");
    }
    let summary = sandbox.object("out/summary.json");
    assert_eq!(summary["ending_detail"], "(budget) after 5 rounds");
}

/// Marks of gaps and of thousands; `1,000` is never advised into 1.000.
#[test]
fn a_job_names_the_spelling_of_numbers() {
    let mut stream = Key::root(9).stream();
    let mut rows = String::from("x,y,client\n");
    for i in 0..120 {
        let x = 1000.0 + 8000.0 * stream.uniform();
        let y = if i % 40 == 7 { "n/a".into() } else { format!("{:.3}", stream.normal()) };
        rows += &format!("\"{},{:03}\",{y},c{}\n", x as u32 / 1000, x as u32 % 1000, i % 3);
    }
    let job = "[data]\nsource = \"csv\"\npath = \"d.csv\"\nclient = \"client\"\nSPELLING\n\
               [model]\nkind = \"mixture\"\ncomponents = 1\n[method]\nkind = \"fedem\"\n";
    let sandbox = Sandbox::with_job(&job.replace("SPELLING\n", "").replace("mixture", "gmm"));
    sandbox.write("d.csv", &rows.replace("n/a", "0.5"));
    sandbox.fails(&["run", "job.toml", "--out", "out"], 3, "thousands = \",\"");
    let spelling = "na = [\"n/a\"]\nthousands = \",\"\n";
    sandbox.write("d.csv", &rows);
    sandbox.write("job.toml", &job.replace("SPELLING\n", spelling));
    sandbox.run_job("out");
    let text = sandbox.read("out/job.toml");
    assert!(text.contains("na = [\"n/a\"]") && text.contains("thousands = \",\""), "{text}");
    // The same numbers, written plainly.
    let plain = rows.lines().map(|line| match line.strip_prefix('"') {
        Some(quoted) => quoted.replacen(',', "", 1).replacen('"', "", 1).replace("n/a", "") + "\n",
        None => format!("{line}\n"),
    });
    sandbox.write("d.csv", &plain.collect::<String>());
    sandbox.write("job.toml", &job.replace("SPELLING\n", ""));
    sandbox.run_job("plain");
    let model = |run: &str| sandbox.read(&format!("{run}/model/model.json"));
    assert_eq!(model("out"), model("plain"));
    // Points between groups and a decimal comma: refused with the remedy, which the draft writes.
    let points = |line: &str| match line.split_once("\",") {
        Some((x, rest)) => {
            let rest = rest.replace("n/a", "0.25").replace(',', ";").replace('.', ",");
            format!("{},5;{rest}\n", x[1..].replace(',', "."))
        }
        None => line.replace(',', ";") + "\n",
    };
    sandbox.write("d.csv", &rows.lines().map(points).collect::<String>());
    sandbox.write("job.toml", &job.replace("SPELLING\n", "").replace("mixture", "gmm"));
    let refused = sandbox.run(&["run", "job.toml", "--out", "points"]);
    assert!(refused.stderr.contains("thousands = \".\" in [data]"), "{}", refused.stderr);
    sandbox.ok(&["new", "d.csv", "--out", "job.toml", "--force"]);
    let draft = sandbox.read("job.toml");
    assert!(draft.contains("thousands = \".\"") && draft.contains("target = \"y\""), "{draft}");
    sandbox.run_job("points");
}

/// Numbers of two classes, such as 1 and 2, are yes and no, as targets and as features; and a target of times
/// beside a column of events is pointed out.
#[test]
fn two_numbers_are_two_classes() {
    let mut stream = Key::root(25).stream();
    let sandbox = Sandbox::new();
    let mut files = ["status", "died"].map(|name| format!("site,dose,{name},time_months\n"));
    for i in 0..300 {
        let dose = stream.normal();
        let is_event = stream.uniform() < 1.0 / (1.0 + (-dose).exp());
        for (first, file) in [1, 0].into_iter().zip(&mut files) {
            let class = first + u8::from(is_event);
            *file += &format!("s{},{dose:.3},{class},{:.2}\n", i % 5, f64::from(i) + 0.5);
        }
    }
    let slopes = files.each_ref().map(|file| {
        sandbox.write("d.csv", file);
        let target = if file.contains("status") { "status" } else { "died" };
        sandbox.ok(&["new", "d.csv", "--target", target, "--out", "job.toml", "--force"]);
        let is_coded = sandbox.read("job.toml").contains("status = { type = \"yes-no\" }");
        assert_eq!(is_coded, target == "status");
        sandbox.ok(&["run", "job.toml", "--out", "out", "--force"]);
        sandbox.object("out/summary.json")["coefficients"].clone()
    });
    assert_eq!(slopes[0], slopes[1]);
    let ran = sandbox.ok(&["new", "d.csv", "--target", "time_months", "--out", "cox.toml"]);
    assert!(ran.stderr.contains("\"died\" holds 0 and 1"), "{}", ran.stderr);
    assert!(ran.stderr.contains("`whimbrel new --model cox`"), "{}", ran.stderr);
    sandbox.write("d.csv", &files[0]);
    sandbox.ok(&["new", "d.csv", "--out", "job.toml", "--force"]);
    assert!(sandbox.read("job.toml").contains("kind = \"mixture\""));
    sandbox.ok(&["run", "job.toml", "--out", "out", "--force"]);
}
