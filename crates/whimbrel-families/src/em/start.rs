//! The files of a start: `init.json` and first memories.

use crate::failure::{Failure, Result};
use crate::files::{file_error, parse, read_object};
use serde_json::{Map, Value};
use std::path::Path;
use whimbrel_core::Error;
use whimbrel_models::gmm::Covariance;

/// A mixture in a file, written by a person or an earlier run.
#[derive(Clone, Debug, PartialEq)]
pub struct InitFile {
    pub weights: Vec<f64>,
    /// The means, component after component.
    pub means: Vec<f64>,
    /// `covariance`: one matrix shared by all components, row-major; empty if absent.
    pub covariance: Vec<f64>,
    /// `covariances`: one matrix or (diagonal) one row of variances per component; empty if absent.
    pub covariances: Vec<f64>,
    /// Numbers per mean.
    pub columns: usize,
}

impl InitFile {
    /// The covariances in the form of this kind of mixture; a shared matrix is repeated if needed.
    pub fn covariances_as(&self, kind: &Covariance) -> Result<Vec<f64>, Error> {
        let (k, d) = (self.weights.len(), self.columns);
        if !self.covariance.is_empty() && !self.covariances.is_empty() {
            let what = "`covariance` and `covariances` are both given";
            return Err(
                Error::config(what).hint("`covariance` is one matrix shared by all components")
            );
        }
        let shared = &self.covariance;
        match kind {
            _ if shared.is_empty() && self.covariances.is_empty() => {
                Err(Error::config("`covariance` is missing"))
            }
            Covariance::Known(_) | Covariance::Tied if shared.is_empty() => {
                let what = "`covariances` has one per component, but the mixture shares one";
                Err(Error::config(what).hint("name the shared matrix `covariance`"))
            }
            Covariance::Known(_) | Covariance::Tied => Ok(shared.clone()),
            _ if shared.is_empty() => Ok(self.covariances.clone()),
            Covariance::Full => Ok(shared.repeat(k)),
            Covariance::Diagonal | Covariance::Spherical => {
                let off_diagonal = |(at, value): (usize, &f64)| at % (d + 1) != 0 && *value != 0.0;
                if shared.len() != d * d || shared.iter().enumerate().any(off_diagonal) {
                    let what = "`covariance` must be a diagonal matrix for this mixture";
                    let hint = "`covariances` takes one list of variances for each component";
                    return Err(Error::config(what).hint(hint));
                }
                Ok((0..d).map(|j| shared[j * (d + 1)]).collect::<Vec<f64>>().repeat(k))
            }
        }
    }
}

/// Reads `{"weights": [..], "means": [[..]], "covariance": [[..]]}` (or `covariances`), the form of
/// a run's `model.json`.
pub fn read_init(path: &Path) -> Result<InitFile> {
    init_of(&read_object(path)?, path)
}

/// Reads the mixture from a JSON object; `path` names it in messages.
pub(super) fn init_of(object: &Map<String, Value>, path: &Path) -> Result<InitFile> {
    let fail = |what: String| Failure::from(file_error(path, what));
    let weights = numbers(object.get("weights").ok_or_else(|| fail(missing("weights")))?)
        .ok_or_else(|| fail("`weights` must be a list of finite numbers".into()))?;
    let means = object.get("means").ok_or_else(|| fail(missing("means")))?;
    let rows: Option<Vec<Vec<f64>>> =
        means.as_array().and_then(|rows| rows.iter().map(numbers).collect());
    let rows =
        rows.ok_or_else(|| fail("`means` must be a list of lists of finite numbers".into()))?;
    let columns = rows.first().map_or(0, Vec::len);
    if columns == 0 || rows.iter().any(|row| row.len() != columns) {
        return Err(fail("`means` must hold lists of one length, at least 1".into()));
    }
    if rows.len() != weights.len() {
        return Err(fail(format!("{} weights but {} means", weights.len(), rows.len())));
    }
    let of = |key: &str| match object.get(key) {
        None => Ok(Vec::new()),
        Some(value) => matrices(value, columns).map_err(|what| fail(what.replace(KEY, key))),
    };
    let (covariance, covariances) = (of("covariance")?, of("covariances")?);
    if !covariance.is_empty() && covariance.len() != columns * columns {
        let what = format!("`covariance` must be one matrix of {columns} x {columns} numbers");
        return Err(file_error(path, what)
            .hint("`covariances` takes one for each component")
            .into());
    }
    Ok(InitFile { weights, means: rows.concat(), covariance, covariances, columns })
}

/// Reads a first memory: a JSON list of `length` numbers, the length of the statistic.
pub fn read_memory(path: &Path, length: usize) -> Result<Vec<f64>> {
    let value: Value = parse(path)?;
    let memory = numbers(&value).ok_or_else(|| {
        file_error(path, "a first memory is a JSON list of finite numbers".into())
    })?;
    if memory.len() != length {
        let what = format!("the file has {} numbers, the statistic {length}", memory.len());
        return Err(file_error(path, what).into());
    }
    Ok(memory)
}

fn missing(key: &str) -> String {
    format!("`{key}` is missing")
}

fn numbers(value: &Value) -> Option<Vec<f64>> {
    value.as_array()?.iter().map(|v| v.as_f64().filter(|x| x.is_finite())).collect()
}

/// Placeholder for the name of a key.
const KEY: &str = "{key}";

/// Flattens a matrix, or the matrices or rows of variances of all components, last index fastest.
fn matrices(value: &Value, columns: usize) -> Result<Vec<f64>, String> {
    fn level(value: &Value, columns: usize, flat: &mut Vec<f64>) -> Result<(), String> {
        let items = value.as_array().ok_or_else(wrong_form)?;
        if items.iter().any(Value::is_array) {
            return items.iter().try_for_each(|item| level(item, columns, flat));
        }
        let row = numbers(value).ok_or_else(wrong_form)?;
        if row.len() != columns {
            return Err(format!(
                "a row of `{KEY}` has {} numbers, a mean has {columns}",
                row.len()
            ));
        }
        flat.extend(row);
        Ok(())
    }
    if !value.as_array().is_some_and(|rows| rows.iter().all(Value::is_array)) {
        return Err(wrong_form());
    }
    let mut flat = Vec::new();
    level(value, columns, &mut flat)?;
    Ok(flat)
}

fn wrong_form() -> String {
    format!("`{KEY}` must be a list of lists of finite numbers, or a list of such matrices")
}
