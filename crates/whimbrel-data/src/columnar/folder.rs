//! The files of a folder and the columns that its folders' names add.

use super::is_read;
use crate::hash::sorted_entries;
use crate::{Error, Result};
use std::path::{Path, PathBuf};

/// The name of a partition without a value.
const NO_VALUE: &str = "__HIVE_DEFAULT_PARTITION__";
/// Deepest folders within a folder; links may go in circles.
const DEPTH_MAX: usize = 32;

/// A file, and the values of the partition columns in its path.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct FilePart {
    pub path: PathBuf,
    pub keys: Vec<(String, Option<String>)>,
}

/// The file itself, or the files of a folder in the order of their paths.
pub(super) fn parts(path: &Path) -> Result<Vec<FilePart>> {
    if !path.is_dir() {
        return Ok(vec![FilePart { path: path.into(), keys: Vec::new() }]);
    }
    let name = path.display().to_string();
    let mut found = Vec::new();
    walk(path, &[], 0, &mut found)?;
    let Some(first) = found.first() else {
        return Err(Error::format(&name, "the folder has no .parquet or .arrow file"));
    };
    let names = |part: &FilePart| part.keys.iter().map(|(key, _)| key.clone()).collect::<Vec<_>>();
    if let Some(other) = found.iter().find(|part| names(part) != names(first)) {
        let what = format!(
            "{} lies in folders for {:?}, {} for {:?}",
            first.path.display(),
            names(first),
            other.path.display(),
            names(other)
        );
        return Err(Error::format(&name, what).hint("folders of one table have the same keys"));
    }
    Ok(found)
}

fn walk(
    folder: &Path,
    keys: &[(String, Option<String>)],
    depth: usize,
    found: &mut Vec<FilePart>,
) -> Result<()> {
    if depth > DEPTH_MAX {
        let what = "the folders are nested too deeply";
        return Err(Error::format(&folder.display().to_string(), what));
    }
    for path in sorted_entries(folder)?.into_iter().filter(|path| is_read(path)) {
        if path.is_dir() {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            let key = name.split_once('=').map(|(key, value)| (decoded(key), decoded(value)));
            let key = key.map(|(key, value)| (key, Some(value).filter(|v| v != NO_VALUE)));
            let keys = keys.iter().cloned().chain(key).collect::<Vec<_>>();
            walk(&path, &keys, depth + 1, found)?;
        } else {
            found.push(FilePart { path, keys: keys.to_vec() });
        }
    }
    Ok(())
}

/// The text with `%2F` and the like replaced.
fn decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, more @ ..] = rest {
        let hex = (*first == b'%').then(|| more.get(..2)).flatten();
        let hex = hex.and_then(|two| u8::from_str_radix(std::str::from_utf8(two).ok()?, 16).ok());
        bytes.push(hex.unwrap_or(*first));
        rest = if hex.is_some() { &more[2..] } else { more };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_folders_are_columns() {
        let folder = tempfile::tempdir().unwrap();
        let part = folder.path().join("site=north%2Fwest/year=2024");
        std::fs::create_dir_all(&part).unwrap();
        for name in ["b.parquet", "a.parquet", "_SUCCESS", ".a.parquet.crc", "notes.txt"] {
            std::fs::write(part.join(name), "").unwrap();
        }
        let keys = vec![
            ("site".to_owned(), Some("north/west".to_owned())),
            ("year".to_owned(), Some("2024".to_owned())),
        ];
        let expected = ["a.parquet", "b.parquet"]
            .map(|name| FilePart { path: part.join(name), keys: keys.clone() });
        assert_eq!(parts(folder.path()).unwrap(), expected);
        std::fs::create_dir_all(folder.path().join("site=south")).unwrap();
        std::fs::write(folder.path().join("site=south/c.parquet"), "").unwrap();
        let error = parts(folder.path()).unwrap_err().to_string();
        assert!(error.contains("have the same keys"), "{error}");
    }

    #[test]
    fn escapes_are_decoded_and_other_percent_signs_stay() {
        assert_eq!(decoded("a%20b%3D"), "a b=");
        assert_eq!(decoded("100%"), "100%");
        assert_eq!(decoded("5%zz"), "5%zz");
    }
}
