//! Reads a file without a job.

use crate::failure::Result;
use std::path::Path;
use std::sync::Arc;
use whimbrel_data::{
    CsvOptions, Dataset, Input, is_idx, is_libsvm, is_npy, is_parquet, read_csv, read_idx_images,
    read_npy, read_parquet,
};

/// Default divisor of image bytes.
const BYTE_SCALE: f64 = 255.0;

/// The format of a file or folder.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FileKind {
    /// Delimited text.
    #[default]
    Csv,
    /// Parquet or Arrow, one file or a folder.
    Parquet,
    /// A NumPy array.
    Npy,
    /// LIBSVM's sparse text.
    Libsvm,
    /// Images in the layout of MNIST.
    Idx,
}

impl FileKind {
    /// Detects the format; delimited text is the fallback.
    pub fn of(file: &Path) -> Self {
        match file {
            file if is_parquet(file) => Self::Parquet,
            file if is_idx(file) => Self::Idx,
            file if is_npy(file) || file.extension().is_some_and(|e| e == "npy") => Self::Npy,
            file if is_libsvm(file) => Self::Libsvm,
            _ => Self::Csv,
        }
    }

    /// Whether the columns have names and may hold text.
    pub fn is_table(self) -> bool {
        matches!(self, Self::Csv | Self::Parquet)
    }

    /// The value of `source` in `[data]`.
    pub fn source(self) -> &'static str {
        match self {
            Self::Csv => "csv",
            Self::Parquet => "parquet",
            Self::Npy => "npy",
            Self::Libsvm => "libsvm",
            Self::Idx => "idx",
        }
    }
}

/// Reads a table or a `.npy` file, or images with their bytes scaled as by default in a job.
pub fn read_any(input: &Input, options: &CsvOptions) -> Result<Arc<Dataset>> {
    let Some(file) = input.file() else { return Ok(input.read(options)?) };
    Ok(Arc::new(match FileKind::of(file) {
        FileKind::Idx => read_images(file, BYTE_SCALE)?,
        FileKind::Npy => read_npy(file)?,
        FileKind::Parquet => read_parquet(file, options)?,
        FileKind::Csv | FileKind::Libsvm => read_csv(file, options)?,
    }))
}

/// Reads images as rows of bytes divided by `scale`.
pub fn read_images(file: &Path, scale: f64) -> Result<Dataset> {
    let images = read_idx_images(file)?;
    let table = images.table(0..images.rows(), scale)?;
    Ok(Dataset::from_table(&file.display().to_string(), table))
}
