//! Parquet and Arrow files: types, folders, columns that stay unread, damaged files.

use crate::read;
use arrow_array::builder::StringDictionaryBuilder;
use arrow_array::types::Int32Type;
use arrow_array::{
    ArrayRef, BooleanArray, Date32Array, Decimal128Array, Float32Array, Float64Array, Int64Array,
    ListArray, NullArray, RecordBatch, StringArray, TimestampMicrosecondArray, UInt8Array,
};
use arrow_ipc::writer::{FileWriter, StreamWriter};
use parquet::arrow::ArrowWriter;
use parquet::basic::{Compression, ZstdLevel};
use parquet::file::properties::WriterProperties;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use whimbrel_core::Key;
use whimbrel_data::{CsvOptions, Dataset, Error, Features, Input, Kind, is_parquet, read_parquet};

fn batch(columns: Vec<(&str, ArrayRef)>) -> RecordBatch {
    RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(n, a)| (n, a, true)))
        .unwrap()
}

fn write_with(path: &Path, rows: &RecordBatch, compression: Compression, group: usize) {
    let properties = WriterProperties::builder()
        .set_compression(compression)
        .set_max_row_group_row_count(Some(group))
        .build();
    let file = std::fs::File::create(path).unwrap();
    let mut writer = ArrowWriter::try_new(file, rows.schema(), Some(properties)).unwrap();
    writer.write(rows).unwrap();
    writer.close().unwrap();
}

fn write(path: &Path, rows: &RecordBatch) {
    write_with(path, rows, Compression::SNAPPY, 1 << 20);
}

fn write_arrow(path: &Path, rows: &RecordBatch) {
    let mut writer =
        FileWriter::try_new(std::fs::File::create(path).unwrap(), &rows.schema()).unwrap();
    writer.write(rows).unwrap();
    writer.finish().unwrap();
}

fn all(path: impl AsRef<Path>) -> Result<Dataset, Error> {
    read_parquet(path, &CsvOptions::default())
}

fn column(data: &Dataset, name: &str) -> Vec<String> {
    let at = data.column(name).unwrap();
    let cell = |row: usize| match data.columns()[at].kind {
        Kind::Number => data.number(row, at).map(|x| x.to_string()),
        Kind::Text => data.text(row, at).map(String::from),
    };
    (0..data.rows()).map(|row| cell(row).unwrap_or_default()).collect()
}

/// Every type that has a meaning, with a gap in the last row.
fn typed() -> RecordBatch {
    let mut ward = StringDictionaryBuilder::<Int32Type>::new();
    ["b", "a"].iter().for_each(|name| ward.append_value(name));
    ward.append_null();
    let decimals = Decimal128Array::from(vec![Some(1234), Some(-5), None]);
    let instants =
        TimestampMicrosecondArray::from(vec![Some(1_715_940_000_000_000), Some(-500_000), None]);
    batch(vec![
        ("id", Arc::new(Int64Array::from(vec![Some(9_007_199_254_740_993), Some(-7), None]))),
        ("small", Arc::new(UInt8Array::from(vec![Some(200), Some(0), None]))),
        ("dose", Arc::new(Float64Array::from(vec![Some(0.1), Some(f64::NAN), None]))),
        ("narrow", Arc::new(Float32Array::from(vec![Some(0.1), Some(f32::INFINITY), None]))),
        ("cost", Arc::new(decimals.with_precision_and_scale(10, 2).unwrap())),
        ("treated", Arc::new(BooleanArray::from(vec![Some(true), Some(false), None]))),
        ("name", Arc::new(StringArray::from(vec![Some("NA"), Some(""), None]))),
        ("born", Arc::new(Date32Array::from(vec![Some(19_860), Some(-1), None]))),
        ("seen", Arc::new(instants.with_timezone("+02:00"))),
        ("ward", Arc::new(ward.finish())),
        ("none", Arc::new(NullArray::new(3))),
    ])
}

#[test]
fn types_come_from_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let [parquet, arrow] = ["a.parquet", "a.arrow"].map(|name| folder.path().join(name));
    write(&parquet, &typed());
    write_arrow(&arrow, &typed());
    for path in [&parquet, &arrow] {
        assert!(is_parquet(path));
        let data = all(path).unwrap();
        assert_eq!(column(&data, "id"), ["9007199254740992", "-7", ""], "rounded to nearest");
        assert_eq!(column(&data, "small"), ["200", "0", ""]);
        assert_eq!(column(&data, "dose"), ["0.1", "", ""]);
        assert_eq!(column(&data, "narrow"), [f64::from(0.1f32).to_string().as_str(), "", ""]);
        assert_eq!(column(&data, "cost"), ["12.34", "-0.05", ""]);
        assert_eq!(column(&data, "treated"), ["1", "0", ""]);
        assert_eq!(column(&data, "name"), ["NA", "", ""]);
        assert_eq!(column(&data, "born"), ["2024-05-17", "1969-12-31", ""]);
        assert_eq!(column(&data, "seen"), ["2024-05-17T10:00:00Z", "1969-12-31T23:59:59.5Z", ""]);
        assert_eq!(column(&data, "ward"), ["b", "a", ""]);
        assert_eq!(column(&data, "none"), ["", "", ""]);
        let listed = ["narrow".to_owned()];
        let error = data.table(&data.features(&Features::Listed(&listed)).unwrap()).unwrap_err();
        assert!(error.to_string().contains("row 2, column \"narrow\": \"inf\" is not a finite"));
        // As text, integers and decimals keep all their digits.
        let text = vec!["id".to_owned(), "cost".to_owned(), "treated".to_owned()];
        let data = read_parquet(path, &CsvOptions { text, ..CsvOptions::default() }).unwrap();
        assert_eq!(column(&data, "id"), ["9007199254740993", "-7", ""]);
        assert_eq!(column(&data, "cost"), ["12.34", "-0.05", ""]);
        assert_eq!(column(&data, "treated"), ["1", "0", ""]);
    }
}

/// Random numbers in several row groups and all codecs: the bits of the same rows as CSV.
#[test]
fn numbers_have_the_bits_of_the_same_csv() {
    let folder = tempfile::tempdir().unwrap();
    let mut stream = Key::root(5).stream();
    let values: Vec<f64> = (0..20_000)
        .map(|_| f64::from_bits(stream.next_u64()))
        .filter(|x| x.is_finite())
        .take(2 * 9000)
        .collect();
    let (x, y) = values.split_at(9000);
    let text: String = x.iter().zip(y).map(|(x, y)| format!("{x:e},{y:e}\n")).collect();
    let csv = read(&format!("x,y\n{text}")).unwrap();
    let rows = batch(vec![
        ("x", Arc::new(Float64Array::from(x.to_vec()))),
        ("y", Arc::new(Float64Array::from(y.to_vec()))),
    ]);
    let bits = |data: &Dataset| -> Vec<u64> {
        let cell = |i: usize| data.number(i / 2, i % 2).unwrap().to_bits();
        (0..2 * data.rows()).map(cell).collect()
    };
    let path = folder.path().join("a.parquet");
    for compression in [
        Compression::UNCOMPRESSED,
        Compression::SNAPPY,
        Compression::ZSTD(ZstdLevel::default()),
        Compression::GZIP(Default::default()),
        Compression::LZ4_RAW,
    ] {
        write_with(&path, &rows, compression, 1000);
        assert_eq!(bits(&all(&path).unwrap()), bits(&csv), "{compression:?}");
    }
}

fn site(path: PathBuf, from: i64) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    let ages = Int64Array::from(vec![from, from + 1]);
    write(&path, &batch(vec![("age", Arc::new(ages))]));
}

#[test]
fn folders_are_columns_and_files_follow_in_order() {
    let folder = tempfile::tempdir().unwrap();
    for (name, from) in [("site=south/year=2023/b", 30), ("site=north/year=2024/a", 10)] {
        site(folder.path().join(format!("{name}.parquet")), from);
    }
    let data = all(folder.path()).unwrap();
    assert_eq!(column(&data, "age"), ["10", "11", "30", "31"]);
    assert_eq!(column(&data, "site"), ["north", "north", "south", "south"]);
    assert_eq!(column(&data, "year"), ["2024", "2024", "2023", "2023"]);
    assert_eq!(data.columns()[data.column("year").unwrap()].kind, Kind::Number);
    assert!(matches!(Input::from(folder.path()), Input::Parquet(_)));
    // A file with other columns is named.
    let other = folder.path().join("site=west/year=2024/c.parquet");
    std::fs::create_dir_all(other.parent().unwrap()).unwrap();
    write(&other, &batch(vec![("age", Arc::new(StringArray::from(vec!["old"])))]));
    let error = all(folder.path()).unwrap_err().to_string();
    assert!(
        error.contains("c.parquet: column \"age\" holds text here and numbers in a.parquet"),
        "{error}"
    );
}

#[test]
fn columns_that_are_not_needed_stay_unread() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.parquet");
    let lists =
        ListArray::from_iter_primitive::<Int32Type, _, _>([Some([Some(1)]), Some([Some(2)])]);
    let notes = StringArray::from(vec!["unneeded-1", "unneeded-2"]);
    let rows = batch(vec![
        ("scans", Arc::new(lists)),
        ("notes", Arc::new(notes)),
        ("age", Arc::new(Int64Array::from(vec![4, 5]))),
    ]);
    write_with(&path, &rows, Compression::UNCOMPRESSED, 100);
    let error = all(&path).unwrap_err().to_string();
    assert!(error.contains("column \"scans\" holds lists"), "{error}");
    // The pages of the other columns can even be damaged.
    let mut bytes = std::fs::read(&path).unwrap();
    let end = bytes.windows(8).position(|eight| eight == b"unneeded").unwrap();
    bytes[4..end].fill(0xFF);
    std::fs::write(&path, &bytes).unwrap();
    let only = |names: &[&str]| CsvOptions {
        only: Some(names.iter().map(|name| (*name).to_owned()).collect()),
        ..CsvOptions::default()
    };
    let data = read_parquet(&path, &only(&["age", "absent"])).unwrap();
    assert_eq!(column(&data, "age"), ["4", "5"]);
    assert_eq!(data.columns().len(), 1);
    assert!(read_parquet(&path, &only(&["notes"])).is_err());
    // The error about an unknown column knows the unread ones.
    let error = data.column("note").unwrap_err().to_string();
    assert!(error.contains("did you mean \"notes\"?"), "{error}");
}

#[test]
fn repeated_names_and_empty_tables_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.parquet");
    let one: ArrayRef = Arc::new(Int64Array::from(vec![1]));
    write(&path, &batch(vec![("a", one.clone()), ("a", one)]));
    let error = all(&path).unwrap_err().to_string();
    assert!(error.contains("columns 1 and 2 are both called \"a\""), "{error}");
    write(&path, &batch(vec![("a", Arc::new(Int64Array::from(Vec::<i64>::new())))]));
    let error = all(&path).unwrap_err().to_string();
    assert!(error.contains("there are no rows"), "{error}");
    let empty = folder.path().join("empty");
    std::fs::create_dir(&empty).unwrap();
    assert!(all(&empty).unwrap_err().to_string().contains("no .parquet or .arrow file"));
    assert!(!is_parquet(&empty));
    std::fs::write(&path, "a,b\n1,2\n").unwrap();
    assert!(all(&path).unwrap_err().to_string().contains("neither a Parquet nor an Arrow file"));
}

/// The file with another number of rows in its footer: three, before a list of one row group, in
/// Thrift's compact encoding.
fn declaring(bytes: &[u8], rows: i64) -> Vec<u8> {
    let length = u32::from_le_bytes(bytes[bytes.len() - 8..bytes.len() - 4].try_into().unwrap());
    let (data, footer) = bytes[..bytes.len() - 8].split_at(bytes.len() - 8 - length as usize);
    let at = footer.windows(4).position(|found| found == [0x16, 0x06, 0x19, 0x1c]);
    let at = at.expect("a number of rows") + 1;
    let mut zigzag = ((rows << 1) ^ (rows >> 63)) as u64;
    let mut number = Vec::new();
    while zigzag >= 0x80 {
        number.push(zigzag as u8 | 0x80);
        zigzag >>= 7;
    }
    number.push(zigzag as u8);
    let footer = [&footer[..at], &number, &footer[at + 1..]].concat();
    let length = u32::try_from(footer.len()).unwrap().to_le_bytes();
    [data, &footer, &length, b"PAR1"].concat()
}

#[test]
fn declared_rows_are_checked() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.parquet");
    write(&path, &typed());
    let bytes = std::fs::read(&path).unwrap();
    for (rows, why) in [
        (1_000_000_000, "1000000000 rows are too many"),
        (i64::MAX, "rows are too many"),
        (4, "it declares 4 rows and has 3"),
        (-1, "it declares -1 rows"),
    ] {
        std::fs::write(&path, declaring(&bytes, rows)).unwrap();
        let error = all(&path).unwrap_err();
        assert!(matches!(error, Error::Format { .. }), "{error}");
        assert!(error.to_string().contains(why), "{error}");
    }
}

/// Cut at any byte, a file is refused; with any byte changed, it is refused or read, without a panic.
#[test]
fn damaged_files_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["a.parquet", "a.arrow"] {
        let path = folder.path().join(name);
        if name.ends_with("arrow") {
            write_arrow(&path, &typed())
        } else {
            write(&path, &typed())
        }
        let bytes = std::fs::read(&path).unwrap();
        for length in (0..bytes.len()).step_by(7) {
            std::fs::write(&path, &bytes[..length]).unwrap();
            let error = all(&path).unwrap_err();
            assert!(matches!(error, Error::Format { .. }), "{length} bytes: {error}");
        }
        let mut refused = 0;
        for at in (0..bytes.len()).step_by(3) {
            let mut changed = bytes.clone();
            changed[at] ^= 0x55;
            std::fs::write(&path, &changed).unwrap();
            refused += usize::from(all(&path).is_err());
        }
        assert!(refused > 0, "a check that never finds damage");
    }
}

#[test]
fn forms_of_arrow_that_are_not_read_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let mut stream = StreamWriter::try_new(Vec::new(), &typed().schema()).unwrap();
    stream.write(&typed()).unwrap();
    for (bytes, form) in [
        (stream.into_inner().unwrap(), "a stream of Arrow, not a file"),
        (b"FEA1....FEA1".to_vec(), "a Feather file of version 1"),
    ] {
        let path = folder.path().join("a.feather");
        std::fs::write(&path, bytes).unwrap();
        assert!(is_parquet(&path));
        let message = all(&path).unwrap_err().to_string();
        assert!(message.contains(form) && message.contains("write it as Parquet"), "{message}");
    }
}
