//! Rows to read: a file, a query of a database, or rows that a program holds.

use crate::hash::{hash_columnar, hash_rows};
use crate::sql::{Database, Query};
use crate::{CsvOptions, Dataset, Error, Result, hash_path, is_parquet, read_csv, read_parquet};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The start of the path that stands for rows in memory.
const IN_MEMORY: &str = "memory:";

/// Rows to read: a file, a query of a database, or rows that a program holds.
#[derive(Clone)]
pub enum Input {
    /// Delimited text, or another format that its reader recognises.
    File(PathBuf),
    /// A Parquet or Arrow file, or a folder of them.
    Parquet(PathBuf),
    Sql(Query),
    Rows(SharedRows),
}

/// Rows in memory and their hash. Copies share them.
#[derive(Clone)]
pub struct SharedRows {
    hash: Arc<str>,
    rows: Arc<Dataset>,
}

impl SharedRows {
    pub(crate) fn of(data: Dataset) -> Self {
        Self { hash: hash_rows(&data).into(), rows: data.into() }
    }
}

impl Input {
    /// Rows in memory.
    pub fn rows(data: Dataset) -> Self {
        Self::Rows(SharedRows::of(data))
    }

    /// The rows that a user names: a file or folder, or with a query `postgres://...`, `sqlite:PATH`, an
    /// SQLite file, or `@FILE` with one of these in it, which may then have a password.
    pub fn named(given: &Path, query: Option<&Path>) -> Result<Self> {
        let text = given.to_str().unwrap_or_default();
        let database = match text.strip_prefix('@') {
            Some(file) => Some(in_private_file(file)?),
            None => Database::parse(text)?.or_else(|| Database::in_file(given)),
        };
        match (database, query) {
            (Some(database), Some(query)) => Ok(Self::Sql(Query::new(database, query))),
            (Some(database), None) => Err(Error::config(format!("{database} needs a query"))
                .hint("write a SELECT to a file, and add --query FILE.sql")),
            (None, Some(_)) => {
                Err(Error::config(format!("--query: {} is not a database", given.display()))
                    .hint("queries are for postgres://host/database and sqlite:FILE"))
            }
            (None, None) => Ok(Self::from(given)),
        }
    }

    /// The file of text; `None` for other inputs.
    pub fn file(&self) -> Option<&Path> {
        match self {
            Self::File(path) => Some(path),
            Self::Parquet(_) | Self::Sql(_) | Self::Rows(_) => None,
        }
    }

    /// The files, to resolve them against a folder.
    pub fn files_mut(&mut self) -> Vec<&mut PathBuf> {
        match self {
            Self::File(path) | Self::Parquet(path) => vec![path],
            Self::Sql(query) => query.files_mut().collect(),
            Self::Rows(_) => Vec::new(),
        }
    }

    /// Whether the file exists. Databases and rows in memory always do.
    pub fn exists(&self) -> bool {
        match self {
            Self::File(path) | Self::Parquet(path) => path.exists(),
            Self::Sql(_) | Self::Rows(_) => true,
        }
    }

    /// SHA-256 of the files' bytes, or of the rows.
    pub fn hash(&self) -> Result<String> {
        match self {
            Self::File(path) => hash_path(on_disk(path)?),
            Self::Parquet(path) => hash_columnar(path),
            Self::Sql(query) => Ok(query.rows()?.hash.to_string()),
            Self::Rows(held) => Ok(held.hash.to_string()),
        }
    }

    /// Reads the rows. The options do not apply to rows in memory and of databases, which are shared,
    /// not copied.
    pub fn read(&self, options: &CsvOptions) -> Result<Arc<Dataset>> {
        match self {
            Self::File(path) => read_csv(on_disk(path)?, options).map(Arc::new),
            Self::Parquet(path) => read_parquet(path, options).map(Arc::new),
            Self::Sql(query) => Ok(query.rows()?.rows.clone()),
            Self::Rows(held) => Ok(held.rows.clone()),
        }
    }
}

/// Refuses the path that stands for rows in memory in the job of a finished run.
fn on_disk(path: &Path) -> Result<&Path> {
    let name = path.file_name().and_then(|name| name.to_str());
    if name.is_some_and(|name| name.starts_with(IN_MEMORY)) && !path.exists() {
        return Err(Error::config("the rows of this job were in memory")
            .hint("write them to a file, and name it as `path` in [data]"));
    }
    Ok(path)
}

/// The database named in a file, which may have a password.
fn in_private_file(file: &str) -> Result<Database> {
    let text = std::fs::read_to_string(file).map_err(|e| Error::storage(file, &e))?;
    check_private(Path::new(file), file)?;
    let found = Database::with_password(text.trim()).filter(|_| text.trim().lines().count() == 1);
    found.ok_or_else(|| {
        let what = format!("{file} does not hold one URL of a database");
        Error::config(what).hint("its only line is postgres://user:password@host/database")
    })
}

/// Refuses a file that other users can read.
pub(crate) fn check_private(file: &Path, name: &str) -> Result<()> {
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let metadata = std::fs::metadata(file).map_err(|e| Error::storage(name, &e))?;
        if metadata.permissions().mode() & 0o077 != 0 {
            let what = format!("{name}: other users can read this password file");
            return Err(Error::config(what).hint(format!("chmod 600 {name}")));
        }
    }
    let _ = (file, name);
    Ok(())
}

/// A path; Parquet and Arrow files, and folders of them, are recognised by their content.
impl<P: AsRef<Path>> From<P> for Input {
    fn from(path: P) -> Self {
        let path = path.as_ref();
        if is_parquet(path) { Self::Parquet(path.into()) } else { Self::File(path.into()) }
    }
}

impl PartialEq for Input {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::File(one), Self::File(other)) => one == other,
            (Self::Parquet(one), Self::Parquet(other)) => one == other,
            (Self::Sql(one), Self::Sql(other)) => one == other,
            (Self::Rows(one), Self::Rows(other)) => one.hash == other.hash,
            _ => false,
        }
    }
}

/// The path, the place of the database without a password, or `memory:` and the hash.
impl fmt::Display for Input {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) | Self::Parquet(path) => path.display().fmt(to),
            Self::Sql(query) => query.database.fmt(to),
            Self::Rows(held) => write!(to, "{IN_MEMORY}{}", held.hash),
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
        let data = input.read(&CsvOptions::default()).unwrap();
        let table = data.table(&data.features(&Features::All { except: &[] }).unwrap()).unwrap();
        assert_eq!(table.values, [1.0, 2.0, 3.0, 4.0]);
        assert_eq!((data.text(0, 2), data.text(1, 2)), (Some("x"), None));
        let Input::Rows(held) = &input else { panic!("rows are in memory") };
        assert!(Arc::ptr_eq(&data.numbers, &held.rows.numbers), "numbers were copied");
        assert!(Arc::ptr_eq(&data.texts[0], &held.rows.texts[0]), "texts were copied");
    }
}
