//! A run's folder: its location, content and files.

mod changes;
mod files;
mod owned;
mod seeds;
mod shown;

pub use files::{described, model_keys, resolved};
pub use owned::owner;
pub use seeds::{DELIVERED, aggregate, best_seed, take_ending};
pub use shown::Shown;

use self::changes::changes;
use self::files::clients_csv;
use self::owned::{FILES, FOLDERS};
use self::shown::EXHIBITS;
use serde_json::{Map, Value};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use whimbrel_core::method::Artifact;
use whimbrel_core::{Error, Measure};
use whimbrel_engine::checkpoint::{
    MEASURES, Store, measures_from_json, measures_to_json, write_atomically,
};
use whimbrel_engine::lock::{FolderLock, LOCK_FILE};
use whimbrel_engine::names::folder_name;
use whimbrel_engine::versioned;
use whimbrel_engine::{Ending, Outcome};
use whimbrel_families::failure::remedy::{self, OTHER_FOLDER};
use whimbrel_families::failure::{Failure, Result};
use whimbrel_families::family::{Ended, Results, RunData};
use whimbrel_families::files::{artifact_bytes, pretty, read_artifact, read_object};
use whimbrel_families::job::Job;
use whimbrel_families::plan::Plan;

/// File of the secret of a private run's noise, while the run is unfinished.
const NOISE: &str = "noise";
/// The prefix of the folder of one seed's run.
const SEED: &str = "seed-";

/// The treatment of a folder that is not empty.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Existing {
    Refuse,
    Resume,
    /// Remove the existing run.
    Replace,
}

/// The summary of a finished run, and messages for the user.
pub struct Finished {
    /// The content of `summary.json`.
    pub summary: Map<String, Value>,
    pub warnings: Vec<String>,
    pub notes: Vec<String>,
    /// Tables of results for a terminal.
    pub said: Vec<String>,
}

/// A run's directory.
#[derive(Clone, Debug)]
pub struct RunDir {
    path: PathBuf,
    /// The lock of the process that works in the folder.
    lock: Option<Arc<FolderLock>>,
}

impl RunDir {
    /// Creates or takes over `path`; `None`: `runs/<name>-<UTC time>`.
    pub fn open(path: Option<&Path>, name: &str, existing: Existing) -> Result<Self> {
        let Some(path) = path else {
            if existing == Existing::Resume {
                let error = Error::config("resuming needs the run's folder");
                return Err(error.hint(remedy::NAME_FOLDER).into());
            }
            return Self::fresh(Path::new("runs"), name);
        };
        let mut run = Self::adopt(path);
        if path == Path::new("-") {
            let what = "`-`: a run is a folder and cannot be written to standard output";
            return Err(Error::config(what).hint(remedy::NAME_FOLDER).into());
        }
        if path.exists() && !path.is_dir() {
            let error = Error::config(format!("{} is a file, not a folder", path.display()));
            return Err(error.hint(remedy::NAME_FOLDER).into());
        }
        match existing {
            Existing::Resume if !path.exists() => {
                let error = Error::config(format!("{} does not exist", path.display()));
                return Err(error.hint(remedy::NEW_RUN).into());
            }
            _ if is_empty(path) => {}
            Existing::Resume if run.is_started() => {}
            Existing::Resume => {
                return Err(Failure::config(format!("{} has no run to resume", path.display())));
            }
            Existing::Replace if run.has_worked() => {
                run.hold()?;
                run.clear()?;
            }
            Existing::Replace => {
                let what = format!("{} is not empty and is not a run", path.display());
                let hint = format!("only runs are replaced: {OTHER_FOLDER}, or empty it");
                return Err(Error::config(what).hint(hint).into());
            }
            Existing::Refuse => {
                let hint = if run.has_worked() {
                    format!("{OTHER_FOLDER}, or {}, or {}", remedy::RESUME, remedy::REPLACE)
                } else if run.is_started() {
                    format!("{OTHER_FOLDER}, or {}", remedy::RESUME)
                } else {
                    OTHER_FOLDER.into()
                };
                let error = Error::config(format!("{} is not empty", path.display())).hint(hint);
                return Err(error.into());
            }
        }
        make_folder(path)?;
        run.hold()?;
        Ok(run)
    }

    /// Locks the folder until this value and all its copies are dropped.
    fn hold(&mut self) -> Result<()> {
        if self.lock.is_none() {
            self.lock = Some(Arc::new(FolderLock::take(&self.path)?));
        }
        Ok(())
    }

    /// A folder without a lock or checks.
    pub fn adopt(path: &Path) -> Self {
        Self { path: path.to_path_buf(), lock: None }
    }

    /// An existing run.
    pub fn existing(path: &Path) -> Result<Self> {
        let run = Self::adopt(path);
        if run.has_worked() {
            return Ok(run);
        }
        let error = Error::config(format!("{} is not a run's folder", path.display()))
            .hint("a run's folder holds job.toml and metrics.jsonl");
        Err(error.into())
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether a run started here.
    pub fn is_started(&self) -> bool {
        self.path.join("job.toml").is_file()
    }

    /// Whether there is more of a run than `job.toml`, which could be a user's file.
    fn has_worked(&self) -> bool {
        let seeds = || self.seeds().iter().any(Self::has_worked);
        self.is_started() && (self.path.join("metrics.jsonl").is_file() || seeds())
    }

    /// The run of one seed of a job with several.
    pub fn seed(&self, seed: u64) -> Self {
        Self::adopt(&self.path.join(format!("{SEED}{seed}")))
    }

    /// The existing runs of all seeds, in order.
    pub fn seeds(&self) -> Vec<Self> {
        let names = fs::read_dir(&self.path).into_iter().flatten().flatten();
        let mut found: Vec<u64> = names
            .filter_map(|entry| entry.file_name().to_str()?.strip_prefix(SEED)?.parse().ok())
            .collect();
        found.sort_unstable();
        found.into_iter().map(|seed| self.seed(seed)).filter(Self::is_started).collect()
    }

    /// Writes the aggregate of several seeds: the summary, and the model of the delivered seed,
    /// otherwise the first one's.
    pub fn finish_seeds(&self, summary: &Map<String, Value>) -> Result<()> {
        let delivered = summary.get(DELIVERED).and_then(Value::as_u64).map(|seed| self.seed(seed));
        if let Some(first) = delivered.or_else(|| self.seeds().into_iter().next()) {
            for name in ["model/model.json", "model/model.safetensors"] {
                if let Ok(bytes) = fs::read(first.path.join(name)) {
                    self.write(name, &bytes)?;
                }
            }
        }
        self.write("summary.json", pretty(&Value::Object(summary.clone())).as_bytes())
    }

    /// The ending of the run, in a word and in detail; `None` while it can be resumed.
    pub fn ending(&self) -> Option<[String; 2]> {
        let path = self.path.join("summary.json");
        let summary = path.is_file().then(|| read_object(&path).unwrap_or_default())?;
        Some(
            ["ending", "ending_detail"]
                .map(|key| summary.get(key).and_then(Value::as_str).unwrap_or_default().into()),
        )
    }

    /// The declared figures; empty before the first evaluation.
    pub fn measures(&self) -> Vec<Measure> {
        let text = fs::read(self.path.join(MEASURES)).unwrap_or_default();
        measures_from_json(&text).unwrap_or_default()
    }

    /// Writes the resolved job, or checks that a resumed run is the same job on the same data.
    pub fn record_job(&self, resolved: &str, resume: bool) -> Result<()> {
        let path = self.path.join("job.toml");
        let old = fs::read_to_string(&path).ok().filter(|_| resume);
        match old {
            Some(old) if old != resolved && again(&old) != again(resolved) => {
                let error = Error::config(format!(
                    "the run in {} cannot be resumed: {}",
                    self.path.display(),
                    changes(&old, resolved)
                ))
                .hint("resume the unchanged job, or start in another folder");
                Err(error.into())
            }
            Some(_) => Ok(()),
            None => self.write("job.toml", resolved.as_bytes()),
        }
    }

    /// Stores the secret of a plan's noise for the owner, before the first round, or reads it: a
    /// resumed run draws the same noise. The secret is removed at the end.
    pub fn keep_noise(&self, plan: &mut Plan) -> Result<()> {
        let Some(key) = plan.noise_key() else { return Ok(()) };
        let path = self.path.join(NOISE);
        match versioned::read(&path)?.map(<[u8; 32]>::try_from) {
            Some(Ok(kept)) => *key = kept,
            None if !Store::has_checkpoint(&self.path) => versioned::write(&path, &key[..])?,
            _ => {
                let what = "it is missing or damaged: rounds would be repeated with other noise\n\
                            hint: restore the folder from a copy, or begin a new run";
                return Err(Error::storage(path.display(), what).into());
            }
        }
        Ok(())
    }

    /// Writes `model/`, `clients.csv`, `exhibits.json` and `summary.json`, in that order: the summary
    /// marks a finished run.
    pub fn finish(
        &self,
        job: &Job,
        data: &RunData,
        outcome: &Outcome,
        plan: &Plan,
    ) -> Result<Finished> {
        let objective = outcome.objective();
        if let Some(model) = outcome.delivered.last()
            && !matches!(outcome.ending, Ending::Failed(_))
        {
            let json = pretty(&Value::Object(model_keys(job, data, model, objective)));
            self.write("model/model.json", json.as_bytes())?;
            self.write("model/model.safetensors", &artifact_bytes(model)?)?;
        }
        self.write("clients.csv", clients_csv(data, outcome).as_bytes())?;
        let own = |name: &str| self.client(name).ok();
        let (summary, mut results) =
            described(&Ended { job, data, outcome, own: &own }, objective, plan);
        self.declare(&results)?;
        self.write(EXHIBITS, &Shown::of(job, &mut results).to_json()?)?;
        if outcome.ending != Ending::Interrupted {
            self.write("summary.json", pretty(&Value::Object(summary.clone())).as_bytes())?;
            // With it a reader of the folder could remove the noise.
            let _ = fs::remove_file(self.path.join(NOISE));
        }
        let Results { notes, warnings, said, .. } = results;
        Ok(Finished { summary, warnings, notes, said })
    }

    /// Adds the declarations of the family's figures to those of evaluations.
    fn declare(&self, results: &Results) -> Result<()> {
        let mut measures = self.measures();
        let has = |measure: &&Measure| results.summary.contains_key(&*measure.key);
        let new: Vec<Measure> = results.measures.iter().filter(has).cloned().collect();
        if new.is_empty() {
            return Ok(());
        }
        measures.retain(|known| new.iter().all(|measure| measure.key != known.key));
        measures.extend(new);
        self.write(MEASURES, &measures_to_json(&measures)?)
    }

    /// Writes a client's personal artifact.
    pub fn write_client(&self, name: &str, own: &Artifact) -> Result<()> {
        self.write(&client_file(name), &artifact_bytes(own)?)
    }

    /// A client's personal artifact.
    pub fn client(&self, name: &str) -> Result<Artifact> {
        let path = self.path.join(client_file(name));
        if !path.is_file() {
            let what = format!("{} has no personal model of client {name:?}", self.path.display());
            let hint = match self.seeds().first() {
                Some(seed) => format!(
                    "the run has several seeds, each with its clients: name the run of one seed, such as {}",
                    seed.path.display()
                ),
                None => {
                    "only methods with personal models write them, for the clients of the fit; \
                         `whimbrel adapt` fits one for a new client, and on a network each client \
                         keeps its own"
                        .into()
                }
            };
            return Err(Error::config(what).hint(hint).into());
        }
        read_artifact(&path)
    }

    /// Writes a file of the run atomically.
    pub fn write(&self, name: &str, bytes: &[u8]) -> Result<()> {
        let path = self.path.join(name);
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder).map_err(|e| Error::storage(folder.display(), e))?;
        }
        Ok(write_atomically(&path, bytes)?)
    }

    /// Removes the files of the run; other files stay.
    fn clear(&self) -> Result<()> {
        let gone = |result: std::io::Result<()>, path: &Path| match result {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                Err(Error::storage(path.display(), e))
            }
            _ => Ok(()),
        };
        for seed in self.seeds() {
            seed.clear()?;
            // A folder with other files stays.
            let _ = fs::remove_dir(&seed.path);
        }
        // The job is removed last, so that a half-removed run is still recognised.
        self.clear_clients();
        for folder in FOLDERS.map(|f| self.path.join(f)) {
            gone(fs::remove_dir_all(&folder), &folder)?;
        }
        for file in FILES.iter().rev() {
            // Also the partial file of a killed process.
            for name in [format!("{file}.tmp"), file.to_string()] {
                let path = self.path.join(name);
                gone(fs::remove_file(&path), &path)?;
            }
        }
        Ok(())
    }

    /// Removes the clients' artifacts; other files and their folders stay.
    fn clear_clients(&self) {
        let clients = self.path.join(CLIENTS);
        for folder in fs::read_dir(&clients).into_iter().flatten().flatten() {
            for name in [CLIENT_FILE.to_owned(), format!("{CLIENT_FILE}.tmp")] {
                let _ = fs::remove_file(folder.path().join(name));
            }
            let _ = fs::remove_dir(folder.path());
        }
        let _ = fs::remove_dir(clients);
    }

    fn fresh(parent: &Path, name: &str) -> Result<Self> {
        make_folder(parent)?;
        let stamp = utc_stamp();
        for suffix in 0..1000 {
            let folder = match suffix {
                0 => format!("{name}-{stamp}"),
                n => format!("{name}-{stamp}-{}", n + 1),
            };
            let path = parent.join(folder);
            match fs::create_dir(&path) {
                Ok(()) => {
                    let mut run = Self::adopt(&path);
                    run.hold()?;
                    return Ok(run);
                }
                Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {}
                Err(e) => return Err(cannot_make(&path, &e)),
            }
        }
        Err(Failure::config(format!("{} has no free name for the run", parent.display())))
    }
}

/// The folder of the clients' artifacts.
const CLIENTS: &str = "clients";

/// The file of a client's personal artifact.
const CLIENT_FILE: &str = "model.safetensors";

/// The path of a client's personal artifact in a run's folder.
fn client_file(name: &str) -> String {
    format!("{CLIENTS}/{}/{CLIENT_FILE}", folder_name(name))
}

/// Whether the folder is empty, apart from the traces of a process killed at its first write.
fn is_empty(folder: &Path) -> bool {
    fs::read_dir(folder).map_or(true, |entries| {
        entries.flatten().all(|e| e.file_name() == "job.toml.tmp" || e.file_name() == LOCK_FILE)
    })
}

fn make_folder(path: &Path) -> Result<()> {
    fs::create_dir_all(path).map_err(|e| cannot_make(path, &e))
}

/// The error of a folder that cannot be created: a wrong argument, not a failed run.
fn cannot_make(path: &Path, error: &std::io::Error) -> Failure {
    Failure::config(format!("cannot create the folder {}: {error}", path.display()))
}

/// UTC as `20261115-134501`.
fn utc_stamp() -> String {
    let now = time::UtcDateTime::now();
    let (year, month, day) = now.to_calendar_date();
    let (hour, minute, second) = now.as_hms();
    format!("{year:04}{:02}{day:02}-{hour:02}{minute:02}{second:02}", u8::from(month))
}

/// A resolved job and the hashes of its data, resolved again by this program: an earlier version may have
/// had fewer keys.
fn again(text: &str) -> Option<String> {
    let hashes: Vec<&str> = text.lines().take_while(|line| line.starts_with('#')).collect();
    let job = Job::parse(text, "job.toml").ok()?;
    Some(format!("{}\n{}", hashes.join("\n"), job.to_toml()))
}
