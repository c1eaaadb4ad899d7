//! Readers, partitioners and generators of data.
//!
//! A file becomes a [`Dataset`]: named columns of numbers or text, with every cell that cannot be
//! used remembered by row and column. Choosing [`Features`] and a split of its rows over clients
//! turns it into one [`Table`](whimbrel_core::Table) per client, or into one error that lists what
//! must be mended. Generated federations take the same form without a file.
//!
//! ```
//! use whimbrel_data::{CsvOptions, Features, read_csv_bytes};
//!
//! let text = "ward,age,dose\nb,61,0.5\na,47,1.25\nb,52,0.75\n";
//! let data = read_csv_bytes("wards.csv", text.as_bytes(), &CsvOptions::default())?;
//! let clients = whimbrel_data::by_client(&data, "ward", &Features::All { except: &[] })?;
//! assert_eq!(clients[0].0, "a");
//! assert_eq!(clients[1].1.values, [61.0, 0.5, 52.0, 0.75]);
//! # Ok::<(), whimbrel_data::Error>(())
//! ```

mod csv;
mod dataset;
mod defect;
mod error;
mod hash;
mod inspect;
mod mixture;
mod npy;
mod number;
mod record;
mod source;
mod split;

pub use csv::{CsvOptions, Header, read_csv, read_csv_bytes};
pub use dataset::{Column, Dataset, Features, Kind};
pub use defect::{BadRow, LISTED_MAX};
pub use error::{Error, Result};
pub use hash::{Sha256, hash_file, hash_tables};
pub use inspect::{ClientSizes, ColumnSummary, Inspection, SizeBin, inspect};
pub use mixture::{
    Covariance, Heterogeneity, Mixture, MixtureRows, MixtureSpec, RandomMixture, Sizes,
};
pub use npy::{read_npy, read_npy_bytes};
pub use number::parse_number;
pub use split::{ClientRows, by_client, by_column, dirichlet, iid};
