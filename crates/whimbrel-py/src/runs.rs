//! Jobs to run folders, and what is done with those.

use crate::background::{Voice, in_background};
use crate::errors::detached;
use crate::jobs::JobText;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyTuple};
use serde_json::Value;
use std::path::{Path, PathBuf};
use whimbrel::parts::core::Error;
use whimbrel::parts::core::method::Tensor;
use whimbrel::parts::engine::Ending;
use whimbrel::parts::families::Job;
use whimbrel::parts::families::failure::{Failure, Result};
use whimbrel::parts::families::family::{
    AdaptOptions, ImputeOptions, Imputed, ModelUse, Predicted, Predictions,
};
use whimbrel::parts::families::files::read_artifact;
use whimbrel::parts::report::html;
use whimbrel::parts::runs::{Existing, RunDir};
use whimbrel::run::{
    FinishedRun, Listener, Request, compare as compare_jobs, names, side_by_side, threads_of,
};

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

/// Runs a job as `whimbrel run` does; `hear(kind, value)` is told how it goes.
#[pyfunction]
#[pyo3(signature = (job, place, hear, threads=None, replay=None))]
pub fn run(
    py: Python<'_>,
    job: JobText,
    place: Place,
    hear: &Bound<'_, PyAny>,
    threads: Option<usize>,
    replay: Option<PathBuf>,
) -> PyResult<Ended> {
    in_background(py, hear, move |voice| {
        let request = Request {
            job: job.parse()?,
            out: place.out.as_deref(),
            existing: place.existing()?,
            replay: replay.as_deref(),
        };
        let Some(done) = on_threads(threads, || request.carry_out(voice))? else {
            return Err(interrupted("a search"));
        };
        ended(done.dir.path(), &done.done.ending, &done.job, voice)
    })
}

/// Runs jobs of different names into one folder; returns it, and each run's by name.
#[pyfunction]
#[pyo3(signature = (jobs, place, hear, threads=None))]
pub fn compare(
    py: Python<'_>,
    jobs: Vec<JobText>,
    place: Place,
    hear: &Bound<'_, PyAny>,
    threads: Option<usize>,
) -> PyResult<(PathBuf, Vec<(String, PathBuf)>)> {
    in_background(py, hear, move |voice| {
        let jobs = jobs.iter().map(JobText::parse).collect::<Result<Vec<_>>>()?;
        let names: Vec<String> = jobs.iter().map(|job| job.name.clone()).collect();
        let replaces = place.existing()? == Existing::Replace;
        let work = || compare_jobs(jobs, place.out.as_deref(), replaces, voice);
        let Some(done) = on_threads(threads, work)? else {
            return Err(interrupted("a comparison"));
        };
        let folder = done.dir.path();
        let runs = names.into_iter().map(|name| (name.clone(), folder.join(name)));
        Ok((folder.into(), runs.collect()))
    })
}

/// Works on this number of threads; without one, on those of the process.
fn on_threads<T: Send>(
    threads: Option<usize>,
    work: impl FnOnce() -> Result<T> + Send,
) -> Result<T> {
    let Some(threads) = threads else { return work() };
    let pool = threads_of(threads)?.build();
    pool.map_err(|e| Failure::config(format!("{threads} threads: {e}")))?.install(work)
}

fn interrupted(what: &str) -> Failure {
    Error::config(format!("interrupted in {what}, which starts anew")).into()
}

/// The page of a run, or of several side by side.
#[pyfunction]
pub fn report(py: Python<'_>, folders: Vec<PathBuf>, hear: &Bound<'_, PyAny>) -> PyResult<String> {
    in_background(py, hear, move |voice| {
        let dirs = folders.iter().map(|folder| RunDir::existing(folder));
        let views = side_by_side(&dirs.collect::<Result<Vec<_>>>()?, voice)?;
        Ok(html(&names(&views), &views))
    })
}

/// A prediction for each row of a file: `(name, labels, bytes)` by column. Bytes are numbers of
/// eight bytes, or of four; with labels, they are indices of eight bytes into them.
#[pyfunction]
#[pyo3(signature = (folder, data, hear, client=None, libsvm=false))]
pub fn predict<'py>(
    py: Python<'py>,
    folder: PathBuf,
    data: PathBuf,
    hear: &Bound<'_, PyAny>,
    client: Option<String>,
    libsvm: bool,
) -> PyResult<Vec<Bound<'py, PyTuple>>> {
    let found: Predicted = in_background(py, hear, move |voice| {
        let run = FinishedRun::read(&folder, voice)?;
        let own = run.own(client.as_deref())?;
        run.job.fit.predict(&ModelUse { own: own.as_ref(), libsvm, ..run.model() }, &data.into())
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
#[pyo3(signature = (folder, hear, data=None, client=None, wide=false, draws=0))]
pub fn impute(
    py: Python<'_>,
    folder: PathBuf,
    hear: &Bound<'_, PyAny>,
    data: Option<PathBuf>,
    client: Option<String>,
    wide: bool,
    draws: u32,
) -> PyResult<(String, String)> {
    in_background(py, hear, move |voice| {
        let run = FinishedRun::read(&folder, voice)?;
        let options =
            ImputeOptions { data: data.as_deref(), client: client.as_deref(), wide, draws };
        let mut table = Vec::new();
        let found = run.job.fit.impute(&run.model(), &options, &mut table)?;
        let text = String::from_utf8(table).map_err(|e| Error::internal(e.to_string()))?;
        Ok((text, told(found, voice)))
    })
}

/// Fits what is a new client's own into an empty folder; figures as JSON.
#[pyfunction]
#[pyo3(signature = (folder, data, out, hear, draws=0))]
pub fn adapt(
    py: Python<'_>,
    folder: PathBuf,
    data: PathBuf,
    out: PathBuf,
    hear: &Bound<'_, PyAny>,
    draws: u32,
) -> PyResult<String> {
    in_background(py, hear, move |voice| {
        let run = FinishedRun::read(&folder, voice)?;
        let options = AdaptOptions { data: &data, labels: None, draws, out: &out };
        Ok(told(run.adapt(&options)?, voice))
    })
}

/// Passes on what is to be said of a table, and returns figures about it as JSON.
fn told(found: Imputed, voice: &Voice) -> String {
    found.warnings.iter().for_each(|text| voice.warning(text));
    found.notes.iter().for_each(|text| voice.note(text));
    Value::Object(found.figures).to_string()
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
        .join(whimbrel::parts::engine::names::folder_name(client))
        .join("model.safetensors")
}
