//! Queries of SQLite files.

use rusqlite::Connection;
use std::path::{Path, PathBuf};
use tempfile::TempDir;
use whimbrel_data::{CsvOptions, Database, Dataset, Error, Input, Kind, Query};

/// A database with some patients.
fn database() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("wards.db");
    let database = Connection::open(&path).unwrap();
    database
        .execute_batch(
            "CREATE TABLE patients (id INTEGER, ward TEXT, age INTEGER, dose REAL, born DATE, scan BLOB);
             INSERT INTO patients VALUES
               (9007199254740993, 'north', 61, 0.1, '1963-02-01', x'00'),
               (2, 'south', NULL, 1e300, '1970-01-01', x'01'),
               (3, NULL, 47, NULL, NULL, NULL);",
        )
        .unwrap();
    (folder, path)
}

fn read(path: &Path, query: &str) -> Result<std::sync::Arc<Dataset>, Error> {
    let file = path.with_extension("sql");
    std::fs::write(&file, query).unwrap();
    let query = Query::new(Database::Sqlite(path.into()), file);
    Input::Sql(query).read(&CsvOptions::default())
}

fn error(path: &Path, query: &str) -> String {
    let error = read(path, query).unwrap_err();
    assert!(matches!(error, Error::Format { .. } | Error::Rows { .. }), "{error}");
    error.to_string()
}

#[test]
fn cells_have_the_types_of_their_columns() {
    let (_folder, path) = database();
    let data =
        read(&path, "SELECT ward, age, dose, born, age * 2 AS twice FROM patients;\n").unwrap();
    let kinds: Vec<Kind> = data.columns().iter().map(|column| column.kind).collect();
    let (number, text) = (Kind::Number, Kind::Text);
    assert_eq!(kinds, [text, number, number, text, number]);
    assert_eq!((data.text(0, 0), data.text(2, 0)), (Some("north"), None));
    assert_eq!((data.number(0, 1), data.number(1, 1)), (Some(61.0), None));
    assert_eq!((data.number(0, 2), data.number(1, 2)), (Some(0.1), Some(1e300)));
    assert_eq!(data.text(0, 3), Some("1963-02-01"));
    assert_eq!(data.number(0, 4), Some(122.0));
}

#[test]
fn the_rows_are_read_once() {
    let (_folder, path) = database();
    let file = path.with_extension("sql");
    std::fs::write(&file, "SELECT ward, random() AS x FROM patients").unwrap();
    let input = Input::Sql(Query::new(Database::Sqlite(path), file));
    let [first, again] = [&input, &input.clone()].map(|i| i.read(&CsvOptions::default()).unwrap());
    assert!(std::sync::Arc::ptr_eq(&first, &again));
    assert_eq!(input.hash().unwrap(), input.clone().hash().unwrap());
}

#[test]
fn queries_that_are_not_one_select_are_refused() {
    let (_folder, path) = database();
    let before = std::fs::read(&path).unwrap();
    for (query, why) in [
        ("DELETE FROM patients", "does not only read rows"),
        ("DELETE FROM patients RETURNING id", "does not only read rows"),
        ("CREATE TABLE t (a)", "does not only read rows"),
        ("SELECT 1; DELETE FROM patients", "ultiple statements"),
        ("SELECT * FROM nurses", "no such table: nurses"),
        ("SELEC 1", "syntax error"),
        ("", "the query is empty"),
        ("SELECT ?1", "the query has parameters"),
        ("SELECT ward FROM patients WHERE age > 100", "there are no rows"),
        ("SELECT scan FROM patients", "column \"scan\" holds bytes"),
        ("SELECT age, age FROM patients", "both called \"age\""),
    ] {
        let found = error(&path, query);
        assert!(found.contains(why), "{query}: {found}");
    }
    assert_eq!(std::fs::read(&path).unwrap(), before);
    let absent = error(&path.with_extension("none"), "SELECT 1");
    assert!(absent.contains("there is no file"), "{absent}");
    std::fs::write(&path, [&before[..100], &[0xAA; 4000]].concat()).unwrap();
    error(&path, "SELECT * FROM patients");
}

#[test]
fn text_among_numbers_is_listed_by_row() {
    let (_folder, path) = database();
    let base = Connection::open(&path).unwrap();
    base.execute_batch("INSERT INTO patients (ward, age, dose) VALUES ('west', 'unknown', 1)")
        .unwrap();
    let data = read(&path, "SELECT age, dose FROM patients WHERE id IS NULL OR id < 0 OR age = 61")
        .unwrap();
    let error = data.require_complete(&[0]).unwrap_err().to_string();
    assert!(error.contains("row 2, column \"age\": \"unknown\" is not a number"), "{error}");
}

#[test]
fn integers_that_a_number_cannot_hold_are_not_rounded() {
    let (_folder, path) = database();
    let two = "SELECT 9007199254740992 AS id UNION SELECT 9007199254740993";
    let error = read(&path, two).unwrap().require_complete(&[0]).unwrap_err().to_string();
    let wanted = "row 2, column \"id\": 9007199254740993 has more digits than a number holds";
    assert!(error.contains(wanted) && error.contains("select it as text"), "{error}");
    let as_text = "SELECT CAST(9007199254740993 AS TEXT) AS id";
    assert_eq!(read(&path, as_text).unwrap().text(0, 0), Some("9007199254740993"));
}

#[test]
fn users_name_databases() {
    let (folder, path) = database();
    let query = Some(Path::new("rows.sql"));
    let text = format!("sqlite:{}", path.display());
    for given in [Path::new(&text), &path] {
        let named = Input::named(given, query).unwrap();
        assert_eq!(named.to_string(), text);
        assert!(Input::named(given, None).unwrap_err().to_string().contains("needs a query"));
    }
    let csv = folder.path().join("a.csv");
    std::fs::write(&csv, "a\n1\n").unwrap();
    assert!(Input::named(&csv, query).unwrap_err().to_string().contains("is not a database"));
    let secret = folder.path().join("url");
    std::fs::write(&secret, "postgres://ada:s3cret@db/wards\n").unwrap();
    let given = format!("@{}", secret.display());
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        std::fs::set_permissions(&secret, std::fs::Permissions::from_mode(0o644)).unwrap();
        let refused = Input::named(Path::new(&given), query).unwrap_err().to_string();
        assert!(refused.contains("other users can read this password file"), "{refused}");
        std::fs::set_permissions(&secret, std::fs::Permissions::from_mode(0o600)).unwrap();
    }
    let named = Input::named(Path::new(&given), query).unwrap();
    assert_eq!(
        (named.to_string(), format!("{named:?}").contains("s3cret")),
        ("postgres://ada@db/wards".into(), false)
    );
    let refused = Input::named(Path::new("postgres://ada:s3cret@db/wards"), query).unwrap_err();
    assert!(refused.to_string().contains("PGPASSFILE") && !refused.to_string().contains("s3cret"));
}
