//! The files that belong to a run.

use super::shown::EXHIBITS;
use super::{CLIENT_FILE, CLIENTS, NOISE, RunDir};
use std::path::{Path, PathBuf};
use whimbrel_engine::checkpoint::MEASURES;
use whimbrel_engine::lock::LOCK_FILE;

/// The files that runs write into their folders, the job first.
pub(super) const FILES: [&str; 19] = [
    "job.toml",
    "metrics.jsonl",
    MEASURES,
    "clients.csv",
    "journal",
    "report.html",
    "summary.json",
    EXHIBITS,
    "federation.json",
    "audit.jsonl",
    "audit.1.jsonl",
    "audit.2.jsonl",
    "audit.3.jsonl",
    "audit.4.jsonl",
    "members.jsonl",
    "invitations",
    "status.json",
    "dashboard-token",
    NOISE,
];

/// The folders that runs write, with all their content.
pub(super) const FOLDERS: [&str; 3] = ["model", "checkpoint", "tls"];

/// The folder of the run to which the file `path` belongs; `None` for a user's file. The file need not
/// exist: an unfinished run may still write it.
pub fn owner(path: &Path) -> Option<PathBuf> {
    let name = path.file_name()?;
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let path = folder.canonicalize().ok()?.join(name);
    let folder = path.ancestors().skip(1).find(|folder| {
        RunDir::adopt(folder).has_worked() && path.strip_prefix(folder).is_ok_and(is_owned)
    })?;
    Some(folder.to_path_buf())
}

/// Whether runs write a file of this name, relative to their folders.
fn is_owned(name: &Path) -> bool {
    let parts: Vec<_> = name.iter().filter_map(|part| part.to_str()).collect();
    match parts[..] {
        [file] => file == LOCK_FILE || FILES.contains(&file.strip_suffix(".tmp").unwrap_or(file)),
        [folder, ..] if FOLDERS.contains(&folder) => true,
        [CLIENTS, _, file] => file == CLIENT_FILE,
        _ => false,
    }
}
