//! Tables of numbers whose columns are in different units.

use crate::support::{Sandbox, number};
use whimbrel::parts::core::Key;

const ROWS: usize = 60;
/// Mean and scale of each column: pascals, millimetres, a share, metres, counts.
const UNITS: [[f64; 2]; 5] =
    [[101_300.0, 400.0], [60.0, 20.0], [0.4, 0.02], [500.0, 200.0], [7.0, 2.0]];

/// A table of rank one in standardised columns with a quarter of the cells missing, and its true values.
fn weather(scaled: bool) -> (String, Vec<f64>) {
    let mut stream = Key::root(31).stream();
    let mut text = String::from("station,a,b,c,d,e\n");
    let mut truth = Vec::new();
    for row in 0..ROWS {
        text += &format!("w{row}");
        let wet = stream.normal();
        for (at, [mean, scale]) in UNITS.into_iter().enumerate() {
            let [mean, scale] = if scaled { [mean, scale] } else { [0.0, 1.0] };
            let sign = if at % 2 == 0 { 1.0 } else { -1.0 };
            let x = mean + scale * (sign * wet + 0.2 * stream.normal());
            truth.push(x);
            let missing = stream.uniform() < 0.25;
            text += &if missing { ",".into() } else { format!(",{x:.6}") };
        }
        text += "\n";
    }
    (text, truth)
}

const JOB: &str = "name = \"weather\"\nseed = 1\n[data]\nsource = \"csv\"\npath = \"d.csv\"\n\
    row = \"station\"\nholdout = 0.1\n[data.split]\nby = \"rows\"\nclients = 5\n\
    [model]\nkind = \"low-rank\"\nfamily = \"gaussian\"\neffects = \"row+column\"\n\
    [method]\nkind = \"fedmiss\"\nepochs = 100\n\
    [uplink]\ncodec = { kind = \"dithering\", levels = 8, bucket = 64 }\n";

#[test]
fn columns_of_unlike_scales_are_standardised_and_results_are_in_data_units() {
    let (text, truth) = weather(true);
    let sandbox = Sandbox::with_job(JOB);
    sandbox.write("d.csv", &text);
    let ran = sandbox.ok(&["run", "job.toml", "--out", "out"]);
    assert!(ran.stderr.contains("columns differ in scale by a factor of"), "{}", ran.stderr);
    let summary = sandbox.object("out/summary.json");
    assert!(number(&summary, "holdout_deviance") < 0.5, "{summary:?}");
    assert!(sandbox.read("out/model/model.json").contains("column_scales"));
    sandbox.ok(&["impute", "out", "--draws", "20", "--out", "a.csv"]);
    let lines = sandbox.read("a.csv");
    let mut errors = [[0.0f64; 3]; 5];
    let mut inside = 0.0;
    let mut missing = 0.0;
    for (at, line) in lines.lines().skip(1).enumerate() {
        let cells: Vec<&str> = line.split(',').collect();
        if cells[2] != "no" {
            continue;
        }
        let x = |i: usize| cells[i].parse::<f64>().unwrap();
        let ([mean, scale], column) = (UNITS[at % 5], at % 5);
        errors[column][0] += ((x(4) - truth[at]) / scale).powi(2);
        errors[column][1] += ((mean - truth[at]) / scale).powi(2);
        errors[column][2] += 1.0;
        missing += 1.0;
        inside += f64::from((x(6)..=x(7)).contains(&truth[at]));
        let draws = (8..28).map(x).sum::<f64>() / 20.0;
        assert!((draws - x(4)).abs() < 1.5 * x(5), "{line}");
    }
    for [own, of_mean, count] in errors {
        assert!(own < 0.3 * of_mean, "{} against {} of the means", own / count, of_mean / count);
    }
    assert!(inside / missing > 0.75, "coverage {}", inside / missing);
}

#[test]
fn columns_of_one_scale_keep_their_units() {
    let sandbox = Sandbox::with_job(JOB);
    sandbox.write("d.csv", &weather(false).0);
    let ran = sandbox.ok(&["run", "job.toml", "--out", "out"]);
    assert!(!ran.stderr.contains("differ in scale"), "{}", ran.stderr);
    assert!(!sandbox.read("out/model/model.json").contains("column_scales"));
}

/// A new station is fitted and written in the units of the data.
#[test]
fn a_new_client_is_adapted_in_data_units() {
    let sandbox = Sandbox::with_job(JOB);
    sandbox.write("d.csv", &weather(true).0);
    sandbox.ok(&["run", "job.toml", "--out", "out"]);
    // Wet in four columns: the fifth follows.
    sandbox.write("new.csv", "station,a,b,c,d,e\nnew,102100,20,0.44,100,\n");
    sandbox.ok(&["adapt", "out", "--data", "new.csv", "--out", "adapted"]);
    let lines = sandbox.read("adapted/imputed.csv");
    let last: Vec<&str> = lines.lines().last().unwrap().split(',').collect();
    let estimate: f64 = last[4].parse().unwrap();
    assert!((9.0..13.0).contains(&estimate), "{lines}");
}
