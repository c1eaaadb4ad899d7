//! Evaluations of local training: each client's predictor on its own rows.

use super::{Adaptation, Ensemble, Global, Own, Personal, REMEDY};
use crate::federated::{
    Answered, Context, Figures, Judge, PartScores, Score, Scores, Split, Terms, aggregate,
    held_out, mean_loss,
};
use crate::measures;
use crate::settings::{Weights, check_figures};
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
    /// Always `None`: a byte of the format.
    reserved: Option<()>,
}

/// The mean loss of a client's predictor on its training rows.
#[derive(Clone, Debug)]
pub struct Answer {
    loss: f64,
}

wire!(Ask { w, rate, reserved });
wire!(Answer { loss });

impl Personal {
    /// A client's predictor, from its training rows.
    pub fn predictor(&self, w: &[f32], rate: f64, own: &Own, train: &Samples) -> Result<Ensemble> {
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
        Ok(Ask { w: global.w.clone(), rate: self.rates.initial, reserved: None })
    }

    fn answer(
        &self,
        ask: &Ask,
        own: &Own,
        data: &Split<Samples>,
        _: &Terms,
    ) -> Result<Answered<Self>> {
        self.rates.check(ask.rate)?;
        let length: usize = self.blocks().iter().sum();
        if ask.w.len() != length {
            return Err(Error::peer(format!("a question must hold {length} parameters")));
        }
        let own = self.predictor(&ask.w, ask.rate, own, &data.train)?;
        let Told { answer: loss, parts, .. } = self.answer_with(&own, data)?;
        Ok(Answered { answer: Answer { loss }, memory_limit: None, parts })
    }

    fn scores(&self) -> Scores {
        let loss = Score { key: "loss", name: "loss", better: Better::Down, share: false };
        let right = Score { key: "accuracy", name: "accuracy", better: Better::Up, share: true };
        Scores {
            each: if self.learner.classifies() { vec![loss, right] } else { vec![loss] },
            // The paper's weights n_t/n.
            by_training_rows: true,
            unseen: self.rule.adaptation() != Adaptation::Impossible,
            ..Scores::default()
        }
    }

    fn figures(&self, answer: &Answer, weight: f64) -> Figures {
        Figures::of_loss(answer.loss, weight)
    }

    fn conclude(&self, _: &Global, sums: &[f64], total: f64, _: &Context) -> Result<Vec<Metric>> {
        Ok(vec![mean_loss(sums, total)])
    }
}

/// Evaluations of methods beside the oracle layer.
impl Personal {
    /// A client's answer with this predictor.
    pub(super) fn answer_with(&self, own: &Ensemble, parts: &Split<Samples>) -> Result<Told> {
        let answer = own.score(&*self.learner, &parts.train).first().copied().unwrap_or(0.0);
        let scores = parts.scores(|rows| Ok(own.score(&*self.learner, rows)))?;
        Ok(Told { rows: parts.rows[0], answer, memory_gap2: None, parts: scores })
    }

    /// Refuses an answer with figures that cannot be averaged.
    pub(super) fn check_told(&self, id: ClientId, told: &Told) -> Result<()> {
        check_figures(id, &[told.answer])?;
        held_out::check(id, told.rows, self.scores().each.len(), &told.parts)
    }

    /// A client's figures: its loss, then its scores.
    pub(super) fn own_figures(&self, loss: f64, parts: &[PartScores]) -> Vec<Metric> {
        let scores = held_out::own(&self.scores().each, parts);
        [Metric::loss(loss)].into_iter().chain(scores).collect()
    }

    /// The figures of an evaluation, with one that the method adds.
    pub(super) fn told_measures(&self, more: Option<Measure>) -> Vec<Measure> {
        let mut all = vec![measures::epoch(), objective()];
        all.extend(more);
        all.extend(held_out::measures(&self.scores()));
        all.extend(measures::channels().into_iter().take(1));
        all.push(measures::update_relative(REMEDY));
        all
    }

    /// The objective, then the scores of all parts.
    pub(super) fn pool_told(
        &self,
        weights: Weights,
        answers: impl Iterator<Item = (ClientId, Told)>,
    ) -> Result<Vec<Metric>> {
        let (mut total, mut losses) = (0.0, ExactSum::new(1));
        let mut pooled = held_out::Pooled::new(self.scores());
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

    /// The scores of clients that took no part in training.
    pub(super) fn pool_unseen(
        &self,
        answers: impl Iterator<Item = (ClientId, Told)>,
    ) -> Result<Vec<Metric>> {
        let scores = self.scores();
        if !scores.unseen {
            return Ok(Vec::new());
        }
        let mut pooled = held_out::Pooled::new(scores);
        for (_, told) in answers {
            pooled.add(told.rows, &told.parts)?;
        }
        Ok(pooled.metrics_of_unseen())
    }
}

/// An answer: the predictor's mean loss, and the scores of all parts.
pub(super) type Told = crate::federated::Answer<f64>;

/// The objective of an evaluation.
pub(super) fn objective() -> Measure {
    Measure::objective("The clients’ own predictors on their training rows")
}

/// The content of an answer.
pub(super) fn disclosure() -> Disclosure {
    let meaning = "at evaluations: the mean loss of the model's predictions here; with rows kept out, mean \
                   loss and accuracy on each part of the rows";
    aggregate("answer", meaning, 256)
}
