//! Mixed tables: columns of numbers, counts or levels, possibly with missing cells.

use crate::dataset::{Dataset, Kind};
use crate::defect::Why;
use crate::split::{classes_present, levels_present};
use crate::{Error, Features, Identifier, LISTED_MAX, Result};
use whimbrel_core::Table;
use whimbrel_core::text::counted;

/// The type of a column in a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ColumnType {
    Number,
    /// Non-negative integers.
    Count,
    /// Two levels; the second is yes: as spelled, or the larger of two numbers, or the second in byte
    /// order.
    YesNo,
    /// These levels; if empty, those of the data: numbers ascending, text in byte order.
    Category(Vec<String>),
}

/// The remedy for a cell that is not one of its column's levels.
pub const NAME_LEVEL: &str = "give one of the levels";
/// The remedy for a column whose cells are not numbers.
pub const NEEDS_TYPE: &str = "a column of text needs a type";

/// A column of a mixed table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MixedColumn {
    pub name: String,
    /// Whether its cells are non-negative integers.
    pub count: bool,
    /// Its levels in the order of their numbers; empty for numbers and counts.
    pub levels: Vec<String>,
}

impl MixedColumn {
    /// A column of this type with the levels of a schema, if any.
    pub fn of(name: &str, kind: &ColumnType, levels: Vec<String>) -> Self {
        Self { name: name.into(), count: *kind == ColumnType::Count, levels }
    }
}

/// Spellings of no and yes, in lower case.
const SPELLED: [[&str; 2]; 5] =
    [["0", "1"], ["false", "true"], ["no", "yes"], ["f", "t"], ["n", "y"]];

/// Whether a text spells yes or no, in any case; `None` for other texts.
fn truth(text: &str) -> Option<bool> {
    let is = |yes: usize| SPELLED.iter().any(|pair| text.eq_ignore_ascii_case(pair[yes]));
    is(1).then_some(true).or_else(|| is(0).then_some(false))
}

/// The number of a cell's level. Sources spell booleans differently: between two levels that spell no and
/// yes, every spelling counts.
pub fn level_of(levels: &[String], cell: &str) -> Option<usize> {
    let exact = levels.iter().position(|level| level == cell);
    exact.or_else(|| {
        let [first, second] = levels else { return None };
        let yes = truth(second).filter(|yes| truth(first) == Some(!yes))?;
        truth(cell).map(|of| usize::from(of == yes))
    })
}

/// The levels of a column whose cells all spell yes or no: as spelled, or 0 and 1 if they are spelled in
/// several ways or one of them is absent.
pub(crate) fn no_and_yes(found: &[String]) -> Option<Vec<String>> {
    let mut spelled = [Vec::new(), Vec::new()];
    for level in found {
        spelled[usize::from(truth(level)?)].push(level);
    }
    Some(match [&spelled[0][..], &spelled[1][..]] {
        [[no], [yes]] => vec![(*no).clone(), (*yes).clone()],
        _ => vec!["0".into(), "1".into()],
    })
}

impl Dataset {
    /// The columns of a mixed table: those listed, or all named columns of numbers and all columns
    /// with a type, without `except` and identifiers. A column without a type holds numbers.
    pub fn mixed_columns(
        &self,
        listed: Option<&[String]>,
        types: &[(String, ColumnType)],
        except: &[&str],
    ) -> Result<Vec<MixedColumn>> {
        let type_of = |name: &str| types.iter().find(|(known, _)| known == name).map(|(_, t)| t);
        for (name, _) in types {
            let at = self.column(name)?;
            let is_used = listed.is_none_or(|listed| listed.contains(name));
            if is_used
                && self.columns()[at].kind == Kind::Text
                && matches!(type_of(name), Some(ColumnType::Count | ColumnType::Number))
            {
                self.features(&Features::Listed(std::slice::from_ref(name)))?;
            }
        }
        let chosen: Vec<String> = match listed {
            Some(listed) => {
                let plain: Vec<String> =
                    listed.iter().filter(|name| type_of(name).is_none()).cloned().collect();
                if !plain.is_empty() {
                    self.features(&Features::Listed(&plain))?;
                }
                listed.to_vec()
            }
            None => {
                let is_used = |at: &usize| {
                    let column = &self.columns()[*at];
                    let plain = column.kind == Kind::Number
                        && column.named
                        && self.identifier(*at) != Some(Identifier::OfRows);
                    !except.contains(&&*column.name) && (plain || type_of(&column.name).is_some())
                };
                let all = (0..self.columns().len()).filter(is_used);
                all.map(|at| self.columns()[at].name.clone()).collect()
            }
        };
        if chosen.is_empty() {
            return Err(Error::config(format!("{} has no column to learn from", self.name())));
        }
        let column = |name: &String| {
            let kind = type_of(name).unwrap_or(&ColumnType::Number);
            let levels = match kind {
                ColumnType::Number | ColumnType::Count => Vec::new(),
                ColumnType::Category(given) if !given.is_empty() => given.clone(),
                ColumnType::Category(_) => self.levels(name)?,
                ColumnType::YesNo => {
                    let found = self.levels(name)?;
                    no_and_yes(&found).unwrap_or(found)
                }
            };
            let wrong = match kind {
                ColumnType::YesNo => levels.len() != 2,
                ColumnType::Category(_) => levels.len() < 2,
                ColumnType::Number | ColumnType::Count => false,
            };
            if wrong {
                let held = counted(levels.len(), "level");
                let what = format!("column {name:?} holds {held}: {levels:?}");
                let hint = match kind {
                    ColumnType::YesNo => {
                        "a yes-no column has two levels; other columns are categories"
                    }
                    _ => "a category has two or more levels",
                };
                return Err(Error::config(what).hint(hint));
            }
            Ok(MixedColumn::of(name, kind, levels))
        };
        chosen.iter().map(column).collect()
    }

    /// Number of distinct values of a column.
    pub fn distinct(&self, column: usize) -> usize {
        classes_present(self, column).len()
    }

    /// The share of the rows that have a column's most frequent value.
    pub fn largest_share(&self, column: usize) -> f64 {
        let largest = classes_present(self, column).iter().map(|(_, rows)| rows.len()).max();
        largest.unwrap_or(0) as f64 / self.rows() as f64
    }

    /// The values of a column: numbers ascending, text in byte order.
    fn levels(&self, name: &str) -> Result<Vec<String>> {
        let present = levels_present(self, self.column(name)?);
        Ok(present.into_iter().map(|(name, _)| name).collect())
    }

    /// The rows of a mixed table. A missing cell is NaN, a level its number. One error lists all
    /// invalid cells.
    pub fn mixed_table(&self, columns: &[MixedColumn]) -> Result<Table> {
        let places: Vec<usize> =
            columns.iter().map(|column| self.column(&column.name)).collect::<Result<_>>()?;
        let mut values = Vec::with_capacity(self.rows() * columns.len());
        let (mut listed, mut count, mut unknown_levels) = (Vec::new(), 0, false);
        for row in 0..self.rows() {
            let mut reasons = self.unreadable(row, &places);
            for (column, at) in columns.iter().zip(&places) {
                match self.mixed_cell(row, *at, column) {
                    Ok(cell) => values.push(cell),
                    Err(reason) => {
                        values.push(f64::NAN);
                        unknown_levels |= !column.levels.is_empty();
                        reasons.push((Some(column.name.clone()), reason));
                    }
                }
            }
            if !reasons.is_empty() {
                count += 1;
                if listed.len() < LISTED_MAX {
                    listed.push(self.bad_row(row, reasons));
                }
            }
        }
        if count > 0 {
            let infinite = |at: &usize| {
                self.bad[*at].first.iter().any(|cell| matches!(cell.why, Why::NotFinite(_)))
            };
            let hint = match self.gap_mark(&places) {
                Some(mark) => {
                    format!("if {mark:?} marks a missing value, write na = [{mark:?}] in [data]")
                }
                None if places.iter().any(infinite) => {
                    "numbers are finite: correct these values, or remove these rows".into()
                }
                None if unknown_levels => NAME_LEVEL.into(),
                None => {
                    format!("a missing value is an empty cell, NA or NaN; {NEEDS_TYPE}")
                }
            };
            let (file, hint) = (self.name().into(), Some(hint));
            return Err(Error::Rows { file, listed, count, hint });
        }
        Ok(Table::new(columns.iter().map(|column| column.name.clone()).collect(), values)?)
    }

    pub(crate) fn mixed_cell(
        &self,
        row: usize,
        at: usize,
        column: &MixedColumn,
    ) -> Result<f64, String> {
        let number = self.number(row, at);
        if column.levels.is_empty() {
            let Some(x) = number else {
                return self
                    .text(row, at)
                    .map_or(Ok(f64::NAN), |text| Err(format!("{text:?} is not a number")));
            };
            let is_count = x >= 0.0 && x.fract() == 0.0;
            return if column.count && !is_count {
                Err(format!("{x} is not a count: counts are non-negative integers"))
            } else if column.count && x > MIXED_COUNT_MAX {
                Err(format!("{x:e} is too large: counts are at most 1e10"))
            } else if x.abs() > MIXED_NUMBER_MAX {
                Err(format!("{x:e} is too large: numbers must lie within 1e40"))
            } else {
                Ok(x)
            };
        }
        let Some(level) =
            self.text(row, at).map(String::from).or_else(|| number.map(|x| x.to_string()))
        else {
            return Ok(f64::NAN);
        };
        level_of(&column.levels, &level).map(|at| at as f64).ok_or_else(|| {
            let (some, more) = column.levels.split_at(column.levels.len().min(8));
            let dots = if more.is_empty() { "" } else { " and others" };
            format!("{level:?} is not one of the levels {some:?}{dots}")
        })
    }

    /// Guesses the types of columns that are not plain numbers: text with few distinct values is a
    /// category, two values are yes or no, repeated numbers too, and small non-negative integers with some values,
    /// including 0 or 1, are counts (ages and pressures in whole numbers have many or start higher).
    pub fn guess_types(&self, except: &[&str]) -> Vec<(String, ColumnType)> {
        let mut types = Vec::new();
        for (at, column) in self.columns().iter().enumerate() {
            if !column.named
                || except.contains(&&*column.name)
                || self.identifier(at) == Some(Identifier::OfRows)
            {
                continue;
            }
            let values = classes_present(self, at).len();
            let kind = match column.kind {
                Kind::Text if values == 2 => ColumnType::YesNo,
                Kind::Text if values > 2 && values <= LEVELS_MAX && 4 * values <= self.rows() => {
                    let levels = levels_present(self, at).into_iter();
                    ColumnType::Category(levels.map(|(level, _)| level).collect())
                }
                Kind::Text => continue,
                Kind::Number => {
                    let cells = || (0..self.rows()).filter_map(|row| self.number(row, at));
                    let whole = cells().all(|x| x >= 0.0 && x.fract() == 0.0 && x <= COUNT_MAX);
                    match values {
                        2 if 4 * values <= self.rows() || cells().all(|x| x == 0.0 || x == 1.0) => {
                            ColumnType::YesNo
                        }
                        3..=LEVELS_MAX if whole && cells().any(|x| x <= 1.0) => ColumnType::Count,
                        _ => continue,
                    }
                }
            };
            types.push((column.name.clone(), kind));
        }
        types
    }

    /// Whether any cell of these columns is missing.
    pub fn has_gaps(&self, columns: &[&str]) -> bool {
        let places: Vec<usize> = columns.iter().filter_map(|name| self.column(name).ok()).collect();
        let is_missing = |row: usize, at: usize| match self.columns()[at].kind {
            Kind::Number => self.number(row, at).is_none(),
            Kind::Text => self.text(row, at).is_none(),
        };
        (0..self.rows()).any(|row| places.iter().any(|at| is_missing(row, *at)))
    }
}

/// Text with more distinct values is not guessed to be a category, and integers not to be counts.
const LEVELS_MAX: usize = 30;
/// Larger integers are guessed to be measurements.
const COUNT_MAX: f64 = 1000.0;
/// The largest count: beside larger ones, smaller terms of the log-likelihood are rounded away.
const MIXED_COUNT_MAX: f64 = 1e10;
/// The largest number: squares of larger ones overflow the sums.
const MIXED_NUMBER_MAX: f64 = 1e40;
