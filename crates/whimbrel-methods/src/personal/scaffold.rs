//! `scaffold` (Karimireddy et al., *SCAFFOLD: stochastic controlled averaging for federated learning*,
//! ICML 2020, Algorithm 1, option II): control variates correct the drift of local steps.
//!
//! | paper | here | meaning |
//! |---|---|---|
//! | `x`, `c` | `w = [x, c]` | the shared model and control variate |
//! | `c_i` | `own.models[0]` | the client's control variate |
//! | `y_i` | `y` | its trained copy |

use super::rule::difference;
use super::{Ensemble, Gathered, LocalRule, Own, Round, Shape, ToTrain, Work};
use whimbrel_core::{Key, Result};
use whimbrel_nn::Role;

/// `scaffold`.
#[derive(Clone, Debug, PartialEq)]
pub struct Scaffold;

impl LocalRule for Scaffold {
    fn blocks(&self, shape: &Shape<'_>) -> Vec<usize> {
        shape.tensors.repeat(2)
    }

    fn start(&self, shape: &Shape<'_>, gathered: &Gathered<'_>, key: Key) -> Result<Vec<f32>> {
        let mut w = shape.start_from(gathered, key)?;
        w.resize(2 * shape.len, 0.0);
        Ok(w)
    }

    fn begin(&self, work: &mut Work<'_>, w: &[f32], own: &Own) -> Result<Round> {
        let (x, c) = w.split_at(work.shape().len);
        let c_i = own.models.first().cloned().unwrap_or_else(|| vec![0.0; c.len()]);
        // y -= eta (g(y) - c_i + c)
        let y = ToTrain { shift: difference(c, &c_i), ..ToTrain::new(x.to_vec()) };
        Ok(Round { own: Own::of_models(vec![c_i]), ..Round::of(y) })
    }

    fn end(&self, work: &mut Work<'_>, w: &[f32], round: Round) -> Result<(Own, Vec<f32>)> {
        let (x, c) = w.split_at(work.shape().len);
        let (c_i, y) = (&round.own.models[0], &round.models[0].w);
        // c_i^+ = c_i - c + (x - y)/(K eta)
        let scale = 1.0 / (f64::from(work.steps().max(1)) * work.rate) as f32;
        let moved = x.iter().zip(y).map(|(x, y)| scale * (x - y));
        let mut next: Vec<f32> =
            c_i.iter().zip(c).zip(moved).map(|((c_i, c), m)| c_i - c + m).collect();
        // Running statistics have no gradient to control.
        let mut at = 0;
        for tensor in work.learner.tensors() {
            if tensor.role == Role::Statistic {
                next[at..at + tensor.len()].fill(0.0);
            }
            at += tensor.len();
        }
        let mut change = difference(y, x);
        change.extend(difference(&next, c_i));
        Ok((Own::of_models(vec![next]), change))
    }

    fn personal(&self, shape: &Shape<'_>, w: &[f32], _: &Own) -> Result<Ensemble> {
        Ok(Ensemble::single(w[..shape.len].to_vec()))
    }

    fn sent(&self) -> &'static str {
        "each round: by how much training on these rows changed the shared parameters and a \
         correction for differences between clients"
    }
}
