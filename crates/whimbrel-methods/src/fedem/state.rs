//! What FedEM keeps on both ends, and what leaves a client.

use super::Server;
use super::estimator::Running;
use crate::federated::aggregate;
use whimbrel_core::method::{Disclosure, Exposure};
use whimbrel_core::wire::{put_varint, take_varint};
use whimbrel_core::{Error, Result, Wire, wire};

/// The global state.
#[derive(Clone, Debug, Default)]
pub struct Global {
    /// `Ŝ_k`.
    pub s_hat: Vec<f64>,
    /// `T(Ŝ_k)`, in the coordinates in which it travels.
    pub theta: Vec<f64>,
    /// `Σ n_i m_i`: what `T` needs beside the statistic, not divided by the total.
    pub moments_sum: Vec<f64>,
    /// Clips that `T` needed so far.
    pub repairs: u64,
    /// Rounds that needed one.
    pub repaired_rounds: u32,
    /// Components that `T` found without weight in some round, in order.
    pub dead: Vec<u32>,
    /// Covariances that the last M-step had to clip.
    pub clipped: u32,
    /// Components that it found without weight, in order.
    pub lost: Vec<u32>,
    /// `Σ n_i²`.
    pub weights_squared: f64,
    /// The outer loop of the next round, and its rounds done; both zero where there are no loops.
    pub outer: u32,
    /// Rounds of it done.
    pub outer_rounds: u32,
    /// The moments pooled over those who were there at the start: what frames are made from.
    pub first_moments: Vec<f64>,
}

impl Global {
    /// The pooled moments.
    pub(super) fn moments(&self, total: f64) -> Vec<f64> {
        self.moments_sum.iter().map(|m| m / total).collect()
    }

    /// The pooled moments as a client is sent them: the first time with those that frames are made
    /// from, where they differ.
    pub(super) fn moments_for(&self, record: &Record, total: f64) -> Vec<f64> {
        let mut moments = self.moments(total);
        if record.moments_of == 0 && moments != self.first_moments {
            moments.extend_from_slice(&self.first_moments);
        }
        moments
    }

    /// `1/Σ w_i²`: the effective number of clients of a weighted mean.
    pub(crate) fn effective_clients(&self, total: f64) -> f64 {
        total * total / self.weights_squared
    }

    /// Notes components that lost their weight.
    pub(super) fn note_dead(&mut self, components: &[usize]) {
        for component in components.iter().map(|k| *k as u32) {
            if let Err(at) = self.dead.binary_search(&component) {
                self.dead.insert(at, component);
            }
        }
    }
}

impl Server {
    /// The pooled moments.
    pub fn moments(&self) -> Vec<f64> {
        self.global.moments(self.total)
    }
}

/// What the server remembers about one client.
#[derive(Clone, Debug, Default)]
pub struct Record {
    /// The outer loop of its last upload, where there are outer loops.
    pub outer: Option<u32>,
    /// Whether a pass over all its rows was behind that upload.
    pub whole: bool,
    /// How many clients the moments it holds are pooled over; zero where it holds none.
    pub moments_of: u32,
}

/// What a client remembers.
#[derive(Clone, Debug, Default)]
pub struct Own {
    /// The next row of its stream, in the online setting.
    pub position: u64,
    /// Its recursion, under variance reduction.
    pub running: Option<Running>,
    /// The pooled moments, where it computes `T` itself.
    pub moments: Vec<f64>,
    /// Those of the first roster, where frames need them.
    pub first_moments: Vec<f64>,
}

/// What a client tells at enrolment beside its number of rows.
#[derive(Clone, Debug)]
pub struct Summary {
    /// The mean moments of its rows, where `T` or the start needs them.
    pub moments: Vec<f64>,
    /// Rows offered as first means; empty unless the job asks for examples.
    pub offers: Vec<f64>,
}

wire!(Global {
    s_hat,
    theta,
    moments_sum,
    repairs,
    repaired_rounds,
    dead,
    clipped,
    lost,
    weights_squared,
    outer,
    outer_rounds,
    first_moments
});
wire!(Record { outer, whole, moments_of });
wire!(Own { position, running, moments, first_moments });
wire!(Summary { moments, offers });

/// `t`, the outer loop of a round; a byte in nearly every message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OuterLoop(pub u32);

impl Wire for OuterLoop {
    fn put(&self, out: &mut Vec<u8>) {
        put_varint(u64::from(self.0), out);
    }
    fn take(from: &mut &[u8]) -> Result<Self> {
        let number = u32::try_from(take_varint(from)?);
        number.map(Self).map_err(|_| Error::peer("the outer loop is out of range"))
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
            "at evaluations: its rows, mean statistic, mean log-likelihood (of rows that it keeps out, \
             too) and memory gap",
            8 + list_bytes(q) + 8 + 9 + 128,
        ),
    ]);
    all
}

/// The most bytes of a list of numbers: its length, then eight each.
pub(crate) fn list_bytes(numbers: usize) -> usize {
    10 + 8 * numbers
}
