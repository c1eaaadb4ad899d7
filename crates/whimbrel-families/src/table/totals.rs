//! Totals of the columns of a completed table, with their bands.
//!
//! The total is what was observed and the means of the other cells. Its variance is that of the counts
//! nobody made, and that of the column's own level, which the observed cells set as in a ratio estimate:
//! with `w` the information `psi''` of a cell,
//!
//! ```text
//! sum_missing sd^2 + (sum_missing w / sum_observed w)^2 sum_observed sd^2.
//! ```

use super::completed::Completed;
use super::observed::Observations;
use whimbrel_models::lowrank::interval::NORMAL_QUANTILE;

/// The total of one column.
pub struct Total {
    /// What was observed.
    pub observed: f64,
    /// With what was not.
    pub total: f64,
    /// An interval that is to hold the total nine times in ten.
    pub interval: [f64; 2],
    /// How many cells were not observed.
    pub missing: u64,
}

impl Total {
    /// Of a column.
    pub fn of(table: &Completed, seen: &Observations, column: usize) -> Self {
        let family = table.fit.model.family();
        let (mut observed, mut estimated, mut missing) = (0.0, 0.0, 0);
        // Sums of sd^2 and of the information, over observed and over missing cells.
        let (mut variances, mut weights) = ([0.0; 2], [0.0; 2]);
        for row in 0..table.rows.len() {
            let parameter = table.parameter(row, column, 0.0);
            let (mean, sd) = (family.mean(parameter.theta), table.fit.sd(parameter));
            let value = seen.value(row, column);
            match value {
                Some(value) => observed += value,
                None => {
                    estimated += mean;
                    missing += 1;
                }
            }
            let at = usize::from(value.is_none());
            variances[at] += sd * sd;
            weights[at] += family.variance(mean);
        }
        let share = if weights[0] > 0.0 { weights[1] / weights[0] } else { 0.0 };
        let reach = NORMAL_QUANTILE * (variances[1] + share * share * variances[0]).sqrt();
        let total = observed + estimated;
        let low = match family {
            whimbrel_models::lowrank::Family::Gaussian => f64::NEG_INFINITY,
            _ => observed,
        };
        Self { observed, total, interval: [(total - reach).max(low), total + reach], missing }
    }
}
