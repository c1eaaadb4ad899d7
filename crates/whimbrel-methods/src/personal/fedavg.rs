//! `fedavg` (McMahan et al. 2017), `fedprox` (Li et al. 2020) and `fedavg+` (fine-tuning, Jiang et al.
//! 2019): one model for everyone, trained locally and averaged.

use super::rule::difference;
use super::{LocalRule, Mixture, Own, Shape, Unseen, Work};
use whimbrel_core::Result;
use whimbrel_nn::Proximal;

/// `fedavg` and its variants.
#[derive(Clone, Debug, PartialEq)]
pub struct FedAvg {
    /// The factor of half the squared distance to the received model (`fedprox`); zero: none.
    pub mu: f64,
    /// Whether a client predicts with the shared model after one more local training (`fedavg+`).
    pub fine_tune: bool,
}

impl LocalRule for FedAvg {
    fn local(&self, work: &mut Work<'_>, w: &[f32], _: &Own) -> Result<(Own, Vec<f32>)> {
        let mut trained = w.to_vec();
        train_near(work, &mut trained, w, self.mu)?;
        Ok((Own::default(), difference(&trained, w)))
    }

    fn adapt(&self, work: &mut Work<'_>, w: &[f32]) -> Result<Own> {
        if !self.fine_tune {
            return Ok(Own::default());
        }
        let mut model = w.to_vec();
        work.train(&mut model)?;
        Ok(Own { weights: Vec::new(), models: vec![model] })
    }

    fn for_unseen(&self) -> Unseen {
        if self.fine_tune { Unseen::Adapted } else { Unseen::Shared }
    }

    fn fine_tunes(&self) -> bool {
        self.fine_tune
    }

    fn personal(&self, _: &Shape<'_>, w: &[f32], own: &Own) -> Result<Mixture> {
        Ok(Mixture::single(own.model_or(w)))
    }
}

/// Trains on the loss plus `mu/2 ||model - centre||^2`.
pub(super) fn train_near(
    work: &mut Work<'_>,
    model: &mut [f32],
    centre: &[f32],
    mu: f64,
) -> Result<u32> {
    let mu = mu as f32;
    let proximal = (mu > 0.0).then_some(Proximal { mu, centre });
    work.train_with(model, None, proximal, |_| {})
}
