//! Samples for learners, from rows with targets and from images.

use crate::split::{levels_present, value_classes};
use crate::{Dataset, Error, Result, dense_rows};
use whimbrel_core::{FeatureRows, HeldOut, Inputs, Labelled, Samples, Targets};

/// Targets with more distinct values are numbers, not classes.
pub(crate) const CLASSES_MAX: usize = 1000;

/// Numbers the distinct values of the targets from 0 in ascending order, and returns them.
pub fn number_classes(targets: &mut [f64]) -> Result<Vec<f64>> {
    let mut found = value_classes(targets.iter().copied(), CLASSES_MAX + 1);
    if found.len() > CLASSES_MAX {
        let what = format!("the targets take more than {CLASSES_MAX} values, too many for classes");
        return Err(Error::config(what).hint("numbers are predicted by a regression"));
    }
    found.sort_by(|a, b| a.0.total_cmp(&b.0));
    for (class, (_, rows)) in found.iter().enumerate() {
        rows.iter().for_each(|row| targets[*row] = class as f64);
    }
    Ok(found.into_iter().map(|(value, _)| value).collect())
}

/// The class of each row by a column, numbered from 0, and the names of the classes: numbers
/// ascending, texts in byte order.
pub fn class_numbers(data: &Dataset, column: &str) -> Result<(Vec<u16>, Vec<String>)> {
    let at = data.column(column)?;
    data.require_complete(&[at])?;
    let found = levels_present(data, at);
    if found.len() > CLASSES_MAX {
        let what = format!("column {column:?} has more than {CLASSES_MAX} values");
        return Err(Error::config(what).hint("these are too many classes"));
    }
    let mut of = vec![0; data.rows()];
    for (class, (_, rows)) in found.iter().enumerate() {
        rows.iter().for_each(|row| of[*row] = class as u16);
    }
    Ok((of, found.into_iter().map(|(name, _)| name).collect()))
}

/// Rows as samples of `f32`. With `classes`, targets are class numbers below it.
pub fn samples(rows: &Labelled, classes: Option<usize>) -> Result<Samples> {
    let values = match &rows.rows {
        FeatureRows::Dense(values) => values.iter().map(|x| *x as f32).collect(),
        FeatureRows::Sparse { .. } => dense_rows(rows)?.into_iter().map(|x| x as f32).collect(),
    };
    let targets = match classes {
        Some(count) => {
            Targets::Classes { of: rows.targets.iter().map(|y| *y as u16).collect(), count }
        }
        None => Targets::Values(rows.targets.iter().map(|y| *y as f32).collect()),
    };
    Ok(Samples::new(vec![rows.width()], Inputs::Real(values), targets)?)
}

/// Samples of real numbers as dense rows; the two classes become -1 and 1.
pub fn labelled(samples: &Samples, columns: &[String]) -> Result<Labelled> {
    let Inputs::Real(inputs) = &samples.inputs else {
        return Err(Error::config("only samples of real numbers are rows of features"));
    };
    let targets = match &samples.targets {
        Targets::Classes { of, .. } => of.iter().map(|y| 2.0 * f64::from(*y) - 1.0).collect(),
        Targets::Values(values) => values.iter().map(|y| f64::from(*y)).collect(),
    };
    let values = inputs.iter().map(|x| f64::from(*x)).collect();
    let rows = Labelled::new(columns.to_vec(), FeatureRows::Dense(values), targets)?;
    let part = |part: &Option<Box<Samples>>| {
        part.as_deref().map(|part| labelled(part, columns).map(Box::new)).transpose()
    };
    let (validation, test) = (part(&samples.held_out.validation)?, part(&samples.held_out.test)?);
    let held_out = HeldOut { validation, test, asked: samples.held_out.asked };
    Ok(Labelled { held_out, ..rows })
}

/// Images or other samples with their classes, before a split.
#[derive(Debug, Clone, PartialEq)]
pub struct LabelledImages {
    pub samples: Samples,
    /// The names of the classes, in the order of their numbers.
    pub classes: Vec<String>,
    /// The coarse class of each sample; empty without coarse classes.
    pub coarse: Vec<u16>,
}
