//! Layers with hand-derived backward passes.

mod chain;
mod conv;
mod dense;
mod depthwise;
mod dropout;
mod embedding;
mod lstm;
mod norm;
mod pointwise;
mod pool;
#[cfg(test)]
mod reference;
mod residual;
#[cfg(test)]
mod tests;

pub(crate) use chain::Chain;
pub(crate) use conv::Conv;
pub(crate) use dense::Dense;
pub(crate) use depthwise::Depthwise;
pub(crate) use dropout::Dropout;
pub(crate) use embedding::Embedding;
pub(crate) use lstm::{LastStep, Lstm};
pub(crate) use norm::{Activation, BatchNorm};
pub(crate) use pool::{AveragePool, MaxPool};
pub(crate) use residual::Residual;
