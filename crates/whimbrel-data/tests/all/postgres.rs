//! Queries of a PostgreSQL server that the test starts.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use std::path::Path;
use std::sync::Arc;
use tempfile::TempDir;
use whimbrel_data::{CsvOptions, Database, Dataset, Error, Input, Kind, Query};
use whimbrel_testkit::Postgres;

const PATIENTS: &str = "CREATE TYPE sex AS ENUM ('female', 'male');
    CREATE DOMAIN years AS integer;
    CREATE TABLE patients (id bigint, ward text, code char(4), age years, dose double precision,
        cost numeric, treated boolean, sex sex, born date, seen timestamptz, at time, small smallint,
        single real, key uuid, notes jsonb);
    INSERT INTO patients VALUES
        (9007199254740993, 'north', 'a', 61, 0.1, 12345678901234567890.123, true, 'male', '1963-02-01',
         '2024-05-17 12:00:00+02', '08:30:00.25', -7, 0.1, '00112233-4455-6677-8899-aabbccddeeff', '{}'),
        (2, '', NULL, NULL, 'NaN', 'NaN', false, NULL, NULL, NULL, NULL, NULL, 'Infinity', NULL, NULL);";

/// The server's URL with the password, which percent signs escape.
fn url(server: &Postgres, options: &str) -> String {
    let password = "s3cret%3A%20of%5Cada";
    server.url().replacen('@', &format!(":{password}@"), 1) + options
}

fn read(folder: &Path, url: &str, query: &str) -> Result<Arc<Dataset>, Error> {
    let file = folder.join("rows.sql");
    std::fs::write(&file, query).unwrap();
    let database = Database::with_password(url).unwrap();
    Input::Sql(Query::new(database, file)).read(&CsvOptions::default())
}

fn started(certificate: Option<(&str, &str)>) -> Option<(TempDir, Postgres)> {
    let folder = tempfile::tempdir().unwrap();
    let server = Postgres::start(folder.path(), certificate)?;
    Some((folder, server))
}

#[test]
fn cells_have_the_types_of_the_server() {
    let Some((folder, server)) = started(None) else { return };
    server.run(PATIENTS);
    let all = "SELECT ward, code, age, dose, cost, treated, sex, born, seen, at, small, single, key, id \
               FROM patients ORDER BY id DESC; -- the comment of a query";
    let data = read(folder.path(), &url(&server, ""), all).unwrap();
    let cell = |row: usize, at: usize| match data.columns()[at].kind {
        Kind::Number => data.number(row, at).map(|x| x.to_string()),
        Kind::Text => data.text(row, at).map(String::from),
    };
    let cells = |row: usize| -> Vec<String> {
        (0..data.columns().len()).map(|at| cell(row, at).unwrap_or_default()).collect()
    };
    let single = f64::from(0.1f32).to_string();
    assert_eq!(
        cells(0),
        [
            "north",
            "a",
            "61",
            "0.1",
            "12345678901234567000",
            "1",
            "male",
            "1963-02-01",
            "2024-05-17T10:00:00Z",
            "08:30:00.25",
            "-7",
            &single,
            "00112233-4455-6677-8899-aabbccddeeff",
            "",
        ]
    );
    assert_eq!(data.number(0, 4), Some(12345678901234567890.123));
    assert_eq!(cells(1), ["", "", "", "", "", "0", "", "", "", "", "", "", "", "2"]);
    let error = data.require_complete(&[11]).unwrap_err().to_string();
    assert!(error.contains("row 2, column \"single\": \"inf\" is not a finite number"), "{error}");
    let error = data.require_complete(&[13]).unwrap_err().to_string();
    let wanted = "row 1, column \"id\": 9007199254740993 has more digits than a number holds";
    assert!(error.contains(wanted), "{error}");
}

#[test]
fn many_rows_are_streamed_in_order() {
    let Some((folder, server)) = started(None) else { return };
    let query =
        "SELECT i, i * 0.5::float8 AS half, 'w' || i % 3 AS ward FROM generate_series(1, 50000) i";
    let data = read(folder.path(), &url(&server, ""), query).unwrap();
    assert_eq!(data.rows(), 50_000);
    for row in 0..data.rows() {
        assert_eq!(data.number(row, 1), Some((row + 1) as f64 / 2.0));
    }
    assert_eq!(data.text(49_999, 2), Some("w2"));
}

#[test]
fn what_is_not_one_select_of_plain_cells_is_refused() {
    let Some((folder, server)) = started(None) else { return };
    server.run(PATIENTS);
    for (query, why) in [
        ("DELETE FROM patients RETURNING id", "cannot execute DELETE in a read-only transaction"),
        ("CREATE TABLE t (a int)", "the query returns no columns"),
        ("SELECT 1; DELETE FROM patients", "multiple commands"),
        ("SELECT * FROM nurses", "relation \"nurses\" does not exist"),
        ("SELEC 1", "syntax error"),
        ("SELECT $1::int", "the query has parameters"),
        ("SELECT notes FROM patients", "column \"notes\" has the type jsonb"),
        ("SELECT age, age FROM patients", "both called \"age\""),
        ("SELECT id FROM patients WHERE id < 0", "there are no rows"),
        ("SELECT 1 / (id - 2) AS x FROM patients", "division by zero"),
        // The server ends the connection in the middle of the rows.
        (
            "SELECT CASE WHEN i = 40000 THEN pg_terminate_backend(pg_backend_pid())::int ELSE i END AS x \
             FROM generate_series(1, 50000) i",
            "the server ended the connection",
        ),
    ] {
        let error = read(folder.path(), &url(&server, ""), query).unwrap_err();
        assert!(matches!(error, Error::Format { .. }), "{query}: {error}");
        let error = error.to_string();
        assert!(error.contains(why), "{query}: {error}");
        assert!(!error.contains("s3cret"), "{error}");
    }
    let rest = read(folder.path(), &url(&server, ""), "SELECT id FROM patients").unwrap();
    assert_eq!(rest.rows(), 2, "a query changed the table");
}

#[test]
fn connections_that_fail_are_explained_without_the_password() {
    let Some((folder, server)) = started(None) else { return };
    let wrong = server.url().replacen('@', ":w0rd@", 1);
    let remote = "postgres://ada:s3cret@db.example.org/wards";
    for (url, why) in [
        (wrong.as_str(), "password authentication failed"),
        (remote, "sslrootcert=FILE"),
        (&url(&server, "?sslmode=require"), "sslrootcert=FILE"),
        (&url(&server, "?sslmode=often"), "sslmode=often is not known"),
        (&url(&server, "?hostaddr=127.0.0.1"), "hostaddr would reach another machine"),
        (&url(&server, "?color=red"), "unknown option"),
        (&url(&server, "?sslrootcert=absent.pem"), "absent.pem"),
    ] {
        let error = read(folder.path(), url, "SELECT 1").unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
        assert!(!error.contains("s3cret") && !error.contains("w0rd"), "{error}");
    }
    server.stop();
    let error = read(folder.path(), &url(&server, ""), "SELECT 1").unwrap_err();
    assert!(matches!(error, Error::Storage { .. }), "{error}");
}

/// A text form with lines of 64 characters.
fn pem(label: &str, der: &[u8]) -> String {
    let text = BASE64_STANDARD.encode(der);
    let lines: Vec<&str> =
        text.as_bytes().chunks(64).map(|line| std::str::from_utf8(line).unwrap()).collect();
    format!("-----BEGIN {label}-----\n{}\n-----END {label}-----\n", lines.join("\n"))
}

#[test]
fn certificates_are_verified() {
    let names = vec!["127.0.0.1".to_owned()];
    let [own, foreign] =
        [(); 2].map(|()| rcgen::generate_simple_self_signed(names.clone()).unwrap());
    let (certificate, key) =
        (pem("CERTIFICATE", own.cert.der()), pem("PRIVATE KEY", &own.signing_key.serialize_der()));
    let Some((folder, server)) = started(Some((&certificate, &key))) else { return };
    let query = "SELECT ssl::int AS encrypted FROM pg_stat_ssl WHERE pid = pg_backend_pid()";
    let [trusted, other] = ["own.pem", "foreign.pem"].map(|name| folder.path().join(name));
    std::fs::write(&trusted, &certificate).unwrap();
    std::fs::write(&other, pem("CERTIFICATE", foreign.cert.der())).unwrap();
    let by = |file: &Path| url(&server, &format!("?sslrootcert={}", file.display()));
    let data = read(folder.path(), &by(&trusted), query).unwrap();
    assert_eq!(data.number(0, 0), Some(1.0));
    assert_eq!(read(folder.path(), &url(&server, ""), query).unwrap().number(0, 0), Some(0.0));
    let error = read(folder.path(), &by(&other), query).unwrap_err().to_string();
    assert!(error.contains("certificate"), "{error}");
}
