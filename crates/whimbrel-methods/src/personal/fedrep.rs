//! `fedrep` (Collins, Hassani, Mokhtari, Shakkottai, *Exploiting shared representations for personalized
//! federated learning*, ICML 2021, Algorithm 1): a shared body, and a head of each client's own.
//!
//! A round trains the head with the body fixed, then the body with the head fixed. Only the body
//! travels.

use super::rule::{difference, gather, scatter};
use super::{LocalRule, Mixture, Own, Shape, Unseen, Work};
use std::ops::Range;
use whimbrel_core::{Key, Result};

/// `fedrep`.
#[derive(Clone, Debug, PartialEq)]
pub struct FedRep {
    /// Local trainings of the head in a round, before the one of the body.
    pub head_trainings: u32,
}

impl LocalRule for FedRep {
    fn blocks(&self, shape: &Shape<'_>) -> Vec<usize> {
        shape.body_and_head().0.iter().map(Range::len).collect()
    }

    fn start(&self, shape: &Shape<'_>, _: f64, key: Key) -> Vec<f32> {
        gather(&shape.start(key), &shape.body_and_head().0)
    }

    fn local(&self, work: &mut Work<'_>, w: &[f32], own: &Own) -> Result<(Own, Vec<f32>)> {
        let (body, head) = work.shape().body_and_head();
        let mut model = self.assemble(&work.shape(), w, own);
        self.train_head(work, &mut model, w, &body)?;
        // The body, with the head fixed.
        let trained = gather(&model, &head);
        work.train_with(&mut model, None, None, |gradient| {
            head.iter().for_each(|range| gradient[range.clone()].fill(0.0));
        })?;
        // Weight decay must not move the head.
        let change = difference(&gather(&model, &body), w);
        Ok((Own { weights: Vec::new(), models: vec![trained] }, change))
    }

    /// The head, with the body fixed.
    fn adapt(&self, work: &mut Work<'_>, w: &[f32]) -> Result<Own> {
        let (body, head) = work.shape().body_and_head();
        let mut model = self.assemble(&work.shape(), w, &Own::default());
        self.train_head(work, &mut model, w, &body)?;
        Ok(Own { weights: Vec::new(), models: vec![gather(&model, &head)] })
    }

    fn predicts_alone(&self) -> bool {
        false
    }

    fn for_unseen(&self) -> Unseen {
        Unseen::Adapted
    }

    fn personal(&self, shape: &Shape<'_>, w: &[f32], own: &Own) -> Result<Mixture> {
        Ok(Mixture::single(self.assemble(shape, w, own)))
    }

    fn sent(&self) -> &'static str {
        "each round: by how much local training changed the shared layers (not its head)"
    }
}

/// Where heads that were never trained start from: the same for every client.
const HEAD: u64 = 0x4EAD;

impl FedRep {
    fn assemble(&self, shape: &Shape<'_>, w: &[f32], own: &Own) -> Vec<f32> {
        let (body, head) = shape.body_and_head();
        let mut model = shape.learner.start(Key::root(HEAD));
        scatter(&mut model, &body, w);
        if let Some(trained) = own.models.first() {
            scatter(&mut model, &head, trained);
        }
        model
    }

    fn train_head(
        &self,
        work: &mut Work<'_>,
        model: &mut [f32],
        w: &[f32],
        body: &[Range<usize>],
    ) -> Result<()> {
        for _ in 0..self.head_trainings {
            work.train_with(model, None, None, |gradient| {
                body.iter().for_each(|range| gradient[range.clone()].fill(0.0));
            })?;
            // Weight decay and running statistics must not move it.
            scatter(model, body, w);
        }
        Ok(())
    }
}
