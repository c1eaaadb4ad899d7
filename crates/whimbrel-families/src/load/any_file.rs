//! A file by itself, without a job.

use crate::failure::Result;
use std::path::Path;
use whimbrel_data::{CsvOptions, Dataset, is_idx, read_csv, read_idx_images, read_npy};

/// What bytes of images are divided by.
const BYTE_SCALE: f64 = 255.0;

/// A CSV or `.npy` file, or images, whose bytes are divided as a job does without being told.
pub fn read_any(file: &Path, client: Option<&str>) -> Result<Dataset> {
    if is_idx(file) {
        return read_images(file, BYTE_SCALE);
    }
    if file.extension().is_some_and(|e| e == "npy") {
        return Ok(read_npy(file)?);
    }
    let text = client.into_iter().map(String::from).collect();
    Ok(read_csv(file, &CsvOptions { text, ..CsvOptions::default() })?)
}

/// Images as rows, each byte over `scale`.
pub fn read_images(file: &Path, scale: f64) -> Result<Dataset> {
    let images = read_idx_images(file)?;
    let table = images.table(0..images.rows(), scale)?;
    Ok(Dataset::from_table(&file.display().to_string(), table))
}
