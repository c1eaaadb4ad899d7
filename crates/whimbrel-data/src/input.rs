//! Rows to read: a file, or rows that a program holds.

use crate::cells::cells_of;
use crate::{
    Attribute, CellOptions, CellTable, CsvOptions, Dataset, Result, hash_path, read_attributes_of,
    read_csv,
};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Rows to read: a file, or rows that a program holds. Whoever takes an input takes both.
#[derive(Clone)]
pub enum Input {
    /// A file.
    File(PathBuf),
    /// Rows in memory.
    Rows(Held),
}

/// Rows in memory and their hash. Copies share them.
#[derive(Clone)]
pub struct Held(Arc<(String, Dataset)>);

impl Input {
    /// Rows in memory.
    pub fn rows(data: Dataset) -> Self {
        Self::Rows(Held(Arc::new((data.hash(), data))))
    }

    /// The file, where it is one.
    pub fn file(&self) -> Option<&Path> {
        match self {
            Self::File(path) => Some(path),
            Self::Rows(_) => None,
        }
    }

    /// The same, to resolve it against a folder.
    pub fn file_mut(&mut self) -> Option<&mut PathBuf> {
        match self {
            Self::File(path) => Some(path),
            Self::Rows(_) => None,
        }
    }

    /// Whether it can be read.
    pub fn exists(&self) -> bool {
        self.file().is_none_or(Path::exists)
    }

    /// SHA-256 of a file's bytes, or of the rows.
    pub fn hash(&self) -> Result<String> {
        match self {
            Self::File(path) => hash_path(path),
            Self::Rows(held) => Ok(held.0.0.clone()),
        }
    }

    /// Reads delimited text; rows in memory are as they are.
    pub fn read_csv(&self, options: &CsvOptions) -> Result<Dataset> {
        match self {
            Self::File(path) => read_csv(path, options),
            Self::Rows(held) => Ok(held.0.1.clone()),
        }
    }

    /// Reads a table with gaps.
    pub fn read_cells(&self, options: &CellOptions) -> Result<CellTable> {
        cells_of(&self.read_csv(&options.csv())?, options)
    }

    /// Reads what describes the rows and columns of such a table.
    pub fn read_attributes(
        &self,
        options: &CellOptions,
        rows: &[String],
        columns: &[String],
    ) -> Result<Vec<Attribute>> {
        let read = || self.exists().then(|| self.read_csv(&options.csv())).transpose();
        read_attributes_of(read, options, rows, columns)
    }
}

impl From<PathBuf> for Input {
    fn from(path: PathBuf) -> Self {
        Self::File(path)
    }
}

impl From<&Path> for Input {
    fn from(path: &Path) -> Self {
        Self::File(path.to_path_buf())
    }
}

impl From<&str> for Input {
    fn from(path: &str) -> Self {
        Self::File(path.into())
    }
}

impl PartialEq for Input {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::File(one), Self::File(other)) => one == other,
            (Self::Rows(one), Self::Rows(other)) => one.0.0 == other.0.0,
            _ => false,
        }
    }
}

/// As messages and job files name it.
impl fmt::Display for Input {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => write!(to, "{}", path.display()),
            Self::Rows(held) => write!(to, "memory:{}", held.0.0),
        }
    }
}

impl fmt::Debug for Input {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "{:?}", self.to_string())
    }
}
