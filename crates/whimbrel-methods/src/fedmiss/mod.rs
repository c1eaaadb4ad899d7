//! FedMissEM: one table of low rank, fitted to cells that stay with those who observed them.
//!
//! Reference: Dieuleveut, Fort, Moulines, Robin, *Federated Expectation Maximization with
//! heterogeneity mitigation and variance reduction*, NeurIPS 2021, Section 4 and Appendix F.2,
//! Algorithm 7, in residual form.
//!
//! | paper | here | meaning |
//! |---|---|---|
//! | `θ`, `U`, `V` | `Factors` | natural parameters of all cells, of low rank |
//! | `Ω^c`, `N_c` | a client's cells | what client c observed |
//! | `Ŝ_k` | `s_hat` | the completed table, dense, on the server alone |
//! | `T` | `LowRank::advance` | from the table to the factors |
//! | `(I_k^c, J_k^c)` | minibatch B of `b_c` cells | drawn among the *observed* cells |
//! | `V_k^c` | memory `R_c` | what both ends know of the client's residuals, on its own cells |
//! | `Quant`, `ω`, `α` | codec, `omega`, `alpha` | compression of the `b_c` numbers |
//! | `H_{k+1}` | field | the estimated mean field |
//! | `n` complete tables | `copies` M | what EM imagines; the paper has `M = n` |
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

pub mod baselines;
mod client;
mod evaluate;
pub mod roll;
pub mod select;
mod server;
mod settings;
mod state;

pub use settings::{Copies, FedMiss, Memory, Mix, PERSONAL_MAX, StepRule, auto_step};
pub use state::{Client, Down, Fold, Member, Peer, Phase, Positions, Server, Summary, Up, Upload};

use crate::settings::Budget;
use whimbrel_codec::Codec;
use whimbrel_core::method::{Artifact, Bind, Cohort, Disclosure, Exposure, Method, Next, Sender};
use whimbrel_core::{ClientData, ClientId, Error, Key, Result, vector};
use whimbrel_models::lowrank::{Delivered, Factors, LowRankFit, Observed, Scores};

/// A client may observe each cell so many times: a bound on what it sends.
const REPEATS_MAX: usize = 16;

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
    type Broadcast = ();
    type Fold = Fold;

    fn enroll(&self, data: &Observed, _: Key) -> Result<(Client, Summary)> {
        self.check()?;
        let cells = Positions(data.cells.iter().map(|cell| self.position(cell)).collect());
        let most = cells.0.len().max(data.held_out.len());
        if most > self.cells_max() {
            return Err(Error::data(format!(
                "it has {most} observations of {} cells; at most {REPEATS_MAX} per cell can be used",
                self.model.cells()
            )));
        }
        let sum = data.cells.iter().map(|cell| cell.value).sum();
        let client = Client { memory: Vec::new(), effect: 0.0, down: self.downlink.client() };
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
        // θ_0: what is given, else every cell near the mean of all observations; Ŝ_0 = ψ'(θ_0).
        let factors = match &self.start {
            Some(given) => Factors::from_vector(&self.model, given)?,
            None => Factors::start(&self.model, sum / count as f64, key),
        };
        let s_hat = self.model.expected(&factors);
        let opens = self.open_memories && self.memory != Memory::Off;
        let mut server = Server {
            phase: if opens { Phase::Memory } else { Phase::Fit },
            round: 0,
            down: self.downlink.server(&factors.to_vector(&self.model)),
            s_hat,
            factors,
            basis: Vec::new(),
            by_cell: (0..union.len() as u32).collect(),
            counts: vec![0; union.len()],
            memory: vec![0.0; union.len()],
            union,
            members: Vec::new(),
            amplification: 0.0,
            table_norm2: 0.0,
            update_norm2: None,
            spread: None,
            residuals: 0,
            sweeps: 0,
            repairs: 0,
            repaired_rounds: 0,
            delivered: None,
            calibration: None,
        };
        if !opens && !self.has_rounds() {
            self.end_rounds(&mut server);
        }
        Ok(server)
    }

    fn admit(&self, server: &mut Server, id: ClientId, summary: &Summary) -> Result<Peer> {
        self.check_summary(id, summary)?;
        let places = server.take_in(&summary.cells.0);
        let cells = places.len() as u32;
        server.amplification =
            server.amplification.max(self.amplification_of(summary.cells.0.len()));
        server.members.push(Member { id: id.0, places });
        server.members.sort_by_key(|member| member.id);
        let down = self.downlink.admit(&mut server.down, id);
        Ok(Peer { cells, down })
    }

    fn next(&self, server: &Server) -> Next {
        match server.phase {
            Phase::Memory | Phase::Calibrate => Next::Opening,
            Phase::Fit => Next::Round(Cohort::Sampled),
            Phase::Over => Next::Stop,
        }
    }

    fn broadcast(&self, _: &Server) -> Result<()> {
        Ok(())
    }

    fn downlink(&self, server: &Server, (): &(), peer: &Peer, _: Key) -> Result<(Peer, Down)> {
        // Send θ_k                                                           (Alg. 7, l. 21)
        let theta = server.factors.to_vector(&self.model);
        let (record, state) = self.downlink.send(&server.down, &peer.down, &theta)?;
        let clients = server.members.len() as u32;
        // A compressed downlink leaves a client with other parameters than are handed out.
        let known = self.downlink.is_exact().then_some(&server.factors);
        let finish = server.delivered.as_ref().and_then(|table| table.finish(known));
        let down = Down { phase: server.phase, clients, state, finish };
        Ok((Peer { down: record, ..peer.clone() }, down))
    }

    fn local_step(
        &self,
        client: &Client,
        down: &Down,
        data: &Observed,
        key: Key,
    ) -> Result<(Client, Up)> {
        self.upload(client, down, data, key)
    }

    fn fold(&self, server: &Server) -> Fold {
        Fold { phase: server.phase, uploads: Vec::new(), down: self.downlink.fold() }
    }

    fn absorb(&self, fold: &mut Fold, from: Sender<'_, Peer>, up: Up) -> Result<()> {
        let id = from.id;
        if up.phase != fold.phase {
            return Err(Error::peer(format!("client {id} answered an exchange that is over")));
        }
        let cells = from.peer.cells as usize;
        let drawn = fold.phase == Phase::Fit && self.batch_of(cells) < cells;
        if up.draw.is_some() != drawn || up.scores.is_some() != (fold.phase == Phase::Calibrate) {
            return Err(Error::peer(format!("client {id} sent an answer of another kind")));
        }
        let (codec, length) = match fold.phase {
            Phase::Memory => (&Codec::Exact, cells),
            Phase::Fit => (&self.codec, self.batch_of(cells)),
            Phase::Calibrate | Phase::Over => (&Codec::Exact, 0),
        };
        let mut values = vec![0.0; length];
        codec.decode(&up.packet, &mut values)?;
        if vector::norm_inf(&values) > VALUE_MAX {
            return Err(Error::peer(format!("client {id} sent a residual that no sum can take")));
        }
        if let Some(scores) = &up.scores {
            Scores::default().merge(scores)?;
        }
        let Err(at) = fold.uploads.binary_search_by_key(&id.0, |upload| upload.id) else {
            return Err(Error::peer(format!("client {id} was heard twice in one exchange")));
        };
        self.downlink.absorb(&mut fold.down, &from.peer.down)?;
        let (draw, inclusion, scores) = (up.draw, from.inclusion, up.scores);
        fold.uploads.insert(at, Upload { id: id.0, draw, inclusion, values, scores });
        Ok(())
    }

    fn merge(&self, fold: &mut Fold, other: Fold) -> Result<()> {
        // Uploads are kept apart and added in the order of ids, so no order of arrival shows.
        self.downlink.merge(&mut fold.down, &other.down)?;
        fold.uploads.extend(other.uploads);
        fold.uploads.sort_by_key(|upload| upload.id);
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

    fn magnitude(&self, server: &Server) -> f64 {
        let local2 = server.spread.map_or(0.0, |spread| spread.local2);
        server.observed_norm2().max(local2).sqrt()
    }

    fn artifact(&self, server: &Server) -> Result<Artifact> {
        let Delivered { factors, ceiling } = self.delivered(server);
        let fit = LowRankFit {
            model: self.model.clone(),
            factors,
            ceiling,
            clients: server.members.len() as u32,
            calibration: server.calibration,
            uncertainty: self.uncertainty(server)?,
        };
        let mut artifact = fit.to_artifact();
        // No value shaped their factors: whoever uses the table must know.
        for (name, bare) in UNOBSERVED.into_iter().zip(self.unobserved(server)) {
            if !bare.is_empty() {
                let bare: Vec<f64> = bare.into_iter().map(|i| i as f64).collect();
                artifact = artifact.with(name, &[bare.len()], bare);
            }
        }
        Ok(artifact)
    }

    fn disclosures(&self) -> Vec<Disclosure> {
        let aggregate = |message, meaning: &str, bytes_max| Disclosure {
            message,
            meaning: meaning.into(),
            bytes_max,
            exposure: Exposure::Aggregate,
        };
        let cells = self.cells_max();
        let list = |numbers: usize| 10 + 8 * numbers;
        let scores = Scores::bytes_max(self.model.family(), cells);
        let mut all = vec![
            Disclosure {
                message: "summary",
                meaning: "which cells it observed (where, not what), as often as it did".into(),
                bytes_max: 10 + 10 * cells,
                exposure: Exposure::Rows,
            },
            aggregate("summary", "the sum of the values it observed", 8),
        ];
        let exact = Disclosure {
            message: "up",
            meaning: "once: how far each value it observed is from the first mean, exactly".into(),
            bytes_max: list(cells),
            exposure: Exposure::Rows,
        };
        if self.open_memories && self.memory != Memory::Off {
            all.push(exact);
        }
        all.extend([
            Disclosure {
                message: "up",
                meaning: "each round: the compressed residuals of a minibatch of its cells, and the address of the draw".into(),
                // No codec writes twice the bytes of the vector itself.
                bytes_max: 20 + 2 * list(self.batch_of(cells)),
                exposure: Exposure::Rows,
            },
            aggregate("up", "at the end: sums over its cells, and histograms of the scores of cells held out", scores),
            Disclosure {
                message: "answer",
                meaning: "at evaluations: the residuals of its cells, sums over them and over the cells held out, and a histogram of scores".into(),
                bytes_max: list(cells) + 40 + scores,
                exposure: Exposure::Rows,
            },
        ]);
        all
    }
}

/// Tensors of a delivered table: the rows, and the columns, in which nobody's fit had a cell. Each
/// is there only where there is one.
pub const UNOBSERVED: [&str; 2] = ["unobserved_rows", "unobserved_columns"];

/// Squares of larger numbers, summed over a table, could overflow.
const VALUE_MAX: f64 = 1e100;

impl FedMiss {
    /// The most observations of one client.
    fn cells_max(&self) -> usize {
        REPEATS_MAX * self.model.cells()
    }

    /// A cell's number in the table.
    fn position(&self, cell: &whimbrel_core::Cell) -> u64 {
        u64::from(cell.row) * self.model.columns() as u64 + u64::from(cell.column)
    }

    /// Rows and columns without an observed cell.
    fn unobserved(&self, server: &Server) -> [Vec<usize>; 2] {
        let (rows, columns) = (self.model.rows(), self.model.columns());
        let mut known = [vec![false; rows], vec![false; columns]];
        for cell in &server.union {
            known[0][*cell as usize / columns] = true;
            known[1][*cell as usize % columns] = true;
        }
        known.map(|side| (0..side.len()).filter(|i| !side[*i]).collect())
    }

    /// Whether there is any round after the start and the memories.
    fn has_rounds(&self) -> bool {
        match self.budget {
            Budget::Rounds(rounds) => rounds > 0,
            Budget::Epochs(epochs) => epochs > 0.0,
        }
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
