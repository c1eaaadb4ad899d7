//! `d-fedmix` and others: local training without a server, for every
//! [`LocalRule`](super::LocalRule) with a shared vector.
//!
//! Reference: Marfoq et al. 2021, Algorithms 4 (D-FedEM) and 5 (fully decentralised federated surrogate
//! optimisation): every client trains its copy of the shared vector, sends it to its neighbours and
//! takes the weighted mean of the copies that it receives.
//!
//! | paper | here | meaning |
//! |---|---|---|
//! | `u_t^k` | [`Node::w`] | the client's copy of the shared vector |
//! | `v_t^k` | [`Node::own`] | the client's personal state |
//! | `u_t^{k-1/2}` | the message | the copy after local training |
//! | `W^k` | the weights of `mix` | the engine's, from its graph |
//! | `omega_t = n_t/n` | share | a client's part of all weights |
//!
//! *Reduces to* the star-shaped method on the complete graph with uniform weights, to rounding and for any
//! sizes: keys, start and local training are the same.
//!
//! *Departures from the paper*: (1) Algorithm 4 multiplies the local step by `n_t/n`, which is `1/T` of
//! the star-shaped step; here the local *change* is multiplied by `T n_t/n` ([`Scaling::Paper`] keeps the
//! print). (2) All clients start from the same vector: independently drawn components could not be
//! averaged. That vector and `n` follow from summaries that everyone sends once.

use super::evaluate::{self, Told};
use super::{Own, Personal, Summary};
use crate::federated::{Judge, Member, Oracle, PartScores, Split, aggregate, held_out};
use crate::measures;
use crate::settings::Weights;
use whimbrel_codec::Scalar;
use whimbrel_core::decentralised::{Decentralised, Graph};
use whimbrel_core::erased::{Bound, Opaque, bound, declared, own, view};
use whimbrel_core::method::{Artifact, ClientGroup, Declaration, Metric};
use whimbrel_core::sum::ExactSum;
use whimbrel_core::{ClientData, ClientId, Error, Key, Message, Result, Samples, Wire, wire};

/// Local training among neighbours.
pub struct DecentralisedPersonal {
    /// The learner, the rule, the solver and its steps; settings of the server are not used.
    pub oracle: Personal,
    pub weights: Weights,
    pub scaling: Scaling,
    pub rounds: u32,
}

/// The effect of a client's share `omega_t` of all weights on its local training.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scaling {
    /// The local change is multiplied by `T omega_t`: the mean over clients is the star-shaped one.
    #[default]
    Samples,
    /// The local step is multiplied by `omega_t`, as printed.
    Paper,
}

/// Facts known to all clients before the first round.
pub struct Common {
    /// The first vector.
    w: Vec<f32>,
    clients: f64,
    /// The sum of all weights.
    total: f64,
}

/// A client's state.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// Its copy of the shared vector.
    pub w: Vec<f32>,
    pub own: Own,
    /// The factor of its local step.
    pub step_factor: f64,
    /// The factor of its local change.
    pub change_factor: f64,
    /// Rounds done.
    pub k: u32,
}

/// The message to all clients before the first round.
#[derive(Clone, Debug)]
pub struct Introduction {
    rows: u64,
    summary: Summary,
}

/// A client's answer to an evaluation.
#[derive(Clone, Debug)]
pub struct Answer {
    rows: u64,
    /// Samples used by its training so far.
    rows_used: u64,
    /// Its predictor's mean loss on its training rows.
    loss: f64,
    /// The squared distance from its copy to the mean of all.
    distance2: f64,
    parts: Vec<PartScores>,
}

wire!(Node { w, own, step_factor, change_factor, k });
wire!(Introduction { rows, summary });
wire!(Answer { rows, rows_used, loss, distance2, parts });

impl Decentralised for DecentralisedPersonal {
    fn declare(&self) -> Declaration {
        let whole = 4 * self.oracle.blocks().iter().sum::<usize>() + 32;
        let summary = format!("once, to everyone: {}", self.oracle.summary_content());
        let copy = "each round, to every neighbour: its copy of the shared parameters after local \
                    training (not its personal state)";
        let disclosures = vec![
            aggregate("summary", &summary, self.oracle.summary_bytes()),
            aggregate("up", copy, whole),
            evaluate::disclosure(),
        ];
        let mut measures = vec![measures::epoch(), evaluate::objective()];
        measures.extend(held_out::measures(&self.oracle.scores()));
        measures.extend(measures::neighbours());
        Declaration { disclosures, measures, ..Declaration::default() }
    }

    fn bind(&self, data: &ClientData) -> Result<Bound> {
        Ok(Box::new(Split::bind(data, |rows| self.oracle.bind(rows))?))
    }

    fn enroll(&self, data: &Bound, key: Key) -> Result<Vec<u8>> {
        let data = parts(data)?;
        let (_, summary) = self.oracle.enroll(&data.train, key)?;
        Ok(Introduction { rows: data.rows[0], summary }.to_bytes())
    }

    fn agree(&self, roster: &[(ClientId, Vec<u8>)], key: Key) -> Result<Bound> {
        let mut total = 0.0;
        let mut members = roster.iter().map(|(id, bytes)| {
            let Introduction { rows, summary } = Introduction::from_bytes(bytes)?;
            let weight = self.weights.of(*id, rows)?;
            total += weight;
            Ok(Member { id: *id, weight, rows, summary })
        });
        let w = self.oracle.first(&mut members, key)?;
        Ok(Box::new(Common { w, clients: roster.len() as f64, total }))
    }

    fn start(&self, common: &Bound, data: &Bound, key: Key) -> Result<Opaque> {
        let (common, data) = (bound::<Common>(common)?, parts(data)?);
        let (own, _) = self.oracle.enroll(&data.train, key)?;
        let weight = self.weights.of(ClientId(0), data.rows[0])?;
        let share = weight / common.total;
        let (step_factor, change_factor) = match self.scaling {
            Scaling::Samples => (1.0, common.clients * share),
            Scaling::Paper => (share, 1.0),
        };
        Ok(Box::new(Node { w: common.w.clone(), own, step_factor, change_factor, k: 0 }))
    }

    fn rounds(&self) -> u32 {
        self.rounds
    }

    fn local_step(&self, node: Opaque, data: &Bound, key: Key) -> Result<(Opaque, Message)> {
        let mut node: Node = own(node)?;
        let rate = node.step_factor * self.oracle.rates.at(node.k);
        let mut work = self.oracle.work(&parts(data)?.train, rate, key);
        // v_t^k, and u_t^{k-1/2} = u_t^{k-1} + T omega_t (local change)        (Alg. 5, l. 5-6)
        let (own, change) = self.oracle.local_round(&mut work, &node.w, &node.own)?;
        let factor = node.change_factor;
        for (w, change) in node.w.iter_mut().zip(&change) {
            *w = (f64::from(*w) + factor * f64::from(*change)) as f32;
        }
        let message = Message::to_many(&node.w);
        Ok((Box::new(Node { own, k: node.k + 1, ..node }), message))
    }

    fn mix(&self, node: Opaque, weight: f64, received: &[(f64, &Message)]) -> Result<Opaque> {
        let mut node: Node = own(node)?;
        // u_t^k = sum_s w_ts u_s^{k-1/2}                                        (Alg. 5, l. 9)
        let mut sum = vec![0.0; node.w.len()];
        add(&mut sum, weight, &node.w);
        for (weight, message) in received {
            let u_s = message.read_shared::<Vec<f32>>()?;
            if u_s.len() != sum.len() || !u_s.iter().all(|x| x.is_finite()) {
                let what = "a neighbour sent a vector of another length or not finite";
                return Err(Error::peer(what));
            }
            add(&mut sum, *weight, &u_s);
        }
        node.w.iter_mut().zip(&sum).for_each(|(w, sum)| *w = *sum as f32);
        Ok(Box::new(node))
    }

    fn magnitude(&self, node: &Opaque) -> Result<f64> {
        Ok(1.0 + f32::norm2_squared(&view::<Node>(node)?.w).sqrt())
    }

    fn mean(&self, nodes: &[Opaque]) -> Result<Opaque> {
        let (mut sum, mut k) = (Vec::new(), 0);
        for node in nodes {
            let node: &Node = view(node)?;
            sum.resize(node.w.len(), 0.0);
            add(&mut sum, 1.0, &node.w);
            k = node.k;
        }
        let w = sum.iter().map(|sum| (sum / nodes.len() as f64) as f32).collect();
        Ok(Box::new(Node { w, own: Own::default(), step_factor: 1.0, change_factor: 1.0, k }))
    }

    fn artifact(&self, mean: &Opaque) -> Result<Artifact> {
        let artifact = Artifact::new(self.oracle.learner.name());
        Ok(with_parameters(artifact, &view::<Node>(mean)?.w))
    }

    /// Includes the client's copy of the shared vector: neighbours need not agree.
    fn client_artifact(&self, node: &Opaque, _: &Bound) -> Result<Option<Artifact>> {
        let node: &Node = view(node)?;
        Ok(Some(with_parameters(node.own.artifact(self.oracle.learner.name()), &node.w)))
    }

    fn answer(&self, node: &Opaque, mean: &Opaque, data: &Bound) -> Result<Vec<u8>> {
        let (node, mean, data) = (view::<Node>(node)?, view::<Node>(mean)?, parts(data)?);
        let oracle = &self.oracle;
        let own = oracle.predictor(&node.w, oracle.rates.initial, &node.own, &data.train)?;
        let Told { rows, answer: loss, parts, .. } = oracle.answer_with(&own, data)?;
        let apart = |(x, mean): (&f32, &f32)| (f64::from(*x) - f64::from(*mean)).powi(2);
        let distance2 = node.w.iter().zip(&mean.w).map(apart).sum();
        let rows_used = u64::from(node.k) * oracle.solver.rows_used(rows);
        Ok(Answer { rows, rows_used, loss, distance2, parts }.to_bytes())
    }

    fn own(&self, answer: &[u8]) -> Result<Vec<Metric>> {
        let answer = Answer::from_bytes(answer)?;
        Ok(self.oracle.own_figures(answer.loss, &answer.parts))
    }

    fn conclude(
        &self,
        graph: &Graph,
        answers: &[(ClientId, Vec<u8>)],
        group: ClientGroup,
    ) -> Result<Vec<Metric>> {
        let read = |(id, bytes): &(ClientId, Vec<u8>)| Ok((*id, Answer::from_bytes(bytes)?));
        let answers = answers.iter().map(read).collect::<Result<Vec<(ClientId, Answer)>>>()?;
        let (mut rows, mut rows_used, mut spread) = (0, 0, ExactSum::new(1));
        for (_, answer) in &answers {
            (rows, rows_used) = (rows + answer.rows, rows_used + answer.rows_used);
            spread.add(&[answer.distance2], 1.0)?;
        }
        let disagreement = spread.value()[0] / answers.len() as f64;
        let told = answers.into_iter().map(|(id, Answer { rows, loss, parts, .. })| {
            (id, Told { rows, answer: loss, memory_gap2: None, parts })
        });
        let measures = self.declare().measures;
        if group == ClientGroup::Unseen {
            return declared(&measures, self.oracle.pool_unseen(told)?);
        }
        let mut metrics = vec![Metric::number("epoch", rows_used as f64 / rows as f64)];
        metrics.extend(self.oracle.pool_told(self.weights, told)?);
        metrics.push(Metric::number("disagreement", disagreement));
        metrics.extend(graph.spectral_gap.map(|gap| Metric::number("spectral_gap", gap)));
        declared(&measures, metrics)
    }

    fn load(&self, bytes: &[u8]) -> Result<Opaque> {
        Ok(Box::new(Node::from_bytes(bytes)?))
    }
}

fn parts(data: &Bound) -> Result<&Split<Samples>> {
    bound(data)
}

fn with_parameters(artifact: Artifact, w: &[f32]) -> Artifact {
    artifact.with_f32(super::PARAMETERS, &[w.len()], w.to_vec())
}

whimbrel_core::kernel! {
    /// `sum += weight x`.
    fn add(sum: &mut [f64], weight: f64, x: &[f32]) {
        for (sum, x) in sum.iter_mut().zip(x) {
            *sum += weight * f64::from(*x);
        }
    }
}
