//! From the clients to the server.
//!
//! Client `i` has weight `n_i`, was asked with probability `p_i` and holds an oracle value `g`;
//! `N` is the weight of all enrolled clients, `A` the set of accepted uploads.
//!
//! | rule | the client sends | the server uses | then |
//! |---|---|---|---|
//! | plain | `C(g)` | `sum_A (n_i/p_i) C_i / N` | |
//! | memory | `C(g - h_i)` | `(sum n_i h_i + sum_A (n_i/p_i) C_i) / N` | `h_i += alpha C_i` on both ends |
//! | feedback | `C(g + e_i)` | `sum_A (n_i/p_i) C_i / N` | `e_i = g + e_i - C_i` on the client |
//!
//! The server keeps the *undivided* `sum n_i h_i`, so a client that joins later (with `h_i = 0`)
//! changes no one else's share. An upload that is lost counts as not in `A`: `p_i` is not
//! re-estimated, the estimate leans towards the memories and the fixed point does not move.

use crate::{Codec, Packet};
use whimbrel_core::sum::ExactSum;
use whimbrel_core::{Error, Key, Result, vector, wire};

/// What an uplink keeps between rounds.
#[derive(Clone, Debug, PartialEq)]
pub enum UpRule {
    /// Nothing.
    Plain,
    /// A memory on both ends, moved by `alpha` times what was sent.
    Memory {
        /// The memory's step, in (0, 1].
        alpha: f64,
    },
    /// The client's compression error, added to its next message.
    Feedback,
}

/// `1/(1 + omega)`, the memory step of the EM methods (Theorems 1, 3 and 4 of FedEM).
pub fn em_alpha(omega: f64) -> f64 {
    1.0 / (1.0 + omega)
}

/// `1/(2(1 + omega))`, the memory step of the gradient family and of every downlink.
pub fn gradient_alpha(omega: f64) -> f64 {
    0.5 / (1.0 + omega)
}

/// A codec and a rule, for vectors of one length.
#[derive(Clone, Debug, PartialEq)]
pub struct Uplink {
    codec: Codec,
    rule: UpRule,
    dimension: usize,
    /// What a decoded packet is multiplied with: below one only where an unbiased codec must be a
    /// contraction.
    shrink: f64,
}

/// The client's end: `h_i` (memory) or `e_i` (feedback); empty stands for zero.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct UpClient {
    /// `h_i` or `e_i`.
    pub kept: Vec<f64>,
}

/// The server's end: `sum n_i h_i`, not divided by the total.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct UpServer {
    /// `sum n_i h_i`; zeros where there is no memory.
    pub memory_sum: Vec<f64>,
}

/// The uploads of one round.
#[derive(Clone, Debug, PartialEq)]
pub struct UpFold {
    /// `sum_A (n_i/p_i) C_i`.
    estimate: ExactSum,
    /// `sum_A n_i alpha_i C_i` (memory), or `sum_A n_i g_i` while memories open.
    memory: ExactSum,
    /// `sum_A n_i`; weights are whole numbers, so this sum is exact too.
    weight: f64,
}

wire!(UpClient { kept });
wire!(UpServer { memory_sum });
wire!(UpFold { estimate, memory, weight });

impl Uplink {
    /// Checks that the rule can work with the codec.
    pub fn new(codec: Codec, rule: UpRule, dimension: usize) -> Result<Self> {
        let omega = codec.omega(dimension);
        if omega.is_none() && rule != UpRule::Feedback {
            return Err(Error::config(format!(
                "{} is biased, so without error feedback the fixed point moves",
                codec.name()
            ))
            .hint("set rule = \"feedback\" in [uplink], or choose an unbiased codec"));
        }
        if let UpRule::Memory { alpha } = rule
            && !(alpha > 0.0 && alpha <= 1.0)
        {
            return Err(Error::config(format!("alpha = {alpha} is not in (0, 1]"))
                .hint("alpha = \"auto\" is 1/(1 + omega) of the codec"));
        }
        // An unbiased codec is no contraction; scaled by 1/(1 + omega) it is one.
        let shrink = match (&rule, omega) {
            (UpRule::Feedback, Some(omega)) => 1.0 / (1.0 + omega),
            _ => 1.0,
        };
        Ok(Self { codec, rule, dimension, shrink })
    }

    /// The codec.
    pub fn codec(&self) -> &Codec {
        &self.codec
    }

    /// The rule.
    pub fn rule(&self) -> &UpRule {
        &self.rule
    }

    /// The length of the vectors it carries.
    pub fn dimension(&self) -> usize {
        self.dimension
    }

    /// The codec's variance constant on this channel; none for a biased codec.
    pub fn omega(&self) -> Option<f64> {
        self.codec.omega(self.dimension)
    }

    /// Whether both ends keep a memory.
    pub fn has_memory(&self) -> bool {
        matches!(self.rule, UpRule::Memory { .. })
    }

    /// The client's end at enrolment: zero.
    pub fn client(&self) -> UpClient {
        UpClient::default()
    }

    /// The server's end before anyone joined: zero.
    pub fn server(&self) -> UpServer {
        UpServer { memory_sum: vec![0.0; if self.has_memory() { self.dimension } else { 0 }] }
    }

    /// An empty fold.
    pub fn fold(&self) -> UpFold {
        UpFold {
            estimate: ExactSum::new(self.dimension),
            memory: ExactSum::new(if self.has_memory() { self.dimension } else { 0 }),
            weight: 0.0,
        }
    }

    /// Compresses the oracle value `g` against the client's end: the end once the upload is
    /// accepted, and the packet.
    pub fn send(&self, end: &UpClient, g: &[f64], key: Key) -> Result<(UpClient, Packet)> {
        self.check(g.len())?;
        match self.rule {
            UpRule::Plain => Ok((UpClient::default(), self.codec.encode(g, key)?)),
            UpRule::Memory { alpha } => {
                // C(g - h_i), then h_i += alpha C(.)
                let mut delta = g.to_vec();
                if let Some(h_i) = self.kept(end)? {
                    vector::axpy(&mut delta, -1.0, h_i);
                }
                let mut sent = vec![0.0; g.len()];
                let packet = self.codec.encode_decoded(&delta, key, &mut sent)?;
                let mut kept = delta;
                match self.kept(end)? {
                    Some(h_i) => kept.copy_from_slice(h_i),
                    None => kept.fill(0.0),
                }
                vector::axpy(&mut kept, alpha, &sent);
                Ok((UpClient { kept }, packet))
            }
            UpRule::Feedback => {
                // C(g + e_i), then e_i = g + e_i - C(.)
                let mut kept = g.to_vec();
                if let Some(e_i) = self.kept(end)? {
                    vector::axpy(&mut kept, 1.0, e_i);
                }
                let mut sent = vec![0.0; g.len()];
                let packet = self.codec.encode_decoded(&kept, key, &mut sent)?;
                vector::axpy(&mut kept, -self.shrink, &sent);
                Ok((UpClient { kept }, packet))
            }
        }
    }

    /// Adds one upload to a fold.
    pub fn absorb(
        &self,
        fold: &mut UpFold,
        weight: f64,
        inclusion: f64,
        packet: &Packet,
    ) -> Result<()> {
        let mut sent = vec![0.0; self.dimension];
        self.codec.decode(packet, &mut sent)?;
        fold.estimate.add(&sent, self.shrink * weight / inclusion)?;
        if let UpRule::Memory { alpha } = self.rule {
            fold.memory.add(&sent, weight * alpha)?;
        }
        fold.weight += weight;
        Ok(())
    }

    /// Adds another fold.
    pub fn merge(&self, fold: &mut UpFold, other: &UpFold) -> Result<()> {
        fold.estimate.merge(&other.estimate)?;
        fold.memory.merge(&other.memory)?;
        fold.weight += other.weight;
        Ok(())
    }

    /// The estimate of `sum (n_i/N) g_i`; the server's end moves on.
    pub fn collect(&self, end: &mut UpServer, fold: &UpFold, total: f64) -> Vec<f64> {
        let mut estimate = fold.estimate.value();
        if self.has_memory() {
            vector::axpy(&mut estimate, 1.0, &end.memory_sum);
            vector::axpy(&mut end.memory_sum, 1.0, &fold.memory.value());
        }
        vector::scale(&mut estimate, 1.0 / total);
        estimate
    }

    /// Opens the memory at `g` itself: sent exactly, and kept where there is a memory.
    pub fn open(&self, g: &[f64]) -> Result<(UpClient, Packet)> {
        self.check(g.len())?;
        let packet = Codec::Exact.encode(g, Key::root(0))?;
        let kept = if self.has_memory() { g.to_vec() } else { Vec::new() };
        Ok((UpClient { kept }, packet))
    }

    /// Adds one opening upload to a fold.
    pub fn absorb_opening(&self, fold: &mut UpFold, weight: f64, packet: &Packet) -> Result<()> {
        let mut sent = vec![0.0; self.dimension];
        Codec::Exact.decode(packet, &mut sent)?;
        let sum = if self.has_memory() { &mut fold.memory } else { &mut fold.estimate };
        sum.add(&sent, weight)?;
        fold.weight += weight;
        Ok(())
    }

    /// The server's end after an opening exchange: clients whose upload was lost stay at zero.
    pub fn collect_opening(&self, end: &mut UpServer, fold: &UpFold) {
        if self.has_memory() {
            end.memory_sum = fold.memory.value();
        }
    }

    /// The mean of what was opened, over the clients heard from; none where nobody was.
    pub fn mean_opening(&self, fold: &UpFold) -> Option<Vec<f64>> {
        let sum = if self.has_memory() { &fold.memory } else { &fold.estimate };
        (fold.weight > 0.0).then(|| {
            let mut mean = sum.value();
            vector::scale(&mut mean, 1.0 / fold.weight);
            mean
        })
    }

    /// What the client's end holds; none stands for zero.
    fn kept<'a>(&self, end: &'a UpClient) -> Result<Option<&'a [f64]>> {
        if end.kept.is_empty() {
            return Ok(None);
        }
        self.check(end.kept.len())?;
        Ok(Some(&end.kept))
    }

    fn check(&self, len: usize) -> Result<()> {
        if len == self.dimension {
            return Ok(());
        }
        Err(Error::internal(format!(
            "an uplink for vectors of length {} was handed one of length {len}",
            self.dimension
        )))
    }
}
