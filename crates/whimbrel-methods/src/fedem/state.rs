//! What FedEM keeps and sends.

use super::oracle::Running;
use whimbrel_codec::Packet;
use whimbrel_codec::channel::{
    DownClient, DownFold, DownMessage, DownPeer, DownServer, Spread, UpClient, UpFold, UpServer,
};
use whimbrel_core::method::{Disclosure, Exposure};
use whimbrel_core::wire::{put_varint, take_varint};
use whimbrel_core::{Error, Result, Wire, wire};

/// The kinds of exchange.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Phase {
    /// `Ŝ_0 = s̄(θ_0)`.
    Statistic,
    /// `V_{0,i} = h_i(Ŝ_0)`.
    Memory,
    /// The rounds of the algorithm.
    Fit,
}

impl Wire for Phase {
    fn put(&self, out: &mut Vec<u8>) {
        out.push(*self as u8);
    }
    fn take(from: &mut &[u8]) -> Result<Self> {
        Self::from_number(u8::take(from)?)
    }
}

impl Phase {
    fn from_number(number: u8) -> Result<Self> {
        match number {
            0 => Ok(Self::Statistic),
            1 => Ok(Self::Memory),
            2 => Ok(Self::Fit),
            other => Err(Error::peer(format!("{other} is no phase of FedEM"))),
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
    /// `Ŝ_k`.
    pub s_hat: Vec<f64>,
    /// `T(Ŝ_k)`, in the coordinates in which it travels.
    pub theta: Vec<f64>,
    /// `Σ n_i m_i`: what `T` needs beside the statistic, not divided by the total.
    pub moments_sum: Vec<f64>,
    /// `N`, the weight of everyone enrolled.
    pub total: f64,
    /// Rows of everyone enrolled.
    pub rows: u64,
    /// How many are enrolled.
    pub clients: u32,
    /// `Σ n_i V_{k,i}`.
    pub up: UpServer,
    /// The server's end of the downlink.
    pub down: DownServer,
    /// `||H_k||²` of the last round.
    pub update_norm2: Option<f64>,
    /// `E||ŵ_i − w||²` and `E||w − H_i||²` of the last round, over a compressed downlink.
    pub spread: Option<Spread>,
    /// Conditional expectations computed so far, over all clients.
    pub expectations: u64,
    /// Clips that `T` needed so far.
    pub repairs: u64,
    /// Rounds that needed one.
    pub repaired_rounds: u32,
    /// Components that `T` found without weight in some round, in order.
    pub dead: Vec<u32>,
}

impl Server {
    /// k, counted from the round after the first, which was `Ŝ_0`'s.
    pub(super) fn k(&self) -> u32 {
        self.round.saturating_sub(1)
    }

    /// The pooled moments.
    pub fn moments(&self) -> Vec<f64> {
        self.moments_sum.iter().map(|m| m / self.total).collect()
    }

    /// Passes over the pooled rows, in conditional expectations.
    pub fn epoch(&self) -> f64 {
        self.expectations as f64 / (self.rows.max(1)) as f64
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
    /// The outer loop of its last upload, where there are outer loops.
    pub outer: Option<u32>,
    /// Whether a pass over all its rows was behind that upload.
    pub whole: bool,
    /// How many clients the moments it holds are pooled over; zero where it holds none.
    pub moments_of: u32,
    /// The server's record of its downlink.
    pub down: DownPeer,
}

/// What a client remembers.
#[derive(Clone, Debug)]
pub struct Client {
    /// `V_{k,i}`.
    pub up: UpClient,
    /// The client's end of the downlink.
    pub down: DownClient,
    /// The next row of its stream, in the online setting.
    pub position: u64,
    /// Its recursion, under variance reduction.
    pub running: Option<Running>,
    /// The pooled moments, where it computes `T` itself.
    pub moments: Vec<f64>,
}

/// What a client says at enrolment.
#[derive(Clone, Debug)]
pub struct Summary {
    /// How many rows it holds.
    pub rows: u64,
    /// Their mean moments, where `T` or the start needs them.
    pub moments: Vec<f64>,
    /// Rows offered as first means; empty unless the job asks for examples.
    pub offers: Vec<f64>,
}

/// The message to a client.
#[derive(Clone, Debug)]
pub struct Down {
    /// The kind of exchange.
    pub phase: Phase,
    /// Which uplink to answer on.
    pub uplink: u8,
    /// The outer loop, in the rounds of a variance-reduced fit.
    pub outer: Option<u32>,
    /// `θ_0`, or what the form sends of `(Ŝ_k, T(Ŝ_k))`.
    pub state: DownMessage,
    /// The pooled moments, where the client computes `T` and does not hold them yet.
    pub moments: Option<Vec<f64>>,
}

/// The message from a client.
#[derive(Clone, Debug)]
pub struct Up {
    /// The kind of exchange it answers.
    pub phase: Phase,
    /// `Quant(Δ_i)`, or an opening statistic sent exactly.
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
    /// Conditional expectations behind them.
    pub expectations: u64,
}

wire!(Server {
    phase,
    round,
    s_hat,
    theta,
    moments_sum,
    total,
    rows,
    clients,
    up,
    down,
    update_norm2,
    spread,
    expectations,
    repairs,
    repaired_rounds,
    dead
});
wire!(Peer { weight, rows, uplink, outer, whole, moments_of, down });
wire!(Client { up, down, position, running, moments });
wire!(Summary { rows, moments, offers });
wire!(Up { phase, packet });
wire!(Fold { phase, up, down, expectations });

/// Phase, uplink and whether there are outer loops share a byte.
impl Wire for Down {
    fn put(&self, out: &mut Vec<u8>) {
        let loops = u64::from(self.outer.is_some());
        put_varint(u64::from(self.uplink) << 3 | loops << 2 | self.phase as u64, out);
        if let Some(outer) = self.outer {
            put_varint(u64::from(outer), out);
        }
        self.state.put(out);
        self.moments.put(out);
    }
    fn take(from: &mut &[u8]) -> Result<Self> {
        let head = take_varint(from)?;
        let uplink = u8::try_from(head >> 3).map_err(|_| Error::peer("there is no such uplink"))?;
        let phase = Phase::from_number((head & 3) as u8)?;
        let outer = match head & 4 {
            0 => None,
            _ => {
                let outer = u32::try_from(take_varint(from)?);
                Some(outer.map_err(|_| Error::peer("there is no such outer loop"))?)
            }
        };
        let (state, moments) = (Wire::take(from)?, Wire::take(from)?);
        Ok(Self { phase, uplink, outer, state, moments })
    }
}

/// What leaves a client at enrolment.
pub(super) fn summary_disclosures(moments_len: usize, offers_max: usize) -> Vec<Disclosure> {
    let moments = if moments_len > 0 { ", and the mean moments of its rows" } else { "" };
    let mut all = vec![aggregate(
        "summary",
        &format!("the number of its rows{moments}"),
        8 + list_bytes(moments_len) + list_bytes(0),
    )];
    if offers_max > 0 {
        all.push(Disclosure {
            message: "summary",
            meaning: "some of its rows, as candidates for the first means".into(),
            bytes_max: list_bytes(offers_max),
            exposure: Exposure::Rows,
        });
    }
    all
}

/// What leaves a client afterwards; `opens`: its memory starts at its field.
pub(super) fn disclosures(q: usize, opens: bool) -> Vec<Disclosure> {
    let exact = 1 + list_bytes(q);
    let mut all = vec![aggregate(
        "up",
        "once: the mean statistic of all its rows at the first parameters, exactly",
        exact,
    )];
    if opens {
        all.push(aggregate("up", "once: its field at the first statistic, exactly", exact));
    }
    all.extend([
        // No codec writes twice the bytes of the vector itself.
        aggregate("up", "each round: the compressed change of its mean statistic", 2 * exact),
        aggregate(
            "answer",
            "at evaluations: its rows, mean statistic, mean log-likelihood and memory gap",
            8 + list_bytes(q) + 8 + 9,
        ),
    ]);
    all
}

fn aggregate(message: &'static str, meaning: &str, bytes_max: usize) -> Disclosure {
    Disclosure { message, meaning: meaning.into(), bytes_max, exposure: Exposure::Aggregate }
}

/// The most bytes of a list of numbers: its length, then eight each.
pub(crate) fn list_bytes(numbers: usize) -> usize {
    10 + 8 * numbers
}
