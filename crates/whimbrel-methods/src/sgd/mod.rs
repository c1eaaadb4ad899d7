//! Distributed stochastic gradient descent over any uplink and any downlink: SGD, QSGD, Diana,
//! Artemis, Dore, Double-Squeeze, MCM, Rand-MCM and what lies between them.
//!
//! Reference: Philippenko, Dieuleveut, *Preserved central model for faster bidirectional compression
//! in distributed settings*, NeurIPS 2021, equation (3) and Algorithm 1. The algorithms of its
//! Table 1 are values of (uplink, downlink): see [`preset`].
//!
//! | paper | here | meaning |
//! |---|---|---|
//! | `w_k` | `w` | the central model |
//! | `ŵ_k^i` | what `Downlink::receive` gives | where client i computes |
//! | `g_{k+1}^i` | oracle | its stochastic gradient |
//! | `h_k^i`, `C_up`, `α_up` | uplink memory, codec, `alpha` | |
//! | `H_k^i`, `C_dwn`, `α_dwn` | downlink memory, codec, `alpha` | |
//! | `γ` | `step` | the step |
//! | `N` | total weight | clients (`1/N` each by default, as in the paper) |
//!
//! Reduces to
//! - `diana`: an exact downlink codec (then `mcm`'s memory plays no role), bit for bit;
//! - `qsgd`: a plain uplink; `sgd`: exact codecs both ways;
//! - `mcm`: one group of `rand-mcm-g`; `rand-mcm`: as many groups as clients, with everyone.
//!
//! Departures from the paper: partial participation for every variant (weights and
//! catch-up as for every method); `1/L` takes the mean of the clients' spectral constants.

mod evaluate;
pub mod preset;
mod state;
pub mod steps;

pub use preset::Preset;
pub use state::{Client, Down, Fold, Peer, Phase, Server, Summary, Up};
pub use steps::{Bounds, StepRule};

use crate::settings::{Batch, Budget, DRAW, Weights, check_sums};
use std::sync::Arc;
use whimbrel_codec::channel::{Downlink, Uplink};
use whimbrel_core::method::{Artifact, Bind, Cohort, Disclosure, Exposure, Method, Next, Sender};
use whimbrel_core::{ClientData, ClientId, Error, Key, Result, vector};
use whimbrel_models::Rows;
use whimbrel_models::convex::{Examples, Problem};

/// Hyper-parameters.
pub struct Sgd {
    /// What is minimised.
    pub problem: Arc<dyn Problem>,
    /// Numbers in a model.
    pub dimension: usize,
    /// Which rows a gradient uses.
    pub batch: Batch,
    /// When to stop.
    pub budget: Budget,
    /// `γ_k`.
    pub step: StepRule,
    /// Heavy-ball momentum on the server, in [0, 1).
    pub momentum: f64,
    /// Which model is delivered and evaluated.
    pub average: Average,
    /// How clients are weighted.
    pub weights: Weights,
    /// The planned mean probability of taking part; only `theory` uses it.
    pub participation: f64,
    /// Whether memories start at the first gradient (`h_0^i = g_1^i(w_0)`, one counted exchange).
    pub open_memories: bool,
    /// Uplinks: everyone's, then those of clients with one of their own.
    pub uplinks: Vec<Uplink>,
    /// Clients with an uplink of their own, by id.
    pub own_uplinks: std::collections::BTreeMap<u32, u8>,
    /// The way down.
    pub downlink: Downlink,
    /// The minimiser and the minimum, where they are known: for excess losses.
    pub reference: Option<Reference>,
}

/// Which model is delivered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Average {
    /// The last one.
    Last,
    /// The mean of all (Polyak-Ruppert).
    Uniform,
    /// Their mean weighted by `1/γ_{k−1}` (Theorem 1).
    Weighted,
}

/// A minimum computed by a solver.
#[derive(Clone, PartialEq, Debug)]
pub struct Reference {
    /// `w_*`.
    pub w: Vec<f64>,
    /// `F_*`.
    pub f_star: f64,
}

/// Binds examples.
pub struct BindExamples;

impl Bind<Sgd> for BindExamples {
    fn bind(&self, method: &Sgd, data: &ClientData) -> Result<Examples> {
        method.problem.bind(data)
    }
}

impl Method for Sgd {
    type Data = Examples;
    type Server = Server;
    type Peer = Peer;
    type Client = Client;
    type Summary = Summary;
    type Down = Down;
    type Up = Up;
    type Broadcast = ();
    type Fold = Fold;

    fn enroll(&self, data: &Examples, key: Key) -> Result<(Client, Summary)> {
        if data.dimension() != self.dimension {
            return Err(Error::data(format!(
                "its rows have {} columns where the model has {}",
                data.dimension(),
                self.dimension
            )));
        }
        // What only the theorems use is not computed otherwise, and does not leave the client.
        let theory = self.step == StepRule::Theory;
        let summary = Summary {
            rows: data.rows() as u64,
            smoothness: match self.step.wants_frobenius() {
                true => self.problem.frobenius(data),
                false => self.problem.smoothness(data),
            },
            strong_convexity: if theory { self.problem.strong_convexity(data) } else { 0.0 },
            sigma2: match theory {
                true => {
                    steps::gradient_variance(&*self.problem, data, self.dimension, self.batch, key)?
                }
                false => 0.0,
            },
        };
        Ok((Client { up: self.uplinks[0].client(), down: self.downlink.client() }, summary))
    }

    fn start(
        &self,
        roster: &mut dyn Iterator<Item = (ClientId, Summary)>,
        _: Key,
    ) -> Result<Server> {
        // The step is fixed by who is there at the start.
        let mut facts = steps::Facts::default();
        for (id, summary) in roster {
            facts.add(checked(self.weights, id, &summary)?, &summary);
        }
        let w = vec![0.0; self.dimension];
        let bounds = facts.bounds(self)?;
        Ok(Server {
            phase: if self.opens() { Phase::Memory } else { Phase::Fit },
            round: 0,
            down: self.downlink.server(&w),
            up: self.uplinks[0].server(),
            momentum: if self.momentum > 0.0 { w.clone() } else { Vec::new() },
            average: if self.average == Average::Last { Vec::new() } else { w.clone() },
            average_weight: 0.0,
            w,
            total: 0.0,
            rows: 0,
            bounds,
            update_norm2: None,
            spread: None,
            gradients: 0,
            ghost_bytes: 0,
            scale: None,
        })
    }

    fn admit(&self, server: &mut Server, id: ClientId, summary: &Summary) -> Result<Peer> {
        let weight = checked(self.weights, id, summary)?;
        server.total += weight;
        server.rows += summary.rows;
        let down = self.downlink.admit(&mut server.down, id);
        let uplink = self.own_uplinks.get(&id.0).copied().unwrap_or(0);
        Ok(Peer { weight, rows: summary.rows, uplink, down })
    }

    fn next(&self, server: &Server) -> Next {
        let done = match self.budget {
            Budget::Rounds(rounds) => server.round >= rounds,
            Budget::Epochs(epochs) => server.epoch() >= epochs,
        };
        match server.phase {
            Phase::Memory => Next::Opening,
            Phase::Fit if done => Next::Stop,
            Phase::Fit => Next::Round(Cohort::Sampled),
        }
    }

    fn broadcast(&self, _: &Server) -> Result<()> {
        Ok(())
    }

    fn downlink(&self, server: &Server, (): &(), peer: &Peer, _: Key) -> Result<(Peer, Down)> {
        let (down, state) = self.downlink.send(&server.down, &peer.down, &server.w)?;
        let message = Down { phase: server.phase, uplink: peer.uplink, state };
        Ok((Peer { down, ..peer.clone() }, message))
    }

    fn local_step(
        &self,
        client: &Client,
        down: &Down,
        data: &Examples,
        key: Key,
    ) -> Result<(Client, Up)> {
        // ŵ_i = H_i + C_dwn(w − H_i), H_i += α_dwn C_dwn(.)                          (3), left
        let (down_end, w_hat) = self.downlink.receive(&client.down, &down.state)?;
        let uplink = self
            .uplinks
            .get(usize::from(down.uplink))
            .ok_or_else(|| Error::peer("a message names an uplink that the job does not have"))?;
        // g_{k+1}^i(ŵ_k^i) on a minibatch
        let mut gradient = vector::zeros(self.dimension);
        match self.batch.draw(data.rows(), &mut key.fold(DRAW).stream()) {
            Some(rows) => self.problem.gradient(&w_hat, data, Rows::These(&rows), &mut gradient)?,
            None => self.problem.gradient(&w_hat, data, Rows::All, &mut gradient)?,
        };
        // Δ = g − h_i; send C_up(Δ); h_i += α_up C_up(Δ)                            (3), right
        let (up, packet) = match down.phase {
            Phase::Memory => uplink.open(&gradient)?,
            Phase::Fit => uplink.send(&client.up, &gradient, key)?,
        };
        Ok((Client { up, down: down_end }, Up { phase: down.phase, packet }))
    }

    fn fold(&self, server: &Server) -> Fold {
        let (up, down) = (self.uplinks[0].fold(), self.downlink.fold());
        Fold { phase: server.phase, up, down, gradients: 0 }
    }

    fn absorb(&self, fold: &mut Fold, from: Sender<'_, Peer>, up: Up) -> Result<()> {
        if up.phase != fold.phase {
            return Err(Error::peer(format!(
                "client {} answered an exchange that is over",
                from.id
            )));
        }
        let uplink = &self.uplinks[usize::from(from.peer.uplink)];
        match fold.phase {
            Phase::Memory => {
                uplink.absorb_opening(&mut fold.up, from.peer.weight, &up.packet)?;
            }
            Phase::Fit => {
                uplink.absorb(&mut fold.up, from.peer.weight, from.inclusion, &up.packet)?;
                self.downlink.absorb(&mut fold.down, &from.peer.down)?;
            }
        }
        fold.gradients += self.batch.expectations(from.peer.rows);
        Ok(())
    }

    fn merge(&self, fold: &mut Fold, other: Fold) -> Result<()> {
        fold.gradients += other.gradients;
        self.downlink.merge(&mut fold.down, &other.down)?;
        self.uplinks[0].merge(&mut fold.up, &other.up)
    }

    fn server_step(&self, mut server: Server, fold: Fold, key: Key) -> Result<Server> {
        server.gradients += fold.gradients;
        if server.phase == Phase::Memory {
            // h_0^i = g_1^i(w_0)
            self.uplinks[0].collect_opening(&mut server.up, &fold.up);
            if let Some(gradient) = self.uplinks[0].mean_opening(&fold.up) {
                server.note_scale(&gradient);
            }
            server.phase = Phase::Fit;
            return Ok(server);
        }
        let gamma = self.step.at(server.round, &server.bounds);
        self.count_into_average(&mut server, gamma);
        // ĝ = Σ (n_i/N) (C_up(Δ_i)/p_i + h_i)
        let mut gradient = self.uplinks[0].collect(&mut server.up, &fold.up, server.total);
        server.update_norm2 = Some(vector::norm2_squared(&gradient));
        server.note_scale(&gradient);
        if self.momentum > 0.0 {
            vector::scale(&mut server.momentum, self.momentum);
            vector::axpy(&mut server.momentum, 1.0, &gradient);
            gradient.clone_from(&server.momentum);
        }
        // w_{k+1} = w_k − γ ĝ
        let mut wanted = server.w.clone();
        vector::axpy(&mut wanted, -gamma, &gradient);
        server.spread = self.downlink.spread(&fold.down);
        let sent_ghost = self.downlink.ghost_bytes(&server.down).unwrap_or(0);
        // Down compression; a degraded downlink moves w itself.
        server.w = self.downlink.publish(&mut server.down, wanted, &fold.down, key)?;
        // What went down for this round, to each of those heard.
        server.ghost_bytes += sent_ghost * u64::from(fold.down.count());
        server.round += 1;
        Ok(server)
    }

    fn magnitude(&self, server: &Server) -> f64 {
        // In steps 1/L of the first gradient, whatever the units; one at the start, which is zero.
        let local2 = server.spread.map_or(0.0, |spread| spread.local2);
        // Clients may run away while the server does not.
        let largest2 = vector::norm2_squared(&server.w).max(local2);
        1.0 + largest2.sqrt() / server.scale.unwrap_or(1.0)
    }

    fn artifact(&self, server: &Server) -> Result<Artifact> {
        let artifact = Artifact { kind: self.problem.name().into(), tensors: Vec::new() };
        Ok(artifact.with("weights", &[self.dimension], self.delivered(server)))
    }

    fn disclosures(&self) -> Vec<Disclosure> {
        let aggregate = |message, meaning: &str, bytes_max| Disclosure {
            message,
            meaning: meaning.into(),
            bytes_max,
            exposure: Exposure::Aggregate,
        };
        let whole = 8 * self.dimension + 32;
        let mut all = vec![
            aggregate(
                "summary",
                "the number of rows, the smoothness and strong convexity of its loss, and the variance of its gradients",
                32,
            ),
            aggregate(
                "up",
                "each round: its compressed gradient on a minibatch (a batch of one row can give that row away)",
                2 * whole,
            ),
            match self.answered_len() {
                0 => aggregate(
                    "answer",
                    "at evaluations: its mean loss, and distances of its memory",
                    64,
                ),
                _ => aggregate(
                    "answer",
                    "at evaluations: its mean loss, its gradient, and distances of its memory",
                    whole + 64,
                ),
            },
        ];
        if self.opens() {
            all.push(aggregate("up", "once: its gradient at the first model, exactly", whole));
        }
        all
    }
}

impl Sgd {
    /// The model that the job asks for.
    pub fn delivered(&self, server: &Server) -> Vec<f64> {
        if self.average == Average::Last || server.average_weight == 0.0 {
            return server.w.clone();
        }
        server.average.iter().map(|w| w / server.average_weight).collect()
    }

    fn opens(&self) -> bool {
        self.open_memories && self.uplinks[0].has_memory()
    }

    /// `w̄_K = Σ λ_k w_{k−1} / Σ λ_k`, with `λ_k = 1` or `1/γ_{k−1}`.
    fn count_into_average(&self, server: &mut Server, gamma: f64) {
        let lambda = match self.average {
            Average::Last => return,
            Average::Uniform => 1.0,
            Average::Weighted => 1.0 / gamma,
        };
        vector::axpy(&mut server.average, lambda, &server.w);
        server.average_weight += lambda;
    }
}

/// The weight of a client whose constants can be used.
fn checked(weights: Weights, id: ClientId, summary: &Summary) -> Result<f64> {
    let constants = [summary.smoothness, summary.strong_convexity, summary.sigma2];
    if constants.iter().any(|c| !(*c >= 0.0 && c.is_finite())) {
        return Err(Error::peer(format!("client {id} sent constants that no loss has")));
    }
    check_sums(id, &constants)?;
    weights.of(id, summary.rows)
}
