//! Cells and rows that cannot be used, and how they are listed.

use crate::column_checks::has_decimal_comma;
use crate::dataset::{Dataset, Kind, MISSING_CODE};
use crate::{Error, Result};
use std::fmt;

/// How many bad rows an error lists; the others are counted.
pub const LISTED_MAX: usize = 20;
/// Larger numbers are refused: methods send sums of squares, take none above 1e140, and there may be
/// 10^20 addends.
const MAGNITUDE_MAX: f64 = 1e60;
/// How many cells of one bad row are named.
const CELLS_MAX: usize = 3;
/// How much of a cell's text is shown.
const SHOWN_CHARS_MAX: usize = 40;

/// One row that cannot be used, and why.
#[derive(Debug, Clone, PartialEq)]
pub struct BadRow {
    /// The data row, counted from 1 without the header.
    pub row: usize,
    /// The line of the file on which it starts, counted from 1, for text files.
    pub line: Option<u64>,
    /// What is wrong: the column (none where the row as a whole is wrong) and the reason.
    pub reasons: Vec<(Option<String>, String)>,
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

/// Why the reader could not use a cell (a missing one needs no record: it holds NaN).
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct BadCell {
    /// Counted from 0.
    pub(crate) row: usize,
    pub(crate) why: Why,
}

/// The unreadable cells of one column: the first [`LISTED_MAX`], and how many in all.
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
    NotUtf8,
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotANumber(text) => write!(f, "\"{}\" is not a number", shown(text)),
            Self::NotFinite(text) => write!(f, "\"{}\" is not a finite number", shown(text)),
            Self::NotUtf8 => f.write_str("the text is not UTF-8"),
        }
    }
}

/// A row whose number of cells is not the header's.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Ragged {
    /// Counted from 0.
    pub(crate) row: usize,
    pub(crate) cells: usize,
}

impl Dataset {
    /// The rows that cannot be used when these columns are needed: the first [`LISTED_MAX`], and
    /// how many there are in all.
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
                listed.push(BadRow { row: row + 1, line: self.line(row), reasons });
            }
        }
        (listed, count)
    }

    /// Fails with the list of bad rows, if there are any.
    pub fn require_complete(&self, columns: &[usize]) -> Result<()> {
        let (listed, count) = self.bad_rows(columns);
        if count == 0 {
            return Ok(());
        }
        let hint = self.mending_hint(&listed, columns);
        Err(Error::Rows { file: self.name().into(), listed, count, hint: Some(hint) })
    }

    /// Fails with the cells of a column that hold something else than a number, missing ones apart.
    pub(crate) fn require_readable(&self, column: usize) -> Result<()> {
        let BadCells { first, count } = &self.bad[column];
        if *count == 0 {
            return Ok(());
        }
        let bad_row = |cell: &BadCell| {
            let reasons = vec![(Some(self.columns()[column].name.clone()), cell.why.to_string())];
            BadRow { row: cell.row + 1, line: self.line(cell.row), reasons }
        };
        let (listed, hint) = (first.iter().map(bad_row).collect(), None);
        Err(Error::Rows { file: self.name().into(), listed, count: *count, hint })
    }

    /// The first [`LISTED_MAX`] rows that hold something unreadable, missing cells apart.
    pub(crate) fn unreadable_rows(&self) -> Vec<BadRow> {
        let columns: Vec<usize> = (0..self.columns().len()).collect();
        let cells = self.bad.iter().flat_map(|b| &b.first).map(|cell| cell.row);
        let mut rows: Vec<usize> =
            cells.chain(self.ragged.iter().take(LISTED_MAX).map(|r| r.row)).collect();
        rows.sort_unstable();
        rows.dedup();
        rows.truncate(LISTED_MAX);
        let bad_row = |&row: &usize| {
            let reasons = match self.ragged.binary_search_by_key(&row, |r| r.row) {
                Ok(i) => vec![(None, self.ragged_reason(self.ragged[i].cells))],
                Err(_) => columns
                    .iter()
                    .filter_map(|&c| self.bad_cell(row, c).map(|cell| (c, cell)))
                    .map(|(c, cell)| (Some(self.columns()[c].name.clone()), cell.why.to_string()))
                    .collect(),
            };
            BadRow { row: row + 1, line: self.line(row), reasons }
        };
        rows.iter().map(bad_row).collect()
    }

    /// Why a row cannot be read in these columns, missing cells apart; empty where it can.
    pub(crate) fn unreadable(
        &self,
        row: usize,
        columns: &[usize],
    ) -> Vec<(Option<String>, String)> {
        if let Ok(i) = self.ragged.binary_search_by_key(&row, |r| r.row) {
            return vec![(None, self.ragged_reason(self.ragged[i].cells))];
        }
        let bad = columns.iter().filter(|&&c| self.bad[c].count > 0);
        let bad = bad.filter_map(|&c| self.bad_cell(row, c).map(|cell| (c, cell)));
        bad.map(|(c, cell)| (Some(self.columns()[c].name.clone()), cell.why.to_string())).collect()
    }

    fn is_usable(&self, row: usize, column: usize) -> bool {
        let slot = self.slots[column];
        match self.columns()[column].kind {
            // False for a missing number, which is not a number.
            Kind::Number => self.numbers[row * self.number_width + slot].abs() <= MAGNITUDE_MAX,
            Kind::Text => self.texts[slot].codes[row] != MISSING_CODE,
        }
    }

    fn ragged_reason(&self, cells: usize) -> String {
        let noun = if cells == 1 { "cell" } else { "cells" };
        format!("{cells} {noun} where the header names {} columns", self.columns().len())
    }

    fn cell_reasons(&self, row: usize, columns: &[usize]) -> Vec<(Option<String>, String)> {
        columns
            .iter()
            .filter(|&&c| !self.is_usable(row, c))
            .map(|&c| {
                let why = self.bad_cell(row, c).map(|cell| cell.why.to_string());
                let reason = why.unwrap_or_else(|| match self.number(row, c) {
                    Some(x) => format!("{x:e} is too large: squares are summed"),
                    None => "the value is missing".into(),
                });
                (Some(self.columns()[c].name.clone()), reason)
            })
            .collect()
    }

    /// The record of a bad cell. Only the first [`LISTED_MAX`] of a column are kept, which is
    /// enough: of the first `LISTED_MAX` bad rows none holds a later one.
    fn bad_cell(&self, row: usize, column: usize) -> Option<&BadCell> {
        let cells = &self.bad[column].first;
        cells.binary_search_by_key(&row, |cell| cell.row).ok().map(|i| &cells[i])
    }

    fn mending_hint(&self, listed: &[BadRow], columns: &[usize]) -> String {
        let is_too_large = |(_, reason): &(Option<String>, String)| reason.contains("too large");
        if listed.iter().any(|row| row.reasons.iter().any(is_too_large)) {
            return format!("rescale the column: numbers must lie within {MAGNITUDE_MAX:e}");
        }
        let firsts: Vec<_> =
            columns.iter().flat_map(|&c| &self.bad[c].first).map(|cell| &cell.why).collect();
        let decimal_comma = |why: &&Why| matches!(why, Why::NotANumber(t) if has_decimal_comma(t));
        if self.ragged.len() == self.rows() {
            "the first line must name every column; it may not be a header".into()
        } else if listed.iter().any(|row| row.reasons.iter().any(|(column, _)| column.is_none())) {
            "every row needs one cell per column; put quotes around text that holds the delimiter"
                .into()
        } else if firsts.iter().any(decimal_comma) {
            "write decimals with a point, as in 1.5".into()
        } else if firsts.iter().any(|why| **why == Why::NotUtf8) {
            "save the file as UTF-8; it seems to be Latin-1 or Windows-1252".into()
        } else if !self.is_text() {
            "fill these values, or remove these rows".into()
        } else if firsts.is_empty() {
            "fill these cells, remove these rows, or name the columns to use in `columns`".into()
        } else {
            "mend these cells, or name the columns to use in `columns`; a missing value is an empty \
             cell, NA or NaN"
                .into()
        }
    }
}

/// The text with control characters escaped, cut to a length that fits a line.
fn shown(text: &str) -> String {
    let mut out: String = text.chars().take(SHOWN_CHARS_MAX).flat_map(char::escape_debug).collect();
    if text.chars().nth(SHOWN_CHARS_MAX).is_some() {
        out.push('…');
    }
    out
}
