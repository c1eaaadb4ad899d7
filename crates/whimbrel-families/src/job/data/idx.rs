//! `[data]` with images in the layout of MNIST.

use super::file::{CLIENT, LABEL as LABEL_COLUMN, PATH, STANDARDIZE};
use super::split::{Has, Partition, SPLIT, read_partition};
use std::path::PathBuf;
use whimbrel_job::key::Key;
use whimbrel_job::path::{read_path, write_path};
use whimbrel_job::reader::{Read, Reader};
use whimbrel_job::writer::{Writer, number, text};

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
    /// A table with a line for each image.
    pub table: Option<PathBuf>,
    /// The column of that table that holds the labels.
    pub label: Option<String>,
    /// Whether the files have rows and columns of the images exchanged.
    pub transpose: bool,
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
    "an idx file with a label for each image, by which images can be split and which learners predict; \
     labels are no features",
)
.only(&["idx", "jpeg"], "only idx files and JPEG images have labels in a file of their own");
pub(super) static TABLE: Key = Key::optional(
    "table",
    "a file name",
    "nothing else is known of the images",
    "a csv file with a line for each image, whose columns `label`, `client` and `[data.split]` name",
)
.only(&["idx"], IMAGES);
pub(super) static TRANSPOSE: Key = Key::default(
    "transpose",
    "true or false",
    "false",
    "whether rows and columns of each image are exchanged: EMNIST's files have them the other way \
     round",
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
        let table = reader.optional(&TABLE, read_path);
        let label = reader.optional(&LABEL_COLUMN, |v| v.text());
        let transpose = reader.read(&TRANSPOSE, |v| v.boolean());
        let (labels, writers, table, label) = (labels?, writers?, table?, label?);
        for key in [&LABEL_COLUMN, &CLIENT] {
            if table.is_none() {
                reader.refuse_if_given(key, "names a column of `table`, which is not given");
            }
        }
        reader.refuse_both(&LABELS, &LABEL_COLUMN)?;
        reader.refuse_both(&CLIENT, &SPLIT)?;
        let class = label.as_deref().or(labels.as_ref().map(|_| LABEL));
        let has = Has { pooled, label: class, natural: writers.is_some(), ..Has::default() };
        let partition = match read_partition(reader, &has)? {
            Partition::Natural => Partition::Column(WRITER.into()),
            other => other,
        };
        if table.is_none() {
            check_column(reader, &partition, labels.is_some(), writers.is_some())?;
        }
        Ok(Self {
            path: path?,
            labels,
            writers,
            table,
            label,
            transpose: transpose?,
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
        named.chain(&mut self.writers).chain(&mut self.table).chain(embedding).collect()
    }

    pub(super) fn write(&self, out: &mut Writer) {
        out.put(&PATH, write_path(&self.path));
        if let Some(labels) = &self.labels {
            out.put(&LABELS, write_path(labels));
        }
        if let Some(writers) = &self.writers {
            out.put(&WRITERS, write_path(writers));
        }
        if let Some(table) = &self.table {
            out.put(&TABLE, write_path(table));
        }
        if let (Some(_), Partition::Column(client)) = (&self.table, &self.partition) {
            out.put(&CLIENT, text(client));
        }
        if let Some(label) = &self.label {
            out.put(&LABEL_COLUMN, text(label));
        }
        if self.transpose {
            out.put(&TRANSPOSE, true.to_string());
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
    let is_known =
        |column: &&String| (**column == LABEL && labels) || (**column == WRITER && writers);
    let columns = partition.columns();
    let Some(column) = columns.into_iter().find(|column| !is_known(column)) else { return Ok(()) };
    reader.read(&SPLIT, |v| {
        Err(v.fail(
            format!("images have no column \"{column}\" to split by"),
            "give `labels` and column = \"label\", or `writers` and column = \"writer\"",
        ))
    })
}
