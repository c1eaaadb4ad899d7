//! Use of a finished run.

use super::{Listener, view};
use serde_json::{Map, Value};
use std::path::Path;
use whimbrel_core::Error;
use whimbrel_core::method::Artifact;
use whimbrel_core::text::printable;
use whimbrel_data::Sha256;
use whimbrel_engine::checkpoint::write_atomically;
use whimbrel_engine::versioned::read_own;
use whimbrel_families::Job;
use whimbrel_families::failure::Result;
use whimbrel_families::family::{AdaptOptions, Adapted, ModelUse};
use whimbrel_families::files::{read_artifact, read_object};
use whimbrel_runs::{DELIVERED, RunDir};

/// The key of an adapted client's `summary.json` that holds the hash of the model.
const MODEL: &str = "model";

/// The folder of a run that has a model.
pub struct FinishedRun<'a> {
    folder: &'a Path,
    dir: RunDir,
    /// The job of the run.
    pub job: Job,
    keys: Map<String, Value>,
}

impl<'a> FinishedRun<'a> {
    /// Opens a folder; warns of unfinished and degenerate runs.
    pub fn read(folder: &'a Path, to: &dyn Listener) -> Result<Self> {
        let dir = RunDir::existing(folder)?;
        match dir.ending() {
            None => to.warning(&format!("the run in {} is not finished", folder.display())),
            Some([word, _]) if word == "converged" => {}
            Some([word, why]) => {
                let verb = if word == "stopped" { "stopped" } else { &format!("is {word}:") };
                to.warning(&format!("the fit of this run {verb} {}", printable(&why)));
            }
        }
        if let Some(first) = dir.seeds().first() {
            let summary = view::summary(&dir)?;
            let name = match summary.get(DELIVERED).and_then(Value::as_u64) {
                Some(seed) => format!("seed {seed}, the best by its objective"),
                None => first.path().file_name().unwrap_or_default().display().to_string(),
            };
            to.note(&format!("the run has several seeds: this is the model of {name}"));
        }
        let path = folder.join("model/model.json");
        if !path.is_file() {
            let error = Error::config(format!("{} does not exist", path.display()))
                .hint("the run has no model: it is unfinished, or it failed");
            return Err(error.into());
        }
        let file = folder.join("job.toml");
        let text = std::fs::read_to_string(&file).map_err(|e| Error::read(file.display(), &e))?;
        let job = Job::parse(&text, &file.display().to_string())?;
        Ok(Self { folder, dir, job, keys: read_object(&path)? })
    }

    /// The personal artifact of a client; without a name, that of the client whose folder this is.
    pub fn own(&self, client: Option<&str>) -> Result<Option<Artifact>> {
        match client {
            Some(name) => self.own_of(name).map(Some),
            None => Ok(read_own(self.folder)?),
        }
    }

    /// The personal artifact of a client of the run, or one that `adapt` wrote to a folder.
    fn own_of(&self, client: &str) -> Result<Artifact> {
        let adapted = Path::new(client).join("model.safetensors");
        let known = self.dir.client(client);
        if known.is_ok() || !adapted.is_file() {
            let why = self.job.fit.without_own().filter(|_| known.is_err());
            return why.map_or(known, |(what, hint)| Err(Error::config(what).hint(hint).into()));
        }
        let summary = read_object(&Path::new(client).join("summary.json"))?;
        if summary.get(MODEL).and_then(Value::as_str) != Some(&self.model_hash()?) {
            let what = format!(
                "{client} was adapted to a model other than that of {}",
                self.folder.display()
            );
            return Err(Error::config(what).hint("run `whimbrel adapt` with this run").into());
        }
        read_artifact(&adapted)
    }

    /// Fits the personal part of a new client. The model's hash is stored with it, since the part is
    /// valid for this model only.
    pub fn adapt(&self, options: &AdaptOptions<'_>) -> Result<Adapted> {
        let adapted = self.job.fit.adapt(&self.model(), options)?;
        let file = options.out.join("summary.json");
        let mut summary = read_object(&file)?;
        summary.insert(MODEL.into(), self.model_hash()?.into());
        let text = serde_json::to_string_pretty(&summary).unwrap_or_default() + "\n";
        write_atomically(&file, text.as_bytes())?;
        Ok(adapted)
    }

    /// The SHA-256 of the model file.
    fn model_hash(&self) -> Result<String> {
        let file = self.folder.join("model/model.safetensors");
        let bytes = std::fs::read(&file).map_err(|e| Error::read(file.display(), &e))?;
        let mut hash = Sha256::new();
        hash.update(&bytes);
        Ok(hash.hex())
    }

    /// The model without a personal artifact.
    pub fn model(&self) -> ModelUse<'_> {
        let (folder, job, model) = (self.folder, &self.job, &self.keys);
        ModelUse { folder, job, model, tensors: None, own: None, libsvm: false }
    }
}
