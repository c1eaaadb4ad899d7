//! `[data]` with rows that are read from a file.

use super::cells::{Cells, GIVEN};
use super::split::{Has, Partition, SPLIT, read_partition};
use std::path::PathBuf;
use whimbrel_data::Input;
use whimbrel_job::form::{BOOLEAN, COLUMN, COUNT, Form, PATH as FILE, TEXT};
use whimbrel_job::key::{JobKey, Word};
use whimbrel_job::matrix::read_all;
use whimbrel_job::reader::{Read, Reader, Value};
use whimbrel_job::writer::{Writer, list as listed, text};
use whimbrel_job::{list, table};

/// A CSV file with a header.
#[derive(Clone, Debug, PartialEq)]
pub struct Csv {
    /// The file, as written in the job, or a program's rows in its place.
    pub path: Input,
    /// Who holds which row.
    pub partition: Partition,
    /// The columns of the features; `None`: every numeric column with no other part.
    pub columns: Option<Vec<String>>,
    /// A column left out of the features.
    pub label: Option<String>,
    /// The column that is predicted.
    pub target: Option<String>,
    /// Its classes; `None`: those that the file has.
    pub classes: Option<Vec<String>>,
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

/// Sources whose rows are read.
pub(super) const FILES: &[&str] =
    &["csv", "npy", "libsvm", "idx", "leaf", "cifar10", "cifar100", "jpeg", "speeches"];
const NAMED_COLUMNS: &str = "only csv files have named columns";

/// `path`.
pub(crate) static PATH: JobKey = FILE
    .unset(
        "path",
        "required; with [federation] \"rows.csv\", which need not be there where `columns` are listed, or \
         the labels of a table with gaps",
        "the file (of leaf, cifar10, cifar100 and jpeg also a folder of them), relative to the job file",
    )
    .only(FILES, "its rows are drawn, not read");
/// Rows that clients bring.
const BROUGHT: &str = "rows.csv";
/// `client`.
pub(crate) static CLIENT: JobKey = COLUMN
    .unset(
        "client",
        "`[data.split]` says who holds which row",
        "the column that says who holds the row; of idx files a column of `table`",
    )
    .only(&["csv", "idx"], NAMED_COLUMNS);
/// `label`.
pub(super) static LABEL: JobKey = COLUMN
    .unset(
        "label",
        "none",
        "a column left out of the features, by which rows can be split; of idx files the column of `table` \
         that learners predict",
    )
    .only(&["csv", "idx"], NAMED_COLUMNS);
/// `standardize`.
pub(crate) static STANDARDIZE: JobKey = BOOLEAN
    .default(
        "standardize",
        || BOOLEAN.write(&false),
        "whether each column is scaled to mean 0 and variance 1 over all clients' rows; a mixture is \
         reported in the units of the data all the same",
    )
    .only(&["csv", "npy", "libsvm", "idx"], "samples of learners are used as they are");

/// Rows in memory are written by their hash.
const INPUT: Form<Input> =
    Form::new(FILE.takes, |v| FILE.read(v).map(Input::from), |input| text(&input.to_string()));

table! {
    pub(crate) CSV: Csv {
        + cells: GIVEN;
        & path: PATH, INPUT, unset or PathBuf::from(BROUGHT).into();
        & label: LABEL, COLUMN, unset;
        & standardize: STANDARDIZE, BOOLEAN, default;
        columns: COLUMNS = "columns", COLUMN_LIST,
            unset "every numeric column but `client`, `label`, `target` and the split's",
            "the columns of the features", only (&["csv"], NAMED_COLUMNS);
        target: TARGET = "target", COLUMN, unset "none; regressions need it",
            "the column that a regression predicts: numbers, or two classes",
            only (&["csv"], "the targets are where the source has them");
        classes: CLASSES = "classes", CLASS_LIST,
            unset "those of the file at `path`; where a coordinator has none, \"-1\" and \"1\"",
            "the classes of the target, in the order of their numbers; rows of other classes are refused",
            only (&["csv"], "the targets are where the source has them");
        delimiter: DELIMITER = "delimiter", DELIMITERS, default(None),
            "what separates the cells of a row", only (&["csv"], "only csv files have a delimiter");
        ..{ partition: Partition::Pooled }
    }
}

table! {
    pub(super) NPY: Npy {
        & path: PATH, FILE, required;
        & standardize: STANDARDIZE, BOOLEAN, default;
        ..{ partition: Partition::Pooled }
    }
}

table! {
    pub(super) LIBSVM: Libsvm {
        & path: PATH, FILE, required;
        & standardize: STANDARDIZE, BOOLEAN, default;
        columns: COLUMNS_COUNT = "columns_count", COUNT, unset "the largest index that occurs",
            "how many columns there are, where the last may never occur",
            only (&["libsvm"], "only libsvm files leave columns out");
        ..{ partition: Partition::Pooled }
    }
}

const DELIMITERS: Form<Option<char>> = Form::new(
    "one character or \"auto\"",
    |v| {
        let written = v.text()?;
        let mut characters = written.chars();
        match (characters.next(), characters.next()) {
            (Some(only), None) if only.is_ascii() && !matches!(only, '"' | '\n' | '\r') => {
                Ok(Some(only))
            }
            _ if written == "auto" => Ok(None),
            _ => Err(v.refuse()),
        }
    },
    |delimiter| text(&delimiter.map_or("auto".to_owned(), String::from)),
)
.words(&[Word { name: "auto", doc: "told from the header line" }]);

impl Csv {
    pub(super) fn read(reader: &Reader<'_>, pooled: bool, served: bool) -> Read<Self> {
        let csv = CSV.read(reader);
        let partition = reader.refuse_both(&CLIENT, &SPLIT).and_then(|()| {
            let (label, targets) = match &csv {
                Ok(csv) => (csv.label.as_deref(), csv.target.is_some()),
                Err(_) => (None, true),
            };
            let has = Has { pooled: pooled || served, label, targets, ..Has::default() };
            read_partition(reader, &has)
        });
        if !served && !reader.has(&PATH) {
            return Err(reader.missing(&PATH));
        }
        let csv = Self { partition: partition?, ..csv? };
        if let Some(classes) = &csv.classes
            && (classes.len() < 2 || (1..classes.len()).any(|i| classes[..i].contains(&classes[i])))
        {
            return Err(reader.fault(
                &CLASSES,
                "`classes` needs two classes, each once",
                "list them all",
            ));
        }
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
                return Err(reader.fault(
                    &COLUMNS,
                    format!("column {} is listed as a feature but {part}", text(name)),
                    format!("take {} out of `columns`", text(name)),
                ));
            }
        }
        Ok(())
    }

    pub(super) fn write(&self, out: &mut Writer) {
        CSV.write(self, out);
        if let Partition::Column(name) = &self.partition {
            out.put(&CLIENT, text(name));
        }
    }
}

impl Npy {
    pub(super) fn read(reader: &Reader<'_>, pooled: bool) -> Read<Self> {
        let npy = NPY.read(reader);
        match read_partition(reader, &Has { pooled, targets: true, ..Has::default() })? {
            Partition::Column(_) | Partition::Labels { .. } => Err(reader.fault(
                &SPLIT,
                "a npy file has no named columns to split by",
                "use by = \"iid\" or \"clusters\", or a csv file",
            )),
            partition => Ok(Self { partition, ..npy? }),
        }
    }
}

impl Libsvm {
    pub(super) fn read(reader: &Reader<'_>) -> Read<Self> {
        let libsvm = LIBSVM.read(reader);
        match read_partition(reader, &Has { targets: true, ..Has::default() })? {
            labels @ Partition::Labels { .. } if !labels.columns().is_empty() => Err(reader.fault(
                &SPLIT,
                "a libsvm file has no named columns: a split by class is by the targets",
                "take `column` out; pachinko needs a csv file",
            )),
            partition => Ok(Self { partition, ..libsvm? }),
        }
    }
}

const CLASS_LIST: Form<Vec<String>> = list!(some TEXT, "a list of at least two strings");

const COLUMN_LIST: Form<Vec<String>> = Form::new("a list of column names", read_columns, |names| {
    listed(names.iter().map(|name| text(name)))
});

fn read_columns(value: &Value<'_>) -> Read<Vec<String>> {
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
