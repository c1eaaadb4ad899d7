//! CIFAR-10 and CIFAR-100 in their binary layout, plain or gzipped: for each image its label (of
//! CIFAR-100 the coarse and the fine one), then 1,024 bytes of red, green and blue.

use crate::hash::files_ending;
use crate::source::Source;
use crate::{Error, LabelledImages, Result};
use std::path::Path;
use whimbrel_core::{Inputs, Samples, Targets};

/// One of the two sets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cifar {
    /// 10 classes.
    Ten,
    /// 100 classes in 20 coarse ones.
    Hundred {
        /// Whether the target is the coarse class.
        coarse: bool,
    },
}

const SHAPE: [usize; 3] = [3, 32, 32];
const PIXELS: usize = 3 * 32 * 32;
const COARSE: u16 = 20;

impl Cifar {
    /// The number of values of each label byte of a record.
    fn limits(self) -> &'static [u16] {
        match self {
            Self::Ten => &[10],
            Self::Hundred { .. } => &[COARSE, 100],
        }
    }
}

/// Reads one file, or every `.bin` and `.bin.gz` file of a folder, in the order of their names.
pub fn read_cifar(path: impl AsRef<Path>, set: Cifar) -> Result<LabelledImages> {
    let (mut bytes, mut fine, mut coarse) = (Vec::new(), Vec::new(), Vec::new());
    for file in files_ending(path.as_ref(), &[".bin", ".bin.gz"])? {
        let source = Source::File(&file);
        let (name, content) = (source.name(), source.read()?);
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
