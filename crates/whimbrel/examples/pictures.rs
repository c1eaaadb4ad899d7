//! Draws a figure of finished runs as a standalone SVG file on standard output, for README and book:
//! a measure by rounds, or the lines of an exhibit. `docs/images/make.sh` makes all of them.
//!
//! ```sh
//! cargo run --release -- --out runs/demo
//! cargo run --release --example pictures -- field_norm2 TITLE SUBTITLE runs/demo/{em,dem,fedem}
//! ```

use serde_json::{Map, Value};
use std::error::Error;
use std::fs::read_to_string;
use std::path::Path;
use whimbrel::parts::core::Measure;
use whimbrel::parts::core::declare::{Exhibit, Scale, Section};
use whimbrel::parts::report::{RunView, hero, standalone_lines};

/// Below this a squared norm is rounding, and soon exactly zero, which no log axis shows.
const ROUNDING: f64 = 1e-30;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [figure, title, subtitle, runs @ ..] = &arguments[..] else {
        return Err("usage: pictures MEASURE-OR-EXHIBIT TITLE SUBTITLE RUN...".into());
    };
    let first = Path::new(runs.first().ok_or("name at least one run")?);
    if let Some(Exhibit::Lines(lines)) = exhibit(first, figure)? {
        print!("{}", standalone_lines(title, subtitle, &lines));
        return Ok(());
    }
    let stored = read(&first.join("measures.json"))?;
    let measures: Vec<Measure> = serde_json::from_value(stored["measures"].clone())?;
    let measure = measures.into_iter().find(|measure| measure.key == *figure);
    let measure = measure.ok_or_else(|| format!("{figure} is not a figure of this run"))?;
    let views = runs.iter().map(|run| view(Path::new(run), &measure));
    print!("{}", hero(title, subtitle, &views.collect::<Result<Vec<_>, _>>()?, &measure));
    Ok(())
}

fn read(file: &Path) -> Result<Value, Box<dyn Error>> {
    let text = read_to_string(file).map_err(|e| format!("{}: {e}", file.display()))?;
    Ok(serde_json::from_str(&text)?)
}

/// The exhibit of a run with this title.
fn exhibit(run: &Path, title: &str) -> Result<Option<Exhibit>, Box<dyn Error>> {
    let stored = read(&run.join("exhibits.json"))?;
    let sections: Vec<Section> = serde_json::from_value(stored["sections"].clone())?;
    let mut all = sections.into_iter().flat_map(|section| section.exhibits);
    Ok(all.find(|exhibit| matches!(exhibit, Exhibit::Lines(lines) if lines.title == title)))
}

/// The name and metrics of a run, on a log axis until the measure is rounding.
fn view(run: &Path, measure: &Measure) -> Result<RunView, Box<dyn Error>> {
    let summary = read(&run.join("summary.json"))?;
    let metrics = read_to_string(run.join("metrics.jsonl"))?;
    let rows: Vec<Map<String, Value>> =
        metrics.lines().map(serde_json::from_str).collect::<Result<_, _>>()?;
    let value = |row: &Map<String, Value>| row.get(&*measure.key).and_then(Value::as_f64);
    // The first rows may lack the measure.
    let is_shown = |row: &Map<String, Value>| {
        measure.scale == Scale::Linear || value(row).is_none_or(|value| value > ROUNDING)
    };
    let text = |key: &str| summary.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
    Ok(RunView {
        name: text("name"),
        method: text("method"),
        model: text("model"),
        rows: rows.into_iter().take_while(is_shown).collect(),
        ..RunView::default()
    })
}
