//! `[data]` with rows from csv, parquet, npy and libsvm files, and of databases.

use super::SourceKind;
use super::cells::{Cells, GIVEN};
use super::split::{Has, Partition, SPLIT, read_partition};
use std::path::PathBuf;
use whimbrel_data::{Database, Input, Query, Spelling};
use whimbrel_job::form::{BOOLEAN, COLUMN, COUNT, Form, PATH as FILE, TEXT};
use whimbrel_job::key::Word;
use whimbrel_job::matrix::read_all;
use whimbrel_job::reader::{Read, Reader, Value};
use whimbrel_job::writer::{Writer, list as listed, text};
use whimbrel_job::{define_keys, form, list, table};

/// Rows with named columns: a CSV file with a header, Parquet files, or a query of a database.
#[derive(Clone, Debug, PartialEq)]
pub struct Csv {
    /// File or database as written in the job, or rows in memory.
    pub path: Input,
    pub partition: Partition,
    /// Feature columns; `None`: all numeric columns without another role.
    pub columns: Option<Vec<String>>,
    /// A column that is not a feature.
    pub label: Option<String>,
    /// The predicted column.
    pub target: Option<String>,
    /// Its classes; `None`: those of the file.
    pub classes: Option<Vec<String>>,
    /// Layout of a table with gaps.
    pub cells: Cells,
    /// Whether columns are scaled to mean 0 and variance 1.
    pub standardize: bool,
    /// Separator of cells; `None`: detected in the header.
    pub delimiter: Option<char>,
    /// Cells without a value, beside empty ones, NA and NaN.
    pub na: Option<Vec<String>>,
    /// The mark between groups of three digits.
    pub thousands: Option<char>,
}

/// A two-dimensional `.npy` array.
#[derive(Clone, Debug, PartialEq)]
pub struct Npy {
    /// The file, as written in the job.
    pub path: PathBuf,
    /// `Iid`, `Clusters` or `Pooled`.
    pub partition: Partition,
    /// Whether columns are scaled to mean 0 and variance 1.
    pub standardize: bool,
}

/// LIBSVM's text: sparse rows with targets.
#[derive(Clone, Debug, PartialEq)]
pub struct Libsvm {
    /// The file, as written in the job.
    pub path: PathBuf,
    pub partition: Partition,
    /// Number of columns; `None`: the largest index.
    pub columns: Option<usize>,
    /// Whether columns are scaled to mean 0 and variance 1.
    pub standardize: bool,
}

/// Sources that read files.
pub(super) const FILES: &[&str] =
    &["csv", "parquet", "npy", "libsvm", "idx", "leaf", "cifar10", "cifar100", "jpeg", "speeches"];
/// Sources whose rows are read, not drawn.
pub(super) const STORED: &[&str] = &[
    "csv", "parquet", "sql", "npy", "libsvm", "idx", "leaf", "cifar10", "cifar100", "jpeg",
    "speeches",
];
/// Sources with named columns.
pub(super) const NAMED: &[&str] = &["csv", "parquet", "sql"];
const NAMED_OR_IDX: &[&str] = &["csv", "parquet", "sql", "idx"];
const SCALED: &[&str] = &["csv", "parquet", "sql", "npy", "libsvm", "idx"];
pub(super) const NAMED_COLUMNS: &str = "only csv, parquet and sql have named columns";

define_keys! {
    /// the file, relative to the job file; for parquet, leaf, cifar10, cifar100 and jpeg also a folder
    pub(crate) PATH = "path", FILE,
        unset "required; with [federation] \"rows.csv\", which need not exist if `columns`, or the \
         labels of a table with gaps, are listed",
        only (FILES, "its rows are generated, or in a database");
    /// the database: `postgres://user@host/database` or `sqlite:FILE`; the password comes from PGPASSWORD
    /// or a password file
    pub(crate) URL = "url", TEXT, unset "required", only (SQL, NOT_SQL);
    /// file with the query, one SELECT, relative to the job file
    pub(crate) QUERY = "query", FILE, unset "required", only (SQL, NOT_SQL);
}
const SQL: &[&str] = &["sql"];
const NOT_SQL: &str = "only databases are queried";
/// Name that stands for the clients' files.
const BROUGHT: &str = "rows.csv";
define_keys! {
    /// column with the client's name; for idx files a column of `table`
    pub(crate) CLIENT = "client", COLUMN, unset "clients are those of `[data.split]`",
        only (NAMED_OR_IDX, NAMED_COLUMNS);
    /// a column that is not a feature, by which rows can be split; for idx files the column of
    /// `table` that learners predict
    pub(super) LABEL = "label", COLUMN, unset "none", only (NAMED_OR_IDX, NAMED_COLUMNS);
    /// whether columns are scaled to mean 0 and variance 1 over all clients; mixtures are still
    /// reported in the units of the data
    pub(crate) STANDARDIZE = "standardize", BOOLEAN, default(false),
        only (SCALED, "samples of learners are not scaled");
}

/// Files, or rows in memory by their hash.
const INPUT: Form<Input> =
    Form::new(FILE.takes, |v| FILE.read(v).map(Input::File), |input| text(&input.to_string()));

table! {
    pub(crate) CSV: Csv {
        + cells: GIVEN;
        & path: PATH, INPUT, unset or Input::File(BROUGHT.into());
        & label: LABEL, COLUMN, unset;
        & standardize: STANDARDIZE, BOOLEAN, default;
        /// feature columns
        columns: COLUMNS = "columns", COLUMN_LIST,
            unset "all numeric columns except `client`, `label`, `target` and those of the split", only (NAMED, NAMED_COLUMNS);
        /// the predicted column: numbers, or classes
        target: TARGET = "target", COLUMN, unset "none; required for regressions",
            only (NAMED, "the targets are where the source has them");
        /// classes of the target, in the order of their numbers; other classes are an error
        classes: CLASSES = "classes", CLASS_LIST,
            unset "those of the file; \"-1\" and \"1\" for a coordinator without a file",
            only (NAMED, "the targets are where the source has them");
        /// separator of cells
        delimiter: DELIMITER = "delimiter", DELIMITERS, default(None), only (&["csv"], "only csv files have a delimiter");
        /// cells without a value, beside empty ones, NA and NaN
        na: NA = "na", NA_LIST, unset "none", only (&["csv"], "only csv files have such cells");
        /// mark between groups of three digits, as in "1,000"
        thousands: THOUSANDS = "thousands", MARKS, unset "none",
            only (&["csv"], "only csv files have such marks");
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
        /// number of columns, if the last may not occur
        columns: COLUMNS_COUNT = "columns_count", COUNT, unset "the largest index that occurs",
            only (&["libsvm"], "only libsvm files omit columns");
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
.words(&[Word { name: "auto", doc: "detected in the header line" }]);

const NA_LIST: Form<Vec<String>> = list!(some TEXT, "a list of strings");

form! {
    MARKS: char {
        /// a comma
        "," => ',',
        /// a point
        "." => '.',
        /// an apostrophe
        "'" => '\'',
        /// a space
        " " => ' ',
    }
}

impl Csv {
    /// The spelling of numbers and gaps.
    pub(crate) fn spelling(&self) -> Spelling {
        let na = self.na.clone().unwrap_or_default();
        Spelling { na, thousands: self.thousands.map(|mark| mark as u8) }
    }

    /// The word of `source`.
    pub(super) fn kind(&self) -> SourceKind {
        match &self.path {
            Input::File(_) | Input::Rows(_) => SourceKind::Csv,
            Input::Parquet(_) => SourceKind::Parquet,
            Input::Sql(_) => SourceKind::Sql,
        }
    }

    pub(super) fn read(
        reader: &Reader<'_>,
        kind: SourceKind,
        pooled: bool,
        served: bool,
    ) -> Read<Self> {
        let mut csv = CSV.read(reader);
        if let Ok(Self { path, .. }) = &mut csv
            && let Input::File(file) = path
        {
            match kind {
                SourceKind::Parquet => *path = Input::Parquet(std::mem::take(file)),
                SourceKind::Sql => *path = read_query(reader)?,
                _ => {}
            }
        }
        let partition = reader.refuse_both(&CLIENT, &SPLIT).and_then(|()| {
            let (label, targets) = match &csv {
                Ok(csv) => (csv.label.as_deref(), csv.target.is_some()),
                Err(_) => (None, true),
            };
            let has = Has { pooled: pooled || served, label, targets, ..Has::default() };
            read_partition(reader, &has)
        });
        if !served && kind != SourceKind::Sql && !reader.has(&PATH) {
            return Err(reader.missing(&PATH));
        }
        let csv = Self { partition: partition?, ..csv? };
        if let Some(classes) = &csv.classes
            && (classes.len() < 2 || (1..classes.len()).any(|i| classes[..i].contains(&classes[i])))
        {
            return Err(reader.fault(
                &CLASSES,
                "`classes` needs at least two classes, each once",
                "list them all",
            ));
        }
        csv.check_columns(reader)?;
        Ok(csv)
    }

    /// Refuses features with another role.
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
        if let Input::Sql(query) = &self.path {
            out.put(&URL, text(&query.database.to_string()));
            out.put(&QUERY, text(&query.file.display().to_string()));
        }
        if let Partition::Column(name) = &self.partition {
            out.put(&CLIENT, text(name));
        }
    }
}

fn read_query(reader: &Reader<'_>) -> Read<Input> {
    let [url, file] = [reader.optional_as(&URL, &TEXT)?, reader.optional_as(&QUERY, &TEXT)?];
    let Some(url) = url else { return Err(reader.missing(&URL)) };
    let Some(file) = file else { return Err(reader.missing(&QUERY)) };
    match Database::parse(&url) {
        Ok(Some(database)) => Ok(Input::Sql(Query::new(database, file))),
        Ok(None) => Err(reader.fault(
            &URL,
            "`url` is not the URL of a database",
            "write \"postgres://user@host/database\" or \"sqlite:FILE\"",
        )),
        Err(_) => Err(reader.fault(
            &URL,
            "`url` has a password, which everyone who reads the job would see",
            "take it out, and set PGPASSWORD or name a password file in PGPASSFILE",
        )),
    }
}

impl Npy {
    pub(super) fn read(reader: &Reader<'_>, pooled: bool) -> Read<Self> {
        let npy = NPY.read(reader);
        match read_partition(reader, &Has { pooled, targets: true, ..Has::default() })? {
            Partition::Column(_) | Partition::Labels { .. } => Err(reader.fault(
                &SPLIT,
                "an npy file has no named columns to split by",
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
