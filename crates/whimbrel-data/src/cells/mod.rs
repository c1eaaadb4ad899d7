//! Observed cells of a table that several clients fill in together.
//!
//! Two shapes of file are read. A *long* one has a line for each observation and columns that name
//! the table's row, its column and the value; a *wide* one is the table itself with empty cells. A
//! value that is missing is a cell nobody observed. Both become a [`CellTable`], from which clients
//! get their cells as a column of the file says, or by a split.

mod attributes;
mod guess;
mod labels;
mod share;

pub use attributes::{Attribute, AttributeOf, Described};
pub use guess::{TableGuess, guess_table};
pub use labels::read_labels;
pub(crate) use share::named_key;
pub use share::{CellsOf, hold_out};

use crate::dataset::{Kind, MISSING_CODE};
use crate::defect::{BadRow, LISTED_MAX, Reasons};
use crate::{CsvOptions, Dataset, Error, Features, Input, Result, Source, Spelling, read_csv};
use labels::Labels;
use std::collections::HashMap;
use std::sync::Arc;
use whimbrel_core::Cell;

/// The layout of the cells in a file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CellOptions {
    /// The column of the client.
    pub client: Option<String>,
    /// The columns whose values, joined by `-`, label the table's row; if empty, the lines of a wide
    /// file are numbered from 1.
    pub row: Vec<String>,
    pub layout: CellLayout,
    /// Whether a line without a value is an observed zero rather than unobserved.
    pub missing_as_zero: bool,
    pub entries: Entries,
    /// The labels of all rows; `None`: those that occur.
    pub row_labels: Option<Vec<String>>,
    /// The labels of all columns; `None`: those that occur, or the header's for a wide file.
    pub column_labels: Option<Vec<String>>,
    /// The delimiter; `None`: detected from the header.
    pub delimiter: Option<u8>,
    pub spelling: Spelling,
    /// Columns that describe the table's rows and columns, and are not part of the table.
    pub described: Described,
}

/// The content of a line.
#[derive(Clone, Debug, PartialEq)]
pub enum CellLayout {
    /// One observation.
    Long {
        /// The columns whose values, joined by `-`, label the table's column.
        column: Vec<String>,
        /// The column of the value.
        value: String,
    },
    /// One row of the table.
    Wide {
        /// The table's columns; `None`: all columns without another role.
        columns: Option<Vec<String>>,
    },
}

impl Default for CellLayout {
    fn default() -> Self {
        Self::Wide { columns: None }
    }
}

/// The values allowed in a table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Entries {
    /// Any finite numbers.
    #[default]
    Numbers,
    /// Whole numbers from 0.
    Counts,
    /// 0 and 1.
    Binary,
}

impl Entries {
    /// The reason why a value is not allowed.
    pub fn refuse(self, x: f64) -> Option<&'static str> {
        match self {
            Self::Numbers if x.abs() > 1e15 => Some("is too large: numbers must lie within 1e15"),
            Self::Counts if x < 0.0 => Some("is negative; counts are not"),
            Self::Counts if x > 1e12 => Some("is too large: counts are at most 1e12"),
            Self::Counts if x.fract() != 0.0 => Some("is not whole; counts are"),
            Self::Binary if x != 0.0 && x != 1.0 => Some("is neither 0 nor 1"),
            Self::Numbers | Self::Counts | Self::Binary => None,
        }
    }

    fn hint(self) -> &'static str {
        match self {
            Self::Numbers => "rescale the values, or correct these cells",
            Self::Counts => "correct these cells, or fit other numbers with family = \"gaussian\"",
            Self::Binary => "write 0 and 1, or fit counts with family = \"poisson\"",
        }
    }
}

/// A number in a message, without hundreds of digits.
fn shown(x: f64) -> String {
    if x.abs() < 1e15 { x.to_string() } else { format!("{x:e}") }
}

const UNOBSERVED: &str = "an unobserved cell is empty, NA, or not in the file";

/// All observations of a file.
#[derive(Clone, Debug, PartialEq)]
pub struct CellTable {
    pub name: String,
    /// Labels of the rows, in order.
    pub rows: Arc<[String]>,
    /// Labels of the columns, in order.
    pub columns: Arc<[String]>,
    /// The observations in the order of the file.
    pub cells: Vec<Cell>,
    /// The client of each, as an index into `clients`; empty without a client column.
    pub(crate) owners: Vec<u32>,
    /// The clients in order of appearance, with the line of the first.
    pub(crate) clients: Vec<(String, String)>,
    pub warnings: Vec<String>,
    /// All columns of the file, in order.
    pub header: Vec<String>,
}

/// Reads a table with missing cells.
pub fn read_cells<'a>(source: impl Into<Source<'a>>, options: &CellOptions) -> Result<CellTable> {
    cells_of(&read_csv(source, &options.csv())?, options)
}

impl Input {
    /// Reads a table with missing cells.
    pub fn read_cells(&self, options: &CellOptions) -> Result<CellTable> {
        let data = self.read(&options.csv())?;
        cells_of(&data, options)
    }
}

impl CellOptions {
    /// Reads labels and names as text, even if they look like numbers.
    pub(crate) fn csv(&self) -> CsvOptions {
        let (column, value) = match &self.layout {
            CellLayout::Long { column, value, .. } => (column.as_slice(), Some(value)),
            CellLayout::Wide { .. } => (&[][..], None),
        };
        let text = self.client.iter().chain(&self.row).chain(column);
        // Values are numbers, even if listed as a description.
        let factors = self.described.factors.iter().filter(|name| Some(*name) != value);
        let text: Vec<String> = text.chain(factors).cloned().collect();
        let columns = match &self.layout {
            CellLayout::Long { value, .. } => Some(std::slice::from_ref(value)),
            CellLayout::Wide { columns } => columns.as_deref(),
        };
        let more = &self.described.covariates[..];
        let only = columns.map(|columns| [&text[..], columns, more].concat());
        CsvOptions { delimiter: self.delimiter, text, only, spelling: self.spelling.clone() }
    }
}

/// The observations of a file whose labels were read as text.
fn cells_of(data: &Dataset, options: &CellOptions) -> Result<CellTable> {
    let mut scan = Scan::new(data, options)?;
    for row in 0..data.rows() {
        scan.line(row);
    }
    scan.finish()
}

/// The value columns of a line: one, or one per column of the table.
enum Values {
    Long { value: usize },
    Wide { columns: Vec<usize> },
}

/// One pass over the lines.
struct Scan<'a> {
    data: &'a Dataset,
    options: &'a CellOptions,
    client: Option<usize>,
    row: Labels,
    column: Labels,
    values: Values,
    /// The columns in use, which must be readable.
    read: Vec<usize>,
    cells: Vec<Cell>,
    owners: Vec<u32>,
    clients: Vec<(String, String)>,
    client_of_code: HashMap<u32, u32>,
    /// The line of each cell, to report repeated ones.
    lines: Vec<u32>,
    bad: Vec<BadRow>,
    bad_count: usize,
    /// Whether a value is not allowed.
    misfits: bool,
}

impl<'a> Scan<'a> {
    fn new(data: &'a Dataset, options: &'a CellOptions) -> Result<Self> {
        let at = |names: &[String]| -> Result<Vec<usize>> {
            names.iter().map(|name| data.column(name)).collect()
        };
        let client = options.client.as_deref().map(|name| data.column(name)).transpose()?;
        let row_at = at(&options.row)?;
        let mut read: Vec<usize> = client.iter().chain(&row_at).copied().collect();
        let row = Labels::new("row", row_at, options.row_labels.as_deref())?;
        let (column, values) = match &options.layout {
            CellLayout::Long { column, value } => {
                let at = at(column)?;
                let value = data.features(&Features::Listed(std::slice::from_ref(value)))?[0];
                read.extend(at.iter().chain([&value]));
                let labels = options.column_labels.as_deref();
                (Labels::new("column", at, labels)?, Values::Long { value })
            }
            CellLayout::Wide { columns } => {
                let described = |c: &usize| options.described.has(&data.columns()[*c].name);
                let beside = (0..data.columns().len()).filter(described);
                let used: Vec<usize> = read.iter().copied().chain(beside).collect();
                let columns = wide_columns(data, columns.as_deref(), &used)?;
                read.extend(&columns);
                let names: Vec<String> =
                    columns.iter().map(|&c| data.columns()[c].name.clone()).collect();
                let known = options.column_labels.as_deref().unwrap_or(&names);
                let labels = Labels::new("column", Vec::new(), Some(known))?;
                if let Some(stray) = names.iter().find(|name| labels.find(name).is_none()) {
                    let what = format!(
                        "column {stray:?} of {} is not in the list of column labels",
                        data.name()
                    );
                    return Err(
                        Error::config(what).hint("add it there, or leave it out of `columns`")
                    );
                }
                (labels, Values::Wide { columns })
            }
        };
        Ok(Self {
            data,
            options,
            client,
            row,
            column,
            values,
            read,
            cells: Vec::new(),
            owners: Vec::new(),
            clients: Vec::new(),
            client_of_code: HashMap::new(),
            lines: Vec::new(),
            bad: Vec::new(),
            bad_count: 0,
            misfits: false,
        })
    }

    /// Adds the observations of a line, or the reasons why it cannot be used.
    fn line(&mut self, at: usize) {
        let mut reasons = self.data.unreadable(at, &self.read);
        let owner = self.client.map(|column| self.owner(at, column, &mut reasons));
        let row = if self.options.row.is_empty() {
            self.row.intern(at + 1)
        } else {
            self.row.of_line(self.data, at, &mut reasons)
        };
        match &self.values {
            Values::Long { value } => {
                let value = *value;
                let column = self.column.of_line(self.data, at, &mut reasons);
                self.observe(at, owner, row, column, value, &mut reasons);
            }
            Values::Wide { columns } => {
                for value in columns.clone() {
                    let column = self.column.find(&self.data.columns()[value].name);
                    self.observe(at, owner, row, column, value, &mut reasons);
                }
            }
        }
        if !reasons.is_empty() {
            self.bad_count += 1;
            if self.bad.len() < LISTED_MAX {
                self.bad.push(self.data.bad_row(at, reasons));
            }
        }
    }

    fn observe(
        &mut self,
        at: usize,
        owner: Option<u32>,
        row: Option<u32>,
        column: Option<u32>,
        value: usize,
        reasons: &mut Reasons,
    ) {
        let (Some(row), Some(column)) = (row, column) else { return };
        let x = match self.data.number(at, value) {
            Some(x) => x,
            None if self.options.missing_as_zero => 0.0,
            None => return,
        };
        if let Some(why) = self.options.entries.refuse(x) {
            reasons.push((
                Some(self.data.columns()[value].name.clone()),
                format!("{} {why}", shown(x)),
            ));
            self.misfits = true;
            return;
        }
        self.cells.push(Cell { row, column, value: x });
        self.owners.extend(owner);
        self.lines.push(at as u32);
    }

    /// The client of a line.
    fn owner(&mut self, at: usize, column: usize, reasons: &mut Reasons) -> u32 {
        let text = &self.data.texts[self.data.slots[column]];
        let code = text.codes[at];
        if code == MISSING_CODE {
            missing(self.data, column, reasons);
            return 0;
        }
        let next = self.clients.len() as u32;
        *self.client_of_code.entry(code).or_insert_with(|| {
            let name = text.names[code as usize].clone();
            self.clients.push((name, place(self.data, at)));
            next
        })
    }

    fn finish(mut self) -> Result<CellTable> {
        let name = self.data.name().to_owned();
        if self.bad_count > 0 {
            // Only a column's first unreadable cells are recorded.
            let forgotten = self.read.iter().map(|&c| &self.data.bad[c]);
            let forgotten: usize = forgotten.map(|bad| bad.count - bad.first.len()).sum();
            let (listed, count) = (self.bad, self.bad_count + forgotten);
            let hint = if self.misfits { self.options.entries.hint() } else { UNOBSERVED };
            let hint = Some(hint.into());
            return Err(Error::Rows { file: name, listed, count, hint });
        }
        if self.cells.is_empty() {
            let hint = match self.values {
                Values::Wide { .. } => "give at least one value",
                Values::Long { .. } => "every value is missing: check the column `value`",
            };
            return Err(Error::format(&name, "no cell of the table is observed").hint(hint));
        }
        let warnings = self.repeated().into_iter().collect();
        let (rows, row_at) = self.row.sorted();
        let (columns, column_at) = match self.values {
            // The columns of a wide file keep the order of the header.
            Values::Wide { .. } => self.column.as_given(),
            Values::Long { .. } => self.column.sorted(),
        };
        for cell in &mut self.cells {
            cell.row = row_at[cell.row as usize];
            cell.column = column_at[cell.column as usize];
        }
        let (cells, owners, clients) = (self.cells, self.owners, self.clients);
        let header = self.data.columns().iter().map(|column| column.name.clone()).collect();
        Ok(CellTable { name, rows, columns, cells, owners, clients, warnings, header })
    }

    /// A message about repeated cells of a client or, without clients, of the file.
    fn repeated(&self) -> Option<String> {
        let mut seen = HashMap::with_capacity(self.cells.len());
        let (mut count, mut first) = (0usize, None);
        for (i, cell) in self.cells.iter().enumerate() {
            let owner = self.owners.get(i).copied().unwrap_or(0);
            if let Some(before) = seen.insert((owner, cell.row, cell.column), i) {
                count += 1;
                first.get_or_insert((before, i));
            }
        }
        let (before, again) = first?;
        let line = |i: usize| place(self.data, self.lines[i] as usize);
        let cell = self.cells[again];
        Some(format!(
            "{}: {count} repeated {}, each counted as a separate observation; the first, row \
             {:?} and column {:?}, is on {} and again on {}",
            self.data.name(),
            if count == 1 { "cell" } else { "cells" },
            self.row.name(cell.row),
            self.column.name(cell.column),
            line(before),
            line(again)
        ))
    }
}

/// The columns of a wide table.
fn wide_columns(data: &Dataset, listed: Option<&[String]>, used: &[usize]) -> Result<Vec<usize>> {
    let chosen = match listed {
        Some(names) => data.features(&Features::Listed(names))?,
        None => {
            let left = (0..data.columns().len()).filter(|c| !used.contains(c));
            left.filter(|&c| data.columns()[c].named).collect()
        }
    };
    if let Some(&text) = chosen.iter().find(|&&c| data.columns()[c].kind == Kind::Text) {
        let what = format!(
            "column {:?} of {} holds text, not numbers",
            data.columns()[text].name,
            data.name()
        );
        return Err(Error::config(what).hint(
            "list the columns of the table in `columns`; for one observation per line, name \
             `column` and `value`",
        ));
    }
    if chosen.is_empty() {
        return Err(Error::config(format!("{} has no column of numbers", data.name())));
    }
    Ok(chosen)
}

/// A cell of the file, as text.
fn cell_text(data: &Dataset, line: usize, column: usize) -> Option<String> {
    match data.columns()[column].kind {
        Kind::Text => data.text(line, column).map(String::from),
        Kind::Number => data.number(line, column).map(|x| x.to_string()),
    }
}

/// The place of a row in the file, in words.
fn place(data: &Dataset, row: usize) -> String {
    match data.line(row) {
        Some(line) => format!("line {line} (row {})", row + 1),
        None => format!("row {}", row + 1),
    }
}

fn missing(data: &Dataset, column: usize, reasons: &mut Reasons) {
    let name = &data.columns()[column].name;
    if !reasons.iter().any(|(column, _)| column.as_ref() == Some(name) || column.is_none()) {
        reasons.push((Some(name.clone()), "the value is missing".into()));
    }
}
