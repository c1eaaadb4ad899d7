//! Parquet and Arrow files, and folders of them, to [`Dataset`].
//!
//! Types come from the files: integers, floats, decimals and booleans (0 and 1) are numbers; strings,
//! dates, times and dictionaries are text; null, NaN and the empty string are missing cells. Columns
//! that are not needed are not read. Files of a folder are read in the order of their paths, and
//! folders called `site=north` add a column `site`.

#[cfg(feature = "parquet")]
mod arrays;
#[cfg(feature = "parquet")]
mod batches;
#[cfg(feature = "parquet")]
mod folder;
#[cfg(feature = "parquet")]
mod read;

#[cfg(feature = "parquet")]
pub use read::read_parquet;

use std::fs::File;
use std::io::Read;
use std::path::Path;

/// Endings of files that are read in a folder.
const ENDINGS: [&str; 6] = ["parquet", "parq", "pq", "arrow", "feather", "ipc"];

/// The first bytes of a Parquet and of an Arrow file.
const PARQUET: &[u8] = b"PAR1";
const ARROW: &[u8] = b"ARROW1";

/// The first bytes of forms of Arrow that are not read.
const UNREAD: [(&[u8], &str); 2] =
    [(b"FEA1", "a Feather file of version 1"), (&[0xff; 4], "a stream of Arrow, not a file")];

/// Whether a file is Parquet or a form of Arrow, by its first bytes, or a folder has such files.
pub fn is_parquet(path: &Path) -> bool {
    if path.is_dir() {
        return has_files(path, 4);
    }
    let mut start = [0; 6];
    let read = File::open(path).and_then(|mut file| file.read_exact(&mut start));
    let unread = UNREAD.iter().map(|(bytes, _)| *bytes);
    read.is_ok() && [PARQUET, ARROW].into_iter().chain(unread).any(|bytes| start.starts_with(bytes))
}

/// Whether a folder, or one within it up to a depth, has a file with an ending of [`ENDINGS`].
fn has_files(folder: &Path, depth: usize) -> bool {
    let Ok(entries) = std::fs::read_dir(folder) else { return false };
    entries
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| is_read(path))
        .any(|path| !path.is_dir() || (depth > 0 && has_files(&path, depth - 1)))
}

/// Whether an entry of a folder is read: hidden ones and those of other programs (`_SUCCESS`) are not.
pub(crate) fn is_read(path: &Path) -> bool {
    let ending = path.extension().and_then(|e| e.to_str()).unwrap_or_default();
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    (path.is_dir() || ENDINGS.contains(&ending)) && !name.starts_with(['.', '_'])
}

/// Reads a Parquet or Arrow file, or a folder of them.
#[cfg(not(feature = "parquet"))]
pub fn read_parquet(
    path: impl AsRef<Path>,
    _: &crate::CsvOptions,
) -> crate::Result<crate::Dataset> {
    let what = format!("{}: this program was built without Parquet", path.as_ref().display());
    let hint = "build it with `--features full` (or `parquet`), or export the table as CSV";
    Err(crate::Error::config(what).hint(hint))
}
