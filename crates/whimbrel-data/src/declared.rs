//! Declared columns: types, levels and limits that cells must keep.

use crate::dataset::Dataset;
use crate::mixed::no_and_yes;
use crate::split::classes_present;
use crate::{ColumnType, Error, LISTED_MAX, MixedColumn, Result};

/// The declaration of a column.
#[derive(Debug, Clone, PartialEq)]
pub struct Declared {
    pub name: String,
    pub kind: ColumnType,
    pub unit: Option<String>,
    /// The least possible value of a number.
    pub min: Option<f64>,
    /// The largest possible value of a number.
    pub max: Option<f64>,
}

impl Declared {
    /// Both limits, if both are known.
    pub fn limits(&self) -> Option<[f64; 2]> {
        Some([self.min?, self.max?])
    }

    /// The reason why a number is outside the limits.
    fn outside(&self, x: f64) -> Option<String> {
        let unit = self.unit.as_ref().map_or(String::new(), |unit| format!(" {unit}"));
        match (self.min, self.max) {
            (Some(min), _) if x < min => Some(format!("{x} is below `min`, {min}{unit}")),
            (_, Some(max)) if x > max => Some(format!("{x} is above `max`, {max}{unit}")),
            _ => None,
        }
    }
}

impl Dataset {
    /// Refuses cells that the declarations exclude, by row; missing cells pass, and with `clipped` also
    /// numbers outside their limits.
    pub fn check_declared(&self, declared: &[Declared], clipped: bool) -> Result<()> {
        let (mut columns, mut places) = (Vec::new(), Vec::new());
        for one in declared {
            let at = self.column(&one.name)?;
            let levels = match &one.kind {
                ColumnType::Category(levels) => levels.clone(),
                ColumnType::YesNo => {
                    self.check_yes_no(&one.name, at)?;
                    continue;
                }
                ColumnType::Number | ColumnType::Count => Vec::new(),
            };
            if matches!(one.kind, ColumnType::Category(_)) && levels.is_empty() {
                continue;
            }
            columns.push((at, one, MixedColumn::of(&one.name, &one.kind, levels)));
            places.push(at);
        }
        // Rows without declared cells have other checks, with hints of their own.
        if columns.is_empty() {
            return Ok(());
        }
        let (mut listed, mut count) = (Vec::new(), 0);
        for row in 0..self.rows() {
            let mut reasons = self.unreadable(row, &places);
            for (at, one, column) in &columns {
                let fault = match self.mixed_cell(row, *at, column) {
                    Ok(x) if column.levels.is_empty() && !clipped => one.outside(x),
                    Ok(_) => None,
                    Err(reason) => Some(reason),
                };
                reasons.extend(fault.map(|reason| (Some(one.name.clone()), reason)));
            }
            if !reasons.is_empty() {
                count += 1;
                if listed.len() < LISTED_MAX {
                    listed.push(self.bad_row(row, reasons));
                }
            }
        }
        if count == 0 {
            return Ok(());
        }
        let hint = Some("correct the cells, or the types and limits in [schema]".into());
        Err(Error::Rows { file: self.name().into(), listed, count, hint })
    }

    fn check_yes_no(&self, name: &str, at: usize) -> Result<()> {
        let found = classes_present(self, at).into_iter();
        let levels: Vec<String> = found.map(|(level, _)| level).collect();
        if levels.len() <= 2 || no_and_yes(&levels).is_some() {
            return Ok(());
        }
        let some = &levels[..levels.len().min(4)];
        let what = format!("column {name:?} holds {} levels, such as {some:?}", levels.len());
        Err(Error::config(what)
            .hint("declare it as a category in [schema]: a yes-no column has two levels"))
    }
}
