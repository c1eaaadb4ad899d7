//! The client's half: residuals of observed cells.

use super::settings::{FedMiss, PERSONAL_MAX};
use super::state::{Client, Down, Phase, Up};
use crate::settings::DRAW;
use whimbrel_codec::{Codec, Packet};
use whimbrel_core::{Cell, Error, Key, Result};
use whimbrel_models::lowrank::{Delivered, Factors, Observed, Scores, own_effect};

impl FedMiss {
    pub(super) fn upload(
        &self,
        client: &Client,
        down: &Down,
        data: &Observed,
        key: Key,
    ) -> Result<(Client, Up)> {
        if !client.memory.is_empty() && client.memory.len() != data.cells.len() {
            return Err(Error::internal("a client's memory does not fit its cells"));
        }
        let (down_end, theta) = self.downlink.receive(&client.down, &down.state)?;
        let factors = Factors::from_vector(&self.model, &theta)?;
        let mut next = Client { down: down_end, ..client.clone() };
        let (mut draw, mut packet, mut scores) = (None, Packet::default(), None);
        match down.phase {
            Phase::Memory => {
                let all: Vec<usize> = (0..data.cells.len()).collect();
                let residuals = self.residuals(&factors, next.effect, data, &all);
                packet = Codec::Exact.encode(&residuals, key)?;
                next.memory = residuals;
            }
            Phase::Fit => {
                if self.personal {
                    next.effect = self.personal_effect(&factors, client, data, down.clients);
                }
                let (address, cells) = self.draw(data.cells.len(), key);
                draw = address;
                // Y − ψ'(θ + e_c) on B, less the memory                      (Alg. 7, l. 10, 11)
                let mut delta = self.residuals(&factors, next.effect, data, &cells);
                if !client.memory.is_empty() {
                    delta.iter_mut().zip(&cells).for_each(|(d, i)| *d -= client.memory[*i]);
                }
                // Quant(Δ); R_c += α Quant(Δ)                                (l. 14, 15)
                let mut sent = vec![0.0; delta.len()];
                packet = self.codec.encode_decoded(&delta, key, &mut sent)?;
                if let Some(alpha) = self.alpha_of(data.cells.len()) {
                    next.memory.resize(data.cells.len(), 0.0);
                    sent.iter().zip(&cells).for_each(|(sent, i)| next.memory[*i] += alpha * sent);
                }
            }
            Phase::Calibrate => {
                let table = Delivered::finished(&self.model, factors, down.finish.as_ref())?;
                scores = Some(self.scores(&table, next.effect, data));
            }
            Phase::Over => return Err(Error::peer("nothing is left to be answered")),
        }
        Ok((next, Up { phase: down.phase, draw, packet, scores }))
    }

    /// The minibatch of a round and the address that the server draws it from again; no address
    /// where it is every cell.
    fn draw(&self, cells: usize, key: Key) -> (Option<u64>, Vec<usize>) {
        let b_c = self.batch_of(cells);
        if b_c == cells {
            return (None, (0..cells).collect());
        }
        let address = key.fold(DRAW).stream().next_u64();
        (Some(address), minibatch(address, cells, b_c))
    }

    /// `Y − ψ'(θ + e_c)` on some cells.
    pub(super) fn residuals(
        &self,
        factors: &Factors,
        effect: f64,
        data: &Observed,
        cells: &[usize],
    ) -> Vec<f64> {
        let residual = |i: &usize| {
            let cell = &data.cells[*i];
            cell.value - self.model.family().mean(theta_of(factors, cell) + effect)
        };
        cells.iter().map(residual).collect()
    }

    /// `e_c` given `θ`, over all cells of the client. In the units of `n F` its ridge is
    /// `n lambda_effects`.
    pub(super) fn personal_effect(
        &self,
        factors: &Factors,
        client: &Client,
        data: &Observed,
        clients: u32,
    ) -> f64 {
        let theta: Vec<f64> = data.cells.iter().map(|cell| theta_of(factors, cell)).collect();
        let y: Vec<f64> = data.cells.iter().map(|cell| cell.value).collect();
        let ridge = f64::from(clients) * self.model.settings().lambda_effects;
        // The objective is convex in e, so the best in the box is the nearest to the best.
        own_effect(self.model.family(), &theta, &y, ridge, client.effect)
            .clamp(-PERSONAL_MAX, PERSONAL_MAX)
    }

    /// How well the table does on the client's cells.
    pub(super) fn scores(&self, table: &Delivered, effect: f64, data: &Observed) -> Scores {
        let family = self.model.family();
        let mean = |cell: &Cell| {
            family.mean(table.theta(cell.row as usize, cell.column as usize) + effect)
        };
        let mut scores = Scores::default();
        for cell in &data.cells {
            scores.observed.add(family, cell.value, mean(cell));
        }
        for cell in &data.held_out {
            scores.add_held_out(family, self.position(cell), cell.value, mean(cell));
        }
        scores
    }
}

pub(super) fn theta_of(factors: &Factors, cell: &Cell) -> f64 {
    factors.theta(cell.row as usize, cell.column as usize)
}

/// `b` of a client's cells, drawn without replacement; both ends compute it.
pub(super) fn minibatch(address: u64, cells: usize, b: usize) -> Vec<usize> {
    Key::root(address).stream().choose(cells, b)
}
