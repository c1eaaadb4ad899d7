//! Embeddings: one point per row of the data, such as a t-SNE.

use crate::source::Source;
use crate::{Error, Features, Result, read_npy};
use std::path::Path;

/// Columns of a raw embedding.
const RAW_COLUMNS: usize = 2;

/// Reads one point per row of the data: a `.npy` array of any width, or raw little-endian `f32`, two
/// per row. Either may be gzipped; the format is detected from the content. The number of points
/// must be `rows`. Returns the points, row-major, and their width.
pub fn read_embedding(path: impl AsRef<Path>, rows: usize) -> Result<(Vec<f64>, usize)> {
    let source = Source::File(path.as_ref());
    let (name, bytes) = (source.name(), source.read()?);
    if bytes.starts_with(b"\x93NUMPY") {
        let data = read_npy(Source::Bytes(&name, &bytes))?;
        check_rows(&name, data.rows(), rows)?;
        let table = data.table(&data.features(&Features::All { except: &[] })?)?;
        return Ok((table.values, table.columns.len()));
    }
    let (numbers, rest) = bytes.as_chunks::<4>();
    if !rest.is_empty() || !numbers.len().is_multiple_of(RAW_COLUMNS) {
        let what =
            format!("{} bytes are not whole rows of {RAW_COLUMNS} numbers of 4 bytes", bytes.len());
        let error = Error::format(&name, what);
        return Err(error.hint("an embedding is raw little-endian f32, two per row, or .npy"));
    }
    check_rows(&name, numbers.len() / RAW_COLUMNS, rows)?;
    let points: Vec<f64> = numbers.iter().map(|b| f64::from(f32::from_le_bytes(*b))).collect();
    if let Some(at) = points.iter().position(|x| !x.is_finite()) {
        let what =
            format!("row {}, number {} is not finite", at / RAW_COLUMNS + 1, at % RAW_COLUMNS + 1);
        return Err(Error::format(&name, what));
    }
    Ok((points, RAW_COLUMNS))
}

fn check_rows(name: &str, found: usize, rows: usize) -> Result<()> {
    if found == rows {
        return Ok(());
    }
    let what = format!("the embedding has {found} rows, the data have {rows}");
    let error = Error::format(name, what);
    Err(error.hint("an embedding has one point per row of the data, in the same order"))
}
