//! Attributes of a table's rows and columns: further columns of its file.
//!
//! A column of the file describes rows if it is constant on the lines of each row, and columns
//! likewise. Parts of labels (`winter` of a column labelled by `winter` and `period`) are read from
//! the lines or, if no line has them, from the label.

use super::labels::sort_labels;
use super::{CellLayout, CellOptions, cell_text, place};
use crate::{Dataset, Error, Input, Result, parse_number};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;

/// The columns of a file that describe the table's rows and columns.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Described {
    /// Columns of names.
    pub factors: Vec<String>,
    /// Columns of numbers.
    pub covariates: Vec<String>,
}

impl Described {
    pub fn has(&self, name: &str) -> bool {
        self.factors.iter().chain(&self.covariates).any(|known| known == name)
    }
}

/// The side of the table that an attribute describes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AttributeOf {
    Row,
    Column,
}

/// An attribute of a table's rows or columns.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Attribute {
    /// The file's column.
    pub name: String,
    pub of: AttributeOf,
    /// The names of a factor's levels; empty for numbers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub levels: Vec<String>,
    /// One per row or column; `None` if unknown.
    pub values: Vec<Option<f64>>,
}

impl Attribute {
    /// A value as text.
    fn text(&self, value: f64) -> String {
        self.levels.get(value as usize).cloned().unwrap_or_else(|| value.to_string())
    }
}

impl Input {
    /// Reads the attributes of a table's rows and columns from the rows, where these exist, and from
    /// the labels.
    pub fn read_attributes(
        &self,
        options: &CellOptions,
        rows: &[String],
        columns: &[String],
    ) -> Result<Vec<Attribute>> {
        let described = &options.described;
        if *described == Described::default() {
            return Ok(Vec::new());
        }
        let data = self.exists().then(|| self.read(&options.csv())).transpose()?;
        let sides = options.sides(rows, columns, data.as_deref())?;
        let factors = described.factors.iter().map(|name| (name, true));
        let covariates = described.covariates.iter().map(|name| (name, false));
        let wanted = factors.chain(covariates);
        wanted
            .map(|(name, is_factor)| attribute(name, is_factor, &sides, data.as_deref()))
            .collect()
    }

    /// Contradictions between the rows and the known attributes of a table: a message for the first
    /// line of each attribute that differs.
    pub fn contradictions(
        &self,
        options: &CellOptions,
        known: &[Attribute],
        rows: &[String],
        columns: &[String],
    ) -> Result<Vec<String>> {
        let data = self.read(&options.csv())?;
        let sides = options.sides(rows, columns, Some(&data))?;
        let first = |own: &Attribute| {
            let (side, column) = (&sides[own.of as usize], data.column(&own.name).ok()?);
            (0..data.rows()).find_map(|line| {
                let at = side.of_line[line]?;
                let (text, known) = (cell_text(&data, line, column)?, own.text(own.values[at]?));
                (text != known).then(|| {
                    let (file, line, name) = (data.name(), place(&data, line), &own.name);
                    let label = &side.labels[at];
                    format!(
                        "{file}, {line}: {name:?} of {label:?} is {text:?}, but {known:?} in the \
                         model; the model's value is used"
                    )
                })
            })
        };
        Ok(known.iter().filter_map(first).collect())
    }
}

/// One side of the table.
struct Side<'a> {
    of: AttributeOf,
    /// The file's columns that make up a label.
    parts: &'a [String],
    labels: &'a [String],
    /// The label of each line of the file.
    of_line: Vec<Option<usize>>,
}

impl CellOptions {
    /// Both sides: rows, then columns.
    fn sides<'a>(
        &'a self,
        rows: &'a [String],
        columns: &'a [String],
        data: Option<&Dataset>,
    ) -> Result<[Side<'a>; 2]> {
        let column = match &self.layout {
            CellLayout::Long { column, .. } => column.as_slice(),
            CellLayout::Wide { .. } => &[],
        };
        Ok([
            Side::new(AttributeOf::Row, &self.row, rows, data)?,
            Side::new(AttributeOf::Column, column, columns, data)?,
        ])
    }
}

impl<'a> Side<'a> {
    fn new(
        of: AttributeOf,
        parts: &'a [String],
        labels: &'a [String],
        data: Option<&Dataset>,
    ) -> Result<Self> {
        let index: HashMap<&str, usize> =
            labels.iter().enumerate().map(|(at, label)| (label.as_str(), at)).collect();
        let of_line = match data {
            None => Vec::new(),
            // The lines of a wide file are rows; no line belongs to a column.
            Some(data) if parts.is_empty() => {
                let is_row = of == AttributeOf::Row;
                let at = |line: usize| index.get((line + 1).to_string().as_str()).copied();
                (0..data.rows()).map(|line| at(line).filter(|_| is_row)).collect()
            }
            Some(data) => {
                let at: Vec<usize> =
                    parts.iter().map(|name| data.column(name)).collect::<Result<_>>()?;
                let label = |line: usize| {
                    let parts: Option<Vec<&str>> = at.iter().map(|c| data.text(line, *c)).collect();
                    index.get(parts?.join("-").as_str()).copied()
                };
                (0..data.rows()).map(label).collect()
            }
        };
        Ok(Self { of, parts, labels, of_line })
    }

    /// The parts of the labels with this name.
    fn of_labels(&self, name: &str) -> Option<Vec<Option<String>>> {
        let at = self.parts.iter().position(|part| part == name)?;
        let part = |label: &String| {
            let parts: Vec<&str> = match self.parts.len() {
                1 => vec![label],
                _ => label.split('-').collect(),
            };
            (parts.len() == self.parts.len()).then(|| parts[at].to_owned())
        };
        Some(self.labels.iter().map(part).collect())
    }
}

/// One attribute, of the side that it describes.
fn attribute(
    name: &str,
    is_factor: bool,
    sides: &[Side<'_>; 2],
    data: Option<&Dataset>,
) -> Result<Attribute> {
    let mut clash = None;
    let mut found = None;
    let of_part = sides.iter().position(|side| side.parts.iter().any(|part| part == name));
    for (at, side) in sides.iter().enumerate() {
        if found.is_some() || of_part.is_some_and(|part| part != at) {
            continue;
        }
        let mut texts = side.of_labels(name).unwrap_or_else(|| vec![None; side.labels.len()]);
        if let Some(data) = data {
            match of_lines(name, data, side)? {
                Ok(lines) => {
                    texts
                        .iter_mut()
                        .zip(lines)
                        .for_each(|(text, line)| *text = line.or(text.take()));
                }
                Err(lines) => {
                    clash.get_or_insert(lines);
                    continue;
                }
            }
        }
        if texts.iter().any(Option::is_some) {
            found = Some((side.of, texts));
        }
    }
    let Some((of, texts)) = found else {
        return Err(match (clash, data) {
            (Some([first, second]), Some(data)) => Error::config(format!(
                "column {name:?} describes neither rows nor columns of the table: {} and {} differ \
                 within one row",
                place(data, first),
                place(data, second)
            ))
            .hint("effects and covariates are constant on each row, or on each column"),
            _ => Error::config(format!(
                "the value of {name:?} is unknown for all rows and columns of the table"
            ))
            .hint("`path` in [data] may name a file with this column; its values are not used"),
        });
    };
    if is_factor { Ok(factor(name, of, &texts)) } else { covariate(name, of, &texts) }
}

/// The value of each label of a side by the lines of a file, or two lines that contradict each other.
#[allow(clippy::type_complexity)]
fn of_lines(
    name: &str,
    data: &Dataset,
    side: &Side<'_>,
) -> Result<std::result::Result<Vec<Option<String>>, [usize; 2]>> {
    let column = data.column(name)?;
    data.require_readable(column)?;
    let mut found: Vec<Option<(usize, String)>> = vec![None; side.labels.len()];
    for line in 0..data.rows() {
        let (Some(at), Some(value)) = (side.of_line[line], cell_text(data, line, column)) else {
            continue;
        };
        match &found[at] {
            None => found[at] = Some((line, value)),
            Some((first, known)) if *known != value => return Ok(Err([*first, line])),
            Some(_) => {}
        }
    }
    Ok(Ok(found.into_iter().map(|found| found.map(|(_, value)| value)).collect()))
}

fn factor(name: &str, of: AttributeOf, texts: &[Option<String>]) -> Attribute {
    let mut levels: Vec<String> = texts.iter().flatten().cloned().collect();
    levels.sort_unstable();
    levels.dedup();
    let mut order: Vec<usize> = (0..levels.len()).collect();
    sort_labels(&mut order, &levels);
    let levels: Vec<String> = order.into_iter().map(|at| levels[at].clone()).collect();
    let index: HashMap<&String, usize> =
        levels.iter().enumerate().map(|(at, level)| (level, at)).collect();
    let number = |text: &Option<String>| text.as_ref().map(|text| index[text] as f64);
    let values = texts.iter().map(number).collect();
    Attribute { name: name.into(), of, levels, values }
}

fn covariate(name: &str, of: AttributeOf, texts: &[Option<String>]) -> Result<Attribute> {
    let number = |text: &Option<String>| match text {
        None => Ok(None),
        Some(text) => parse_number(text.as_bytes()).map(Some).ok_or_else(|| {
            Error::config(format!(
                "covariate {name:?} has the value {text:?}, which is not a number"
            ))
            .hint("a column of names is an effect: list it in `effects`")
        }),
    };
    let values = texts.iter().map(number).collect::<Result<_>>()?;
    Ok(Attribute { name: name.into(), of, levels: Vec::new(), values })
}
