//! Evaluations: figures of the judge and of the channels.

use super::{Answer, Answered, ExchangeKind, Federated, Judge, held_out};
use crate::settings::{check_figures, check_rows};
use whimbrel_codec::Scalar;
use whimbrel_core::method::{ClientGroup, Disclosure, Evaluate, Exposure, Metric, MetricValue};
use whimbrel_core::{ClientId, Error, Result, sum::ExactSum};

impl<O: Judge> Evaluate for Federated<O> {
    type Ask = O::Ask;
    type Answer = Answer<O::Answer>;

    fn ask(&self, server: &Self::Server) -> Result<O::Ask> {
        self.oracle.ask(&server.global, &self.terms)
    }

    fn answer(
        &self,
        client: &Self::Client,
        ask: &O::Ask,
        data: &Self::Data,
    ) -> Result<Self::Answer> {
        let Answered { answer, memory_limit, parts } =
            self.oracle.answer(ask, &client.own, data, &self.terms)?;
        // ||h_i − its limit||²
        let memory_gap2 = memory_limit.filter(|_| self.terms.has_memory()).map(|mut gap| {
            if !client.up.kept.is_empty() {
                O::Number::axpy(&mut gap, -1.0, &client.up.kept);
            }
            O::Number::norm2_squared(&gap)
        });
        Ok(Answer { rows: data.rows[0], answer, memory_gap2, parts })
    }

    fn own(
        &self,
        id: ClientId,
        peer: Option<&Self::Peer>,
        answer: &Self::Answer,
    ) -> Result<Vec<Metric>> {
        peer.map_or(Ok(()), |peer| check_rows(id, answer.rows, peer.rows))?;
        check_figures(id, answer.memory_gap2.as_slice())?;
        let scores = self.oracle.scores().each;
        held_out::check(id, answer.rows, scores.len(), &answer.parts)?;
        let mut own = self.oracle.own(id, &answer.answer)?;
        own.extend(held_out::own(&scores, &answer.parts));
        Ok(own)
    }

    fn conclude(
        &self,
        server: &Self::Server,
        answers: &mut dyn Iterator<Item = (ClientId, Self::Answer)>,
        group: ClientGroup,
    ) -> Result<Vec<Metric>> {
        let scores = self.oracle.scores();
        if group == ClientGroup::Unseen && !scores.unseen {
            return Ok(Vec::new());
        }
        let mut pooled = held_out::Pooled::new(scores);
        if group == ClientGroup::Unseen {
            for (_, answer) in answers {
                pooled.add(answer.rows, &answer.parts)?;
            }
            return Ok(pooled.metrics_of_unseen());
        }
        let (mut clients, mut gaps, mut gap_count) = (0, ExactSum::new(1), 0);
        let mut failed = None;
        let mut weighted = answers.map_while(|(id, answer)| {
            clients += 1;
            gap_count += u32::from(answer.memory_gap2.is_some());
            let added = gaps.add(&[answer.memory_gap2.unwrap_or(0.0)], 1.0);
            let added = added.and_then(|()| pooled.add(answer.rows, &answer.parts));
            match added.and_then(|()| self.terms.weights.of(id, answer.rows)) {
                Ok(weight) => Some((weight, answer.answer)),
                Err(error) => {
                    failed = Some(error);
                    None
                }
            }
        });
        let judged = self.oracle.conclude(&server.global, &mut weighted, &self.context(server));
        if let Some(error) = failed {
            return Err(error);
        }
        if clients == 0 {
            return Err(Error::data("no client answered the evaluation"));
        }
        // Memories have no meaning before they are opened.
        let opened = server.kind == ExchangeKind::Round && gap_count > 0;
        let memory_gap2 = opened.then(|| gaps.value()[0] / f64::from(clients));
        let mut metrics = vec![Metric::number("epoch", server.epoch())];
        metrics.extend(judged?);
        metrics.extend(pooled.metrics());
        metrics.extend([
            optional("update_norm2", server.update_norm2),
            optional("update_relative", server.update_relative()),
            optional("memory_gap2", memory_gap2),
            optional("local_variance", server.spread.map(|s| s.local2)),
            optional("down_memory_gap2", server.spread.and_then(|s| s.memory2)),
        ]);
        if self.terms.privacy.min_group.is_some() {
            metrics.push(Metric::number("withheld", server.withheld as f64));
        }
        if self.terms.downlink.ghost_bytes(&server.down).is_some() {
            metrics.push(Metric::number("bits_down_ghost", 8.0 * server.ghost_bytes as f64));
        }
        Ok(metrics)
    }
}

/// A metric that may be missing.
pub(crate) fn optional(name: &'static str, value: Option<f64>) -> Metric {
    Metric { name: name.into(), value: value.map_or(MetricValue::Missing, MetricValue::Number) }
}

/// The objective: the mean of the clients' losses by weight.
pub(crate) fn mean_loss(losses: impl Iterator<Item = (f64, f64)>) -> Result<Metric> {
    let (mut total, mut sum) = (0.0, ExactSum::new(1));
    for (weight, loss) in losses {
        total += weight;
        sum.add(&[loss], weight)?;
    }
    Ok(Metric::number("objective", sum.value()[0] / total))
}

/// The disclosure of sums over a client's rows.
pub(crate) fn aggregate(message: &'static str, meaning: &str, bytes_max: usize) -> Disclosure {
    Disclosure { message, meaning: meaning.into(), bytes_max, exposure: Exposure::Aggregate }
}
