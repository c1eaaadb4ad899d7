//! A finished run: metrics, model and personal artifacts.

use super::by_methods;
use super::progress::{Callback, Silent, Watch};
use super::rows::Rows;
use crate::run::{FinishedRun, Listener, page, view};
use serde_json::{Map, Value};
use std::any::Any;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use whimbrel_core::Error;
use whimbrel_core::method::Artifact;
use whimbrel_data::Input;
use whimbrel_engine::checkpoint::{MEASURES, measures_to_json};
use whimbrel_engine::{Ending, Limits, Outcome, run as run_chain};
use whimbrel_families::Job;
use whimbrel_families::failure::Result;
use whimbrel_families::family::{Ended, FittedClient, ModelUse, Predicted, RunData};
use whimbrel_families::files::{read_artifact, read_object};
use whimbrel_families::job::{Csv, DataSource};
use whimbrel_families::load::load;
use whimbrel_families::plan::{Minima, Plan};
use whimbrel_families::regression::RegressionFit;
use whimbrel_models::glm::Model;
use whimbrel_models::glm::inference::{Coefficient, Test};
use whimbrel_runs::{Existing, RunDir, described, model_keys, resolved};

/// A column of predicted numbers.
pub(super) fn numbers(found: &Predicted, name: &str, what: &str) -> Result<Vec<f64>> {
    not_empty(found, found.numbers(name), what, "`predict_all` has every predicted column")
}

/// The predicted labels.
pub(super) fn labels(found: &Predicted) -> Result<Vec<String>> {
    not_empty(found, found.labels(), "classes", "`predict` predicts numbers")
}

fn not_empty<T>(found: &Predicted, all: Vec<T>, what: &str, hint: &str) -> Result<Vec<T>> {
    if all.is_empty() && found.rows() > 0 {
        return Err(Error::config(format!("this model does not predict {what}")).hint(hint).into());
    }
    Ok(all)
}

/// A list of names in a JSON object.
fn names(object: &Map<String, Value>, key: &str) -> Vec<String> {
    let names = object.get(key).and_then(Value::as_array);
    names.into_iter().flatten().filter_map(|name| name.as_str().map(String::from)).collect()
}

/// The clients that trained, and those that were only evaluated.
fn by_role(clients: Vec<String>, summary: &Map<String, Value>) -> (Vec<String>, Vec<String>) {
    let unseen = names(summary, "unseen");
    clients.into_iter().partition(|name| !unseen.contains(name))
}

/// A finished run: its metrics, its model and the personal artifacts of its clients.
pub struct Run {
    job: Job,
    model: Artifact,
    /// The content of `model.json`: what prediction needs beside the tensors.
    keys: Map<String, Value>,
    summary: Map<String, Value>,
    history: Vec<Map<String, Value>>,
    own: BTreeMap<String, Artifact>,
    clients: Vec<String>,
    unseen: Vec<String>,
    place: Place,
}

enum Place {
    Memory(Box<Unsaved>),
    Folder(PathBuf),
}

/// Kept for [`Run::save`].
struct Unsaved {
    data: RunData,
    outcome: Outcome,
    plan: Plan,
    files: Vec<(String, String)>,
}

impl Run {
    /// Runs a job in memory; `minima` decides whether excess losses are known, and `words` adapts the verdict
    /// to the interface.
    pub(super) fn in_memory(
        job: Job,
        minima: Minima,
        words: fn(&str) -> String,
        watch: &mut Watch<'_>,
    ) -> Result<Self> {
        if job.seeds.is_some() || !job.method.search.is_empty() {
            let what = "a job with `seeds` or `search` makes several runs, which need a folder";
            let hint = "`Job::run_in` has one; an estimator is fitted once for each `seed`";
            return Err(Error::config(what).hint(hint).into());
        }
        let mut loaded = load(&job)?;
        let plan = Plan::with_minima(&job, &loaded, minima)?;
        let data = RunData::of(&loaded);
        let callback = Callback::new(watch);
        let stop = callback.interrupt();
        let limits = Limits { interrupt: &stop, ..Limits::default() };
        let mut watching = callback.observer(plan.rounds());
        watching.ends = Some(stop.clone());
        let clients = std::mem::take(&mut loaded.clients);
        let outcome = run_chain(&plan, clients, job.seed, &limits, &mut watching)?;
        let (history, own) = (watching.history, watching.own);
        let is_stopped = stop.load(Ordering::Relaxed);
        match &outcome.ending {
            Ending::Failed(error) => return Err(job.remedied(error.clone()).into()),
            Ending::Degenerate(why) if !is_stopped && !job.fit.allows_degenerate() => {
                let mut error = Error::numerical(format!("the fit is degenerate: {}", words(why)));
                if job.method.kind.keys.iter().any(|key| key.name == "allow_degenerate") {
                    let hint = "set(\"method.allow_degenerate\", true) returns it nevertheless";
                    error = error.hint(hint);
                }
                return Err(error.into());
            }
            _ => {}
        }
        let begun = !is_stopped || outcome.rounds_before + outcome.rounds > 0;
        let Some(model) = outcome.delivered.last().cloned().filter(|_| begun) else {
            let error = Error::config("the fit was interrupted before its first step");
            return Err(error.hint("the callback returned `Break` at round 0 of the fit").into());
        };
        let objective = outcome.objective();
        let of = |name: &str| own.get(name).cloned();
        let ended = Ended { job: &job, data: &data, outcome: &outcome, own: &of };
        let (mut summary, _) = described(&ended, objective, &plan);
        if let Some(Value::String(detail)) = summary.get_mut("ending_detail") {
            *detail = words(detail);
        }
        let (clients, unseen) = by_role(outcome.names.clone(), &summary);
        Ok(Self {
            keys: model_keys(&job, &data, &model, objective),
            summary,
            history,
            own,
            clients,
            unseen,
            model,
            job,
            place: Place::Memory(Box::new(Unsaved { data, outcome, plan, files: loaded.files })),
        })
    }

    /// Opens the folder of a finished run, written by [`save`](Self::save) or by `whimbrel run`.
    pub fn open(folder: impl AsRef<Path>) -> Result<Self> {
        let folder = folder.as_ref();
        let job = FinishedRun::read(folder, &Silent)?.job;
        let dir = RunDir::existing(folder)?;
        if dir.ending().is_none() {
            let what = format!("the run in {} is not finished", folder.display());
            return Err(Error::config(what).hint("`Job::resume` continues it").into());
        }
        let view = view::load(&dir, &Silent)?;
        let names: Vec<String> = view.clients.iter().map(|client| client.name.clone()).collect();
        let own = names.iter().filter_map(|name| Some((name.clone(), dir.client(name).ok()?)));
        let own = own.collect();
        let (clients, unseen) = by_role(names, &view.summary);
        Ok(Self {
            own,
            clients,
            unseen,
            model: read_artifact(&folder.join("model/model.safetensors"))?,
            keys: read_object(&folder.join("model/model.json"))?,
            summary: view.summary,
            history: view.rows,
            job,
            place: Place::Folder(folder.into()),
        })
    }

    /// Opens a folder whose run is of one of the families that `is_one` accepts.
    pub(super) fn open_of(folder: &Path, is_one: impl Fn(&dyn Any) -> bool) -> Result<Self> {
        let run = Self::open(folder)?;
        if is_one(&*run.job.fit as &dyn Any) {
            return Ok(run);
        }
        let (folder, method, model) = (folder.display(), run.job.method.name(), run.job.model);
        let what = format!("the run in {folder} is of another kind: {method} with model {model}");
        Err(Error::config(what).hint("`Run::open` opens every run").into())
    }

    /// Writes the folder that `whimbrel run` writes: job, metrics, model, personal models, report.
    pub fn save(&self, folder: impl AsRef<Path>) -> Result<()> {
        let Place::Memory(unsaved) = &self.place else {
            let error = Error::config("this run was read from a folder");
            return Err(error.hint("copy that folder").into());
        };
        let dir = RunDir::open(Some(folder.as_ref()), &self.job.name, Existing::Refuse);
        let dir = dir.map_err(by_methods)?;
        dir.record_job(&resolved(&self.job, &unsaved.files), false)?;
        let lines = self.history.iter().map(|row| format!("{}\n", Value::Object(row.clone())));
        dir.write("metrics.jsonl", lines.collect::<String>().as_bytes())?;
        dir.write(MEASURES, &measures_to_json(&unsaved.outcome.measures)?)?;
        self.own.iter().try_for_each(|(name, own)| dir.write_client(name, own))?;
        dir.finish(&self.job, &unsaved.data, &unsaved.outcome, &unsaved.plan)?;
        let views = [view::load(&dir, &Silent)?];
        page::write(&self.job.name, &views, &dir.path().join("report.html"))?;
        Ok(())
    }

    /// Writes the HTML report to a file.
    pub fn report(&self, file: impl AsRef<Path>) -> Result<()> {
        let file = file.as_ref();
        let folder = match &self.place {
            Place::Folder(folder) => folder.clone(),
            Place::Memory(_) => {
                let mut beside = file.as_os_str().to_owned();
                beside.push(".run");
                self.save(&beside)?;
                beside.into()
            }
        };
        let view = view::load(&RunDir::existing(&folder)?, &Silent);
        let written = view.and_then(|view| page::write(&self.job.name, &[view], file));
        if matches!(self.place, Place::Memory(_)) {
            std::fs::remove_dir_all(&folder).map_err(|e| Error::storage(folder.display(), e))?;
        }
        written.map(|_| ())
    }

    /// The fitted model: named tensors of doubles, those of learners in single precision (`narrow`).
    pub fn model(&self) -> &Artifact {
        &self.model
    }

    /// The job file of this run with every default written out.
    pub fn job_toml(&self) -> String {
        self.job.to_toml()
    }

    /// A figure of `summary.json` by its key: `objective`, `rounds`, `test_accuracy`, `aic`. `rows` counts
    /// the rows of the fit without those held out, and for a table its observed cells; regressions leave out
    /// rows with missing cells (`rows_used`). In the folder of several seeds, figures that differ between
    /// them have a mean in place of a number, and are `None`.
    pub fn figure(&self, key: &str) -> Option<f64> {
        self.summary.get(key).and_then(Value::as_f64)
    }

    /// The keys of the summary's figures.
    pub fn figures(&self) -> Vec<&str> {
        let numbers = self.summary.iter().filter(|(_, value)| value.is_number());
        numbers.map(|(key, _)| key.as_str()).collect()
    }

    /// A metric at each evaluation, with its round.
    pub fn history(&self, key: &str) -> Vec<(u32, f64)> {
        let number = |row: &Map<String, Value>, key: &str| row.get(key).and_then(Value::as_f64);
        let each = self.history.iter();
        each.filter_map(|row| Some((number(row, "round")? as u32, number(row, key)?))).collect()
    }

    /// The number of rounds of the fit.
    pub fn rounds(&self) -> u32 {
        self.figure("rounds").unwrap_or_default() as u32
    }

    /// Bits sent by clients, enrolment included.
    pub fn bits_up(&self) -> u64 {
        self.figure("bits_up").unwrap_or_default() as u64
    }

    /// Bits sent to clients.
    pub fn bits_down(&self) -> u64 {
        self.figure("bits_down").unwrap_or_default() as u64
    }

    /// The verdict: `converged`, `stopped` (by the budget, a rule or the caller), `degenerate` or
    /// `diverged`.
    pub fn ending(&self) -> &str {
        self.summary.get("ending").and_then(Value::as_str).unwrap_or_default()
    }

    /// The reason behind the verdict: the distance from convergence and the remedy.
    pub fn ending_detail(&self) -> &str {
        self.summary.get("ending_detail").and_then(Value::as_str).unwrap_or_default()
    }

    /// Remarks of the run that deserve attention.
    pub fn notes(&self) -> Vec<&str> {
        let notes = self.summary.get("notes").and_then(Value::as_array);
        notes.into_iter().flatten().filter_map(Value::as_str).collect()
    }

    /// The names of the clients that trained, by id.
    pub fn clients(&self) -> &[String] {
        &self.clients
    }

    /// The names of the clients that were only evaluated (`data.unseen`).
    pub fn unseen(&self) -> &[String] {
        &self.unseen
    }

    /// The values of a tensor of the model, last index fastest; empty for an unknown name.
    pub fn tensor(&self, name: &str) -> &[f64] {
        self.model.tensor(name).map_or(&[], |tensor| &tensor.values)
    }

    /// The table of coefficients of a regression by `newton`.
    pub(super) fn coefficients(&self) -> Result<Vec<Coefficient>> {
        let Some((fit, model)) = self.regression().transpose()? else {
            let error = Error::config("gradient methods give no standard errors");
            return Err(error.hint("fit with `newton`, the default method").into());
        };
        if self.tensor("covariance").is_empty() {
            return Err(Error::config("the fit was interrupted before its standard errors").into());
        }
        fit.coefficients(&model, &self.model)
    }

    /// Tests of each term of a regression by `newton`.
    pub(super) fn tests(&self) -> Result<Vec<Test>> {
        let found = self.regression().transpose()?;
        Ok(found.map_or_else(Vec::new, |(fit, model)| fit.tests(&model, &self.model)))
    }

    /// Slopes, and the first intercept, of a regression by `newton`.
    pub(super) fn estimates(&self) -> Option<Result<(Vec<f64>, f64)>> {
        let all = self.tensor("coefficients");
        let split = |model: Model| {
            let constants = model.intercepts();
            let count = model.parameters() - usize::from(model.family.has_alpha());
            let slopes = (0..count).filter(|at| !constants.contains(at));
            let first = constants.first().and_then(|at| all.get(*at)).copied();
            (slopes.filter_map(|at| all.get(at)).copied().collect(), first.unwrap_or_default())
        };
        self.regression().map(|found| found.map(|(_, model)| split(model)))
    }

    /// The classes of a regression by `newton`; 0 and 1 if its target is numeric.
    pub(super) fn classes(&self) -> Option<Result<Vec<String>>> {
        let names = |model: Model| match &model.design.classes[..] {
            [] => vec!["0".into(), "1".into()],
            classes => classes.to_vec(),
        };
        self.regression().map(|found| found.map(|(_, model)| names(model)))
    }

    /// A regression by `newton` with its model; `None` for other fits.
    fn regression(&self) -> Option<Result<(&RegressionFit, Model)>> {
        // tidy: allow(kinds): only regressions have coefficients with names
        let fit = self.job.fit_as::<RegressionFit>()?;
        let levels = self.keys.get("column_levels").cloned().unwrap_or_default();
        let levels: Vec<Vec<String>> = serde_json::from_value(levels).unwrap_or_default();
        let model = fit.model(&self.job, &self.names("columns"), &levels);
        Some(model.map(|model| (fit, model)))
    }

    /// Predictions for new rows, as named columns. Labels of components count from 1.
    pub fn predict(&self, rows: &Rows) -> Result<Predicted> {
        self.predict_with(None, rows)
    }

    /// Whether the fit read exactly these rows.
    pub(super) fn is_fit_to(&self, rows: &Input) -> Result<bool> {
        let fitted = self.summary.get("data_hash").and_then(Value::as_str);
        Ok(fitted == Some(rows.hash()?.as_str()))
    }

    /// Predictions for the rows of a file, also of one with columns of text.
    pub fn predict_file(&self, file: impl AsRef<Path>) -> Result<Predicted> {
        let rows = Input::from(file.as_ref());
        self.job.fit.predict(&self.model_use(None), &rows).map_err(by_methods)
    }

    /// A list of names in `model.json`.
    pub(super) fn names(&self, key: &str) -> Vec<String> {
        names(&self.keys, key)
    }

    /// A list of numbers in an object of `model.json`.
    pub(super) fn numbers(&self, object: &str, key: &str) -> Option<Vec<f64>> {
        let list = self.keys.get(object)?.get(key)?.as_array()?;
        list.iter().map(Value::as_f64).collect()
    }

    pub(super) fn flag(&self, key: &str) -> bool {
        self.keys.get(key).and_then(Value::as_bool).unwrap_or_default()
    }

    /// Predictions with a client's personal artifact, or without one.
    pub(super) fn predict_with(&self, own: Option<&Artifact>, rows: &Rows) -> Result<Predicted> {
        let rows = rows.input(&self.columns())?;
        self.job.fit.predict(&self.model_use(own), &rows).map_err(by_methods)
    }

    pub(super) fn adapt(&self, rows: &Rows) -> Result<FittedClient> {
        let rows = rows.input(&self.columns())?;
        self.job.fit.adapt_rows(&self.model_use(None), &rows, None).map_err(by_methods)
    }

    /// The personal artifact of a client that took part.
    pub(super) fn own(&self, client: &str) -> Result<&Artifact> {
        self.own.get(client).ok_or_else(|| {
            if self.own.is_empty() {
                let error = Error::config("the fit has no personal models");
                let hint = "`Run::predict` applies the shared one; a posterior has samples after its burn-in";
                return error.hint(hint).into();
            }
            let some: Vec<&str> = self.own.keys().take(5).map(String::as_str).collect();
            let error = Error::config(format!("client `{client}` took no part in the fit"));
            let hint = format!("`adapt` fits a new client; the fit has {}", some.join(", "));
            error.hint(hint).into()
        })
    }

    /// The columns of the rows, those included that the fit dropped.
    fn columns(&self) -> Vec<String> {
        match &self.job.data.source {
            DataSource::Csv(Csv { columns: Some(columns), .. }) => columns.clone(),
            _ => self.names("columns"),
        }
    }

    fn model_use<'a>(&'a self, own: Option<&'a Artifact>) -> ModelUse<'a> {
        ModelUse {
            folder: Path::new("the fit"),
            job: &self.job,
            model: &self.keys,
            tensors: Some(&self.model),
            own,
            libsvm: false,
        }
    }
}
