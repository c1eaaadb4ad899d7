//! States and messages of FedMissEM.

use whimbrel_codec::Packet;
use whimbrel_codec::channel::{
    DownClient, DownFold, DownMessage, DownPeer, DownServer, SharedMessages, Spread, UpClient,
    UpFold, UpServer,
};
use whimbrel_core::wire::{put_varint, take_varint};
use whimbrel_core::{Error, Result, Shared, Wire, wire};
use whimbrel_models::lowrank::{Calibration, Ceiling, Factors, ScoreSums, Scores};

/// The kinds of exchange.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Phase {
    /// Memories open at the residuals of the first factors.
    Memory,
    /// The rounds of the algorithm.
    Fit,
    /// The exchange after the last round, which calibrates intervals.
    Calibrate,
    Over,
}

impl Wire for Phase {
    fn put(&self, out: &mut Vec<u8>) {
        out.push(*self as u8);
    }
    fn take(from: &mut &[u8]) -> Result<Self> {
        let all = [Self::Memory, Self::Fit, Self::Calibrate, Self::Over];
        let code = u8::take(from)?;
        let unknown = || Error::peer(format!("{code} is not a phase of FedMissEM"));
        all.get(usize::from(code)).copied().ok_or_else(unknown)
    }
}

/// The global state.
#[derive(Clone, Debug)]
pub struct Server {
    /// The kind of the next exchange.
    pub phase: Phase,
    /// `k`.
    pub round: u32,
    /// `Ŝ_k`, the completed table, row after row.
    pub s_hat: Vec<f64>,
    /// `θ_k = T(Ŝ_k)`.
    pub factors: Factors,
    /// The observed cells, each once, in order of enrolment: `row * columns + column`.
    pub union: Vec<u64>,
    /// Indices into `union`, sorted by cell.
    pub by_cell: Vec<u32>,
    /// The number of observations of each cell of `union`.
    pub counts: Vec<u32>,
    /// The server's end of the uplinks: `Σ_c R_c` on the cells of `union`.
    pub up: UpServer,
    /// `n`.
    pub clients: u32,
    /// `N`: observations of all enrolled clients.
    pub observations: u64,
    /// The largest amplification of a client, for the automatic step.
    pub amplification: f64,
    /// The server's end of the downlink.
    pub down: DownServer,
    /// `||Ŝ_k||²`; zero before the first round.
    pub table_norm2: f64,
    /// `||H_k||²` of the last round.
    pub update_norm2: Option<f64>,
    /// `E||θ̂_c − θ||²` and `E||θ − H_c||²` of the last round, over a compressed downlink.
    pub spread: Option<Spread>,
    /// Residuals computed so far, over all clients.
    pub residuals: u64,
    /// Sweeps of `T` so far.
    pub sweeps: u64,
    /// Cells clipped into the domain of `T` so far.
    pub repairs: u64,
    /// The upper bound of estimated counts, once the rounds are over.
    pub ceiling: Option<Ceiling>,
    /// The result of the last exchange.
    pub calibration: Option<Calibration>,
}

impl Server {
    /// `||Ŝ_k||²` over the observed cells, which diverges with the run; means of unobserved cells may be
    /// extrapolated to any size. Zero before the first round: the start may be many times smaller than
    /// the data.
    pub fn observed_norm2(&self) -> f64 {
        if self.round == 0 {
            return 0.0;
        }
        self.union.iter().map(|cell| self.s_hat[*cell as usize]).map(|s| s * s).sum()
    }

    /// Passes over the observations.
    pub fn epoch(&self) -> f64 {
        self.residuals as f64 / self.observations.max(1) as f64
    }
}

/// The server's record of one client.
#[derive(Clone, Debug)]
pub struct Peer {
    pub codec: u8,
    /// The indices of its cells in the union, in its own order.
    pub places: Vec<u32>,
    pub down: DownPeer,
}

/// A client's state.
#[derive(Clone, Debug)]
pub struct Client {
    /// The client's end of the uplink: `R_c`, one number per own cell.
    pub up: UpClient,
    /// `e_c`; 0 where effects are not personal.
    pub effect: f64,
    pub down: DownClient,
}

/// A client's message at enrolment.
#[derive(Clone, Debug)]
pub struct Summary {
    /// The cells that it observed.
    pub cells: Positions,
    /// The sum of their values.
    pub sum: f64,
}

/// Numbers of cells in ascending order, repeats allowed. They travel as differences.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Positions(pub Vec<u64>);

impl Wire for Positions {
    fn put(&self, out: &mut Vec<u8>) {
        put_varint(self.0.len() as u64, out);
        let mut last = 0;
        for position in &self.0 {
            put_varint(position - last, out);
            last = *position;
        }
    }
    fn take(from: &mut &[u8]) -> Result<Self> {
        let count = take_varint(from)?;
        // Each takes at least a byte.
        if count > from.len() as u64 {
            return Err(Error::peer(format!("a list of {count} cells is cut short")));
        }
        let mut last = 0u64;
        let mut next = |_| {
            let step = take_varint(from)?;
            last = last.checked_add(step).ok_or_else(|| Error::peer("a cell beyond any table"))?;
            Ok(last)
        };
        (0..count).map(&mut next).collect::<Result<_>>().map(Self)
    }
}

/// The message to a client.
#[derive(Clone, Debug)]
pub struct Down {
    pub phase: Phase,
    /// The number of the client's codec.
    pub codec: u8,
    /// `n`, which weighs the penalty of a personal effect.
    pub clients: u32,
    /// After the last round: the upper bound of estimates.
    pub ceiling: Option<Ceiling>,
    /// After the last round: the numbers of observations of each row, and of each column.
    pub observations: Option<(Vec<u32>, Vec<u32>)>,
    /// `θ_k`; after the last round exactly.
    pub state: Shared<DownMessage>,
}

/// The shared part of an exchange's messages.
pub struct Broadcast {
    /// `θ_k`.
    pub theta: Vec<f64>,
    /// Its messages, encoded once for all clients that receive the same.
    pub messages: SharedMessages,
}

/// The message from a client.
#[derive(Clone, Debug)]
pub struct Up {
    /// The kind of exchange that it answers.
    pub phase: Phase,
    /// The key of the minibatch's draw, where cells are drawn.
    pub draw: Option<u64>,
    /// The compressed residuals of the minibatch less their memories, or the exact residuals of all
    /// cells.
    pub packet: Packet,
    /// The errors of the fit, at the end.
    pub scores: Option<Scores>,
}

/// The uploads of one exchange, added exactly.
#[derive(Clone, Debug)]
pub struct Fold {
    pub phase: Phase,
    pub residuals: u64,
    /// Their sums, on the cells of the union.
    pub up: UpFold,
    pub down: DownFold,
    /// The errors of the fit, at the end.
    pub scores: ScoreSums,
}

wire!(Server {
    phase,
    round,
    s_hat,
    factors,
    union,
    by_cell,
    counts,
    up,
    clients,
    observations,
    amplification,
    down,
    table_norm2,
    update_norm2,
    spread,
    residuals,
    sweeps,
    repairs,
    ceiling,
    calibration
});
wire!(Peer { codec, places, down });
wire!(Client { up, effect, down });
wire!(Summary { cells, sum });
wire!(Down { phase, codec, clients, ceiling, observations; state });
wire!(Up { phase, draw, packet, scores });
wire!(Fold { phase, residuals, up, down, scores });
