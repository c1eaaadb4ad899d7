//! Samples for learners: from rows with targets and from images.

use crate::split::value_classes;
use crate::{Error, Result, dense_rows};
use whimbrel_core::{FeatureRows, HeldOut, Inputs, Labelled, Samples, Targets};

/// Targets with more values than this are numbers to predict, not classes.
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

/// Rows as samples of `f32`; with `classes`, targets are numbers of so many classes.
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

/// Samples of real numbers as dense rows: the first of two classes is -1, the other 1.
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
    Ok(Labelled { held_out: HeldOut { validation, test }, ..rows })
}
