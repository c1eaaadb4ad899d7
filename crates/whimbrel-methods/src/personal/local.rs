//! `local`: every client trains its own model, and nothing is shared.

use super::{Adaptation, Gathered, LocalRule, Own, Round, Shape, ToTrain, Work};
use whimbrel_core::{Key, Result};

/// `local`.
#[derive(Clone, Debug, PartialEq)]
pub struct Local;

impl LocalRule for Local {
    fn blocks(&self, _: &Shape<'_>) -> Vec<usize> {
        Vec::new()
    }

    fn start(&self, _: &Shape<'_>, _: &Gathered<'_>, _: Key) -> Result<Vec<f32>> {
        Ok(Vec::new())
    }

    fn enroll(&self, shape: &Shape<'_>, key: Key) -> Own {
        Own::of_models(vec![shape.learner.start(key.child(0))])
    }

    fn begin(&self, _: &mut Work<'_>, w: &[f32], own: &Own) -> Result<Round> {
        Ok(Round::of(ToTrain::new(own.model_or(w))))
    }

    fn end(&self, _: &mut Work<'_>, _: &[f32], round: Round) -> Result<(Own, Vec<f32>)> {
        Ok((Own::of_models(round.trained()), Vec::new()))
    }

    fn sends_exactly(&self) -> bool {
        true
    }

    fn adaptation(&self) -> Adaptation {
        Adaptation::Impossible
    }

    fn sent(&self) -> &'static str {
        "only that it took part"
    }
}
