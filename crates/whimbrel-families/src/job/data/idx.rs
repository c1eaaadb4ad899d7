//! `[data]` with images in the layout of MNIST.

use super::file::{PATH, STANDARDIZE};
use super::split::{Partition, SPLIT, read_partition};
use std::path::PathBuf;
use whimbrel_job::key::Key;
use whimbrel_job::path::{read_path, write_path};
use whimbrel_job::reader::{Read, Reader};
use whimbrel_job::writer::{Writer, number};

/// The split's column that is `labels`.
pub const LABEL: &str = "label";
/// The split's column that is `writers`.
pub const WRITER: &str = "writer";

/// Images as idx files, plain or gzipped.
#[derive(Clone, Debug, PartialEq)]
pub struct Idx {
    /// The images, as written in the job.
    pub path: PathBuf,
    /// A label for each image, by which they can be split.
    pub labels: Option<PathBuf>,
    /// QMNIST's table, of which the third number is who wrote the digit.
    pub writers: Option<PathBuf>,
    /// What each byte is divided by.
    pub scale: f64,
    /// Who holds which image.
    pub partition: Partition,
    /// Whether columns are scaled to mean 0 and variance 1.
    pub standardize: bool,
}

const IMAGES: &str = "only idx files hold images";

pub(super) static LABELS: Key = Key::optional(
    "labels",
    "a file name",
    "images have no labels",
    "an idx file with a label for each image, by which images can be split; labels are no features",
)
.only(&["idx"], IMAGES);
pub(super) static WRITERS: Key = Key::optional(
    "writers",
    "a file name",
    "nobody is known to have written them",
    "QMNIST's idx file of integers, whose third number for each image is its writer: each writer \
     is a client unless `[data.split]` says otherwise",
)
.only(&["idx"], IMAGES);
pub(super) static SCALE: Key = Key::default(
    "scale",
    "a positive number",
    "255",
    "what each byte of an image is divided by; 255 gives numbers from 0 to 1",
)
.only(&["idx"], IMAGES);

impl Idx {
    pub(super) fn read(reader: &Reader<'_>, pooled: bool) -> Read<Self> {
        let path = reader.read(&PATH, read_path);
        let labels = reader.optional(&LABELS, read_path);
        let writers = reader.optional(&WRITERS, read_path);
        let scale = reader.read(&SCALE, |v| v.number(|x| x > 0.0));
        let standardize = reader.read(&STANDARDIZE, |v| v.boolean());
        let (labels, writers) = (labels?, writers?);
        let partition = match &writers {
            Some(_) if !reader.has(&SPLIT) => Partition::Column(WRITER.into()),
            _ => {
                let label = labels.as_ref().map(|_| LABEL);
                let partition = read_partition(reader, pooled, label, false)?;
                check_column(reader, &partition, labels.is_some(), writers.is_some())?;
                partition
            }
        };
        Ok(Self {
            path: path?,
            labels,
            writers,
            scale: scale?,
            partition,
            standardize: standardize?,
        })
    }

    pub(super) fn paths_mut(&mut self) -> Vec<&mut PathBuf> {
        let embedding = match &mut self.partition {
            Partition::Clusters { embedding, .. } => embedding.as_mut(),
            _ => None,
        };
        let named = std::iter::once(&mut self.path).chain(&mut self.labels);
        named.chain(&mut self.writers).chain(embedding).collect()
    }

    pub(super) fn write(&self, out: &mut Writer) {
        out.put(&PATH, write_path(&self.path));
        if let Some(labels) = &self.labels {
            out.put(&LABELS, write_path(labels));
        }
        if let Some(writers) = &self.writers {
            out.put(&WRITERS, write_path(writers));
        }
        out.put(&SCALE, number(self.scale));
        out.put(&STANDARDIZE, self.standardize.to_string());
    }
}

/// A split looks at labels or writers that are there.
fn check_column(
    reader: &Reader<'_>,
    partition: &Partition,
    labels: bool,
    writers: bool,
) -> Read<()> {
    let column = match partition {
        Partition::Column(column) | Partition::Dirichlet { column: Some(column), .. } => column,
        _ => return Ok(()),
    };
    if (column == LABEL && labels) || (column == WRITER && writers) {
        return Ok(());
    }
    reader.read(&SPLIT, |v| {
        Err(v.fail(
            format!("images have no column \"{column}\" to split by"),
            "give `labels` and column = \"label\", or `writers` and column = \"writer\"",
        ))
    })
}
