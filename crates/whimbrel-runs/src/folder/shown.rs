//! What a report shows of a run beyond its figures: who it is, and what its family drew.

use super::RunDir;
use serde::{Deserialize, Serialize};
use std::fs;
use whimbrel_core::declare::Section;
use whimbrel_core::{Error, Result};
use whimbrel_families::Job;

/// The file's name.
pub(super) const EXHIBITS: &str = "exhibits.json";
const VERSION: u32 = 1;

/// The content of `exhibits.json`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Shown {
    /// Of the file's form.
    version: u32,
    /// The job's name.
    pub name: String,
    /// The method's name.
    pub method: String,
    /// The model, in words.
    pub model: String,
    /// The seed.
    pub seed: u64,
    /// Whether one party holds all rows: nothing travels.
    pub pooled: bool,
    /// What its family shows of the result.
    pub sections: Vec<Section>,
}

impl Shown {
    /// The identity of a job's run, and what its family drew.
    pub fn of(job: &Job, sections: Vec<Section>) -> Self {
        Self {
            version: VERSION,
            name: job.name.clone(),
            method: job.method.name().into(),
            model: job.fit.describe(),
            seed: job.seed,
            pooled: job.method.kind.pooled,
            sections,
        }
    }

    pub(super) fn to_json(&self) -> Result<Vec<u8>> {
        serde_json::to_vec(self).map_err(|e| Error::internal(e.to_string()))
    }
}

impl RunDir {
    /// What the run kept for its report; of a run that is not over, what its job says; of a run
    /// whose job cannot be read, the folder's name.
    pub fn shown(&self) -> Shown {
        let text = fs::read(self.path().join(EXHIBITS)).unwrap_or_default();
        let read = serde_json::from_slice::<Shown>(&text).ok();
        if let Some(shown) = read.filter(|shown| shown.version == VERSION) {
            return shown;
        }
        let job = fs::read_to_string(self.path().join("job.toml")).unwrap_or_default();
        match Job::parse(&job, "job.toml") {
            Ok(job) => Shown::of(&job, Vec::new()),
            Err(_) => {
                let name = self.path().file_name().unwrap_or_default().to_string_lossy();
                Shown { name: name.into_owned(), ..Shown::default() }
            }
        }
    }
}
