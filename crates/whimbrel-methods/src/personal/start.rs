//! The sums from which learners start, by one exchange of exact sums where sums hide their terms.

use super::bind_samples;
use crate::pooled::Totals;
use std::sync::Arc;
use whimbrel_core::method::Artifact;
use whimbrel_core::{ClientData, Error, Result, Samples, Targets};
use whimbrel_nn::Learner;

/// The kind and the tensor of the result: rows, then sums.
pub const START_SUMS: &str = "start-sums";

/// The stage.
pub struct StartSums {
    pub learner: Arc<dyn Learner>,
}

/// The number of sums of targets.
pub(super) fn sums_of_targets(learner: &dyn Learner) -> usize {
    if learner.classifies() { 0 } else { 2 }
}

/// A client's sums: those of its targets and of their squares, where they are numbers, then those of the
/// learner.
pub(super) fn start_sums(learner: &dyn Learner, data: &Samples) -> Vec<f64> {
    let mut sums = match &data.targets {
        Targets::Classes { .. } => Vec::new(),
        Targets::Values(values) => vec![
            values.iter().map(|y| f64::from(*y)).sum(),
            values.iter().map(|y| f64::from(*y) * f64::from(*y)).sum(),
        ],
    };
    sums.extend(learner.start_sums(data));
    sums
}

impl StartSums {
    /// The length of the result; 1 if the learner starts without sums.
    pub fn length(&self) -> usize {
        1 + sums_of_targets(&*self.learner) + self.learner.start_sums_len()
    }
}

impl Totals for StartSums {
    type Data = Samples;

    fn read(&self, data: &ClientData) -> Result<Samples> {
        bind_samples(&*self.learner, data)
    }

    fn rows(&self, samples: &Samples) -> u64 {
        samples.len() as u64
    }

    fn meaning(&self) -> String {
        let sums = self.learner.start_sums_told();
        format!("once, for a start: {sums}; the sums of numeric targets and of their squares")
    }

    fn lengths(&self) -> Vec<usize> {
        vec![self.length()]
    }

    fn sums(&self, _: &[Vec<f64>], samples: &Samples) -> Result<Vec<f64>> {
        let mut sums = vec![samples.len() as f64];
        sums.extend(start_sums(&*self.learner, samples));
        Ok(sums)
    }

    fn settle(&self, totals: &[Vec<f64>]) -> Result<Artifact> {
        let [sums] = totals else { return Err(Error::internal("sums are missing")) };
        Ok(Artifact::new(START_SUMS).with(START_SUMS, &[sums.len()], sums.clone()))
    }
}
