//! Readers, partitioners and generators of data.
//!
//! A file is read into a [`Dataset`]: named columns of numbers or text, with unusable cells recorded by
//! row and column. A choice of [`Features`] and a split of the rows over clients give one
//! [`Table`](whimbrel_core::Table) per client, or one error that lists all cells to correct. Generated
//! federations have the same form.
//!
//! Rows with a target are [`Labelled`](whimbrel_core::Labelled): LIBSVM text, or a dataset with a target
//! column. Their splits are lists of rows by client.
//!
//! Tables with missing cells are read into [`CellTable`]s: observed cells with the labels of their rows
//! and columns.
//!
//! ```
//! use whimbrel_data::{CsvOptions, Features, Source, read_csv};
//!
//! let text = "ward,age,dose\nb,61,0.5\na,47,1.25\nb,52,0.75\n";
//! let data = read_csv(Source::bytes("wards.csv", text), &CsvOptions::default())?;
//! let clients = whimbrel_data::by_client(&data, "ward", &Features::All { except: &[] })?;
//! assert_eq!(clients[0].0, "a");
//! assert_eq!(clients[1].1.values, [61.0, 0.5, 52.0, 0.75]);
//! # Ok::<(), whimbrel_data::Error>(())
//! ```

#[cfg(any(feature = "parquet", feature = "sql"))]
mod calendar;
mod cells;
mod cifar;
mod cluster;
mod column_checks;
mod columnar;
mod csv;
mod dataset;
mod declared;
mod defect;
mod embedding;
mod error;
mod hash;
mod idx;
mod input;
mod inspect;
mod jpeg;
mod label_split;
mod labelled;
mod leaf;
mod least_squares;
mod libsvm;
mod logistic_mixture;
mod mixed;
mod mixture;
mod npy;
mod number;
mod parts;
mod record;
mod representation;
mod samples;
mod source;
mod speeches;
mod spelling;
mod split;
mod sql;
mod standardize;
#[cfg(any(feature = "parquet", feature = "sql"))]
mod typed;

pub use cells::{
    Attribute, AttributeOf, CellLayout, CellOptions, CellTable, CellsOf, Described, Entries,
    TableGuess, guess_table, hold_out, read_cells, read_labels,
};
pub use cifar::{Cifar, read_cifar};
pub use cluster::{ClusterRule, Clustered, Clustering, clusters};
pub use column_checks::Identifier;
pub use columnar::{is_parquet, read_parquet};
pub use csv::{CsvOptions, Spelling, read_csv};
pub use dataset::{Column, Dataset, Features, Kind};
pub use declared::Declared;
pub use defect::{BadRow, FILL_CELLS, LISTED_MAX, Reasons};
pub use embedding::read_embedding;
pub use error::{Error, Result};
pub use hash::{Sha256, hash_file, hash_labelled, hash_path, hash_samples, hash_tables};
pub use idx::{Images, by_number, is_idx, read_idx_images, read_idx_numbers};
pub use input::{Input, SharedRows};
pub use inspect::{ClientSizes, ColumnSummary, Inspection, SizeBin, inspect};
pub use jpeg::{read_jpeg_folder, read_jpegs};
pub use label_split::{Classes, LabelSplit};
pub use labelled::{dense_rows, labelled_clients, take_rows, two_classes};
pub use leaf::{LeafClients, read_leaf};
pub use least_squares::{LeastSquares, LeastSquaresSpec};
pub use libsvm::{is_libsvm, read_libsvm};
pub use logistic_mixture::{LogisticMixture, LogisticMixtureSpec, LogisticTruth};
pub use mixed::{ColumnType, MixedColumn, NAME_LEVEL, NEEDS_TYPE, level_of};
pub use mixture::{Covariance, Heterogeneity, Mixture, MixtureRows, MixtureSpec, Sizes};
pub use npy::{is_npy, read_npy};
pub use number::parse_number;
pub use parts::Parts;
pub use representation::{RepresentationSpec, RepresentationTruth, SmallClients};
pub use samples::{LabelledImages, class_numbers, labelled, number_classes, samples};
pub use source::{ReadHashes, Source};
pub use speeches::{Alphabet, SpeechOptions, Speeches, read_speeches};
pub use spelling::{GapMark, Written};
pub use split::{ClientRows, by_client, by_column, by_feature, iid_rows};
pub use sql::{Database, PostgresUrl, Query};
pub use standardize::{Standardization, standardize, standardize_table};
