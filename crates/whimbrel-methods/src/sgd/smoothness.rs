//! `L` by one exchange of exact sums, where sums hide their terms.

use crate::pooled::Totals;
use crate::settings::Weights;
use whimbrel_core::method::Artifact;
use whimbrel_core::{ClientData, Error, Result};
use whimbrel_models::convex::{Examples, Problem};

/// The kind and the number of the result.
pub const SMOOTHNESS: &str = "smoothness";

/// The stage: the clients' weighted mean.
pub struct Smoothness {
    pub problem: Problem,
    pub weights: Weights,
    /// Whether Frobenius norms replace spectral ones.
    pub frobenius: bool,
}

/// `(Σ w, Σ w L)`.
impl Totals for Smoothness {
    type Data = Examples;

    fn read(&self, data: &ClientData) -> Result<Examples> {
        self.problem.bind(data)
    }

    fn rows(&self, data: &Examples) -> u64 {
        data.rows() as u64
    }

    fn meaning(&self) -> String {
        "once: the largest curvature of the loss".into()
    }

    fn lengths(&self) -> Vec<usize> {
        vec![2]
    }

    fn sums(&self, _: &[Vec<f64>], data: &Examples) -> Result<Vec<f64>> {
        let weight = self.weights.of_rows(self.rows(data));
        let smoothness = if self.frobenius {
            self.problem.frobenius(data)
        } else {
            self.problem.smoothness(data)
        };
        Ok(vec![weight, weight * smoothness])
    }

    fn settle(&self, totals: &[Vec<f64>]) -> Result<Artifact> {
        let [sums] = totals else { return Err(Error::internal("sums are missing")) };
        Ok(Artifact::new(SMOOTHNESS).with(SMOOTHNESS, &[], vec![sums[1] / sums[0]]))
    }
}
