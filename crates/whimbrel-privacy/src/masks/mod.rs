//! Masked sums: the server learns the sum of the clients' words modulo 2^w and no term of it.
//!
//! Pair secrets are agreed once per run (Flamingo, S&P 2023), masks are derived per exchange, and
//! seeds of masks are shared among neighbours in a public graph (Bonawitz et al., CCS 2017; Bell et
//! al., CCS 2020). [`MaskClient`] and [`MaskServer`] take and return messages; the caller carries
//! them and stores the machines' states ([`Wire`]) before it sends what depends on them:
//!
//! | step | message | durable first |
//! |---|---|---|
//! | enrol | [`Enrolment`]: an X25519 key, signed by the client's identity | client: its secret |
//! | roster | [`Roster`], which the user may have to accept ([`Accepted`]) | both: the roster |
//! | task | [`MaskTask`]: exchange, cohort, form of the words, hash of the downlink | |
//! | upload | [`MaskedUpload`]: `y_i = z_i + PRG(b_i) + sum_j ±PRG(k_ij)`, and a sealed box per neighbour | client: its state |
//! | survivors | [`Survivors`]: the set `A'`, and the boxes for the receiver | server: its state |
//! | vouch | [`Vouch`]: a signature on the task and `A'`; forwarded as [`Vouches`] | client: its state |
//! | shares | [`Shares`]: of `b_i`, i in `A'`; of `k_ij`, i in `A'` and j lost | |
//! | outcome | [`Outcome`]: the sum over `A'`, or void | server: the record of the exchange |
//!
//! `k_ij = PRF(s_ij, t, hash(task))` and `b_i = PRF(secret, t, hash(task), hash(z_i))` are derived,
//! as is everything else that a client sends, so a restarted client sends the same bytes. Masks
//! depend on the task and on the keys of its cohort: those of clients with different models or rosters
//! do not cancel.
//!
//! The server may lie: if it tells clients different survivors, shares are given only if two thirds
//! of the cohort vouched for one set.
//! A client answers for one set per exchange, ever; a void exchange is not repeated with other
//! survivors, because two sums would differ by one client.

mod accepted;
mod client;
mod graph;
mod keys;
mod message;
mod roster;
mod server;
mod words;

pub use accepted::{Accepted, ShortHash};
pub use client::MaskClient;
pub use keys::{Hash, Signature, hash_bytes};
pub use message::{MaskTask, MaskedUpload, Shares, Survivors, Vouch, Vouches};
pub use roster::{Enrolment, Roster, Rules};
pub use server::{MaskServer, Outcome};
pub use words::{Span, Width};

use whimbrel_core::{ClientId, Error};

#[cfg(doc)]
use whimbrel_core::Wire;

/// Two thirds, rounded up.
fn two_thirds(of: usize) -> usize {
    (2 * of).div_ceil(3)
}

/// Whether an ascending list has this client.
fn has(list: &[ClientId], id: ClientId) -> bool {
    list.binary_search(&id).is_ok()
}

fn is_ascending(list: &[ClientId]) -> bool {
    list.is_sorted_by(|a, b| a < b)
}

fn refuse<T>(what: impl Into<String>) -> whimbrel_core::Result<T> {
    Err(Error::peer(what))
}
