//! The content of a report beyond figures: the run's identity and its family's exhibits.

use super::RunDir;
use serde::{Deserialize, Serialize};
use std::fs;
use std::mem::take;
use whimbrel_core::declare::Section;
use whimbrel_core::{Error, Result};
use whimbrel_families::Job;
use whimbrel_families::family::Results;

/// The file's name.
pub(super) const EXHIBITS: &str = "exhibits.json";
const VERSION: u32 = 1;

/// The content of `exhibits.json`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Shown {
    /// The version of the file format.
    version: u32,
    pub name: String,
    pub method: String,
    /// The model, in words.
    pub model: String,
    pub seed: u64,
    /// Whether one party holds all rows.
    pub pooled: bool,
    /// The family's exhibits.
    pub sections: Vec<Section>,
    /// Its sections under the diagnostics.
    #[serde(default)]
    pub diagnostics: Vec<Section>,
    /// The family's main figures: a name and a value each.
    #[serde(default)]
    pub tiles: Vec<(String, String)>,
}

impl Shown {
    /// The identity of a job's run, and its family's exhibits, which are taken from its results.
    pub fn of(job: &Job, results: &mut Results) -> Self {
        Self {
            version: VERSION,
            name: job.name.clone(),
            method: job.method.name().into(),
            model: job.fit.describe(),
            seed: job.seed,
            pooled: job.method.kind.pooled,
            sections: take(&mut results.sections),
            diagnostics: take(&mut results.diagnostics),
            tiles: take(&mut results.tiles),
        }
    }

    pub(super) fn to_json(&self) -> Result<Vec<u8>> {
        serde_json::to_vec(self).map_err(|e| Error::internal(e.to_string()))
    }
}

impl RunDir {
    /// The run's `exhibits.json`; for an unfinished run, the identity from its job; if that cannot be
    /// read, the folder's name.
    pub fn shown(&self) -> Shown {
        let text = fs::read(self.path().join(EXHIBITS)).unwrap_or_default();
        let read = serde_json::from_slice::<Shown>(&text).ok();
        if let Some(shown) = read.filter(|shown| shown.version == VERSION) {
            return shown;
        }
        let job = fs::read_to_string(self.path().join("job.toml")).unwrap_or_default();
        match Job::parse(&job, "job.toml") {
            Ok(job) => Shown::of(&job, &mut Results::default()),
            Err(_) => {
                let name = self.path().file_name().unwrap_or_default().to_string_lossy();
                Shown { name: name.into_owned(), ..Shown::default() }
            }
        }
    }
}
