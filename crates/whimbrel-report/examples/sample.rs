//! Renders made-up runs, to look at the report while working on it.
//!
//! `cargo run --example sample -- FILE [one|compare|seeds|gradient|imputation|broken|hero]`

use std::process::ExitCode;

use serde_json::{Map, Value, json};
use whimbrel_report::{
    Calibration, ClientView, ColumnTotal, Contender, HeatView, HeroAxis, ImputationView, LEVELS,
    MixtureView, RunView, bits_to_reach, closing_table, hero, html,
};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let Some(path) = arguments.first() else {
        eprintln!("usage: sample FILE [one|compare|seeds|gradient|imputation|broken|hero]");
        return ExitCode::from(2);
    };
    let em = || run("em, pooled", "em", 1, 100, |t| 0.4 * (-0.075 * t).exp(), 0.0);
    let fedem = |seed| run("fedem", "fedem", seed, 100, |t| 0.4 * (-0.058 * t).exp(), 900.0);
    let dem = || run("dem", "dem", 1, 100, |t| 0.4 * (-0.06 * t).exp() + 1e-3, 870.0);
    let text = match arguments.get(1).map_or("compare", String::as_str) {
        "one" => html("wards", &[run("wards", "fedem", 7, 8, |t| (-0.05 * t).exp(), 900.0)]),
        "seeds" => html("five seeds", &[fedem(1), fedem(2), fedem(3), fedem(4), fedem(5), dem()]),
        "gradient" => {
            let runs = gradients();
            eprint!("{}", closing_table(&runs));
            eprint!("{}", bits_to_reach(&runs, &LEVELS).map_or(String::new(), |t| t.text()));
            html("a9a", &runs)
        }
        "imputation" => {
            let fit = run("waterfowl", "fedmiss", 1, 10, |t| (-0.05 * t).exp(), 900.0);
            html("waterfowl", &[RunView { mixture: None, imputation: Some(imputation()), ..fit }])
        }
        "broken" => html("<script>alert(1)</script>", &[broken(), fedem(1)]),
        "hero" => hero(
            "Compressed messages, same answer",
            "100 unlike clients, 2-D mixture, 75 % take part in a round",
            &[em(), fedem(1), dem()],
            HeroAxis::Rounds,
        ),
        _ => {
            let runs = [em(), fedem(1), dem()];
            eprint!("{}", closing_table(&runs));
            html("Demonstration", &runs)
        }
    };
    match std::fs::write(path, text) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("cannot write {path}: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(
    name: &str,
    method: &str,
    seed: u64,
    clients: u64,
    decay: fn(f64) -> f64,
    bits: f64,
) -> RunView {
    let reference = 2.941_234_567;
    let mut noise = Noise(seed * 7 + bits as u64);
    let rows: Vec<Map<String, Value>> = (0..=60)
        .map(|place| {
            let round = 10 * place;
            let field = decay(round as f64) * (0.5 * noise.normal()).exp();
            let pull = (-(round as f64) / 60.0).exp();
            let row = json!({
                "round": round,
                "epoch": 0.75 * round as f64,
                "objective": reference + 0.3 * field,
                "field_norm2": field,
                "update_norm2": 1.7 * field * (0.3 * noise.normal()).exp(),
                "memory_gap2": if method == "fedem" { json!(3.0 * field) } else { Value::Null },
                "repairs": 0,
                "weights": [0.5 - 0.2 * (1.0 - pull), 0.3, 0.2 + 0.2 * (1.0 - pull)],
                "bits_up": bits * 75.0 * round as f64,
                "bits_down": 400.0 * 75.0 * round as f64,
                "bits_eval": 0,
                "clients": 75,
                "seconds": 0.004 * round as f64,
            });
            row.as_object().cloned().unwrap_or_default()
        })
        .collect();
    let clients = (0..clients)
        .map(|id| {
            let rounds = 430 + (noise.uniform() * 40.0) as u64;
            ClientView {
                name: format!("ward {id}"),
                rows: 100,
                rounds,
                bits_up: (bits * rounds as f64) as u64,
                bits_down: 400 * rounds,
                loss: Some(2.9 + 0.2 * noise.normal()),
            }
        })
        .collect();
    let summary = json!({ "rounds": 600, "seconds": 2.43 });
    RunView {
        name: name.into(),
        method: method.into(),
        model: "gmm, 3 components, tied".into(),
        seed,
        version: "0.1.0".into(),
        isa: "x86-64-v3".into(),
        data_hash: "9f2c01d7a4b8e36655aa".into(),
        rows,
        clients,
        mixture: Some(mixture(&mut noise)),
        summary: summary.as_object().cloned().unwrap_or_default(),
        job_toml: format!("name = \"{name}\"\nseed = {seed}\n\n[method]\nkind = \"{method}\"\n"),
        command: "whimbrel run job.toml --out wards-again".into(),
        reference_objective: Some(reference),
        ..RunView::default()
    }
}

/// A table of counts with a season, a trend and gaps.
fn imputation() -> ImputationView {
    let mut noise = Noise(11);
    let (rows, columns) = (60, 120);
    let season = |c: usize| 1.0 + 0.6 * (c as f64 / 12.0 * std::f64::consts::TAU).sin();
    let level = |r: usize, c: usize| 40.0 / (1.0 + r as f64) * season(c) * (1.0 + 0.01 * c as f64);
    let mut heat = HeatView { rows, columns, shape: [rows, columns], ..HeatView::default() };
    for place in 0..rows * columns {
        let value = level(place / columns, place % columns) * (0.3 * noise.normal()).exp();
        heat.observed.push((noise.uniform() > 0.56).then_some(value));
        heat.completed.push(Some(value));
    }
    let totals = (0..columns).map(|c| {
        let column = |part: &[Option<f64>]| -> Vec<f64> {
            part.iter().skip(c).step_by(columns).flatten().copied().collect()
        };
        let (seen, all) = (column(&heat.observed), column(&heat.completed));
        let total: f64 = all.iter().sum();
        ColumnTotal {
            label: format!("{}-{:02}", 2000 + c / 12, c % 12 + 1),
            estimated_total: total,
            observed_total: seen.iter().sum(),
            lower: Some(0.85 * total),
            upper: Some(1.2 * total),
            missing: (rows - seen.len()) as u64,
        }
    });
    let contender =
        |name: &str, deviance, fitted| Contender { name: name.into(), deviance, fitted };
    ImputationView {
        columns: totals.collect(),
        calibration: [0.5, 0.6, 0.7, 0.8, 0.9, 0.95]
            .map(|nominal| Calibration { nominal, covered: nominal + 0.015 })
            .to_vec(),
        contenders: vec![
            contender("low rank, rank 2", 3.1, true),
            contender("row and column effects", 3.6, false),
            contender("column means", 9.2, false),
            contender("each client alone", 4.4, false),
        ],
        intervals: "calibrated on half of the cells kept out".into(),
        heat: Some(heat),
    }
}

/// Six gradient methods over five seeds: where each saturates, and bits per round up and down.
fn gradients() -> Vec<RunView> {
    let methods: [(&str, f64, f64, f64, &str); 6] = [
        ("sgd", 6e-4, 79_360.0, 79_360.0, "exact uplink, exact downlink"),
        ("diana", 4.5e-3, 2_900.0, 79_360.0, "compressed uplink with memory, exact downlink"),
        ("artemis", 4e-2, 2_900.0, 2_900.0, "compressed both ways, degraded downlink"),
        ("mcm", 8e-3, 2_900.0, 2_900.0, "compressed both ways, preserved downlink"),
        ("rand-mcm", 6e-3, 2_900.0, 2_900.0, "compressed both ways, one downlink per client"),
        ("ghost", 7e-3, 2_900.0, 79_360.0, "a bound that no federation can run"),
    ];
    let seeds = |(name, floor, up, down, row): (&'static str, f64, f64, f64, &'static str)| {
        (1..=5).map(move |seed| gradient(name, seed, floor, [up, down], row))
    };
    methods.into_iter().flat_map(seeds).collect()
}

fn gradient(name: &str, seed: u64, floor: f64, bits: [f64; 2], row: &str) -> RunView {
    let mut noise = Noise(seed * 977 + bits[0] as u64 + (1e6 * floor) as u64);
    let rows: Vec<Map<String, Value>> = (0..=90)
        .map(|place| {
            let round = 50.0 * place as f64;
            let ideal = 0.37 * (-round / 250.0).exp();
            let excess = (ideal + floor) * (0.15 * noise.normal()).exp();
            let mut row = json!({
                "round": round, "epoch": round / 32.6, "objective": 0.323 + excess,
                "excess_loss": excess, "distance2": 40.0 * excess,
                "update_norm2": if place == 0 { Value::Null } else { json!(0.3 * excess) },
                "bits_up": bits[0] * round, "bits_down": bits[1] * round,
                "seconds": 2e-4 * round,
            });
            if name != "sgd" {
                row["memory_gap2"] = json!(1e-3 + ideal);
            }
            if bits[1] < 79_360.0 || name == "ghost" {
                row["local_variance"] = json!(2.0 * excess);
                row["down_memory_gap2"] = json!(3.0 * excess * (0.2 * noise.normal()).exp());
            }
            if name == "ghost" {
                row["bits_down_ghost"] = json!(2_900.0 * round);
            }
            row.as_object().cloned().unwrap_or_default()
        })
        .collect();
    RunView {
        name: name.into(),
        method: name.into(),
        model: "logistic, 124 columns".into(),
        seed,
        version: "0.1.0".into(),
        rows,
        notes: vec![format!("Table 1: {row}")],
        ..RunView::default()
    }
}

/// A run that stopped, with values that cannot be drawn and a hostile name.
fn broken() -> RunView {
    let mut run = run("<b onload=x>\"&'", "dem", 1, 3, |t| (0.08 * t).exp(), 900.0);
    for (place, row) in run.rows.iter_mut().enumerate() {
        let value = [json!(0.0), json!(-1.0), Value::Null, json!(1e300), json!(2e-308)];
        if place % 3 == 0 {
            row.insert("field_norm2".into(), value[place / 3 % 5].clone());
        }
    }
    run.rows.truncate(40);
    run.error = Some("||S|| grew by more than 1e6 since the start, at round 390".into());
    run.notes = vec!["3 of 100 clients hold fewer rows than the batch".into()];
    run
}

fn mixture(noise: &mut Noise) -> MixtureView {
    let means = [[-1.5, 0.0], [1.5, 1.0], [0.5, -2.2]];
    let covariance = [[1.0, 0.3], [0.3, 0.8]];
    let points = (0..900)
        .map(|place| {
            let (a, b) = (noise.normal(), noise.normal());
            let [x, y] = means[place % 3];
            // The Cholesky factor of the covariance above.
            [x + a, y + 0.3 * a + 0.842_614_977 * b]
        })
        .collect();
    MixtureView {
        columns: ["length".into(), "width".into()],
        points,
        weights: vec![0.31, 0.29, 0.4],
        means: means.to_vec(),
        covariances: vec![covariance; 3],
    }
}

/// A small generator, good enough for a picture.
struct Noise(u64);

impl Noise {
    fn uniform(&mut self) -> f64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 11) as f64 / (1u64 << 53) as f64
    }

    fn normal(&mut self) -> f64 {
        (0..12).map(|_| self.uniform()).sum::<f64>() - 6.0
    }
}
