//! `mocha`: a linear model for each client, and a matrix of how clients are related.
//!
//! Reference: Smith, Chiang, Sanjabi, Talwalkar, *Federated multi-task learning*, NeurIPS 2017,
//! Algorithm 1 with the hinge loss and SDCA as the local solver.
//!
//! | paper | here | meaning |
//! |---|---|---|
//! | `W = [w_1, ..., w_m]` | `w` | the clients' models |
//! | `Omega^-1` | `relation` | how clients are related: `sqrtm(W^T W)/trace`, times the number of clients |
//! | `alpha_t` | `Client::alpha` | dual variables, one per sample in [0, 1]; they stay on the client |
//! | `v_t = X_t alpha_t` | `v` | what a client's dual variables amount to |
//! | `sigma'` | `spread` | how far a client must damp its step for the others' |
//!
//! Minimises `sum_t sum_i hinge(y_i <w_t, x_i>) + lambda/2 tr(W Omega W^T)`. *Reduces to* a support
//! vector machine for each client as long as the relation is the identity, as it is at the start.
//! *Departures*: the trace of `Omega^-1` is the number of clients instead of one, so that `lambda`
//! does not depend on it.

use super::{Length, Local, LocalRule, Mixture, Own, Personal, Round, Shape, Unseen, Work};
use crate::federated::{Answer, Split, Terms, aggregate};
use crate::settings::{Budget, Weights, check_sums};
use std::sync::Arc;
use whimbrel_core::declare::Measure;
use whimbrel_core::linalg::symmetric_eigen;
use whimbrel_core::method::{
    Allowance, Artifact, Bind, Cohort, Disclosure, Evaluate, Method, Metric, Next, Sender,
};
use whimbrel_core::{
    ClientData, ClientId, DynMethod, Erased, Error, Inputs, Key, Result, Samples, Targets, vector,
    wire,
};

/// `mocha`.
#[derive(Clone, Debug, PartialEq)]
pub struct Mocha {
    /// `lambda`.
    pub lambda: f64,
    /// Rounds between two updates of the relation.
    pub relation_every: u32,
}

/// The whole method.
pub struct MochaMethod {
    /// The learner, for predictions, and how many passes the local solver makes in a round.
    pub training: Personal,
    /// The settings.
    pub mocha: Mocha,
    /// When to stop.
    pub budget: Budget,
}

/// The trace's share that is spread evenly over the diagonal of the relation, so that no client's
/// entry vanishes.
const EVEN: f64 = 1e-6;

/// The global state.
#[derive(Clone, Debug)]
pub struct Server {
    round: u32,
    /// Client ids in order of admission: the places of everything below.
    ids: Vec<u32>,
    v: Vec<Vec<f64>>,
    w: Vec<Vec<f64>>,
    relation: Vec<f64>,
    rows: u64,
    rows_used: u64,
    update_norm2: Option<f64>,
}

/// What the server remembers about a client.
#[derive(Clone, Debug)]
pub struct Peer {
    place: u32,
    rows: u64,
}

/// What a client remembers.
#[derive(Clone, Debug, Default)]
pub struct Client {
    alpha: Vec<f64>,
    /// Its model, as it was told.
    w: Vec<f64>,
}

/// To a client: its model, and the scale of its local problem.
#[derive(Clone, Debug)]
pub struct Down {
    w: Vec<f64>,
    /// `sigma' Omega^-1_tt / lambda`.
    scale: f64,
}

/// The moves of `v`, in order of places.
#[derive(Clone, Debug, Default)]
pub struct Fold {
    moves: Vec<(u32, Vec<f64>)>,
    rows_used: u64,
}

wire!(Server { round, ids, v, w, relation, rows, rows_used, update_norm2 });
wire!(Peer { place, rows });
wire!(Client { alpha, w });
wire!(Down { w, scale });
wire!(Fold { moves, rows_used });

/// A client's samples, and its training rows as numbers with the constant.
pub struct Rows {
    parts: Split<Samples>,
    x: Vec<f64>,
    y: Vec<f64>,
    width: usize,
}

impl Method for MochaMethod {
    type Data = Rows;
    type Server = Server;
    type Peer = Peer;
    type Client = Client;
    type Summary = u64;
    type Down = Down;
    type Up = Vec<f64>;
    type Broadcast = ();
    type Fold = Fold;

    fn enroll(&self, data: &Rows, _: Key) -> Result<(Client, u64)> {
        Ok((Client { alpha: vec![0.0; data.y.len()], w: Vec::new() }, data.y.len() as u64))
    }

    fn start(&self, roster: &mut dyn Iterator<Item = (ClientId, u64)>, _: Key) -> Result<Server> {
        if roster.next().is_none() {
            return Err(Error::data("there is no client to start with"));
        }
        Ok(Server {
            round: 0,
            ids: Vec::new(),
            v: Vec::new(),
            w: Vec::new(),
            relation: Vec::new(),
            rows: 0,
            rows_used: 0,
            update_norm2: None,
        })
    }

    /// A late joiner is related to no other client until the next update.
    fn admit(&self, server: &mut Server, id: ClientId, rows: &u64) -> Result<Peer> {
        Weights::Samples.of(id, *rows)?;
        let old = server.ids.len();
        let mut relation = vec![0.0; (old + 1) * (old + 1)];
        for i in 0..old {
            relation[i * (old + 1)..][..old].copy_from_slice(&server.relation[i * old..][..old]);
        }
        relation[old * (old + 1) + old] = 1.0;
        server.relation = relation;
        server.ids.push(id.0);
        server.v.push(vec![0.0; self.width()]);
        server.w.push(vec![0.0; self.width()]);
        server.rows += rows;
        Ok(Peer { place: old as u32, rows: *rows })
    }

    fn rows(&self, peer: &Peer) -> Option<u64> {
        Some(peer.rows)
    }

    fn allowances(&self) -> Vec<Allowance> {
        vec![Allowance::rounds(self.budget.rounds_max())]
    }

    fn next(&self, server: &Server) -> Next {
        let done = match self.budget {
            Budget::Rounds(rounds) | Budget::Converged(rounds) => server.round >= rounds,
            Budget::Epochs(epochs) => server.epoch() >= epochs,
        };
        if done { Next::Stop } else { Next::Round(Cohort::Sampled) }
    }

    fn broadcast(&self, _: &Server) -> Result<()> {
        Ok(())
    }

    fn downlink(&self, server: &Server, (): &(), peer: &Peer, _: Key) -> Result<(Peer, Down)> {
        let (t, m) = (peer.place as usize, server.ids.len());
        let scale = server.spread() * server.relation[t * m + t] / self.mocha.lambda;
        Ok((peer.clone(), Down { w: server.w[t].clone(), scale }))
    }

    /// SDCA on the client's dual problem, with the others' part fixed.
    fn local_step(
        &self,
        client: &Client,
        down: &Down,
        data: &Rows,
        key: Key,
    ) -> Result<(Client, Vec<f64>)> {
        if down.w.len() != data.width {
            return Err(Error::peer("a model of another length"));
        }
        let (mut alpha, mut u) = (client.alpha.clone(), down.w.clone());
        let mut moved = vec![0.0; data.width];
        let mut order: Vec<usize> = (0..data.y.len()).collect();
        for pass in 0..self.passes() {
            key.child(u64::from(pass)).stream().shuffle(&mut order);
            for &i in &order {
                let (x, y) = (&data.x[i * data.width..][..data.width], data.y[i]);
                let curvature = down.scale * vector::norm2_squared(x);
                if curvature <= 0.0 {
                    continue;
                }
                // alpha_i in [0, 1] that maximises the dual along its coordinate
                let next = (alpha[i] + (1.0 - y * vector::dot(&u, x)) / curvature).clamp(0.0, 1.0);
                let step = (next - alpha[i]) * y;
                alpha[i] = next;
                if step != 0.0 {
                    vector::axpy(&mut u, down.scale * step, x);
                    vector::axpy(&mut moved, step, x);
                }
            }
        }
        Ok((Client { alpha, w: down.w.clone() }, moved))
    }

    fn fold(&self, _: &Server) -> Fold {
        Fold::default()
    }

    fn absorb(&self, fold: &mut Fold, from: Sender<'_, Peer>, up: Vec<f64>) -> Result<()> {
        if up.len() != self.width() {
            return Err(Error::peer(format!("client {} sent a vector of another length", from.id)));
        }
        check_sums(from.id, &up)?;
        fold.rows_used += u64::from(self.passes()) * from.peer.rows;
        let at = fold.moves.partition_point(|(place, _)| *place < from.peer.place);
        fold.moves.insert(at, (from.peer.place, up));
        Ok(())
    }

    fn merge(&self, fold: &mut Fold, other: Fold) -> Result<()> {
        fold.moves.extend(other.moves);
        fold.moves.sort_by_key(|(place, _)| *place);
        fold.rows_used += other.rows_used;
        Ok(())
    }

    fn server_step(&self, mut server: Server, fold: Fold, _: Key) -> Result<Server> {
        let norms = fold.moves.iter().map(|(_, moved)| vector::norm2_squared(moved));
        server.update_norm2 = Some(norms.sum());
        for (place, moved) in &fold.moves {
            vector::axpy(&mut server.v[*place as usize], 1.0, moved);
        }
        server.rows_used += fold.rows_used;
        server.round += 1;
        self.models(&mut server);
        if server.round.is_multiple_of(self.mocha.relation_every) {
            self.relate(&mut server)?;
            self.models(&mut server);
        }
        Ok(server)
    }

    fn magnitude(&self, server: &Server) -> f64 {
        let norms = server.w.iter().map(|w| vector::norm2_squared(w));
        1.0 + norms.fold(0.0, f64::max).sqrt()
    }

    fn artifact(&self, server: &Server) -> Result<Artifact> {
        let m = server.ids.len();
        let artifact = Artifact::new(self.training.learner.name());
        let artifact = artifact.with("relation", &[m, m], server.relation.clone());
        let all: Vec<f32> = server.w.iter().flatten().map(|x| *x as f32).collect();
        Ok(artifact.with_f32("parameters", &[m, self.width()], all))
    }

    fn client_artifact(&self, client: &Client, _: &Rows) -> Result<Option<Artifact>> {
        let model = client.w.iter().map(|x| *x as f32).collect();
        let own = Own { weights: Vec::new(), models: vec![model] };
        Ok((!client.w.is_empty()).then(|| own.artifact(self.training.learner.name())))
    }

    fn disclosures(&self) -> Vec<Disclosure> {
        let sent = "each round: by how much the sum of its samples, weighted by their dual variables \
                    and signed by their classes, changed";
        vec![
            aggregate("summary", "the number of samples", 16),
            aggregate("up", sent, 8 * self.width() + 16),
            super::evaluate::disclosure(),
        ]
    }
}

impl Server {
    fn epoch(&self) -> f64 {
        self.rows_used as f64 / self.rows.max(1) as f64
    }

    /// `sigma' = max_t sum_s |Omega^-1_ts| / Omega^-1_tt` (Lemma 9).
    fn spread(&self) -> f64 {
        let m = self.ids.len();
        let of = |t: usize| {
            let row = &self.relation[t * m..(t + 1) * m];
            row.iter().map(|x| x.abs()).sum::<f64>() / row[t]
        };
        (0..m).map(of).fold(1.0, f64::max)
    }
}

impl MochaMethod {
    fn width(&self) -> usize {
        self.training.learner.parameters()
    }

    fn passes(&self) -> u32 {
        let (Length::Epochs(passes) | Length::Steps(passes)) = self.training.solver.length;
        passes
    }

    /// `w_t = (1/lambda) sum_s Omega^-1_ts v_s`.
    fn models(&self, server: &mut Server) {
        let m = server.ids.len();
        for t in 0..m {
            let mut w = vec![0.0; self.width()];
            for (s, v) in server.v.iter().enumerate() {
                let weight = server.relation[t * m + s] / self.mocha.lambda;
                if weight != 0.0 {
                    vector::axpy(&mut w, weight, v);
                }
            }
            server.w[t] = w;
        }
    }

    /// `Omega^-1 = m sqrtm(W^T W) / trace`.
    fn relate(&self, server: &mut Server) -> Result<()> {
        let m = server.ids.len();
        let mut gram = vec![0.0; m * m];
        for i in 0..m {
            for j in 0..=i {
                let dot = vector::dot(&server.w[i], &server.w[j]);
                (gram[i * m + j], gram[j * m + i]) = (dot, dot);
            }
        }
        let eigen = symmetric_eigen(&gram, m)?;
        let roots: Vec<f64> = eigen.values.iter().map(|x| x.max(0.0).sqrt()).collect();
        let trace: f64 = roots.iter().sum();
        if trace <= 0.0 {
            return Ok(());
        }
        let scale = (1.0 - EVEN) * m as f64 / trace;
        let mut relation = vec![0.0; m * m];
        for (k, root) in roots.iter().enumerate() {
            let axis = &eigen.vectors[k * m..(k + 1) * m];
            for i in 0..m {
                vector::axpy(&mut relation[i * m..(i + 1) * m], scale * root * axis[i], axis);
            }
        }
        (0..m).for_each(|i| relation[i * m + i] += EVEN);
        server.relation = relation;
        Ok(())
    }
}

impl Evaluate for MochaMethod {
    /// Nothing: a client judges the model that it was told last.
    type Ask = ();
    type Answer = Answer<f64>;

    fn ask(&self, _: &Server) -> Result<()> {
        Ok(())
    }

    fn answer(&self, client: &Client, (): &(), data: &Rows) -> Result<Self::Answer> {
        let mut model: Vec<f32> = client.w.iter().map(|x| *x as f32).collect();
        model.resize(data.width, 0.0);
        self.training.answer_with(&Mixture::single(model), &data.parts)
    }

    fn check(&self, id: ClientId, peer: &Peer, answer: &Self::Answer) -> Result<()> {
        self.training.check_told(id, peer.rows, answer)
    }

    fn loss(&self, answer: &Self::Answer) -> Option<f64> {
        Some(answer.answer)
    }

    fn own(&self, answer: &Self::Answer) -> Vec<Metric> {
        self.training.own_figures(answer)
    }

    fn measures(&self) -> Vec<Measure> {
        self.training.told_measures(None)
    }

    fn conclude(
        &self,
        server: &Server,
        answers: &mut dyn Iterator<Item = (ClientId, Self::Answer)>,
    ) -> Result<Vec<Metric>> {
        let mut metrics = vec![Metric::number("epoch", server.epoch())];
        metrics.extend(self.training.pool_told(Weights::Samples, answers)?);
        metrics.push(crate::federated::optional("update_norm2", server.update_norm2));
        Ok(metrics)
    }
}

/// A client predicts with its own model, as under `local`.
impl LocalRule for Mocha {
    fn check(&self, shape: &Shape<'_>) -> Result<()> {
        match shape.learner.name() {
            "logistic" => Ok(()),
            other => {
                let what = format!("mocha fits logistic regressions of two classes, not {other}");
                Err(Error::config(what).hint("write kind = \"logistic\" in [model]"))
            }
        }
    }

    fn method(&self, training: Personal, terms: Terms) -> Arc<dyn DynMethod> {
        let method = MochaMethod { training, mocha: self.clone(), budget: terms.budget };
        Arc::new(Erased(method, BindRows))
    }

    fn sends_exactly(&self) -> bool {
        true
    }

    fn blocks(&self, shape: &Shape<'_>) -> Vec<usize> {
        Local.blocks(shape)
    }

    fn begin(&self, work: &mut Work<'_>, w: &[f32], own: &Own) -> Result<Round> {
        Local.begin(work, w, own)
    }

    fn predicts_alone(&self) -> bool {
        Local.predicts_alone()
    }

    fn for_unseen(&self) -> Unseen {
        Local.for_unseen()
    }

    fn personal(&self, shape: &Shape<'_>, w: &[f32], own: &Own) -> Result<Mixture> {
        Local.personal(shape, w, own)
    }
}

/// Lays a client's samples out as rows.
pub struct BindRows;

impl Bind<MochaMethod> for BindRows {
    fn bind(&self, method: &MochaMethod, data: &ClientData) -> Result<Rows> {
        let parts = Split::bind(&method.training, data)?;
        let Targets::Classes { of, count: 2 } = &parts.train.targets else {
            return Err(Error::data("mocha tells two classes apart"));
        };
        let y = of.iter().map(|class| 2.0 * f64::from(*class) - 1.0).collect();
        // The constant of a learner with an intercept comes after the features.
        let (features, width) = (parts.train.width(), method.width());
        let mut x = vec![1.0; parts.train.len() * width];
        for (i, row) in x.chunks_exact_mut(width).enumerate() {
            let from = i * features;
            for (j, x) in row[..features].iter_mut().enumerate() {
                *x = match &parts.train.inputs {
                    Inputs::Real(values) => f64::from(values[from + j]),
                    Inputs::Bytes(values) => f64::from(values[from + j]) / 255.0,
                    Inputs::Symbols(_) => return Err(Error::data("mocha takes numbers")),
                };
            }
        }
        Ok(Rows { parts, x, y, width })
    }
}
