//! Draws the README's picture from a demonstration's folder.
//!
//! ```sh
//! cargo run --release -- --out runs/demo
//! cargo run --release --example hero -- runs/demo > docs/images/demo.svg
//! ```

use serde_json::{Map, Value};
use std::error::Error;
use std::fs::read_to_string;
use std::path::{Path, PathBuf};
use whimbrel::parts::methods::measures;
use whimbrel::parts::report::{RunView, hero};

/// The demonstration's runs, in the order of its jobs.
const RUNS: [&str; 3] = ["em", "dem", "fedem"];
/// Below this a squared norm is rounding, and soon exactly zero, which no log axis shows.
const ROUNDING: f64 = 1e-30;

fn main() -> Result<(), Box<dyn Error>> {
    let folder: PathBuf = std::env::args_os().nth(1).ok_or("usage: hero DEMO-FOLDER")?.into();
    let runs = RUNS.iter().map(|name| view(&folder.join(name)));
    let runs = runs.collect::<Result<Vec<_>, _>>()?;
    let picture = hero(
        "How far from where pooled EM stops",
        "100 clients that differ, three in four a round, one-level dithering; em holds all rows",
        &runs,
        &measures::field(),
    );
    print!("{picture}");
    Ok(())
}

/// What the picture needs of one run: its name and its metrics.
fn view(run: &Path) -> Result<RunView, Box<dyn Error>> {
    let summary: Map<String, Value> =
        serde_json::from_str(&read_to_string(run.join("summary.json"))?)?;
    let metrics = read_to_string(run.join("metrics.jsonl"))?;
    let rows: Vec<Map<String, Value>> =
        metrics.lines().map(serde_json::from_str).collect::<Result<_, _>>()?;
    let field = |row: &Map<String, Value>| row.get("field_norm2").and_then(Value::as_f64);
    let above = |row: &Map<String, Value>| field(row).is_some_and(|value| value > ROUNDING);
    let text = |key: &str| summary.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
    Ok(RunView {
        name: text("name"),
        method: text("method"),
        model: text("model"),
        rows: rows.into_iter().take_while(above).collect(),
        ..RunView::default()
    })
}
