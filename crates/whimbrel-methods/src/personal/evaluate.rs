//! What the evaluations of local training report: each client's own predictor on its own rows.

use super::{Global, Mixture, Own, Personal, Unseen};
use crate::federated::{Context, Judge, Score, Split, Terms, aggregate, held_out, mean_loss};
use crate::measures;
use crate::settings::{Weights, check_figures, check_rows};
use std::borrow::Cow;
use whimbrel_core::declare::{Better, Measure};
use whimbrel_core::method::{Disclosure, Metric};
use whimbrel_core::{ClientId, Error, Key, Result, Samples, sum::ExactSum, wire};

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
        let losses = answers.map(|(weight, answer)| (weight, answer.loss));
        Ok(vec![mean_loss(losses)?])
    }
}

/// What methods beside the oracle layer share of an evaluation.
impl Personal {
    /// A client's answer with this predictor.
    pub(super) fn answer_with(&self, own: &Mixture, parts: &Split<Samples>) -> Result<Told> {
        let (learner, rows) = (&*self.learner, parts.train.len() as u64);
        let answer = if rows == 0 { 0.0 } else { own.score(learner, &parts.train)[0] };
        let parts =
            held_out::score_parts(parts, |d| d.len() as u64, |d| Ok(own.score(learner, d)))?;
        Ok(Told { rows, answer, memory_gap2: None, parts })
    }

    /// Refuses an answer that no sound client with this number of rows gives.
    pub(super) fn check_told(&self, id: ClientId, rows: u64, told: &Told) -> Result<()> {
        check_rows(id, told.rows, rows)?;
        check_figures(id, &[told.answer])?;
        held_out::check(id, told.rows, self.scores().len(), &told.parts)
    }

    /// A client's own figures.
    pub(super) fn own_figures(&self, told: &Told) -> Vec<Metric> {
        held_out::own(&self.scores(), &told.parts)
    }

    /// The figures of an evaluation, with those that the method adds.
    pub(super) fn told_measures(&self, more: Option<Measure>) -> Vec<Measure> {
        let mut all = vec![measures::epoch()];
        all.extend(Judge::measures(self));
        all.extend(more);
        all.extend(held_out::measures(&self.scores(), true));
        all.extend(measures::channels().into_iter().take(1));
        all
    }

    /// The objective, then the scores of all parts.
    pub(super) fn pool_told(
        &self,
        weights: Weights,
        answers: &mut dyn Iterator<Item = (ClientId, Told)>,
    ) -> Result<Vec<Metric>> {
        let (mut total, mut losses) = (0.0, ExactSum::new(1));
        let mut pooled = held_out::Pooled::new(self.scores(), true);
        for (id, told) in answers {
            let weight = weights.of(id, told.rows)?;
            total += weight;
            losses.add(&[told.answer], weight)?;
            pooled.add(told.rows, &told.parts)?;
        }
        if total == 0.0 {
            return Err(Error::data("no client answered the evaluation"));
        }
        let mut metrics = vec![Metric::number("objective", losses.value()[0] / total)];
        metrics.extend(pooled.metrics());
        Ok(metrics)
    }
}

/// An answer: the predictor's mean loss, and the scores of all parts.
pub(super) type Told = crate::federated::Answer<f64>;

/// What an answer tells.
pub(super) fn disclosure() -> Disclosure {
    let meaning = "at evaluations: its predictor's mean loss; where it keeps rows out, mean loss and \
                   accuracy on each part of its rows";
    aggregate("answer", meaning, 256)
}
