//! Column totals of a completed table, with intervals.
//!
//! A total is the sum of the observed cells and of the mean imputations of missing cells. Its variance
//! is that of the values around their means, plus that of the errors of the means, which cells share:
//! with the components `<w, e>` of the error of a cell's `theta`, by source,
//!
//! ```text
//! sum_missing noise + sum_sources |sum_missing g w|^2,
//! ```
//!
//! where `g`, about `psi''`, makes a cell's variance that of its draws. Imputations of the total have
//! the same variance to first order in the errors.

use super::completed::{Completed, Unsure};
use super::observed::Observations;
use std::collections::BTreeMap;
use whimbrel_core::vector;
use whimbrel_models::lowrank::interval::NORMAL_QUANTILE;
use whimbrel_models::lowrank::{ErrorPart, ErrorSource, Family};

/// The totals of all columns.
pub fn totals(table: &Completed, seen: &Observations) -> Vec<Total> {
    (0..table.columns.len()).map(|column| Total::of(table, seen, column)).collect()
}

/// The total of one column.
pub struct Total {
    /// Sum of the observed cells.
    pub observed: f64,
    /// Sum of observed and imputed cells.
    pub total: f64,
    /// 90 % interval of the total.
    pub interval: [f64; 2],
    /// Number of missing cells.
    pub missing: u64,
}

impl Total {
    fn of(table: &Completed, seen: &Observations, column: usize) -> Self {
        let family = table.fit.model.family();
        let (mut observed, mut estimated, mut missing) = (0.0, 0.0, 0);
        let mut noise = 0.0;
        let mut shared: BTreeMap<ErrorSource, Vec<f64>> = BTreeMap::new();
        for row in 0..table.rows.len() {
            if let Some(value) = seen.value(row, column) {
                observed += value;
                continue;
            }
            let Unsure { parameter, shares } = table.cell(row, column, 0.0);
            let [mean, of_mean] = table.fit.drawn_mean(parameter);
            estimated += mean;
            missing += 1;
            noise += table.fit.noise(parameter);
            let variance: f64 = shares.iter().map(ErrorPart::variance).sum();
            if variance > 0.0 {
                let slope = (of_mean / variance).sqrt();
                for ErrorPart { source, weights, .. } in shares {
                    let sum = shared.entry(source).or_insert_with(|| vec![0.0; weights.len()]);
                    vector::axpy(sum, slope, &weights);
                }
            }
        }
        let errors: f64 = shared.values().map(|sum| vector::norm2_squared(sum)).sum();
        let reach = NORMAL_QUANTILE * (noise + errors).sqrt();
        let total = observed + estimated;
        let low = match family {
            Family::Gaussian => f64::NEG_INFINITY,
            _ => observed,
        };
        Self { observed, total, interval: [(total - reach).max(low), total + reach], missing }
    }
}
