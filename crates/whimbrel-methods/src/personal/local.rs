//! `local`: every client trains a model of its own, and nothing is shared.

use super::{LocalRule, Mixture, Own, Shape, Unseen, Work};
use whimbrel_core::{Key, Result};

/// `local`.
#[derive(Clone, Debug, PartialEq)]
pub struct Local;

impl LocalRule for Local {
    fn blocks(&self, _: &Shape<'_>) -> Vec<usize> {
        Vec::new()
    }

    fn start(&self, _: &Shape<'_>, _: f64, _: Key) -> Vec<f32> {
        Vec::new()
    }

    fn enroll(&self, shape: &Shape<'_>, key: Key) -> Own {
        Own { weights: Vec::new(), models: vec![shape.start(key)] }
    }

    fn local(&self, work: &mut Work<'_>, _: &[f32], own: &Own) -> Result<(Own, Vec<f32>)> {
        let mut own = own.clone();
        work.train(&mut own.models[0])?;
        Ok((own, Vec::new()))
    }

    fn predicts_alone(&self) -> bool {
        false
    }

    fn for_unseen(&self) -> Unseen {
        Unseen::Nothing
    }

    fn personal(&self, _: &Shape<'_>, w: &[f32], own: &Own) -> Result<Mixture> {
        Ok(Mixture::single(own.model_or(w)))
    }

    fn sent(&self) -> &'static str {
        "nothing but that it took part"
    }
}
