//! Unusable cells and rows, and their listing in messages.

use crate::column_checks::{THOUSANDS, has_decimal_comma, has_groups};
use crate::dataset::{Dataset, Kind, MISSING_CODE};
use crate::spelling::is_gap;
use crate::{Error, Result};
use std::fmt;

/// The number of bad rows that an error lists; further ones are counted.
pub const LISTED_MAX: usize = 20;
/// Larger numbers are refused: sums of squares must stay below 1e140, with up to 10^20 terms.
const MAGNITUDE_MAX: f64 = 1e60;
/// The number of cells named for each bad row.
const CELLS_MAX: usize = 3;
/// The number of characters shown of a cell.
const SHOWN_CHARS_MAX: usize = 40;

/// Reasons why a row cannot be used, each with its column (`None` for the row as a whole).
pub type Reasons = Vec<(Option<String>, String)>;

/// An unusable row and the reasons.
#[derive(Debug, Clone, PartialEq)]
pub struct BadRow {
    /// The data row, counted from 1 without the header.
    pub row: usize,
    /// The first line in the file, counted from 1, for text files.
    pub line: Option<u64>,
    pub reasons: Reasons,
}

impl fmt::Display for BadRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            Some(line) => write!(f, "line {line} (row {})", self.row)?,
            None => write!(f, "row {}", self.row)?,
        }
        for (i, (column, reason)) in self.reasons.iter().take(CELLS_MAX).enumerate() {
            match column {
                Some(name) if i == 0 => write!(f, ", column {name:?}: {reason}")?,
                Some(name) => write!(f, "; column {name:?}: {reason}")?,
                None => write!(f, ": {reason}")?,
            }
        }
        match self.reasons.len().saturating_sub(CELLS_MAX) {
            0 => Ok(()),
            1 => f.write_str("; and 1 more column"),
            more => write!(f, "; and {more} more columns"),
        }
    }
}

/// An unreadable cell. Missing cells are not recorded.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct BadCell {
    /// Counted from 0.
    pub(crate) row: usize,
    pub(crate) why: Why,
}

/// The unreadable cells of one column: the first [`LISTED_MAX`], and the number of all.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct BadCells {
    pub(crate) first: Vec<BadCell>,
    pub(crate) count: usize,
}

impl BadCells {
    pub(crate) fn push(&mut self, row: usize, why: impl FnOnce() -> Why) {
        self.count += 1;
        if self.first.len() < LISTED_MAX {
            self.first.push(BadCell { row, why: why() });
        }
    }
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Why {
    NotANumber(String),
    NotFinite(String),
    #[cfg(feature = "sql")]
    TooLong(i64),
    NotUtf8,
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotANumber(text) => write!(f, "\"{}\" is not a number", shown(text)),
            Self::NotFinite(text) => write!(f, "\"{}\" is not a finite number", shown(text)),
            #[cfg(feature = "sql")]
            Self::TooLong(x) => {
                write!(f, "{x} has more digits than a number holds; select it as text")
            }
            Self::NotUtf8 => f.write_str("the text is not UTF-8"),
        }
    }
}

/// A row with more or fewer cells than the header.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Ragged {
    /// Counted from 0.
    pub(crate) row: usize,
    pub(crate) cells: usize,
}

impl Dataset {
    /// The rows that are unusable in these columns: the first [`LISTED_MAX`], and the number of all.
    pub fn bad_rows(&self, columns: &[usize]) -> (Vec<BadRow>, usize) {
        let mut ragged = self.ragged.iter().peekable();
        let mut listed = Vec::new();
        let mut count = 0;
        for row in 0..self.rows() {
            let cells = ragged.next_if(|r| r.row == row).map(|r| r.cells);
            if cells.is_none() && columns.iter().all(|&c| self.is_usable(row, c)) {
                continue;
            }
            count += 1;
            if listed.len() < LISTED_MAX {
                let reasons = match cells {
                    Some(cells) => vec![(None, self.ragged_reason(cells))],
                    None => self.cell_reasons(row, columns),
                };
                listed.push(self.bad_row(row, reasons));
            }
        }
        (listed, count)
    }

    /// Fails with the list of rows that are unusable in these columns.
    pub fn require_complete(&self, columns: &[usize]) -> Result<()> {
        let (listed, count) = self.bad_rows(columns);
        if count == 0 {
            return Ok(());
        }
        let hint = self.mending_hint(&listed, columns);
        Err(Error::Rows { file: self.name().into(), listed, count, hint: Some(hint) })
    }

    /// Fails with the unreadable cells of a column; missing cells are allowed.
    pub(crate) fn require_readable(&self, column: usize) -> Result<()> {
        let BadCells { first, count } = &self.bad[column];
        if *count == 0 {
            return Ok(());
        }
        let bad_row = |cell: &BadCell| {
            let reasons = vec![(Some(self.columns()[column].name.clone()), cell.why.to_string())];
            self.bad_row(cell.row, reasons)
        };
        let (listed, hint) = (first.iter().map(bad_row).collect(), None);
        Err(Error::Rows { file: self.name().into(), listed, count: *count, hint })
    }

    /// The first [`LISTED_MAX`] rows with unreadable cells; missing cells are allowed.
    pub(crate) fn unreadable_rows(&self) -> Vec<BadRow> {
        let columns: Vec<usize> = (0..self.columns().len()).collect();
        let cells = self.bad.iter().flat_map(|b| &b.first).map(|cell| cell.row);
        let mut rows: Vec<usize> =
            cells.chain(self.ragged.iter().take(LISTED_MAX).map(|r| r.row)).collect();
        rows.sort_unstable();
        rows.dedup();
        rows.truncate(LISTED_MAX);
        let reasons = |row| self.unreadable(row, &columns);
        rows.iter().map(|&row| self.bad_row(row, reasons(row))).collect()
    }

    /// The reasons why a row is unreadable in these columns; missing cells are allowed.
    pub(crate) fn unreadable(&self, row: usize, columns: &[usize]) -> Reasons {
        if let Ok(i) = self.ragged.binary_search_by_key(&row, |r| r.row) {
            return vec![(None, self.ragged_reason(self.ragged[i].cells))];
        }
        let bad = columns.iter().filter(|&&c| self.bad[c].count > 0);
        let bad = bad.filter_map(|&c| self.bad_cell(row, c).map(|cell| (c, cell)));
        bad.map(|(c, cell)| (Some(self.columns()[c].name.clone()), cell.why.to_string())).collect()
    }

    /// A bad row; `row` is counted from 0.
    pub fn bad_row(&self, row: usize, reasons: Reasons) -> BadRow {
        BadRow { row: row + 1, line: self.line(row), reasons }
    }

    fn is_usable(&self, row: usize, column: usize) -> bool {
        let slot = self.slots[column];
        match self.columns()[column].kind {
            // False for NaN, a missing number.
            Kind::Number => self.numbers[row * self.number_width + slot].abs() <= MAGNITUDE_MAX,
            Kind::Text => self.texts[slot].codes[row] != MISSING_CODE,
        }
    }

    fn ragged_reason(&self, cells: usize) -> String {
        let noun = if cells == 1 { "cell" } else { "cells" };
        format!("{cells} {noun} where the header names {} columns", self.columns().len())
    }

    fn cell_reasons(&self, row: usize, columns: &[usize]) -> Reasons {
        columns
            .iter()
            .filter(|&&c| !self.is_usable(row, c))
            .map(|&c| {
                let why = self.bad_cell(row, c).map(|cell| cell.why.to_string());
                let reason = why.unwrap_or_else(|| match self.number(row, c) {
                    Some(x) => format!("{x:e} is too large"),
                    None => "the value is missing".into(),
                });
                (Some(self.columns()[c].name.clone()), reason)
            })
            .collect()
    }

    /// The record of a bad cell. A column keeps its first [`LISTED_MAX`], which suffices for the first
    /// `LISTED_MAX` bad rows.
    fn bad_cell(&self, row: usize, column: usize) -> Option<&BadCell> {
        let cells = &self.bad[column].first;
        cells.binary_search_by_key(&row, |cell| cell.row).ok().map(|i| &cells[i])
    }

    /// A cell of these columns that usually marks a gap.
    pub(crate) fn gap_mark(&self, columns: &[usize]) -> Option<&str> {
        let cells = columns.iter().flat_map(|at| &self.bad[*at].first);
        let texts = cells.filter_map(|cell| match &cell.why {
            Why::NotANumber(text) => Some(text.as_str()),
            _ => None,
        });
        texts.into_iter().find(|text| is_gap(text))
    }

    fn mending_hint(&self, listed: &[BadRow], columns: &[usize]) -> String {
        let is_too_large = |(_, reason): &(Option<String>, String)| reason.contains("too large");
        if listed.iter().any(|row| row.reasons.iter().any(is_too_large)) {
            return format!("rescale the column: numbers must lie within {MAGNITUDE_MAX:e}");
        }
        let firsts: Vec<_> =
            columns.iter().flat_map(|&c| &self.bad[c].first).map(|cell| &cell.why).collect();
        let decimal_comma = |why: &&Why| matches!(why, Why::NotANumber(t) if has_decimal_comma(t));
        let signs = |t: &str| t.starts_with(['$', '€', '£']) || t.ends_with('%');
        let money = |why: &&Why| matches!(why, Why::NotANumber(t) if signs(t));
        if let Some(mark) = self.gap_mark(columns) {
            format!("if {mark:?} marks a missing value, write na = [{mark:?}] in [data]")
        } else if self.ragged.len() == self.rows() {
            "the first line must name every column; it may not be a header".into()
        } else if listed.iter().any(|row| row.reasons.iter().any(|(column, _)| column.is_none())) {
            "every row needs one cell per column; put quotes around text that holds the delimiter"
                .into()
        } else if firsts.iter().any(|why| matches!(why, Why::NotANumber(t) if has_groups(t))) {
            THOUSANDS.into()
        } else if firsts.iter().any(money) {
            "remove the sign from these cells, and name the unit in the column's name".into()
        } else if firsts.iter().any(decimal_comma) {
            "write decimals with a point, as in 1.5".into()
        } else if firsts.iter().any(|why| **why == Why::NotUtf8) {
            "save the file as UTF-8; it seems to be Latin-1 or Windows-1252".into()
        } else if !self.is_text() {
            "fill these values, or remove these rows".into()
        } else if firsts.is_empty() {
            FILL_CELLS.into()
        } else {
            "correct these cells, or name the columns to use in `columns`; a missing value is an \
             empty cell, NA or NaN"
                .into()
        }
    }
}

/// The remedy for missing cells.
pub const FILL_CELLS: &str =
    "fill these cells, remove these rows, or name the columns to use in `columns`";

/// The text with control characters escaped, shortened to fit a line.
fn shown(text: &str) -> String {
    let mut out: String = text.chars().take(SHOWN_CHARS_MAX).flat_map(char::escape_debug).collect();
    if text.chars().nth(SHOWN_CHARS_MAX).is_some() {
        out.push('…');
    }
    out
}
