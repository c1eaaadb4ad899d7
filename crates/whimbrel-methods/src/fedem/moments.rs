//! The pooled moments of a mixture by one exchange of exact sums: no client sends its own moments
//! where sums hide their terms.

use crate::pooled::Totals;
use crate::settings::Weights;
use whimbrel_core::method::Artifact;
use whimbrel_core::{ClientData, Error, Result};
use whimbrel_models::MixtureModel;

/// The stage; its result is the tensor `moments`.
pub struct Moments<M> {
    pub model: M,
    pub weights: Weights,
}

/// The kind and the tensor of the result.
pub const MOMENTS: &str = "moments";

/// `(Σ w, Σ w moments)`.
impl<M: MixtureModel> Totals for Moments<M> {
    type Data = M::Data;

    fn read(&self, data: &ClientData) -> Result<M::Data> {
        self.model.bind(data)
    }

    fn rows(&self, data: &M::Data) -> u64 {
        self.model.rows(data) as u64
    }

    fn meaning(&self) -> String {
        "once: sums over all rows of the columns, and of their squares or products".into()
    }

    fn lengths(&self) -> Vec<usize> {
        vec![1 + self.model.moments_len()]
    }

    fn sums(&self, _: &[Vec<f64>], data: &M::Data) -> Result<Vec<f64>> {
        let weight = self.weights.of_rows(self.rows(data));
        let moments = self.model.moments(data)?;
        Ok([weight].into_iter().chain(moments.into_iter().map(|x| weight * x)).collect())
    }

    fn settle(&self, totals: &[Vec<f64>]) -> Result<Artifact> {
        let [sums] = totals else { return Err(Error::internal("sums are missing")) };
        let mean: Vec<f64> = sums[1..].iter().map(|sum| sum / sums[0]).collect();
        Ok(Artifact::new(MOMENTS).with(MOMENTS, &[mean.len()], mean))
    }
}
