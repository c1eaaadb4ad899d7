//! The published vector of FedEM.

use whimbrel_codec::channel::{Downlink, Uplink};
use whimbrel_core::{Error, Result};
use whimbrel_models::LatentModel;

/// The published vector.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Form {
    /// `(Ŝ, T(Ŝ))`, as in the paper.
    #[default]
    Pair,
    /// `Ŝ`; the client computes `T(Ŝ)`.
    State,
    /// `T(Ŝ)`; the oracle is `s̄_i` itself.
    Lean,
}

impl Form {
    /// The lengths of its parts, which differ in scale and are compressed one by one.
    pub fn blocks<M: LatentModel>(self, model: &M) -> Vec<usize> {
        match self {
            Self::Pair => vec![model.statistic_len(), model.coordinates_len()],
            Self::State | Self::Lean => vec![self.published_len(model)],
        }
    }

    /// Its length.
    pub fn published_len<M: LatentModel>(self, model: &M) -> usize {
        match self {
            Self::Pair => model.statistic_len() + model.coordinates_len(),
            Self::State => model.statistic_len(),
            Self::Lean => model.coordinates_len(),
        }
    }

    /// Refuses channels over which the form cannot run.
    pub fn check(self, uplink: &Uplink, downlink: &Downlink) -> Result<()> {
        if self == Self::Lean && !uplink.has_memory() {
            return Err(Error::config(
                "the lean form uploads whole statistics, so without memories an absent client would drop out of the estimate",
            )
            .hint("set rule = \"memory\" in [uplink], or form = \"pair\" in [method]"));
        }
        if self == Self::State || !downlink.replaces_state() {
            return Ok(());
        }
        let published = if self == Self::Pair { "the pair (S, theta)" } else { "theta" };
        Err(Error::config(format!(
            "a degraded downlink replaces the server's state by what clients decode, and {published} is not that state"
        ))
        .hint("set form = \"state\" in [method]"))
    }
}
