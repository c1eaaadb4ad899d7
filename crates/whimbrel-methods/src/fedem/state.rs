//! States of FedEM on both ends, and its disclosures.

use super::Server;
use super::estimator::Running;
use crate::federated::{Terms, aggregate};
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
    /// `Σ n_i m_i`: moments that `T` needs beside the statistic, not divided by the total.
    pub moments_sum: Vec<f64>,
    /// The number of clips by `T` so far.
    pub repairs: u64,
    /// Rounds with a clip.
    pub repaired_rounds: u32,
    /// Components without weight in some round, in order.
    pub dead: Vec<u32>,
    /// Covariances clipped by the last M-step.
    pub clipped: u32,
    /// Components without weight after the last M-step, in order.
    pub lost: Vec<u32>,
    /// `Σ n_i²`.
    pub weights_squared: f64,
    /// The outer loop of the next round; zero without variance reduction.
    pub outer: u32,
    /// Completed rounds of the outer loop.
    pub outer_rounds: u32,
    /// The moments pooled over the first roster, from which frames are made.
    pub first_moments: Vec<f64>,
    /// The mean of the last states so far; empty unless they are averaged.
    pub last_states: Vec<f64>,
}

impl Global {
    /// The pooled moments.
    pub(super) fn moments(&self, total: f64) -> Vec<f64> {
        self.moments_sum.iter().map(|m| m / total).collect()
    }

    /// The pooled moments in a message to a client; the first message adds the moments for frames if
    /// they differ.
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

    /// Records components that lost their weight.
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

/// The server's record of one client.
#[derive(Clone, Debug, Default)]
pub struct Record {
    /// The outer loop of its last upload, under variance reduction.
    pub outer: Option<u32>,
    /// Whether that upload came from a pass over all its rows.
    pub whole: bool,
    /// The number of clients that its moments are pooled over; zero if it has none.
    pub moments_of: u32,
}

/// A client's state.
#[derive(Clone, Debug, Default)]
pub struct Own {
    /// The next row of its stream, in the online setting.
    pub position: u64,
    /// Its recursion, under variance reduction.
    pub running: Option<Running>,
    /// The pooled moments, if it computes `T` itself.
    pub moments: Vec<f64>,
    /// The moments of the first roster, if frames need them.
    pub first_moments: Vec<f64>,
}

/// A client's message at enrolment, beside its number of rows.
#[derive(Clone, Debug)]
pub struct Summary {
    /// The mean moments of its rows, if `T` or the start needs them.
    pub moments: Vec<f64>,
    /// Raw rows offered as first means; empty unless the job starts from examples.
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
    first_moments,
    last_states
});
wire!(Record { outer, whole, moments_of });
wire!(Own { position, running, moments, first_moments });
wire!(Summary { moments, offers });

/// `t`, the outer loop of a round; usually one byte.
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

/// The content of a client's moments, after that of its number of rows.
const MOMENTS: &str =
    ", and averages over all rows: of the columns, and of their squares or products";

/// Disclosures at enrolment.
pub(super) fn summary_disclosures(moments_len: usize, offers_max: usize) -> Vec<Disclosure> {
    let moments = if moments_len > 0 { MOMENTS } else { "" };
    let mut all = vec![aggregate(
        "summary",
        &format!("the number of rows{moments}"),
        8 + list_bytes(moments_len) + list_bytes(0),
    )];
    if offers_max > 0 {
        all.push(Disclosure {
            message: "summary",
            meaning: "some rows, as candidates for the first means".into(),
            bytes_max: list_bytes(offers_max),
            exposure: Exposure::Rows,
        });
    }
    all
}

/// Disclosures of the exchanges.
pub(super) fn disclosures(terms: &Terms) -> Vec<Disclosure> {
    let q = terms.uplinks[0].dimension();
    let exact = 1 + list_bytes(q);
    let change = format!("each round: by how much these averages changed{}", terms.compressed());
    let first = "once: for each component of the first model, averages over all rows, weighted by how \
                 well it fits them: of one, of the columns, and of their squares or products";
    let mut all = vec![aggregate("up", first, exact)];
    if terms.opens() {
        let opening = "once: by how much one step of the fit changes these averages";
        all.push(aggregate("up", opening, exact));
    }
    all.extend([
        aggregate("up", &change, terms.upload_bytes(exact)),
        aggregate(
            "answer",
            "at evaluations: the number of rows, these averages, the mean log-likelihood of the rows (also of \
             rows kept out of the fit), and the distance of the averages from the messages so far",
            8 + list_bytes(q) + 8 + 9 + 128,
        ),
    ]);
    all
}

/// The most bytes of a list of numbers: its length, then eight per number.
pub(crate) fn list_bytes(numbers: usize) -> usize {
    10 + 8 * numbers
}
