//! Gossip averaging: neighbours find the mean of their vectors without a server.
//!
//! Reference: L. Xiao and S. Boyd, *Fast linear iterations for distributed averaging*, Systems &
//! Control Letters 53 (2004), equation (2): `x(t+1) = W x(t)` with a symmetric, doubly stochastic
//! `W` on the graph.
//!
//! | paper | here | meaning |
//! |---|---|---|
//! | `x_i(t)` | [`Gossip`]'s node | a client's estimate of the mean |
//! | `W_ij` | the weights of `mix` | the engine's, from its topology |
//! | `1 − ρ(W − 11ᵀ/n)` | `spectral_gap` | what a round takes off the disagreement at least |
//!
//! *Reduces to* the exact mean after one round on a complete graph. *Departures from the paper*: none.

use crate::measures;
use std::sync::Arc;
use whimbrel_core::decentralised::{Decentralised, Graph};
use whimbrel_core::method::{Artifact, Disclosure, Exposure, Metric};
use whimbrel_core::{ClientData, ClientId, Error, Key, Measure, Result, vector};

/// Averages the means of the clients' columns; every client counts the same.
#[derive(Clone, Debug)]
pub struct Gossip {
    /// Rounds.
    pub rounds: u32,
    /// Columns of every client's table.
    pub columns: usize,
}

impl Decentralised for Gossip {
    type Data = Vec<f64>;
    type Summary = ();
    type Common = ();
    type Node = Vec<f64>;
    type Message = Vec<f64>;
    /// The squared distance to the mean.
    type Answer = f64;

    fn bind(&self, data: &ClientData) -> Result<Vec<f64>> {
        let ClientData::Table(table) = data else {
            return Err(Error::data("gossip averages the columns of a table"));
        };
        let rows = table.rows();
        if rows == 0 || table.columns.len() != self.columns {
            return Err(Error::data(format!("a table of {} columns is needed", self.columns)));
        }
        let mut mean = vec![0.0; self.columns];
        for row in table.values.chunks_exact(self.columns) {
            vector::axpy(&mut mean, 1.0 / rows as f64, row);
        }
        Ok(mean)
    }

    fn enroll(&self, _: &Vec<f64>, _: Key) -> Result<()> {
        Ok(())
    }

    fn agree(&self, _: &mut dyn Iterator<Item = Result<(ClientId, ())>>, _: Key) -> Result<()> {
        Ok(())
    }

    fn start(&self, (): &(), data: &Vec<f64>, _: Key) -> Result<Vec<f64>> {
        Ok(data.clone())
    }

    fn rounds(&self) -> u32 {
        self.rounds
    }

    fn local_step(&self, node: Vec<f64>, _: &Vec<f64>, _: Key) -> Result<Vec<f64>> {
        Ok(node)
    }

    fn emit(&self, node: &Vec<f64>) -> Result<Vec<f64>> {
        Ok(node.clone())
    }

    fn mix(
        &self,
        mut node: Vec<f64>,
        own: f64,
        received: &mut dyn Iterator<Item = Result<(f64, Arc<Vec<f64>>)>>,
    ) -> Result<Vec<f64>> {
        // x_i(t+1) = W_ii x_i(t) + Σ_j W_ij x_j(t)                                      (eq. 2)
        vector::scale(&mut node, own);
        for told in received {
            let (weight, x_j) = told?;
            if x_j.len() != self.columns || !vector::all_finite(&x_j) {
                return Err(Error::peer(
                    "a neighbour sent a vector of another length or not finite",
                ));
            }
            vector::axpy(&mut node, weight, &x_j);
        }
        Ok(node)
    }

    fn magnitude(&self, node: &Vec<f64>) -> f64 {
        vector::norm2_squared(node).sqrt()
    }

    /// Rounds leave it where it was. In id order, so that it is the same everywhere.
    fn mean(&self, nodes: &mut dyn Iterator<Item = Result<&Vec<f64>>>) -> Result<Vec<f64>> {
        let nodes = nodes.collect::<Result<Vec<_>>>()?;
        let mut mean = vec![0.0; self.columns];
        for node in &nodes {
            vector::axpy(&mut mean, 1.0 / nodes.len() as f64, node);
        }
        Ok(mean)
    }

    fn artifact(&self, mean: &Vec<f64>) -> Result<Artifact> {
        Ok(Artifact::new("mean").with("mean", &[self.columns], mean.clone()))
    }

    fn client_artifact(&self, node: &Vec<f64>, _: &Vec<f64>) -> Result<Option<Artifact>> {
        let artifact = Artifact::new("mean");
        Ok(Some(artifact.with("mean", &[self.columns], node.clone())))
    }

    fn disclosures(&self) -> Vec<Disclosure> {
        vec![Disclosure {
            message: "up",
            meaning: "the client's estimate of the mean; in the first round its own means".into(),
            bytes_max: 8 * self.columns,
            exposure: Exposure::Aggregate,
        }]
    }

    fn measures(&self) -> Vec<Measure> {
        measures::neighbours().into()
    }

    fn answer(&self, node: &Vec<f64>, mean: &Vec<f64>, _: &Vec<f64>) -> Result<f64> {
        Ok(node.iter().zip(mean).map(|(x, c)| (x - c) * (x - c)).sum())
    }

    fn conclude(
        &self,
        graph: &Graph,
        answers: &mut dyn Iterator<Item = Result<(ClientId, f64)>>,
    ) -> Result<Vec<Metric>> {
        let distances2 = answers.map(|answer| Ok(answer?.1)).collect::<Result<Vec<_>>>()?;
        let disagreement = distances2.iter().sum::<f64>() / distances2.len().max(1) as f64;
        let mut metrics = vec![Metric::number("disagreement", disagreement)];
        metrics.extend(graph.spectral_gap.map(|gap| Metric::number("spectral_gap", gap)));
        Ok(metrics)
    }
}
