//! What the gradient family keeps and sends.

use super::Bounds;
use whimbrel_codec::Packet;
use whimbrel_codec::channel::{
    DownClient, DownFold, DownMessage, DownPeer, DownServer, Spread, UpClient, UpFold, UpServer,
};
use whimbrel_core::{Error, Result, Wire, vector, wire};

/// The kinds of exchange.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Phase {
    /// `h_0^i = g_1^i(w_0)`.
    Memory,
    /// The rounds of the algorithm.
    Fit,
}

impl Wire for Phase {
    fn put(&self, out: &mut Vec<u8>) {
        out.push(*self as u8);
    }
    fn take(from: &mut &[u8]) -> Result<Self> {
        match u8::take(from)? {
            0 => Ok(Self::Memory),
            1 => Ok(Self::Fit),
            other => Err(Error::peer(format!("{other} is no phase of the gradient family"))),
        }
    }
}

/// The global state.
#[derive(Clone, Debug)]
pub struct Server {
    /// The exchange that comes next.
    pub phase: Phase,
    /// k.
    pub round: u32,
    /// `w_k`.
    pub w: Vec<f64>,
    /// Heavy-ball direction; empty without momentum.
    pub momentum: Vec<f64>,
    /// `Σ λ_k w_{k−1}`; empty without averaging.
    pub average: Vec<f64>,
    /// `Σ λ_k`.
    pub average_weight: f64,
    /// `N`.
    pub total: f64,
    /// Rows of everyone enrolled.
    pub rows: u64,
    /// Constants that the step uses.
    pub bounds: Bounds,
    /// `Σ n_i h_i`.
    pub up: UpServer,
    /// The server's end of the downlink.
    pub down: DownServer,
    /// `||ĝ||²` of the last round.
    pub update_norm2: Option<f64>,
    /// `E||ŵ_i − w||²` and `E||w − H_i||²` of the last round.
    pub spread: Option<Spread>,
    /// Rows behind all gradients so far.
    pub gradients: u64,
    /// Bytes a ghost's packets would take, over all clients heard.
    pub ghost_bytes: u64,
    /// The length of one step 1/L along the first gradient: the unit in which growth is measured.
    pub scale: Option<f64>,
}

impl Server {
    /// Takes the first gradient for the unit of growth.
    pub(super) fn note_scale(&mut self, gradient: &[f64]) {
        let scale = vector::norm2_squared(gradient).sqrt() / self.bounds.smoothness;
        if self.scale.is_none() && scale > 0.0 && scale.is_finite() {
            self.scale = Some(scale);
        }
    }

    /// Passes over the pooled rows.
    pub fn epoch(&self) -> f64 {
        self.gradients as f64 / self.rows.max(1) as f64
    }
}

/// What the server remembers about one client.
#[derive(Clone, Debug)]
pub struct Peer {
    /// `n_i`.
    pub weight: f64,
    /// Its rows.
    pub rows: u64,
    /// Which uplink it uses.
    pub uplink: u8,
    /// The server's record of its downlink.
    pub down: DownPeer,
}

/// What a client remembers.
#[derive(Clone, Debug)]
pub struct Client {
    /// `h_i` or `e_i`.
    pub up: UpClient,
    /// `H_i` or a replica.
    pub down: DownClient,
}

/// What a client says at enrolment.
#[derive(Clone, Debug)]
pub struct Summary {
    /// How many rows it holds.
    pub rows: u64,
    /// The smoothness constant of its loss.
    pub smoothness: f64,
    /// The strong convexity of its loss; zero where it has none.
    pub strong_convexity: f64,
    /// `E||g^i(w_0) − ∇F_i(w_0)||²` of a single row's gradient.
    pub sigma2: f64,
}

/// The message to a client.
#[derive(Clone, Debug)]
pub struct Down {
    /// The kind of exchange.
    pub phase: Phase,
    /// Which uplink to answer on.
    pub uplink: u8,
    /// `w`, or what the downlink sends of it.
    pub state: DownMessage,
}

/// The message from a client.
#[derive(Clone, Debug)]
pub struct Up {
    /// The kind of exchange it answers.
    pub phase: Phase,
    /// `C_up(Δ_i)`, or a first gradient sent exactly.
    pub packet: Packet,
}

/// The uploads of one exchange.
#[derive(Clone, Debug)]
pub struct Fold {
    /// The kind of exchange.
    pub phase: Phase,
    /// Their sums.
    pub up: UpFold,
    /// What they say about the messages that went down.
    pub down: DownFold,
    /// Rows behind them.
    pub gradients: u64,
}

wire!(Server {
    phase,
    round,
    w,
    momentum,
    average,
    average_weight,
    total,
    rows,
    bounds,
    up,
    down,
    update_norm2,
    spread,
    gradients,
    ghost_bytes,
    scale
});
wire!(Peer { weight, rows, uplink, down });
wire!(Client { up, down });
wire!(Summary { rows, smoothness, strong_convexity, sigma2 });
wire!(Up { phase, packet });
wire!(Fold { phase, up, down, gradients });

/// Phase and uplink share a byte.
impl Wire for Down {
    fn put(&self, out: &mut Vec<u8>) {
        whimbrel_core::wire::put_varint(u64::from(self.uplink) << 1 | self.phase as u64, out);
        self.state.put(out);
    }
    fn take(from: &mut &[u8]) -> Result<Self> {
        let head = whimbrel_core::wire::take_varint(from)?;
        let uplink = u8::try_from(head >> 1).map_err(|_| Error::peer("there is no such uplink"))?;
        let phase = if head & 1 == 0 { Phase::Memory } else { Phase::Fit };
        Ok(Self { phase, uplink, state: DownMessage::take(from)? })
    }
}
