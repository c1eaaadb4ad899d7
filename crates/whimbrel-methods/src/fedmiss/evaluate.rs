//! Evaluations of FedMissEM: objective, mean field, and errors on held-out cells.

use super::VALUE_MAX;
use super::client::theta_of;
use super::settings::FedMiss;
use super::state::{Client, Peer, Phase, Positions, Server};
use crate::federated::optional;
use crate::measures;
use whimbrel_core::declare::{Better, Measure, OverClients, Unit};
use whimbrel_core::method::{ClientGroup, Evaluate, Metric};
use whimbrel_core::{ClientId, Error, Result, vector, wire};
use whimbrel_models::lowrank::{
    Calibration, Ceiling, Delivered, Factors, Observed, ScoreSums, Scores,
};

/// The advice for a fit that has not converged.
/// Intervals of a round; those of the result are calibrated by the size of the means as well.
const COVERED: &str =
    "Held-out cells inside 90 % intervals of the round, before their last calibration";
const REMEDY: &str = "use more rounds, a larger lambda, larger batches or a finer codec";

/// The fit that clients evaluate on their cells.
#[derive(Clone, Debug)]
pub struct Ask {
    theta: Vec<f64>,
    clients: u32,
    /// Bounds the table of deviances and errors; loss and residuals are those of `theta`.
    ceiling: Option<Ceiling>,
}

/// A client's answer.
#[derive(Clone, Debug)]
pub struct Answer {
    /// `Σ [ψ(θ + e) − y (θ + e)]`, and the penalty of a personal effect.
    loss: f64,
    /// The observed cells, as at enrolment.
    cells: Positions,
    residuals: Vec<f64>,
    memory_gap2: Option<f64>,
    scores: Scores,
}

wire!(Ask { theta, clients, ceiling });
wire!(Answer { loss, cells, residuals, memory_gap2, scores });

impl Evaluate for FedMiss {
    type Ask = Ask;
    type Answer = Answer;

    fn ask(&self, server: &Server) -> Result<Ask> {
        let theta = server.factors.to_vector(&self.model);
        Ok(Ask { theta, clients: server.clients, ceiling: self.ceiling_of(server) })
    }

    fn answer(&self, client: &Client, ask: &Ask, data: &Observed) -> Result<Answer> {
        let factors = Factors::from_vector(&self.model, &ask.theta)?;
        let (family, effect) = (self.model.family(), client.effect);
        let mut loss =
            0.5 * f64::from(ask.clients) * self.model.settings().lambda_effects * effect * effect;
        for cell in &data.cells {
            let theta = family.boxed(theta_of(&self.model, &factors, cell) + effect);
            loss += family.psi(theta) - cell.value * theta;
        }
        let residuals = self.all_residuals(&factors, effect, data);
        let memory_gap2 = self.has_memory().then(|| {
            let mut gap = residuals.clone();
            if !client.up.kept.is_empty() {
                vector::axpy(&mut gap, -1.0, &client.up.kept);
            }
            vector::norm2_squared(&gap)
        });
        let table = Delivered::received(&self.model, &ask.theta, ask.ceiling.as_ref())?;
        let (cells, scores) = (self.positions(data), self.scores(&table, effect, data, None));
        Ok(Answer { loss, cells, residuals, memory_gap2, scores })
    }

    fn own(&self, id: ClientId, peer: Option<&Peer>, answer: &Answer) -> Result<Vec<Metric>> {
        let Scores { observed, held_out, .. } = &answer.scores;
        let lengths = [answer.residuals.len(), answer.cells.0.len(), observed.count as usize];
        if peer.is_some_and(|peer| lengths != [peer.places.len(); 3]) {
            return Err(Error::peer(format!("client {id} answered for other cells")));
        }
        let sums = [observed, held_out].map(|tally| [tally.squared, tally.deviance, tally.pearson]);
        let gap = answer.memory_gap2.unwrap_or(0.0);
        let figures = answer.residuals.iter().chain(sums.as_flattened());
        let mut figures = figures.chain([&answer.loss, &gap]);
        let squares = [observed, held_out].iter().all(|t| t.squared >= 0.0 && t.pearson >= 0.0);
        if !squares || !figures.all(|figure| figure.abs() <= VALUE_MAX) {
            return Err(Error::peer(format!("client {id} answered with a value out of range")));
        }
        ScoreSums::default().absorb(&answer.scores)?;
        Ok(answer.scores.observed.mean_deviance().map(Metric::loss).into_iter().collect())
    }

    fn conclude(
        &self,
        server: &Server,
        answers: &mut dyn Iterator<Item = (ClientId, Answer)>,
        group: ClientGroup,
    ) -> Result<Vec<Metric>> {
        if group == ClientGroup::Unseen {
            return Ok(Vec::new());
        }
        let (mut clients, mut loss, mut gaps) = (0.0, 0.0, None);
        let mut residual = vec![0.0; server.union.len()];
        let mut scores = ScoreSums::default();
        for (id, answer) in answers {
            clients += 1.0;
            loss += answer.loss;
            scores.absorb(&answer.scores)?;
            for (cell, value) in answer.cells.0.iter().zip(&answer.residuals) {
                let place = server.find(*cell);
                let place = place.ok_or_else(|| {
                    Error::peer(format!("client {id} answered for a cell that it did not enrol"))
                })?;
                residual[place as usize] += value;
            }
            if let Some(gap) = answer.memory_gap2 {
                *gaps.get_or_insert(0.0) += gap;
            }
        }
        if clients == 0.0 {
            return Err(Error::data("no client answered the evaluation"));
        }
        let scores = scores.value();
        let copies = self.copies_of(server);
        let push = self.on_table(server, &residual, copies)?;
        let [field_norm2, table_norm2] = self.model.norms2(&server.s_hat, &server.factors, &push);
        // F = (1/n) Σ_c L^c + penalties                                              (F.2)
        let objective = loss / clients + self.model.penalty(&server.factors);
        let settings = self.model.settings();
        let parameters = self.parameters(server, &scores)?;
        let calibration = Calibration::new(settings, &scores, parameters, &[]);
        let (observed, held_out) = (&scores.observed, &scores.held_out);
        let known = (server.phase != Phase::Memory).then_some(field_norm2);
        let relative = known.filter(|_| table_norm2 > 0.0).map(|h| (h / table_norm2).sqrt());
        let values = [
            ("field_norm2", known),
            ("field_relative", relative),
            ("update_norm2", server.update_norm2),
            ("memory_gap2", gaps.map(|gap| gap / clients)),
            ("train_rmse", observed.rmse()),
            ("train_deviance", observed.mean_deviance()),
            ("held_out_rmse", held_out.rmse()),
            ("held_out_deviance", held_out.mean_deviance()),
            ("held_out_coverage", calibration.coverage.map(|known| known.share)),
            ("local_variance", server.spread.map(|s| s.local2)),
            ("down_memory_gap2", server.spread.and_then(|s| s.memory2)),
        ];
        let mut metrics = vec![
            Metric::number("epoch", server.epoch()),
            Metric::number("objective", objective),
            Metric::number("objective_per_cell", objective * clients / observed.count as f64),
        ];
        metrics.extend(values.map(|(name, value)| optional(name, value)));
        let counts = [
            ("observed_count", observed.count as f64),
            ("held_out_count", held_out.count as f64),
            ("dispersion", calibration.dispersion),
            ("copies", copies.unwrap_or(self.most_observed(server))),
            ("step", self.gamma(server, copies)),
            ("sweeps", server.sweeps as f64),
            ("repairs", server.repairs as f64),
        ];
        metrics.extend(counts.map(|(name, value)| Metric::number(name, value)));
        Ok(metrics)
    }
}

impl FedMiss {
    /// The figures of an evaluation.
    pub(super) fn measures(&self) -> Vec<Measure> {
        let plain = |(key, title, name, caption)| Measure::new(key, title, name, caption);
        let count = |one| plain(one).unit(Unit::Count).without_curve();
        let per_cell = [
            ("train_rmse", "Training error", "train rmse", "RMS, observed cells"),
            ("train_deviance", "Training deviance", "train deviance", "Observed cells"),
            ("held_out_rmse", "Held-out error", "held-out rmse", "RMS, held-out cells"),
            ("held_out_deviance", "Held-out deviance", "held-out deviance", "Held-out cells"),
        ];
        let objective = "Penalised loss of a client, which the method minimises";
        let per_objective =
            ("objective_per_cell", "Objective per cell", "objective per cell", "Per observed cell");
        let coverage = ("held_out_coverage", "Held-out coverage", "coverage", COVERED);
        let mut all = vec![
            measures::epoch(),
            Measure::objective(objective).clients(OverClients::Mean),
            plain(per_objective).without_curve(),
            measures::field(),
            measures::field_relative(REMEDY.into()),
        ];
        all.extend(measures::channels());
        all.extend(per_cell.map(|one| plain(one).clients(OverClients::Rows).better(Better::Down)));
        all.extend([
            plain(coverage).unit(Unit::Share),
            count(("observed_count", "Observed cells", "observed", "Cells of the fit")),
            count(("held_out_count", "Held-out cells", "held out", "Cells kept out of the fit")),
            plain(("dispersion", "Dispersion", "dispersion", "Of the residuals")).without_curve(),
            count(("copies", "Copies", "copies", "Completed-data copies, M")),
            plain(("step", "Step", "step", "The step size in use")).without_curve(),
            count(("sweeps", "Sweeps", "sweeps", "Passes of the M-step")),
            measures::repairs(),
        ]);
        all
    }
}
