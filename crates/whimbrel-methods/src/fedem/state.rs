//! What FedEM keeps and sends.

use whimbrel_codec::Packet;
use whimbrel_codec::channel::{
    DownClient, DownFold, DownMessage, DownPeer, DownServer, Spread, UpClient, UpFold, UpServer,
};
use whimbrel_core::method::{Disclosure, Exposure};
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
        match u8::take(from)? {
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
wire!(Peer { weight, rows, moments_of, down });
wire!(Client { up, down, position, moments });
wire!(Summary { rows, moments, offers });
wire!(Down { phase, state, moments });
wire!(Up { phase, packet });
wire!(Fold { phase, up, down, expectations });

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
