//! A completed table from a run's files, and what was observed of it.

use super::Completed;
use crate::failure::{Failure, Result};
use crate::files::{read_artifact, read_object};
use serde_json::{Map, Value};
use std::collections::HashMap;
use std::path::Path;
use whimbrel_core::method::Artifact;
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
        let (rows, columns) = (labels("rows")?, labels("columns")?);
        let tensors = read_artifact(&run.join("model/model.safetensors"))?;
        let fit = LowRankFit::from_artifact(&Artifact { kind: kind.into(), ..tensors })?;
        if rows.len() != fit.model.rows() || columns.len() != fit.model.columns() {
            return Err(broken("the labels and the factors do not fit each other".into()));
        }
        let bare = |key: &str, n: usize| bare(&object, key, n).map_err(&broken);
        let bare_rows = bare("unobserved_rows", rows.len())?;
        let bare_columns = bare("unobserved_columns", columns.len())?;
        Ok(Self {
            table: Completed::new(fit, rows, columns, [&bare_rows, &bare_columns]),
            personal: object.get("personal").and_then(Value::as_bool).unwrap_or(false),
        })
    }
}

fn names(object: &Map<String, Value>, key: &str) -> Option<Vec<String>> {
    object.get(key)?.as_array()?.iter().map(|name| name.as_str().map(String::from)).collect()
}

/// The rows or columns, of so many, in which the fit had no cell; at least one had.
fn bare(
    object: &Map<String, Value>,
    key: &str,
    n: usize,
) -> std::result::Result<Vec<usize>, String> {
    let Some(listed) = object.get(key) else { return Ok(Vec::new()) };
    let index = |value: &Value| value.as_u64().map(|i| i as usize).filter(|i| *i < n);
    let listed: Option<Vec<usize>> =
        listed.as_array().and_then(|list| list.iter().map(index).collect());
    let mut listed = listed.ok_or_else(|| format!("`{key}` is not a list of numbers below {n}"))?;
    listed.sort_unstable();
    listed.dedup();
    match listed.len() < n {
        true => Ok(listed),
        false => Err(format!("`{key}` lists all {n}, and a fit has a cell at least")),
    }
}

fn lacks(key: &str) -> String {
    format!("`{key}` is missing")
}

/// What was observed of a table: the mean where a cell was observed several times.
#[derive(Clone, Debug, Default)]
pub struct Observations {
    cells: HashMap<(u32, u32), Seen>,
}

/// What was observed of one cell.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    sum: f64,
    count: u32,
    /// Whether the fit had one of them.
    in_fit: bool,
}

impl Observations {
    /// Of these cells, which the fit had or may have had.
    pub fn new<'a>(cells: impl IntoIterator<Item = &'a Cell>) -> Self {
        let mut all = Self::default();
        all.add(cells, true);
        all
    }

    /// These too, which were kept out of the fit.
    pub fn with_held_out<'a>(mut self, cells: impl IntoIterator<Item = &'a Cell>) -> Self {
        self.add(cells, false);
        self
    }

    fn add<'a>(&mut self, cells: impl IntoIterator<Item = &'a Cell>, in_fit: bool) {
        for cell in cells {
            let seen = self.cells.entry((cell.row, cell.column)).or_default();
            seen.sum += cell.value;
            seen.count += 1;
            seen.in_fit |= in_fit;
        }
    }

    /// What was observed of a cell.
    pub fn value(&self, row: usize, column: usize) -> Option<f64> {
        let seen = self.cells.get(&(row as u32, column as u32))?;
        Some(seen.sum / f64::from(seen.count))
    }

    /// Whether a cell was observed, and all that was observed of it was kept out of the fit.
    pub fn is_held_out(&self, row: usize, column: usize) -> bool {
        self.cells.get(&(row as u32, column as u32)).is_some_and(|seen| !seen.in_fit)
    }

    /// How many cells of the table were kept out of the fit.
    pub fn held_out(&self) -> usize {
        self.cells.values().filter(|seen| !seen.in_fit).count()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nobody_observed_is_in_the_table_and_not_all_of_it() {
        let found = |list: Value| {
            let object = serde_json::json!({ "unobserved_rows": list });
            bare(object.as_object().unwrap(), "unobserved_rows", 3)
        };
        assert_eq!(found(serde_json::json!([2, 0, 2])), Ok(vec![0, 2]));
        assert!(found(serde_json::json!([0, 1, 2])).unwrap_err().contains("lists all 3"));
        assert!(found(serde_json::json!([3])).unwrap_err().contains("below 3"));
        assert!(found(serde_json::json!("all")).unwrap_err().contains("not a list"));
        assert_eq!(bare(&Map::new(), "unobserved_rows", 3), Ok(Vec::new()));
    }
}
