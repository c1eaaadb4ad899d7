//! Reading delimited text.

use crate::{gzipped, read};
use proptest::prelude::*;
use whimbrel_data::{CsvOptions, Dataset, Features, Kind, Source, by_client, read_csv};

fn kinds(data: &Dataset) -> Vec<Kind> {
    data.columns().iter().map(|c| c.kind).collect()
}

fn names(data: &Dataset) -> Vec<&str> {
    data.columns().iter().map(|c| c.name.as_str()).collect()
}

const ALL: Features<'_> = Features::All { except: &[] };

#[test]
fn quotes_line_ends_marks_and_blanks_are_understood() {
    let text = "\u{feff}name, x ,note\r\n\"a, b\", 1.5 ,\"two\nlines\"\r\n\r\n\"say \"\"hi\"\"\",-2,\r\n\"\" , 3 ,5\" pipe";
    let data = read(text).unwrap();
    assert_eq!(names(&data), ["name", "x", "note"]);
    assert_eq!(kinds(&data), [Kind::Text, Kind::Number, Kind::Text]);
    assert_eq!(data.rows(), 3);
    assert_eq!(data.text(0, 0), Some("a, b"));
    assert_eq!(data.text(0, 2), Some("two\nlines"));
    assert_eq!(data.text(1, 0), Some("say \"hi\""));
    assert_eq!(data.text(1, 2), None);
    assert_eq!(data.text(2, 0), None);
    assert_eq!(data.text(2, 2), Some("5\" pipe"));
    assert_eq!([0, 1, 2].map(|row| data.number(row, 1)), [Some(1.5), Some(-2.0), Some(3.0)]);
}

#[test]
fn the_delimiter_is_found_or_given() {
    for text in ["a,b\n1,2\n", "a;b\n1;2\n", "a\tb\n1\t2\n", "\"a,x,y\";b\n1;2\n"] {
        let data = read(text).unwrap();
        assert_eq!((data.number(0, 0), data.number(0, 1)), (Some(1.0), Some(2.0)), "{text:?}");
    }
    let options = CsvOptions { delimiter: Some(b'|'), ..CsvOptions::default() };
    let data = read_csv(Source::bytes("data.csv", b"a|b,c\n1|2\n"), &options).unwrap();
    assert_eq!(names(&data), ["a", "b,c"]);
    let single = read("x\n1;5\n2;5\n").unwrap();
    assert_eq!(kinds(&single), [Kind::Text]);
}

#[test]
fn kinds_follow_the_majority_of_the_whole_file() {
    let data = read("a,b,c,d\n1,x,NA,\n?,y,,\n3,1,nan,\n").unwrap();
    assert_eq!(kinds(&data), [Kind::Number, Kind::Text, Kind::Number, Kind::Number]);
    // The first thousand rows say number, the file says text: what they held is kept as written.
    let mut text = String::from("code,empty\n");
    (0..1000).for_each(|i| text.push_str(&format!("{i:05},\n")));
    (0..2000).for_each(|i| text.push_str(&format!("k{i},late\n")));
    let data = read(&text).unwrap();
    assert_eq!(kinds(&data), [Kind::Text, Kind::Text]);
    assert_eq!(data.text(7, 0), Some("00007"));
    assert_eq!((data.text(999, 1), data.text(1000, 1)), (None, Some("late")));
    // And the other way round.
    let mut text = String::from("value\n");
    (0..1000).for_each(|_| text.push_str("unknown\n"));
    (0..1001).for_each(|i| text.push_str(&format!("{i}.5\n")));
    let data = read(&text).unwrap();
    assert_eq!(kinds(&data), [Kind::Number]);
    assert_eq!(data.number(2000, 0), Some(1000.5));
}

#[test]
fn columns_read_as_text_keep_their_zeros() {
    let options = CsvOptions { text: vec!["ward".into()], ..CsvOptions::default() };
    let data = read_csv(Source::bytes("data.csv", b"ward,x\n007,1\n7,2\n"), &options).unwrap();
    let clients = by_client(&data, "ward", &ALL).unwrap();
    assert_eq!(clients.iter().map(|(n, _)| n.as_str()).collect::<Vec<_>>(), ["007", "7"]);
}

#[test]
fn numbered_columns_are_a_header() {
    let data = read("0,1,2,3\n5,6,7,8\n").unwrap();
    assert_eq!((data.rows(), names(&data)), (1, vec!["0", "1", "2", "3"]));
    let data = read("label,0,1\na,6,7\n").unwrap();
    assert_eq!(data.rows(), 1);
}

#[test]
fn unnamed_columns_are_features_only_on_request() {
    let data = read("\"\",x\n1,5\n2,6\n").unwrap();
    assert_eq!(data.features(&ALL).unwrap(), [1]);
    let listed = ["#1".to_string(), "x".to_string()];
    assert_eq!(data.features(&Features::Listed(&listed)).unwrap(), [0, 1]);
}

#[test]
fn clients_are_sorted_by_name_and_keep_the_order_of_their_rows() {
    let data = read("id,client,y,x\n1,9,1,2\n2,10,3,4\n3,9,5,6\n").unwrap();
    let chosen = ["x".to_string(), "y".to_string()];
    let clients = by_client(&data, "client", &Features::Listed(&chosen)).unwrap();
    assert_eq!(clients[0].0, "10");
    assert_eq!(clients[0].1.values, [4.0, 3.0]);
    assert_eq!(clients[1].1.columns[..], chosen);
    assert_eq!(clients[1].1.values, [2.0, 1.0, 6.0, 5.0]);
    let all = by_client(&data, "client", &Features::All { except: &["id"] }).unwrap();
    assert_eq!(all[0].1.columns[..], ["y", "x"]);
}

#[test]
fn gzip_is_unpacked_whatever_the_name() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data.csv");
    std::fs::write(&path, gzipped(b"a,b\n1,2\n")).unwrap();
    let data = read_csv(&path, &CsvOptions::default()).unwrap();
    assert_eq!(data.table(&[0, 1]).unwrap().values, [1.0, 2.0]);
}

#[test]
fn records_longer_than_the_buffer_are_read() {
    let long = "y".repeat(700_000);
    let text = format!("x,t\n1,\"{long}\n{long}\"\n2,b\n");
    let data = read(&text).unwrap();
    assert_eq!(data.text(0, 1).unwrap().len(), 1_400_001);
    assert_eq!(data.number(1, 0), Some(2.0));
}

/// One cell as it is written and as it should be read.
fn cell() -> impl Strategy<Value = (String, Option<String>)> {
    prop_oneof![
        Just((String::new(), None)),
        "[a-z]{1,5}".prop_filter("not missing", |s| s != "nan").prop_map(|s| (s.clone(), Some(s))),
        "[a-z,\"\n;é ]{0,6}z".prop_map(|s| (format!("\"{}\"", s.replace('"', "\"\"")), Some(s))),
    ]
}

proptest! {
    #[test]
    fn written_text_is_read_back(
        rows in prop::collection::vec((cell(), cell()), 1..30),
        end in prop_oneof![Just("\n"), Just("\r\n")],
    ) {
        let mut text = format!("k,a,b{end}");
        for (i, ((a, _), (b, _))) in rows.iter().enumerate() {
            text.push_str(&format!("{i},{a},{b}{end}"));
        }
        let options = CsvOptions { text: vec!["a".into(), "b".into()], ..CsvOptions::default() };
        let data = read_csv(Source::bytes("data.csv", text.as_bytes()), &options).unwrap();
        prop_assert_eq!(data.rows(), rows.len());
        for (i, ((_, a), (_, b))) in rows.iter().enumerate() {
            prop_assert_eq!(data.number(i, 0), Some(i as f64));
            prop_assert_eq!(data.text(i, 1), a.as_deref());
            prop_assert_eq!(data.text(i, 2), b.as_deref());
        }
    }

    #[test]
    fn no_bytes_make_the_reader_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = read_csv(Source::bytes("data.csv", &bytes), &CsvOptions::default());
    }

    #[test]
    fn no_text_makes_the_reader_panic(text in "[a,\"\n\r; \t1.\\-é]{0,80}") {
        if let Ok(data) = read(&text) {
            let columns: Vec<usize> = (0..data.columns().len()).collect();
            prop_assert!(data.bad_rows(&columns).1 <= data.rows());
            whimbrel_data::inspect(&data, None).unwrap().to_string();
        }
    }
}
