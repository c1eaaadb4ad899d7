//! `[data]` with rows that are read from a file.

use super::cells::Cells;
use super::split::{Has, Partition, SPLIT, read_partition};
use std::path::PathBuf;
use whimbrel_job::key::{Key, Word};
use whimbrel_job::matrix::read_all;
use whimbrel_job::path::{read_path, write_path};
use whimbrel_job::reader::{Read, Reader, Value};
use whimbrel_job::writer::{Writer, list, text};

/// A CSV file with a header.
#[derive(Clone, Debug, PartialEq)]
pub struct Csv {
    /// The file, as written in the job.
    pub path: PathBuf,
    /// Who holds which row.
    pub partition: Partition,
    /// The columns of the features; `None`: every numeric column with no other part.
    pub columns: Option<Vec<String>>,
    /// A column left out of the features.
    pub label: Option<String>,
    /// The column that is predicted.
    pub target: Option<String>,
    /// How the file holds a table with gaps.
    pub cells: Cells,
    /// Whether columns are scaled to mean 0 and variance 1.
    pub standardize: bool,
    /// What separates cells; `None`: told from the header.
    pub delimiter: Option<char>,
}

/// A two-dimensional `.npy` array.
#[derive(Clone, Debug, PartialEq)]
pub struct Npy {
    /// The file, as written in the job.
    pub path: PathBuf,
    /// Who holds which row: `Iid`, `Clusters` or `Pooled`.
    pub partition: Partition,
    /// Whether columns are scaled to mean 0 and variance 1.
    pub standardize: bool,
}

/// LIBSVM's text: sparse rows with targets.
#[derive(Clone, Debug, PartialEq)]
pub struct Libsvm {
    /// The file, as written in the job.
    pub path: PathBuf,
    /// Who holds which row.
    pub partition: Partition,
    /// How many columns; `None`: the largest index says.
    pub columns: Option<usize>,
    /// Whether columns are scaled to mean 0 and variance 1.
    pub standardize: bool,
}

const FILES: &[&str] =
    &["csv", "npy", "libsvm", "idx", "leaf", "cifar10", "cifar100", "jpeg", "speeches"];
const TABLES: &[&str] = &["csv", "npy", "libsvm", "idx"];
const NAMED_COLUMNS: &str = "only csv files have named columns";

pub(crate) static PATH: Key = Key::optional(
    "path",
    "a file name",
    "required; with [federation] \"rows.csv\", which need not be there where `columns` are listed, or \
     the labels of a table with gaps",
    "the file (of leaf, cifar10, cifar100 and jpeg also a folder of them), relative to the job file",
)
.only(FILES, "its rows are drawn, not read");
/// Rows that clients bring.
const BROUGHT: &str = "rows.csv";
pub(crate) static CLIENT: Key = Key::optional(
    "client",
    "a column name",
    "`[data.split]` says who holds which row",
    "the column that says who holds the row; of idx files a column of `table`",
)
.only(&["csv", "idx"], NAMED_COLUMNS);
pub(crate) static COLUMNS: Key = Key::optional(
    "columns",
    "a list of column names",
    "every numeric column but `client`, `label`, `target` and the split's",
    "the columns of the features",
)
.only(&["csv"], NAMED_COLUMNS);
pub(super) static COLUMNS_COUNT: Key = Key::optional(
    "columns_count",
    "an integer of at least 1",
    "the largest index that occurs",
    "how many columns there are, where the last may never occur",
)
.only(&["libsvm"], "only libsvm files leave columns out");
pub(super) static LABEL: Key = Key::optional(
    "label",
    "a column name",
    "none",
    "a column left out of the features, by which rows can be split; of idx files the column of `table` \
     that learners predict",
)
.only(&["csv", "idx"], NAMED_COLUMNS);
pub(super) static TARGET: Key = Key::optional(
    "target",
    "a column name",
    "none; regressions need it",
    "the column that a regression predicts: numbers, or two classes",
)
.only(&["csv"], "the targets are where the source has them");
pub(crate) static STANDARDIZE: Key = Key::default(
    "standardize",
    "true or false",
    "false",
    "whether each column is scaled to mean 0 and variance 1 over all clients' rows; a mixture is \
     reported in the units of the data all the same",
)
.only(TABLES, "samples of learners are used as they are");
pub(super) static DELIMITER: Key = Key::default(
    "delimiter",
    "one character or \"auto\"",
    "\"auto\"",
    "what separates the cells of a row",
)
.words(&[Word { name: "auto", doc: "told from the header line" }])
.only(&["csv"], "only csv files have a delimiter");

impl Csv {
    pub(super) fn read(reader: &Reader<'_>, pooled: bool, served: bool) -> Read<Self> {
        let path = match served && !reader.has(&PATH) {
            true => Ok(PathBuf::from(BROUGHT)),
            false => reader.read(&PATH, read_path),
        };
        let columns = reader.optional(&COLUMNS, read_columns);
        let label = reader.optional(&LABEL, |v| v.text());
        let target = reader.optional(&TARGET, |v| v.text());
        let cells = Cells::read(reader);
        let standardize = reader.read(&STANDARDIZE, |v| v.boolean());
        let delimiter = reader.read(&DELIMITER, read_delimiter);
        let partition = reader.refuse_both(&CLIENT, &SPLIT).and_then(|()| {
            let label = label.as_ref().ok().and_then(|label| label.as_deref());
            let targets = matches!(target, Ok(Some(_)));
            read_partition(
                reader,
                &Has { pooled: pooled || served, label, targets, ..Has::default() },
            )
        });
        let csv = Self {
            path: path?,
            partition: partition?,
            columns: columns?,
            label: label?,
            target: target?,
            cells: cells?,
            standardize: standardize?,
            delimiter: delimiter?,
        };
        csv.check_columns(reader)?;
        Ok(csv)
    }

    /// A column is a feature or something else, never both.
    fn check_columns(&self, reader: &Reader<'_>) -> Read<()> {
        let class = match &self.partition {
            Partition::Column(name) => Some((name, "names the client")),
            other => {
                other.columns().first().map(|column| (*column, "holds the class of the split"))
            }
        };
        let label = self.label.as_ref().map(|name| (name, "is the label"));
        let target = self.target.as_ref().map(|name| (name, "is the target"));
        for (name, part) in class.into_iter().chain(label).chain(target) {
            if self.columns.as_ref().is_some_and(|columns| columns.contains(name)) {
                reader.optional(&COLUMNS, |v| {
                    Err::<(), _>(v.fail(
                        format!("column {} is listed as a feature but {part}", text(name)),
                        format!("take {} out of `columns`", text(name)),
                    ))
                })?;
            }
        }
        Ok(())
    }

    pub(super) fn write(&self, out: &mut Writer) {
        out.put(&PATH, write_path(&self.path));
        if let Partition::Column(name) = &self.partition {
            out.put(&CLIENT, text(name));
        }
        if let Some(columns) = &self.columns {
            out.put(&COLUMNS, list(columns.iter().map(|name| text(name))));
        }
        if let Some(label) = &self.label {
            out.put(&LABEL, text(label));
        }
        if let Some(target) = &self.target {
            out.put(&TARGET, text(target));
        }
        self.cells.write(out);
        out.put(&STANDARDIZE, self.standardize.to_string());
        out.put(&DELIMITER, text(&self.delimiter.map_or("auto".to_owned(), String::from)));
    }
}

impl Npy {
    pub(super) fn read(reader: &Reader<'_>, pooled: bool) -> Read<Self> {
        let path = reader.read(&PATH, read_path);
        let standardize = reader.read(&STANDARDIZE, |v| v.boolean());
        let partition =
            match read_partition(reader, &Has { pooled, targets: true, ..Has::default() })? {
                Partition::Column(_) | Partition::Labels { .. } => reader.read(&SPLIT, |v| {
                    Err(v.fail(
                        "a npy file has no named columns to split by",
                        "use by = \"iid\" or \"clusters\", or a csv file",
                    ))
                }),
                plain => Ok(plain),
            };
        Ok(Self { path: path?, partition: partition?, standardize: standardize? })
    }

    pub(super) fn write(&self, out: &mut Writer) {
        out.put(&PATH, write_path(&self.path));
        out.put(&STANDARDIZE, self.standardize.to_string());
    }
}

impl Libsvm {
    pub(super) fn read(reader: &Reader<'_>) -> Read<Self> {
        let path = reader.read(&PATH, read_path);
        let columns = reader.optional(&COLUMNS_COUNT, |v| v.count());
        let standardize = reader.read(&STANDARDIZE, |v| v.boolean());
        let partition = match read_partition(reader, &Has { targets: true, ..Has::default() })? {
            labels @ Partition::Labels { .. } if !labels.columns().is_empty() => {
                reader.read(&SPLIT, |v| {
                    Err(v.fail(
                        "a libsvm file has no named columns: a split by class is by the targets",
                        "take `column` out; pachinko needs a csv file",
                    ))
                })
            }
            other => Ok(other),
        };
        Ok(Self {
            path: path?,
            partition: partition?,
            columns: columns?,
            standardize: standardize?,
        })
    }

    pub(super) fn write(&self, out: &mut Writer) {
        out.put(&PATH, write_path(&self.path));
        if let Some(columns) = self.columns {
            out.put(&COLUMNS_COUNT, columns.to_string());
        }
        out.put(&STANDARDIZE, self.standardize.to_string());
    }
}

fn read_columns(value: Value<'_>) -> Read<Vec<String>> {
    let items = value.list()?;
    let names = read_all(items.clone(), |item| item.text())?;
    if names.is_empty() {
        return Err(value.fail("`columns` is empty", "leave it out to take every numeric column"));
    }
    match (1..names.len()).find(|&i| names[..i].contains(&names[i])) {
        None => Ok(names),
        Some(i) => Err(items[i].fail(
            format!("column {} is listed twice", text(&names[i])),
            "each feature is one column",
        )),
    }
}

fn read_delimiter(value: Value<'_>) -> Read<Option<char>> {
    let written = value.text()?;
    let mut characters = written.chars();
    match (characters.next(), characters.next()) {
        (Some(only), None) if only.is_ascii() && !matches!(only, '"' | '\n' | '\r') => {
            Ok(Some(only))
        }
        _ if written == "auto" => Ok(None),
        _ => Err(value.refuse()),
    }
}
