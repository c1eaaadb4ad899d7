//! `clustered`: clusters of clients that are split where their updates point apart.
//!
//! Reference: Sattler, Müller, Samek, *Clustered federated learning: model-agnostic distributed
//! multitask optimization under privacy constraints*, IEEE TNNLS 2020, Algorithms 1 and 2.
//!
//! | paper | here | meaning |
//! |---|---|---|
//! | `theta_c` | `models[c]` | a cluster's model |
//! | `Delta theta_i` | `Up::change` | a client's update |
//! | `eps_1`, `eps_2` | `stationary`, `apart` | a cluster whose mean update is shorter than the first while a member's is longer than the second is split |
//! | `alpha_{i,j}` | cosine similarity | of two clients' updates |
//!
//! The split minimises the largest similarity across it, by complete linkage on cosine distances, as
//! the paper proposes. *Reduces to* `fedavg` as long as nothing is split. *Departures*: none; every
//! client of a cluster that is split must have taken part in the round, so a split waits for such a
//! round.
//!
//! The server keeps a round's updates by client until the round ends: cohort times model.

use super::mixture::largest;
use super::{FedAvg, Gathered, LocalRule, Mixture, Own, Personal, Round, Shape, Unseen, Work};
use crate::federated::{Answer, Judge, Split, Terms, aggregate, held_out};
use crate::settings::{Budget, Weights};
use std::sync::Arc;
use whimbrel_codec::Scalar;
use whimbrel_core::declare::Measure;
use whimbrel_core::method::{
    Allowance, Artifact, Bind, Cohort, Disclosure, Evaluate, Method, Metric, Next, Sender,
};
use whimbrel_core::{
    ClientData, ClientId, DynMethod, Erased, Error, ExactSum, Key, Result, Samples, wire,
};
use whimbrel_nn::Learner;

/// The tensor of each client's cluster, by id.
pub const CLUSTER: &str = "cluster";

/// `clustered`.
#[derive(Clone, Debug, PartialEq)]
pub struct Clustered {
    /// `eps_1`.
    pub stationary: f64,
    /// `eps_2`.
    pub apart: f64,
}

/// The whole method.
pub struct ClusteredMethod {
    /// The learner and its local training.
    pub training: Personal,
    /// When a cluster is split.
    pub split: Clustered,
    /// How clients are weighted.
    pub weights: Weights,
    /// When to stop.
    pub budget: Budget,
}

/// The global state.
#[derive(Clone, Debug)]
pub struct Server {
    round: u32,
    models: Vec<Vec<f32>>,
    /// Each client's cluster, by id.
    cluster: Vec<u32>,
    weight: Vec<f64>,
    rows: u64,
    rows_used: u64,
    update_norm2: Option<f64>,
    scale: f64,
}

/// What the server remembers about a client.
#[derive(Clone, Debug)]
pub struct Peer {
    id: u32,
    rows: u64,
}

/// What a client remembers: its cluster, once it was told.
#[derive(Clone, Debug, Default)]
pub struct Client {
    cluster: Option<u32>,
}

/// To a client: its cluster's model.
#[derive(Clone, Debug)]
pub struct Down {
    cluster: u32,
    rate: f64,
    model: Vec<f32>,
}

/// From a client.
#[derive(Clone, Debug)]
pub struct Up {
    change: Vec<f32>,
}

/// The updates of a round, in order of ids.
#[derive(Clone, Debug, Default)]
pub struct Fold {
    changes: Vec<(u32, Vec<f32>)>,
    rows_used: u64,
}

wire!(Server { round, models, cluster, weight, rows, rows_used, update_norm2, scale });
wire!(Peer { id, rows });
wire!(Client { cluster });
wire!(Down { cluster, rate, model });
wire!(Up { change });
wire!(Fold { changes, rows_used });

impl Method for ClusteredMethod {
    type Data = Split<Samples>;
    type Server = Server;
    type Peer = Peer;
    type Client = Client;
    type Summary = u64;
    type Down = Down;
    type Up = Up;
    type Broadcast = ();
    type Fold = Fold;

    fn enroll(&self, data: &Self::Data, _: Key) -> Result<(Client, u64)> {
        Ok((Client::default(), data.train.len() as u64))
    }

    fn start(&self, roster: &mut dyn Iterator<Item = (ClientId, u64)>, key: Key) -> Result<Server> {
        if roster.next().is_none() {
            return Err(Error::data("there is no client to start with"));
        }
        let model = self.training.rule.start(&self.training.shape(), &Gathered::default(), key)?;
        Ok(Server {
            round: 0,
            scale: 1.0 + f32::norm2_squared(&model).sqrt(),
            models: vec![model],
            cluster: Vec::new(),
            weight: Vec::new(),
            rows: 0,
            rows_used: 0,
            update_norm2: None,
        })
    }

    /// A late joiner enters the first cluster.
    fn admit(&self, server: &mut Server, id: ClientId, rows: &u64) -> Result<Peer> {
        let weight = self.weights.of(id, *rows)?;
        let at = id.0 as usize;
        if server.cluster.len() <= at {
            server.cluster.resize(at + 1, 0);
            server.weight.resize(at + 1, 0.0);
        }
        server.weight[at] = weight;
        server.rows += rows;
        Ok(Peer { id: id.0, rows: *rows })
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
        let cluster = server.cluster[peer.id as usize];
        let model = server.models[cluster as usize].clone();
        Ok((peer.clone(), Down { cluster, rate: self.training.rates.at(server.round), model }))
    }

    fn local_step(
        &self,
        _: &Client,
        down: &Down,
        data: &Self::Data,
        key: Key,
    ) -> Result<(Client, Up)> {
        if down.model.len() != self.training.learner.parameters() {
            return Err(Error::peer("a model of another length"));
        }
        let training = &self.training;
        let mut work = training.work(&data.train, down.rate, key);
        let (_, change) = training.local_round(&mut work, &down.model, &Own::default())?;
        Ok((Client { cluster: Some(down.cluster) }, Up { change }))
    }

    fn fold(&self, _: &Server) -> Fold {
        Fold::default()
    }

    fn absorb(&self, fold: &mut Fold, from: Sender<'_, Peer>, up: Up) -> Result<()> {
        let sound = up.change.len() == self.training.learner.parameters()
            && up.change.iter().all(|x| x.is_finite());
        if !sound {
            let what = format!("client {} sent an update of another length or not finite", from.id);
            return Err(Error::peer(what));
        }
        fold.rows_used += self.training.solver.rows_used(from.peer.rows);
        let at = fold.changes.partition_point(|(id, _)| *id < from.id.0);
        fold.changes.insert(at, (from.id.0, up.change));
        Ok(())
    }

    fn merge(&self, fold: &mut Fold, other: Fold) -> Result<()> {
        fold.changes.extend(other.changes);
        fold.changes.sort_by_key(|(id, _)| *id);
        fold.rows_used += other.rows_used;
        Ok(())
    }

    fn server_step(&self, mut server: Server, fold: Fold, _: Key) -> Result<Server> {
        server.rows_used += fold.rows_used;
        server.round += 1;
        let mut norm2 = 0.0;
        for c in 0..server.models.len() {
            let of = |id: u32| server.cluster[id as usize] as usize == c;
            let changes: Vec<&(u32, Vec<f32>)> =
                fold.changes.iter().filter(|(id, _)| of(*id)).collect();
            if changes.is_empty() {
                continue;
            }
            let mean = self.mean(&server, &changes)?;
            norm2 += whimbrel_core::vector::norm2_squared(&mean);
            let members = server.weight.iter().zip(&server.cluster);
            let members = members.filter(|(w, k)| **w > 0.0 && **k as usize == c).count();
            // theta_c += mean of the members' updates
            let model = &mut server.models[c];
            model.iter_mut().zip(&mean).for_each(|(w, x)| *w = (f64::from(*w) + x) as f32);
            if changes.len() == members {
                self.split(&mut server, c, &mean, &changes);
            }
        }
        server.update_norm2 = Some(norm2);
        Ok(server)
    }

    fn magnitude(&self, server: &Server) -> f64 {
        let norms = server.models.iter().map(|model| f32::norm2_squared(model));
        1.0 + norms.fold(0.0, f64::max).sqrt() / server.scale
    }

    fn artifact(&self, server: &Server) -> Result<Artifact> {
        let artifact = Artifact::new(self.training.learner.name());
        let len = self.training.learner.parameters();
        let shape = [server.models.len(), len];
        let cluster = server.cluster.iter().map(|c| f64::from(*c)).collect();
        Ok(artifact.with(CLUSTER, &[server.cluster.len()], cluster).with_f32(
            "parameters",
            &shape,
            server.models.concat(),
        ))
    }

    fn client_artifact(&self, client: &Client, _: &Self::Data) -> Result<Option<Artifact>> {
        let own = client.cluster.map(|c| Own { weights: vec![f64::from(c)], models: Vec::new() });
        Ok(own.map(|own| own.artifact(self.training.learner.name())))
    }

    fn disclosures(&self) -> Vec<Disclosure> {
        let whole = 4 * self.training.learner.parameters() + 32;
        vec![
            aggregate("summary", "the number of samples", 16),
            aggregate("up", self.training.rule.sent(), whole),
            super::evaluate::disclosure(),
        ]
    }
}

impl Server {
    fn epoch(&self) -> f64 {
        self.rows_used as f64 / self.rows.max(1) as f64
    }
}

impl ClusteredMethod {
    /// The weighted mean of updates.
    fn mean(&self, server: &Server, changes: &[&(u32, Vec<f32>)]) -> Result<Vec<f64>> {
        let mut sum = ExactSum::new(self.training.learner.parameters());
        let mut total = 0.0;
        for (id, change) in changes {
            let weight = server.weight[*id as usize];
            total += weight;
            f32::add_to(&mut sum, change, weight)?;
        }
        Ok(sum.value().iter().map(|x| x / total).collect())
    }

    /// Splits a cluster that is stationary as a whole while members pull apart; both halves go on
    /// from the same model.
    fn split(&self, server: &mut Server, c: usize, mean: &[f64], changes: &[&(u32, Vec<f32>)]) {
        let norms: Vec<f64> = changes.iter().map(|(_, x)| f32::norm2_squared(x).sqrt()).collect();
        let stationary = whimbrel_core::vector::norm2_squared(mean).sqrt() < self.split.stationary;
        let apart = norms.iter().copied().fold(0.0, f64::max) > self.split.apart;
        if !(stationary && apart && changes.len() > 2) {
            return;
        }
        let vectors: Vec<&[f32]> = changes.iter().map(|(_, x)| &x[..]).collect();
        let second = bipartition(&vectors, &norms);
        let new = server.models.len() as u32;
        server.models.push(server.models[c].clone());
        for ((id, _), second) in changes.iter().zip(second) {
            if second {
                server.cluster[*id as usize] = new;
            }
        }
    }
}

/// Complete linkage on cosine distances down to two clusters; true for members of the second.
fn bipartition(vectors: &[&[f32]], norms: &[f64]) -> Vec<bool> {
    let n = vectors.len();
    let dot = |a: &[f32], b: &[f32]| -> f64 {
        a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
    };
    let mut distance = vec![0.0; n * n];
    for i in 0..n {
        for j in 0..i {
            let scale = (norms[i] * norms[j]).max(f64::MIN_POSITIVE);
            let between = 1.0 - dot(vectors[i], vectors[j]) / scale;
            (distance[i * n + j], distance[j * n + i]) = (between, between);
        }
    }
    let mut group: Vec<usize> = (0..n).collect();
    let mut alive: Vec<usize> = (0..n).collect();
    while alive.len() > 2 {
        let mut best = (f64::INFINITY, 0, 1);
        for (a, i) in alive.iter().enumerate() {
            for (b, j) in alive.iter().enumerate().skip(a + 1) {
                if distance[i * n + j] < best.0 {
                    best = (distance[i * n + j], a, b);
                }
            }
        }
        let (i, j) = (alive[best.1], alive[best.2]);
        alive.remove(best.2);
        for k in &alive {
            let farther = distance[i * n + k].max(distance[j * n + k]);
            (distance[i * n + k], distance[k * n + i]) = (farther, farther);
        }
        group.iter_mut().filter(|g| **g == j).for_each(|g| *g = i);
    }
    let first = group[0];
    group.iter().map(|g| *g != first).collect()
}

/// The question: all clusters' models. A client answers with that of its own; one that was never
/// told tries all and takes that with the smallest training loss.
#[derive(Clone, Debug)]
pub struct Ask {
    models: Vec<Vec<f32>>,
}

wire!(Ask { models });

impl Evaluate for ClusteredMethod {
    type Ask = Ask;
    type Answer = Answer<f64>;

    fn ask(&self, server: &Server) -> Result<Ask> {
        Ok(Ask { models: server.models.clone() })
    }

    fn answer(&self, client: &Client, ask: &Ask, data: &Self::Data) -> Result<Self::Answer> {
        let learner = &*self.training.learner;
        let one = |c: usize| Mixture::single(ask.models[c].clone());
        let models: Vec<&[f32]> = ask.models.iter().map(Vec::as_slice).collect();
        let own = match client.cluster {
            Some(c) if (c as usize) < ask.models.len() => one(c as usize),
            _ if data.train.is_empty() => one(0),
            _ => one(nearest(&models, learner, &data.train)),
        };
        self.training.answer_with(&own, data)
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
        let caption = "Clusters of clients so far";
        let clusters = Measure::new("clusters", "Clusters", "clusters", caption).result(0);
        self.training.told_measures(Some(clusters))
    }

    fn conclude(
        &self,
        server: &Server,
        answers: &mut dyn Iterator<Item = (ClientId, Self::Answer)>,
    ) -> Result<Vec<Metric>> {
        let mut metrics = vec![
            Metric::number("epoch", server.epoch()),
            Metric::number("clusters", server.models.len() as f64),
        ];
        metrics.extend(self.training.pool_told(self.weights, answers)?);
        metrics.push(crate::federated::optional("update_norm2", server.update_norm2));
        Ok(metrics)
    }

    fn conclude_unseen(
        &self,
        _: &Server,
        answers: &mut dyn Iterator<Item = (ClientId, Self::Answer)>,
    ) -> Result<Vec<Metric>> {
        let mut pooled = held_out::Pooled::new(Judge::scores(&self.training), true);
        for (_, answer) in answers {
            pooled.add(answer.rows, &answer.parts)?;
        }
        Ok(pooled.metrics_of_unseen())
    }
}

/// The model with the smallest mean loss on these samples.
fn nearest(models: &[&[f32]], learner: &dyn Learner, samples: &Samples) -> usize {
    let loss = |model: &&[f32]| Mixture::single(model.to_vec()).score(learner, samples)[0];
    let losses: Vec<f32> = models.iter().map(|model| -loss(model) as f32).collect();
    largest(&losses)
}

/// Local training within a cluster.
const TRAINING: FedAvg = FedAvg { mu: 0.0, fine_tune: false };

/// What is shared are all clusters' models, and a client has the number of its cluster; while it trains,
/// what is shared is the model of that one.
impl LocalRule for Clustered {
    fn method(&self, training: Personal, terms: Terms) -> Arc<dyn DynMethod> {
        let Terms { weights, budget, .. } = terms;
        let method = ClusteredMethod { training, split: self.clone(), weights, budget };
        Arc::new(Erased(method, BindSamples))
    }

    fn sends_exactly(&self) -> bool {
        true
    }

    fn begin(&self, work: &mut Work<'_>, w: &[f32], own: &Own) -> Result<Round> {
        TRAINING.begin(work, w, own)
    }

    fn end(&self, work: &mut Work<'_>, w: &[f32], round: Round) -> Result<(Own, Vec<f32>)> {
        TRAINING.end(work, w, round)
    }

    fn adapt(&self, work: &mut Work<'_>, w: &[f32]) -> Result<Own> {
        let models: Vec<&[f32]> = w.chunks_exact(work.shape().len).collect();
        let cluster = nearest(&models, work.learner, work.samples);
        Ok(Own { weights: vec![cluster as f64], models: Vec::new() })
    }

    fn predicts_alone(&self) -> bool {
        false
    }

    fn for_unseen(&self) -> Unseen {
        Unseen::Adapted
    }

    fn personal(&self, shape: &Shape<'_>, w: &[f32], own: &Own) -> Result<Mixture> {
        let cluster = own.weights.first().map_or(0, |c| *c as usize);
        let model = w.chunks_exact(shape.len).nth(cluster);
        let model = model.ok_or_else(|| Error::data("the run has no such cluster"))?;
        Ok(Mixture::single(model.to_vec()))
    }
}

/// Lays a client's samples out.
pub struct BindSamples;

impl Bind<ClusteredMethod> for BindSamples {
    fn bind(&self, method: &ClusteredMethod, data: &ClientData) -> Result<Split<Samples>> {
        Split::bind(&method.training, data)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn opposite_updates_part() {
        let vectors: [[f32; 2]; 5] =
            [[1.0, 0.1], [-1.0, 0.0], [2.0, 0.3], [-0.5, 0.1], [1.0, -0.2]];
        let all: Vec<&[f32]> = vectors.iter().map(|v| &v[..]).collect();
        let norms: Vec<f64> = all.iter().map(|v| f32::norm2_squared(v).sqrt()).collect();
        assert_eq!(bipartition(&all, &norms), [false, true, false, true, false]);
    }
}
