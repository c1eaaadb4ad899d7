//! Hyper-parameters of FedMissEM, and what is made of them.

use crate::settings::{Batch, Budget};
use crate::step::Schedule;
use whimbrel_codec::Codec;
use whimbrel_codec::channel::{Downlink, em_alpha};
use whimbrel_core::{Error, Result};
pub use whimbrel_models::lowrank::PERSONAL_MAX;
use whimbrel_models::lowrank::{Factors, Family, LowRank};

/// Hyper-parameters.
pub struct FedMiss {
    /// The model.
    pub model: LowRank,
    /// `γ_k`.
    pub step: StepRule,
    /// When to stop; an epoch is as many residuals as cells are observed, over all clients.
    pub budget: Budget,
    /// Which observed cells an upload carries; drawn without replacement.
    pub batch: Batch,
    /// `M`.
    pub copies: Copies,
    /// Compression of the residuals of a minibatch; unbiased.
    pub codec: Codec,
    /// The memories `R_c`.
    pub memory: Memory,
    /// Whether memories start at the residuals of the first factors (one counted exchange).
    pub open_memories: bool,
    /// Whether each client has an effect of its own, which never leaves it.
    pub personal: bool,
    /// The planned mean probability of taking part; only [`StepRule::Auto`] and
    /// [`Copies::Memories`] use it.
    pub participation: f64,
    /// Where the table starts, as the parameters travel; near the mean of all cells without.
    pub start: Option<Vec<f64>>,
    /// What the fit is mixed with before it is judged and handed out.
    pub mix: Option<Mix>,
    /// The way down, for vectors of [`LowRank::coordinates_len`] numbers.
    pub downlink: Downlink,
}

/// A share of the fit and the rest of a table of effects alone, `θ` by `θ`: for tables of which it is
/// not clear which of the two is better. The deviance is convex in `θ`, so that of the mixture is at
/// most the mixture of both, but for the floor and the ceiling that means are kept between.
#[derive(Clone, PartialEq, Debug)]
pub struct Mix {
    /// The share of the fit.
    pub share: f64,
    /// The other table; of rank 0.
    pub plain: Factors,
}

/// How the step is chosen.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum StepRule {
    /// By the job.
    Given(Schedule),
    /// From batch sizes, codec, participation and copies: see [`auto_step`].
    Auto,
}

impl StepRule {
    /// The copies that go with it.
    pub fn copies(&self) -> Copies {
        match self {
            Self::Given(_) => Copies::Memories,
            Self::Auto => Copies::Fewest,
        }
    }
}

/// `M`, the number of complete tables that EM imagines.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Copies {
    /// One per client, as in the paper, and never fewer than the most observed cell has
    /// observations.
    Clients,
    /// In each cell as many as it has observations, and next to none where nobody observed: the
    /// longest steps that are sure to descend.
    Fewest,
    /// The fewest where there is no noise, or memories make it vanish, with a given step cut to what
    /// [`auto_step`] is; one per client otherwise.
    Memories,
    /// So many; at least as many as the most observed cell has observations.
    Given(f64),
}

/// The copies of one round.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum InUse {
    /// So many in every cell.
    Same(f64),
    /// The fewest of each cell.
    Counted,
}

/// What both ends remember of a client's residuals.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Memory {
    /// A memory with step `1/(1 + omega)` of the client's own batch.
    Auto,
    /// A memory with this step, in (0, 1].
    Alpha(f64),
    /// None: the noise of minibatches and codec then never vanishes.
    Off,
}

impl FedMiss {
    /// A fit with full batches and exact messages both ways, of everyone in every round: what the
    /// stages around a fit compare models by.
    pub fn exact(model: LowRank, rounds: u32) -> Self {
        let downlink = Downlink::exact(model.coordinates_len());
        Self {
            model,
            step: StepRule::Auto,
            budget: Budget::Rounds(rounds),
            batch: Batch::Full,
            copies: Copies::Fewest,
            codec: Codec::Exact,
            memory: Memory::Off,
            open_memories: false,
            personal: false,
            participation: 1.0,
            start: None,
            mix: None,
            downlink,
        }
    }

    /// Refuses settings that do not go together, with the reason.
    pub fn check(&self) -> Result<()> {
        if let Batch::Sample { replacement, local_steps, size } = self.batch {
            if replacement || local_steps != 1 {
                return Err(Error::config(
                    "minibatches of cells are drawn once a round and without replacement",
                )
                .hint("leave out replacement and local_steps in [method]"));
            }
            if size == 0 {
                return Err(Error::config("batch = 0 leaves nothing to send"));
            }
        }
        if !self.codec.is_unbiased() {
            return Err(Error::config(format!(
                "{} is biased, and residuals are sent without error feedback",
                self.codec.name()
            ))
            .hint("choose an unbiased codec in [uplink], such as dithering"));
        }
        if let Memory::Alpha(alpha) = self.memory
            && !(alpha > 0.0 && alpha <= 1.0)
        {
            return Err(Error::config(format!("alpha = {alpha} is not in (0, 1]"))
                .hint("alpha = \"auto\" is 1/(1 + omega) of the codec"));
        }
        if let Copies::Given(copies) = self.copies
            && !(copies > 0.0 && copies.is_finite())
        {
            return Err(Error::config(format!("copies = {copies} is not a positive number")));
        }
        if let Some(Mix { share, plain }) = &self.mix {
            let lengths = [plain.row_effects.len(), plain.column_effects.len()];
            let fits = lengths == [self.model.rows(), self.model.columns()] && plain.rank == 0;
            if !(fits && *share > 0.0 && *share <= 1.0) {
                return Err(Error::config("the table to mix the fit with is not one of effects"));
            }
        }
        if self.downlink.replaces_state() {
            return Err(Error::config(
                "a degraded downlink replaces the server's state by what clients decode, and the factors are not that state",
            )
            .hint("set rule = \"exact\" or \"preserved\" in [downlink]"));
        }
        Ok(())
    }

    /// `b_c`, for a client with so many observed cells.
    pub fn batch_of(&self, cells: usize) -> usize {
        self.batch.expectations(cells as u64) as usize
    }

    /// `α_c`; none without memories.
    pub fn alpha_of(&self, cells: usize) -> Option<f64> {
        match self.memory {
            Memory::Auto => Some(em_alpha(self.codec.omega(self.batch_of(cells)).unwrap_or(0.0))),
            Memory::Alpha(alpha) => Some(alpha),
            Memory::Off => None,
        }
    }

    /// `(N_c/b_c)(1 + ω(b_c))/p`: by how much sampling and compression blow the square of one
    /// upload up.
    pub fn amplification_of(&self, cells: usize) -> f64 {
        let b_c = self.batch_of(cells);
        let omega = self.codec.omega(b_c).unwrap_or(0.0);
        cells as f64 / b_c as f64 * (1.0 + omega) / self.participation
    }

    /// How many observations one observation of a cell counts for, at most: a personal effect can
    /// raise `ψ''` that much over its value without the effect.
    pub(super) fn personal_factor(&self) -> f64 {
        match self.model.family() {
            Family::Poisson | Family::Bernoulli if self.personal => {
                whimbrel_core::math::exp(PERSONAL_MAX)
            }
            _ => 1.0,
        }
    }
}

/// The step that a job gets without asking: one without noise, else `M/(2A)` and at most 1/2, with
/// `A` the largest amplification of a client and `M` the copies of a cell that was observed once.
///
/// A cell of a minibatch moves by `γ (A/M)` times the difference between its residual and the
/// memory. As for SAGA, whose step is a constant over the smoothness of one summand, the memories
/// keep up as long as that factor is well below one (Gaussian fits diverged from 0.8 on); 1/2
/// leaves room for the codec's noise.
pub fn auto_step(amplification: f64, copies: f64) -> f64 {
    if amplification <= 1.0 { 1.0 } else { (FACTOR_MAX * copies / amplification).min(0.5) }
}

/// The largest `γ A/M` at which memories are taken to keep up.
pub(super) const FACTOR_MAX: f64 = 0.5;
