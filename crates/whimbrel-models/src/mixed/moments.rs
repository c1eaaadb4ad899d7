//! Moments of the observed cells, with the scales and the baseline that follow from them.
//!
//! Means over all rows of, for each column: 1 where observed, x, x^2 (numbers); 1, x, x^2, ln x!
//! (counts); the indicator of each level.

use super::{ColumnKind, Mixed, MixedData};
use crate::mixture::{LN_TWO_PI, MixtureModel};
use whimbrel_core::math;

/// The pooled moments of a column.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Column {
    /// A number or a count: the fraction of rows that have it, its mean and its variance.
    Scalar { observed: f64, mean: f64, variance: f64, log_factorial: f64 },
    /// The fraction of rows with each level.
    Levels(Vec<f64>),
}

impl Mixed {
    pub(super) fn moments_of(&self, data: &MixedData) -> Vec<f64> {
        let mut out = vec![0.0; self.moments_len()];
        for row in 0..data.rows() {
            let mut rest = &mut out[..];
            for (cell, kind) in data.row(row).iter().zip(self.columns()) {
                let (own, after) = rest.split_at_mut(width(*kind));
                rest = after;
                match kind {
                    _ if cell.is_nan() => {}
                    ColumnKind::Levels(_) => own[*cell as usize] += 1.0,
                    ColumnKind::Number | ColumnKind::Count => {
                        own[0] += 1.0;
                        own[1] += cell;
                        own[2] += cell * cell;
                        if *kind == ColumnKind::Count {
                            own[3] += math::ln_gamma(cell + 1.0);
                        }
                    }
                }
            }
        }
        let n = data.rows() as f64;
        out.iter_mut().for_each(|x| *x /= n);
        out
    }

    /// Pooled moments column by column.
    pub(super) fn columns_of(&self, moments: &[f64]) -> Vec<Column> {
        let mut rest = moments;
        let mut column = |kind: &ColumnKind| {
            let (own, after) = rest.split_at(width(*kind));
            rest = after;
            match kind {
                ColumnKind::Levels(_) => Column::Levels(own.to_vec()),
                _ => {
                    let observed = own[0];
                    let of = |at: usize| if observed > 0.0 { own[at] / observed } else { 0.0 };
                    let (mean, square) = (of(1), of(2));
                    let variance = (square - mean * mean).max(f64::EPSILON * square);
                    let log_factorial = own.get(3).copied().unwrap_or(0.0);
                    Column::Scalar { observed, mean, variance, log_factorial }
                }
            }
        };
        self.columns().iter().map(&mut column).collect()
    }

    /// The mean negative log-likelihood of a single component with independent columns.
    pub(super) fn independent_columns(&self, moments: &[f64]) -> Option<f64> {
        if moments.len() != self.moments_len() {
            return None;
        }
        let reg = self.settings.reg_covar;
        let entropy = |p: f64| if p > 0.0 { -p * math::ln(p) } else { 0.0 };
        let each = self.columns_of(moments).into_iter().zip(self.columns());
        let loss = each.map(|(column, kind)| match (column, kind) {
            (Column::Scalar { observed: 0.0, .. }, _) => Some(0.0),
            (Column::Scalar { observed, variance, .. }, ColumnKind::Number) => {
                let fitted = variance * (1.0 + reg);
                let each = 0.5 * (LN_TWO_PI + math::ln(fitted) + variance / fitted);
                (variance > 0.0).then_some(observed * each)
            }
            (Column::Scalar { observed, mean, log_factorial, .. }, _) => {
                let fit = if mean > 0.0 { mean - mean * math::ln(mean) } else { 0.0 };
                Some(observed * fit + log_factorial)
            }
            (Column::Levels(shares), _) => {
                let observed: f64 = shares.iter().sum();
                let each = |share: &f64| observed * entropy(share / observed);
                Some(if observed > 0.0 { shares.iter().map(each).sum() } else { 0.0 })
            }
        });
        loss.sum()
    }
}

/// Number of moments of a column.
pub(super) fn width(kind: ColumnKind) -> usize {
    match kind {
        ColumnKind::Number => 3,
        ColumnKind::Count => 4,
        ColumnKind::Levels(count) => count,
    }
}
