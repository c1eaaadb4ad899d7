//! What a run of FedEM reports: objective, mean field, and how far the memories are from their
//! limits.

use super::{FedEm, Form, Server};
use crate::fedem::state::{Client, Peer, Phase};
use crate::measures;
use crate::settings::check_answer;
use whimbrel_core::declare::{Measure, Role, Unit};
use whimbrel_core::method::{Evaluate, Metric, MetricValue};
use whimbrel_core::{ClientId, Error, Result, sum::ExactSum, vector, wire};
use whimbrel_models::{LatentModel, Rows};

/// The question: where are your statistic and your likelihood at these parameters?
#[derive(Clone, Debug)]
pub struct Ask {
    s_hat: Vec<f64>,
    theta: Vec<f64>,
}

/// A client's answer.
#[derive(Clone, Debug)]
pub struct Answer {
    rows: u64,
    statistic: Vec<f64>,
    log_likelihood: f64,
    memory_gap2: Option<f64>,
}

wire!(Ask { s_hat, theta });
wire!(Answer { rows, statistic, log_likelihood, memory_gap2 });

impl<M: LatentModel> Evaluate for FedEm<M> {
    type Ask = Ask;
    type Answer = Answer;

    fn ask(&self, server: &Server) -> Result<Ask> {
        Ok(Ask { s_hat: server.s_hat.clone(), theta: server.theta.clone() })
    }

    fn answer(&self, client: &Client, ask: &Ask, data: &M::Data) -> Result<Answer> {
        let theta = self.model.from_vector(&ask.theta)?;
        let mut statistic = vec![0.0; self.model.statistic_len()];
        let rows = self.model.rows(data);
        let log_likelihood = match self.model.window(data, 0, rows)? {
            Some(window) => self.model.expect(&theta, &window, Rows::All, &mut statistic)?,
            None => self.model.expect(&theta, data, Rows::All, &mut statistic)?,
        };
        // ||V_{k,i} − h_i(Ŝ_k)||², the summand of G_k                         (C.4, App. E.7)
        let memory_gap2 = self.has_memory().then(|| {
            let mut gap = statistic.clone();
            if self.form != Form::Lean {
                vector::axpy(&mut gap, -1.0, &ask.s_hat);
            }
            if !client.up.kept.is_empty() {
                vector::axpy(&mut gap, -1.0, &client.up.kept);
            }
            vector::norm2_squared(&gap)
        });
        Ok(Answer { rows: rows as u64, statistic, log_likelihood, memory_gap2 })
    }

    fn check(&self, id: ClientId, peer: &Peer, answer: &Answer) -> Result<()> {
        if answer.statistic.len() != self.model.statistic_len() {
            return Err(Error::peer(format!("client {id} sent a statistic of another length")));
        }
        let figures = answer.statistic.iter().copied();
        let others = [answer.log_likelihood, answer.memory_gap2.unwrap_or(0.0)];
        check_answer(id, (answer.rows, peer.rows), figures.chain(others))
    }

    fn loss(&self, answer: &Answer) -> Option<f64> {
        Some(self.initial.log_scale() - answer.log_likelihood)
    }

    fn measures(&self) -> Vec<Measure> {
        let mut all = vec![
            measures::epoch(),
            Measure::objective(
                "Penalised negative log-likelihood per row, which the method minimises",
            ),
            measures::field(),
        ];
        all.extend(measures::channels());
        all.extend([
            measures::repairs(),
            Measure::new("weights", "Mixture weights", "weights", "One line per component")
                .unit(Unit::Share)
                .role(Role::List),
            Measure::new("dead", "Lost components", "lost components", "Numbers from one")
                .role(Role::List)
                .without_curve(),
        ]);
        all
    }

    fn conclude(
        &self,
        server: &Server,
        answers: &mut dyn Iterator<Item = (ClientId, Answer)>,
    ) -> Result<Vec<Metric>> {
        let (mut clients, mut total) = (0.0, 0.0);
        let mut statistic = ExactSum::new(self.model.statistic_len());
        // Sums of their own: beside the likelihood's size a small gap would be rounded away.
        let (mut likelihood, mut gaps) = (ExactSum::new(1), ExactSum::new(1));
        let mut remembers = false;
        for (id, answer) in answers {
            if answer.statistic.len() != statistic.len() {
                return Err(Error::peer(format!("client {id} sent a statistic of another length")));
            }
            let weight = self.weights.of(id, answer.rows)?;
            clients += 1.0;
            total += weight;
            statistic.add(&answer.statistic, weight)?;
            likelihood.add(&[answer.log_likelihood], weight)?;
            remembers |= answer.memory_gap2.is_some();
            gaps.add(&[answer.memory_gap2.unwrap_or(0.0)], 1.0)?;
        }
        if total == 0.0 {
            return Err(Error::data("no client answered the evaluation"));
        }
        let theta = self.model.from_vector(&server.theta)?;
        let (likelihood, gaps) = (likelihood.value()[0], gaps.value()[0]);
        // h(Ŝ_k) = Σ (n_i/N) s̄_i(T(Ŝ_k)) − Ŝ_k                                          (6)
        let mut field = statistic.value();
        vector::scale(&mut field, 1.0 / total);
        vector::axpy(&mut field, -1.0, &server.s_hat);
        let objective = self.model.penalty(&theta) + self.initial.log_scale() - likelihood / total;
        let opening = server.phase != Phase::Fit;
        let unless_opening = |value: f64| match opening {
            true => MetricValue::Missing,
            false => MetricValue::Number(value),
        };
        let mut metrics = vec![
            Metric::number("epoch", server.epoch()),
            Metric::number("objective", objective),
            Metric { name: "field_norm2", value: unless_opening(vector::norm2_squared(&field)) },
            Metric { name: "update_norm2", value: number_or_missing(server.update_norm2) },
            Metric {
                name: "memory_gap2",
                value: match remembers {
                    true => unless_opening(gaps / clients),
                    false => MetricValue::Missing,
                },
            },
            Metric {
                name: "local_variance",
                value: number_or_missing(server.spread.map(|s| s.local2)),
            },
            Metric {
                name: "down_memory_gap2",
                value: number_or_missing(server.spread.and_then(|s| s.memory2)),
            },
            Metric::number("repairs", server.repairs as f64),
            Metric::list("weights", self.initial.weights(&self.model, &theta)),
        ];
        if !server.dead.is_empty() {
            // Counted from one, as people and predictions count them.
            let numbers = server.dead.iter().map(|k| f64::from(*k) + 1.0).collect();
            metrics.push(Metric::list("dead", numbers));
        }
        Ok(metrics)
    }
}

fn number_or_missing(value: Option<f64>) -> MetricValue {
    value.map_or(MetricValue::Missing, MetricValue::Number)
}
