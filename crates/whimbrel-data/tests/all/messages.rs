//! Messages about wrong data.

use crate::{dirichlet, read};
use whimbrel_data::{
    ColumnType, CsvOptions, Declared, Features, Source, by_client, hash_file, iid_rows, read_csv,
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
    assert_eq!(lines[22], "hint: if \"?\" marks a missing value, write na = [\"?\"] in [data]");
    assert_eq!(lines.len(), 23);
}

#[test]
fn hints_fit_the_damage() {
    let cases = [
        ("client\tx\na\t1,5\na\t2\na\t3\n", "write decimals with a point, as in 1.5"),
        (
            "client,x\na,1\na,\n",
            "fill these cells, remove these rows, or name the columns to use in `columns`",
        ),
        (
            "client,x\na,1,2\nb,3,4\n",
            "the first line must name every column; it may not be a header",
        ),
    ];
    for (text, hint) in cases {
        assert_eq!(unusable(text).lines().last(), Some(&*format!("hint: {hint}")));
    }
}

#[test]
fn files_that_are_not_tables_are_refused() {
    let header = "the first line must name the columns, as in: client,x,y";
    let cases = [
        ("5.1,3.5,0\n4.9,3.0,1\n", "line 1: the header is missing: \"5.1\" is a value", header),
        ("a,0.455,2\nb,0.35,1\n", "line 1: the header is missing: \"0.455\" is a value", header),
        ("1,2\n3,4\n", "line 1: the header is missing: \"1\" is a value", header),
        (
            "2,3,red,blue\n1,2,3,0\n4,5,6,1\n",
            "line 1: the first line gives the file's sizes, not the names of its columns",
            "scikit-learn writes such files: replace the first line by the names of the columns",
        ),
        ("", "the file is empty", "the first line must name the columns"),
        (
            "a,b\n1,2\n3,\"4\n5,6\n",
            "line 3: a quoted cell is never closed",
            "close it with \", and write a quote inside a quoted cell twice",
        ),
        (
            "a,b\n1,2\n3,\"4\n\"x\n",
            "line 4: text follows a closing quote",
            "write a quote inside a quoted cell twice",
        ),
        ("a,b,a\n1,2,3\n", "line 1: columns 1 and 3 are both called \"a\"", "rename one of them"),
        (
            "PK\x03\x04...",
            "this is a zip archive or an Excel workbook, not CSV",
            "export the sheet as CSV",
        ),
    ];
    for (text, what, hint) in cases {
        assert_eq!(refused(text), format!("data.csv: {what}\nhint: {hint}"));
    }
    assert_eq!(refused("a,b\n"), "data.csv: there are no rows below the header");
    let latin = Source::bytes("data.csv", b"client,x\ncaf\xe9,1\nb,2\n");
    let latin = read_csv(latin, &CsvOptions::default()).unwrap();
    let message = by_client(&latin, "client", &ALL).unwrap_err().to_string();
    let expected = "line 2 (row 1), column \"client\": the text is not UTF-8";
    assert!(message.contains(expected), "{message}");
}

#[test]
fn unknown_and_unfit_columns_are_named_with_what_would_be_right() {
    let data = read("client,age,dose\na,1,2\nb,3,4\n").unwrap();
    let cases: [(&str, &[&str], &str); 6] = [
        ("Clint", &["age"], "data.csv has no column \"Clint\"\nhint: did you mean \"client\"?"),
        (
            "hospital",
            &["age"],
            "data.csv has no column \"hospital\"\n\
             hint: its columns are \"client\", \"age\", \"dose\"",
        ),
        (
            "age",
            &["client"],
            "column \"client\" of data.csv holds text, not numbers\nhint: it holds \"a\", \"b\"",
        ),
        (
            "age",
            &["age"],
            "column \"age\" names the client and cannot be a feature\n\
             hint: take it out of `columns`",
        ),
        ("client", &["age", "age"], "column \"age\" is listed twice"),
        ("client", &[], "the list of columns is empty\nhint: name at least one"),
    ];
    for (client, columns, expected) in cases {
        let listed: Vec<String> = columns.iter().map(|c| c.to_string()).collect();
        let message = by_client(&data, client, &Features::Listed(&listed)).unwrap_err();
        assert_eq!(message.to_string(), expected);
    }
}

#[test]
fn impossible_splits_are_refused() {
    let data = read("label,x\na,1\nb,3\n").unwrap();
    let key = whimbrel_core::Key::root(1);
    assert_eq!(
        iid_rows(2, 3, key).unwrap_err().to_string(),
        "the data set has 2 rows, which cannot be split over 3 clients
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
    assert!(message.ends_with("is a folder, not a file"), "{message}");
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

#[test]
fn cells_are_compared_with_the_declared_columns() {
    let declared = |name: &str, kind: ColumnType, min, max| {
        let unit = (kind == ColumnType::Number).then(|| "years".into());
        Declared { name: name.into(), kind, unit, min, max }
    };
    let arms = ColumnType::Category(vec!["control".into(), "treated".into()]);
    let schema = [
        declared("age", ColumnType::Number, Some(0.0), Some(120.0)),
        declared("falls", ColumnType::Count, None, Some(9.0)),
        declared("arm", arms, None, None),
        declared("smoker", ColumnType::YesNo, None, None),
    ];
    let text =
        "age,falls,arm,smoker\n61,0,control,no\n130,10,treated,yes\n-1,1.5,placebo,yes\n,,,\n";
    let data = read(text).unwrap();
    assert_eq!(
        data.check_declared(&schema, false).unwrap_err().to_string(),
        "data.csv: 2 rows cannot be used
  line 3 (row 2), column \"age\": 130 is above `max`, 120 years; column \"falls\": 10 is above `max`, 9
  line 4 (row 3), column \"age\": -1 is below `min`, 0 years; column \"falls\": 1.5 is not a count: counts \
are non-negative integers; column \"arm\": \"placebo\" is not one of the levels [\"control\", \"treated\"]
hint: correct the cells, or the types and limits in [schema]"
    );
    // A row of too few cells has another hint.
    read("age,arm\n61\n").unwrap().check_declared(&[], false).unwrap();
    // Clipped limits do not fail, types do.
    let message = data.check_declared(&schema, true).unwrap_err().to_string();
    assert!(!message.contains("130") && message.contains("1.5 is not a count"), "{message}");
    for text in ["smoker\nno\nYes\nTRUE\n", "smoker\n0\nt\nf\n1\n"] {
        read(text).unwrap().check_declared(&schema[3..], false).unwrap();
    }
    let three = read("smoker\nno\nyes\nmaybe\n").unwrap();
    let message = three.check_declared(&schema[3..], false).unwrap_err().to_string();
    assert!(message.contains("column \"smoker\" holds 3 levels"), "{message}");
}

/// Sources spell booleans in their own ways; levels that spell no and yes take them all.
#[test]
fn every_spelling_of_yes_and_no_counts() {
    let types = [("x".to_owned(), ColumnType::YesNo)];
    let levels_of = |text: &str| read(text).unwrap().mixed_columns(None, &types, &[]);
    for (text, levels) in [
        ("x\nTrue\nFalse\n", ["False", "True"]),
        ("x\nYes\nno\n", ["no", "Yes"]),
        ("x\ntrue\nTRUE\n0\n", ["0", "1"]),
        ("x\nt\nNA\n", ["0", "1"]),
        ("x\nwoman\nman\n", ["man", "woman"]),
    ] {
        let columns = levels_of(text).unwrap();
        assert_eq!(columns[0].levels, levels, "{text}");
        for other in ["x\nfalse\ntrue\n", "x\n0\n1\n", "x\nF\nT\n", "x\nn\nYES\n"] {
            let found = read(other).unwrap().mixed_table(&columns);
            match levels {
                ["man", _] => {
                    let message = found.unwrap_err().to_string();
                    assert!(message.contains("is not one of the levels"), "{message}");
                }
                _ => assert_eq!(found.unwrap().values, [0.0, 1.0], "{text} {other}"),
            }
        }
    }
    assert!(levels_of("x\nyes\nno\nmaybe\n").is_err());
}
