//! Rows of a database: the result of one query, read once in a read-only transaction.

#[cfg(feature = "sql")]
mod password;
#[cfg(feature = "sql")]
mod postgres;
#[cfg(feature = "sql")]
mod sqlite;
#[cfg(feature = "sql")]
mod tls;

use crate::input::SharedRows;
use crate::{Error, Result};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

/// Most bytes of a query.
#[cfg(feature = "sql")]
const QUERY_BYTES_MAX: u64 = 1 << 20;

/// A database and a query. Copies share the rows, which are read at most once.
#[derive(Clone)]
pub struct Query {
    pub database: Database,
    /// The file with the query.
    pub file: PathBuf,
    rows: Arc<OnceLock<Result<SharedRows>>>,
}

/// The place of a database. Its text has no password.
#[derive(Clone, PartialEq)]
pub enum Database {
    /// The file of an SQLite database.
    Sqlite(PathBuf),
    Postgres(PostgresUrl),
}

/// `postgres://user@host/database`, possibly with a password, which is never shown.
#[derive(Clone, PartialEq)]
pub struct PostgresUrl(String);

/// The first bytes of an SQLite database.
const SQLITE: &[u8] = b"SQLite format 3\0";

impl Database {
    /// The database of `postgres://...` or `sqlite:PATH`; `None` for other text. A password is refused.
    pub fn parse(text: &str) -> Result<Option<Self>> {
        let found = Self::with_password(text);
        match &found {
            Some(Self::Postgres(url)) if url.shown() != url.0 => {
                let what =
                    "the URL of the database has a password, which process lists and logs show";
                Err(Error::config(what).hint(
                    "set PGPASSWORD, name a password file in PGPASSFILE, or give the whole URL in a \
                     file: --data @FILE",
                ))
            }
            _ => Ok(found),
        }
    }

    /// [`parse`](Self::parse) for text that other users cannot see.
    pub fn with_password(text: &str) -> Option<Self> {
        if let Some(path) = text.strip_prefix("sqlite:") {
            return Some(Self::Sqlite(path.strip_prefix("//").unwrap_or(path).into()));
        }
        let is_url = ["postgres://", "postgresql://"].iter().any(|start| text.starts_with(start));
        is_url.then(|| Self::Postgres(PostgresUrl(text.into())))
    }

    /// The database in a file, recognised by its first bytes.
    pub fn in_file(path: &Path) -> Option<Self> {
        use std::io::Read;
        let mut start = [0; SQLITE.len()];
        std::fs::File::open(path).ok()?.read_exact(&mut start).ok()?;
        (start == *SQLITE).then(|| Self::Sqlite(path.into()))
    }
}

impl PostgresUrl {
    /// The URL without its password.
    fn shown(&self) -> String {
        let Some((scheme, rest)) = self.0.split_once("://") else { return String::new() };
        // The last @ ends the password, which may hold unescaped marks of any kind.
        let rest = match rest.rsplit_once('@') {
            Some((user, place)) => {
                format!("{}@{place}", user.split(':').next().unwrap_or_default())
            }
            None => rest.into(),
        };
        let (place, options) = rest.split_once('?').unwrap_or((&rest, ""));
        // Names with escapes could spell `password`.
        let is_plain = |option: &&str| {
            let name = option.split('=').next().unwrap_or_default();
            !name.is_empty() && name != "password" && !name.contains('%')
        };
        let kept: Vec<&str> = options.split('&').filter(is_plain).collect();
        let mark = if kept.is_empty() { "" } else { "?" };
        format!("{scheme}://{place}{mark}{}", kept.join("&"))
    }
}

/// The place without a password.
impl fmt::Display for Database {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sqlite(path) => write!(to, "sqlite:{}", path.display()),
            Self::Postgres(url) => to.write_str(&url.shown()),
        }
    }
}

impl fmt::Debug for Database {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "{:?}", self.to_string())
    }
}

impl Query {
    pub fn new(database: Database, file: impl Into<PathBuf>) -> Self {
        Self { database, file: file.into(), rows: Arc::default() }
    }

    /// The query's file and the file of the database, if it is one.
    pub(crate) fn files_mut(&mut self) -> impl Iterator<Item = &mut PathBuf> {
        let database = match &mut self.database {
            Database::Sqlite(path) => Some(path),
            Database::Postgres(_) => None,
        };
        std::iter::once(&mut self.file).chain(database)
    }

    /// The rows; the first call runs the query.
    pub(crate) fn rows(&self) -> Result<&SharedRows> {
        self.rows.get_or_init(|| self.run().map(SharedRows::of)).as_ref().map_err(Error::clone)
    }

    #[cfg(feature = "sql")]
    fn run(&self) -> Result<crate::Dataset> {
        let file = self.file.display().to_string();
        let bytes = std::fs::metadata(&self.file).map_err(|e| Error::storage(&file, &e))?.len();
        if bytes > QUERY_BYTES_MAX {
            return Err(Error::format(&file, "a query of more than 1 MiB is too long"));
        }
        let text = std::fs::read_to_string(&self.file).map_err(|e| Error::storage(&file, &e))?;
        if text.trim().is_empty() {
            return Err(Error::format(&file, "the query is empty"));
        }
        let name = format!("{file} at {}", self.database);
        match &self.database {
            Database::Sqlite(path) => sqlite::read(path, &text, &name),
            Database::Postgres(url) => postgres::read(&url.0, &text, &name),
        }
    }

    #[cfg(not(feature = "sql"))]
    fn run(&self) -> Result<crate::Dataset> {
        let what = format!("{}: this program was built without databases", self.database);
        let hint = "build it with `--features full` (or `sql`), or export the table as CSV";
        Err(Error::config(what).hint(hint))
    }
}

impl PartialEq for Query {
    fn eq(&self, other: &Self) -> bool {
        self.database == other.database && self.file == other.file
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_are_refused_and_never_shown() {
        for (url, shown) in [
            ("postgres://ada:s3cret@db.example/wards", "postgres://ada@db.example/wards"),
            ("postgres://ada:s3/c@ret@db/wards", "postgres://ada@db/wards"),
            ("postgresql://ada@db/wards?password=s3cret", "postgresql://ada@db/wards"),
            (
                "postgres://db/wards?sslmode=require&password=s3cret",
                "postgres://db/wards?sslmode=require",
            ),
        ] {
            let error = Database::parse(url).unwrap_err().to_string();
            assert!(error.contains("PGPASSWORD") && !error.contains("s3"), "{error}");
            let database = Database::with_password(url).unwrap();
            assert_eq!(database.to_string(), shown);
            assert!(!format!("{database:?}").contains("s3"));
        }
        for url in ["postgres://ada@db:5432/wards?sslmode=require", "postgres://db", "sqlite:a.db"]
        {
            assert_eq!(Database::parse(url).unwrap().unwrap().to_string(), url);
        }
        assert_eq!(Database::parse("rows.csv").unwrap(), None);
    }
}
