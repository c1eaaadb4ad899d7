//! FedEM: expectation maximisation over compressed sufficient statistics.
//!
//! Reference: Dieuleveut, Fort, Moulines, Robin, *Federated Expectation Maximization with
//! heterogeneity mitigation and variance reduction*, NeurIPS 2021, Algorithm 1 (with partial
//! participation; Algorithm 4 is the same with independent Bernoulli cohorts, Algorithm 3 with
//! everyone, Algorithm 6 with everyone and no compression).
//!
//! | paper | here | meaning |
//! |---|---|---|
//! | `Ŝ_k` | `s_hat` | the global statistic |
//! | `T` | `LatentModel::maximize` | from statistics to parameters |
//! | `s̄_i` | `LatentModel::expect` | client i's mean conditional expectation |
//! | `S_{k+1,i}` | `s_i` | its estimate from a minibatch |
//! | `h_i(s) = s̄_i(T(s)) − s` | oracle | client i's field |
//! | `V_{k,i}`, `V_k` | uplink memory | what both ends know of `h_i` |
//! | `Quant`, `ω`, `α` | uplink codec, `omega`, `alpha` | compression |
//! | `H_{k+1}` | `field` | the estimated mean field |
//! | `γ_k` | `schedule` | the step |
//! | `p`, `n` | inclusion, total weight | participation, clients |
//!
//! Reduces to
//! - pooled EM: everyone, exact codec, step 1, full batches;
//! - Algorithm 3: everyone; then, with an exact codec, `alpha` and the first memories do not matter;
//! - the naive distributed EM of Appendix A (`dem`): a plain uplink.
//!
//! VR-FedEM, Algorithm 2, is FedEM with another [`Oracle`]; only `S_{k+1,i}` differs, and its lines 9
//! to 17 are lines 7 to 17 of Algorithm 1.
//!
//! What goes down is the job's `form`: the `pair` `(Ŝ, T(Ŝ))` of the paper; the `state` `Ŝ` alone,
//! with `T` computed on the client from pooled moments sent once; or, `lean`, `T(Ŝ)` alone, where
//! the oracle is `s̄_i` itself and the server subtracts `Ŝ`. With an exact codec and everyone all
//! three are the same iterates.
//!
//! Departures from the paper
//! - clients are weighted by their rows unless equal weights are asked for: then (1) is pooled
//!   EM's objective for clients of unequal size, too;
//! - `Ŝ_0 = s̄(θ_0)`, as in the paper's experiments, is the first round, with everyone (so that R
//!   rounds of EM are R steps from `θ_0`); `V_{0,i} = h_i(Ŝ_0)` takes a counted exchange after it;
//! - what `T` needs beside the statistic (second moments) is sent once at enrolment;
//! - `T` clips to the interior of its domain, and the count of clips is a metric.

mod evaluate;
mod form;
mod oracle;
mod state;

pub use crate::settings::{Batch, Budget, Weights};
pub use form::Form;
pub use oracle::{Decoded, Oracle, Running};
pub(crate) use state::list_bytes;
pub use state::{Client, Down, Peer, Phase, Server, Summary, Up};

use crate::settings::check_sums;
use crate::step::Schedule;
use oracle::Estimate;
use state::Fold;
use std::collections::BTreeMap;
use std::sync::Arc;
use whimbrel_codec::channel::{DownClient, DownMessage, Downlink, Uplink};
use whimbrel_core::method::{Artifact, Bind, Cohort, Disclosure, Method, Next, Sender};
use whimbrel_core::{ClientData, ClientId, Error, Key, Result, sum::ExactSum, vector};
use whimbrel_models::{LatentModel, Maximum};

/// A run whose first rounds all needed repair, so many of them, stops: its statistic lives outside
/// the domain.
const REPAIRED_ROUNDS_MAX: u32 = 100;

/// How the model's first parameters and final form are made: what FedEM needs beside the E- and
/// M-step.
pub trait Initial<M: LatentModel>: Send + Sync + 'static {
    /// Rows that a client offers as starting points, row-major; empty where none leave it.
    fn offer(&self, model: &M, data: &M::Data, key: Key) -> Result<Vec<f64>>;
    /// `theta_0` from the pooled moments and the offers (with the weights of their clients).
    fn first(
        &self,
        model: &M,
        moments: &[f64],
        offers: &[(f64, Vec<f64>)],
        key: Key,
    ) -> Result<M::Parameters>;
    /// The fitted model as named tensors.
    fn artifact(&self, model: &M, theta: &M::Parameters) -> Artifact;
    /// The mixture weights or whatever else is worth a curve in the report.
    fn weights(&self, model: &M, theta: &M::Parameters) -> Vec<f64>;
    /// How many numbers the model's moments have.
    fn moments_len(&self, model: &M) -> usize;
    /// What is added to negative log-densities to state them in the units of the data.
    fn log_scale(&self) -> f64;
    /// How many numbers of raw rows a client offers at most; zero where none leave it.
    fn offers_max(&self, model: &M) -> usize;
}

/// Hyper-parameters.
pub struct FedEm<M: LatentModel> {
    /// The model.
    pub model: M,
    /// How it starts.
    pub initial: Arc<dyn Initial<M>>,
    /// `γ_k`.
    pub schedule: Schedule,
    /// When to stop.
    pub budget: Budget,
    /// How a client estimates its statistic.
    pub oracle: Oracle,
    /// Which rows an oracle call uses.
    pub batch: Batch,
    /// How clients are weighted.
    pub weights: Weights,
    /// Where the memories start.
    pub memories: FirstMemories,
    /// What goes down.
    pub form: Form,
    /// Uplinks, alike in their rule: everyone's, then those of clients with a codec of their own.
    pub uplinks: Vec<Uplink>,
    /// Clients with an uplink of their own, by id.
    pub own_uplinks: BTreeMap<u32, u8>,
    /// The way down.
    pub downlink: Downlink,
}

/// `V_{0,i}`.
#[derive(Clone, PartialEq, Debug)]
pub enum FirstMemories {
    /// `h_i(Ŝ_0)`, as Theorem 1 asks: one counted exchange.
    Oracle,
    /// Zero.
    Zero,
    /// One vector for every client, known to both ends from the job.
    Given(Vec<f64>),
}

/// Binds a client's rows for any latent-variable model.
pub struct BindRows;

impl<M: LatentModel> Bind<FedEm<M>> for BindRows {
    fn bind(&self, method: &FedEm<M>, data: &ClientData) -> Result<M::Data> {
        method.model.bind(data)
    }
}

impl<M: LatentModel> Method for FedEm<M> {
    type Data = M::Data;
    type Server = Server;
    type Peer = Peer;
    type Client = Client;
    type Summary = Summary;
    type Down = Down;
    type Up = Up;
    type Broadcast = ();
    type Fold = Fold;

    fn enroll(&self, data: &M::Data, key: Key) -> Result<(Client, Summary)> {
        let client = Client {
            up: self.first_memory(),
            down: self.downlink.client(),
            position: 0,
            running: None,
            moments: Vec::new(),
        };
        let summary = Summary {
            rows: self.model.rows(data) as u64,
            moments: self.model.moments(data)?,
            offers: self.initial.offer(&self.model, data, key)?,
        };
        Ok((client, summary))
    }

    fn start(
        &self,
        roster: &mut dyn Iterator<Item = (ClientId, Summary)>,
        key: Key,
    ) -> Result<Server> {
        let mut total = 0.0;
        let mut moments: Option<ExactSum> = None;
        let mut offers = Vec::new();
        for (id, summary) in roster {
            let weight = self.weights.of(id, summary.rows)?;
            total += weight;
            let sum = moments.get_or_insert_with(|| ExactSum::new(summary.moments.len()));
            add_checked(sum, id, &summary.moments, weight)?;
            check_sums(id, &summary.offers)?;
            offers.push((summary.rows as f64, summary.offers));
        }
        let Some(moments) = moments else {
            return Err(Error::data("there is no client"));
        };
        let mut mean = moments.value();
        vector::scale(&mut mean, 1.0 / total);
        let theta = self.initial.first(&self.model, &mean, &offers, key)?;
        let sent = self.model.to_vector(&theta);
        Ok(Server {
            phase: Phase::Statistic,
            round: 0,
            s_hat: vec![0.0; self.model.statistic_len()],
            theta: sent,
            down: self.downlink.server(&[]),
            // `admit` adds each client, now and later.
            moments_sum: vec![0.0; mean.len()],
            total: 0.0,
            rows: 0,
            clients: 0,
            up: self.uplinks[0].server(),
            update_norm2: None,
            spread: None,
            expectations: 0,
            repairs: 0,
            repaired_rounds: 0,
            dead: Vec::new(),
        })
    }

    fn admit(&self, server: &mut Server, id: ClientId, summary: &Summary) -> Result<Peer> {
        let weight = self.weights.of(id, summary.rows)?;
        if summary.moments.len() != server.moments_sum.len() {
            return Err(Error::peer(format!("client {id} sent moments of another length")));
        }
        check_sums(id, &summary.moments)?;
        server.total += weight;
        server.rows += summary.rows;
        server.clients += 1;
        vector::axpy(&mut server.moments_sum, weight, &summary.moments);
        if let FirstMemories::Given(v_0) = &self.memories
            && self.has_memory()
        {
            vector::axpy(&mut server.up.memory_sum, weight, v_0);
        }
        Ok(Peer {
            weight,
            rows: summary.rows,
            uplink: self.own_uplinks.get(&id.0).copied().unwrap_or(0),
            outer: None,
            whole: false,
            moments_of: 0,
            down: self.downlink.admit(&mut server.down, id),
        })
    }

    fn next(&self, server: &Server) -> Next {
        let done = match self.budget {
            Budget::Rounds(rounds) => server.round >= rounds,
            Budget::Epochs(epochs) => server.epoch() >= epochs,
        };
        match server.phase {
            _ if done => Next::Stop,
            Phase::Statistic => Next::Round(Cohort::Everyone),
            Phase::Memory => Next::Opening,
            Phase::Fit => Next::Round(Cohort::Sampled),
        }
    }

    fn broadcast(&self, _: &Server) -> Result<()> {
        Ok(())
    }

    fn downlink(&self, server: &Server, (): &(), peer: &Peer, _: Key) -> Result<(Peer, Down)> {
        let mut next = peer.clone();
        let mut moments = None;
        let state = match server.phase {
            // θ_0 alone: Ŝ_0 does not exist yet, nor does the channel.
            Phase::Statistic => DownMessage::whole(&server.theta),
            // Send Ŝ_{k+1} and T(Ŝ_{k+1})                                    (Alg. 1, l. 17)
            Phase::Memory | Phase::Fit => {
                let state = self.published(server);
                let (down, message) = self.downlink.send(&server.down, &peer.down, &state)?;
                next.down = down;
                if self.form == Form::State && peer.moments_of != server.clients {
                    moments = Some(server.moments());
                    next.moments_of = server.clients;
                }
                message
            }
        };
        // The loop travels, and a client's first upload of one is a pass over all its rows.
        let outer = (server.phase == Phase::Fit).then(|| self.oracle.outer(server.k())).flatten();
        next.whole = outer.is_some() && outer != peer.outer;
        next.outer = outer;
        Ok((next, Down { phase: server.phase, uplink: peer.uplink, outer, state, moments }))
    }

    fn local_step(
        &self,
        client: &Client,
        down: &Down,
        data: &M::Data,
        key: Key,
    ) -> Result<(Client, Up)> {
        let Received { down: down_end, moments, s_hat, theta, coordinates } =
            self.receive(client, down)?;
        let uplink = self
            .uplinks
            .get(usize::from(down.uplink))
            .ok_or_else(|| Error::peer("a message names an uplink that the job does not have"))?;
        // S_{k+1,i}, an approximation of s̄_i(T(Ŝ_k))                         (Alg. 1, l. 6)
        let estimate = match down.phase {
            Phase::Fit => self.estimate(client, down, (theta, coordinates), data, key)?,
            Phase::Statistic | Phase::Memory => Estimate {
                s_i: self.whole_statistic(&theta, data)?,
                position: client.position,
                running: None,
            },
        };
        let mut oracle = estimate.s_i;
        if let Some(s_hat) = &s_hat {
            vector::axpy(&mut oracle, -1.0, s_hat);
        }
        // Δ_{k+1,i} = S_{k+1,i} − V_{k,i} − Ŝ_k; send Quant(Δ); V += α Quant(Δ)    (l. 7 to 9)
        let (up, packet) = match down.phase {
            Phase::Statistic => (client.up.clone(), uplink.open(&oracle)?.1),
            Phase::Memory => uplink.open(&oracle)?,
            Phase::Fit => uplink.send(&client.up, &oracle, key)?,
        };
        let client = Client {
            up,
            down: down_end,
            position: estimate.position,
            running: estimate.running,
            moments,
        };
        Ok((client, Up { phase: down.phase, packet }))
    }

    fn fold(&self, server: &Server) -> Fold {
        let (up, down) = (self.uplinks[0].fold(), self.downlink.fold());
        Fold { phase: server.phase, up, down, expectations: 0 }
    }

    fn absorb(&self, fold: &mut Fold, from: Sender<'_, Peer>, up: Up) -> Result<()> {
        if up.phase != fold.phase {
            return Err(Error::peer(format!(
                "client {} answered an exchange that is over",
                from.id
            )));
        }
        let peer = from.peer;
        let uplink = &self.uplinks[usize::from(peer.uplink)];
        if fold.phase == Phase::Fit {
            uplink.absorb(&mut fold.up, peer.weight, from.inclusion, &up.packet)?;
            self.downlink.absorb(&mut fold.down, &peer.down)?;
            fold.expectations += self.oracle.expectations(&self.batch, peer.rows, peer.whole);
        } else {
            uplink.absorb_opening(&mut fold.up, peer.weight, &up.packet)?;
            fold.expectations += peer.rows;
        }
        Ok(())
    }

    fn merge(&self, fold: &mut Fold, other: Fold) -> Result<()> {
        fold.expectations += other.expectations;
        self.downlink.merge(&mut fold.down, &other.down)?;
        self.uplinks[0].merge(&mut fold.up, &other.up)
    }

    fn server_step(&self, mut server: Server, fold: Fold, key: Key) -> Result<Server> {
        server.expectations += fold.expectations;
        match server.phase {
            // Ŝ_0 = s̄(θ_0): the first round. Asked again where nobody was heard.
            Phase::Statistic => {
                server.round += 1;
                if let Some(s_0) = self.uplinks[0].mean_opening(&fold.up) {
                    server.s_hat = s_0;
                    self.move_parameters(&mut server)?;
                    let published = self.published(&server);
                    self.downlink.restart(&mut server.down, &published);
                    server.phase = self.after_statistic();
                }
            }
            // V_{0,i} = h_i(Ŝ_0), V_0 = Σ (n_i/N) V_{0,i}                     (Alg. 1, l. 1)
            Phase::Memory => {
                self.uplinks[0].collect_opening(&mut server.up, &fold.up);
                server.phase = Phase::Fit;
            }
            Phase::Fit => {
                // H_{k+1} = V_k + Σ_A (n_i/(N p)) Quant(Δ_i);  V += α Σ_A (n_i/N) Quant(Δ_i)
                //                                                        (Alg. 1, l. 14 and 16)
                let mut field = self.uplinks[0].collect(&mut server.up, &fold.up, server.total);
                if self.form == Form::Lean {
                    vector::axpy(&mut field, -1.0, &server.s_hat);
                }
                // Ŝ_{k+1} = Ŝ_k + γ_{k+1} H_{k+1}                            (Alg. 1, l. 15)
                let gamma = self.schedule.at(server.k());
                vector::axpy(&mut server.s_hat, gamma, &field);
                server.update_norm2 = Some(vector::norm2_squared(&field));
                server.spread = self.downlink.spread(&fold.down);
                server.round += 1;
                // T(Ŝ_{k+1}), published; the state itself is published first, since a degraded
                // downlink replaces it.
                if self.form == Form::State {
                    let wanted = std::mem::take(&mut server.s_hat);
                    server.s_hat =
                        self.downlink.publish(&mut server.down, wanted, &fold.down, key)?;
                    self.move_parameters(&mut server)?;
                } else {
                    self.move_parameters(&mut server)?;
                    let wanted = self.published(&server);
                    self.downlink.publish(&mut server.down, wanted, &fold.down, key)?;
                }
            }
        }
        Ok(server)
    }

    fn magnitude(&self, server: &Server) -> f64 {
        // Clients may run away while the server does not.
        let local2 = server.spread.map_or(0.0, |spread| spread.local2);
        vector::norm2_squared(&server.s_hat).max(local2).sqrt()
    }

    fn artifact(&self, server: &Server) -> Result<Artifact> {
        let theta = self.model.from_vector(&server.theta)?;
        Ok(self.initial.artifact(&self.model, &theta))
    }

    fn disclosures(&self) -> Vec<Disclosure> {
        let mut all = self.summary_disclosures();
        let opens = self.after_statistic() == Phase::Memory;
        all.extend(state::disclosures(self.uplinks[0].dimension(), opens));
        all
    }
}

impl<M: LatentModel> FedEm<M> {
    /// What leaves a client at enrolment.
    pub(crate) fn summary_disclosures(&self) -> Vec<Disclosure> {
        state::summary_disclosures(
            self.initial.moments_len(&self.model),
            self.initial.offers_max(&self.model),
        )
    }

    /// Whether both ends of the uplinks keep memories: all of them do, or none.
    fn has_memory(&self) -> bool {
        self.uplinks[0].has_memory()
    }

    fn first_memory(&self) -> whimbrel_codec::channel::UpClient {
        let mut end = self.uplinks[0].client();
        if let FirstMemories::Given(v_0) = &self.memories
            && self.has_memory()
        {
            end.kept = v_0.clone();
        }
        end
    }

    fn after_statistic(&self) -> Phase {
        if self.has_memory() && self.memories == FirstMemories::Oracle {
            Phase::Memory
        } else {
            Phase::Fit
        }
    }

    /// What goes down.
    fn published(&self, server: &Server) -> Vec<f64> {
        match self.form {
            Form::Pair => [&server.s_hat[..], &server.theta[..]].concat(),
            Form::State => server.s_hat.clone(),
            Form::Lean => server.theta.clone(),
        }
    }

    /// What a client makes of a message.
    fn receive(&self, client: &Client, down: &Down) -> Result<Received<M>> {
        let moments = down.moments.clone().unwrap_or_else(|| client.moments.clone());
        if down.phase == Phase::Statistic {
            let theta = down.state.state().ok_or_else(|| Error::peer("the first θ is missing"))?;
            let theta = self.model.from_vector(theta)?;
            let (down, coordinates) = (client.down.clone(), Vec::new());
            return Ok(Received { down, moments, s_hat: None, theta, coordinates });
        }
        let (end, state) = self.downlink.receive(&client.down, &down.state)?;
        let q = self.model.statistic_len();
        if state.len() != self.form.published_len(&self.model) {
            return Err(Error::peer("the server's state has another length than the job's"));
        }
        let (s_hat, theta, coordinates) = match self.form {
            Form::Pair => {
                let theta = self.model.from_vector(&state[q..])?;
                (Some(state[..q].to_vec()), theta, state[q..].to_vec())
            }
            Form::State => {
                if moments.len() != self.initial.moments_len(&self.model) {
                    return Err(Error::peer("the server sent moments of another length"));
                }
                // Clips made here stay here; the metric counts the server's.
                let theta = self.model.maximize(&state, &moments)?.theta;
                let coordinates = self.model.to_vector(&theta);
                (Some(state.into_owned()), theta, coordinates)
            }
            Form::Lean => (None, self.model.from_vector(&state)?, state.into_owned()),
        };
        Ok(Received { down: end, moments, s_hat, theta, coordinates })
    }

    /// `θ = T(Ŝ)`; a run that never comes into the domain stops.
    fn move_parameters(&self, server: &mut Server) -> Result<()> {
        let Maximum { theta, repairs, dead } =
            self.model.maximize(&server.s_hat, &server.moments())?;
        server.theta = self.model.to_vector(&theta);
        server.repairs += u64::from(repairs);
        server.repaired_rounds += u32::from(repairs > 0);
        for component in dead.iter().map(|k| *k as u32) {
            if let Err(at) = server.dead.binary_search(&component) {
                server.dead.insert(at, component);
            }
        }
        if server.repaired_rounds < server.round.max(REPAIRED_ROUNDS_MAX) {
            return Ok(());
        }
        let cause = match dead.first() {
            None => "a covariance stays at its floor: lower the step, use more levels in the codec, or set reg_covar".to_string(),
            Some(k) => format!(
                "component {} has lost its weight: lower the step, use fewer components or another start",
                k + 1
            ),
        };
        Err(Error::numerical(format!(
            "each of the first {REPAIRED_ROUNDS_MAX} rounds had to be repaired; {cause}"
        ))
        .in_round(server.round))
    }
}

/// A message, decoded.
struct Received<M: LatentModel> {
    down: DownClient,
    moments: Vec<f64>,
    /// `Ŝ_k`, where the form sends it.
    s_hat: Option<Vec<f64>>,
    theta: M::Parameters,
    /// `theta` as it travels; empty in the first exchange.
    coordinates: Vec<f64>,
}

fn add_checked(sum: &mut ExactSum, id: ClientId, moments: &[f64], weight: f64) -> Result<()> {
    if moments.len() != sum.len() {
        return Err(Error::peer(format!("client {id} sent moments of another length")));
    }
    check_sums(id, moments)?;
    sum.add(moments, weight)
}
