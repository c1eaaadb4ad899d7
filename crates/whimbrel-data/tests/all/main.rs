//! Tests of the public interface.

mod cells;
mod cluster;
mod collections;
#[cfg(feature = "parquet")]
mod columnar;
mod csv;
mod idx;
mod inspect;
mod label_split;
mod labelled;
mod libsvm;
mod logistic_mixture;
mod messages;
mod mixture;
mod npy;
#[cfg(feature = "sql")]
mod postgres;
mod real_data;
mod real_labelled;
mod split;
#[cfg(feature = "sql")]
mod sqlite;

use flate2::{Compression, write::GzEncoder};
use std::io::Write;
use whimbrel_core::Key;
use whimbrel_data::{
    Classes, ClientRows, CsvOptions, Dataset, Error, LabelSplit, Source, read_csv,
};

fn read(text: &str) -> Result<Dataset, Error> {
    read_csv(Source::bytes("data.csv", text.as_bytes()), &CsvOptions::default())
}

fn gzipped(bytes: &[u8]) -> Vec<u8> {
    let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
    packed.write_all(bytes).unwrap();
    packed.finish().unwrap()
}

/// A Dirichlet split by the labels of a column.
fn dirichlet(
    data: &Dataset,
    column: &str,
    clients: usize,
    alpha: f64,
    key: Key,
) -> Result<Vec<ClientRows>, Error> {
    let split = LabelSplit::Dirichlet { alpha, clusters: None };
    split.deal(Classes::of_column(data, column)?, None, clients, key)
}
