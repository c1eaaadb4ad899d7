//! File names in a job: kept as written; whoever runs the job resolves them against its folder.

use crate::reader::{Read, Value};
use crate::writer::text;
use std::path::{Path, PathBuf};

/// A file name.
pub fn read_path(value: Value<'_>) -> Read<PathBuf> {
    value.text().map(PathBuf::from)
}

/// Where a key takes words or a file name: a file name has a dot or a separator in it.
pub fn looks_like_path(written: &str) -> bool {
    written.contains(['.', '/', '\\'])
}

/// A file name as TOML.
pub fn write_path(path: &Path) -> String {
    text(&path.to_string_lossy())
}
