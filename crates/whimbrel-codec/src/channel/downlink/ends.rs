//! What the two ends of a downlink keep, and what a round tells the server about them.

use super::Track;
use crate::{Packet, Scalar};
use whimbrel_core::sum::ExactSum;
use whimbrel_core::{Key, wire};

/// What the server keeps once.
#[derive(Clone, Debug, PartialEq)]
pub struct DownServer<T = f64> {
    /// Where the next messages draw from.
    pub(super) key: Key,
    pub(super) tracks: Vec<Track<T>>,
    /// `E` of error feedback.
    pub(super) error: Vec<T>,
    /// The state before the last step (detached, ghost).
    pub(super) previous: Vec<T>,
    /// The last ghost's base and packet.
    pub(super) ghost: Option<(Vec<T>, Packet)>,
    /// How far that packet leaves clients from the state.
    pub(super) ghost_spread: Option<Spread>,
    pub(super) single: Option<Single<T>>,
}

/// The server's end of one mean memory.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Single<T> {
    /// `Σ H_i` over everyone enrolled.
    pub(super) sum: Vec<f64>,
    pub(super) clients: f64,
    /// The mean at the last reset: what a client that was absent starts from.
    pub(super) reset_to: Vec<T>,
    pub(super) resets: u32,
    pub(super) rounds: u32,
}

/// What the server keeps per client.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct DownPeer<T = f64> {
    pub(super) id: u32,
    /// Messages of its track that it holds, or resets it has seen; none before first contact.
    pub(super) version: Option<u64>,
    /// `H_i`, where each client has its own on both ends.
    pub(super) memory: Vec<T>,
    /// What it computes at, where that is its own and frames need it.
    pub(super) local: Vec<T>,
    /// The last packet, where the server sums what clients decode.
    pub(super) sent: Option<Packet>,
    /// How far the last message left the client from the server's state, where that is known.
    pub(super) spread: Option<Spread>,
}

impl<T> DownPeer<T> {
    /// What the client computes at in the exchange under way, where it alone does.
    pub fn local(&self) -> &[T] {
        &self.local
    }

    /// The client's number.
    pub fn id(&self) -> u32 {
        self.id
    }
}

/// What the client keeps: its replica or memory.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct DownClient<T = f64> {
    pub(super) memory: Vec<T>,
}

/// What accepted uploads say about the messages that went down.
#[derive(Clone, Debug, PartialEq)]
pub struct DownFold {
    pub(super) groups: Vec<u32>,
    pub(super) sent: ExactSum,
    pub(super) spread: ExactSum,
    pub(super) spread_count: u32,
    pub(super) memory_count: u32,
    pub(super) count: u32,
}

impl DownFold {
    /// How many uploads it holds.
    pub fn count(&self) -> u32 {
        self.count
    }
}

/// How far a client, or clients on average, computed from the server's state.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    /// `||ŵ_i − w||²`.
    pub local2: f64,
    /// `||w − H_i||²`, where there is a memory.
    pub memory2: Option<f64>,
}

wire!(Spread { local2, memory2 });

wire!(DownServer<T: Scalar> { key, tracks, error, previous, ghost, ghost_spread, single });
wire!(Single<T: Scalar> { sum, clients, reset_to, resets, rounds });
wire!(DownPeer<T: Scalar> { id, version, memory, local, sent, spread });
wire!(DownClient<T: Scalar> { memory });
wire!(DownFold { groups, sent, spread, spread_count, memory_count, count });

impl<T: Scalar> Single<T> {
    pub(super) fn mean(&self) -> Vec<T> {
        self.sum.iter().map(|s| T::narrow(s / self.clients)).collect()
    }
}

/// From `w − H` and what was sent of it.
pub(super) fn spread<T: Scalar>(omega: &[T], value: &[T]) -> Spread {
    let gap = |(o, v): (&T, &T)| v.wide() - o.wide();
    let local2 = omega.iter().zip(value).map(gap).map(|gap| gap * gap).sum();
    Spread { local2, memory2: Some(T::norm2_squared(omega)) }
}
