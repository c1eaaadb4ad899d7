//! What FedEM asks of a model beside its E- and M-step.

use whimbrel_core::method::Artifact;
use whimbrel_core::{Key, Result};
use whimbrel_models::LatentModel;

/// How the model's first parameters and final form are made: what FedEM needs beside the E- and
/// M-step.
pub trait Initial<M: LatentModel>: Send + Sync + 'static {
    /// Rows that a client offers as starting points, row-major; empty where none leave it.
    fn offer(&self, model: &M, data: &M::Data, key: Key) -> Result<Vec<f64>>;
    /// `theta_0` from the pooled moments and the offers (with the weights of their clients).
    fn first(
        &self,
        model: &M,
        moments: &[f64],
        offers: &[(f64, Vec<f64>)],
        key: Key,
    ) -> Result<M::Parameters>;
    /// The fitted model as named tensors.
    fn artifact(&self, model: &M, theta: &M::Parameters) -> Artifact;
    /// The mixture weights or whatever else is worth a curve in the report.
    fn weights(&self, model: &M, theta: &M::Parameters) -> Vec<f64>;
    /// The shares of the components in the rows of a statistic; empty where there are none.
    fn shares(&self, _: &M, _statistic: &[f64]) -> Vec<f64> {
        Vec::new()
    }
    /// How many numbers the model's moments have.
    fn moments_len(&self, model: &M) -> usize;
    /// What is added to negative log-densities to state them in the units of the data.
    fn log_scale(&self) -> f64;
    /// How many numbers of raw rows a client offers at most; zero where none leave it.
    fn offers_max(&self, model: &M) -> usize;
}
