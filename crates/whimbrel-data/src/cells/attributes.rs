//! What describes the rows and the columns of a table: further columns of its file.
//!
//! A column of the file describes rows where every line of a row says the same, and columns likewise.
//! Parts of labels (`winter` of a column labelled by `winter` and `period`) are read from the lines,
//! or from the label itself where no line has it.

use super::labels::sort_labels;
use super::{CellLayout, CellOptions, cell_text, place};
use crate::{Dataset, Error, Result, parse_number, read_csv};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::path::Path;

/// The columns of a file that describe rows and columns of the table.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Described {
    /// Those whose values are names.
    pub factors: Vec<String>,
    /// Those whose values are numbers.
    pub covariates: Vec<String>,
}

impl Described {
    /// Whether a column is one of them.
    pub fn has(&self, name: &str) -> bool {
        self.factors.iter().chain(&self.covariates).any(|known| known == name)
    }
}

/// Which lines of the table are described.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AttributeOf {
    /// Its rows.
    Row,
    /// Its columns.
    Column,
}

/// What describes the rows, or the columns, of a table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Attribute {
    /// The file's column.
    pub name: String,
    /// What it describes.
    pub of: AttributeOf,
    /// The names that its numbers stand for; empty where they are numbers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub levels: Vec<String>,
    /// One per row or column; none where nothing says.
    pub values: Vec<Option<f64>>,
}

impl Attribute {
    /// A value as a file has it.
    fn text(&self, value: f64) -> String {
        self.levels.get(value as usize).cloned().unwrap_or_else(|| value.to_string())
    }
}

/// Reads what describes a table's rows and columns, from a file if there is one and from the labels.
pub fn read_attributes(
    path: Option<&Path>,
    options: &CellOptions,
    rows: &[String],
    columns: &[String],
) -> Result<Vec<Attribute>> {
    let read = || path.map(|path| read_csv(path, &options.csv())).transpose();
    read_attributes_of(read, options, rows, columns)
}

/// The same of a file that is read where it is needed.
pub(crate) fn read_attributes_of(
    read: impl FnOnce() -> Result<Option<Dataset>>,
    options: &CellOptions,
    rows: &[String],
    columns: &[String],
) -> Result<Vec<Attribute>> {
    let described = &options.described;
    if *described == Described::default() {
        return Ok(Vec::new());
    }
    let data = read()?;
    let sides = options.sides(rows, columns, data.as_ref())?;
    let factors = described.factors.iter().map(|name| (name, true));
    let covariates = described.covariates.iter().map(|name| (name, false));
    let wanted = factors.chain(covariates);
    wanted.map(|(name, is_factor)| attribute(name, is_factor, &sides, data.as_ref())).collect()
}

/// Where a file contradicts what describes a known table's rows and columns, in words: the first line
/// that does, for each attribute.
pub fn contradictions(
    path: &Path,
    options: &CellOptions,
    known: &[Attribute],
    rows: &[String],
    columns: &[String],
) -> Result<Vec<String>> {
    let data = read_csv(path, &options.csv())?;
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
                    "{file}, {line}: {name:?} of {label:?} is {text:?}, and {known:?} in the \
                     model, which is used"
                )
            })
        })
    };
    Ok(known.iter().filter_map(first).collect())
}

/// The lines of one side of the table.
struct Side<'a> {
    of: AttributeOf,
    /// The file's columns that make up a label.
    parts: &'a [String],
    labels: &'a [String],
    /// Which of them each line of the file belongs to.
    of_line: Vec<Option<usize>>,
}

impl CellOptions {
    /// The lines of both sides: rows, then columns.
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
            // The lines of a wide file are its rows; it has no line of a column.
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

    /// What the labels say: the part of that name.
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
                "column {name:?} describes neither rows nor columns of the table: {} and {} are of \
                 one row and differ",
                place(data, first),
                place(data, second)
            ))
            .hint("effects and covariates say the same of all cells of a row, or of a column"),
            _ => Error::config(format!("nothing tells {name:?} of the table's rows or columns"))
                .hint("`path` in [data] may name a file with it, of which no value is used"),
        });
    };
    match is_factor {
        true => Ok(factor(name, of, &texts)),
        false => covariate(name, of, &texts),
    }
}

/// What the lines of a file say of each line of a side; two that contradict each other where some do.
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
            Error::config(format!("covariate {name:?} is {text:?} somewhere, and no number"))
                .hint("a column of names is an effect: list it in `effects`")
        }),
    };
    let values = texts.iter().map(number).collect::<Result<_>>()?;
    Ok(Attribute { name: name.into(), of, levels: Vec::new(), values })
}
