//! The server's half: who observed what, the field, and the completed table.

use super::settings::{Copies, FedMiss, InUse, Memory, StepRule, auto_step};
use super::state::{Fold, Phase, Server};
use crate::settings::Budget;
use whimbrel_codec::channel::Frames;
use whimbrel_core::{Error, Key, Result};
use whimbrel_models::lowrank::interval::HELD_OUT_MIN;
use whimbrel_models::lowrank::{
    Calibration, Ceiling, Exact, Push, Scores, Sparse, Uncertainty, effective_parameters,
};

/// A run in whose first rounds most observed cells had to be clipped, so many of them, stops: its
/// table lives outside the domain.
const REPAIRED_ROUNDS_MAX: u32 = 100;

impl FedMiss {
    /// `R_c = P(Y_c − ψ'(θ_0))`; clients whose upload was lost stay at zero.
    pub(super) fn open(&self, mut server: Server, fold: &Fold) -> Result<Server> {
        self.uplink(0, 1)?.collect_opening(&mut server.up, &fold.up);
        server.residuals += fold.residuals;
        match self.has_rounds() {
            true => server.phase = Phase::Fit,
            false => self.end_rounds(&mut server),
        }
        Ok(server)
    }

    /// What comes after the last round is about the table as it will be handed out.
    pub(super) fn end_rounds(&self, server: &mut Server) {
        server.phase = Phase::Calibrate;
        server.ceiling = self.ceiling_of(server);
    }

    /// What no estimate of a count goes beyond.
    pub(super) fn ceiling_of(&self, server: &Server) -> Option<Ceiling> {
        let found = || Ceiling::over(&self.model, &server.factors, server.union.iter().copied());
        server.ceiling.clone().or_else(|| self.ceiling.then(found).flatten())
    }

    pub(super) fn move_table(&self, mut server: Server, fold: &Fold, key: Key) -> Result<Server> {
        let copies = self.copies_of(&server)?;
        // Σ_c R_c + Σ_A (N_c/(b_c p_c)) Q_c;  R += Σ_A α_c Q_c               (Alg. 7, l. 18)
        let residual = self.uplink(0, 1)?.collect(&mut server.up, &fold.up, 1.0);
        server.residuals += fold.residuals;
        // H = ψ'(θ) − Ŝ + residual/M;  Ŝ += γ H;  θ = T(Ŝ)                    (l. 19 to 21)
        let push = self.on_table(&server, &residual, copies)?;
        let n = f64::from(server.clients);
        let gamma = self.gamma(&server, copies);
        let differ = copies == InUse::Counted;
        // One number per observation, sent as it is: no noise, and a step of one keeps none.
        let everyone = fold.heard == server.clients;
        let is_exact = everyone && server.amplification <= 1.0 && gamma == 1.0;
        let counted = match is_exact && !differ && self.downlink.is_exact() {
            true if !self.personal => Some(self.with_counts(&server, &residual)?),
            _ => None,
        };
        let exact = counted.as_ref().or((is_exact && differ).then_some(&push));
        let step = Push {
            push: &push,
            gamma,
            shrink: match copies {
                InUse::Same(copies) => n / copies,
                InUse::Counted => n,
            },
            exact: exact.map(|cells| Exact { cells, shrink: n }),
        };
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
        self.count_repairs(&mut server, moved.repairs)?;
        let theta = server.factors.to_vector(&self.model);
        self.downlink.publish(&mut server.down, theta, &fold.down, Frames::NONE, key)?;
        let done = match self.budget {
            Budget::Rounds(rounds) | Budget::Converged(rounds) => server.round >= rounds,
            Budget::Epochs(epochs) => server.epoch() >= epochs,
        };
        if done {
            self.end_rounds(&mut server);
        }
        Ok(server)
    }

    pub(super) fn calibrate(&self, mut server: Server, fold: &Fold) -> Result<Server> {
        let all = fold.scores.value();
        if all.observed.count > 0 {
            let parameters = self.parameters(&server, &all)?;
            server.calibration = Some(Calibration::new(self.model.settings(), &all, parameters));
        }
        server.phase = Phase::Over;
        Ok(server)
    }

    /// How many parameters the observed cells determine, where that is needed: personal effects
    /// are one each.
    pub(super) fn parameters(&self, server: &Server, scores: &Scores) -> Result<usize> {
        if scores.held_out.count >= HELD_OUT_MIN {
            return Ok(0);
        }
        let own = if self.personal { server.clients } else { 0 };
        let cells = server.counted();
        let p = effective_parameters(&self.model, &server.factors, server.clients, &cells)?;
        Ok(p.ceil() as usize + own as usize)
    }

    /// How sure the parameters are, where no held-out cells tell how far off the fit is.
    pub(super) fn uncertainty(&self, server: &Server) -> Result<Option<Uncertainty>> {
        let Some(calibration) = server.calibration.filter(|c| !c.calibrated) else {
            return Ok(None);
        };
        let (n, phi) = (server.clients, calibration.dispersion);
        Uncertainty::new(&self.model, &server.factors, n, phi, &server.counted()).map(Some)
    }

    /// M in this round.
    pub(super) fn copies_of(&self, server: &Server) -> Result<InUse> {
        let fewest = self.most_observed(server);
        let clients = fewest.max(f64::from(server.clients));
        match self.copies {
            Copies::Fewest => Ok(InUse::Counted),
            Copies::Memories if self.is_settling(server) => Ok(InUse::Counted),
            Copies::Clients | Copies::Memories => Ok(InUse::Same(clients)),
            Copies::Given(copies) if copies >= fewest => Ok(InUse::Same(copies)),
            Copies::Given(copies) => Err(Error::config(format!(
                "copies = {copies}, and the most observed cell counts {fewest:.3} times: a step could then increase the objective"
            ))
            .hint(format!("set copies to {} or more", fewest.ceil()))),
        }
    }

    /// Whether the noise of minibatches and codec vanishes, or there is none.
    fn is_settling(&self, server: &Server) -> bool {
        self.memory != Memory::Off || server.amplification <= 1.0
    }

    /// The largest M of a cell.
    pub(super) fn most_copies(&self, server: &Server, copies: InUse) -> f64 {
        match copies {
            InUse::Same(copies) => copies,
            InUse::Counted => self.most_observed(server),
        }
    }

    /// The fewest copies of the most observed cell.
    fn most_observed(&self, server: &Server) -> f64 {
        let most = server.counts.iter().copied().max().unwrap_or(1);
        f64::from(most.max(1)) * self.personal_factor()
    }

    /// The fewest copies of an observed cell that are sure to descend.
    pub(super) fn fewest_copies(&self, server: &Server, place: usize) -> f64 {
        f64::from(server.counts[place]) * self.personal_factor()
    }

    /// γ_{k+1}.
    pub(super) fn gamma(&self, server: &Server, copies: InUse) -> f64 {
        let auto = match copies {
            InUse::Same(copies) => auto_step(server.amplification, copies),
            // A cell that one client observed has but one copy of its own.
            InUse::Counted => auto_step(server.amplification, self.personal_factor()),
        };
        match self.step {
            StepRule::Auto => auto,
            StepRule::Given(schedule) => {
                let gamma = schedule.at(server.round);
                let is_cut = self.copies == Copies::Memories && server.amplification > 1.0;
                if is_cut && copies == InUse::Counted { gamma.min(auto) } else { gamma }
            }
        }
    }

    /// Residuals on the union of observed cells, where they belong in the table.
    pub(super) fn on_table(&self, server: &Server, on: &[f64], copies: InUse) -> Result<Sparse> {
        let InUse::Same(copies) = copies else { return self.with_counts(server, on) };
        let places = server.by_cell.iter().map(|place| *place as usize);
        Sparse::new(&self.model, places.map(|place| (server.union[place], on[place])), copies)
    }

    /// The same with the fewest copies that each cell may have.
    pub(super) fn with_counts(&self, server: &Server, on: &[f64]) -> Result<Sparse> {
        let places = server.by_cell.iter().map(|place| *place as usize);
        let cells =
            places.map(|place| (server.union[place], on[place], self.fewest_copies(server, place)));
        Sparse::with_copies(&self.model, cells)
    }

    fn count_repairs(&self, server: &mut Server, repairs: u64) -> Result<()> {
        server.repairs += repairs;
        server.repaired_rounds += u32::from(2 * repairs > server.union.len() as u64);
        if server.repaired_rounds < server.round.max(REPAIRED_ROUNDS_MAX) {
            return Ok(());
        }
        Err(Error::numerical(format!(
            "in each of the first {REPAIRED_ROUNDS_MAX} rounds most cells left the range of their means; lower the step, or use larger batches or more levels in the codec"
        ))
        .in_round(server.round))
    }
}

impl Server {
    /// Counts a client's cells; returns their places.
    pub(super) fn take_in(&mut self, cells: &[u64]) -> Vec<u32> {
        let known = self.union.len();
        let mut places = Vec::with_capacity(cells.len());
        for (i, cell) in cells.iter().enumerate() {
            let place = match self.find(*cell) {
                Some(place) => place,
                // A cell of its own that comes again.
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

    /// Every observed cell and how often it was, in the order of the cells.
    fn counted(&self) -> Vec<(u64, u32)> {
        let places = self.by_cell.iter().map(|place| *place as usize);
        places.map(|place| (self.union[place], self.counts[place])).collect()
    }

    /// The place of a cell that somebody observed.
    pub(super) fn find(&self, cell: u64) -> Option<u32> {
        let at = self.by_cell.binary_search_by_key(&cell, |place| self.union[*place as usize]);
        at.ok().map(|at| self.by_cell[at])
    }
}
