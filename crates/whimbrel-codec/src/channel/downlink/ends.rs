//! The states of both ends of a downlink, and their summary over a round.

use super::Track;
use crate::{Packet, Scalar};
use whimbrel_core::sum::ExactSum;
use whimbrel_core::{Key, wire};

/// The server's end.
#[derive(Clone, Debug, PartialEq)]
pub struct DownServer<T = f64> {
    /// The key of the next messages.
    pub(super) key: Key,
    pub(super) tracks: Vec<Track<T>>,
    /// `E` of error feedback.
    pub(super) error: Vec<T>,
    /// The state before the last step (detached, ghost).
    pub(super) previous: Vec<T>,
    /// The last ghost's base and packet.
    pub(super) ghost: Option<(Vec<T>, Packet)>,
    /// The distance of clients from the state after that packet.
    pub(super) ghost_spread: Option<Spread>,
    pub(super) single: Option<Single<T>>,
}

/// The server's part of a single memory.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Single<T> {
    /// `Σ H_i` over all enrolled clients.
    pub(super) sum: Vec<f64>,
    pub(super) clients: f64,
    /// The mean at the last reset, from which absent clients start.
    pub(super) reset_to: Vec<T>,
    pub(super) resets: u32,
    pub(super) rounds: u32,
}

/// The server's record of one client.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct DownPeer<T = f64> {
    pub(super) id: u32,
    /// Number of messages of its track that it holds, or of resets it has received; `None` before first
    /// contact.
    pub(super) version: Option<u64>,
    /// `H_i`, for memories per client.
    pub(super) memory: Vec<T>,
    /// The state at which it computes, for memories per client with frames.
    pub(super) local: Vec<T>,
    /// The last packet, for a single memory.
    pub(super) sent: Option<Packet>,
    /// The client's distance from the server's state after the last message, if known.
    pub(super) spread: Option<Spread>,
}

impl<T> DownPeer<T> {
    /// The state at which the client computes in the current exchange, for memories per client with frames.
    pub fn local(&self) -> &[T] {
        &self.local
    }

    pub fn id(&self) -> u32 {
        self.id
    }
}

/// The client's end: its replica or memory.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct DownClient<T = f64> {
    pub(super) memory: Vec<T>,
}

/// Sums over the clients whose uploads were accepted in a round.
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
    /// Number of accepted uploads.
    pub fn count(&self) -> u32 {
        self.count
    }
}

/// Squared distances of a client, or means over clients, from the server's state.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    /// `||ŵ_i − w||²`.
    pub local2: f64,
    /// `||w − H_i||²`, with a memory.
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

/// The distances, from `w − H` and its decoded compression.
pub(super) fn spread<T: Scalar>(omega: &[T], value: &[T]) -> Spread {
    let gap = |(o, v): (&T, &T)| v.wide() - o.wide();
    let local2 = omega.iter().zip(value).map(gap).map(|gap| gap * gap).sum();
    Spread { local2, memory2: Some(T::norm2_squared(omega)) }
}
