//! `ditto` (Li, Hu, Beirami, Smith, *Ditto: fair and robust federated learning through personalization*,
//! ICML 2021, Algorithm 1): `fedavg`, and a personal model of each client near the shared one.

use super::rule::difference;
use super::{Adaptation, LocalRule, Own, Round, ToTrain, Work};
use whimbrel_core::Result;

/// `ditto`.
#[derive(Clone, Debug, PartialEq)]
pub struct Ditto {
    /// The factor of half the squared distance between the client's model and the shared one.
    pub lambda: f64,
}

impl Default for Ditto {
    fn default() -> Self {
        Self { lambda: 0.1 }
    }
}

impl LocalRule for Ditto {
    fn begin(&self, _: &mut Work<'_>, w: &[f32], own: &Own) -> Result<Round> {
        let v = ToTrain::near(own.model_or(w), self.lambda);
        Ok(Round { models: vec![ToTrain::new(w.to_vec()), v], ..Round::default() })
    }

    fn end(&self, _: &mut Work<'_>, w: &[f32], round: Round) -> Result<(Own, Vec<f32>)> {
        let change = difference(&round.models[0].w, w);
        Ok((Own::of_models(round.trained().split_off(1)), change))
    }

    /// One local training near the shared model.
    fn adapt(&self, work: &mut Work<'_>, w: &[f32]) -> Result<Own> {
        let near = ToTrain::near(w.to_vec(), self.lambda);
        Ok(Own::of_models(vec![work.train(near, w)?]))
    }

    fn adaptation(&self) -> Adaptation {
        Adaptation::Optional
    }
}
