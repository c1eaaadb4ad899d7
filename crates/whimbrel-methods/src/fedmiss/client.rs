//! The client's half: residuals of observed cells.

use super::settings::FedMiss;
use super::state::{Client, Down, Phase, Up};
use crate::settings::DRAW;
use whimbrel_codec::Packet;
use whimbrel_codec::channel::Frames;
use whimbrel_core::method::Done;
use whimbrel_core::{Cell, Error, Key, Result};
use whimbrel_models::lowrank::{Delivered, Factors, LowRank, Observed, Scores, own_effect};

impl FedMiss {
    pub(super) fn upload(
        &self,
        client: &Client,
        down: &Down,
        data: &Observed,
        key: Key,
    ) -> Result<Done<Self>> {
        let ends = down.phase == Phase::Calibrate;
        if !ends && (down.ceiling.is_some() || down.observations.is_some()) || down.clients == 0 {
            return Err(Error::peer("a message with parts of another exchange"));
        }
        let mut next = client.clone();
        let (mut draw, mut packet, mut scores) = (None, Packet::default(), None);
        let count = data.cells.len();
        match down.phase {
            Phase::Memory => {
                let factors = self.receive(&mut next, down)?;
                let residuals = self.all_residuals(&factors, next.effect, data);
                (next.up, packet) = self.uplink(down.codec, count)?.open(&residuals)?;
            }
            Phase::Fit => {
                let factors = self.receive(&mut next, down)?;
                if self.personal {
                    next.effect = self.personal_effect(&factors, client, data, down.clients)?;
                }
                let (address, cells) = self.draw(count, key);
                draw = address;
                // Y − ψ'(θ + e_c) on B                                       (Alg. 7, l. 10)
                let residuals = self.residuals(&factors, next.effect, data, &cells);
                // Δ = residuals − R_c; send Quant(Δ); R_c += α Quant(Δ)      (l. 11, 14, 15)
                let uplink = self.uplink(down.codec, cells.len())?;
                (next.up, packet) = uplink.send_at(&client.up, &cells, count, &residuals, key)?;
            }
            Phase::Calibrate => scores = Some(self.final_scores(next.effect, down, data)?),
            Phase::Over => return Err(Error::peer("the run is over")),
        }
        Ok(Done::new(next, Up { phase: down.phase, draw, packet, scores }))
    }

    /// Scores of the table as it is delivered.
    fn final_scores(&self, effect: f64, down: &Down, data: &Observed) -> Result<Scores> {
        let message = down.state.get()?;
        let theta = message.state();
        let theta = theta.ok_or_else(|| Error::peer("the last table was not sent whole"))?;
        let table = Delivered::received(&self.model, theta, down.ceiling.as_ref())?;
        let sizes = (self.model.rows(), self.model.columns());
        let observations = down.observations.as_ref();
        if observations.map(|(rows, columns)| (rows.len(), columns.len())) != Some(sizes) {
            return Err(Error::peer("the numbers of observations are missing or of another table"));
        }
        let mut scores = self.scores(&table, effect, data, observations);
        // Held-out cells as predicted from a few others of their row.
        table.thinned(&self.model, data, (down.clients, effect), &mut |cell, others, mean| {
            let at = (self.model.position(cell), others);
            scores.add_thinned(self.model.family(), at, cell.value, mean);
        })?;
        Ok(scores)
    }

    /// The factors of a message; moves the client's end of the downlink.
    fn receive(&self, client: &mut Client, down: &Down) -> Result<Factors> {
        let message = down.state.get()?;
        let (end, theta) = self.downlink.receive(&client.down, &message, Frames::NONE)?;
        let factors = Factors::from_vector(&self.model, &theta)?;
        client.down = end;
        Ok(factors)
    }

    /// The minibatch of a round, and the key from which the server repeats the draw; no key for a full
    /// batch.
    fn draw(&self, cells: usize, key: Key) -> (Option<u64>, Vec<usize>) {
        let b_c = self.batch_of(cells);
        if b_c == cells {
            return (None, (0..cells).collect());
        }
        let address = key.child(DRAW).stream().next_u64();
        (Some(address), minibatch(address, cells, b_c))
    }

    /// `Y − ψ'(θ + e_c)` on all cells.
    pub(super) fn all_residuals(
        &self,
        factors: &Factors,
        effect: f64,
        data: &Observed,
    ) -> Vec<f64> {
        self.residuals(factors, effect, data, &(0..data.cells.len()).collect::<Vec<_>>())
    }

    /// The same on some cells.
    fn residuals(
        &self,
        factors: &Factors,
        effect: f64,
        data: &Observed,
        cells: &[usize],
    ) -> Vec<f64> {
        let residual = |i: &usize| {
            let cell = &data.cells[*i];
            cell.value - self.model.family().mean(theta_of(&self.model, factors, cell) + effect)
        };
        cells.iter().map(residual).collect()
    }

    /// `e_c` given `θ`, from all cells of the client; its ridge is `n lambda_effects` in the units of
    /// `n F`.
    pub(super) fn personal_effect(
        &self,
        factors: &Factors,
        client: &Client,
        data: &Observed,
        clients: u32,
    ) -> Result<f64> {
        let cells =
            data.cells.iter().map(|cell| (theta_of(&self.model, factors, cell), cell.value));
        let ridge = f64::from(clients) * self.model.settings().lambda_effects;
        own_effect(self.model.family(), cells, ridge, client.effect)
    }

    /// The errors of a table on the client's cells.
    pub(super) fn scores(
        &self,
        table: &Delivered,
        effect: f64,
        data: &Observed,
        observations: Option<&(Vec<u32>, Vec<u32>)>,
    ) -> Scores {
        let family = self.model.family();
        let mean = |cell: &Cell| {
            family.mean(table.theta(&self.model, cell.row as usize, cell.column as usize) + effect)
        };
        let mut scores = Scores::default();
        for cell in &data.cells {
            scores.observed.add(family, cell.value, mean(cell));
        }
        for cell in &data.held_out {
            let known = observations.map_or(u32::MAX, |(rows, columns)| {
                rows[cell.row as usize].min(columns[cell.column as usize])
            });
            let at = (self.model.position(cell), known);
            scores.add_held_out(family, at, cell.value, mean(cell));
        }
        scores
    }
}

pub(super) fn theta_of(model: &LowRank, factors: &Factors, cell: &Cell) -> f64 {
    model.theta(factors, cell.row as usize, cell.column as usize)
}

/// `b` of a client's cells, drawn without replacement; both ends compute the same.
pub(super) fn minibatch(address: u64, cells: usize, b: usize) -> Vec<usize> {
    Key::root(address).stream().choose(cells, b)
}
