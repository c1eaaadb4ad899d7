//! Jobs before they run: checks, costs and data.

use crate::background::in_background;
use crate::errors::detached;
use crate::rows::Rows;
use pyo3::prelude::*;
use std::path::{Path, PathBuf};
use whimbrel::parts::families::Job;
use whimbrel::parts::families::failure::Result;
use whimbrel::parts::families::job::DataSource;
use whimbrel::run::{Checked, Ready, Wishes, draft, inspect_file, inspect_job, parse_job};

/// A job as Python passes it.
#[derive(FromPyObject)]
pub struct JobText {
    /// TOML.
    #[pyo3(item)]
    text: String,
    /// The job's name in messages.
    #[pyo3(item)]
    name: String,
    /// The folder to which the job's paths are relative.
    #[pyo3(item)]
    folder: PathBuf,
    /// Rows in memory, which replace the `path` of `[data]`.
    #[pyo3(item)]
    rows: Option<Rows>,
}

impl JobText {
    pub fn parse(&self) -> Result<Job> {
        let mut job = parse_job(&self.text, &self.name, &self.folder)?;
        if let (Some(rows), DataSource::Csv(csv)) = (&self.rows, &mut job.data.source) {
            csv.path = rows.input.clone();
        }
        Ok(job)
    }
}

/// Checks a job against its data; returns its resolved text.
#[pyfunction]
pub fn check(py: Python<'_>, job: JobText) -> PyResult<String> {
    detached(py, || Ok(Ready::new(job.parse()?)?.job.to_toml()))
}

/// The costs of a job, estimated from trial rounds, as JSON.
#[pyfunction]
pub fn estimate(py: Python<'_>, job: JobText, listener: &Bound<'_, PyAny>) -> PyResult<String> {
    in_background(py, listener, move |reporter| {
        Ok(Checked::of(&job.parse()?, reporter)?.figures().to_string())
    })
}

/// A commented job for a data file, or for the generator.
#[pyfunction]
#[pyo3(signature = (data=None))]
pub fn new(py: Python<'_>, data: Option<PathBuf>) -> PyResult<String> {
    detached(py, || {
        draft(data.as_deref().map(Path::new), None, Wishes::default()).map(|draft| draft.text)
    })
}

/// A summary of a data file, as JSON.
#[pyfunction]
#[pyo3(signature = (file, client=None))]
pub fn inspect_data(py: Python<'_>, file: PathBuf, client: Option<String>) -> PyResult<String> {
    detached(py, || Ok(inspect_file(&file, client.as_deref())?.to_string()))
}

/// The data of each client of a job, as JSON.
#[pyfunction]
pub fn inspect_clients(
    py: Python<'_>,
    job: JobText,
    listener: &Bound<'_, PyAny>,
) -> PyResult<String> {
    in_background(py, listener, move |reporter| {
        Ok(inspect_job(&job.parse()?, reporter)?.to_string())
    })
}
