//! `clustered`: clusters of clients that are split where their updates point apart.
//!
//! Reference: Sattler, Müller, Samek, *Clustered federated learning: model-agnostic distributed
//! multitask optimization under privacy constraints*, IEEE TNNLS 2020, Algorithms 1 and 2.
//!
//! | paper | here | meaning |
//! |---|---|---|
//! | `theta_c` | `models[c]` | a cluster's model |
//! | `Delta theta_i` | an upload | a client's update |
//! | `eps_1`, `eps_2` | `stationary`, `apart` | a cluster whose mean update is shorter than the first while a member's is longer than the second is split |
//! | `alpha_{i,j}` | cosine similarity | of two clients' updates |
//! | `alpha_cross` | `Split::across` | the largest similarity across a split |
//! | `gamma_max` | `gamma_max` | a split is kept if `gamma_max < sqrt((1 - alpha_cross)/2)` |
//!
//! The split has the smallest `alpha_cross` of all bipartitions: the last two groups of single linkage,
//! which cuts the weakest edge of a spanning tree of largest similarities. [`Linkage::Complete`] is the
//! rule of published code. *Reduces to* `fedavg` as long as no cluster is split. *Departures*: none; a
//! split waits for a round in which every client of the cluster took part. `gamma_max` is an input of the
//! paper without a value; at 0, the default, it refuses only a split of parallel updates.

use super::ensemble::largest;
use super::per_client::{PerClient, PerClientRule, Upload};
use super::{
    Adaptation, Ensemble, FedAvg, Gathered, LocalRule, Own, PARAMETERS, Personal, Round, Shape,
    Work,
};
use crate::federated::{BindRows, Split, Terms};
use crate::settings::largest_norm;
use std::sync::Arc;
use whimbrel_codec::Scalar;
use whimbrel_core::declare::Measure;
use whimbrel_core::method::Artifact;
use whimbrel_core::{
    ClientId, DynMethod, Erased, Error, ExactSum, Key, Result, Samples, vector, wire,
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
    pub linkage: Linkage,
    /// The largest relative error of a client's update as an estimate of its cluster's.
    pub gamma_max: f64,
}

/// The distance of two groups of updates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Linkage {
    /// The smallest of their members.
    #[default]
    Single,
    /// The largest of their members.
    Complete,
}

impl Default for Clustered {
    fn default() -> Self {
        Self { stationary: 0.4, apart: 1.6, linkage: Linkage::Single, gamma_max: 0.0 }
    }
}

/// `clustered` around a learner and its local training.
pub struct ClusteredClients {
    pub training: Personal,
    pub settings: Clustered,
}

/// The global state.
#[derive(Clone, Debug)]
pub struct Clusters {
    models: Vec<Vec<f32>>,
    /// Each client's cluster, by id.
    cluster: Vec<u32>,
    /// Each client's weight, by id; zero for ids that are not enrolled.
    weight: Vec<f64>,
}

/// The model of the client's cluster.
#[derive(Clone, Debug)]
pub struct ClusterMessage {
    cluster: u32,
    rate: f64,
    model: Vec<f32>,
}

wire!(Clusters { models, cluster, weight });
wire!(ClusterMessage { cluster, rate, model });

impl PerClientRule for ClusteredClients {
    type Rows = ();
    type Global = Clusters;
    type Scale = f64;
    /// The client's cluster, known from its first message on.
    type Client = Option<u32>;
    type Down = ClusterMessage;
    type Number = f32;
    /// The models of all clusters.
    type Ask = Vec<Vec<f32>>;

    fn training(&self) -> &Personal {
        &self.training
    }

    fn lay_out(&self, _: &Samples) -> Result<()> {
        Ok(())
    }

    fn enroll(&self, _: &Samples) -> Option<u32> {
        None
    }

    fn start(&self, key: Key) -> Result<(Clusters, f64)> {
        let Personal { rule, .. } = &self.training;
        let model = rule.start(&self.training.shape(), &Gathered::default(), key)?;
        let scale = 1.0 + f32::norm2_squared(&model).sqrt();
        Ok((Clusters { models: vec![model], cluster: Vec::new(), weight: Vec::new() }, scale))
    }

    /// A late joiner enters the first cluster.
    fn admit(&self, to: &mut Clusters, id: ClientId, weight: f64) -> u32 {
        let at = id.0 as usize;
        if to.cluster.len() <= at {
            to.cluster.resize(at + 1, 0);
            to.weight.resize(at + 1, 0.0);
        }
        to.weight[at] = weight;
        id.0
    }

    fn message(&self, global: &Clusters, id: u32, round: Option<u32>) -> ClusterMessage {
        let cluster = global.cluster[id as usize];
        let model = global.models[cluster as usize].clone();
        ClusterMessage { cluster, rate: self.training.rates.at(round.unwrap_or(0)), model }
    }

    fn local(
        &self,
        _: &Option<u32>,
        down: &ClusterMessage,
        (parts, ()): &(Split<Samples>, ()),
        key: Key,
    ) -> Result<(Option<u32>, Vec<f32>)> {
        let finite = f32::norm_inf(&down.model).is_finite();
        if down.model.len() != self.training.learner.parameters() || !finite {
            return Err(Error::peer("a model of another length, or not finite"));
        }
        self.training.rates.check(down.rate)?;
        let mut work = self.training.work(&parts.train, down.rate, key);
        let (_, change) = self.training.local_round(&mut work, &down.model, &Own::default())?;
        Ok((Some(down.cluster), change))
    }

    fn step(&self, global: &mut Clusters, changes: &[Upload<f32>], _: u32) -> Result<f64> {
        let mut norm2 = 0.0;
        for c in 0..global.models.len() {
            let of = |id: u32| global.cluster[id as usize] as usize == c;
            let changes: Vec<&Upload<f32>> = changes.iter().filter(|(id, _)| of(*id)).collect();
            if changes.is_empty() {
                continue;
            }
            let mean = global.mean(&changes)?;
            norm2 += vector::norm2_squared(&mean);
            let members = global.weight.iter().zip(&global.cluster);
            let members = members.filter(|(w, k)| **w > 0.0 && **k as usize == c).count();
            // theta_c += mean of the members' updates
            let model = &mut global.models[c];
            model.iter_mut().zip(&mean).for_each(|(w, x)| *w = (f64::from(*w) + x) as f32);
            if changes.len() == members {
                self.settings.split(global, c, &mean, &changes);
            }
        }
        Ok(norm2)
    }

    fn magnitude(&self, global: &Clusters, scale: &f64) -> f64 {
        1.0 + largest_norm(global.models.iter().map(|model| f32::norm2_squared(model))) / scale
    }

    fn artifact(&self, global: &Clusters, to: Artifact) -> Artifact {
        let cluster = global.cluster.iter().map(|c| f64::from(*c)).collect();
        let shape = [global.models.len(), self.training.learner.parameters()];
        let artifact = to.with(CLUSTER, &[global.cluster.len()], cluster);
        artifact.with_f32(PARAMETERS, &shape, global.models.concat())
    }

    fn own(cluster: &Option<u32>) -> Own {
        Own { weights: cluster.iter().map(|c| f64::from(*c)).collect(), models: Vec::new() }
    }

    fn ask(&self, global: &Clusters) -> Vec<Vec<f32>> {
        global.models.clone()
    }

    fn shared(&self, models: &Vec<Vec<f32>>) -> Vec<f32> {
        models.concat()
    }

    fn measure() -> Option<Measure> {
        let caption = "Clusters of clients so far";
        Some(Measure::new("clusters", "Clusters", "clusters", caption).result(0))
    }

    fn figure(global: &Clusters) -> f64 {
        global.models.len() as f64
    }
}

impl Clusters {
    /// The weighted mean of updates.
    fn mean(&self, changes: &[&Upload<f32>]) -> Result<Vec<f64>> {
        let mut sum = ExactSum::new(self.models[0].len());
        let mut total = 0.0;
        for (id, change) in changes {
            let weight = self.weight[*id as usize];
            total += weight;
            f32::add_to(&mut sum, change, weight)?;
        }
        Ok(sum.value().iter().map(|x| x / total).collect())
    }
}

impl Clustered {
    /// Splits a cluster that is stationary as a whole while members pull apart; both halves continue
    /// from the same model.
    fn split(&self, to: &mut Clusters, c: usize, mean: &[f64], changes: &[&Upload<f32>]) {
        let norms: Vec<f64> = changes.iter().map(|(_, x)| f32::norm2_squared(x).sqrt()).collect();
        let stationary = vector::norm2_squared(mean).sqrt() < self.stationary;
        let apart = norms.iter().any(|norm| *norm > self.apart);
        if !(stationary && apart && changes.len() > 2) {
            return;
        }
        let vectors: Vec<&[f32]> = changes.iter().map(|(_, x)| &x[..]).collect();
        let split = bipartition(&vectors, &norms, self.linkage);
        // gamma_max < sqrt((1 - alpha_cross) / 2)
        if self.gamma_max >= (0.5 * (1.0 - split.across)).max(0.0).sqrt() {
            return;
        }
        let new = to.models.len() as u32;
        to.models.push(to.models[c].clone());
        for ((id, _), second) in changes.iter().zip(&split.second) {
            if *second {
                to.cluster[*id as usize] = new;
            }
        }
    }
}

/// Updates in two groups.
struct Bipartition {
    /// Whether an update belongs to the second group.
    second: Vec<bool>,
    /// `alpha_cross`: the largest similarity of two updates in different groups.
    across: f64,
}

/// Agglomeration by cosine distances down to two groups.
fn bipartition(vectors: &[&[f32]], norms: &[f64], linkage: Linkage) -> Bipartition {
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
    let between_two = distance.clone();
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
            let (a, b) = (distance[i * n + k], distance[j * n + k]);
            let linked = match linkage {
                Linkage::Single => a.min(b),
                Linkage::Complete => a.max(b),
            };
            (distance[i * n + k], distance[k * n + i]) = (linked, linked);
        }
        group.iter_mut().filter(|g| **g == j).for_each(|g| *g = i);
    }
    let second: Vec<bool> = group.iter().map(|g| *g != group[0]).collect();
    let pairs = (0..n).flat_map(|i| (0..i).map(move |j| (i, j)));
    let crossing = pairs.filter(|(i, j)| second[*i] != second[*j]);
    let nearest = crossing.map(|(i, j)| between_two[i * n + j]).fold(f64::INFINITY, f64::min);
    Bipartition { second, across: 1.0 - nearest }
}

/// The model with the smallest mean loss on these samples.
fn nearest(models: &[&[f32]], learner: &dyn Learner, samples: &Samples) -> usize {
    let gain = |model: &&[f32]| {
        let score = Ensemble::single(model.to_vec()).score(learner, samples);
        score.first().map_or(0.0, |loss| -loss as f32)
    };
    largest(&models.iter().map(gain).collect::<Vec<f32>>())
}

/// Local training within a cluster.
const TRAINING: FedAvg = FedAvg { mu: 0.0, fine_tune: false };

/// The shared vector holds the models of all clusters, and the personal state is the number of the
/// client's cluster; during training the shared vector is the model of that cluster.
impl LocalRule for Clustered {
    fn method(&self, training: Personal, terms: Terms) -> Arc<dyn DynMethod> {
        let Terms { weights, budget, .. } = terms;
        let rule = ClusteredClients { training, settings: self.clone() };
        Arc::new(Erased(PerClient { rule, weights, budget }, BindRows))
    }

    fn sends_exactly(&self) -> bool {
        true
    }

    fn begin(&self, work: &mut Work<'_>, w: &[f32], own: &Own) -> Result<Round> {
        TRAINING.begin(work, w, own)
    }

    fn adaptation(&self) -> Adaptation {
        Adaptation::Required
    }

    fn adapt(&self, work: &mut Work<'_>, w: &[f32]) -> Result<Own> {
        let models: Vec<&[f32]> = w.chunks_exact(work.shape().len).collect();
        let cluster = nearest(&models, work.learner, work.samples);
        Ok(Own { weights: vec![cluster as f64], models: Vec::new() })
    }

    fn personal(&self, shape: &Shape<'_>, w: &[f32], own: &Own) -> Result<Ensemble> {
        let cluster = own.weights.first().map_or(0, |c| *c as usize);
        let model = w.chunks_exact(shape.len).nth(cluster);
        let model = model.ok_or_else(|| Error::data("the run has no such cluster"))?;
        Ok(Ensemble::single(model.to_vec()))
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
        for linkage in [Linkage::Single, Linkage::Complete] {
            let split = bipartition(&all, &norms, linkage);
            assert_eq!(split.second, [false, true, false, true, false]);
            assert!(split.across < 0.0, "{}", split.across);
        }
    }

    /// All 2^(n-1) - 1 bipartitions are tried.
    #[test]
    fn no_split_has_a_smaller_similarity_across_than_single_linkage() {
        let mut stream = Key::root(5).stream();
        let mut worse = 0;
        for _ in 0..50 {
            let vectors: Vec<[f32; 3]> =
                (0..8).map(|_| std::array::from_fn(|_| stream.normal() as f32)).collect();
            let all: Vec<&[f32]> = vectors.iter().map(|v| &v[..]).collect();
            let norms: Vec<f64> = all.iter().map(|v| f32::norm2_squared(v).sqrt()).collect();
            let alpha = |i: usize, j: usize| {
                let dot: f64 = (0..3).map(|k| f64::from(all[i][k]) * f64::from(all[j][k])).sum();
                dot / (norms[i] * norms[j])
            };
            let across = |mask: u32| {
                let pairs = (0..8).flat_map(|i| (0..i).map(move |j| (i, j)));
                let crossing = pairs.filter(|(i, j)| ((mask >> i) ^ (mask >> j)) & 1 == 1);
                crossing.map(|(i, j)| alpha(i, j)).fold(f64::NEG_INFINITY, f64::max)
            };
            let best = (1..128).map(across).fold(f64::INFINITY, f64::min);
            let single = bipartition(&all, &norms, Linkage::Single).across;
            assert!((single - best).abs() < 1e-12, "{single} {best}");
            worse += u32::from(bipartition(&all, &norms, Linkage::Complete).across > best + 1e-9);
        }
        assert!(worse > 0, "complete linkage was optimal in every draw");
    }

    #[test]
    fn a_split_of_near_updates_is_refused() {
        let changes: Vec<Upload<f32>> = [[2.0, 0.5], [2.0, -0.5], [-2.0, 0.5], [2.0, 0.4]]
            .map(|x| x.to_vec())
            .into_iter()
            .enumerate()
            .map(|(i, x)| (i as u32, x))
            .collect();
        let changes: Vec<&Upload<f32>> = changes.iter().collect();
        let clusters = |gamma_max| {
            let mut to =
                Clusters { models: vec![vec![0.0; 2]], cluster: vec![0; 4], weight: vec![1.0; 4] };
            let rule = Clustered { gamma_max, ..Clustered::default() };
            rule.split(&mut to, 0, &[0.0, 0.0], &changes);
            to.models.len()
        };
        // alpha_cross is that of (-2, 0.5) and (2, 0.5): -0.88, and sqrt((1 + 0.88)/2) = 0.97.
        assert_eq!((clusters(0.0), clusters(0.96), clusters(0.98)), (2, 2, 1));
    }
}
