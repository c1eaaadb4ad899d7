//! What every star-shaped method keeps and sends, around what its oracle keeps and sends.

use super::PartScores;
use whimbrel_codec::Packet;
use whimbrel_codec::channel::{
    DownClient, DownFold, DownMessage, DownPeer, DownServer, Spread, UpClient, UpFold, UpServer,
};
use whimbrel_core::wire::{put_varint, take_varint};
use whimbrel_core::{Error, Result, Wire, wire};

/// The kinds of exchange.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum ExchangeKind {
    /// Everyone sends its value exactly; the mean gives the first state.
    FirstState,
    /// Everyone sends its value at the first state exactly; memories start there.
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
            other => Err(Error::peer(format!("{other} is no kind of exchange"))),
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
pub struct Server<G> {
    /// The kind of the next exchange.
    pub kind: ExchangeKind,
    /// Rounds done.
    pub round: u32,
    /// What the oracle keeps.
    pub global: G,
    /// `N`.
    pub total: f64,
    /// Rows of everyone enrolled.
    pub rows: u64,
    /// How many are enrolled.
    pub clients: u32,
    /// `Σ n_i h_i`.
    pub up: UpServer,
    /// The server's end of the downlink.
    pub down: DownServer,
    /// The squared norm of the last estimate.
    pub update_norm2: Option<f64>,
    /// `E||ŵ_i − w||²` and `E||w − H_i||²` of the last round.
    pub spread: Option<Spread>,
    /// Rows that went into all uploads so far.
    pub rows_used: u64,
    /// Bytes a ghost's packets would take, over all clients heard.
    pub ghost_bytes: u64,
}

impl<G> Server<G> {
    /// Passes over the pooled rows.
    pub fn epoch(&self) -> f64 {
        self.rows_used as f64 / self.rows.max(1) as f64
    }
}

/// What the server remembers about one client.
#[derive(Clone, Debug)]
pub struct Peer<R> {
    /// `n_i`.
    pub weight: f64,
    /// Its rows.
    pub rows: u64,
    /// Which uplink it uses.
    pub uplink: u8,
    /// What the oracle remembers.
    pub record: R,
    /// The server's record of its downlink.
    pub down: DownPeer,
}

/// What a client remembers.
#[derive(Clone, Debug)]
pub struct Client<W> {
    /// `h_i` or `e_i`.
    pub up: UpClient,
    /// `H_i` or a replica.
    pub down: DownClient,
    /// What the oracle remembers: never leaves the client.
    pub own: W,
}

/// What a client sends at enrolment.
#[derive(Clone, Debug)]
pub struct Enrolment<S> {
    /// How many rows it holds.
    pub rows: u64,
    /// What the oracle adds.
    pub summary: S,
}

/// The message to a client.
#[derive(Clone, Debug)]
pub struct Down<N, P> {
    /// The kind of exchange.
    pub kind: ExchangeKind,
    /// Which uplink to answer on.
    pub uplink: u8,
    /// To everyone of the round.
    pub note: Option<N>,
    /// What the downlink sends of the published state.
    pub state: DownMessage,
    /// To this client alone.
    pub private: P,
}

/// The message from a client.
#[derive(Clone, Debug)]
pub struct Up {
    /// The kind of exchange it answers.
    pub kind: ExchangeKind,
    /// `C_up(Δ_i)`, or an opening value sent exactly.
    pub packet: Packet,
}

/// The uploads of one exchange.
#[derive(Clone, Debug)]
pub struct Fold {
    /// The kind of exchange.
    pub kind: ExchangeKind,
    /// Their sums.
    pub up: UpFold,
    /// What they say about the messages that went down.
    pub down: DownFold,
    /// Rows that went into them.
    pub rows_used: u64,
}

/// A client's answer to an evaluation.
#[derive(Clone, Debug)]
pub struct Answer<A> {
    /// Its rows.
    pub rows: u64,
    /// The oracle's.
    pub answer: A,
    /// How far its memory is from where it should be.
    pub memory_gap2: Option<f64>,
    /// Scores of its training, validation and test rows; empty where it keeps no rows out.
    pub parts: Vec<PartScores>,
}

/// Scores stand at the end, where there are any.
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
        Ok(Self {
            rows: Wire::take(from)?,
            answer: Wire::take(from)?,
            memory_gap2: Wire::take(from)?,
            parts: if from.is_empty() { Vec::new() } else { Wire::take(from)? },
        })
    }
}

macro_rules! wire_of {
    ($name:ident<$p:ident> { $($field:ident),* }) => {
        impl<$p: Wire> Wire for $name<$p> {
            fn put(&self, out: &mut Vec<u8>) { $(self.$field.put(out);)* }
            fn take(from: &mut &[u8]) -> Result<Self> {
                Ok(Self { $($field: Wire::take(from)?),* })
            }
        }
    };
}

wire_of!(Server<G> {
    kind,
    round,
    global,
    total,
    rows,
    clients,
    up,
    down,
    update_norm2,
    spread,
    rows_used,
    ghost_bytes
});
wire_of!(Peer<R> { weight, rows, uplink, record, down });
wire_of!(Client<W> { up, down, own });
wire_of!(Enrolment<S> { rows, summary });
wire!(Up { kind, packet });
wire!(Fold { kind, up, down, rows_used });

/// Kind, uplink and whether there is a note share a byte.
impl<N: Wire, P: Wire> Wire for Down<N, P> {
    fn put(&self, out: &mut Vec<u8>) {
        let noted = u64::from(self.note.is_some());
        put_varint(u64::from(self.uplink) << 3 | noted << 2 | self.kind as u64, out);
        if let Some(note) = &self.note {
            note.put(out);
        }
        self.state.put(out);
        self.private.put(out);
    }
    fn take(from: &mut &[u8]) -> Result<Self> {
        let head = take_varint(from)?;
        let uplink = u8::try_from(head >> 3).map_err(|_| Error::peer("there is no such uplink"))?;
        let kind = ExchangeKind::from_number((head & 3) as u8)?;
        let note = (head & 4 != 0).then(|| N::take(from)).transpose()?;
        Ok(Self { kind, uplink, note, state: Wire::take(from)?, private: P::take(from)? })
    }
}
