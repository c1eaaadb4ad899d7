//! Rows with targets.

use crate::dataset::Kind;
use crate::split::{levels_present, value_classes};
use crate::{ClientRows, Dataset, Error, Features, Result};
use whimbrel_core::{FeatureRows, Labelled};

/// Most values of dense rows: 8 bytes each, 16 GiB in all.
const DENSE_MAX: usize = 1 << 31;

impl Dataset {
    /// Dense rows with a column as their target, which is not a feature. A text becomes its rank,
    /// from 0, among the [`class_names`](Self::class_names). One error lists all rows with missing
    /// features or targets.
    pub fn labelled(&self, target: &str, features: &Features<'_>) -> Result<Labelled> {
        let (at, chosen) = self.features_beside(target, "is the target", features)?;
        let targets = match self.columns()[at].kind {
            Kind::Number => (0..self.rows()).filter_map(|row| self.number(row, at)).collect(),
            Kind::Text => {
                let mut targets = vec![0.0; self.rows()];
                for (rank, (_, rows)) in levels_present(self, at).iter().enumerate() {
                    rows.iter().for_each(|row| targets[*row] = rank as f64);
                }
                targets
            }
        };
        let table = self.table(&chosen)?;
        Ok(Labelled::new(table.columns.to_vec(), FeatureRows::Dense(table.values), targets)?)
    }

    /// The values of a text column, ascending if all are numbers, else in byte order; empty for a column of numbers.
    pub fn class_names(&self, column: &str) -> Result<Vec<String>> {
        let at = self.column(column)?;
        if self.columns()[at].kind == Kind::Number {
            return Ok(Vec::new());
        }
        Ok(levels_present(self, at).into_iter().map(|(name, _)| name).collect())
    }
}

/// The rows of each client; dense or sparse as given.
pub fn labelled_clients(
    data: &Labelled,
    clients: &[ClientRows],
) -> Result<Vec<(String, Labelled)>> {
    clients.iter().map(|c| Ok((c.name.clone(), take_rows(data, &c.rows)?))).collect()
}

/// These rows (counted from 0), in this order.
pub fn take_rows(data: &Labelled, rows: &[usize]) -> Result<Labelled> {
    if let Some(row) = rows.iter().find(|row| **row >= data.len()) {
        let what = format!("row {} of {} does not exist", row + 1, data.len());
        return Err(Error::config(what));
    }
    let targets = rows.iter().map(|row| data.targets[*row]).collect();
    let taken = match &data.rows {
        FeatureRows::Dense(values) => {
            let width = data.width();
            let row = |i: &usize| &values[i * width..][..width];
            FeatureRows::Dense(rows.iter().flat_map(row).copied().collect())
        }
        FeatureRows::Sparse { starts, columns, values } => {
            let spans = || rows.iter().map(|row| starts[*row]..starts[row + 1]);
            let mut end = 0;
            let ends = spans().map(|span| {
                end += span.len();
                end
            });
            FeatureRows::Sparse {
                starts: std::iter::once(0).chain(ends).collect(),
                columns: spans().flat_map(|span| &columns[span]).copied().collect(),
                values: spans().flat_map(|span| &values[span]).copied().collect(),
            }
        }
    };
    Ok(Labelled::new(data.columns.clone(), taken, targets)?)
}

/// The features as a dense row-major matrix.
pub fn dense_rows(data: &Labelled) -> Result<Vec<f64>> {
    match &data.rows {
        FeatureRows::Dense(values) => Ok(values.clone()),
        FeatureRows::Sparse { starts, columns, values } => {
            let width = data.width();
            let count = data.len().checked_mul(width).filter(|n| *n <= DENSE_MAX);
            let Some(count) = count else {
                let what =
                    format!("{} rows of {width} columns are too many for dense rows", data.len());
                let hint = "keep the rows sparse: without standardisation and without clusters of features";
                return Err(Error::config(what).hint(hint));
            };
            let mut dense = vec![0.0; count];
            for (row, span) in starts.windows(2).enumerate() {
                for at in span[0]..span[1] {
                    dense[row * width + columns[at] as usize] = values[at];
                }
            }
            Ok(dense)
        }
    }
}

/// Replaces two target values by -1 (the smaller) and 1, and returns them. Any other number of
/// values is an error.
pub fn two_classes(data: &mut Labelled) -> Result<[f64; 2]> {
    let mut found = value_classes(data.targets.iter().copied(), 3);
    found.sort_by(|a, b| a.0.total_cmp(&b.0));
    let values: Vec<f64> = found.into_iter().map(|(value, _)| value).collect();
    let [low, high] = values[..] else {
        let what = match values.len() {
            0 => "there are no targets".into(),
            1 => format!("every target is {}; two classes are needed", values[0]),
            _ => format!("the targets take more than two values, {values:?} among them"),
        };
        return Err(Error::config(what).hint(
            "two classes have two targets, such as -1 and 1; kind = \"softmax\" takes several \
             classes, kind = \"linear\" numbers",
        ));
    };
    for target in &mut data.targets {
        *target = if *target == low { -1.0 } else { 1.0 };
    }
    Ok([low, high])
}
