//! `audit.jsonl`: joins, refusals with their reason, revocations; one object per line, only added
//! to.

use crate::status::now;
use serde_json::json;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use whimbrel_core::{Error, Result};

/// A line per second at most of each kind of refusal by strangers would still fill a disk in the
/// end; beyond this many bytes nothing is added any more but what clients of the run do.
const BYTES_MAX: u64 = 64 << 20;

/// The open file.
pub struct Audit {
    file: Mutex<(File, u64)>,
}

impl Audit {
    /// Adds to a run's file.
    pub fn open(folder: &Path) -> Result<Self> {
        let path = folder.join("audit.jsonl");
        let file = OpenOptions::new().create(true).append(true).open(&path);
        let file = file.map_err(|e| Error::storage(path.display(), e))?;
        let length = file.metadata().map_or(0, |m| m.len());
        Ok(Self { file: Mutex::new((file, length)) })
    }

    /// Notes an event about a client, or about a stranger (`who` is then an address). A full disk
    /// loses lines of the audit log before it stops a job.
    pub fn note(&self, event: &str, who: &str, detail: &str, stranger: bool) {
        let line = json!({ "time": now(), "event": event, "who": who, "detail": detail });
        let mut held = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        if stranger && held.1 > BYTES_MAX {
            return;
        }
        let line = format!("{line}\n");
        match held.0.write_all(line.as_bytes()) {
            Ok(()) => held.1 += line.len() as u64,
            Err(error) => tracing::warn!(%error, "a line of the audit log is lost"),
        }
    }
}
