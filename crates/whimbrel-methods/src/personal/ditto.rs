//! `ditto` (Li, Hu, Beirami, Smith, *Ditto: fair and robust federated learning through personalization*,
//! ICML 2021, Algorithm 1): `fedavg`, and beside it a model of each client's own near the shared one.

use super::fedavg::train_near;
use super::rule::difference;
use super::{LocalRule, Mixture, Own, Shape, Unseen, Work};
use whimbrel_core::Result;

/// `ditto`.
#[derive(Clone, Debug, PartialEq)]
pub struct Ditto {
    /// The factor of half the squared distance between the client's model and the shared one.
    pub lambda: f64,
}

impl LocalRule for Ditto {
    fn local(&self, work: &mut Work<'_>, w: &[f32], own: &Own) -> Result<(Own, Vec<f32>)> {
        let mut v = own.model_or(w);
        train_near(work, &mut v, w, self.lambda)?;
        let mut trained = w.to_vec();
        train_near(work, &mut trained, w, 0.0)?;
        Ok((Own { weights: Vec::new(), models: vec![v] }, difference(&trained, w)))
    }

    /// One local training near the shared model.
    fn adapt(&self, work: &mut Work<'_>, w: &[f32]) -> Result<Own> {
        let mut v = w.to_vec();
        train_near(work, &mut v, w, self.lambda)?;
        Ok(Own { weights: Vec::new(), models: vec![v] })
    }

    fn for_unseen(&self) -> Unseen {
        Unseen::Adapted
    }

    fn personal(&self, _: &Shape<'_>, w: &[f32], own: &Own) -> Result<Mixture> {
        Ok(Mixture::single(own.model_or(w)))
    }
}
