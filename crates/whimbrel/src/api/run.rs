//! A run that is over: figures, the model, and what clients have of their own.

use super::rows::Rows;
use crate::run::{FinishedRun, Listener, page, view};
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use whimbrel::core::Error;
use whimbrel::core::method::Artifact;
use whimbrel::engine::checkpoint::{MEASURES, measures_to_json};
use whimbrel::engine::runner::Done;
use whimbrel::engine::{Ending, Limits, Observer, Outcome, Row, StageRules, run as run_chain};
use whimbrel::families::Job as Asked;
use whimbrel::families::failure::Result;
use whimbrel::families::family::{FittedClient, ModelUse, Predicted, RunData};
use whimbrel::families::files::{read_artifact, read_object};
use whimbrel::families::job::{Csv, DataSource};
use whimbrel::families::load::load;
use whimbrel::families::plan::Plan;
use whimbrel::runs::{Existing, RunDir, model_keys, resolved, run_data, summary};

/// A run under way, as a callback sees it.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Progress<'a> {
    /// What is being done: `fit`, or a stage before it.
    pub stage: &'a str,
    /// Rounds of it that are done.
    pub round: u32,
    /// How many there will be, where that is known.
    pub rounds: Option<u32>,
    /// The figures of this round, where it was evaluated.
    pub row: Option<&'a Row>,
}

/// Hears of every round; `Break` ends the run after it.
pub(crate) type Watch<'a> = dyn FnMut(&Progress<'_>) -> ControlFlow<()> + 'a;

/// What a run left.
pub struct Run {
    job: Asked,
    model: Artifact,
    /// What is needed to use it on new rows: the content of `model.json`.
    keys: Map<String, Value>,
    summary: Map<String, Value>,
    history: Vec<Map<String, Value>>,
    own: BTreeMap<String, Artifact>,
    clients: Vec<String>,
    /// What only a run of this process has, to be saved.
    fresh: Option<Box<Fresh>>,
}

struct Fresh {
    data: RunData,
    outcome: Outcome,
    plan: Plan,
    files: Vec<(String, String)>,
}

impl Run {
    /// Runs a job in memory.
    pub(crate) fn of(job: Asked, watch: &mut Watch<'_>) -> Result<Self> {
        if job.seeds.is_some() || !job.method.search.is_empty() {
            let what = "several seeds and searches are several runs, which are kept in a folder";
            return Err(Error::config(what).hint("use `run_in`").into());
        }
        let mut loaded = load(&job)?;
        let plan = Plan::with_cache(&job, &loaded, None)?;
        let data = run_data(&job, &loaded);
        let stop = AtomicBool::new(false);
        let limits = Limits {
            folder: None,
            resume: false,
            checkpoint_every: Duration::MAX,
            interrupt: &stop,
        };
        let mut watching = Watching {
            watch,
            stop: &stop,
            stage: "",
            planned: plan.rounds(),
            rounds: None,
            round: 0,
            history: Vec::new(),
            own: BTreeMap::new(),
        };
        let clients = std::mem::take(&mut loaded.clients);
        let outcome = run_chain(&plan, clients, job.seed, &limits, &mut watching)?;
        let Watching { history, own, .. } = watching;
        match &outcome.ending {
            Ending::Failed(error) => return Err(error.clone().into()),
            Ending::Degenerate(why) if !job.fit.allows_degenerate() => {
                let error = Error::numerical(format!("the fit is degenerate: {why}"));
                return Err(error.hint("`allow_degenerate` returns it all the same").into());
            }
            _ => {}
        }
        let Some(model) = outcome.delivered.last().cloned() else {
            return Err(Error::config("the run was stopped before there was a model").into());
        };
        let objective = outcome.objective();
        Ok(Self {
            keys: model_keys(&job, &data, &model, objective),
            summary: summary(&job, &data, &outcome, objective, &plan),
            history,
            own,
            clients: outcome.names.clone(),
            model,
            job,
            fresh: Some(Box::new(Fresh { data, outcome, plan, files: loaded.files })),
        })
    }

    /// Opens the folder of a finished run.
    pub fn open(folder: impl AsRef<Path>) -> Result<Self> {
        let folder = folder.as_ref();
        let job = FinishedRun::read(folder, &Silent::default())?.job;
        let dir = RunDir::existing(folder)?;
        let view = view::load(&dir, &Silent::default())?;
        let clients: Vec<String> = view.clients.iter().map(|client| client.name.clone()).collect();
        let own = clients.iter().filter_map(|name| Some((name.clone(), dir.client(name).ok()?)));
        Ok(Self {
            own: own.collect(),
            clients,
            model: read_artifact(&folder.join("model/model.safetensors"))?,
            keys: read_object(&folder.join("model/model.json"))?,
            summary: view.summary,
            history: view.rows,
            job,
            fresh: None,
        })
    }

    /// Writes the folder that `whimbrel run` writes, its report included.
    pub fn save(&self, folder: impl AsRef<Path>) -> Result<()> {
        let Some(fresh) = &self.fresh else {
            return Err(Error::config("this run was read from a folder already").into());
        };
        let dir = RunDir::open(Some(folder.as_ref()), &self.job.name, Existing::Refuse)?;
        dir.record_job(&resolved(&self.job, &fresh.files), false)?;
        let lines = self.history.iter().map(|row| format!("{}\n", Value::Object(row.clone())));
        dir.write("metrics.jsonl", lines.collect::<String>().as_bytes())?;
        dir.write(MEASURES, &measures_to_json(&fresh.outcome.measures)?)?;
        self.own.iter().try_for_each(|(name, own)| dir.write_client(name, own))?;
        dir.finish(&self.job, &fresh.data, &fresh.outcome, &fresh.plan)?;
        let views = [view::load(&dir, &Silent::default())?];
        page::write(&self.job.name, &views, &dir.path().join("report.html"))?;
        Ok(())
    }

    /// The job with every default written out.
    pub fn job_toml(&self) -> String {
        self.job.to_toml()
    }

    /// A figure of the summary, such as `objective`, `rounds` or `test_accuracy`.
    pub fn figure(&self, name: &str) -> Option<f64> {
        self.summary.get(name).and_then(Value::as_f64)
    }

    /// A figure at each evaluation, with its round.
    pub fn history(&self, name: &str) -> Vec<(u32, f64)> {
        let number = |row: &Map<String, Value>, key: &str| row.get(key).and_then(Value::as_f64);
        let each = self.history.iter();
        each.filter_map(|row| Some((number(row, "round")? as u32, number(row, name)?))).collect()
    }

    /// Rounds of the fit.
    pub fn rounds(&self) -> u32 {
        self.figure("rounds").unwrap_or_default() as u32
    }

    /// Bits that clients sent.
    pub fn bits_up(&self) -> u64 {
        self.figure("bits_up").unwrap_or_default() as u64
    }

    /// Bits that they were sent.
    pub fn bits_down(&self) -> u64 {
        self.figure("bits_down").unwrap_or_default() as u64
    }

    /// How it ended, in words: `finished`, or why it did not.
    pub fn ending(&self) -> &str {
        self.summary.get("ending").and_then(Value::as_str).unwrap_or("finished")
    }

    /// What should be looked at.
    pub fn notes(&self) -> Vec<&str> {
        let notes = self.summary.get("notes").and_then(Value::as_array);
        notes.into_iter().flatten().filter_map(Value::as_str).collect()
    }

    /// The clients, by id.
    pub fn clients(&self) -> &[String] {
        &self.clients
    }

    /// The numbers of a tensor of the model, last index fastest; empty where it has none of this name.
    pub fn tensor(&self, name: &str) -> &[f64] {
        self.model.tensor(name).map_or(&[], |tensor| &tensor.values)
    }

    /// What a client has of its own.
    pub fn own(&self, client: &str) -> Option<&Artifact> {
        self.own.get(client)
    }

    /// Predictions for new rows, by name.
    pub fn predict(&self, rows: &Rows) -> Result<Predicted> {
        self.predict_by(None, rows)
    }

    pub(crate) fn artifact(&self) -> &Artifact {
        &self.model
    }

    /// A list of names in `model.json`.
    pub(crate) fn names(&self, key: &str) -> Vec<String> {
        let known = self.keys.get(key).and_then(Value::as_array);
        known.into_iter().flatten().filter_map(|name| name.as_str().map(String::from)).collect()
    }

    pub(crate) fn flag(&self, key: &str) -> bool {
        self.keys.get(key).and_then(Value::as_bool).unwrap_or_default()
    }

    pub(crate) fn predict_by(&self, own: Option<&Artifact>, rows: &Rows) -> Result<Predicted> {
        self.job.fit.predict(&self.model_use(own), &rows.input(&self.columns())?)
    }

    pub(crate) fn adapt(&self, rows: &Rows) -> Result<FittedClient> {
        self.job.fit.adapt_rows(&self.model_use(None), &rows.input(&self.columns())?, None)
    }

    /// The columns that the rows had, those included that the fit left out.
    fn columns(&self) -> Vec<String> {
        if let DataSource::Csv(Csv { columns: Some(columns), .. }) = &self.job.data.source {
            return columns.clone();
        }
        self.names("columns")
    }

    pub(crate) fn own_of(&self, client: &str) -> Result<&Artifact> {
        self.own.get(client).ok_or_else(|| {
            let some: Vec<&str> = self.own.keys().take(5).map(String::as_str).collect();
            let error = Error::config(format!("client `{client}` took no part in the fit"));
            error.hint(format!("`adapt` fits it; those who did: {}", some.join(", "))).into()
        })
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

/// Passes on what a callback may see, and keeps what the run says.
struct Watching<'a, 'w> {
    watch: &'a mut Watch<'w>,
    stop: &'a AtomicBool,
    stage: &'static str,
    /// Rounds of the fit.
    planned: Option<u32>,
    rounds: Option<u32>,
    round: u32,
    history: Vec<Map<String, Value>>,
    own: BTreeMap<String, Artifact>,
}

impl Watching<'_, '_> {
    fn tell(&mut self, row: Option<&Row>) {
        let (stage, round, rounds) = (self.stage, self.round, self.rounds);
        if (self.watch)(&Progress { stage, round, rounds, row }).is_break() {
            self.stop.store(true, Ordering::Relaxed);
        }
    }
}

impl Observer for Watching<'_, '_> {
    fn stage(&mut self, stage: &StageRules, index: usize, of: usize) {
        (self.stage, self.round) = (stage.name, 0);
        self.rounds = self.planned.filter(|_| index + 1 == of);
    }

    fn exchange(&mut self, done: &Done) {
        if let Some(round) = done.round {
            self.round = round;
            self.tell(None);
        }
    }

    fn row(&mut self, row: &Row) {
        self.history.push(row.to_json());
        self.tell(Some(row));
    }

    fn client_artifact(&mut self, name: &str, own: Artifact) -> whimbrel::core::Result<()> {
        self.own.insert(name.to_owned(), own);
        Ok(())
    }
}

/// Hears nothing.
#[derive(Default)]
pub(crate) struct Silent(std::sync::Arc<AtomicBool>);

impl Listener for Silent {
    fn note(&self, _: &str) {}

    fn warning(&self, _: &str) {}

    fn watch(&self, _: &str, _: Option<u32>, _: bool) -> Box<dyn Observer + '_> {
        struct Nobody;
        impl Observer for Nobody {}
        Box::new(Nobody)
    }

    fn interrupt(&self) -> std::sync::Arc<AtomicBool> {
        self.0.clone()
    }
}
