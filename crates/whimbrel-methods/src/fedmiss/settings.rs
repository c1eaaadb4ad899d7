//! Hyper-parameters of FedMissEM, and what is made of them.

use crate::settings::{Batch, Budget};
use crate::step::Schedule;
use std::collections::BTreeMap;
use whimbrel_codec::Codec;
use whimbrel_codec::channel::{Auto, Downlink, UpRule, Uplink, em_alpha};
use whimbrel_core::{Error, Result};
pub use whimbrel_models::lowrank::PERSONAL_MAX;
use whimbrel_models::lowrank::{Family, LowRank};

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
    /// Compression of the residuals of a minibatch, unbiased: everyone's codec, then those of
    /// clients with one of their own.
    pub codecs: Vec<Codec>,
    /// Clients with a codec of their own, by id.
    pub own_codecs: BTreeMap<u32, u8>,
    /// The memories `R_c`.
    pub rule: UpRule<Auto>,
    /// Whether memories start at the residuals of the first factors (one counted exchange).
    pub open_memories: bool,
    /// Whether each client has an effect of its own, which never leaves it.
    pub personal: bool,
    /// The planned mean probability of taking part; only [`StepRule::Auto`] and
    /// [`Copies::Auto`] use it.
    pub participation: f64,
    /// Where the table starts, as the parameters travel; near the mean of all cells without.
    pub start: Option<Vec<f64>>,
    /// Whether estimates of unobserved counts are capped, see
    /// [`Ceiling`](whimbrel_models::lowrank::Ceiling).
    pub ceiling: bool,
    /// Whether `T` is carried out to the end in every round and nothing beside it, as in the paper: no
    /// reactivated components.
    pub full_t: bool,
    /// The way down, for vectors of [`LowRank::coordinates_len`] numbers.
    pub downlink: Downlink,
}

/// How the step is chosen.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum StepRule {
    /// By the job.
    Given(Schedule),
    /// From batch sizes, codec, participation and copies: see [`auto_step`].
    Auto,
}

/// `M`, the number of completed-data copies.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub enum Copies {
    /// The fewest where the step is automatic, where there is no noise, or where memories make it
    /// vanish, with a given step cut to what [`auto_step`] is; one per client otherwise.
    #[default]
    Auto,
    /// One per client, as in the paper, and never fewer than the most observed cell has
    /// observations.
    Clients,
    /// In each cell as many as it has observations, and next to none in unobserved ones: the
    /// longest steps that are sure to descend.
    Fewest,
}

impl FedMiss {
    /// Whether an exchange opens the memories.
    pub(super) fn opens(&self) -> bool {
        self.open_memories && self.has_memory()
    }

    /// Whether both ends remember a client's residuals: without, the noise of minibatches and codec never
    /// vanishes.
    pub(super) fn has_memory(&self) -> bool {
        matches!(self.rule, UpRule::Memory { .. })
    }

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
            codecs: vec![Codec::Exact],
            own_codecs: BTreeMap::new(),
            rule: UpRule::Plain,
            open_memories: false,
            personal: false,
            participation: 1.0,
            start: None,
            ceiling: true,
            full_t: false,
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
        if let Some(biased) = self.codecs.iter().find(|codec| !codec.is_unbiased()) {
            return Err(Error::config(format!(
                "{} is biased, and residuals are sent without error feedback",
                biased.name()
            ))
            .hint("choose an unbiased codec in [uplink], such as dithering"));
        }
        if self.rule == UpRule::Feedback {
            let what = "fedmiss sends residuals without error feedback";
            return Err(Error::config(what).hint("write rule = \"memory\" in [uplink]"));
        }
        self.uplink(0, 1)?;
        if self.downlink.replaces_state() {
            return Err(Error::config(
                "a degraded downlink replaces the server's state by what clients decode, and the factors are not that state",
            )
            .hint("set rule = \"exact\" or \"preserved\" in [downlink]"));
        }
        Ok(())
    }

    /// `b_c`, by the client's number of observed cells.
    pub fn batch_of(&self, cells: usize) -> usize {
        self.batch.expectations(cells as u64) as usize
    }

    /// The channel of an upload of this length with one of the codecs: `Quant` and `α_c`.
    pub fn uplink(&self, codec: u8, values: usize) -> Result<Uplink> {
        let codec = self.codecs.get(usize::from(codec));
        let codec = codec.ok_or_else(|| Error::peer("there is no codec of that number"))?;
        let alpha = em_alpha(codec.omega(values).unwrap_or(0.0));
        Uplink::new(codec.clone(), self.rule.settled(alpha), values)
    }

    /// `(N_c/b_c)(1 + ω(b_c))/p`: by how much sampling and compression increase the mean square of
    /// one upload.
    pub fn amplification_of(&self, codec: u8, cells: usize) -> Result<f64> {
        let b_c = self.batch_of(cells);
        let omega = self.uplink(codec, b_c)?.omega().unwrap_or(0.0);
        Ok(cells as f64 / b_c as f64 * (1.0 + omega) / self.participation)
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
