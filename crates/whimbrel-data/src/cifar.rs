//! CIFAR-10 and CIFAR-100 in their binary layout, plain or gzipped: for each image its label (of
//! CIFAR-100 the coarse and the fine one), then 1,024 bytes of red, green and blue.

use crate::hash::sorted_entries;
use crate::source::Source;
use crate::{Error, LabelledImages, Result};
use std::path::{Path, PathBuf};
use whimbrel_core::{Inputs, Samples, Targets};

/// Which of the two sets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cifar {
    /// 10 classes.
    Ten,
    /// 100 classes in 20 coarse ones.
    Hundred {
        /// Whether the coarse class is to be predicted.
        coarse: bool,
    },
}

const SHAPE: [usize; 3] = [3, 32, 32];
const PIXELS: usize = 3 * 32 * 32;
const COARSE: u16 = 20;

impl Cifar {
    /// The most that the label bytes of a record may be, plus one.
    fn limits(self) -> &'static [u16] {
        match self {
            Self::Ten => &[10],
            Self::Hundred { .. } => &[COARSE, 100],
        }
    }
}

/// Reads one file, or every `.bin` and `.bin.gz` file of a folder, in the order of their names.
pub fn read_cifar(path: impl AsRef<Path>, set: Cifar) -> Result<LabelledImages> {
    let path = path.as_ref();
    let files = if path.is_dir() { batches(path)? } else { vec![path.to_path_buf()] };
    let (mut bytes, mut fine, mut coarse) = (Vec::new(), Vec::new(), Vec::new());
    for file in files {
        let name = file.display().to_string();
        let content = Source::File(&file).read(&name)?;
        for (at, record) in content.chunks(set.limits().len() + PIXELS).enumerate() {
            let (labels, pixels) = labels(set, record).map_err(|what| {
                Error::format(&name, format!("image {}: {what}", at + 1))
                    .hint("CIFAR-10 has records of 3,073 bytes, CIFAR-100 of 3,074")
            })?;
            fine.push(labels[labels.len() - 1]);
            coarse.extend(labels.split_last().map(|(_, coarse)| coarse).unwrap_or_default());
            bytes.extend_from_slice(pixels);
        }
    }
    let (of, count) = match set {
        Cifar::Ten => (fine, 10),
        Cifar::Hundred { coarse: false } => (fine, 100),
        Cifar::Hundred { coarse: true } => (coarse.clone(), COARSE.into()),
    };
    let samples =
        Samples::new(SHAPE.to_vec(), Inputs::Bytes(bytes), Targets::Classes { of, count })?;
    let classes = (0..count).map(|class| class.to_string()).collect();
    Ok(LabelledImages { samples, classes, coarse })
}

/// The labels and the pixels of a record.
fn labels(set: Cifar, record: &[u8]) -> std::result::Result<(Vec<u16>, &[u8]), String> {
    let limits = set.limits();
    if record.len() < limits.len() + PIXELS {
        let wanted = limits.len() + PIXELS;
        return Err(format!("the file ends after {} of its {wanted} bytes", record.len()));
    }
    let (labels, pixels) = record.split_at(limits.len());
    let labels: Vec<u16> = labels.iter().map(|label| u16::from(*label)).collect();
    match labels.iter().zip(limits).find(|(label, limit)| label >= limit) {
        Some((label, limit)) => Err(format!("label {label} of {limit} classes")),
        None => Ok((labels, pixels)),
    }
}

fn batches(folder: &Path) -> Result<Vec<PathBuf>> {
    let is_batch = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.ends_with(".bin") || name.ends_with(".bin.gz")
    };
    let files: Vec<PathBuf> = sorted_entries(folder)?.into_iter().filter(is_batch).collect();
    if files.is_empty() {
        let name = folder.display().to_string();
        return Err(Error::format(&name, "the folder has no .bin file"));
    }
    Ok(files)
}
