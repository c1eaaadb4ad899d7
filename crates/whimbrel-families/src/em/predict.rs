//! Predictions of a Gaussian mixture: labels, log-densities and responsibilities.

use super::start::init_of;
use crate::failure::Result;
use crate::family::{ModelUse, Predicted};
use crate::load::{read_any, read_images};
use crate::usage::{mixture_columns, numbers};
use serde_json::{Value, json};
use std::sync::Arc;
use whimbrel_core::ClientData;
use whimbrel_data::{Features, Input, is_idx};
use whimbrel_methods::prepare::Preparation;
use whimbrel_models::LatentModel;
use whimbrel_models::gmm::{Covariance, Gmm, GmmParameters, GmmSettings};

pub(super) fn predict(run: &ModelUse<'_>, file: &Input) -> Result<Predicted> {
    let (model, theta, columns) = load_model(run)?;
    let projection = load_projection(run, columns.len())?;
    if projection.as_ref().map_or(columns.len(), Preparation::width) != theta.columns() {
        return Err(run.broken("`means` and `columns` do not match"));
    }
    let data = match run.model.get("byte_scale").and_then(Value::as_f64) {
        Some(scale) if let Some(file) = file.file().filter(|file| is_idx(file)) => {
            Arc::new(read_images(file, scale)?)
        }
        _ => read_any(file, &run.csv_options())?,
    };
    let features = data.features(&Features::Listed(&columns))?;
    let table = data.table(&features)?;
    let rows = table.rows();
    let bound = match &projection {
        None => model.bind(&ClientData::Table(table))?,
        Some(map) => model.data_from_rows(&map.forward(&table.values, columns.len())?)?,
    };
    let found = model.responsibilities(&theta, &bound)?;
    let k = model.components();
    let mean = found.log_density.iter().sum::<f64>() / rows as f64;
    Ok(Predicted {
        columns: mixture_columns(&found.labels, found.log_density, &found.responsibilities, k),
        figures: vec![("mean_log_density", json!(mean))],
        words: match &projection {
            None => format!("mean log-density {mean:.6}"),
            Some(map) => format!("mean log-density {mean:.6} of {} components", map.width()),
        },
    })
}

/// The mixture of a `model.json`, and its columns.
fn load_model(run: &ModelUse<'_>) -> Result<(Gmm, GmmParameters, Vec<String>)> {
    let init = init_of(run.model, &run.path())?;
    let columns = run.columns()?;
    let covariance = match run.model.get("covariance_kind").and_then(Value::as_str) {
        Some("known") => Covariance::Known(init.covariance.clone()),
        Some("tied") => Covariance::Tied,
        // Standardised columns have their own units: the variances differ in those of the data.
        Some("diagonal" | "spherical") => Covariance::Diagonal,
        Some("full") => Covariance::Full,
        _ => {
            return Err(
                run.broken("`covariance_kind` must be known, tied, diagonal, spherical or full")
            );
        }
    };
    let model = Gmm::new(GmmSettings::new(init.weights.len(), init.columns, covariance))?;
    let covariance = init.covariances_as(&model.settings().covariance)?;
    let theta = model.parameters(&init.weights, &init.means, &covariance)?;
    Ok((model, theta, columns))
}

/// The projection to principal components, if the mixture was fitted to them.
fn load_projection(run: &ModelUse<'_>, columns: usize) -> Result<Option<Preparation>> {
    let object = run.model;
    let Some(axes) = object.get("prepare").and_then(|prepare| prepare.get("axes")) else {
        return Ok(None);
    };
    let of = |name: &str| object.get("prepare")?.get(name).and_then(numbers);
    let rows: Option<Vec<Vec<f64>>> =
        axes.as_array().and_then(|rows| rows.iter().map(numbers).collect());
    let (Some(means), Some(scales), Some(axes)) = (of("means"), of("scales"), rows) else {
        return Err(run.broken("`prepare` must hold lists of numbers: means, scales and axes"));
    };
    let kept = (0..columns).collect();
    let map = Preparation::from_parts(kept, means, scales, Some(axes.concat()));
    let map = map.map_err(|e| run.broken(&format!("`prepare`: {e}")))?;
    Ok(Some(map))
}
