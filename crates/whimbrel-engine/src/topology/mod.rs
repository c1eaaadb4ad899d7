//! Graphs of federations without a server, and the weights with which neighbours mix.
//!
//! A [`Topology`] gives the edges, a [`Weighting`] their weights; both make a [`Mixing`] matrix,
//! which is symmetric and doubly stochastic. [`Graphs`] gives the matrix of each round. A fixed
//! graph must be connected; redrawn graphs may isolate clients in a round, because convergence
//! needs a contraction *on average* only (Marfoq et al. 2021, Assumption 8).

mod fastest;
mod mixing;

pub use mixing::{Mixing, ROUNDING, Weighting, unreached};

use crate::keys::StageKeys;
use std::borrow::Cow;
use whimbrel_core::decentralised::Graph;
use whimbrel_core::{Error, Key, Result};

/// The maximum of draws in search of a connected random graph.
const DRAWS_MAX: u64 = 1000;
/// Number of draws for the mean contraction of redrawn graphs.
const AVERAGED: u32 = 32;

/// A graph over the clients.
#[derive(Clone, PartialEq, Debug)]
pub enum Topology {
    /// All pairs.
    Complete,
    /// A cycle in id order.
    Ring,
    /// A torus as near to a square as the number of clients allows, row by row in id order.
    Torus,
    /// Each pair independently with this probability.
    ErdosRenyi {
        /// In (0, 1].
        p: f64,
    },
    /// Distinct pairs, with weights for [`Weighting::Given`].
    Edges(Vec<(u32, u32, Option<f64>)>),
}

/// The graphs of all rounds.
#[derive(Clone, PartialEq, Debug)]
pub enum Graphs {
    /// One graph for all rounds, with its figures.
    Fixed(Mixing, Graph),
    /// A new graph every round: random graphs are redrawn, rings and tori permute the clients.
    Redrawn { clients: u32, topology: Topology, weighting: Weighting },
}

impl Topology {
    /// Whether it can be redrawn every round.
    pub fn is_random(&self) -> bool {
        matches!(self, Self::ErdosRenyi { .. } | Self::Ring | Self::Torus)
    }

    /// Pairs of neighbours, the lower id first; only those of an edge list have weights.
    fn edges(&self, clients: u32, key: Key) -> Result<Vec<(u32, u32, Option<f64>)>> {
        let pairs: Vec<(u32, u32)> = match self {
            Self::Edges(edges) => return Ok(edges.clone()),
            Self::Complete => {
                (0..clients).flat_map(|i| (i + 1..clients).map(move |j| (i, j))).collect()
            }
            Self::Ring => ring(clients, 1, 0),
            Self::Torus => torus(clients)?,
            Self::ErdosRenyi { p } => {
                let mut stream = key.stream();
                let pairs = (0..clients).flat_map(|i| (i + 1..clients).map(move |j| (i, j)));
                pairs.filter(|_| stream.uniform() < *p).collect()
            }
        };
        Ok(pairs.into_iter().map(|(i, j)| (i, j, None)).collect())
    }
}

/// A ring of `length` clients: every `stride`-th from `first`.
fn ring(length: u32, stride: u32, first: u32) -> Vec<(u32, u32)> {
    let at = |i: u32| first + stride * i;
    match length {
        0 | 1 => Vec::new(),
        2 => vec![(at(0), at(1))],
        _ => (1..length).map(|i| (at(i - 1), at(i))).chain([(at(0), at(length - 1))]).collect(),
    }
}

fn torus(clients: u32) -> Result<Vec<(u32, u32)>> {
    let root = f64::from(clients).sqrt() as u32;
    let rows = (1..=root).rev().find(|rows| clients.is_multiple_of(*rows)).unwrap_or(1);
    if rows == 1 && clients > 3 {
        let what = format!("{clients} clients do not form a torus: the number is prime");
        return Err(Error::config(what).hint("kind = \"ring\" takes any number"));
    }
    let columns = clients / rows.max(1);
    let along = (0..rows).flat_map(|row| ring(columns, 1, row * columns));
    let across = (0..columns).flat_map(|column| ring(rows, columns, column));
    Ok(along.chain(across).collect())
}

/// The edges of a connected graph.
fn connected(topology: &Topology, clients: u32, key: Key) -> Result<Vec<(u32, u32, Option<f64>)>> {
    let Topology::ErdosRenyi { p } = topology else {
        let edges = topology.edges(clients, key)?;
        return match unreached(clients, &edges) {
            None => Ok(edges),
            Some(i) => Err(Error::config(format!(
                "the graph is not connected: no path joins client {i} to client 0"
            ))),
        };
    };
    for draw in 0..DRAWS_MAX {
        let edges = topology.edges(clients, key.child(draw))?;
        if unreached(clients, &edges).is_none() {
            return Ok(edges);
        }
    }
    let what = format!(
        "none of {DRAWS_MAX} random graphs over {clients} clients with p = {p} is connected"
    );
    let n = f64::from(clients);
    let hint =
        format!("take a larger p: most graphs are connected above ln(n)/n = {:.3}", n.ln() / n);
    Err(Error::config(what).hint(hint))
}

impl Graphs {
    /// One graph for all rounds. A disconnected random graph is redrawn; other disconnected graphs,
    /// and weights without consensus, are refused.
    pub fn fixed(
        topology: &Topology,
        weighting: Weighting,
        clients: u32,
        key: Key,
    ) -> Result<Self> {
        let edges = connected(topology, clients, key)?;
        let mixing = Mixing::weigh(clients, &edges, weighting)?;
        let graph = mixing.graph()?;
        // A connected graph oscillates only if no client's own state has a weight.
        if graph.spectral_gap.is_some_and(|gap| gap <= f64::from(clients) * f64::EPSILON) {
            let what = "the mixing matrix has spectral gap 0: clients never agree";
            return Err(Error::config(what).hint("give each client's own state a positive weight"));
        }
        Ok(Self::Fixed(mixing, graph))
    }

    /// A new graph every round.
    pub fn redrawn(topology: Topology, weighting: Weighting, clients: u32) -> Result<Self> {
        if !topology.is_random() {
            let what = "complete graphs and edge lists are the same in every round";
            return Err(Error::config(what).hint("take `redraw` out"));
        }
        if weighting == Weighting::FastestMixing {
            let what = "fastest-mixing weights are computed for one graph, not for one every round";
            return Err(Error::config(what).hint("mixing = \"metropolis\", or take `redraw` out"));
        }
        // A torus must be possible.
        topology.edges(clients, Key::root(0))?;
        Ok(Self::Redrawn { clients, topology, weighting })
    }

    /// Number of clients.
    pub fn clients(&self) -> usize {
        match self {
            Self::Fixed(mixing, _) => mixing.clients(),
            Self::Redrawn { clients, .. } => *clients as usize,
        }
    }

    /// The matrix of an exchange.
    pub fn of_exchange(&self, keys: &StageKeys, exchange: u32) -> Result<Cow<'_, Mixing>> {
        match self {
            Self::Fixed(mixing, _) => Ok(Cow::Borrowed(mixing)),
            Self::Redrawn { clients, topology, weighting } => {
                let key = keys.exchange(exchange).graph();
                let mut edges = topology.edges(*clients, key)?;
                if !matches!(topology, Topology::ErdosRenyi { .. }) {
                    let mut order: Vec<u32> = (0..*clients).collect();
                    key.stream().shuffle(&mut order);
                    for (i, j, _) in &mut edges {
                        (*i, *j) = (order[*i as usize], order[*j as usize]);
                    }
                }
                Ok(Cow::Owned(Mixing::weigh(*clients, &edges, *weighting)?))
            }
        }
    }

    /// The figures of the graphs. For redrawn graphs, `1 - gap` is the root of the largest
    /// eigenvalue of the mean of `W^2` over some draws, on the complement of the mean of all
    /// clients: a round shrinks the expected squared disagreement at least by its square
    /// (Assumption 8 with `tau = 1`).
    pub fn graph(&self, keys: &StageKeys) -> Result<Graph> {
        match self {
            Self::Fixed(_, graph) => Ok(*graph),
            Self::Redrawn { clients, .. } => {
                let first = self.of_exchange(keys, 0)?;
                let mut squares = mixing::Squares::new(*clients as usize);
                for exchange in 0..AVERAGED {
                    squares.add(&*self.of_exchange(keys, exchange)?);
                }
                Ok(Graph { spectral_gap: squares.gap()?, ..first.figures() })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use whimbrel_core::ClientId;

    fn fixed(topology: &Topology, clients: u32) -> Mixing {
        let key = Key::root(3);
        match Graphs::fixed(topology, Weighting::Metropolis, clients, key).unwrap() {
            Graphs::Fixed(mixing, _) => mixing,
            Graphs::Redrawn { .. } => unreachable!(),
        }
    }

    #[test]
    fn tori_are_as_square_as_can_be() {
        let torus = fixed(&Topology::Torus, 12);
        // Three rows of four: everyone has two neighbours along and two across.
        let near = |i| torus.neighbours(ClientId(i)).iter().map(|(j, _)| j.0).collect::<Vec<_>>();
        assert_eq!(near(0), [1, 3, 4, 8]);
        assert_eq!(near(6), [2, 5, 7, 10]);
        // Two rows meet once.
        let small = fixed(&Topology::Torus, 4);
        assert!((0..4).all(|i| small.neighbours(ClientId(i)).len() == 2));
        let error = Graphs::fixed(&Topology::Torus, Weighting::Metropolis, 7, Key::root(1));
        assert!(error.unwrap_err().to_string().contains("7 clients do not form a torus"));
    }

    #[test]
    fn fixed_random_graphs_are_connected_and_redrawn_ones_need_not_be() {
        // Far below ln(40)/40 = 0.09 most draws leave somebody alone.
        let sparse = Topology::ErdosRenyi { p: 0.07 };
        let found = fixed(&sparse, 40).graph().unwrap();
        assert!(found.spectral_gap.unwrap() > 0.0);
        let error = Graphs::fixed(
            &Topology::ErdosRenyi { p: 1e-6 },
            Weighting::Metropolis,
            40,
            Key::root(1),
        );
        assert!(error.unwrap_err().to_string().contains("is connected"));
        let redrawn = Graphs::redrawn(sparse, Weighting::Metropolis, 40).unwrap();
        let keys = StageKeys::new(1, 0);
        let first = redrawn.of_exchange(&keys, 0).unwrap().into_owned();
        let second = redrawn.of_exchange(&keys, 1).unwrap().into_owned();
        assert_ne!(first, second);
        assert_eq!(first, *redrawn.of_exchange(&keys, 0).unwrap());
        let lonely = (0..40).any(|i| first.neighbours(ClientId(i)).is_empty());
        assert!(lonely, "no client is alone in a graph with two neighbours each on average");
        let gap = redrawn.graph(&keys).unwrap().spectral_gap.unwrap();
        assert!(gap > 0.0, "on average everyone is reached");
    }

    #[test]
    fn redrawn_rings_mix_faster_than_fixed_ones() {
        let keys = StageKeys::new(1, 0);
        let redrawn = Graphs::redrawn(Topology::Ring, Weighting::Metropolis, 30).unwrap();
        let gap = redrawn.graph(&keys).unwrap().spectral_gap.unwrap();
        // E W^2 of a ring in uniform order: 1/3 of the squared distances from the mean, with a
        // correction of order 1/n; 32 draws leave its largest eigenvalue well below 1/2.
        assert!(gap > 1.0 - 0.5f64.sqrt(), "{gap}");
        assert!(fixed(&Topology::Ring, 30).graph().unwrap().spectral_gap.unwrap() < 0.02);
        for topology in [Topology::Complete, Topology::Edges(vec![(0, 1, None)])] {
            assert!(Graphs::redrawn(topology, Weighting::Metropolis, 2).is_err());
        }
        let fastest = Weighting::FastestMixing;
        assert!(Graphs::redrawn(Topology::Ring, fastest, 30).is_err());
    }
}
