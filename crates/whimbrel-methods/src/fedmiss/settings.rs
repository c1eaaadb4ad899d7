//! Hyper-parameters of FedMissEM, and quantities derived from them.

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
    pub model: LowRank,
    /// `γ_k`.
    pub step: StepRule,
    /// An epoch has as many residuals as cells are observed, over all clients.
    pub budget: Budget,
    /// The observed cells of an upload; drawn without replacement.
    pub batch: Batch,
    /// `M`.
    pub copies: Copies,
    /// Unbiased compression of the residuals of a minibatch: the common codec, then those of single
    /// clients.
    pub codecs: Vec<Codec>,
    /// The codecs of single clients: client id to index in `codecs`.
    pub own_codecs: BTreeMap<u32, u8>,
    /// The memories `R_c`.
    pub rule: UpRule<Auto>,
    /// Whether memories start at the residuals of the first factors (one counted exchange).
    pub open_memories: bool,
    /// Whether each client has a personal effect, which never leaves it.
    pub personal: bool,
    /// The planned mean probability of taking part; used by [`StepRule::Auto`] and [`Copies::Auto`].
    pub participation: f64,
    /// The first parameters in the form of messages; default: near the mean of all cells.
    pub start: Option<Vec<f64>>,
    /// Whether estimates of unobserved counts are capped, see
    /// [`Ceiling`](whimbrel_models::lowrank::Ceiling).
    pub ceiling: bool,
    /// Whether every round computes `T` to convergence and reactivates no components, as in the paper.
    pub full_t: bool,
    /// The downlink, for vectors of [`LowRank::coordinates_len`] numbers.
    pub downlink: Downlink,
}

/// The step size.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum StepRule {
    Given(Schedule),
    /// From batch sizes, codec, participation and copies: see [`auto_step`].
    Auto,
}

/// `M`, the number of completed-data copies.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub enum Copies {
    /// The fewest where the step is automatic, where there is no noise, or where memories make it
    /// vanish, with a given step reduced to [`auto_step`]; otherwise one per client.
    #[default]
    Auto,
    /// One per client, as in the paper, and at least the observations of the most observed cell.
    Clients,
    /// In each cell the number of its observations, and almost none in unobserved cells: the longest
    /// steps that are sure to decrease the objective.
    Fewest,
}

impl FedMiss {
    /// Whether an exchange opens the memories.
    pub(super) fn opens(&self) -> bool {
        self.open_memories && self.has_memory()
    }

    /// Whether both ends keep memories of a client's residuals, which make the noise of minibatches and
    /// codec vanish.
    pub(super) fn has_memory(&self) -> bool {
        matches!(self.rule, UpRule::Memory { .. })
    }

    /// A fit with full batches, exact messages both ways and everyone in every round, for the comparison
    /// of models.
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

    /// Refuses incompatible settings.
    pub fn check(&self) -> Result<()> {
        if let Batch::Sample { replacement, local_steps, size } = self.batch {
            if replacement || local_steps != 1 {
                return Err(Error::config(
                    "minibatches of cells are drawn once a round and without replacement",
                )
                .hint("leave out replacement and local_steps in [method]"));
            }
            if size == 0 {
                return Err(Error::config("batch = 0 is an empty minibatch"));
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

    /// The channel of an upload of this length: `Quant` and `α_c`.
    pub fn uplink(&self, codec: u8, values: usize) -> Result<Uplink> {
        let codec = self.codecs.get(usize::from(codec));
        let codec = codec.ok_or_else(|| Error::peer("unknown number of a codec"))?;
        let alpha = em_alpha(codec.omega(values).unwrap_or(0.0));
        Uplink::new(codec.clone(), self.rule.settled(alpha), values)
    }

    /// `(N_c/b_c)(1 + ω(b_c))/p`: the factor by which sampling and compression increase the mean square
    /// of one upload.
    pub fn amplification_of(&self, codec: u8, cells: usize) -> Result<f64> {
        let b_c = self.batch_of(cells);
        let omega = self.uplink(codec, b_c)?.omega().unwrap_or(0.0);
        Ok(cells as f64 / b_c as f64 * (1.0 + omega) / self.participation)
    }

    /// The largest factor by which a personal effect can increase `ψ''` of a cell: so many copies does
    /// one observation need.
    pub(super) fn personal_factor(&self) -> f64 {
        let curved = self.model.family() != Family::Gaussian;
        if self.personal && curved { whimbrel_core::math::exp(PERSONAL_MAX) } else { 1.0 }
    }
}

/// The default step: one without noise, else `M/(2A)` and at most 1/2, with the largest amplification
/// `A` of a client and the copies `M` of a cell observed once.
///
/// A cell of a minibatch moves by `γ (A/M)` times the difference between its residual and the
/// memory. As for SAGA, whose step is a constant over the smoothness of one summand, memories converge
/// as long as that factor is well below one (Gaussian fits diverged from 0.8 on); 1/2 leaves room for
/// the codec's noise.
pub fn auto_step(amplification: f64, copies: f64) -> f64 {
    if amplification <= 1.0 { 1.0 } else { (FACTOR_MAX * copies / amplification).min(0.5) }
}

/// The largest `γ A/M` at which memories converge.
const FACTOR_MAX: f64 = 0.5;
