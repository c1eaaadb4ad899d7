//! Baseline hazards of Cox's model, one for each client, sent if the job asks for them.

use super::Newton;
use whimbrel_core::{Error, Result};
use whimbrel_models::glm::{Rows, Scaling};

/// Most steps of a client's hazard.
const STEPS_MAX: usize = 1000;

impl Newton {
    /// The most numbers of a hazard.
    pub(super) fn hazard_max(&self) -> usize {
        if self.baseline { 2 * STEPS_MAX } else { 0 }
    }

    /// A client's cumulative hazard; empty unless asked for.
    pub(super) fn hazard(&self, rows: &Rows, scaling: &Scaling, point: &[f64]) -> Vec<f64> {
        let least = self.min_group.unwrap_or(1) as usize;
        let asked =
            self.baseline.then(|| self.model.baseline(rows, scaling, point, least, STEPS_MAX));
        // At infinite coefficients it does not exist.
        asked.filter(|steps| steps.iter().all(|x| x.is_finite())).unwrap_or_default()
    }
}

/// The clients' hazards: pairs of a time and a cumulative hazard that do not decrease.
pub(super) fn checked(own: &[(u32, Vec<f64>)]) -> Result<Vec<(u32, Vec<f64>)>> {
    for (id, steps) in own {
        let rises = |at: usize| steps.get(at + 2).is_none_or(|next| *next >= steps[at]);
        if steps.len() % 2 == 1 || !(0..steps.len()).all(|at| steps[at] >= 0.0 && rises(at)) {
            return Err(Error::peer(format!("client {id} sent no cumulative hazard")));
        }
    }
    Ok(own.to_vec())
}
