//! `fedavg` (McMahan et al. 2017), `fedprox` (Li et al. 2020) and `fedavg+` (fine-tuning, Jiang et al.
//! 2019): one model for everyone, trained locally and averaged.

use super::{Adaptation, LocalRule, Own, Round, ToTrain, Work};
use whimbrel_core::Result;

/// `fedavg` and its variants; the default is plain `fedavg`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FedAvg {
    /// The factor of half the squared distance to the received model (`fedprox`).
    pub mu: f64,
    /// Whether a client predicts with the shared model after one more local training (`fedavg+`).
    pub fine_tune: bool,
}

impl FedAvg {
    /// The default of `mu` for `fedprox`.
    pub const PROX_MU: f64 = 0.01;
}

impl LocalRule for FedAvg {
    fn begin(&self, _: &mut Work<'_>, w: &[f32], _: &Own) -> Result<Round> {
        Ok(Round::of(ToTrain::near(w.to_vec(), self.mu)))
    }

    fn adapt(&self, work: &mut Work<'_>, w: &[f32]) -> Result<Own> {
        if !self.fine_tune {
            return Ok(Own::default());
        }
        Ok(Own::of_models(vec![work.train(ToTrain::new(w.to_vec()), w)?]))
    }

    fn adaptation(&self) -> Adaptation {
        if self.fine_tune { Adaptation::FineTuning } else { Adaptation::Never }
    }
}
