//! What the crate promises, seen from outside.

mod cells;
mod cluster;
mod collections;
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
mod real_data;
mod real_labelled;
mod split;

use whimbrel_data::{CsvOptions, Dataset, Error, read_csv_bytes};

fn read(text: &str) -> Result<Dataset, Error> {
    read_csv_bytes("data.csv", text.as_bytes(), &CsvOptions::default())
}
