//! `[data]` of tables with gaps: how a csv file names rows, columns and values.

use std::path::PathBuf;
use whimbrel_job::form::{BELOW_ONE, BOOLEAN, COLUMN as COLUMN_NAME, Form, PATH, Table};
use whimbrel_job::matrix::read_all;
use whimbrel_job::reader::{Read, Reader, Shape};
use whimbrel_job::writer::{list, text};
use whimbrel_job::{form, table};

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
table! {
    pub(crate) CELLS: Cells, only (CSV, WHY), then check {
        row: ROW = "row", NAMES, unset "the lines of a wide table are numbered" or Vec::new(),
            "the column that names the table's row (low-rank)";
        column: COLUMN = "column", NAMES,
            unset "the file is wide: each line is a row of the table" or Vec::new(),
            "the column that names the table's column, of a file with one observation on each line \
             (low-rank)";
        value: VALUE = "value", COLUMN_NAME, unset "the file is wide: each line is a row of the table",
            "the column of what was observed; empty and NA mean that nothing was (low-rank)";
        holdout: HOLDOUT = "holdout", BELOW_ONE, default,
            "the share of its observed cells that each client keeps out of the fit, to judge it by \
             (low-rank)";
        missing_as_zero: MISSING_AS_ZERO = "missing_as_zero", BOOLEAN, default,
            "whether a line with an empty value says that nothing was seen, rather than that nobody \
             looked (low-rank)";
        row_labels: ROW_LABELS = "row_labels", LABELS, unset "the labels that occur, in order",
            "all row labels of the table, one on each line of the file: needed where nobody sees all \
             clients' data (low-rank)";
        column_labels: COLUMN_LABELS = "column_labels", LABELS, unset "the labels that occur, in order",
            "all column labels of the table, likewise (low-rank)";
    }
}

/// The same, written only where a key says something.
pub(super) const GIVEN: Table<Cells> = Table {
    write: |cells, out| {
        if cells.first_given().is_some() {
            for (key, names) in [(&ROW, &cells.row), (&COLUMN, &cells.column)] {
                if names.is_empty() {
                    out.skip(&[key]);
                }
            }
            CELLS.write(cells, out);
        }
    },
    ..CELLS
};

form! {
    LABELS: Labels, "a list of labels, or a file name" {}
    list NAMES => Labels::Listed;
    text PATH => Labels::File;
}

/// One name, or several.
pub(super) const NAMES: Form<Vec<String>> = Form::new(
    "a column name, or a list of them whose values are joined by `-`",
    |v| {
        if !matches!(v.shape(), Shape::List) {
            return v.text().map(|name| vec![name]);
        }
        let names = read_all(v.list()?, |item| item.text())?;
        if names.is_empty() { Err(v.refuse()) } else { Ok(names) }
    },
    |names| match &names[..] {
        [one] => text(one),
        many => list(many.iter().map(|name| text(name))),
    },
);

fn check(reader: &Reader<'_>, cells: Cells) -> Read<Cells> {
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
    Ok(cells)
}

impl Cells {
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
}
