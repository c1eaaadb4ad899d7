//! A run's directory: where it is, what may be in it, and what is written there.

mod changes;

use self::changes::{HASH_MARK, changes};
use crate::failure::{Failure, Result};
use crate::load::Loaded;
use crate::spec::Job;
use crate::start::read_object;
use serde_json::{Map, Value, json};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};
use whimbrel_core::method::{Artifact, Tensor};
use whimbrel_core::{Error, isa};
use whimbrel_engine::checkpoint::write_atomically;
use whimbrel_engine::metrics::number;
use whimbrel_engine::{Ending, Outcome};

/// Rows drawn into the picture of a two-dimensional mixture.
const PREVIEW_ROWS: usize = 2000;

/// What to do with a directory that is not empty.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Existing {
    /// Refuse.
    Refuse,
    /// Go on with the run that is there.
    Resume,
    /// Remove the run that is there.
    Replace,
}

/// A run's directory.
#[derive(Clone, Debug)]
pub struct RunDir {
    path: PathBuf,
}

impl RunDir {
    /// Makes or takes over `path`; without one, `runs/<name>-<UTC time>`.
    pub fn open(path: Option<&Path>, name: &str, existing: Existing) -> Result<Self> {
        let Some(path) = path else {
            if existing == Existing::Resume {
                let error =
                    Error::config("--resume needs the run's directory").hint("add --out DIR");
                return Err(error.into());
            }
            return Self::fresh(Path::new("runs"), name);
        };
        let run = Self { path: path.to_path_buf() };
        if path.exists() && !path.is_dir() {
            return Err(Failure::config(format!("{} is a file, not a folder", path.display())));
        }
        match existing {
            _ if is_empty(path) => {}
            Existing::Resume if run.is_started() => {}
            Existing::Resume => {
                return Err(Failure::config(format!("{} holds no run to resume", path.display())));
            }
            Existing::Replace if run.has_worked() => run.clear()?,
            Existing::Replace => {
                let error =
                    Error::config(format!("{} is not empty and holds no run", path.display()))
                        .hint(
                            "--force removes runs only; choose another folder or empty it yourself",
                        );
                return Err(error.into());
            }
            Existing::Refuse => {
                let hint = if run.has_worked() {
                    "choose another --out, or add --resume to go on, or --force to replace the run"
                } else {
                    "choose another --out"
                };
                let error = Error::config(format!("{} is not empty", path.display())).hint(hint);
                return Err(error.into());
            }
        }
        make_folder(path)?;
        Ok(run)
    }

    /// A folder taken as it is: it holds runs rather than being one.
    pub fn adopt(path: &Path) -> Self {
        Self { path: path.to_path_buf() }
    }

    /// An existing run.
    pub fn existing(path: &Path) -> Result<Self> {
        let run = Self { path: path.to_path_buf() };
        if run.has_worked() {
            return Ok(run);
        }
        let error = Error::config(format!("{} is not a run's folder", path.display()))
            .hint("a run's folder holds job.toml and metrics.jsonl");
        Err(error.into())
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether a run began here.
    pub fn is_started(&self) -> bool {
        self.path.join("job.toml").is_file()
    }

    /// Whether there is more of a run than its job, which could be a user's own file.
    fn has_worked(&self) -> bool {
        self.is_started() && self.path.join("metrics.jsonl").is_file()
    }

    /// How the run ended; none while it can go on.
    pub fn ending(&self) -> Option<String> {
        let path = self.path.join("summary.json");
        let summary = path.is_file().then(|| read_object(&path).unwrap_or_default())?;
        let ending = summary.get("ending").and_then(Value::as_str);
        Some(ending.unwrap_or("finished").into())
    }

    /// Writes the resolved job, or checks that a resumed run is the same job on the same data.
    pub fn settle(&self, resolved: &str, resume: bool) -> Result<()> {
        let path = self.path.join("job.toml");
        let old = fs::read_to_string(&path).ok().filter(|_| resume);
        match old {
            Some(old) if old != resolved => {
                let error = Error::config(format!(
                    "the run in {} cannot go on: {}",
                    self.path.display(),
                    changes(&old, resolved)
                ))
                .hint("run the job as it was, or start anew in another folder");
                Err(error.into())
            }
            Some(_) => Ok(()),
            None => Ok(write_atomically(&path, resolved.as_bytes())?),
        }
    }

    /// Writes `model/`, `clients.csv`, the preview and `summary.json`, in that order: a summary
    /// stands for a finished run.
    pub fn finish(
        &self,
        job: &Job,
        loaded: &Facts,
        outcome: &Outcome,
    ) -> Result<Map<String, Value>> {
        let objective = outcome.last.as_ref().and_then(|row| row.number("objective"));
        if let (Some(model), false) = (outcome.delivered.last(), outcome.delivered.is_empty())
            && !matches!(outcome.ending, Ending::Failed(_))
        {
            self.write_model(job, loaded, model, objective)?;
        }
        self.write("clients.csv", clients_csv(loaded, outcome).as_bytes())?;
        if let Some(preview) = &loaded.preview {
            self.write("preview.csv", preview.as_bytes())?;
        }
        let summary = summary(job, loaded, outcome, objective);
        if outcome.ending != Ending::Interrupted {
            self.write("summary.json", pretty(&Value::Object(summary.clone())).as_bytes())?;
        }
        Ok(summary)
    }

    /// Writes one file of the run, whole or not at all.
    pub fn write(&self, name: &str, bytes: &[u8]) -> Result<()> {
        let path = self.path.join(name);
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder).map_err(|e| Error::storage(folder.display(), e))?;
        }
        Ok(write_atomically(&path, bytes)?)
    }

    fn write_model(
        &self,
        job: &Job,
        loaded: &Facts,
        model: &Artifact,
        objective: Option<f64>,
    ) -> Result<()> {
        let mut object = Map::new();
        object.insert("kind".into(), model.kind.clone().into());
        for tensor in &model.tensors {
            object.insert(tensor.name.clone(), nested(tensor));
        }
        object.insert("objective".into(), objective.map_or(Value::Null, number));
        object.insert("covariance_kind".into(), job.model.covariance_name().into());
        object.insert("columns".into(), loaded.columns.clone().into());
        self.write("model/model.json", pretty(&Value::Object(object)).as_bytes())?;
        self.write("model/model.safetensors", &safetensors(model)?)
    }

    /// Removes what runs write; anything else stays.
    fn clear(&self) -> Result<()> {
        let files = [
            "job.toml",
            "metrics.jsonl",
            "clients.csv",
            "journal",
            "report.html",
            "summary.json",
            "preview.csv",
        ];
        let gone = |result: std::io::Result<()>, path: &Path| match result {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                Err(Error::storage(path.display(), e))
            }
            _ => Ok(()),
        };
        // The job goes last: a half-removed run can still be told for one.
        for folder in ["model", "checkpoint"].map(|f| self.path.join(f)) {
            gone(fs::remove_dir_all(&folder), &folder)?;
        }
        for file in files.iter().rev() {
            // Beside it, what a killed process had half written.
            for name in [format!("{file}.tmp"), file.to_string()] {
                let path = self.path.join(name);
                gone(fs::remove_file(&path), &path)?;
            }
        }
        Ok(())
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
                Ok(()) => return Ok(Self { path }),
                Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {}
                Err(e) => return Err(cannot_make(&path, &e)),
            }
        }
        Err(Failure::config(format!("{} has no free name for the run", parent.display())))
    }
}

/// What a run's files need to know of the data, once the rows themselves are gone.
#[derive(Clone, Debug)]
pub struct Facts {
    /// Column names.
    pub columns: Vec<String>,
    /// Rows by client.
    pub rows: Vec<Option<u64>>,
    /// The data's hash.
    pub hash: String,
    /// Some rows of two-dimensional data, for the picture.
    pub preview: Option<String>,
}

impl Facts {
    /// Takes note of what is needed later.
    pub fn of(loaded: &Loaded) -> Self {
        let plane = loaded.columns.len() == 2;
        let preview = loaded.preview(PREVIEW_ROWS).filter(|_| plane).map(|rows| {
            let mut text =
                format!("{},{}\n", quoted(&loaded.columns[0]), quoted(&loaded.columns[1]));
            for row in rows {
                let _ = writeln!(text, "{},{}", row[0], row[1]);
            }
            text
        });
        Self {
            columns: loaded.columns.clone(),
            rows: loaded.rows.clone(),
            hash: loaded.hash.clone(),
            preview,
        }
    }
}

/// The resolved job with the hash of each file it reads.
pub fn resolved(job: &Job, hashes: &[(String, String)]) -> String {
    let mut text = String::new();
    for (path, hash) in hashes {
        // A line break in a file's name would end the comment.
        let path: String = path
            .chars()
            .flat_map(|c| if c.is_control() { c.escape_default().collect() } else { vec![c] })
            .collect();
        let _ = writeln!(text, "{HASH_MARK}{hash}  {path}");
    }
    text + &job.to_toml()
}

fn summary(
    job: &Job,
    facts: &Facts,
    outcome: &Outcome,
    objective: Option<f64>,
) -> Map<String, Value> {
    let last = |name: &str| outcome.last.as_ref().and_then(|r| r.number(name));
    let mut object = Map::new();
    let mut put = |key: &str, value: Value| object.insert(key.into(), value);
    put("name", job.name.clone().into());
    put("seed", job.seed.into());
    put("method", job.method.kind.name().into());
    put("model", "gmm".into());
    put("rounds", outcome.rounds.into());
    put("objective", objective.map_or(Value::Null, number));
    put("field_norm2", last("field_norm2").map_or(Value::Null, number));
    put("bits_up", (8 * outcome.traffic.up).into());
    put("bits_down", (8 * outcome.traffic.down).into());
    put("bits_eval", (8 * outcome.traffic.eval).into());
    put("seconds", number(outcome.seconds));
    put("clients", outcome.names.len().into());
    put("rows", facts.rows.iter().copied().sum::<Option<u64>>().map_or(Value::Null, Into::into));
    put("repairs", last("repairs").map_or(Value::Null, number));
    put("ending", ending(&outcome.ending).into());
    if let Some(theory) = outcome.delivered.iter().find(|a| a.kind == "theory") {
        let constants = theory.numbers().map(|(name, value)| (name.into(), number(value)));
        put("theory", Value::Object(constants.collect()));
    }
    put("version", env!("CARGO_PKG_VERSION").into());
    put("isa", isa::level().name().into());
    put("data_hash", facts.hash.clone().into());
    object
}

fn ending(ending: &Ending) -> String {
    match ending {
        Ending::Finished => "finished".into(),
        Ending::Early(why) => format!("stopped early: {why}"),
        Ending::Interrupted => "interrupted".into(),
        Ending::Failed(error) => format!("failed: {error}"),
    }
}

fn clients_csv(facts: &Facts, outcome: &Outcome) -> String {
    let mut text = String::from("client,rows,rounds,bits_up,bits_down,loss\n");
    for (i, (name, tally)) in outcome.names.iter().zip(&outcome.tallies).enumerate() {
        let rows = facts.rows.get(i).copied().flatten().map_or(String::new(), |n| n.to_string());
        let loss =
            outcome.losses.get(i).copied().flatten().map_or(String::new(), |l| l.to_string());
        let (up, down) = (8 * tally.bytes_up, 8 * tally.bytes_down);
        let _ = writeln!(text, "{},{rows},{},{up},{down},{loss}", quoted(name), tally.rounds);
    }
    text
}

/// A CSV cell.
pub fn quoted(cell: &str) -> String {
    if cell.contains([',', '"', '\n', '\r', ';', '\t']) {
        format!("\"{}\"", cell.replace('"', "\"\""))
    } else {
        cell.into()
    }
}

/// A tensor as nested lists.
fn nested(tensor: &Tensor) -> Value {
    fn level(shape: &[u64], values: &[f64]) -> Value {
        match shape {
            [] => number(values[0]),
            [_] => values.iter().map(|x| number(*x)).collect(),
            [n, rest @ ..] => {
                let each = values.len() / (*n).max(1) as usize;
                values.chunks(each.max(1)).map(|part| level(rest, part)).collect()
            }
        }
    }
    level(&tensor.shape, &tensor.values)
}

fn safetensors(model: &Artifact) -> Result<Vec<u8>> {
    use safetensors::tensor::{Dtype, TensorView, serialize};
    let bytes: Vec<Vec<u8>> = model
        .tensors
        .iter()
        .map(|t| t.values.iter().flat_map(|x| x.to_le_bytes()).collect())
        .collect();
    let broken = |e| Error::internal(format!("the model cannot be written: {e}"));
    let mut views = Vec::new();
    for (tensor, bytes) in model.tensors.iter().zip(&bytes) {
        let shape = tensor.shape.iter().map(|n| *n as usize).collect();
        views.push((&tensor.name, TensorView::new(Dtype::F64, shape, bytes).map_err(broken)?));
    }
    Ok(serialize(views, None).map_err(broken)?)
}

/// One key per line, lists on one line: easy to read and to compare.
fn pretty(value: &Value) -> String {
    let Value::Object(object) = value else { return format!("{value}\n") };
    let lines: Vec<String> = object.iter().map(|(k, v)| format!("  {}: {v}", json!(k))).collect();
    format!("{{\n{}\n}}\n", lines.join(",\n"))
}

/// Nothing in it but what a process killed at its first write left.
fn is_empty(folder: &Path) -> bool {
    fs::read_dir(folder)
        .map_or(true, |entries| entries.flatten().all(|entry| entry.file_name() == "job.toml.tmp"))
}

fn make_folder(path: &Path) -> Result<()> {
    fs::create_dir_all(path).map_err(|e| cannot_make(path, &e))
}

/// A folder that cannot be made is a wrong argument, not a run that failed.
fn cannot_make(path: &Path, error: &std::io::Error) -> Failure {
    Failure::config(format!("cannot make the folder {}: {error}", path.display()))
}

/// UTC as `20261115-134501`.
fn utc_stamp() -> String {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    // Civil date from days since 1970-01-01, on the calendar whose year starts in March.
    let z = days + 719_468;
    let era = z / 146_097;
    let day_of_era = z % 146_097;
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    let (hour, minute, second) = (rest / 3600, rest / 60 % 60, rest % 60);
    format!("{year:04}{month:02}{day:02}-{hour:02}{minute:02}{second:02}")
}
