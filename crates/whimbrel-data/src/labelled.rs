//! Rows with targets: from a table as read, dense, by client, with two classes.

use crate::dataset::Kind;
use crate::split::{classes_present, value_classes};
use crate::{ClientRows, Dataset, Error, Features, Result};
use whimbrel_core::{FeatureRows, Labelled};

/// Dense rows take 8 bytes per value: above this many (16 GiB) they are refused.
const DENSE_MAX: usize = 1 << 31;

impl Dataset {
    /// Dense rows with a column as their target. The target is never a feature. A column of text
    /// gives each row the rank of its value among [`class_names`](Self::class_names), from 0.
    /// Every row with a gap in the features or without a target is listed in one error.
    pub fn labelled(&self, target: &str, features: &Features<'_>) -> Result<Labelled> {
        let at = self.column(target)?;
        let chosen = match features {
            Features::All { except } => {
                let except: Vec<&str> = except.iter().copied().chain([target]).collect();
                self.features(&Features::All { except: &except })?
            }
            Features::Listed(_) => self.features(features)?,
        };
        if chosen.contains(&at) {
            let what = format!("column {target:?} is the target and cannot be a feature");
            return Err(Error::config(what).hint("take it out of `columns`"));
        }
        let needed: Vec<usize> = std::iter::once(at).chain(chosen.iter().copied()).collect();
        self.require_complete(&needed)?;
        let targets = match self.columns()[at].kind {
            Kind::Number => (0..self.rows()).filter_map(|row| self.number(row, at)).collect(),
            Kind::Text => {
                let mut classes = classes_present(self, at);
                classes.sort_by(|a, b| a.0.cmp(&b.0));
                let mut targets = vec![0.0; self.rows()];
                for (rank, (_, rows)) in classes.iter().enumerate() {
                    rows.iter().for_each(|row| targets[*row] = rank as f64);
                }
                targets
            }
        };
        let table = self.table(&chosen)?;
        Ok(Labelled::new(table.columns.to_vec(), FeatureRows::Dense(table.values), targets)?)
    }

    /// The values of a column of text in byte order; none for a column of numbers.
    pub fn class_names(&self, column: &str) -> Result<Vec<String>> {
        let at = self.column(column)?;
        if self.columns()[at].kind == Kind::Number {
            return Ok(Vec::new());
        }
        let mut names: Vec<String> =
            classes_present(self, at).into_iter().map(|(name, _)| name).collect();
        names.sort();
        Ok(names)
    }
}

/// Each client's rows, dense or sparse as they were.
pub fn labelled_clients(
    data: &Labelled,
    clients: &[ClientRows],
) -> Result<Vec<(String, Labelled)>> {
    clients.iter().map(|c| Ok((c.name.clone(), take_rows(data, &c.rows)?))).collect()
}

/// These rows (counted from 0), in this order.
pub fn take_rows(data: &Labelled, rows: &[usize]) -> Result<Labelled> {
    if let Some(row) = rows.iter().find(|row| **row >= data.len()) {
        let what = format!("row {} is asked for, and there are {}", row + 1, data.len());
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

/// The features, row-major with every zero in place.
pub fn dense_rows(data: &Labelled) -> Result<Vec<f64>> {
    match &data.rows {
        FeatureRows::Dense(values) => Ok(values.clone()),
        FeatureRows::Sparse { starts, columns, values } => {
            let width = data.width();
            let count = data.len().checked_mul(width).filter(|n| *n <= DENSE_MAX);
            let Some(count) = count else {
                let what = format!(
                    "{} rows of {width} columns are too many to be held with their zeros",
                    data.len()
                );
                let hint = "leave the rows sparse: without standardisation or clusters of features";
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

/// Makes the targets of two classes -1 (the smaller value) and 1, and returns the two values as
/// they were; anything but two values is an error.
pub fn two_classes(data: &mut Labelled) -> Result<[f64; 2]> {
    let mut found = value_classes(data.targets.iter().copied(), 3);
    found.sort_by(|a, b| a.0.total_cmp(&b.0));
    let values: Vec<f64> = found.into_iter().map(|(value, _)| value).collect();
    let [low, high] = values[..] else {
        let what = match values.len() {
            0 => "there are no targets".into(),
            1 => format!("every target is {}, where two classes are needed", values[0]),
            _ => format!("the targets take more than two values, {values:?} among them"),
        };
        return Err(Error::config(what).hint("two classes have two targets, such as -1 and 1; kind = \"softmax\" takes several classes, kind = \"linear\" numbers"));
    };
    for target in &mut data.targets {
        *target = if *target == low { -1.0 } else { 1.0 };
    }
    Ok([low, high])
}
