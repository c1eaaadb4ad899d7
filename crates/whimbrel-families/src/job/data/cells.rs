//! `[data]` of tables with gaps: how a csv file names rows, columns and values.

use std::path::PathBuf;
use whimbrel_job::key::Key;
use whimbrel_job::matrix::read_all;
use whimbrel_job::path::{read_path, write_path};
use whimbrel_job::reader::{Read, Reader, Shape, Value};
use whimbrel_job::writer::{Writer, list, number, text};

/// How a csv file holds a table with gaps.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Cells {
    /// The columns that name the table's row; empty: the lines of a wide file are numbered.
    pub row: Vec<String>,
    /// The columns that name the table's column; empty: the file is wide.
    pub column: Vec<String>,
    /// The column of the value; `None`: the file is wide.
    pub value: Option<String>,
    /// Whether a line without a value says that nothing was there.
    pub missing_as_zero: bool,
    /// The share of its cells that each client keeps out of the fit.
    pub holdout: f64,
    /// A file of row labels.
    pub row_labels: Option<Labels>,
    /// A file of column labels.
    pub column_labels: Option<Labels>,
}

/// Labels that everyone agrees on.
#[derive(Clone, Debug, PartialEq)]
pub enum Labels {
    /// One on each line of a file.
    File(PathBuf),
    /// As listed.
    Listed(Vec<String>),
}

const CSV: &[&str] = &["csv"];
const WHY: &str = "only csv files hold tables with gaps";
const LABELS: &str = "a list of labels, or a file name";

pub(crate) static ROW: Key = Key::optional(
    "row",
    "a column name, or a list of them whose values are joined by `-`",
    "the lines of a wide table are numbered",
    "the column that names the table's row (low-rank)",
)
.only(CSV, WHY);
pub(crate) static COLUMN: Key = Key::optional(
    "column",
    "a column name, or a list of them whose values are joined by `-`",
    "the file is wide: each line is a row of the table",
    "the column that names the table's column, of a file with one observation on each line \
     (low-rank)",
)
.only(CSV, WHY);
pub(crate) static VALUE: Key = Key::optional(
    "value",
    "a column name",
    "the file is wide: each line is a row of the table",
    "the column of what was observed; empty and NA mean that nothing was (low-rank)",
)
.only(CSV, WHY);
pub(super) static MISSING_AS_ZERO: Key = Key::default(
    "missing_as_zero",
    "true or false",
    "false",
    "whether a line with an empty value says that nothing was seen, rather than that nobody \
     looked (low-rank)",
)
.only(CSV, WHY);
pub(crate) static HOLDOUT: Key = Key::default(
    "holdout",
    "a number from 0 to below 1",
    "0.0",
    "the share of its observed cells that each client keeps out of the fit, to judge it by \
     (low-rank)",
)
.only(CSV, WHY);
pub(super) static ROW_LABELS: Key = Key::optional(
    "row_labels",
    LABELS,
    "the labels that occur, in order",
    "all row labels of the table, one on each line of the file: needed where nobody sees all \
     clients' data (low-rank)",
)
.only(CSV, WHY);
pub(super) static COLUMN_LABELS: Key = Key::optional(
    "column_labels",
    LABELS,
    "the labels that occur, in order",
    "all column labels of the table, likewise (low-rank)",
)
.only(CSV, WHY);

impl Cells {
    pub(super) fn read(reader: &Reader<'_>) -> Read<Self> {
        let row = reader.optional(&ROW, read_names);
        let column = reader.optional(&COLUMN, read_names);
        let value = reader.optional(&VALUE, |v| v.text());
        let missing_as_zero = reader.read(&MISSING_AS_ZERO, |v| v.boolean());
        let holdout = reader.read(&HOLDOUT, |v| v.number(|x| (0.0..1.0).contains(&x)));
        let row_labels = reader.optional(&ROW_LABELS, read_labels);
        let column_labels = reader.optional(&COLUMN_LABELS, read_labels);
        for (given, other) in [(&COLUMN, &VALUE), (&VALUE, &COLUMN), (&VALUE, &ROW)] {
            if reader.has(given) && !reader.has(other) {
                return Err(reader.lacking(
                    other,
                    format!("`{}` needs `{}` beside it", given.name, other.name),
                    "a file with one observation on each line has `row`, `column` and `value`; a \
                     wide table has at most `row`",
                ));
            }
        }
        Ok(Self {
            row: row?.unwrap_or_default(),
            column: column?.unwrap_or_default(),
            value: value?,
            missing_as_zero: missing_as_zero?,
            holdout: holdout?,
            row_labels: row_labels?,
            column_labels: column_labels?,
        })
    }

    /// The first of its keys that says something, for messages.
    pub(crate) fn first_given(&self) -> Option<&'static str> {
        let given = [
            (&ROW, !self.row.is_empty()),
            (&COLUMN, !self.column.is_empty()),
            (&VALUE, self.value.is_some()),
            (&HOLDOUT, self.holdout > 0.0),
            (&MISSING_AS_ZERO, self.missing_as_zero),
            (&ROW_LABELS, self.row_labels.is_some()),
            (&COLUMN_LABELS, self.column_labels.is_some()),
        ];
        given.into_iter().find(|(_, given)| *given).map(|(key, _)| key.name)
    }

    pub(super) fn paths_mut(&mut self) -> impl Iterator<Item = &mut PathBuf> {
        let labels = [&mut self.row_labels, &mut self.column_labels];
        labels.into_iter().filter_map(|labels| match labels {
            Some(Labels::File(path)) => Some(path),
            Some(Labels::Listed(_)) | None => None,
        })
    }

    pub(super) fn write(&self, out: &mut Writer) {
        if self.first_given().is_none() {
            return;
        }
        for (key, names) in [(&ROW, &self.row), (&COLUMN, &self.column)] {
            if !names.is_empty() {
                out.put(key, write_names(names));
            }
        }
        if let Some(value) = &self.value {
            out.put(&VALUE, text(value));
        }
        out.put(&MISSING_AS_ZERO, self.missing_as_zero.to_string());
        out.put(&HOLDOUT, number(self.holdout));
        for (key, labels) in
            [(&ROW_LABELS, &self.row_labels), (&COLUMN_LABELS, &self.column_labels)]
        {
            match labels {
                None => {}
                Some(Labels::File(path)) => out.put(key, write_path(path)),
                Some(Labels::Listed(names)) => out.put(key, list(names.iter().map(|n| text(n)))),
            }
        }
    }
}

pub(super) fn read_names(value: Value<'_>) -> Read<Vec<String>> {
    if !matches!(value.shape(), Shape::List) {
        return value.text().map(|name| vec![name]);
    }
    let names = read_all(value.list()?, |item| item.text())?;
    if names.is_empty() { Err(value.refuse()) } else { Ok(names) }
}

pub(super) fn write_names(names: &[String]) -> String {
    match names {
        [one] => text(one),
        many => list(many.iter().map(|name| text(name))),
    }
}

fn read_labels(value: Value<'_>) -> Read<Labels> {
    match value.shape() {
        Shape::List => read_names(value).map(Labels::Listed),
        _ => read_path(value).map(Labels::File),
    }
}
