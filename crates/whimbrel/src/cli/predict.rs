//! `whimbrel predict`: a fitted mixture on new rows.

use super::args::Predict;
use super::inspect::read_any;
use super::messages::{data as print, note, warning};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::path::Path;
use whimbrel::core::{ClientData, Error};
use whimbrel::engine::checkpoint::write_atomically;
use whimbrel::job::failure::{Failure, Result};
use whimbrel::job::rundir::RunDir;
use whimbrel::job::start::{read_init, read_object};
use whimbrel::models::LatentModel;
use whimbrel::models::gmm::{Covariance, Gmm, GmmParameters, GmmSettings};

/// Writes label, log-density and responsibilities of each row.
pub fn predict_command(args: &Predict) -> Result<u8> {
    let dir = RunDir::existing(&args.run)?;
    if dir.ending().is_none() {
        warning(&format!("the run in {} is not finished", dir.path().display()));
    }
    let (model, theta, columns) = load_model(&dir.path().join("model/model.json"))?;
    let data = read_any(&args.data, None)?;
    let features = data.features(&whimbrel::data::Features::Listed(&columns))?;
    let table = data.table(&features)?;
    let rows = table.rows();
    let bound = model.bind(&ClientData::Table(table))?;
    let found = model.responsibilities(&theta, &bound)?;
    let k = model.components();
    let mut text = String::from("row,label,log_density");
    for component in 1..=k {
        let _ = write!(text, ",p{component}");
    }
    text.push('\n');
    for row in 0..rows {
        let _ = write!(text, "{},{},{}", row + 1, found.labels[row] + 1, found.log_density[row]);
        for p in &found.responsibilities[row * k..(row + 1) * k] {
            let _ = write!(text, ",{p}");
        }
        text.push('\n');
    }
    write_atomically(&args.out, text.as_bytes())?;
    let mean = found.log_density.iter().sum::<f64>() / rows as f64;
    if args.json {
        let out = args.out.display().to_string();
        let report = json!({ "rows": rows, "mean_log_density": mean, "out": out });
        print(&format!("{report}\n"))?;
    }
    note(&format!("{rows} rows, mean log-density {mean:.6}: {}", args.out.display()));
    Ok(0)
}

/// The mixture of a `model.json`, and the columns it was fitted to.
fn load_model(path: &Path) -> Result<(Gmm, GmmParameters, Vec<String>)> {
    if !path.is_file() {
        let error = Error::config(format!("{} does not exist", path.display()))
            .hint("the run has no model: it is unfinished, or it failed");
        return Err(error.into());
    }
    let object = read_object(path)?;
    let broken = |what: &str| Failure::config(format!("{}: {what}", path.display()));
    let init = read_init(path)?;
    let columns: Option<Vec<String>> = object
        .get("columns")
        .and_then(Value::as_array)
        .map(|all| all.iter().filter_map(|c| c.as_str().map(String::from)).collect());
    let columns = columns.ok_or_else(|| broken("`columns` is missing"))?;
    let covariance = match object.get("covariance_kind").and_then(Value::as_str) {
        Some("known") => Covariance::Known(init.covariance.clone()),
        Some("tied") => Covariance::Tied,
        Some("diagonal") => Covariance::Diagonal,
        Some("full") => Covariance::Full,
        _ => return Err(broken("`covariance_kind` must be known, tied, diagonal or full")),
    };
    let model = Gmm::new(GmmSettings::new(init.weights.len(), columns.len(), covariance))?;
    let theta = model.parameters(&init.weights, &init.means, &init.covariance)?;
    Ok((model, theta, columns))
}
