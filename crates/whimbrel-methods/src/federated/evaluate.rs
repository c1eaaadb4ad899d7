//! Evaluations: figures of the judge and of the channels.

use super::{Answer, Answered, ExchangeKind, Federated, Figures, Judge, Server, held_out};
use crate::pooled::{Lanes, words};
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
        let scores = self.oracle.scores();
        held_out::check(id, answer.rows, scores.each.len(), &answer.parts)?;
        let Figures { mut own, addends } = self.oracle.figures(&answer.answer, 1.0);
        if addends.len() != scores.addends {
            return Err(Error::peer(format!("client {id} sent an answer of another length")));
        }
        check_figures(id, &addends)?;
        if self.uplink().grid().is_some() {
            let too_large = |_| Error::peer(format!("client {id} answered with too large figures"));
            let weight = self.terms.weights.of(id, answer.rows)?;
            words(&self.addends(weight, answer)?).map_err(too_large)?;
        }
        own.extend(held_out::own(&scores.each, &answer.parts));
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
        if group == ClientGroup::Unseen {
            let mut pooled = held_out::Pooled::new(scores);
            for (_, answer) in answers {
                pooled.add(answer.rows, &answer.parts)?;
            }
            return Ok(pooled.metrics_of_unseen());
        }
        let mut total = Total::new(self.addends_len(), self.uplink().grid().is_some());
        let mut test = Vec::new();
        for (id, answer) in answers {
            let weight = self.terms.weights.of(id, answer.rows)?;
            total.add(&self.addends(weight, &answer)?)?;
            test.extend(held_out::test_scores(&answer.parts));
        }
        self.conclude_sums(server, &total.values(), &test)
    }
}

/// The sums of an evaluation. On a grid they are those that masks can hide, to the bit.
enum Total {
    Exact(ExactSum),
    Lanes(Lanes),
}

impl Total {
    fn new(length: usize, on_grid: bool) -> Self {
        if on_grid { Self::Lanes(Lanes::new(length)) } else { Self::Exact(ExactSum::new(length)) }
    }

    fn add(&mut self, addends: &[f64]) -> Result<()> {
        match self {
            Self::Exact(sum) => sum.add(addends, 1.0),
            Self::Lanes(lanes) => lanes.add(&words(addends)?, 1),
        }
    }

    fn values(&self) -> Vec<f64> {
        match self {
            Self::Exact(sum) => sum.value(),
            Self::Lanes(lanes) => lanes.values(),
        }
    }
}

/// Sums of an evaluation before those of the scores and of the judge: clients, their weight, the
/// squared distances of memories from their limits, and the clients that have one.
const HEAD: usize = 4;

impl<O: Judge> Federated<O> {
    /// The number of sums of an evaluation.
    pub(super) fn addends_len(&self) -> usize {
        let scores = self.oracle.scores();
        HEAD + scores.parts_len() + scores.addends
    }

    /// A client's part of these sums.
    pub(super) fn addends(&self, weight: f64, answer: &Answer<O::Answer>) -> Result<Vec<f64>> {
        let gap = answer.memory_gap2;
        let mut all = vec![1.0, weight, gap.unwrap_or(0.0), f64::from(u8::from(gap.is_some()))];
        all.extend(self.oracle.scores().addends_of(answer.rows, &answer.parts)?);
        all.extend(self.oracle.figures(&answer.answer, weight).addends);
        if all.len() != self.addends_len() {
            return Err(Error::peer("a client sent an answer of another length"));
        }
        Ok(all)
    }

    /// The figures from these sums and, where single answers are known, the clients' test scores.
    pub(super) fn conclude_sums(
        &self,
        server: &Server<O::Global, O::Number>,
        sums: &[f64],
        test: &[Vec<f64>],
    ) -> Result<Vec<Metric>> {
        let scores = self.oracle.scores();
        let [clients, total, gaps, gap_count] = sums[..HEAD] else { return Err(nobody()) };
        if clients == 0.0 {
            return Err(nobody());
        }
        let (scored, judged) = sums[HEAD..].split_at(scores.parts_len());
        // Memories have no meaning before they are opened.
        let opened = server.kind == ExchangeKind::Round && gap_count > 0.0;
        let memory_gap2 = opened.then(|| gaps / clients);
        let mut metrics = vec![Metric::number("epoch", server.epoch())];
        metrics.extend(self.oracle.conclude(
            &server.global,
            judged,
            total,
            &self.context(server),
        )?);
        metrics.extend(scores.metrics(scored));
        metrics.extend(scores.deciles(test));
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

fn nobody() -> Error {
    Error::data("no client answered the evaluation")
}

/// A metric that may be missing.
pub(crate) fn optional(name: &'static str, value: Option<f64>) -> Metric {
    Metric { name: name.into(), value: value.map_or(MetricValue::Missing, MetricValue::Number) }
}

/// The objective: the mean of the clients' losses by weight, from their sum.
pub(crate) fn mean_loss(sums: &[f64], total: f64) -> Metric {
    Metric::number("objective", sums[0] / total)
}

/// The disclosure of sums over a client's rows.
pub(crate) fn aggregate(message: &'static str, meaning: &str, bytes_max: usize) -> Disclosure {
    Disclosure { message, meaning: meaning.into(), bytes_max, exposure: Exposure::Aggregate }
}
