//! Jobs before they run: what they say, cost and read.

use crate::background::in_background;
use crate::errors::detached;
use pyo3::prelude::*;
use std::path::{Path, PathBuf};
use whimbrel::parts::families::Job;
use whimbrel::parts::families::failure::Result;
use whimbrel::run::{Checked, Ready, draft, inspect_file, inspect_job, parse_job};

/// A job as Python hands it over: text, the name that messages give it, the folder of its paths.
#[derive(FromPyObject)]
pub struct JobText {
    /// TOML.
    #[pyo3(item)]
    pub text: String,
    /// What messages call it.
    #[pyo3(item)]
    pub name: String,
    /// What its paths are relative to.
    #[pyo3(item)]
    pub folder: PathBuf,
}

impl JobText {
    /// The job.
    pub fn parse(&self) -> Result<Job> {
        parse_job(&self.text, &self.name, &self.folder)
    }
}

/// Checks a job against its data; returns its resolved text.
#[pyfunction]
pub fn check(py: Python<'_>, job: JobText) -> PyResult<String> {
    detached(py, || Ok(Ready::new(job.parse()?)?.job.to_toml()))
}

/// What a job costs, from some trial rounds, as JSON.
#[pyfunction]
pub fn estimate(py: Python<'_>, job: JobText, hear: &Bound<'_, PyAny>) -> PyResult<String> {
    in_background(py, hear, move |voice| {
        Ok(Checked::of(&job.parse()?, voice)?.figures().to_string())
    })
}

/// A commented job for a data file, or for the generator.
#[pyfunction]
#[pyo3(signature = (data=None))]
pub fn new(py: Python<'_>, data: Option<PathBuf>) -> PyResult<String> {
    detached(py, || draft(data.as_deref().map(Path::new), None))
}

/// What a data file holds, as JSON.
#[pyfunction]
#[pyo3(signature = (file, client=None))]
pub fn inspect_data(py: Python<'_>, file: PathBuf, client: Option<String>) -> PyResult<String> {
    detached(py, || Ok(inspect_file(&file, client.as_deref())?.to_string()))
}

/// What each client of a job would hold, as JSON.
#[pyfunction]
pub fn inspect_clients(py: Python<'_>, job: JobText, hear: &Bound<'_, PyAny>) -> PyResult<String> {
    in_background(py, hear, move |voice| Ok(inspect_job(&job.parse()?, voice)?.to_string()))
}
