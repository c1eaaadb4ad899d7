//! Small files of jobs and runs: JSON and safetensors.

use crate::failure::Result;
use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView, serialize};
use serde_json::{Map, Value, json};
use std::collections::HashMap;
use std::path::Path;
use whimbrel_core::method::{Artifact, Tensor};
use whimbrel_core::{Error, Wire};

/// Reads a JSON object from a file.
pub fn read_object(path: &Path) -> Result<Map<String, Value>> {
    match parse(path)? {
        Value::Object(object) => Ok(object),
        _ => Err(file_error(path, "a JSON object is expected".into()).into()),
    }
}

pub(crate) fn parse(path: &Path) -> Result<Value> {
    let text = std::fs::read_to_string(path).map_err(|e| Error::read(path.display(), &e))?;
    serde_json::from_str(&text).map_err(|e| file_error(path, format!("not JSON: {e}")).into())
}

pub(crate) fn file_error(path: &Path, what: String) -> Error {
    Error::config(format!("{}: {what}", path.display()))
}

/// JSON with one key per line and lists on one line.
pub fn pretty(value: &Value) -> String {
    let Value::Object(object) = value else { return format!("{value}\n") };
    let lines: Vec<String> = object.iter().map(|(k, v)| format!("  {}: {v}", json!(k))).collect();
    format!("{{\n{}\n}}\n", lines.join(",\n"))
}

/// Significant digits of predictions.
pub(crate) const DIGITS: usize = 7;

/// A number with at most `digits` significant digits, in its shortest form.
pub(crate) fn figure(value: f64, digits: usize) -> String {
    let rounded = format!("{value:.*e}", digits.saturating_sub(1)).parse().unwrap_or(value);
    if rounded == 0.0 || (1e-4..1e7).contains(&f64::abs(rounded)) {
        return rounded.to_string();
    }
    format!("{rounded:e}")
}

/// A p-value for a table.
pub(crate) fn p_value(p: f64) -> String {
    if p < 1e-4 { "<0.0001".into() } else { format!("{p:.4}") }
}

/// Labels by index, at most `most` of them, for a message.
pub(crate) fn named(places: &[usize], labels: &[String], most: usize) -> String {
    let some = places.iter().take(most).map(|at| format!("{:?}", labels[*at]));
    let more = if places.len() > most { ", ..." } else { "" };
    some.collect::<Vec<_>>().join(", ") + more
}

/// A CSV cell, quoted if necessary.
pub fn quoted(cell: &str) -> String {
    let is_cut = cell.starts_with(' ') || cell.ends_with(' ');
    if is_cut || cell.contains([',', '"', '\n', '\r', ';', '\t']) {
        format!("\"{}\"", cell.replace('"', "\"\""))
    } else {
        cell.into()
    }
}

/// The metadata key of an artifact's kind.
const KIND: &str = "kind";

/// An artifact as a `.safetensors` file; every tensor keeps its precision.
pub fn artifact_bytes(artifact: &Artifact) -> Result<Vec<u8>> {
    fn bytes<T: Wire>(tensor: &Tensor<T>) -> Vec<u8> {
        let mut bytes = Vec::new();
        T::put_all(&tensor.values, &mut bytes);
        bytes
    }
    let wide = artifact.tensors.iter().map(|t| (&t.name, &t.shape, Dtype::F64, bytes(t)));
    let narrow = artifact.narrow.iter().map(|t| (&t.name, &t.shape, Dtype::F32, bytes(t)));
    let all: Vec<_> = wide.chain(narrow).collect();
    let broken = |e| Error::internal(format!("the model cannot be written: {e}"));
    let mut views = Vec::new();
    for (name, shape, dtype, bytes) in &all {
        let shape = shape.iter().map(|n| *n as usize).collect();
        views.push((name, TensorView::new(*dtype, shape, bytes).map_err(broken)?));
    }
    let kind = HashMap::from([(KIND.to_owned(), artifact.kind.clone())]);
    Ok(serialize(views, Some(kind)).map_err(broken)?)
}

/// Reads an artifact from a `.safetensors` file.
pub fn read_artifact(path: &Path) -> Result<Artifact> {
    let bytes = std::fs::read(path).map_err(|e| Error::read(path.display(), &e))?;
    Ok(artifact_from(&bytes).map_err(|what| file_error(path, what))?)
}

fn artifact_from(bytes: &[u8]) -> std::result::Result<Artifact, String> {
    let file = SafeTensors::deserialize(bytes).map_err(|e| e.to_string())?;
    let (_, header) = SafeTensors::read_metadata(bytes).map_err(|e| e.to_string())?;
    let kind = header.metadata().as_ref().and_then(|keys| keys.get(KIND)).cloned();
    let mut artifact = Artifact::new(kind.unwrap_or_default());
    for (name, view) in file.tensors() {
        let shape = view.shape().iter().map(|n| *n as u64).collect();
        match view.dtype() {
            Dtype::F64 => {
                let (each, _) = view.data().as_chunks::<8>();
                let values = each.iter().map(|b| f64::from_le_bytes(*b)).collect();
                artifact.tensors.push(Tensor { name, shape, values });
            }
            Dtype::F32 => {
                let (each, _) = view.data().as_chunks::<4>();
                let values = each.iter().map(|b| f32::from_le_bytes(*b)).collect();
                artifact.narrow.push(Tensor { name, shape, values });
            }
            _ => return Err(format!("`{name}` holds neither 64-bit nor 32-bit floats")),
        }
    }
    Ok(artifact)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_artifact_comes_back_at_its_widths() {
        let model = Artifact::new("both").with("wide", &[2], vec![0.1, -2.0]).with_f32(
            "narrow",
            &[3, 1],
            vec![0.1, 1.5, -0.0],
        );
        let bytes = artifact_bytes(&model).unwrap();
        assert_eq!(artifact_from(&bytes).unwrap(), model);
        let file = SafeTensors::deserialize(&bytes).unwrap();
        assert_eq!(file.tensor("narrow").unwrap().data().len(), 12);
        assert!(artifact_from(&bytes[..bytes.len() - 1]).is_err());
    }
}
