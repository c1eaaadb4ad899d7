//! What the evaluations of local training report: each client's own predictor on its own rows.

use super::{Global, Mixture, Own, Personal, Unseen};
use crate::federated::{Context, Judge, Score, Terms, aggregate};
use crate::settings::check_figures;
use std::borrow::Cow;
use whimbrel_core::declare::{Better, Measure};
use whimbrel_core::method::{Disclosure, Metric};
use whimbrel_core::{ClientId, Key, Result, Samples, sum::ExactSum, wire};

/// Draws of evaluations (fine-tuning): the same in all of them.
const EVALUATION: u64 = 0xE7A1;

/// The question: how the client's own predictor does, given what is shared.
#[derive(Clone, Debug)]
pub struct Ask {
    w: Vec<f32>,
    /// The local step, for methods that train on the way to a prediction.
    rate: f64,
    /// What the client makes of it; it never travels.
    own: Option<Mixture>,
}

/// A client's answer.
#[derive(Clone, Debug)]
pub struct Answer {
    /// Its predictor's mean loss on the training rows.
    loss: f64,
}

impl Ask {
    pub(super) fn new(w: Vec<f32>, rate: f64) -> Self {
        Self { w, rate, own: None }
    }
}

wire!(Ask { w, rate, own });
wire!(Answer { loss });

impl Personal {
    /// What a client predicts with, from its training rows.
    pub fn predictor(&self, w: &[f32], rate: f64, own: &Own, train: &Samples) -> Result<Mixture> {
        let adapts = own.is_empty() || self.rule.fine_tunes();
        match adapts && !train.is_empty() {
            true => self.rule.personal(&self.shape(), w, &self.adapt(w, rate, train)?),
            false => self.rule.personal(&self.shape(), w, own),
        }
    }

    /// What a client that took no part in training gets of its own.
    pub fn adapt(&self, w: &[f32], rate: f64, train: &Samples) -> Result<Own> {
        self.rule.adapt(&mut self.work(train, rate, Key::root(EVALUATION)), w)
    }
}

impl Judge for Personal {
    type Ask = Ask;
    type Answer = Answer;

    fn ask(&self, global: &Global, _: &Terms) -> Result<Ask> {
        Ok(Ask::new(global.w.clone(), self.rates.initial))
    }

    fn localise<'a>(&self, ask: &'a Ask, own: &Own, train: &Samples) -> Result<Cow<'a, Ask>> {
        let own = self.predictor(&ask.w, ask.rate, own, train)?;
        Ok(Cow::Owned(Ask { w: Vec::new(), rate: ask.rate, own: Some(own) }))
    }

    fn answer(&self, ask: &Ask, _: &Own, data: &Samples) -> Result<Answer> {
        Ok(Answer { loss: self.score(ask, data)?.first().copied().unwrap_or(0.0) })
    }

    fn check(&self, id: ClientId, answer: &Answer) -> Result<()> {
        check_figures(id, &[answer.loss])
    }

    fn loss(&self, answer: &Answer) -> Option<f64> {
        Some(answer.loss)
    }

    fn scores(&self) -> Vec<Score> {
        let loss = Score { key: "loss", name: "loss", better: Better::Down, share: false };
        let right = Score { key: "accuracy", name: "accuracy", better: Better::Up, share: true };
        if self.learner.classifies() { vec![loss, right] } else { vec![loss] }
    }

    fn judges_unseen(&self) -> bool {
        self.rule.for_unseen() != Unseen::Nothing
    }

    /// The paper's weights `n_t/n`.
    fn scores_weigh_training_rows(&self) -> bool {
        true
    }

    fn score(&self, ask: &Ask, data: &Samples) -> Result<Vec<f64>> {
        Ok(match &ask.own {
            Some(own) if !data.is_empty() => own.score(&*self.learner, data),
            _ => Vec::new(),
        })
    }

    fn measures(&self) -> Vec<Measure> {
        vec![Measure::objective("The clients’ own predictors on their training rows")]
    }

    fn conclude(
        &self,
        _: &Global,
        answers: &mut dyn Iterator<Item = (f64, Answer)>,
        _: &Context,
    ) -> Result<Vec<Metric>> {
        let (mut total, mut losses) = (0.0, ExactSum::new(1));
        for (weight, answer) in answers {
            total += weight;
            losses.add(&[answer.loss], weight)?;
        }
        Ok(vec![Metric::number("objective", losses.value()[0] / total)])
    }
}

/// What an answer tells.
pub(super) fn disclosure() -> Disclosure {
    let meaning = "at evaluations: its predictor's mean loss; where it keeps rows out, mean loss and \
                   accuracy on each part of its rows";
    aggregate("answer", meaning, 256)
}
