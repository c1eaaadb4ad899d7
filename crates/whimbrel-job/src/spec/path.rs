//! File names in a job: kept as written; whoever runs the job resolves them against its folder.

use crate::reader::{Read, Value};
use crate::resolve::text;
use std::path::{Path, PathBuf};

pub(crate) fn read_path(value: Value<'_>) -> Read<PathBuf> {
    value.text().map(PathBuf::from)
}

/// Where a key takes words or a file name: a file name has a dot or a separator in it.
pub(crate) fn looks_like_path(written: &str) -> bool {
    written.contains(['.', '/', '\\'])
}

pub(crate) fn write_path(path: &Path) -> String {
    text(&path.to_string_lossy())
}
