//! What a completed table says of the cells that were kept out of the fit is what the run was
//! judged by.

use crate::support::{Sandbox, number};
use whimbrel::parts::core::Key;
use whimbrel::parts::core::math::{exp, ln};

const SITES: usize = 60;
const MONTHS: usize = 12;

fn job(family: &str, model: &str, split: &str) -> String {
    format!(
        r#"name = "birds"
seed = 1
[data]
source = "csv"
path = "counts.csv"
{split}
row = "site"
column = "month"
value = "count"
holdout = 0.2
[model]
kind = "low-rank"
family = "{family}"
{model}
[method]
kind = "fedmiss"
epochs = 60
batch = 20
step = "auto"
"#
    )
}

/// Sites that were visited once or twice, so that a hold-out takes all there is of some.
fn counts(yes_or_no: bool) -> String {
    let mut stream = Key::root(5).stream();
    let mut text = String::from("observer,site,month,count\n");
    for site in 0..SITES {
        let size = 1.0 + stream.normal();
        let visits = 1 + site % 3;
        for month in stream.choose(MONTHS, visits) {
            let observer = stream.below(3);
            let count = stream.poisson(exp(size));
            let value = if yes_or_no { count.min(1) } else { count };
            text += &format!("o{observer},s{site},{month},{value}\n");
        }
    }
    text
}

/// The lines of a completed table.
fn lines(sandbox: &Sandbox, file: &str) -> Vec<Vec<String>> {
    let text = sandbox.read(file);
    text.lines().skip(1).map(|line| line.split(',').map(String::from).collect()).collect()
}

/// The mean deviance of an estimate, kept a thousandth inside the range of means.
fn deviance(family: &str, y: f64, mean: f64) -> f64 {
    let entropy = |y: f64, mean: f64| if y > 0.0 { y * ln(y / mean) } else { 0.0 };
    match family {
        "gaussian" => (y - mean) * (y - mean),
        "poisson" => {
            let mean = mean.max(1e-3);
            2.0 * (entropy(y, mean) - (y - mean))
        }
        _ => {
            let mean = mean.clamp(1e-3, 1.0 - 1e-3);
            2.0 * (entropy(y, mean) + entropy(1.0 - y, 1.0 - mean))
        }
    }
}

#[test]
fn the_deviance_of_held_out_cells_can_be_found_from_the_table() {
    let by_observer = "client = \"observer\"";
    let at_random = "split = { by = \"iid\", clients = 4 }";
    for (family, model, split) in [
        ("poisson", "rank = 2\nlambda = 0.1", by_observer),
        ("poisson", "rank = 1\nlambda = 0.1\neffects = \"row+column\"", at_random),
        ("gaussian", "rank = 1\nlambda = 0.2\neffects = \"column\"", by_observer),
        ("bernoulli", "rank = 0\neffects = \"row+column\"", at_random),
    ] {
        let sandbox = Sandbox::with_job(&job(family, model, split));
        sandbox.write("counts.csv", &counts(family == "bernoulli"));
        let summary = sandbox.run_job("out");
        let report = sandbox.ok(&["impute", "out", "--out", "a.csv", "--json"]).json();
        let held_out: Vec<_> =
            lines(&sandbox, "a.csv").into_iter().filter(|line| line[2] == "held-out").collect();
        assert_eq!(held_out.len() as f64, number(&summary, "held_out"), "{model}");
        assert_eq!(held_out.len() as f64, number(&report, "held_out"));
        let bare = sandbox.object("out/model/model.json")["unobserved_rows"].clone();
        assert!(!bare.as_array().unwrap().is_empty(), "rows all of whose cells were kept out");
        let of = |line: &Vec<String>| {
            deviance(family, line[3].parse().unwrap(), line[4].parse().unwrap())
        };
        let mean = held_out.iter().map(of).sum::<f64>() / held_out.len() as f64;
        let judged = number(&summary, "holdout_deviance");
        // Estimates have six digits.
        assert!((mean - judged).abs() <= 1e-4 * judged, "{family}, {model}: {mean} {judged}");
    }
}

#[test]
fn one_clients_cells_are_held_out_in_its_own_file_too() {
    let sandbox =
        Sandbox::with_job(&job("poisson", "rank = 1\nlambda = 0.1", "client = \"observer\""));
    sandbox.write("counts.csv", &counts(false));
    sandbox.run_job("out");
    let held_out = |file: &str| -> Vec<Vec<String>> {
        lines(&sandbox, file).into_iter().filter(|line| line[2] == "held-out").collect()
    };
    sandbox.ok(&["impute", "out", "--out", "all.csv"]);
    let mut found = 0;
    for name in ["o0", "o1", "o2"] {
        sandbox.ok(&["impute", "out", "--client", name, "--out", "one.csv", "--force"]);
        let all = sandbox.read("counts.csv");
        let own = all.lines().filter(|line| line.starts_with(name));
        let own = own.map(|line| line.split_once(',').unwrap().1);
        let own: Vec<&str> = std::iter::once("site,month,count").chain(own).collect();
        sandbox.write("own.csv", &format!("{}\n", own.join("\n")));
        let own = ["impute", "out", "--data", "own.csv", "--client", name, "--force"];
        sandbox.ok(&[&own[..], &["--out", "own-out.csv"]].concat());
        assert_eq!(sandbox.read("one.csv"), sandbox.read("own-out.csv"));
        found += held_out("one.csv").len();
    }
    assert!(found > 0);
    assert_eq!(held_out("all.csv").len(), found, "no cell is observed twice");
    // Observed values stay in the table itself.
    sandbox.ok(&["impute", "out", "--wide", "--out", "wide.csv"]);
    let wide = sandbox.read("wide.csv");
    let header: Vec<&str> = wide.lines().next().unwrap().split(',').collect();
    for line in held_out("all.csv") {
        let row = wide.lines().find(|row| row.starts_with(&format!("{},", line[0]))).unwrap();
        let column = header.iter().position(|name| *name == line[1]).unwrap();
        assert_eq!(row.split(',').nth(column), Some(&*line[3]));
    }
}

#[test]
fn nobody_knows_what_was_held_out_of_another_file() {
    let sandbox =
        Sandbox::with_job(&job("poisson", "rank = 1\nlambda = 0.1", "client = \"observer\""));
    sandbox.write("counts.csv", &counts(false));
    sandbox.run_job("out");
    sandbox.write("counts.csv", &counts(false).replacen("\no", "\no0,s0,11,3\no", 1));
    let ran = sandbox.ok(&["impute", "out", "--out", "a.csv"]);
    assert!(ran.stderr.contains("the held-out cells are unknown"), "{}", ran.stderr);
    assert!(lines(&sandbox, "a.csv").iter().all(|line| line[2] == "yes" || line[2] == "no"));
}
