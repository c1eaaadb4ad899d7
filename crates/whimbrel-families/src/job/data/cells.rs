//! `[data]` of tables with gaps: the columns of rows, columns and values in a csv file.

use super::file::NAMED;
use std::path::PathBuf;
use whimbrel_job::form::{BELOW_ONE, BOOLEAN, COLUMN as COLUMN_NAME, Form, PATH, Table};
use whimbrel_job::matrix::read_all;
use whimbrel_job::reader::{Read, Reader, Shape};
use whimbrel_job::writer::{list, text};
use whimbrel_job::{form, table};

/// Layout of a table with gaps in a csv file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Cells {
    /// Columns with the row's label; empty: the lines of a wide file are numbered.
    pub row: Vec<String>,
    /// Columns with the column's label; empty: the file is wide.
    pub column: Vec<String>,
    /// Column of the value; `None`: the file is wide.
    pub value: Option<String>,
    /// Whether a missing value means zero.
    pub missing_as_zero: bool,
    /// Share of held-out cells of each client.
    pub holdout: f64,
    pub row_labels: Option<Labels>,
    pub column_labels: Option<Labels>,
}

/// Labels that all clients share.
#[derive(Clone, Debug, PartialEq)]
pub enum Labels {
    /// One per line of a file.
    File(PathBuf),
    Listed(Vec<String>),
}

const WHY: &str = "only csv, parquet and sql hold tables with gaps";
table! {
    pub(crate) CELLS: Cells, only (NAMED, WHY), then check {
        /// column with the label of the table's row
        row: ROW = "row", NAMES, unset "the lines of a wide table are numbered" or Vec::new();
        /// column with the label of the table's column, in a file with one observation per line
        column: COLUMN = "column", NAMES,
            unset "the file is wide: each line is a row of the table" or Vec::new();
        /// column of the observed value; empty cells and NA are missing
        value: VALUE = "value", COLUMN_NAME, unset "the file is wide: each line is a row of the table";
        /// share of its observed cells that each client holds out to evaluate the fit
        holdout: HOLDOUT = "holdout", BELOW_ONE, default;
        /// whether a missing value means zero rather than no observation
        missing_as_zero: MISSING_AS_ZERO = "missing_as_zero", BOOLEAN, default;
        /// all row labels of the table, one per line of the file; required where no party sees all
        /// data
        row_labels: ROW_LABELS = "row_labels", LABELS, unset "the labels that occur, sorted";
        /// all column labels of the table, likewise
        column_labels: COLUMN_LABELS = "column_labels", LABELS, unset "the labels that occur, sorted";
    }
}

/// The same, written only if a key is set.
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
                format!("`{}` requires `{}`", given.name, other.name),
                "a file with one observation per line has `row`, `column` and `value`, a wide table at \
                 most `row`",
            ));
        }
    }
    Ok(cells)
}

impl Cells {
    /// The first of its keys that is set, for messages.
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
