//! A completed table from a run's files, and what was observed of it.

use super::Completed;
use crate::failure::{Failure, Result};
use crate::start::read_object;
use safetensors::SafeTensors;
use safetensors::tensor::Dtype;
use serde_json::{Map, Value};
use std::collections::HashMap;
use std::path::Path;
use whimbrel_core::method::{Artifact, Tensor};
use whimbrel_core::{Cell, Error};
use whimbrel_models::lowrank::{KIND, LowRankFit};

/// The model of a finished low-rank run.
#[derive(Clone, Debug)]
pub struct ModelFile {
    /// The table.
    pub table: Completed,
    /// Whether clients had effects of their own.
    pub personal: bool,
}

impl ModelFile {
    /// Reads `model/` of a run's folder.
    pub fn read(run: &Path) -> Result<Self> {
        let path = run.join("model/model.json");
        if !path.is_file() {
            let error = Error::config(format!("{} does not exist", path.display()))
                .hint("the run has no model: it is unfinished, or it failed");
            return Err(error.into());
        }
        let object = read_object(&path)?;
        let kind = object.get("kind").and_then(Value::as_str).unwrap_or_default();
        if kind != KIND {
            let error = Error::config(format!(
                "{} holds a model of kind `{kind}`, which has no table to complete",
                run.display()
            ))
            .hint("use a run of a job with kind = \"low-rank\" in [model]; other models predict");
            return Err(error.into());
        }
        let broken = |what: String| Failure::config(format!("{}: {what}", path.display()));
        let labels = |key: &str| names(&object, key).ok_or_else(|| broken(lacks(key)));
        let indices = |key: &str| -> Option<Vec<usize>> {
            object.get(key)?.as_array()?.iter().map(|i| i.as_u64().map(|i| i as usize)).collect()
        };
        let (rows, columns) = (labels("rows")?, labels("columns")?);
        let fit = LowRankFit::from_artifact(&artifact(run, kind)?)?;
        if rows.len() != fit.model.rows() || columns.len() != fit.model.columns() {
            return Err(broken("the labels and the factors do not fit each other".into()));
        }
        let bare_rows = indices("unobserved_rows").unwrap_or_default();
        let bare_columns = indices("unobserved_columns").unwrap_or_default();
        Ok(Self {
            table: Completed::new(fit, rows, columns, [&bare_rows, &bare_columns]),
            personal: object.get("personal").and_then(Value::as_bool).unwrap_or(false),
        })
    }
}

/// The tensors of a model, to the bit.
fn artifact(run: &Path, kind: &str) -> Result<Artifact> {
    let path = run.join("model/model.safetensors");
    let bytes = std::fs::read(&path).map_err(|e| Error::storage(path.display(), e))?;
    let broken = |what: String| Failure::config(format!("{}: {what}", path.display()));
    let file = SafeTensors::deserialize(&bytes).map_err(|e| broken(e.to_string()))?;
    let mut tensors = Vec::new();
    for (name, view) in file.tensors() {
        if view.dtype() != Dtype::F64 {
            return Err(broken(format!("`{name}` does not hold 64-bit floats")));
        }
        let values = view
            .data()
            .chunks_exact(8)
            .map(|b| f64::from_le_bytes(b.try_into().unwrap_or_default()));
        let shape = view.shape().iter().map(|n| *n as u64).collect();
        tensors.push(Tensor { name, shape, values: values.collect() });
    }
    Ok(Artifact { kind: kind.into(), tensors })
}

fn names(object: &Map<String, Value>, key: &str) -> Option<Vec<String>> {
    object.get(key)?.as_array()?.iter().map(|name| name.as_str().map(String::from)).collect()
}

fn lacks(key: &str) -> String {
    format!("`{key}` is missing")
}

/// What was observed of a table: the mean where a cell was observed several times.
#[derive(Clone, Debug, Default)]
pub struct Observations {
    cells: HashMap<(u32, u32), (f64, u32)>,
}

impl Observations {
    /// Of these cells.
    pub fn new<'a>(cells: impl IntoIterator<Item = &'a Cell>) -> Self {
        let mut all = Self::default();
        for cell in cells {
            let entry = all.cells.entry((cell.row, cell.column)).or_default();
            entry.0 += cell.value;
            entry.1 += 1;
        }
        all
    }

    /// What was observed of a cell.
    pub fn value(&self, row: usize, column: usize) -> Option<f64> {
        let (sum, count) = self.cells.get(&(row as u32, column as u32))?;
        Some(sum / f64::from(*count))
    }

    /// How many cells of the table were observed.
    pub fn len(&self) -> usize {
        self.cells.len()
    }

    /// Whether none was.
    pub fn is_empty(&self) -> bool {
        self.cells.is_empty()
    }
}
