//! FedMissEM: one table of low rank, fitted to cells that stay with their observers.
//!
//! Reference: Dieuleveut, Fort, Moulines, Robin, *Federated Expectation Maximization with
//! heterogeneity mitigation and variance reduction*, NeurIPS 2021, Section 4 and Appendix F.2,
//! Algorithm 7, in residual form.
//!
//! | paper | here | meaning |
//! |---|---|---|
//! | `θ`, `U`, `V` | `Factors` | natural parameters of all cells, of low rank |
//! | `Ω^c`, `N_c` | a client's cells | the observations of client c |
//! | `Ŝ_k` | `s_hat` | the completed table, dense, on the server alone |
//! | `T` | `LowRank::advance` | from the table to the factors |
//! | `(I_k^c, J_k^c)` | minibatch B of `b_c` cells | drawn among the *observed* cells |
//! | `V_k^c` | memory `R_c` | the client's residuals as both ends know them, on its own cells |
//! | `Quant`, `ω`, `α` | codec, `omega`, `alpha` | compression of the `b_c` numbers |
//! | `H_{k+1}` | field | the estimated mean field |
//! | `n` complete tables | `copies` M | completed-data copies of EM; the paper has `M = n` |
//!
//! Client c sends `Q_c = Quant(P_B(Y_c − ψ'(θ)) − P_B R_c)` and moves `R_c` by `α Q_c` on B. The
//! server has `H = ψ'(θ) − Ŝ + (1/M)[Σ_c R_c + Σ_{c heard} (N_c/(b_c p_c)) Q_c]`, then
//! `Ŝ += γ H` and `θ = T(Ŝ)`.
//!
//! Reduces to
//! - soft-impute: a Gaussian table, everyone, full batches, exact codec, step 1, one copy;
//! - Algorithm 7 with full batches: `M = n`, everyone, exact codec.
//!
//! Departures from the paper
//! - the residual form: line 10 of Algorithm 7 imputes `θ` where a missing cell's expectation is
//!   `ψ'(θ)`, and its minibatch leaves the rest of the field at zero, which is biased. Fixed points
//!   and full-batch iterates are those of Algorithm 7; only `θ` goes down;
//! - the number of copies `M` may be smaller than `n`, and the penalties in `T` are multiplied by
//!   `n/M`: the same optimum in fewer rounds (see `whimbrel_models::lowrank`);
//! - main effects, penalised, and personal effects that never leave their client;
//! - a last exchange finds the dispersion and calibrates intervals on held-out cells.

mod client;
mod evaluate;
pub mod select;
mod server;
mod settings;
mod state;
pub mod units;

pub use settings::{Copies, FedMiss, PERSONAL_MAX, StepRule, auto_step};
pub use state::{Broadcast, Client, Down, Fold, Peer, Phase, Positions, Server, Summary, Up};

use crate::federated::aggregate;
use crate::settings::largest_norm;
use client::minibatch;
use std::borrow::Cow;
use whimbrel_codec::Codec;
use whimbrel_codec::channel::{DownMessage, Frames, UpClient, UpFold, UpServer, Upload};
use whimbrel_core::method::{
    Allowance, Artifact, Bind, Cohort, Declaration, Disclosure, Done, Exposure, Method, Next,
    Place, Sender, Status,
};
use whimbrel_core::{ClientData, ClientId, Error, Key, Result};
use whimbrel_models::lowrank::interval::CLASSES;
use whimbrel_models::lowrank::{Factors, LowRankFit, Observed, REPEATS_MAX, ScoreSums, Scores};

/// Consecutive exchanges of scores without an answer after which a stage gives up.
const UNANSWERED_MAX: u32 = 1000;

/// Binds a client's cells.
pub struct BindCells;

impl Bind<FedMiss> for BindCells {
    fn bind(&self, method: &FedMiss, data: &ClientData) -> Result<Observed> {
        method.model.bind(data)
    }
}

impl Method for FedMiss {
    type Data = Observed;
    type Server = Server;
    type Peer = Peer;
    type Client = Client;
    type Summary = Summary;
    type Down = Down;
    type Up = Up;
    type Broadcast = Broadcast;
    type Fold = Fold;

    fn declare(&self) -> Declaration {
        Declaration {
            exchanges: self.allowances(),
            disclosures: self.disclosures(),
            measures: self.measures(),
            ..Declaration::default()
        }
    }

    fn enroll(&self, data: &Observed, _: Key) -> Result<(Client, Summary)> {
        self.check()?;
        let cells = self.positions(data);
        let most = cells.0.len().max(data.held_out.len());
        if most > self.cells_max() {
            return Err(Error::data(format!(
                "it has {most} observations of {} cells; at most {REPEATS_MAX} per cell are allowed",
                self.model.cells()
            )));
        }
        let sum = data.cells.iter().map(|cell| cell.value).sum();
        let up = UpClient::default();
        let client = Client { up, effect: 0.0, down: self.downlink.client() };
        Ok((client, Summary { cells, sum }))
    }

    fn start(
        &self,
        roster: &mut dyn Iterator<Item = (ClientId, Summary)>,
        key: Key,
    ) -> Result<Server> {
        self.check()?;
        let (mut union, mut sum, mut count) = (Vec::new(), 0.0, 0u64);
        for (id, summary) in roster {
            self.check_summary(id, &summary)?;
            sum += summary.sum;
            count += summary.cells.0.len() as u64;
            union.extend(summary.cells.0);
        }
        union.sort_unstable();
        union.dedup();
        if count == 0 {
            return Err(Error::data("there is no client"));
        }
        // θ_0: given, or every cell near the mean of all observations; Ŝ_0 = ψ'(θ_0).
        let factors = match &self.start {
            Some(given) => Factors::from_vector(&self.model, given)?,
            None => Factors::start(&self.model, sum / count as f64, key),
        };
        let s_hat = self.model.expected(&factors);
        let opens = self.opens();
        let mut server = Server {
            phase: if opens { Phase::Memory } else { Phase::Fit },
            round: 0,
            down: self.downlink.server(&factors.to_vector(&self.model)),
            s_hat,
            factors,
            by_cell: (0..union.len() as u32).collect(),
            counts: vec![0; union.len()],
            up: UpServer::default(),
            union,
            clients: 0,
            observations: 0,
            amplification: 0.0,
            table_norm2: 0.0,
            update_norm2: None,
            spread: None,
            residuals: 0,
            sweeps: 0,
            repairs: 0,
            ceiling: None,
            calibration: None,
        };
        if !opens {
            self.end_if_done(&mut server);
        }
        Ok(server)
    }

    fn admit(&self, server: &mut Server, id: ClientId, summary: &Summary) -> Result<Peer> {
        self.check_summary(id, summary)?;
        let codec = self.own_codecs.get(&id.0).copied().unwrap_or(0);
        let amplification = self.amplification_of(codec, summary.cells.0.len())?;
        let places = server.take_in(&summary.cells.0);
        if self.has_memory() {
            server.up.memory_sum.resize(server.union.len(), 0.0);
        }
        server.clients += 1;
        server.observations += places.len() as u64;
        server.amplification = server.amplification.max(amplification);
        let down = self.downlink.admit(&mut server.down, id);
        Ok(Peer { codec, places, down })
    }

    fn rows(&self, peer: &Peer) -> Option<u64> {
        Some(peer.places.len() as u64)
    }

    fn place(&self, _: &Client, down: &Down) -> Result<Place> {
        let kind = match down.phase {
            Phase::Memory => 0,
            Phase::Fit => 1,
            Phase::Calibrate | Phase::Over => 2,
        };
        Ok(kind.into())
    }

    fn status(&self, server: &Server) -> Status {
        Status::new(self.next(server), self.magnitude(server))
    }

    fn open(&self, server: &Server, _: &[ClientId]) -> Result<(Broadcast, Fold)> {
        Ok((self.broadcast(server)?, self.fold(server)))
    }

    fn downlink(
        &self,
        server: &Server,
        Broadcast { theta, messages }: &Broadcast,
        peer: &Peer,
        _: Key,
    ) -> Result<(Peer, Down)> {
        // Send θ_k                                                           (Alg. 7, l. 21)
        let (end, known) = (&server.down, &peer.down);
        let (record, state) = match server.phase {
            // The last exchange judges the delivered table, not the one that a client decoded.
            Phase::Calibrate => (known.clone(), messages.get(0, || DownMessage::whole(theta))),
            _ => self.downlink.send_shared(end, messages, known, theta, Frames::NONE)?,
        };
        let (phase, codec, clients) = (server.phase, peer.codec, server.clients);
        let observations = (phase == Phase::Calibrate).then(|| self.observations(server).into());
        let ceiling = server.ceiling.clone();
        let down = Down { phase, codec, clients, ceiling, observations, state };
        Ok((Peer { down: record, ..peer.clone() }, down))
    }

    fn local_step(
        &self,
        client: &Client,
        down: &Down,
        data: &Observed,
        key: Key,
    ) -> Result<Done<Self>> {
        self.upload(client, down, data, key)
    }

    fn absorb(&self, fold: &mut Fold, from: Sender<'_, Peer>, up: Up) -> Result<()> {
        let id = from.id;
        if up.phase != fold.phase {
            return Err(Error::peer(format!("client {id} answered an exchange that is over")));
        }
        let Peer { codec, places, down } = from.peer;
        let (all, b_c) = (places.len(), self.batch_of(places.len()));
        let (fits, ends) = (fold.phase == Phase::Fit, fold.phase == Phase::Calibrate);
        let ends_alone = up.scores.is_some() == ends && (!ends || up.packet.is_empty());
        if up.draw.is_some() != (fits && b_c < all) || !ends_alone {
            return Err(Error::peer(format!("client {id} sent an answer of another kind")));
        }
        match up.scores {
            Some(scores) => fold.scores.absorb(&scores)?,
            None if fits => {
                let at = match up.draw {
                    None => Cow::Borrowed(places),
                    Some(address) => {
                        let batch = minibatch(address, all, b_c).into_iter();
                        Cow::Owned(batch.map(|i| places[i]).collect::<Vec<u32>>())
                    }
                };
                // A cell of the client is in an upload with probability p_c b_c/N_c.
                let inclusion = from.inclusion * b_c as f64 / all as f64;
                let uplink = self.uplink(*codec, b_c)?;
                let upload = Upload { coordinates: Some(&at), ..Upload::whole(&up.packet, 1.0) };
                uplink.absorb::<f64>(&mut fold.up, &upload, inclusion)?;
                self.downlink.absorb(&mut fold.down, down)?;
                fold.residuals += b_c as u64;
            }
            None => {
                let uplink = self.uplink(*codec, all)?;
                let upload = Upload { coordinates: Some(places), ..Upload::whole(&up.packet, 1.0) };
                uplink.absorb_opening::<f64>(&mut fold.up, &upload)?;
                fold.residuals += all as u64;
            }
        }
        Ok(())
    }

    fn merge(&self, fold: &mut Fold, other: Fold) -> Result<()> {
        self.downlink.merge(&mut fold.down, &other.down)?;
        self.uplink(0, 1)?.merge(&mut fold.up, &other.up)?;
        fold.scores.merge(&other.scores)?;
        fold.residuals += other.residuals;
        Ok(())
    }

    fn server_step(&self, server: Server, fold: Fold, key: Key) -> Result<Server> {
        match server.phase {
            Phase::Memory => self.open(server, &fold),
            Phase::Fit => self.move_table(server, &fold, key),
            Phase::Calibrate => self.calibrate(server, &fold),
            Phase::Over => Ok(server),
        }
    }

    fn artifact(&self, server: &Server) -> Result<Artifact> {
        let fit = LowRankFit {
            model: self.model.clone(),
            factors: server.factors.clone(),
            ceiling: self.ceiling_of(server),
            clients: server.clients,
            observations: self.observations(server),
            calibration: server.calibration.clone(),
            uncertainty: self.uncertainty(server)?,
        };
        Ok(fit.to_artifact())
    }

    /// The personal effect `e_c`.
    fn client_artifact(&self, client: &Client, _: &Observed) -> Result<Option<Artifact>> {
        let own = || Artifact::new("low-rank-client").with("effect", &[], vec![client.effect]);
        Ok(self.personal.then(own))
    }
}

/// Largest accepted value: squares of larger numbers, summed over a table, could overflow.
const VALUE_MAX: f64 = 1e100;

impl FedMiss {
    fn allowances(&self) -> Vec<Allowance> {
        vec![
            Allowance { most: Some(u32::from(self.opens())), ..Allowance::opening("memories", 0) },
            Allowance::rounds(self.budget.rounds_max()),
            Allowance::opening("calibration", Allowance::ROUNDS + 1),
        ]
    }

    fn next(&self, server: &Server) -> Next {
        match server.phase {
            Phase::Memory | Phase::Calibrate => Next::Uncounted,
            Phase::Fit => Next::Round(Cohort::Sampled),
            Phase::Over => Next::Stop,
        }
    }

    fn broadcast(&self, server: &Server) -> Result<Broadcast> {
        let messages = self.downlink.shared_messages(&server.down);
        Ok(Broadcast { theta: server.factors.to_vector(&self.model), messages })
    }

    fn fold(&self, server: &Server) -> Fold {
        let up = match server.phase {
            Phase::Memory | Phase::Fit => server.union.len(),
            Phase::Calibrate | Phase::Over => 0,
        };
        Fold {
            phase: server.phase,
            residuals: 0,
            up: UpFold::new(up, self.has_memory()),
            down: self.downlink.fold(),
            scores: ScoreSums::default(),
        }
    }

    fn magnitude(&self, server: &Server) -> f64 {
        let local2 = server.spread.map_or(0.0, |spread| spread.local2);
        largest_norm([server.observed_norm2(), local2])
    }

    fn disclosures(&self) -> Vec<Disclosure> {
        let cells = self.cells_max();
        let list = |numbers: usize| 10 + 8 * numbers;
        // No codec writes twice the bytes of the vector itself.
        let batch = 20 + 2 * list(self.batch_of(cells));
        // A held-out cell has its score, and one in each class of fewer observations.
        let scores = Scores::bytes_max(self.model.family(), CLASSES as usize * cells);
        let rows = |message, bytes_max, meaning: &str| Disclosure {
            exposure: Exposure::Rows,
            ..aggregate(message, meaning, bytes_max)
        };
        let exact = self.codecs.iter().all(|codec| *codec == Codec::Exact);
        let each_round = format!(
            "each round: differences between observed and predicted values of {}, with the number of the \
             draw{}",
            if self.batch_of(cells) < cells { "some cells, drawn at random" } else { "all cells" },
            if exact { "" } else { ", compressed" }
        );
        let mut all = vec![
            rows(
                "summary",
                10 + 10 * cells,
                "which cells of the table are observed, without their values",
            ),
            aggregate("summary", "the sum of the observed values", 8),
        ];
        if self.opens() {
            let meaning = "once: the distance of each observed value from the first mean, exactly";
            all.push(rows("up", list(cells), meaning));
        }
        all.extend([
            rows("up", batch, &each_round),
            aggregate("up", "at the end: sums over the cells, and counts of how well cells kept out were predicted, also from a few others of their row", scores),
            rows("answer", list(cells) + 40 + scores, "at evaluations: differences between observed and predicted values of all cells, sums over them and over cells kept out, and counts of how well these were predicted"),
        ]);
        all
    }

    /// The most observations of one client.
    fn cells_max(&self) -> usize {
        self.model.settings().observations_max
    }

    /// The cells of a client's observations.
    fn positions(&self, data: &Observed) -> Positions {
        Positions(data.cells.iter().map(|cell| self.model.position(cell)).collect())
    }

    /// The numbers of observations of each row, and of each column.
    fn observations(&self, server: &Server) -> [Vec<u32>; 2] {
        let mut counts = [self.model.rows(), self.model.columns()].map(|lines| vec![0u32; lines]);
        for (cell, count) in server.union.iter().zip(&server.counts) {
            for (side, at) in counts.iter_mut().zip(self.model.place(*cell)) {
                side[at] = side[at].saturating_add(*count);
            }
        }
        counts
    }

    fn check_summary(&self, id: ClientId, summary: &Summary) -> Result<()> {
        let cells = &summary.cells.0;
        if cells.is_empty() {
            return Err(Error::data("it has no observed cell").of_client(id));
        }
        let inside = cells.last().is_some_and(|last| *last < self.model.cells() as u64);
        if !inside || cells.len() > self.cells_max() {
            return Err(Error::peer(format!("client {id} observed cells outside the table")));
        }
        if summary.sum.is_nan() || summary.sum.abs() > VALUE_MAX {
            return Err(Error::peer(format!("client {id} sent a sum that is not finite")));
        }
        Ok(())
    }
}
