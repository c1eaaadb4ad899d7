//! Rows to read: a file, or rows that a program holds.

use crate::hash::hash_rows;
use crate::{CsvOptions, Dataset, Result, hash_path, read_csv};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Rows to read: a file, or rows that a program holds.
#[derive(Clone)]
pub enum Input {
    File(PathBuf),
    Rows(SharedRows),
}

/// Rows in memory and their hash. Copies share them.
#[derive(Clone)]
pub struct SharedRows {
    hash: Arc<str>,
    rows: Arc<Dataset>,
}

impl Input {
    /// Rows in memory.
    pub fn rows(data: Dataset) -> Self {
        Self::Rows(SharedRows { hash: hash_rows(&data).into(), rows: data.into() })
    }

    /// The file; `None` for rows in memory.
    pub fn file(&self) -> Option<&Path> {
        match self {
            Self::File(path) => Some(path),
            Self::Rows(_) => None,
        }
    }

    /// The file, to resolve it against a folder.
    pub fn file_mut(&mut self) -> Option<&mut PathBuf> {
        match self {
            Self::File(path) => Some(path),
            Self::Rows(_) => None,
        }
    }

    /// Whether the file exists. Rows in memory always do.
    pub fn exists(&self) -> bool {
        self.file().is_none_or(Path::exists)
    }

    /// SHA-256 of a file's bytes, or of the rows.
    pub fn hash(&self) -> Result<String> {
        match self {
            Self::File(path) => hash_path(path),
            Self::Rows(held) => Ok(held.hash.to_string()),
        }
    }

    /// Reads delimited text. The options do not apply to rows in memory, which are shared, not copied.
    pub fn read_csv(&self, options: &CsvOptions) -> Result<Arc<Dataset>> {
        match self {
            Self::File(path) => read_csv(path, options).map(Arc::new),
            Self::Rows(held) => Ok(held.rows.clone()),
        }
    }
}

impl<P: AsRef<Path>> From<P> for Input {
    fn from(path: P) -> Self {
        Self::File(path.as_ref().into())
    }
}

impl PartialEq for Input {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::File(one), Self::File(other)) => one == other,
            (Self::Rows(one), Self::Rows(other)) => one.hash == other.hash,
            _ => false,
        }
    }
}

/// The path, or `memory:` and the hash.
impl fmt::Display for Input {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => path.display().fmt(to),
            Self::Rows(held) => write!(to, "memory:{}", held.hash),
        }
    }
}

impl fmt::Debug for Input {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "{:?}", self.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Features;
    use whimbrel_core::Table;

    fn rows(last: f64) -> Input {
        let table = Table::new(vec!["a".into(), "b".into()], vec![1.0, 2.0, 3.0, last]).unwrap();
        Input::rows(Dataset::from_table("rows", table).with_text("client", ["x", ""].into_iter()))
    }

    #[test]
    fn rows_in_memory_are_shared_and_told_apart_by_their_values() {
        let input = rows(4.0);
        assert_eq!(input, rows(4.0));
        assert_ne!(input, rows(5.0));
        assert_eq!(input.to_string(), format!("memory:{}", input.hash().unwrap()));
        let data = input.read_csv(&CsvOptions::default()).unwrap();
        let table = data.table(&data.features(&Features::All { except: &[] }).unwrap()).unwrap();
        assert_eq!(table.values, [1.0, 2.0, 3.0, 4.0]);
        assert_eq!((data.text(0, 2), data.text(1, 2)), (Some("x"), None));
        let Input::Rows(held) = &input else { panic!("rows are in memory") };
        assert!(Arc::ptr_eq(&data.numbers, &held.rows.numbers), "numbers were copied");
        assert!(Arc::ptr_eq(&data.texts[0], &held.rows.texts[0]), "texts were copied");
    }
}
