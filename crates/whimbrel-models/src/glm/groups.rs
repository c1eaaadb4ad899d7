//! Weights of rows in sums of products of columns, under a smallest group.

use crate::ceiling_of_groups;

/// The rule of the smallest group for the weights of a client's rows.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Groups {
    /// Fewest rows behind a sum; 0 without a rule.
    pub least: u32,
    /// Flags of rows that have the values of two columns alone, or with few others: a product of the two
    /// columns sums these rows' weights. Empty for none.
    pub exposed: Vec<bool>,
}

impl Groups {
    /// Lowers the largest weights until a group of rows determines their sum, and gives all exposed rows
    /// their mean weight: a sum over few of them then tells their number only. Totals over exposed
    /// rows are kept.
    pub(super) fn settle(&self, weights: &mut [f64]) {
        if self.least < 2 {
            return;
        }
        let most = ceiling_of_groups(&mut weights.to_vec(), self.least);
        weights.iter_mut().for_each(|w| *w = w.min(most));
        let shared = || self.exposed.iter().enumerate().filter(|(_, is)| **is).map(|(at, _)| at);
        let (mut sum, mut count) = (0.0, 0.0);
        shared().for_each(|at| (sum, count) = (sum + weights[at], count + 1.0));
        if count > 0.0 {
            shared().for_each(|at| weights[at] = sum / count);
        }
    }
}
