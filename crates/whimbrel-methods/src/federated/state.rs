//! States and messages of the loop, around those of the oracle.

use super::PartScores;
use crate::settings::{ROUNDING, SMALL, SMALL_ROUNDS};
use whimbrel_codec::channel::{
    DownClient, DownFold, DownMessage, DownPeer, DownServer, GridNote, Spread, UpClient, UpFold,
    UpServer,
};
use whimbrel_codec::{Packet, Scalar};
use whimbrel_core::shared::Tail;
use whimbrel_core::wire::{put_varint, take_varint};
use whimbrel_core::{Error, Result, Shared, Wire, wire};

/// The kinds of exchange.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum ExchangeKind {
    /// Everyone sends its value exactly; the first state is made from the mean.
    FirstState,
    /// Everyone sends its value at the first state exactly, where its memory starts.
    OpenMemories,
    /// A round of the algorithm.
    Round,
}

impl ExchangeKind {
    fn from_number(number: u8) -> Result<Self> {
        match number {
            0 => Ok(Self::FirstState),
            1 => Ok(Self::OpenMemories),
            2 => Ok(Self::Round),
            other => Err(Error::peer(format!("{other} is not a kind of exchange"))),
        }
    }
}

impl Wire for ExchangeKind {
    fn put(&self, out: &mut Vec<u8>) {
        out.push(*self as u8);
    }
    fn take(from: &mut &[u8]) -> Result<Self> {
        Self::from_number(u8::take(from)?)
    }
}

/// The global state.
#[derive(Clone, Debug)]
pub struct Server<G, T = f64> {
    /// The kind of the next exchange.
    pub kind: ExchangeKind,
    pub round: u32,
    pub global: G,
    /// `N`.
    pub total: f64,
    /// The rows of all enrolled clients.
    pub rows: u64,
    /// The number of enrolled clients.
    pub clients: u32,
    /// `Σ n_i h_i`.
    pub up: UpServer,
    /// The server's end of the downlink.
    pub down: DownServer<T>,
    /// The squared norm of the last estimate.
    pub update_norm2: Option<f64>,
    /// The largest squared norm so far.
    pub update_norm2_max: f64,
    /// Consecutive rounds with a small estimate.
    pub small_rounds: u32,
    /// `E||ŵ_i − w||²` and `E||w − H_i||²` of the last round.
    pub spread: Option<Spread>,
    /// The rows behind all uploads so far.
    pub rows_used: u64,
    /// The bytes of a ghost's packets, over all accepted uploads.
    pub ghost_bytes: u64,
    /// The blocks that clients withheld so far because too few rows determine them.
    pub withheld: u64,
}

impl<G, T> Server<G, T> {
    /// Records the squared norm of a round's estimate; `state2` is that of the state.
    pub(super) fn note_update(&mut self, norm2: f64, state2: f64) {
        self.update_norm2 = Some(norm2);
        self.update_norm2_max = self.update_norm2_max.max(norm2);
        let is_small =
            norm2 <= SMALL * SMALL * self.update_norm2_max || norm2 <= ROUNDING * ROUNDING * state2;
        self.small_rounds = if is_small { self.small_rounds + 1 } else { 0 };
    }

    /// Whether the last updates were all small.
    pub fn has_converged(&self) -> bool {
        self.small_rounds >= SMALL_ROUNDS
    }

    /// The norm of the last estimate relative to the largest so far.
    pub fn update_relative(&self) -> Option<f64> {
        let most = self.update_norm2_max;
        self.update_norm2.map(|norm2| if most > 0.0 { (norm2 / most).sqrt() } else { 0.0 })
    }

    /// Passes over the pooled rows.
    pub fn epoch(&self) -> f64 {
        self.rows_used as f64 / self.rows.max(1) as f64
    }
}

/// The server's record of one client.
#[derive(Clone, Debug)]
pub struct Peer<R, T = f64> {
    /// `n_i`.
    pub weight: f64,
    pub rows: u64,
    /// The index of its uplink.
    pub uplink: u8,
    /// The oracle's record.
    pub record: R,
    /// The server's end of its downlink.
    pub down: DownPeer<T>,
}

/// A client's state.
#[derive(Clone, Debug)]
pub struct Client<W, T = f64> {
    /// `h_i` or `e_i`.
    pub up: UpClient<T>,
    /// `H_i` or a replica.
    pub down: DownClient<T>,
    /// The oracle's state; never leaves the client.
    pub own: W,
}

/// A client's message at enrolment.
#[derive(Clone, Debug)]
pub struct Enrolment<S> {
    pub rows: u64,
    /// The oracle's part.
    pub summary: S,
}

/// The message to a client.
#[derive(Clone, Debug)]
pub struct Down<N, P, T: Scalar = f64> {
    pub kind: ExchangeKind,
    /// The index of the uplink to answer on.
    pub uplink: u8,
    /// Broadcast part.
    pub note: Option<N>,
    /// Part for this client.
    pub private: P,
    /// The grid to upload on, if there is one.
    pub grid: Option<GridNote>,
    /// The published vector, encoded by the downlink; many clients get the same bytes.
    pub state: Shared<DownMessage<T>>,
}

/// The message from a client.
#[derive(Clone, Debug)]
pub struct Up {
    /// The kind of exchange that it answers.
    pub kind: ExchangeKind,
    /// `C_up(Δ_i)`, or an opening value sent exactly.
    pub packet: Packet,
    /// The number of blocks that the client withheld because too few rows determine them.
    pub withheld: u32,
}

/// The uploads of one exchange.
#[derive(Clone, Debug)]
pub struct Fold {
    pub kind: ExchangeKind,
    /// One sum, or one for each group of clients that share a frame.
    pub up: Vec<UpFold>,
    /// Data for frames of single uploads; empty if uploads share a frame.
    pub moments: Vec<f64>,
    pub down: DownFold,
    /// The rows behind the uploads.
    pub rows_used: u64,
    /// The total weight of the clients.
    pub weight: f64,
    /// The blocks that the clients withheld.
    pub withheld: u64,
}

/// A client's answer to an evaluation.
#[derive(Clone, Debug)]
pub struct Answer<A> {
    /// The number of training rows.
    pub rows: u64,
    pub answer: A,
    /// The squared distance of its uplink memory from the memory's limit.
    pub memory_gap2: Option<f64>,
    /// Scores of its training, validation and test rows; empty if the job holds no rows out.
    pub parts: Vec<PartScores>,
}

/// Scores come last, and only if there are any.
impl<A: Wire> Wire for Answer<A> {
    fn put(&self, out: &mut Vec<u8>) {
        self.rows.put(out);
        self.answer.put(out);
        self.memory_gap2.put(out);
        if !self.parts.is_empty() {
            self.parts.put(out);
        }
    }

    fn take(from: &mut &[u8]) -> Result<Self> {
        let (rows, answer, memory_gap2) = (Wire::take(from)?, Wire::take(from)?, Wire::take(from)?);
        let has_scores = !from.is_empty();
        let parts: Vec<PartScores> = if has_scores { Wire::take(from)? } else { Vec::new() };
        if has_scores && parts.is_empty() {
            return Err(Error::peer("an answer ends with an empty list of scores"));
        }
        Ok(Self { rows, answer, memory_gap2, parts })
    }
}

wire!(Server<G: Wire, T: Scalar> {
    kind,
    round,
    global,
    total,
    rows,
    clients,
    up,
    down,
    update_norm2,
    update_norm2_max,
    small_rounds,
    spread,
    rows_used,
    ghost_bytes,
    withheld
});
wire!(Peer<R: Wire, T: Scalar> { weight, rows, uplink, record, down });
wire!(Client<W: Wire, T: Scalar> { up, down, own });
wire!(Enrolment<S: Wire> { rows, summary });
wire!(Fold { kind, up, moments, down, rows_used, weight, withheld });

/// The number of withheld blocks comes last, and only if there are any.
impl Wire for Up {
    fn put(&self, out: &mut Vec<u8>) {
        self.kind.put(out);
        self.packet.put(out);
        if self.withheld > 0 {
            put_varint(u64::from(self.withheld), out);
        }
    }

    fn take(from: &mut &[u8]) -> Result<Self> {
        let (kind, packet) = (Wire::take(from)?, Wire::take(from)?);
        let says = !from.is_empty();
        let withheld = if says { take_varint(from)? } else { 0 };
        let withheld = u32::try_from(withheld).ok().filter(|count| says == (*count > 0));
        let withheld =
            withheld.ok_or_else(|| Error::peer("an upload ends with an impossible count"))?;
        Ok(Self { kind, packet, withheld })
    }
}

/// The bit of a grid, above the uplink.
const GRID: u64 = 1 << 11;

/// Kind, uplink and the presence of a note share one byte; the presence of a grid follows them.
impl<N: Wire, P: Wire, T: Scalar> Wire for Down<N, P, T> {
    fn put(&self, out: &mut Vec<u8>) {
        self.put_head(out);
        self.state.put(out);
    }
    fn take(from: &mut &[u8]) -> Result<Self> {
        Self::take_parts(from, None)
    }
    fn put_parts(&self, head: &mut Vec<u8>) -> Option<Tail> {
        self.put_head(head);
        self.state.put_parts(head)
    }
    fn take_parts(head: &mut &[u8], tail: Option<&Tail>) -> Result<Self> {
        let first = take_varint(head)?;
        let has_grid = first & GRID != 0;
        let uplink = u8::try_from((first & !GRID) >> 3)
            .map_err(|_| Error::peer("there is no such uplink"))?;
        let kind = ExchangeKind::from_number((first & 3) as u8)?;
        let note = (first & 4 != 0).then(|| N::take(head)).transpose()?;
        let private = P::take(head)?;
        let grid = has_grid.then(|| GridNote::take(head)).transpose()?;
        Ok(Self { kind, uplink, note, private, grid, state: Shared::take_tail(head, tail)? })
    }
}

impl<N: Wire, P: Wire, T: Scalar> Down<N, P, T> {
    fn put_head(&self, out: &mut Vec<u8>) {
        let noted = u64::from(self.note.is_some());
        let grid = if self.grid.is_some() { GRID } else { 0 };
        put_varint(grid | u64::from(self.uplink) << 3 | noted << 2 | self.kind as u64, out);
        if let Some(note) = &self.note {
            note.put(out);
        }
        self.private.put(out);
        if let Some(grid) = &self.grid {
            grid.put(out);
        }
    }
}
