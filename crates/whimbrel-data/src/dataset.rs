//! A table as read: named columns of numbers or text, missing cells allowed.

use crate::defect::{BadCells, Ragged, Why};
use crate::{ClientRows, Error, Identifier, Result};
use std::sync::Arc;
use whimbrel_core::Table;

/// What a column holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Finite numbers.
    Number,
    /// Text, kept as categories.
    Text,
}

/// A column's name and kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Column {
    /// Its name in the header, or `#3` for a third column without one.
    pub name: String,
    /// What it holds.
    pub kind: Kind,
    /// Whether the header names it. An unnamed column (row numbers, as a rule) is a feature only
    /// where it is asked for.
    pub named: bool,
}

/// Which columns become the columns of a table.
#[derive(Debug, Clone, Copy)]
pub enum Features<'a> {
    /// Every named column of numbers except these (the label, the client) and
    /// [identifiers](Dataset::identifier) of rows.
    All {
        /// Columns to leave out.
        except: &'a [&'a str],
    },
    /// These, in this order.
    Listed(&'a [String]),
}

/// Rows of named columns. A missing number is NaN (a finite number never is), a missing text has
/// no category.
#[derive(Debug, Clone)]
pub struct Dataset {
    name: String,
    columns: Vec<Column>,
    rows: usize,
    /// Per column, its place among the columns of its kind.
    pub(crate) slots: Vec<usize>,
    /// The columns of numbers, row-major; copies of the value share them.
    pub(crate) numbers: Arc<Vec<f64>>,
    pub(crate) number_width: usize,
    pub(crate) texts: Vec<Categories>,
    /// Per column, the cells that could not be read.
    pub(crate) bad: Vec<BadCells>,
    pub(crate) ragged: Vec<Ragged>,
    /// `(row, line)` wherever the line is not the one after the previous row's; empty for files
    /// without lines.
    lines: Vec<(usize, u64)>,
}

/// A text column: per row the index of its category.
#[derive(Debug, Clone, Default)]
pub(crate) struct Categories {
    pub(crate) codes: Vec<u32>,
    /// In order of first appearance.
    pub(crate) names: Vec<String>,
}

pub(crate) const MISSING_CODE: u32 = u32::MAX;

/// What a reader collects; see [`Dataset`] for the fields.
pub(crate) struct Parts {
    pub(crate) name: String,
    pub(crate) columns: Vec<Column>,
    pub(crate) rows: usize,
    pub(crate) numbers: Vec<f64>,
    pub(crate) texts: Vec<Categories>,
    pub(crate) bad: Vec<BadCells>,
    pub(crate) ragged: Vec<Ragged>,
    pub(crate) lines: Vec<(usize, u64)>,
}

impl Dataset {
    pub(crate) fn from_parts(parts: Parts) -> Self {
        let slots = slots(&parts.columns);
        let number_width = parts.columns.iter().filter(|c| c.kind == Kind::Number).count();
        debug_assert_eq!(parts.numbers.len(), parts.rows * number_width);
        let Parts { name, columns, rows, numbers, texts, bad, ragged, lines } = parts;
        let numbers = Arc::new(numbers);
        Self { name, columns, rows, slots, numbers, number_width, texts, bad, ragged, lines }
    }

    /// Rows of numbers that did not come from a text file. NaN is missing, an infinity is a cell
    /// that cannot be used.
    pub fn from_table(name: &str, table: Table) -> Self {
        let rows = table.rows();
        let Table { columns, values: mut numbers, .. } = table;
        let mut bad = vec![BadCells::default(); columns.len()];
        for (i, x) in numbers.iter_mut().enumerate().filter(|(_, x)| x.is_infinite()) {
            let row = i / columns.len();
            bad[i % columns.len()].push(row, || Why::NotFinite(x.to_string()));
            *x = f64::NAN;
        }
        let columns = columns.iter().cloned();
        let columns = columns.map(|name| Column { name, kind: Kind::Number, named: true });
        Self::from_parts(Parts {
            name: name.into(),
            columns: columns.collect(),
            rows,
            numbers,
            texts: Vec::new(),
            bad,
            ragged: Vec::new(),
            lines: Vec::new(),
        })
    }

    pub(crate) fn push_text(&mut self, column: Column, values: Categories) {
        self.slots.push(self.texts.len());
        self.columns.push(column);
        self.texts.push(values);
        self.bad.push(BadCells::default());
    }

    /// The file it came from.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// How many rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// The columns, in the order of the file.
    pub fn columns(&self) -> &[Column] {
        &self.columns
    }

    /// Where a column is; an unknown one is an error that names the nearest spelling.
    pub fn column(&self, name: &str) -> Result<usize> {
        if let Some(i) = self.columns.iter().position(|c| c.name == name) {
            return Ok(i);
        }
        let names = self.columns.iter().map(|c| c.name.as_str());
        let hint = match nearest(name, names.clone()) {
            Some(near) => format!("did you mean {near:?}?"),
            None => format!("its columns are {}", listing(names)),
        };
        Err(Error::NoColumn { file: self.name.clone(), column: name.into(), hint })
    }

    /// A number; nothing where the cell is missing or the column holds text.
    pub fn number(&self, row: usize, column: usize) -> Option<f64> {
        if self.columns[column].kind != Kind::Number {
            return None;
        }
        let x = self.numbers[row * self.number_width + self.slots[column]];
        (!x.is_nan()).then_some(x)
    }

    /// A text; nothing where the cell is missing or the column holds numbers.
    pub fn text(&self, row: usize, column: usize) -> Option<&str> {
        if self.columns[column].kind != Kind::Text {
            return None;
        }
        let text = &self.texts[self.slots[column]];
        text.names.get(text.codes[row] as usize).map(String::as_str)
    }

    /// Resolves a choice of columns.
    pub fn features(&self, choice: &Features<'_>) -> Result<Vec<usize>> {
        match choice {
            Features::All { except } => self.all_features(except),
            Features::Listed(names) => self.listed_features(names),
        }
    }

    /// These columns of every row, or an error that lists the rows that have a gap there.
    pub fn table(&self, features: &[usize]) -> Result<Table> {
        self.require_complete(features)?;
        self.gather(features, 0..self.rows)
    }

    /// These columns, one table per client.
    pub fn tables(
        &self,
        features: &[usize],
        clients: &[ClientRows],
    ) -> Result<Vec<(String, Table)>> {
        self.require_complete(features)?;
        clients
            .iter()
            .map(|c| Ok((c.name.clone(), self.gather(features, c.rows.iter().copied())?)))
            .collect()
    }

    /// Whether it was read from lines of text.
    pub(crate) fn is_text(&self) -> bool {
        !self.lines.is_empty()
    }

    /// The line on which a row (counted from 0) starts, for text files.
    pub fn line(&self, row: usize) -> Option<u64> {
        let after = self.lines.partition_point(|&(first, _)| first <= row);
        let (first, line) = *self.lines.get(after.checked_sub(1)?)?;
        Some(line + (row - first) as u64)
    }

    fn all_features(&self, except: &[&str]) -> Result<Vec<usize>> {
        let left_out: Vec<usize> =
            except.iter().map(|name| self.column(name)).collect::<Result<_>>()?;
        let others: Vec<usize> =
            (0..self.columns.len()).filter(|i| !left_out.contains(i)).collect();
        others.iter().try_for_each(|i| self.refuse_decimal_commas(*i))?;
        let chosen: Vec<usize> = others
            .into_iter()
            .filter(|i| self.columns[*i].kind == Kind::Number && self.columns[*i].named)
            .filter(|i| self.identifier(*i) != Some(Identifier::OfRows))
            .collect();
        if chosen.is_empty() {
            let what = format!("{} has no column of numbers to learn from", self.name);
            let names = self.columns.iter().map(|c| c.name.as_str());
            return Err(Error::config(what).hint(format!("its columns are {}", listing(names))));
        }
        Ok(chosen)
    }

    fn listed_features(&self, names: &[String]) -> Result<Vec<usize>> {
        if names.is_empty() {
            return Err(Error::config("the list of columns is empty").hint("name at least one"));
        }
        let mut chosen = Vec::with_capacity(names.len());
        for name in names {
            let i = self.column(name)?;
            if chosen.contains(&i) {
                return Err(Error::config(format!("column {name:?} is listed twice")));
            }
            if self.columns[i].kind == Kind::Text {
                let what = format!("column {name:?} of {} holds text, not numbers", self.name);
                let values = self.texts[self.slots[i]].names.iter().map(String::as_str);
                return Err(Error::config(what).hint(format!("it holds {}", listing(values))));
            }
            chosen.push(i);
        }
        Ok(chosen)
    }

    fn gather(&self, features: &[usize], rows: impl Iterator<Item = usize>) -> Result<Table> {
        let slots: Vec<usize> = features.iter().map(|&c| self.slots[c]).collect();
        let mut values = Vec::with_capacity(rows.size_hint().0 * slots.len());
        for row in rows {
            let numbers = &self.numbers[row * self.number_width..][..self.number_width];
            values.extend(slots.iter().map(|&s| numbers[s]));
        }
        let names = features.iter().map(|&c| self.columns[c].name.clone()).collect();
        Ok(Table::new(names, values)?)
    }
}

/// Per column, its place among the columns of its kind.
pub(crate) fn slots(columns: &[Column]) -> Vec<usize> {
    let mut used = [0, 0];
    let place = |column: &Column| {
        let next = &mut used[usize::from(column.kind == Kind::Text)];
        *next += 1;
        *next - 1
    };
    columns.iter().map(place).collect()
}

/// The candidate with the fewest edits, if it is close enough to be a slip.
fn nearest<'a>(name: &str, candidates: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let close = name.chars().count().div_ceil(3).max(1);
    candidates
        .map(|c| (edits(&name.to_lowercase(), &c.to_lowercase()), c))
        .filter(|(distance, _)| *distance <= close)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, c)| c)
}

/// Levenshtein's distance.
fn edits(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let swapped = diagonal + usize::from(x != *y);
            diagonal = row[j + 1];
            row[j + 1] = swapped.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

fn listing<'a>(names: impl Iterator<Item = &'a str>) -> String {
    const SHOWN: usize = 12;
    let names: Vec<&str> = names.collect();
    let mut text =
        names.iter().take(SHOWN).map(|n| format!("{n:?}")).collect::<Vec<_>>().join(", ");
    if names.len() > SHOWN {
        text.push_str(&format!(" and {} more", names.len() - SHOWN));
    }
    text
}
