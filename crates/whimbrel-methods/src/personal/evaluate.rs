//! Evaluations of local training: each client's predictor on its own rows.

use super::{Adaptation, Global, Mixture, Own, Personal};
use crate::federated::{Context, Judge, Score, Split, Terms, aggregate, held_out, mean_loss};
use crate::measures;
use crate::settings::{Weights, check_figures, check_rows};
use std::borrow::Cow;
use whimbrel_core::declare::{Better, Measure};
use whimbrel_core::method::{Disclosure, Metric};
use whimbrel_core::{ClientId, Error, Key, Result, Samples, sum::ExactSum, wire};

/// The key of fine-tuning: the same in every evaluation.
const EVALUATION: u64 = 0xE7A1;

/// The shared vector, of which the client makes its predictor.
#[derive(Clone, Debug)]
pub struct Ask {
    w: Vec<f32>,
    /// The local step, for methods that adapt before they predict.
    rate: f64,
    /// The client's predictor; it never travels.
    own: Option<Mixture>,
}

/// The mean loss of a client's predictor on its training rows.
#[derive(Clone, Debug)]
pub struct Answer {
    loss: f64,
}

wire!(Ask { w, rate, own });
wire!(Answer { loss });

impl Personal {
    /// A client's predictor, from its training rows.
    pub fn predictor(&self, w: &[f32], rate: f64, own: &Own, train: &Samples) -> Result<Mixture> {
        let adapts = own.is_empty() || self.rule.adaptation() == Adaptation::FineTuning;
        if adapts && !train.is_empty() {
            return self.rule.personal(&self.shape(), w, &self.adapt(w, rate, train)?);
        }
        self.rule.personal(&self.shape(), w, own)
    }

    /// The personal state of a client that took no part in training.
    pub fn adapt(&self, w: &[f32], rate: f64, train: &Samples) -> Result<Own> {
        self.rule.adapt(&mut self.work(train, rate, Key::root(EVALUATION)), w)
    }
}

impl Judge for Personal {
    type Ask = Ask;
    type Answer = Answer;

    fn ask(&self, global: &Global, _: &Terms) -> Result<Ask> {
        Ok(Ask { w: global.w.clone(), rate: self.rates.initial, own: None })
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
        self.rule.adaptation() != Adaptation::Impossible
    }

    /// The paper's weights `n_t/n`.
    fn scores_weigh_training_rows(&self) -> bool {
        true
    }

    fn score(&self, ask: &Ask, data: &Samples) -> Result<Vec<f64>> {
        let own = ask.own.as_ref();
        Ok(own.map_or(Vec::new(), |own| own.score(&*self.learner, data)))
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

/// Evaluations of methods beside the oracle layer.
impl Personal {
    /// A client's answer with this predictor.
    pub(super) fn answer_with(&self, own: &Mixture, parts: &Split<Samples>) -> Result<Told> {
        let rows = parts.train.len() as u64;
        let answer = own.score(&*self.learner, &parts.train).first().copied().unwrap_or(0.0);
        let score = |data: &Samples| Ok(own.score(&*self.learner, data));
        let parts = held_out::score_parts(parts, |data| data.len() as u64, score)?;
        Ok(Told { rows, answer, memory_gap2: None, parts })
    }

    /// Refuses an answer for another number of rows, or with figures that cannot be averaged.
    pub(super) fn check_told(&self, id: ClientId, rows: u64, told: &Told) -> Result<()> {
        check_rows(id, told.rows, rows)?;
        check_figures(id, &[told.answer])?;
        held_out::check(id, told.rows, self.scores().len(), &told.parts)
    }

    /// The figures of an evaluation, with one that the method adds.
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
        answers: impl Iterator<Item = Result<(ClientId, Told)>>,
    ) -> Result<Vec<Metric>> {
        let (mut total, mut losses) = (0.0, ExactSum::new(1));
        let mut pooled = held_out::Pooled::new(self.scores(), true);
        for answer in answers {
            let (id, told) = answer?;
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

    /// The scores of clients that took no part in training.
    pub(super) fn pool_unseen(
        &self,
        answers: impl Iterator<Item = Result<(ClientId, Told)>>,
    ) -> Result<Vec<Metric>> {
        if !self.judges_unseen() {
            return Ok(Vec::new());
        }
        let mut pooled = held_out::Pooled::new(self.scores(), true);
        for answer in answers {
            let (_, told) = answer?;
            pooled.add(told.rows, &told.parts)?;
        }
        Ok(pooled.metrics_of_unseen())
    }
}

/// An answer: the predictor's mean loss, and the scores of all parts.
pub(super) type Told = crate::federated::Answer<f64>;

/// The content of an answer.
pub(super) fn disclosure() -> Disclosure {
    let meaning = "at evaluations: its predictor's mean loss; where it keeps rows out, mean loss and \
                   accuracy on each part of its rows";
    aggregate("answer", meaning, 256)
}
