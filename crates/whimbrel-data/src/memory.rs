//! Rows in memory that are read like a file.
//!
//! A program that embeds this one has its rows in arrays. [`InMemory::new`] gives them a path under
//! which [`read_csv`](crate::read_csv) and whatever builds on it find them for as long as the value
//! lives; the path follows from the content, so equal rows have the same.

use crate::dataset::{Categories, MISSING_CODE};
use crate::{Column, Dataset, Kind, Sha256};
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Where such rows are said to be. Absolute, so that no folder is put before it.
const FOLDER: &str = "/in-memory";

/// The rows by path, and how many values hold each.
static HELD: Mutex<BTreeMap<PathBuf, (Arc<Dataset>, usize)>> = Mutex::new(BTreeMap::new());

/// Rows that can be read under a path.
#[derive(Debug)]
pub struct InMemory {
    path: PathBuf,
}

impl InMemory {
    /// Makes the rows readable.
    pub fn new(data: Dataset) -> Self {
        let path = Path::new(FOLDER).join(data.hash());
        held().entry(path.clone()).or_insert_with(|| (Arc::new(data), 0)).1 += 1;
        Self { path }
    }

    /// Where they are read.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for InMemory {
    fn drop(&mut self) {
        let mut all = held();
        if let Some((_, count)) = all.get_mut(&self.path) {
            *count -= 1;
            if *count == 0 {
                all.remove(&self.path);
            }
        }
    }
}

fn held() -> MutexGuard<'static, BTreeMap<PathBuf, (Arc<Dataset>, usize)>> {
    HELD.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The rows in memory under this path.
pub(crate) fn find(path: &Path) -> Option<Arc<Dataset>> {
    // No file has such a name: the lock is for those alone.
    path.starts_with(FOLDER).then(|| held().get(path).map(|(data, _)| data.clone()))?
}

/// Whether there is a file of this name, on disk or in memory.
pub fn is_file(path: &Path) -> bool {
    find(path).is_some() || path.is_file()
}

impl Dataset {
    /// With a column of text after the others, a value for each row; an empty one is missing.
    #[must_use]
    pub fn with_text<'a>(mut self, name: &str, values: impl Iterator<Item = &'a str>) -> Self {
        let mut codes: HashMap<&str, u32> = HashMap::new();
        let mut column = Categories::default();
        for value in values {
            let next = codes.len() as u32;
            let code = match value {
                "" => MISSING_CODE,
                value => *codes.entry(value).or_insert_with(|| {
                    column.names.push(value.into());
                    next
                }),
            };
            column.codes.push(code);
        }
        assert_eq!(column.codes.len(), self.rows(), "a text for each row");
        self.push_text(Column { name: name.into(), kind: Kind::Text, named: true }, column);
        self
    }

    /// SHA-256 of its columns.
    pub(crate) fn hash(&self) -> String {
        let mut hash = Sha256::new();
        hash.update(b"in memory");
        let names: Vec<String> = self.columns().iter().map(|c| c.name.clone()).collect();
        hash.names("", &names);
        hash.numbers(&self.numbers);
        for text in &self.texts {
            hash.names("", &text.names);
            hash.words(&text.codes, |code| code.to_le_bytes());
        }
        hash.hex()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CsvOptions, Features, hash_path, read_csv};
    use whimbrel_core::Table;

    fn rows(last: f64) -> Dataset {
        let table = Table::new(vec!["a".into(), "b".into()], vec![1.0, 2.0, 3.0, last]).unwrap();
        Dataset::from_table("rows", table).with_text("client", ["x", ""].into_iter())
    }

    #[test]
    fn rows_are_read_like_a_file_while_they_are_held() {
        let held = InMemory::new(rows(4.0));
        let again = InMemory::new(rows(4.0));
        let other = InMemory::new(rows(5.0));
        assert_eq!(held.path(), again.path());
        assert_ne!(held.path(), other.path());
        let path = held.path().to_path_buf();
        drop(held);
        let data = read_csv(&path, &CsvOptions::default()).unwrap();
        let table = data.table(&data.features(&Features::All { except: &[] }).unwrap()).unwrap();
        assert_eq!(table.values, [1.0, 2.0, 3.0, 4.0]);
        assert_eq!((data.text(0, 2), data.text(1, 2)), (Some("x"), None));
        assert!(path.ends_with(hash_path(&path).unwrap()));
        assert!(is_file(&path));
        drop(again);
        assert!(!is_file(&path));
        assert!(read_csv(&path, &CsvOptions::default()).is_err());
    }
}
