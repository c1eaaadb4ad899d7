//! Jobs to run folders, and what is done with those.

use crate::attend::{Voice, attend};
use crate::errors::detached;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyTuple};
use serde_json::Value;
use std::path::{Path, PathBuf};
use whimbrel::core::Error;
use whimbrel::core::method::Tensor;
use whimbrel::engine::Ending;
use whimbrel::engine::checkpoint::write_atomically;
use whimbrel::families::Job;
use whimbrel::families::failure::{Failure, Result};
use whimbrel::families::family::{AdaptOptions, ImputeOptions, ModelUse, Predicted, Predictions};
use whimbrel::families::files::read_artifact;
use whimbrel::job_run::{FinishedRun, Listener, Ready, load_view, names, parse_job, settle};
use whimbrel::report::html;
use whimbrel::runs::{Existing, RunDir};

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

/// Where a run goes.
#[derive(FromPyObject)]
pub struct Place {
    /// The folder; without one, a new one in `runs`.
    #[pyo3(item)]
    pub out: Option<PathBuf>,
    /// What to do with a run that is there: `refuse`, `resume` or `replace`.
    #[pyo3(item)]
    pub existing: String,
}

/// A run's folder, how it ended in a word, and why.
pub type Ended = (PathBuf, &'static str, String);

impl Place {
    /// Opens the folder.
    pub fn open(&self, name: &str) -> Result<RunDir> {
        RunDir::open(self.out.as_deref(), name, self.existing()?)
    }

    fn existing(&self) -> Result<Existing> {
        match self.existing.as_str() {
            "refuse" => Ok(Existing::Refuse),
            "resume" => Ok(Existing::Resume),
            "replace" => Ok(Existing::Replace),
            other => Err(Failure::config(format!("`existing` is {other:?}"))),
        }
    }
}

/// How a run ended, in words for Python; a degenerate fit is a warning where the job allows it.
pub fn ended(folder: &Path, ending: &Ending, job: &Job, voice: &Voice) -> Result<Ended> {
    let (word, why) = match ending {
        Ending::Degenerate(why) if job.fit.allows_degenerate() => {
            voice.warning(&format!("the fit is degenerate: {why}"));
            ("finished", String::new())
        }
        Ending::Finished => ("finished", String::new()),
        Ending::Early(why) => ("early", why.clone()),
        Ending::Degenerate(why) => ("degenerate", why.clone()),
        Ending::Interrupted => ("interrupted", String::new()),
        Ending::Failed(error) => return Err(error.clone().into()),
    };
    Ok((folder.into(), word, why))
}

/// Checks a job against its data; returns its resolved text.
#[pyfunction]
pub fn check(py: Python<'_>, job: JobText) -> PyResult<String> {
    detached(py, || {
        let ready = Ready::new(parse_job(&job.text, &job.name, &job.folder)?)?;
        Ok(ready.job.to_toml())
    })
}

/// Runs a job as `whimbrel run` does; `hear(kind, value)` is told how it goes.
#[pyfunction]
pub fn run(py: Python<'_>, job: JobText, place: Place, hear: &Bound<'_, PyAny>) -> PyResult<Ended> {
    attend(py, hear, move |voice| carry_out(&job, &place, voice))
}

fn carry_out(job: &JobText, place: &Place, voice: &Voice) -> Result<Ended> {
    let job = parse_job(&job.text, &job.name, &job.folder)?;
    let resume = place.existing()? == Existing::Resume;
    let Some(job) = settle(job, place.out.as_deref(), resume, voice)? else {
        return Err(Error::config("interrupted in a search, which starts anew").into());
    };
    let mut ready = Ready::new(job)?;
    let dir = place.open(&ready.job.name)?;
    if let Some(ending) = dir.ending().filter(|_| resume) {
        let what = format!("the run in {} is over: {ending}", dir.path().display());
        return Err(Error::config(what).hint("existing = \"replace\" runs it again").into());
    }
    ready.say("", voice);
    let done = ready.execute(&dir, resume, voice)?;
    let page = html(&ready.job.name, &done.views);
    write_atomically(&dir.path().join("report.html"), page.as_bytes())?;
    ended(dir.path(), &done.ending, &ready.job, voice)
}

/// The page of a run, or of several side by side.
#[pyfunction]
pub fn report(py: Python<'_>, folders: Vec<PathBuf>) -> PyResult<String> {
    detached(py, || {
        let mut views = Vec::new();
        for folder in &folders {
            let dir = RunDir::existing(folder)?;
            match &dir.seeds()[..] {
                [] => views.push(load_view(&dir)?),
                seeds => views.extend(seeds.iter().map(load_view).collect::<Result<Vec<_>>>()?),
            }
        }
        Ok(html(&names(&views), &views))
    })
}

/// A prediction for each row of a file: `(name, labels, bytes)` by column. Bytes are numbers of
/// eight bytes, or of four; with labels, they are indices of eight bytes into them.
#[pyfunction]
#[pyo3(signature = (folder, data, client=None))]
pub fn predict<'py>(
    py: Python<'py>,
    folder: PathBuf,
    data: PathBuf,
    client: Option<String>,
) -> PyResult<Vec<Bound<'py, PyTuple>>> {
    let found: Predicted = detached(py, || {
        let run = FinishedRun::read(&folder)?;
        let own = client.as_deref().map(|name| run.own(name)).transpose()?;
        run.job.fit.predict(&ModelUse { own: own.as_ref(), ..run.model() }, &data)
    })?;
    let column = |(name, values): (String, Predictions)| match values {
        Predictions::Labels { of, names } => {
            let of: Vec<u8> = of.iter().flat_map(|i| (*i as u64).to_le_bytes()).collect();
            (name, "u8", Some(names), PyByteArray::new(py, &of)).into_pyobject(py)
        }
        Predictions::Wide(values) => {
            (name, "f8", None::<Vec<String>>, bytes(py, &values, |x| x.to_le_bytes())?)
                .into_pyobject(py)
        }
        Predictions::Narrow(values) => {
            (name, "f4", None::<Vec<String>>, bytes(py, &values, |x| x.to_le_bytes())?)
                .into_pyobject(py)
        }
    };
    found.columns.into_iter().map(column).collect()
}

/// Numbers as the bytes of an array that can be written to.
fn bytes<'py, T, const N: usize>(
    py: Python<'py>,
    values: &[T],
    each: impl Fn(&T) -> [u8; N],
) -> PyResult<Bound<'py, PyByteArray>> {
    PyByteArray::new_with(py, values.len() * N, |out| {
        out.chunks_exact_mut(N).zip(values).for_each(|(to, x)| to.copy_from_slice(&each(x)));
        Ok(())
    })
}

/// The completed table of a low-rank run as CSV, and figures about it as JSON.
#[pyfunction]
#[pyo3(signature = (folder, data=None, client=None, wide=false, draws=0))]
pub fn impute(
    py: Python<'_>,
    folder: PathBuf,
    data: Option<PathBuf>,
    client: Option<String>,
    wide: bool,
    draws: u32,
) -> PyResult<(String, String)> {
    detached(py, || {
        let run = FinishedRun::read(&folder)?;
        let options =
            ImputeOptions { data: data.as_deref(), client: client.as_deref(), wide, draws };
        let mut table = Vec::new();
        let found = run.job.fit.impute(&run.model(), &options, &mut table)?;
        let text = String::from_utf8(table).map_err(|e| Error::internal(e.to_string()))?;
        Ok((text, Value::Object(found.figures).to_string()))
    })
}

/// Fits what is a new client's own into an empty folder; figures as JSON.
#[pyfunction]
#[pyo3(signature = (folder, data, out, draws=0))]
pub fn adapt(
    py: Python<'_>,
    folder: PathBuf,
    data: PathBuf,
    out: PathBuf,
    draws: u32,
) -> PyResult<String> {
    detached(py, || {
        let run = FinishedRun::read(&folder)?;
        let options = AdaptOptions { data: &data, draws, out: &out };
        let found = run.adapt(&options)?;
        Ok(Value::Object(found.figures).to_string())
    })
}

/// The tensors of a `.safetensors` file: `(name, type, shape, bytes)` each.
#[pyfunction]
pub fn tensors<'py>(py: Python<'py>, path: PathBuf) -> PyResult<Vec<Bound<'py, PyTuple>>> {
    fn shape<T>(tensor: &Tensor<T>) -> Vec<u64> {
        tensor.shape.clone()
    }
    if !path.is_file() {
        return Err(PyValueError::new_err(format!("{} does not exist", path.display())));
    }
    let found = detached(py, || read_artifact(&path))?;
    let wide = found.tensors.iter().map(|t| {
        let values = bytes(py, &t.values, |x| x.to_le_bytes())?;
        (t.name.clone(), "f8", shape(t), values).into_pyobject(py)
    });
    let narrow = found.narrow.iter().map(|t| {
        let values = bytes(py, &t.values, |x| x.to_le_bytes())?;
        (t.name.clone(), "f4", shape(t), values).into_pyobject(py)
    });
    wide.chain(narrow).collect()
}

/// The file of what a client of a run has of its own.
#[pyfunction]
pub fn own_names(folder: PathBuf, client: &str) -> PathBuf {
    folder
        .join("clients")
        .join(whimbrel::engine::names::folder_name(client))
        .join("model.safetensors")
}
