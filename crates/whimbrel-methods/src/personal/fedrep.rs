//! `fedrep` (Collins, Hassani, Mokhtari, Shakkottai, *Exploiting shared representations for personalized
//! federated learning*, ICML 2021, Algorithm 1): a shared body and personal heads.
//!
//! A round trains the head with the body fixed, then the body with the head fixed. Only the body
//! travels.

use super::rule::{difference, gather, scatter};
use super::{Adaptation, Ensemble, Gathered, LocalRule, Own, Round, Shape, ToTrain, Work};
use std::ops::Range;
use whimbrel_core::{Error, Key, Result};

/// `fedrep`.
#[derive(Clone, Debug, PartialEq)]
pub struct FedRep {
    /// Local trainings of the head in a round, before the one of the body.
    pub head_trainings: u32,
}

impl Default for FedRep {
    fn default() -> Self {
        Self { head_trainings: 10 }
    }
}

impl LocalRule for FedRep {
    fn check(&self, shape: &Shape<'_>) -> Result<()> {
        let (body, head) = shape.body_and_head();
        if !body.is_empty() && !head.is_empty() {
            return Ok(());
        }
        let lacks = if head.is_empty() { "no head" } else { "no layers below its head" };
        let name = shape.learner.name();
        Err(Error::config(format!("{name} has {lacks}, and fedrep shares the layers below it")).hint(
            "fedrep is for networks: kind = \"mlp\", \"cnn\" and others; an own learner declares \
             the number of its last parameters that are the `head`",
        ))
    }

    fn blocks(&self, shape: &Shape<'_>) -> Vec<usize> {
        shape.body_and_head().0.iter().map(Range::len).collect()
    }

    fn start(&self, shape: &Shape<'_>, gathered: &Gathered<'_>, key: Key) -> Result<Vec<f32>> {
        Ok(gather(&shape.start_from(gathered, key)?, &shape.body_and_head().0))
    }

    fn begin(&self, work: &mut Work<'_>, w: &[f32], own: &Own) -> Result<Round> {
        let (_, head) = work.shape().body_and_head();
        let model = self.train_head(work, w, own)?;
        let own = Own::of_models(vec![gather(&model, &head)]);
        // The body, with the head fixed.
        Ok(Round { own, ..Round::of(ToTrain { frozen: head, ..ToTrain::new(model) }) })
    }

    fn end(&self, work: &mut Work<'_>, w: &[f32], round: Round) -> Result<(Own, Vec<f32>)> {
        let (body, _) = work.shape().body_and_head();
        // The head stays as `begin` left it: weight decay of this training does not move it.
        Ok((round.own, difference(&gather(&round.models[0].w, &body), w)))
    }

    /// The head, with the body fixed.
    fn adapt(&self, work: &mut Work<'_>, w: &[f32]) -> Result<Own> {
        let (_, head) = work.shape().body_and_head();
        Ok(Own::of_models(vec![gather(&self.train_head(work, w, &Own::default())?, &head)]))
    }

    fn adaptation(&self) -> Adaptation {
        Adaptation::Required
    }

    fn personal(&self, shape: &Shape<'_>, w: &[f32], own: &Own) -> Result<Ensemble> {
        Ok(Ensemble::single(self.assemble(shape, w, own)))
    }

    fn sent(&self) -> &'static str {
        "each round: by how much training on these rows changed the shared layers (not the last one)"
    }
}

/// The key of untrained heads: the same for every client.
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

    /// The client's model with its head trained.
    fn train_head(&self, work: &mut Work<'_>, w: &[f32], own: &Own) -> Result<Vec<f32>> {
        let (body, _) = work.shape().body_and_head();
        let mut model = self.assemble(&work.shape(), w, own);
        for _ in 0..self.head_trainings {
            model = work.train(ToTrain { frozen: body.clone(), ..ToTrain::new(model) }, w)?;
            // Weight decay and running statistics must not move the body.
            scatter(&mut model, &body, w);
        }
        Ok(model)
    }
}
