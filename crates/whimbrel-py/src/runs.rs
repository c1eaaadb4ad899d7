//! Runs of jobs, and the use of run folders.

use crate::background::{Reporter, in_background};
use crate::errors::detached;
use crate::jobs::JobText;
use crate::learner::on_device;
use crate::rows::Source;
use pyo3::exceptions::{PyKeyboardInterrupt, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyTuple};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use whimbrel::parts::core::Error;
use whimbrel::parts::core::method::Tensor;
use whimbrel::parts::engine::Ending;
use whimbrel::parts::families::Job;
use whimbrel::parts::families::failure::{Failure, Result};
use whimbrel::parts::families::family::{
    AdaptOptions, ImputeOptions, Imputed, ModelUse, Predicted, Predictions,
};
use whimbrel::parts::families::files::read_artifact;
use whimbrel::parts::families::personal::own_learner::with_networks;
use whimbrel::parts::report::html;
use whimbrel::parts::runs::{Existing, RunDir};
use whimbrel::run::{
    FinishedRun, Listener, Request, compare as compare_jobs, names, side_by_side, threads_of,
    tracking,
};

/// The destination of a run.
#[derive(FromPyObject)]
pub struct Place {
    /// The folder; `None`: a new one in `runs`.
    #[pyo3(item)]
    pub out: Option<PathBuf>,
    /// The treatment of an existing run: `refuse`, `resume` or `replace`.
    #[pyo3(item)]
    pub existing: String,
}

/// A run's folder, its ending in one word, and the reason.
pub type Ended = (PathBuf, &'static str, String);

impl Place {
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

/// The ending of a run for Python; a degenerate fit is a warning if the job allows it.
pub fn ended(folder: &Path, ending: &Ending, job: &Job, reporter: &Reporter) -> Result<Ended> {
    let (word, why) = match ending {
        Ending::Degenerate(why) if job.fit.allows_degenerate() => {
            reporter.warning(&format!("the fit is degenerate: {why}"));
            ("converged", String::new())
        }
        Ending::Interrupted => ("interrupted", String::new()),
        Ending::Failed(error) => return Err(error.clone().into()),
        other => (other.word(), other.detail()),
    };
    Ok((folder.into(), word, why))
}

/// Runs a job like `whimbrel run`; `listener(kind, value)` receives events, and `device` replaces the
/// built-in networks.
#[pyfunction]
#[pyo3(signature = (job, place, listener, threads=None, replay=None, device=None))]
pub fn run(
    py: Python<'_>,
    job: JobText,
    place: Place,
    listener: &Bound<'_, PyAny>,
    threads: Option<usize>,
    replay: Option<PathBuf>,
    device: Option<Py<PyAny>>,
) -> PyResult<Ended> {
    let place_of = Arc::new(OnceLock::new());
    let told = place_of.clone();
    let done = in_background(py, listener, move |reporter| {
        let request = Request {
            job: job.parse()?,
            out: place.out.as_deref(),
            existing: place.existing()?,
            replay: replay.as_deref(),
        };
        let work = || match device {
            Some(device) => with_networks(on_device(device), || request.carry_out(reporter)),
            None => request.carry_out(reporter),
        };
        let Some(done) = on_threads(threads, work)? else {
            return Err(interrupted("a search"));
        };
        let _ = told.set(done.dir.path().to_path_buf());
        ended(done.dir.path(), &done.done.ending, &done.job, reporter)
    });
    // The folder of an interrupted run, which can be resumed.
    done.inspect_err(|error| {
        if let Some(folder) = place_of.get()
            && error.is_instance_of::<PyKeyboardInterrupt>(py)
        {
            let _ = error.value(py).setattr("folder", folder);
        }
    })
}

/// Runs jobs with different names into one folder; returns the folder, and the runs' folders by name.
#[pyfunction]
#[pyo3(signature = (jobs, place, listener, threads=None))]
pub fn compare(
    py: Python<'_>,
    jobs: Vec<JobText>,
    place: Place,
    listener: &Bound<'_, PyAny>,
    threads: Option<usize>,
) -> PyResult<(PathBuf, Vec<(String, PathBuf)>)> {
    in_background(py, listener, move |reporter| {
        let jobs = jobs.iter().map(JobText::parse).collect::<Result<Vec<_>>>()?;
        let names: Vec<String> = jobs.iter().map(|job| job.name.clone()).collect();
        let replaces = place.existing()? == Existing::Replace;
        let work = || compare_jobs(jobs, None, place.out.as_deref(), replaces, reporter);
        let Some(done) = on_threads(threads, work)? else {
            return Err(interrupted("a comparison"));
        };
        let folder = done.dir.path();
        let runs = names.into_iter().map(|name| (name.clone(), folder.join(name)));
        Ok((folder.into(), runs.collect()))
    })
}

/// Runs `work` on this number of threads; `None`: on those of the process.
fn on_threads<T: Send>(
    threads: Option<usize>,
    work: impl FnOnce() -> Result<T> + Send,
) -> Result<T> {
    let Some(threads) = threads else { return work() };
    let pool = threads_of(threads)?.build();
    pool.map_err(|e| Failure::config(format!("{threads} threads: {e}")))?.install(work)
}

fn interrupted(what: &str) -> Failure {
    Error::config(format!("interrupted in {what}, which cannot be resumed")).into()
}

/// The report of a run, or of several side by side.
#[pyfunction]
pub fn report(
    py: Python<'_>,
    folders: Vec<PathBuf>,
    listener: &Bound<'_, PyAny>,
) -> PyResult<String> {
    in_background(py, listener, move |reporter| {
        let dirs = folders.iter().map(|folder| RunDir::existing(folder));
        let views = side_by_side(&dirs.collect::<Result<Vec<_>>>()?, reporter)?;
        Ok(html(&names(&views), &views))
    })
}

/// Writes a run's figures for trackers, and returns the paths.
#[pyfunction]
#[pyo3(signature = (folder, tensorboard=None, mlflow=None))]
pub fn export(
    py: Python<'_>,
    folder: PathBuf,
    tensorboard: Option<PathBuf>,
    mlflow: Option<PathBuf>,
) -> PyResult<Vec<PathBuf>> {
    detached(py, || {
        let run = RunDir::existing(&folder)?;
        let board = tensorboard.map(|to| tracking::tensorboard(&run, &to));
        let runs = mlflow.map(|to| tracking::mlflow(&run, &to));
        board.into_iter().chain(runs).collect()
    })
}

/// Predictions for each row: `(name, type, labels, bytes)` by column. With labels, the numbers are
/// indices into them.
#[pyfunction]
#[pyo3(signature = (folder, data, listener, client=None, libsvm=false))]
pub fn predict<'py>(
    py: Python<'py>,
    folder: PathBuf,
    data: Source,
    listener: &Bound<'_, PyAny>,
    client: Option<String>,
    libsvm: bool,
) -> PyResult<Vec<Bound<'py, PyTuple>>> {
    let found: Predicted = in_background(py, listener, move |reporter| {
        let run = FinishedRun::read(&folder, reporter)?;
        let own = run.own(client.as_deref())?;
        run.job.fit.predict(&ModelUse { own: own.as_ref(), libsvm, ..run.model() }, &data.input())
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

/// Whether models of this resolved job predict without a client's personal model.
#[pyfunction]
pub fn shared_predicts(py: Python<'_>, job: &str) -> PyResult<bool> {
    detached(py, || Ok(Job::parse(job, "job.toml")?.fit.shared_predicts()))
}

/// Numbers as the bytes of a writable array.
pub fn bytes<'py, T, const N: usize>(
    py: Python<'py>,
    values: &[T],
    each: impl Fn(&T) -> [u8; N],
) -> PyResult<Bound<'py, PyByteArray>> {
    PyByteArray::new_with(py, values.len() * N, |out| {
        out.chunks_exact_mut(N).zip(values).for_each(|(to, x)| to.copy_from_slice(&each(x)));
        Ok(())
    })
}

/// The trained learner of a client, or the shared one: its tensors as names and shapes, and its
/// parameter vectors with their weights.
#[pyfunction]
#[pyo3(signature = (folder, listener, client=None))]
pub fn learned<'py>(
    py: Python<'py>,
    folder: PathBuf,
    listener: &Bound<'_, PyAny>,
    client: Option<String>,
) -> PyResult<LearnedParts<'py>> {
    let found = in_background(py, listener, move |reporter| {
        let run = FinishedRun::read(&folder, reporter)?;
        let own = run.own(client.as_deref())?;
        run.job.fit.learned(&ModelUse { own: own.as_ref(), ..run.model() })
    })?;
    let models = found.models.iter();
    let models = models.map(|(weight, w)| Ok((*weight, bytes(py, w, |x| x.to_le_bytes())?)));
    Ok((found.tensors, models.collect::<PyResult<_>>()?))
}

type LearnedParts<'py> = (Vec<(String, Vec<usize>)>, Vec<(f64, Bound<'py, PyByteArray>)>);

/// The completed table of a low-rank run as CSV, and figures about it as JSON.
#[pyfunction]
#[pyo3(signature = (folder, listener, data=None, client=None, wide=false, draws=0))]
pub fn impute(
    py: Python<'_>,
    folder: PathBuf,
    listener: &Bound<'_, PyAny>,
    data: Option<Source>,
    client: Option<String>,
    wide: bool,
    draws: u32,
) -> PyResult<(String, String)> {
    in_background(py, listener, move |reporter| {
        let run = FinishedRun::read(&folder, reporter)?;
        let data = data.map(Source::input);
        let options = ImputeOptions { data: data.as_ref(), client: client.as_deref(), wide, draws };
        let mut table = Vec::new();
        let found = run.job.fit.impute(&run.model(), &options, &mut table)?;
        let text = String::from_utf8(table).map_err(|e| Error::internal(e.to_string()))?;
        Ok((text, told(found, reporter)))
    })
}

/// Fits a new client's personal model into an empty folder; returns figures as JSON.
#[pyfunction]
#[pyo3(signature = (folder, data, out, listener, draws=0))]
pub fn adapt(
    py: Python<'_>,
    folder: PathBuf,
    data: Source,
    out: PathBuf,
    listener: &Bound<'_, PyAny>,
    draws: u32,
) -> PyResult<String> {
    in_background(py, listener, move |reporter| {
        let run = FinishedRun::read(&folder, reporter)?;
        let options = AdaptOptions { data: &data.input(), labels: None, draws, out: &out };
        Ok(told(run.adapt(&options)?, reporter))
    })
}

/// Passes warnings and notes on, and returns the figures as JSON.
fn told(found: Imputed, reporter: &Reporter) -> String {
    found.warnings.iter().for_each(|text| reporter.warning(text));
    found.notes.iter().for_each(|text| reporter.note(text));
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

/// The file of a client's personal artifact.
#[pyfunction]
pub fn own_names(folder: PathBuf, client: &str) -> PathBuf {
    folder
        .join("clients")
        .join(whimbrel::parts::engine::names::folder_name(client))
        .join("model.safetensors")
}
