//! Reading LIBSVM text.

use crate::gzipped;
use proptest::prelude::*;
use std::fmt::Write as _;
use whimbrel_core::{FeatureRows, Labelled};
use whimbrel_data::{Error, Source, dense_rows, read_libsvm};

fn read(text: &str) -> Result<Labelled, Error> {
    read_libsvm(Source::bytes("toy.txt", text.as_bytes()), None)
}

#[test]
fn rows_keep_targets_and_leave_zeros_out() {
    let text = "\u{feff}# a comment\n+1 1:0.5 3:-2e1 # the rest\n\n-1\r\n0.25 2:0 4:+7\t\n-1 ";
    let data = read(text).unwrap();
    assert_eq!(data.columns, ["f1", "f2", "f3", "f4"]);
    assert_eq!(data.targets, [1.0, -1.0, 0.25, -1.0]);
    let FeatureRows::Sparse { starts, columns, values } = &data.rows else { panic!("not sparse") };
    assert_eq!(starts, &[0, 2, 2, 3, 3]);
    assert_eq!(columns, &[0, 2, 3]);
    assert_eq!(values, &[0.5, -20.0, 7.0]);
    assert_eq!(dense_rows(&data).unwrap()[8..12], [0.0, 0.0, 0.0, 7.0]);
}

#[test]
fn an_index_zero_shifts_the_columns_wherever_it_stands() {
    let data = read("1 1:5\n2 0:4 2:6\n").unwrap();
    assert_eq!(data.columns, ["f1", "f2", "f3"]);
    assert_eq!(dense_rows(&data).unwrap(), [0.0, 5.0, 0.0, 4.0, 0.0, 6.0]);
    // A zero as value still shows how the file counts.
    assert_eq!(read("1 0:0 2:1\n").unwrap().width(), 3);
}

#[test]
fn columns_can_be_given() {
    let read = |text: &str| read_libsvm(Source::bytes("t", text), Some(5));
    assert_eq!(read("1 2:1\n").unwrap().width(), 5);
    assert_eq!(read("1\n").unwrap().width(), 5);
    let refused = |text: &str| read(text).unwrap_err().to_string();
    assert_eq!(
        refused("1\n1 6:1\n"),
        "t: line 2: index 6 is above 5: \"6:1\"\nhint: the job has 5 columns"
    );
    assert_eq!(
        refused("1 5:1\n1 0:1\n"),
        "t: line 1: index 5 is beyond 5 columns, counted from 0 since an index 0 occurs"
    );
}

#[test]
fn errors_name_file_line_and_token() {
    let cases = [
        ("1 3:1 3:2\n", "line 1: index 3 occurs twice: \"3:2\""),
        ("1 1:1\n1 3:1 2:2\n", "line 2: index 2 follows a larger one: \"2:2\""),
        ("1 1:nan\n", "line 1: the value is not a finite number: \"1:nan\""),
        ("1 1:1e999\n", "line 1: the value is not a finite number: \"1:1e999\""),
        ("1 1:x\n", "line 1: the value is not a number: \"1:x\""),
        ("1 1:\n", "line 1: the value is not a number: \"1:\""),
        ("inf 1:1\n", "line 1: the target is not a finite number: \"inf\""),
        ("1:1 2:1\n", "line 1: the line has no target: \"1:1\""),
        ("1,2 1:1\n", "line 1: the row has several targets: \"1,2\""),
        ("yes 1:1\n", "line 1: the target is not a number: \"yes\""),
        ("1 qid:3 1:1\n", "line 1: the row belongs to a ranking query: \"qid:3\""),
        ("1 -1:1\n", "line 1: this is not a pair index:value: \"-1:1\""),
        ("1 7\n", "line 1: this is not a pair index:value: \"7\""),
        ("1 99999999999:1\n", "line 1: this is not a pair index:value: \"99999999999:1\""),
        ("1 4000000000:1\n", "line 1: index 4000000000 is above 16777216: \"4000000000:1\""),
        ("# nothing\n\n", "the file holds no rows"),
        ("1\n-1\n", "no row has a feature"),
    ];
    for (text, expected) in cases {
        let message = read(text).unwrap_err().to_string();
        assert_eq!(message.lines().next(), Some(&*format!("toy.txt: {expected}")), "{text:?}");
    }
    let long = format!("1 {}\n", "x".repeat(500));
    let message = read(&long).unwrap_err().to_string();
    assert!(message.contains(&format!("\"{}...\"", "x".repeat(40))), "{message}");
}

#[test]
fn gzip_is_known_by_content_and_a_cut_one_is_an_error() {
    let text = b"1 1:1\n-1 2:1\n";
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("named-plainly.txt");
    let packed = gzipped(text);
    std::fs::write(&path, &packed).unwrap();
    let plain = read_libsvm(Source::bytes("t", text), None).unwrap();
    assert_eq!(read_libsvm(&path, None).unwrap(), plain);
    let cut = read_libsvm(Source::bytes("t", &packed[..packed.len() - 10]), None);
    assert!(matches!(cut, Err(Error::Storage { .. })));
}

#[test]
fn rows_cross_the_ends_of_the_buffer() {
    // One row alone is longer than the reader's buffer.
    let mut text = String::from("1");
    (1..=60_000).for_each(|j| write!(text, " {j}:{}", j % 10).unwrap());
    let rows = 12;
    let whole = (text + "\n").repeat(rows);
    let data = read(whole.trim_end()).unwrap();
    assert_eq!((data.len(), data.width()), (rows, 60_000));
    let dense = dense_rows(&data).unwrap();
    assert!((0..60_000 * rows).all(|i| dense[i] == ((i % 60_000 + 1) % 10) as f64));
}

proptest! {
    #[test]
    fn what_is_written_is_read_back(
        rows in prop::collection::vec(
            (-10.0f64..10.0, prop::collection::btree_map(0u32..40, -1e6f64..1e6, 0..10)),
            1..30,
        ),
        first in 0u32..2,
    ) {
        // The first row shows at which index the columns start.
        let mut text = format!("0 {first}:1\n");
        for (target, pairs) in &rows {
            write!(text, "{target}").unwrap();
            pairs.iter().for_each(|(j, x)| write!(text, " {}:{x}", j + first).unwrap());
            text.push('\n');
        }
        let data = read_libsvm(Source::bytes("t", &text), Some(40)).unwrap();
        let dense = &dense_rows(&data).unwrap()[40..];
        for (i, (target, pairs)) in rows.iter().enumerate() {
            prop_assert_eq!(data.targets[i + 1], *target);
            for j in 0..40 {
                prop_assert_eq!(dense[i * 40 + j], *pairs.get(&(j as u32)).unwrap_or(&0.0));
            }
        }
    }

    #[test]
    fn random_bytes_never_panic(
        bytes in prop::collection::vec(any::<u8>(), 0..300),
        near in "[-+0-9:.,e #\tqidnaf\r\n]{0,200}",
    ) {
        for text in [&bytes[..], near.as_bytes()] {
            let _ = read_libsvm(Source::bytes("t", text), None);
            let mut packed = gzipped(text);
            if let Some(at) = bytes.first() {
                let place = *at as usize % packed.len();
                packed[place] ^= 0x10;
            }
            let _ = read_libsvm(Source::bytes("t", &packed), None);
        }
    }
}
