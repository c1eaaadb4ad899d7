//! The server's half: observed cells, the field, and the completed table.

use super::settings::{Copies, FedMiss, StepRule, auto_step};
use super::state::{Fold, Phase, Server};
use whimbrel_codec::channel::Frames;
use whimbrel_core::{Key, Result};
use whimbrel_models::lowrank::interval::HELD_OUT_MIN;
use whimbrel_models::lowrank::{
    Calibration, Ceiling, Residuals, Scores, TableStep, Uncertainty, copies_unobserved,
    effective_parameters,
};

impl FedMiss {
    /// `R_c = P(Y_c − ψ'(θ_0))`; clients whose upload was lost stay at zero.
    pub(super) fn open(&self, mut server: Server, fold: &Fold) -> Result<Server> {
        self.uplink(0, 1)?.collect_opening(&mut server.up, &fold.up);
        server.residuals += fold.residuals;
        server.phase = Phase::Fit;
        self.end_if_done(&mut server);
        Ok(server)
    }

    /// Ends the rounds if the budget is spent; epochs count from the first round on.
    pub(super) fn end_if_done(&self, server: &mut Server) {
        let epoch = if server.round == 0 { 0.0 } else { server.epoch() };
        if self.budget.is_spent(server.round, epoch) {
            self.end_rounds(server);
        }
    }

    /// Fixes the table that is delivered, which the last exchange judges.
    pub(super) fn end_rounds(&self, server: &mut Server) {
        server.phase = Phase::Calibrate;
        server.ceiling = self.ceiling_of(server);
    }

    /// The upper bound of estimated counts.
    pub(super) fn ceiling_of(&self, server: &Server) -> Option<Ceiling> {
        let found = || Ceiling::over(&self.model, &server.factors, server.union.iter().copied());
        server.ceiling.clone().or_else(|| self.ceiling.then(found).flatten())
    }

    pub(super) fn move_table(&self, mut server: Server, fold: &Fold, key: Key) -> Result<Server> {
        let copies = self.copies_of(&server);
        // Σ_c R_c + Σ_A (N_c/(b_c p_c)) Q_c;  R += Σ_A α_c Q_c               (Alg. 7, l. 18)
        let residual = self.uplink(0, 1)?.collect(&mut server.up, &[(&fold.up, None)], 1.0);
        server.residuals += fold.residuals;
        // H = ψ'(θ) − Ŝ + residual/M;  Ŝ += γ H;  θ = T(Ŝ)                    (l. 19 to 21)
        let push = self.on_table(&server, &residual, copies)?;
        let gamma = self.gamma(&server, copies);
        let clients = f64::from(server.clients);
        let unobserved = copies_unobserved(f64::from(server.round) * gamma);
        let step = TableStep { residuals: &push, gamma, clients, unobserved, full: self.full_t };
        let round = server.round + 1;
        let moved = self
            .model
            .advance(&mut server.s_hat, &mut server.factors, step)
            .map_err(|e| e.in_round(round))?;
        server.round = round;
        server.table_norm2 = moved.table_norm2;
        server.update_norm2 = Some(moved.field_norm2);
        server.sweeps += u64::from(moved.sweeps);
        server.spread = self.downlink.spread(&fold.down);
        server.repairs += moved.repairs;
        let theta = server.factors.to_vector(&self.model);
        self.downlink.publish(&mut server.down, theta, &fold.down, Frames::NONE, key)?;
        self.end_if_done(&mut server);
        Ok(server)
    }

    pub(super) fn calibrate(&self, mut server: Server, fold: &Fold) -> Result<Server> {
        let all = fold.scores.value();
        if all.observed.count > 0 {
            let parameters = self.parameters(&server, &all)?;
            let mean = |cell| self.model.mean(&server.factors, self.model.place(cell));
            let counted = server.counted().into_iter();
            let means: Vec<(f64, u32)> = counted.map(|(cell, n)| (mean(cell), n)).collect();
            let settings = self.model.settings();
            server.calibration = Some(Calibration::new(settings, &all, parameters, &means));
        }
        server.phase = Phase::Over;
        Ok(server)
    }

    /// The number of parameters that the observed cells determine, one for each personal effect; 0
    /// where enough cells are held out.
    pub(super) fn parameters(&self, server: &Server, scores: &Scores) -> Result<usize> {
        if scores.held_out.count >= HELD_OUT_MIN {
            return Ok(0);
        }
        let own = if self.personal { server.clients } else { 0 };
        let cells = server.counted();
        let p = effective_parameters(&self.model, &server.factors, server.clients, &cells)?;
        Ok(p.ceil() as usize + own as usize)
    }

    /// Posterior uncertainty of the parameters, after the calibration.
    pub(super) fn uncertainty(&self, server: &Server) -> Result<Option<Uncertainty>> {
        let (n, cells) = (server.clients, server.counted());
        let of = |found| Uncertainty::new(&self.model, &server.factors, n, found, &cells);
        server.calibration.as_ref().map(of).transpose()
    }

    /// `M` in this round; `None` where each cell has the fewest copies.
    pub(super) fn copies_of(&self, server: &Server) -> Option<f64> {
        // Whether there is no noise of minibatches and codec, or it vanishes.
        let settles = self.has_memory() || server.amplification <= 1.0;
        let counted = match self.copies {
            Copies::Fewest => true,
            Copies::Clients => false,
            Copies::Auto => self.step == StepRule::Auto || settles,
        };
        (!counted).then(|| self.most_observed(server).max(f64::from(server.clients)))
    }

    /// The fewest copies of the most observed cell.
    pub(super) fn most_observed(&self, server: &Server) -> f64 {
        let most = server.counts.iter().copied().max().unwrap_or(1);
        f64::from(most.max(1)) * self.personal_factor()
    }

    /// The fewest copies of an observed cell with which the objective is sure to decrease.
    pub(super) fn fewest_copies(&self, server: &Server, place: usize) -> f64 {
        f64::from(server.counts[place]) * self.personal_factor()
    }

    /// γ_{k+1}.
    pub(super) fn gamma(&self, server: &Server, copies: Option<f64>) -> f64 {
        // A cell observed once has one copy.
        let least = copies.unwrap_or(self.personal_factor());
        let auto = auto_step(server.amplification, least);
        match self.step {
            StepRule::Auto => auto,
            StepRule::Given(schedule) => {
                let gamma = schedule.at(server.round);
                let is_cut = self.copies == Copies::Auto && server.amplification > 1.0;
                if is_cut && copies.is_none() { gamma.min(auto) } else { gamma }
            }
        }
    }

    /// Residuals of the union as a sparse table, with `m` copies or the fewest of each cell.
    pub(super) fn on_table(
        &self,
        server: &Server,
        on: &[f64],
        m: Option<f64>,
    ) -> Result<Residuals> {
        let cells = server.by_cell.iter().map(|place| {
            let place = *place as usize;
            (server.union[place], on[place], self.fewest_copies(server, place))
        });
        match m {
            None => Residuals::with_copies(&self.model, cells),
            Some(m) => Residuals::new(&self.model, cells.map(|(cell, on, _)| (cell, on)), m),
        }
    }
}

impl Server {
    /// Counts a client's cells; returns their indices in the union.
    pub(super) fn take_in(&mut self, cells: &[u64]) -> Vec<u32> {
        let known = self.union.len();
        let mut places = Vec::with_capacity(cells.len());
        for (i, cell) in cells.iter().enumerate() {
            let place = match self.find(*cell) {
                Some(place) => place,
                // Another observation of the client's new cell.
                None if i > 0 && cells[i - 1] == *cell => self.union.len() as u32 - 1,
                None => {
                    self.union.push(*cell);
                    self.counts.push(0);
                    self.union.len() as u32 - 1
                }
            };
            self.counts[place as usize] += 1;
            places.push(place);
        }
        if self.union.len() > known {
            self.by_cell.extend(known as u32..self.union.len() as u32);
            self.by_cell.sort_by_key(|place| self.union[*place as usize]);
        }
        places
    }

    /// Every observed cell and its number of observations, in the order of cells.
    fn counted(&self) -> Vec<(u64, u32)> {
        let places = self.by_cell.iter().map(|place| *place as usize);
        places.map(|place| (self.union[place], self.counts[place])).collect()
    }

    /// The index of an observed cell in the union.
    pub(super) fn find(&self, cell: u64) -> Option<u32> {
        let at = self.by_cell.binary_search_by_key(&cell, |place| self.union[*place as usize]);
        at.ok().map(|at| self.by_cell[at])
    }
}
