//! The settings that every method over channels has.

use super::ExchangeKind;
use crate::settings::{Budget, Weights};
use std::collections::BTreeMap;
use whimbrel_codec::channel::{Downlink, UpClient, Uplink};
use whimbrel_codec::{Codec, Scalar};

/// How an oracle's vectors travel, how clients are weighted, and when the run ends.
#[derive(Clone, Debug)]
pub struct Terms {
    /// Uplinks of one rule: everyone's, then those of clients with a codec of their own.
    pub uplinks: Vec<Uplink>,
    /// Clients with an uplink of their own: client id to index in `uplinks`.
    pub own_uplinks: BTreeMap<u32, u8>,
    /// The way down.
    pub downlink: Downlink,
    /// Where the uplinks' memories start.
    pub memories: FirstMemories,
    /// How clients are weighted.
    pub weights: Weights,
    /// When to stop.
    pub budget: Budget,
}

/// `h_{0,i}`.
#[derive(Clone, PartialEq, Debug)]
pub enum FirstMemories {
    /// The oracle's value at the first state: one counted exchange.
    Oracle,
    /// Zero.
    Zero,
    /// One vector for every client, known to both ends from the job.
    Given(Vec<f64>),
}

impl Terms {
    /// Whether both ends of the uplinks keep memories: all of them do, or none.
    pub fn has_memory(&self) -> bool {
        self.uplinks[0].has_memory()
    }

    /// Whether what goes up loses anything on the way, if only by rounding to 32 bits.
    pub(super) fn compresses_up(&self) -> bool {
        let rounds = |uplink: &Uplink| *uplink.codec() == Codec::ExactF32;
        self.uplinks.iter().any(|uplink| rounds(uplink) || uplink.omega() != Some(0.0))
    }

    /// Whether an exchange opens the memories.
    pub fn opens(&self) -> bool {
        self.has_memory() && self.memories == FirstMemories::Oracle
    }

    /// The memory that every client starts with, where the job gives one.
    pub(super) fn given_memory(&self) -> Option<&Vec<f64>> {
        match &self.memories {
            FirstMemories::Given(h_0) if self.has_memory() => Some(h_0),
            _ => None,
        }
    }

    /// A client's end of its uplink at enrolment.
    pub(super) fn up_client<T: Scalar>(&self) -> UpClient<T> {
        match self.given_memory() {
            Some(h_0) => UpClient { kept: h_0.iter().map(|h| T::narrow(*h)).collect() },
            None => self.uplinks[0].client(),
        }
    }

    /// The exchange that follows the first state.
    pub(super) fn after_first_state(&self) -> ExchangeKind {
        if self.opens() { ExchangeKind::OpenMemories } else { ExchangeKind::Round }
    }
}
