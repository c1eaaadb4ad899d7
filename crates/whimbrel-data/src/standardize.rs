//! Standardisation: columns with mean 0 and variance 1 over all rows.

use crate::{Error, Result, dense_rows};
use whimbrel_core::{FeatureRows, Labelled, Table};

/// The transformation `(x - mean) / scale` of each column, saved with a model and applied to new rows.
#[derive(Debug, Clone, PartialEq)]
pub struct Standardization {
    pub columns: Vec<String>,
    pub means: Vec<f64>,
    /// The standard deviations (over n, not n - 1); 1 for constant columns.
    pub scales: Vec<f64>,
    /// The number of constant columns, which become zero.
    pub constant: usize,
}

/// Standardises the features by their pooled moments; targets stay. Sparse rows become dense.
pub fn standardize(data: &mut Labelled) -> Result<Standardization> {
    let mut values = dense_rows(data)?;
    let found = Standardization::of(&data.columns, &values)?;
    found.apply_rows(&mut values);
    data.rows = FeatureRows::Dense(values);
    Ok(found)
}

/// Standardises the columns of a table by their pooled moments.
pub fn standardize_table(table: &mut Table) -> Result<Standardization> {
    let found = Standardization::of(&table.columns, &table.values)?;
    found.apply_rows(&mut table.values);
    Ok(found)
}

impl Standardization {
    /// Transforms new rows, which must have the same columns.
    pub fn apply(&self, data: &mut Labelled) -> Result<()> {
        self.check_columns(&data.columns)?;
        let mut values = dense_rows(data)?;
        self.apply_rows(&mut values);
        data.rows = FeatureRows::Dense(values);
        Ok(())
    }

    /// Transforms a new table, which must have the same columns.
    pub fn apply_table(&self, table: &mut Table) -> Result<()> {
        self.check_columns(&table.columns)?;
        self.apply_rows(&mut table.values);
        Ok(())
    }

    /// The moments of row-major rows. Two passes: the second centres by the first's mean, which avoids
    /// cancellation, and corrects that mean's rounding.
    fn of(columns: &[String], values: &[f64]) -> Result<Self> {
        let width = columns.len();
        if width == 0 || values.is_empty() {
            return Err(Error::config("there are no values to standardise"));
        }
        let rows = || values.chunks_exact(width);
        let count = (values.len() / width) as f64;
        let mut means = vec![0.0; width];
        for row in rows() {
            means.iter_mut().zip(row).for_each(|(sum, x)| *sum += x / count);
        }
        let mut shifts = vec![0.0; width];
        let mut squares = vec![0.0; width];
        let mut varies = vec![false; width];
        for row in rows() {
            for j in 0..width {
                let shift = row[j] - means[j];
                shifts[j] += shift;
                squares[j] += shift * shift;
                varies[j] |= row[j] != values[j];
            }
        }
        let mut scales = vec![1.0; width];
        for j in 0..width {
            if !varies[j] {
                means[j] = values[j];
                continue;
            }
            let shift = shifts[j] / count;
            means[j] += shift;
            scales[j] = (squares[j] / count - shift * shift).sqrt();
            if !(means[j].is_finite() && scales[j].is_finite() && scales[j] > 0.0) {
                let what = format!(
                    "column {:?} cannot be standardised: its mean is {} and its scale {}",
                    columns[j], means[j], scales[j]
                );
                return Err(Error::config(what).hint("its values are not finite, or too extreme"));
            }
        }
        if let Some(j) = means.iter().position(|mean| !mean.is_finite()) {
            return Err(Error::config(format!("column {:?} is not finite", columns[j])));
        }
        let constant = varies.iter().filter(|varies| !**varies).count();
        Ok(Self { columns: columns.to_vec(), means, scales, constant })
    }

    fn apply_rows(&self, values: &mut [f64]) {
        for row in values.chunks_exact_mut(self.columns.len().max(1)) {
            for ((x, mean), scale) in row.iter_mut().zip(&self.means).zip(&self.scales) {
                *x = (*x - mean) / scale;
            }
        }
    }

    fn check_columns(&self, columns: &[String]) -> Result<()> {
        if columns == self.columns {
            return Ok(());
        }
        let at = (0..columns.len().max(self.columns.len()))
            .find(|&j| columns.get(j) != self.columns.get(j));
        let describe = |names: &[String]| match at.and_then(|j| names.get(j)) {
            Some(name) => format!("{name:?}"),
            None => "missing".into(),
        };
        let what = format!(
            "the rows have {} columns, {} were standardised, and column {} is {}, expected {}",
            columns.len(),
            self.columns.len(),
            at.map_or(0, |j| j + 1),
            describe(columns),
            describe(&self.columns)
        );
        Err(Error::config(what).hint("give the columns in the order of the first data"))
    }
}
