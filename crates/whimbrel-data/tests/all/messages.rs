//! What a user reads when the data are wrong.

use crate::read;
use whimbrel_data::{
    CsvOptions, Features, by_client, dirichlet, hash_file, iid, read_csv, read_csv_bytes,
};

const ALL: Features<'_> = Features::All { except: &[] };

fn refused(text: &str) -> String {
    read(text).unwrap_err().to_string()
}

fn unusable(text: &str) -> String {
    let data = read(text).unwrap();
    by_client(&data, "client", &ALL).unwrap_err().to_string()
}

#[test]
fn every_bad_row_is_named_with_line_row_and_column() {
    let text = "client,age,dose\na,61,1\nb,sixty,2\n\nc,52\n\"d\n\",47,inf\n,50,NA\ne,1,1e999\nf,2,3,4\ng,1,1\nh,1,1\n";
    assert_eq!(
        unusable(text),
        "data.csv: 6 rows cannot be used
  line 3 (row 2), column \"age\": \"sixty\" is not a number
  line 5 (row 3): 2 cells where the header names 3 columns
  line 6 (row 4), column \"dose\": \"inf\" is not a finite number
  line 8 (row 5), column \"client\": the value is missing; column \"dose\": the value is missing
  line 9 (row 6), column \"dose\": \"1e999\" is not a finite number
  line 10 (row 7): 4 cells where the header names 3 columns
hint: every row needs one cell per column; put quotes around text that holds the delimiter"
    );
}

#[test]
fn twenty_bad_rows_are_listed_and_all_are_counted() {
    let mut text = String::from("client,x\n");
    (0..100).for_each(|i| text.push_str(&format!("a,{i}\n")));
    (0..33).for_each(|_| text.push_str("a,?\n"));
    let message = unusable(&text);
    let lines: Vec<&str> = message.lines().collect();
    assert_eq!(lines[0], "data.csv: 33 rows cannot be used");
    assert_eq!(lines[20], "  line 121 (row 120), column \"x\": \"?\" is not a number");
    assert_eq!(lines[21], "  and 13 more");
    assert_eq!(
        lines[22],
        "hint: mend these cells, or name the columns to use in `columns`; a missing value is an \
         empty cell, NA or NaN"
    );
    assert_eq!(lines.len(), 23);
}

#[test]
fn hints_fit_the_damage() {
    let hint = |text: &str| unusable(text).lines().last().unwrap().to_string();
    assert_eq!(
        hint("client\tx\na\t1,5\na\t2\na\t3\n"),
        "hint: write decimals with a point, as in 1.5"
    );
    assert_eq!(
        hint("client,x\na,1\na,\n"),
        "hint: fill these cells, remove these rows, or name the columns to use in `columns`"
    );
    assert_eq!(
        hint("client,x\na,1,2\nb,3,4\n").as_str(),
        "hint: the first line must name every column; it may not be a header"
    );
}

#[test]
fn a_missing_header_is_recognised() {
    assert_eq!(
        refused("5.1,3.5,0\n4.9,3.0,1\n"),
        "data.csv: line 1: the header is missing: \"5.1\" is a value
hint: the first line must name the columns, as in: client,x,y"
    );
    assert_eq!(
        refused("a,0.455,2\nb,0.35,1\n"),
        "data.csv: line 1: the header is missing: \"0.455\" is a value
hint: the first line must name the columns, as in: client,x,y"
    );
    assert!(refused("1,2\n3,4\n").contains("the header is missing: \"1\" is a value"));
}

#[test]
fn a_first_line_of_sizes_is_recognised() {
    assert_eq!(
        refused("2,3,red,blue\n1,2,3,0\n4,5,6,1\n"),
        "data.csv: line 1: the first line gives the file's sizes, not the names of its columns
hint: this is how scikit-learn bundles data; write the columns' names there instead"
    );
}

#[test]
fn files_that_are_not_tables_are_refused() {
    assert_eq!(
        refused(""),
        "data.csv: the file is empty\nhint: the first line must name the columns"
    );
    assert_eq!(refused("a,b\n"), "data.csv: there are no rows below the header");
    assert_eq!(
        refused("a,b\n1,2\n3,\"4\n5,6\n"),
        "data.csv: line 3: a quoted cell is never closed
hint: close it with \", and write a quote inside a quoted cell twice"
    );
    assert_eq!(
        refused("a,b\n1,2\n3,\"4\n\"x\n"),
        "data.csv: line 4: text follows a closing quote
hint: write a quote inside a quoted cell twice"
    );
    assert_eq!(
        refused("a,b,a\n1,2,3\n"),
        "data.csv: line 1: columns 1 and 3 are both called \"a\"\nhint: rename one of them"
    );
    let options = CsvOptions::default();
    let foreign = read_csv_bytes("sheet.xlsx", b"PK\x03\x04...", &options).unwrap_err();
    assert_eq!(
        foreign.to_string(),
        "sheet.xlsx: this is a zip archive or an Excel workbook, not CSV
hint: export the sheet as CSV"
    );
    let latin = read_csv_bytes("data.csv", b"client,x\ncaf\xe9,1\nb,2\n", &options).unwrap();
    assert!(
        by_client(&latin, "client", &ALL)
            .unwrap_err()
            .to_string()
            .contains("line 2 (row 1), column \"client\": the text is not UTF-8")
    );
}

#[test]
fn unknown_and_unfit_columns_are_named_with_what_would_be_right() {
    let data = read("client,age,dose\na,1,2\nb,3,4\n").unwrap();
    let message = |client: &str, columns: &[&str]| {
        let listed: Vec<String> = columns.iter().map(|c| c.to_string()).collect();
        by_client(&data, client, &Features::Listed(&listed)).unwrap_err().to_string()
    };
    assert_eq!(
        message("Clint", &["age"]),
        "data.csv has no column \"Clint\"\nhint: did you mean \"client\"?"
    );
    assert_eq!(
        message("hospital", &["age"]),
        "data.csv has no column \"hospital\"\nhint: its columns are \"client\", \"age\", \"dose\""
    );
    assert_eq!(
        message("age", &["client"]),
        "column \"client\" of data.csv holds text, not numbers\nhint: it holds \"a\", \"b\""
    );
    assert_eq!(
        message("age", &["age"]),
        "column \"age\" names the client and cannot be a feature\nhint: take it out of `columns`"
    );
    assert_eq!(message("client", &["age", "age"]), "column \"age\" is listed twice");
    assert_eq!(message("client", &[]), "the list of columns is empty\nhint: name at least one");
}

#[test]
fn impossible_splits_are_refused() {
    let data = read("label,x\na,1\nb,3\n").unwrap();
    let key = whimbrel_core::Key::root(1);
    assert_eq!(
        iid(&data, 3, key).unwrap_err().to_string(),
        "data.csv has 2 rows, which cannot be split over 3 clients
hint: give a number of clients from 1 to 2"
    );
    assert_eq!(
        dirichlet(&data, "label", 2, -1.0, key).unwrap_err().to_string(),
        "alpha = -1 cannot spread classes over clients
hint: give a positive number, such as 0.3"
    );
}

#[test]
fn files_that_cannot_be_opened_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let absent = folder.path().join("absent.csv");
    let message = read_csv(&absent, &CsvOptions::default()).unwrap_err().to_string();
    assert!(message.starts_with(&absent.display().to_string()), "{message}");
    let message = hash_file(folder.path()).unwrap_err().to_string();
    assert!(message.ends_with("is a folder, where a file is needed"), "{message}");
}

#[test]
fn errors_keep_their_class_on_the_way_up() {
    use whimbrel_core::Error as Core;
    let data = read("client,x\na,?\nb,1\nc,2\n").unwrap();
    let rows = by_client(&data, "client", &ALL).unwrap_err();
    assert!(matches!(Core::from(rows), Core::Data { .. }));
    assert!(matches!(
        Core::from(data.column("y").unwrap_err()),
        Core::Config { hint: Some(_), .. }
    ));
}
