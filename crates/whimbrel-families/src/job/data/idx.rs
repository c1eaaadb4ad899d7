//! `[data]` with images in the layout of MNIST.

use super::file::{CLIENT, LABEL as LABEL_COLUMN, PATH, STANDARDIZE};
use super::split::{Has, Partition, SPLIT, read_partition};
use std::path::PathBuf;
use whimbrel_job::form::{BOOLEAN, COLUMN, PATH as FILE, POSITIVE};
use whimbrel_job::reader::{Read, Reader};
use whimbrel_job::writer::{Writer, text};
use whimbrel_job::{define_keys, table};

/// The split's name for the column of `labels`.
pub const LABEL: &str = "label";
/// The split's name for the column of `writers`.
pub const WRITER: &str = "writer";

/// Images as idx files, plain or gzipped.
#[derive(Clone, Debug, PartialEq)]
pub struct Idx {
    /// File as written in the job.
    pub path: PathBuf,
    /// Labels of the images.
    pub labels: Option<PathBuf>,
    /// QMNIST's table, whose third number is the writer.
    pub writers: Option<PathBuf>,
    /// A csv file with a line per image.
    pub table: Option<PathBuf>,
    /// Column of `table` with the labels.
    pub label: Option<String>,
    /// Whether images are transposed.
    pub transpose: bool,
    /// Divisor of the bytes.
    pub scale: f64,
    pub partition: Partition,
    /// Whether columns are scaled to mean 0 and variance 1.
    pub standardize: bool,
}

const IMAGES: &str = "only idx files hold images";

define_keys! {
    /// an idx file with a label per image, which learners predict and by which images can be split;
    /// not a feature
    pub(super) LABELS = "labels", FILE, unset "images have no labels",
        only (&["idx", "jpeg"], "only idx files and JPEG images have separate label files");
}

table! {
    pub(super) IDX: Idx, only (&["idx"], IMAGES) {
        & path: PATH, FILE, required;
        & labels: LABELS, FILE, unset;
        & label: LABEL_COLUMN, COLUMN, unset;
        & standardize: STANDARDIZE, BOOLEAN, default;
        /// QMNIST's idx file of integers, whose third number per image is its writer; each writer
        /// is a client unless `[data.split]` is given
        writers: WRITERS = "writers", FILE, unset "no writers";
        /// a csv file with a line per image, to whose columns `label`, `client` and `[data.split]`
        /// refer
        table: TABLE = "table", FILE, unset "no other columns";
        /// whether images are transposed, as EMNIST's files require
        transpose: TRANSPOSE = "transpose", BOOLEAN, default(false);
        /// divisor of the bytes of an image; 255 gives numbers from 0 to 1
        scale: SCALE = "scale", POSITIVE, default(Idx::SCALE);
        ..{ partition: Partition::Pooled }
    }
}

impl Idx {
    /// The divisor by which bytes become numbers from 0 to 1.
    const SCALE: f64 = 255.0;

    pub(super) fn read(reader: &Reader<'_>, pooled: bool) -> Read<Self> {
        let idx = IDX.read(reader)?;
        for key in [&LABEL_COLUMN, &CLIENT] {
            if idx.table.is_none() {
                reader.refuse_if_given(key, "names a column of `table`, which is not given");
            }
        }
        reader.refuse_both(&LABELS, &LABEL_COLUMN)?;
        reader.refuse_both(&CLIENT, &SPLIT)?;
        let label = idx.label.as_deref().or(idx.labels.as_ref().map(|_| LABEL));
        let has = Has { pooled, label, natural: idx.writers.is_some(), ..Has::default() };
        let partition = match read_partition(reader, &has)? {
            Partition::Natural => Partition::Column(WRITER.into()),
            other => other,
        };
        let idx = Self { partition, ..idx };
        if idx.table.is_none() {
            idx.check_column(reader)?;
        }
        Ok(idx)
    }

    /// Refuses a split by labels or writers that are missing.
    fn check_column(&self, reader: &Reader<'_>) -> Read<()> {
        let is_known = |column: &str| {
            (column == LABEL && self.labels.is_some())
                || (column == WRITER && self.writers.is_some())
        };
        match self.partition.columns().into_iter().find(|column| !is_known(column)) {
            None => Ok(()),
            Some(column) => Err(reader.fault(
                &SPLIT,
                format!("images have no column \"{column}\" to split by"),
                "give `labels` and column = \"label\", or `writers` and column = \"writer\"",
            )),
        }
    }

    pub(super) fn paths_mut(&mut self) -> Vec<&mut PathBuf> {
        let embedding = match &mut self.partition {
            Partition::Clusters { embedding, .. } => embedding.as_mut(),
            _ => None,
        };
        let named = std::iter::once(&mut self.path).chain(&mut self.labels);
        named.chain(&mut self.writers).chain(&mut self.table).chain(embedding).collect()
    }

    pub(super) fn write(&self, out: &mut Writer) {
        IDX.write(self, out);
        if let (Some(_), Partition::Column(client)) = (&self.table, &self.partition) {
            out.put(&CLIENT, text(client));
        }
    }
}
