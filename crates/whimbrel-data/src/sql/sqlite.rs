//! Queries of SQLite files.

use crate::dataset::Kind;
use crate::typed::TypedRows;
use crate::{Dataset, Error, Result};
use rusqlite::types::ValueRef;
use rusqlite::{Connection, OpenFlags, Row};
use std::path::Path;

/// Rows from which the kinds of columns without a declared type are guessed.
const GUESS_ROWS: usize = 1000;

/// Reads the result of a query. SQLite types cells, not columns: a column has the kind of its declared
/// type, or else of most of its first cells.
pub(super) fn read(path: &Path, query: &str, name: &str) -> Result<Dataset> {
    if !path.is_file() {
        let what = format!("there is no file {}", path.display());
        return Err(Error::format(name, what));
    }
    let broken = |e: rusqlite::Error| Error::format(name, e.to_string());
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let database = Connection::open_with_flags(path, flags).map_err(broken)?;
    let mut statement = database.prepare(query).map_err(broken)?;
    if statement.column_count() == 0 || !statement.readonly() {
        let what = "the query does not only read rows";
        return Err(Error::format(name, what).hint("write one SELECT"));
    }
    if statement.parameter_count() > 0 {
        return Err(Error::format(name, "the query has parameters, which nothing fills"));
    }
    let names: Vec<String> = statement.column_names().into_iter().map(String::from).collect();
    let declared: Vec<Option<Kind>> =
        statement.columns().iter().map(|column| column.decl_type().and_then(affinity)).collect();
    let mut found = statement.query([]).map_err(broken)?;
    let mut head: Vec<Vec<Cell>> = Vec::new();
    while head.len() < GUESS_ROWS
        && let Some(row) = found.next().map_err(broken)?
    {
        let cell = |at: usize| Cell::of(row, at, &names[at], name);
        head.push((0..names.len()).map(cell).collect::<Result<_>>()?);
    }
    let kind = |at: usize| declared[at].unwrap_or_else(|| guess(head.iter().map(|row| &row[at])));
    let columns = (0..names.len()).map(|at| (names[at].clone(), kind(at))).collect();
    let mut rows = TypedRows::new(name, columns)?;
    for row in &head {
        rows.extend(1)?;
        row.iter().enumerate().for_each(|(at, cell)| cell.append(&mut rows, at));
    }
    while let Some(row) = found.next().map_err(broken)? {
        rows.extend(1)?;
        for (at, column) in names.iter().enumerate() {
            Cell::of(row, at, column, name)?.append(&mut rows, at);
        }
    }
    rows.finish(Vec::new())
}

enum Cell {
    Missing,
    Integer(i64),
    Real(f64),
    Text(String),
}

impl Cell {
    fn of(row: &Row<'_>, at: usize, column: &str, name: &str) -> Result<Self> {
        let value = row.get_ref(at).map_err(|e| Error::format(name, e.to_string()))?;
        Ok(match value {
            ValueRef::Null => Self::Missing,
            ValueRef::Integer(x) => Self::Integer(x),
            ValueRef::Real(x) => Self::Real(x),
            ValueRef::Text(text) => match std::str::from_utf8(text) {
                Ok(text) => Self::Text(text.into()),
                Err(_) => {
                    let what = format!("column {column:?} holds text that is not UTF-8");
                    return Err(Error::format(name, what));
                }
            },
            ValueRef::Blob(_) => {
                let what = format!("column {column:?} holds bytes");
                return Err(Error::format(name, what).hint("leave it out of the query"));
            }
        })
    }

    /// Completes the last row.
    fn append(&self, rows: &mut TypedRows, at: usize) {
        let row = rows.rows() - 1;
        match (rows.kind(at), self) {
            (Kind::Number, Self::Missing) => {}
            (Kind::Number, Self::Integer(x)) => rows.set_integer(row, at, *x),
            (Kind::Number, Self::Real(x)) => rows.set(row, at, *x),
            (Kind::Number, Self::Text(text)) => rows.refuse(row, at, text),
            (Kind::Text, Self::Missing) => rows.push(at, None),
            (Kind::Text, Self::Integer(x)) => rows.push(at, Some(&x.to_string())),
            (Kind::Text, Self::Real(x)) => rows.push(at, Some(&x.to_string())),
            (Kind::Text, Self::Text(text)) => rows.push(at, Some(text)),
        }
    }
}

/// The kind of a declared type, by SQLite's rules of affinity; dates are text or numbers.
fn affinity(declared: &str) -> Option<Kind> {
    let declared = declared.to_ascii_uppercase();
    let has = |parts: &[&str]| parts.iter().any(|part| declared.contains(part));
    match () {
        () if has(&["INT", "REAL", "FLOA", "DOUB", "NUMERIC", "DECIMAL", "BOOL"]) => {
            Some(Kind::Number)
        }
        () if has(&["CHAR", "CLOB", "TEXT"]) => Some(Kind::Text),
        () => None,
    }
}

fn guess<'a>(cells: impl Iterator<Item = &'a Cell>) -> Kind {
    let (mut numbers, mut texts) = (0, 0);
    for cell in cells {
        match cell {
            Cell::Missing => {}
            Cell::Integer(_) | Cell::Real(_) => numbers += 1,
            Cell::Text(_) => texts += 1,
        }
    }
    if texts > numbers { Kind::Text } else { Kind::Number }
}
