//! The settings that every method over channels has.

use super::ExchangeKind;
use crate::settings::{Budget, Privacy, Weights};
use std::collections::BTreeMap;
use whimbrel_codec::channel::{Downlink, UpClient, Uplink};
use whimbrel_codec::grid::BLOCK;
use whimbrel_codec::{Codec, Scalar};

/// Channels, weights and budget of a method.
#[derive(Clone, Debug)]
pub struct Terms {
    /// Uplinks of one rule: the common one, then those of single clients.
    pub uplinks: Vec<Uplink>,
    /// Uplinks of single clients: client id to index in `uplinks`.
    pub own_uplinks: BTreeMap<u32, u8>,
    pub downlink: Downlink,
    /// The start of the uplinks' memories.
    pub memories: FirstMemories,
    pub weights: Weights,
    /// The end of the run.
    pub budget: Budget,
    /// Rules on what messages may reveal.
    pub privacy: Privacy,
}

/// `h_{0,i}`.
#[derive(Clone, PartialEq, Debug)]
pub enum FirstMemories {
    /// The oracle's value at the first state, sent in one counted exchange.
    Oracle,
    Zero,
    /// One vector for all clients, known to both ends from the job.
    Given(Vec<f64>),
}

impl Terms {
    /// The most rounds of the algorithm; `first` if another round makes the first state.
    pub fn rounds_max(&self, first: bool) -> Option<u32> {
        self.budget.rounds_max().map(|rounds| rounds.saturating_sub(u32::from(first)))
    }

    /// Whether the uplinks have memories; either all have or none has.
    pub fn has_memory(&self) -> bool {
        self.uplinks[0].has_memory()
    }

    /// Whether uploads are lossy, if only by rounding to 32 bits.
    pub(crate) fn compresses_up(&self) -> bool {
        let rounds = |uplink: &Uplink| *uplink.codec() == Codec::ExactF32;
        self.uplinks.iter().any(|uplink| rounds(uplink) || uplink.omega() != Some(0.0))
    }

    /// Ends the description of an upload's content in disclosures.
    pub(crate) fn compressed(&self) -> &'static str {
        if self.compresses_up() { ", compressed" } else { "" }
    }

    /// The most bytes of an upload in a round, given those of the vector itself.
    pub(crate) fn upload_bytes(&self, whole: usize) -> usize {
        let of = |uplink: &Uplink| match uplink.codec() {
            Codec::Exact | Codec::ExactF32 => whole,
            // Words of one width, and 16 bytes for each block.
            Codec::Grid(grid) => {
                let dimension = uplink.dimension();
                let bits = grid.bits() as usize;
                64 + (dimension * bits).div_ceil(8) + 16 * dimension.div_ceil(BLOCK)
            }
            // No codec writes twice the bytes of the vector itself.
            _ => 2 * whole,
        };
        self.uplinks.iter().map(of).max().unwrap_or(whole)
    }

    /// The most bytes of an upload that opens a memory, given those of the vector itself.
    pub(crate) fn opening_bytes(&self, whole: usize) -> usize {
        let of = |uplink: &Uplink| uplink.grid().map_or(whole, |_| 64 + 8 * uplink.dimension());
        self.uplinks.iter().map(of).max().unwrap_or(whole)
    }

    /// Whether an exchange opens the memories.
    pub fn opens(&self) -> bool {
        self.has_memory() && self.memories == FirstMemories::Oracle
    }

    /// The first memory of all clients, if the job gives one.
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
