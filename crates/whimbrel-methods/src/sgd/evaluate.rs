//! What a run of the gradient family reports.

use super::{Client, Peer, Server, Sgd};
use crate::measures;
use crate::settings::check_answer;
use whimbrel_core::declare::{Better, Measure, Role, Unit};
use whimbrel_core::method::{Evaluate, Metric, MetricValue};
use whimbrel_core::{ClientId, Error, Result, sum::ExactSum, vector, wire};
use whimbrel_models::Rows;
use whimbrel_models::convex::Examples;

/// The question: what is your loss at this model, and how far is your memory from its limit?
#[derive(Clone, Debug)]
pub struct Ask {
    w: Vec<f64>,
    /// `w_*`, where it is known (simulations only).
    w_star: Option<Vec<f64>>,
}

/// A client's answer.
#[derive(Clone, Debug)]
pub struct Answer {
    rows: u64,
    loss: f64,
    /// `||h_i − ∇F_i(w_*)||²`.
    memory_gap2: Option<f64>,
    /// `∇F_i(w)` where the loss is not convex: there is no minimum to compare with.
    gradient: Vec<f64>,
}

wire!(Ask { w, w_star });
wire!(Answer { rows, loss, memory_gap2, gradient });

impl Evaluate for Sgd {
    type Ask = Ask;
    type Answer = Answer;

    fn ask(&self, server: &Server) -> Result<Ask> {
        let w_star = self.reference.as_ref().filter(|_| self.uplinks[0].has_memory());
        Ok(Ask { w: self.delivered(server), w_star: w_star.map(|r| r.w.clone()) })
    }

    fn answer(&self, client: &Client, ask: &Ask, data: &Examples) -> Result<Answer> {
        let mut gradient = vec![0.0; self.answered_len()];
        let loss = match gradient.is_empty() {
            true => self.problem.loss(&ask.w, data)?,
            false => self.problem.gradient(&ask.w, data, Rows::All, &mut gradient)?,
        };
        let memory_gap2 = match &ask.w_star {
            None => None,
            Some(w_star) => {
                let mut gap = vec![0.0; self.dimension];
                self.problem.gradient(w_star, data, Rows::All, &mut gap)?;
                if !client.up.kept.is_empty() {
                    vector::axpy(&mut gap, -1.0, &client.up.kept);
                }
                Some(vector::norm2_squared(&gap))
            }
        };
        Ok(Answer { rows: data.rows() as u64, loss, memory_gap2, gradient })
    }

    fn check(&self, id: ClientId, peer: &Peer, answer: &Answer) -> Result<()> {
        if answer.gradient.len() != self.answered_len() {
            return Err(Error::peer(format!(
                "client {id} answered with a gradient of another length"
            )));
        }
        let figures = [answer.loss, answer.memory_gap2.unwrap_or(0.0)];
        let figures = figures.into_iter().chain(answer.gradient.iter().copied());
        check_answer(id, (answer.rows, peer.rows), figures)
    }

    fn loss(&self, answer: &Answer) -> Option<f64> {
        Some(answer.loss)
    }

    fn measures(&self) -> Vec<Measure> {
        let lower = |measure: Measure| measure.log().better(Better::Down);
        let mut all = vec![
            measures::epoch(),
            lower(Measure::new(
                "excess_loss",
                "Excess loss",
                "excess loss",
                "F(w) − F★: objective minus its minimum",
            ))
            .role(Role::Excess)
            .result(3),
            Measure::objective("What the method minimises, over all clients’ rows"),
            lower(Measure::new("distance2", "Distance to the optimum", "distance²", "‖w − w★‖²"))
                .summary(),
            lower(Measure::new(
                "gradient_norm2",
                "Gradient",
                "gradient²",
                "‖∇F(w)‖², where the loss is not convex",
            ))
            .summary(),
        ];
        all.extend(measures::channels());
        let ghost = Measure::new(
            "bits_down_ghost",
            "Hypothetical bits down",
            "hypothetical down",
            "What the ghost’s compressed messages would take; the bits it needs are those sent down",
        );
        all.push(Measure { headline: true, ..ghost.log().unit(Unit::Bits) });
        all
    }

    fn conclude(
        &self,
        server: &Server,
        answers: &mut dyn Iterator<Item = (ClientId, Answer)>,
    ) -> Result<Vec<Metric>> {
        let (mut clients, mut total, mut remembers) = (0.0, 0.0, false);
        // Sums of their own: beside a large loss a small gap would be rounded away.
        let (mut losses, mut gaps) = (ExactSum::new(1), ExactSum::new(1));
        let mut gradients = ExactSum::new(self.answered_len());
        for (id, answer) in answers {
            let weight = self.weights.of(id, answer.rows)?;
            clients += 1.0;
            total += weight;
            remembers |= answer.memory_gap2.is_some();
            losses.add(&[answer.loss], weight)?;
            gradients.add(&answer.gradient, weight)?;
            gaps.add(&[answer.memory_gap2.unwrap_or(0.0)], 1.0)?;
        }
        if total == 0.0 {
            return Err(Error::data("no client answered the evaluation"));
        }
        let objective = losses.value()[0] / total;
        let w = self.delivered(server);
        let distance2 = self.reference.as_ref().map(|reference| {
            let mut gap = w.clone();
            vector::axpy(&mut gap, -1.0, &reference.w);
            vector::norm2_squared(&gap)
        });
        // ||∇F(w)||², what Theorem S11 bounds
        let gradient_norm2 = (!gradients.is_empty())
            .then(|| vector::norm2_squared(&gradients.value()) / (total * total));
        let ghost =
            self.downlink.ghost_bytes(&server.down).map(|_| 8.0 * server.ghost_bytes as f64);
        let optional = |name, value: Option<f64>| Metric {
            name,
            value: value.map_or(MetricValue::Missing, MetricValue::Number),
        };
        let mut metrics = vec![
            Metric::number("epoch", server.epoch()),
            Metric::number("objective", objective),
            optional("excess_loss", self.reference.as_ref().map(|r| objective - r.f_star)),
            optional("distance2", distance2),
            optional("update_norm2", server.update_norm2),
            // Ξ = (1/N²) Σ ||h_i − ∇F_i(w_*)||² times N: the mean over clients   (App. G)
            optional("memory_gap2", remembers.then_some(gaps.value()[0] / clients)),
            optional("local_variance", server.spread.map(|s| s.local2)),
            optional("down_memory_gap2", server.spread.and_then(|s| s.memory2)),
        ];
        if gradient_norm2.is_some() {
            metrics.push(optional("gradient_norm2", gradient_norm2));
        }
        if ghost.is_some() {
            metrics.push(optional("bits_down_ghost", ghost));
        }
        Ok(metrics)
    }
}

impl Sgd {
    /// The length of the gradient that an answer holds: none where the loss is convex.
    pub(super) fn answered_len(&self) -> usize {
        if self.problem.gap_at_zero().is_some() { self.dimension } else { 0 }
    }
}
