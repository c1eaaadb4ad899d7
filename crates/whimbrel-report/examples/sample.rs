//! Renders made-up runs, to look at the report while working on it.
//!
//! `cargo run --example sample -- FILE [one|compare|seeds|gradient|broken|hero]`

use std::process::ExitCode;

use serde_json::{Map, Value, json};
use whimbrel_core::Measure;
use whimbrel_core::declare::{Ellipse, Exhibit, OverClients, Role, Scatter, Section, Unit};
use whimbrel_report::{ClientView, LEVELS, RunView, bits_to_reach, closing_table, hero, html};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let Some(path) = arguments.first() else {
        eprintln!("usage: sample FILE [one|compare|seeds|gradient|broken|hero]");
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
        "broken" => html("<script>alert(1)</script>", &[broken(), fedem(1)]),
        "hero" => hero(
            "Compressed messages, same answer",
            "100 unlike clients, 2-D mixture, 75 % take part in a round",
            &[em(), fedem(1), dem()],
            &measures()[2],
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
                figures: [("loss".to_string(), 2.9 + 0.2 * noise.normal())].into(),
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
        measures: measures(),
        rows,
        clients,
        sections: vec![mixture(&mut noise)],
        summary: summary.as_object().cloned().unwrap_or_default(),
        job_toml: format!("name = \"{name}\"\nseed = {seed}\n\n[method]\nkind = \"{method}\"\n"),
        command: "whimbrel run job.toml --out wards-again".into(),
        reference_objective: Some(reference),
        ..RunView::default()
    }
}

/// What methods of both families declare.
fn measures() -> Vec<Measure> {
    let log = |key, title, name| Measure::new(key, title, name, "").log();
    vec![
        log("excess_loss", "Excess loss", "excess loss").role(Role::Excess).result(3),
        Measure::objective("What the method minimises"),
        log("field_norm2", "‖h‖²", "‖h‖²").result(3),
        log("distance2", "Distance to the optimum", "distance²"),
        log("update_norm2", "‖H‖²", "update²"),
        log("memory_gap2", "Uplink memory gap", "up memory gap").clients(OverClients::Mean),
        log("local_variance", "Variance of local models", "local variance"),
        log("down_memory_gap2", "Downlink memory gap", "down memory gap"),
        log("bits_down_ghost", "Hypothetical bits down", "hypothetical down").unit(Unit::Bits),
        Measure::new("weights", "Mixture weights", "weights", "").role(Role::List),
    ]
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
        measures: measures(),
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
    run.ending = "diverged".into();
    run.ending_detail = "||S|| grew by more than 1e6 since the start, at round 390".into();
    run.notes = vec!["3 of 100 clients hold fewer rows than the batch".into()];
    run
}

fn mixture(noise: &mut Noise) -> Section {
    let means = [[-1.5, 0.0], [0.5, -2.2], [1.5, 1.0]];
    let covariance = [[1.0, 0.3], [0.3, 0.8]];
    let points = (0..900)
        .map(|place| {
            let (a, b) = (noise.normal(), noise.normal());
            let [x, y] = means[place % 3];
            // The Cholesky factor of the covariance above.
            [x + a, y + 0.3 * a + 0.842_614_977 * b]
        })
        .collect();
    let label = |place: usize| format!("component {}", place + 1);
    let ellipses = means.iter().enumerate();
    let ellipses =
        ellipses.map(|(place, &mean)| Ellipse { label: label(place), mean, covariance }).collect();
    let scatter = Scatter {
        title: "Fitted mixture".into(),
        caption: "Means, and ellipses of one and two standard deviations".into(),
        axes: ["length".into(), "width".into()],
        points,
        ellipses,
    };
    let weights = Exhibit::Entries { key: "weights".into(), order: vec![0, 2, 1] };
    Section { title: "Mixture".into(), exhibits: vec![Exhibit::Scatter(scatter), weights] }
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
