//! A table as read: named columns of numbers or text, possibly with missing cells.

use crate::defect::{BadCells, Ragged, Why};
use crate::{ClientRows, Error, Identifier, Result};
use std::collections::HashMap;
use std::sync::Arc;
use whimbrel_core::Table;

/// The kind of a column.
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
    /// The name in the header; a third column without one is called `#3`.
    pub name: String,
    pub kind: Kind,
    /// Whether the header names it. An unnamed column (usually row numbers) is a feature only on
    /// request.
    pub named: bool,
}

/// The choice of a table's columns.
#[derive(Debug, Clone, Copy)]
pub enum Features<'a> {
    /// All named columns of numbers, without [identifiers](Dataset::identifier) of rows.
    All {
        /// Columns to leave out.
        except: &'a [&'a str],
    },
    /// These, in this order.
    Listed(&'a [String]),
}

/// Rows of named columns. A missing number is NaN, a missing text has no category.
#[derive(Debug, Clone)]
pub struct Dataset {
    name: String,
    columns: Vec<Column>,
    rows: usize,
    /// The place of each column among those of its kind.
    pub(crate) slots: Vec<usize>,
    /// The columns of numbers, row-major; copies of the value share them.
    pub(crate) numbers: Arc<Vec<f64>>,
    pub(crate) number_width: usize,
    /// The columns of text; copies of the value share them.
    pub(crate) texts: Vec<Arc<Categories>>,
    /// The unreadable cells, by column.
    pub(crate) bad: Vec<BadCells>,
    pub(crate) ragged: Vec<Ragged>,
    /// `(row, line)` of every row that does not start on the line after the previous row; empty for
    /// files without lines.
    pub(crate) lines: Vec<(usize, u64)>,
    /// Columns that were left unread.
    pub(crate) others: Vec<String>,
}

/// A text column: the category of each row.
#[derive(Debug, Clone, Default)]
pub(crate) struct Categories {
    pub(crate) codes: Vec<u32>,
    /// In order of first appearance.
    pub(crate) names: Vec<String>,
}

pub(crate) const MISSING_CODE: u32 = u32::MAX;

impl Dataset {
    /// Rows whose columns of text are still to come.
    pub(crate) fn new(name: &str, columns: Vec<Column>, rows: usize, numbers: Vec<f64>) -> Self {
        let number_width = columns.iter().filter(|c| c.kind == Kind::Number).count();
        debug_assert_eq!(numbers.len(), rows * number_width);
        Self {
            name: name.into(),
            rows,
            slots: slots(&columns),
            numbers: Arc::new(numbers),
            number_width,
            texts: Vec::new(),
            bad: vec![BadCells::default(); columns.len()],
            ragged: Vec::new(),
            lines: Vec::new(),
            others: Vec::new(),
            columns,
        }
    }

    /// Rows of numbers that did not come from a text file. NaN is a missing cell, an infinity an
    /// unusable one.
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
        Self { bad, ..Self::new(name, columns.collect(), rows, numbers) }
    }

    /// Appends a column of text with a value for each row; an empty value is missing.
    #[must_use]
    pub fn with_text<'a>(mut self, name: &str, values: impl Iterator<Item = &'a str>) -> Self {
        let mut codes: HashMap<&str, u32> = HashMap::new();
        let mut column = Categories::default();
        for value in values {
            let next = codes.len() as u32;
            let code = match value {
                "" => MISSING_CODE,
                value => *codes.entry(value).or_insert_with(|| {
                    column.names.push(value.into());
                    next
                }),
            };
            column.codes.push(code);
        }
        assert_eq!(column.codes.len(), self.rows, "a text for each row");
        self.slots.push(self.texts.len());
        self.columns.push(Column { name: name.into(), kind: Kind::Text, named: true });
        self.texts.push(column.into());
        self.bad.push(BadCells::default());
        self
    }

    /// The columns in this order; those that it does not name follow.
    #[must_use]
    pub fn in_order(mut self, names: &[String]) -> Self {
        let rank: HashMap<&str, usize> =
            names.iter().enumerate().map(|(at, name)| (name.as_str(), at)).collect();
        let of = |at: &usize| rank.get(self.columns[*at].name.as_str()).copied();
        let mut places: Vec<usize> = (0..self.columns.len()).collect();
        places.sort_by_key(|at| of(at).unwrap_or(usize::MAX));
        self.columns = places.iter().map(|at| self.columns[*at].clone()).collect();
        self.slots = places.iter().map(|at| self.slots[*at]).collect();
        self.bad = places.iter().map(|at| self.bad[*at].clone()).collect();
        self
    }

    /// The file.
    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn rows(&self) -> usize {
        self.rows
    }

    /// The columns in the order of the file.
    pub fn columns(&self) -> &[Column] {
        &self.columns
    }

    /// The index of a column. The error for an unknown name suggests the nearest one.
    pub fn column(&self, name: &str) -> Result<usize> {
        if let Some(i) = self.columns.iter().position(|c| c.name == name) {
            return Ok(i);
        }
        let names = self.columns.iter().map(|c| &c.name).chain(&self.others).map(String::as_str);
        let hint = match nearest(name, names.clone()) {
            Some(near) => format!("did you mean {near:?}?"),
            None => format!("its columns are {}", listing(names)),
        };
        Err(Error::NoColumn { file: self.name.clone(), column: name.into(), hint })
    }

    /// A number; `None` if the cell is missing or the column holds text.
    pub fn number(&self, row: usize, column: usize) -> Option<f64> {
        if self.columns[column].kind != Kind::Number {
            return None;
        }
        let x = self.numbers[row * self.number_width + self.slots[column]];
        (!x.is_nan()).then_some(x)
    }

    /// A text; `None` if the cell is missing or the column holds numbers.
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

    /// These columns of all rows. The error lists the rows with missing or unusable cells.
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

    /// Whether the rows come from lines of text.
    pub(crate) fn is_text(&self) -> bool {
        !self.lines.is_empty()
    }

    /// The first line of a row (counted from 0), for text files.
    pub fn line(&self, row: usize) -> Option<u64> {
        let after = self.lines.partition_point(|&(first, _)| first <= row);
        let (first, line) = *self.lines.get(after.checked_sub(1)?)?;
        Some(line + (row - first) as u64)
    }

    /// The index of a special column (client, target) and the features, which must not include it.
    pub(crate) fn features_beside(
        &self,
        special: &str,
        role: &str,
        features: &Features<'_>,
    ) -> Result<(usize, Vec<usize>)> {
        let at = self.column(special)?;
        let chosen = match features {
            Features::All { except } => {
                let except: Vec<&str> = except.iter().copied().chain([special]).collect();
                self.features(&Features::All { except: &except })?
            }
            Features::Listed(_) => self.features(features)?,
        };
        if chosen.contains(&at) {
            let what = format!("column {special:?} {role} and cannot be a feature");
            return Err(Error::config(what).hint("take it out of `columns`"));
        }
        let needed: Vec<usize> = std::iter::once(at).chain(chosen.iter().copied()).collect();
        self.require_complete(&needed)?;
        Ok((at, chosen))
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

/// The place of each column among those of its kind.
pub(crate) fn slots(columns: &[Column]) -> Vec<usize> {
    let mut used = [0, 0];
    let place = |column: &Column| {
        let next = &mut used[usize::from(column.kind == Kind::Text)];
        *next += 1;
        *next - 1
    };
    columns.iter().map(place).collect()
}

/// The candidate with the fewest edits, if close enough to be a typing error.
fn nearest<'a>(name: &str, candidates: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let close = name.chars().count().div_ceil(3).max(1);
    candidates
        .map(|c| (edits(&name.to_lowercase(), &c.to_lowercase()), c))
        .filter(|(distance, _)| *distance <= close)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, c)| c)
}

/// The Levenshtein distance.
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
