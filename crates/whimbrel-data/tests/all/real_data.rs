//! Published files.

use crate::dirichlet;
use flate2::read::MultiGzDecoder;
use std::io::Read;
use std::path::Path;
use whimbrel_core::Key;
use whimbrel_data::{
    CsvOptions, Dataset, Features, Kind, Source, by_client, hash_file, inspect, read_csv,
};
use whimbrel_testkit::data_file;

/// A file of scikit-learn's, which has no header: columns are called `c1`, `c2` and so on. A first
/// line of sizes and class names is skipped.
fn bundled(path: &Path, skipped: usize) -> Dataset {
    let file = std::fs::read(path).unwrap();
    let mut text = String::new();
    if path.extension().is_some_and(|ending| ending == "gz") {
        MultiGzDecoder::new(&file[..]).read_to_string(&mut text).unwrap();
    } else {
        text = String::from_utf8(file).unwrap();
    }
    let lines: Vec<&str> = text.lines().skip(skipped).collect();
    let names: Vec<String> = (1..=lines[0].split(',').count()).map(|i| format!("c{i}")).collect();
    let text = format!("{}\n{}", names.join(","), lines.join("\n"));
    read_csv(Source::bytes("bundled.csv", &text), &CsvOptions::default()).unwrap()
}

fn column_mean(table: &whimbrel_core::Table, column: usize) -> f64 {
    (0..table.rows()).map(|i| table.row(i)[column]).sum::<f64>() / table.rows() as f64
}

#[test]
fn iris_has_its_known_shape_and_means() {
    let Some(path) = data_file("classics/iris.csv") else { return };
    let data = bundled(&path, 1);
    let table = data.table(&[0, 1, 2, 3]).unwrap();
    assert_eq!((table.rows(), data.columns().len()), (150, 5));
    for (column, mean) in [5.843333, 3.057333, 3.758, 1.199333].into_iter().enumerate() {
        assert!((column_mean(&table, column) - mean).abs() < 1e-6);
    }
    let species = by_client(&data, "c5", &Features::All { except: &[] }).unwrap();
    assert_eq!(species.iter().map(|(_, t)| t.rows()).collect::<Vec<_>>(), [50, 50, 50]);
}

#[test]
fn wine_is_refused_without_a_header_and_read_with_one() {
    let Some(path) = data_file("classics/wine_data.csv") else { return };
    let message = read_csv(&path, &CsvOptions::default()).unwrap_err().to_string();
    assert!(message.contains("line 1: the first line gives the file's sizes"), "{message}");
    let data = bundled(&path, 1);
    let table = data.table(&data.features(&Features::All { except: &["c14"] }).unwrap()).unwrap();
    assert_eq!((table.rows(), table.width()), (178, 13));
    assert!((column_mean(&table, 0) - 13.000618).abs() < 1e-6);
}

#[test]
fn digits_are_unpacked_and_split_by_class() {
    let Some(path) = data_file("classics/digits.csv.gz") else { return };
    let message = read_csv(&path, &CsvOptions::default()).unwrap_err().to_string();
    assert!(message.contains("the header is missing"), "{message}");
    let data = bundled(&path, 0);
    assert_eq!((data.rows(), data.columns().len()), (1797, 65));
    let parts = dirichlet(&data, "c65", 20, 0.3, Key::root(1)).unwrap();
    assert_eq!(parts.iter().map(|p| p.rows.len()).sum::<usize>(), 1797);
}

#[test]
fn air_quality_keeps_row_names_apart_and_names_its_gaps() {
    let Some(path) = data_file("classics/airquality.csv") else { return };
    let data = read_csv(&path, &CsvOptions::default()).unwrap();
    assert!(!data.columns()[0].named);
    let features = data.features(&Features::All { except: &[] }).unwrap();
    assert_eq!(features, [1, 2, 3, 4, 5, 6]);
    // 153 days, of which 111 are complete; day 5 lacks both ozone and radiation.
    let (listed, count) = data.bad_rows(&features);
    assert_eq!((data.rows(), count), (153, 42));
    assert_eq!((listed[0].row, listed[0].line), (5, Some(6)));
    assert_eq!(listed[0].reasons.len(), 2);
}

#[test]
fn swiss_counts_have_sites_as_clients() {
    let Some(path) = data_file("birds/mhb2014_counts.csv.gz") else { return };
    let data = read_csv(&path, &CsvOptions::default()).unwrap();
    assert_eq!(data.columns()[0].kind, Kind::Text);
    let text = inspect(&data, Some("site")).unwrap().to_string();
    assert!(text.contains("clients (column \"site\"), 3 rows each"), "{text}");
}

#[test]
fn hashes_are_those_published_with_the_files() {
    let Some(sums) = data_file("SHA256SUMS") else { return };
    let listing = std::fs::read_to_string(sums).unwrap();
    let mut checked = 0;
    for line in listing.lines().filter(|l| l.contains("classics/")) {
        let (expected, name) = line.split_once(char::is_whitespace).unwrap();
        let name = name.trim().trim_start_matches(['*', '.']).trim_start_matches('/');
        let Some(path) = data_file(name) else { continue };
        assert_eq!(hash_file(path).unwrap(), expected, "{name}");
        checked += 1;
    }
    assert!(checked > 0, "no file of the listing was found");
}
