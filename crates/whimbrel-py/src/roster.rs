//! Rosters of masked sums: the identity of a client, and the check of rosters that its user asked for.

use crate::errors::detached;
use pyo3::prelude::*;
use std::path::{Path, PathBuf};
use whimbrel::parts::core::{ClientId, Error};
use whimbrel::parts::engine::versioned;
use whimbrel::parts::families::failure::{Failure, Result};
use whimbrel::parts::families::job::Job;
use whimbrel::parts::methods::masked::{Accepted, Roster, ShortHash, Trust, Watch};

/// The line of a folder's client for the rosters of the others.
#[pyfunction]
pub fn identity(py: Python<'_>, folder: PathBuf) -> PyResult<String> {
    detached(py, || {
        let name = folder.file_name().unwrap_or_default().to_string_lossy();
        Ok(format!("{name} {}", ShortHash::of_secret(&secret(&folder)?)))
    })
}

/// The identity in a folder, and the check of rosters against the accepted one.
pub fn trust(job: &Job, folder: &Path, accepted: &str) -> Result<Trust> {
    if !job.privacy.is_masked() {
        return Err(Failure::config("`roster` has no meaning: the job has no masks"));
    }
    // It lives as long as the process, as the clients of a shard do.
    let watch: &'static dyn Watch = Box::leak(Box::new(Checked(Accepted::parse(accepted)?)));
    Ok(Trust { identity: Some(secret(folder)?), watch: Some(watch), whole: false })
}

fn secret(folder: &Path) -> Result<[u8; 32]> {
    std::fs::create_dir_all(folder).map_err(|e| Error::storage(folder.display(), e))?;
    Ok(versioned::secret(&folder.join(versioned::MASK_IDENTITY))?)
}

struct Checked(Accepted);

impl Watch for Checked {
    fn roster(&self, roster: &Roster) -> whimbrel::parts::core::Result<()> {
        self.0.check(roster)
    }

    fn unopened(&self, _: ClientId, _: Option<ClientId>) {}
}
