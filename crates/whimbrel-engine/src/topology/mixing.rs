//! Symmetric, doubly stochastic weights on the edges of a graph.

use super::fastest;
use std::collections::BTreeSet;
use whimbrel_core::decentralised::Graph;
use whimbrel_core::linalg::symmetric_eigen;
use whimbrel_core::{ClientId, Error, Result};

/// Tolerance of the sums of given weights.
pub const ROUNDING: f64 = 1e-9;

/// The maximum of clients for which the eigenvalues of the mixing matrix are computed.
const EIGEN_MAX: usize = 1024;

/// The rule for the weights of edges. A client gives the rest of its weight to itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Weighting {
    /// `1 / (1 + max(degrees of both))` (Metropolis and Hastings; Xiao & Boyd, 2004).
    #[default]
    Metropolis,
    /// `1 / (1 + largest degree)` on every edge.
    MaximumDegree,
    /// The weights with the largest spectral gap (Boyd, Diaconis & Xiao, 2004).
    FastestMixing,
    /// The weights of the edge list.
    Given,
}

/// A graph with symmetric, doubly stochastic weights.
#[derive(Clone, PartialEq, Debug)]
pub struct Mixing {
    own: Vec<f64>,
    /// Neighbours in id order.
    neighbours: Vec<Vec<(ClientId, f64)>>,
}

impl Mixing {
    /// Weights of these edges, for connected and other graphs.
    pub(super) fn weigh(
        clients: u32,
        edges: &[(u32, u32, Option<f64>)],
        weighting: Weighting,
    ) -> Result<Self> {
        if weighting == Weighting::Given {
            return Self::given(clients, edges);
        }
        if let Some((i, j, _)) = edges.iter().find(|(_, _, weight)| weight.is_some()) {
            let what = format!("the edge list gives clients {i} and {j} a weight");
            return Err(Error::config(what).hint("write mixing = \"given\", or take weights out"));
        }
        let mut degrees = vec![0u32; clients as usize];
        for (i, j, _) in edges {
            for end in [*i, *j] {
                let degree = degrees.get_mut(end as usize);
                *degree.ok_or_else(|| no_pair(*i, *j))? += 1;
            }
        }
        let largest = degrees.iter().copied().max().unwrap_or(0);
        let weight = |(i, j, _): &(u32, u32, Option<f64>)| {
            let degree = match weighting {
                Weighting::MaximumDegree => largest,
                _ => degrees[*i as usize].max(degrees[*j as usize]),
            };
            1.0 / (1.0 + f64::from(degree))
        };
        let mut weights: Vec<f64> = edges.iter().map(weight).collect();
        let pairs: Vec<(u32, u32)> = edges.iter().map(|(i, j, _)| (*i, *j)).collect();
        if weighting == Weighting::FastestMixing {
            weights = fastest::weights(clients as usize, &pairs, weights)?;
        }
        // An edge without weight is none.
        let weighted = pairs.into_iter().zip(weights).filter(|(_, weight)| *weight > 0.0);
        Self::from_edges(clients, weighted.map(|((i, j), weight)| (i, j, weight)))
    }

    /// A matrix from an edge list: pairs with their weights, and optionally clients with their own.
    fn given(clients: u32, edges: &[(u32, u32, Option<f64>)]) -> Result<Self> {
        let weighted = |(i, j, weight): &(u32, u32, Option<f64>)| match weight {
            Some(weight) => Ok((*i, *j, *weight)),
            None => {
                let what = format!("the edge between clients {i} and {j} has no weight");
                Err(Error::config(what).hint("give every edge one, or mixing = \"metropolis\""))
            }
        };
        let all = edges.iter().map(weighted).collect::<Result<Vec<_>>>()?;
        let (own, between): (Vec<_>, Vec<_>) = all.into_iter().partition(|(i, j, _)| i == j);
        let mixing = Self::from_edges(clients, between)?;
        for (i, _, weight) in own {
            let rest = mixing.own.get(i as usize).ok_or_else(|| no_pair(i, i))?;
            let off = (weight - rest).abs();
            if off.is_nan() || off > ROUNDING {
                return Err(not_stochastic(i, 1.0 - rest + weight));
            }
        }
        Ok(mixing)
    }

    /// Weights of distinct edges. A client gives the rest of its weight to itself, so that all rows and
    /// columns sum to one. Refuses weights that are not positive or sum to more than one.
    pub fn from_edges(
        clients: u32,
        edges: impl IntoIterator<Item = (u32, u32, f64)>,
    ) -> Result<Self> {
        if clients == 0 {
            return Err(Error::config("a graph needs at least one client"));
        }
        let mut neighbours = vec![Vec::new(); clients as usize];
        let mut seen = BTreeSet::new();
        for (i, j, weight) in edges {
            if i == j || i.max(j) >= clients || !seen.insert((i.min(j), i.max(j))) {
                return Err(no_pair(i, j));
            }
            if !(weight > 0.0 && weight <= 1.0) {
                return Err(Error::config(format!(
                    "the weight {weight} between {i} and {j} must lie in (0, 1]"
                )));
            }
            neighbours[i as usize].push((ClientId(j), weight));
            neighbours[j as usize].push((ClientId(i), weight));
        }
        let mut own = Vec::with_capacity(neighbours.len());
        for (i, near) in neighbours.iter_mut().enumerate() {
            near.sort_by_key(|(id, _)| *id);
            let given: f64 = near.iter().map(|(_, weight)| weight).sum();
            if given > 1.0 + ROUNDING {
                return Err(not_stochastic(i as u32, given));
            }
            own.push((1.0 - given).max(0.0));
        }
        Ok(Self { own, neighbours })
    }

    /// Number of clients.
    pub fn clients(&self) -> usize {
        self.own.len()
    }

    /// A client's weight of its own state.
    pub fn own(&self, id: ClientId) -> f64 {
        self.own[id.0 as usize]
    }

    /// A client's neighbours with their weights, in id order.
    pub fn neighbours(&self, id: ClientId) -> &[(ClientId, f64)] {
        &self.neighbours[id.0 as usize]
    }

    /// The figures of the graph.
    pub fn graph(&self) -> Result<Graph> {
        Ok(Graph { spectral_gap: self.spectral_gap()?, ..self.figures() })
    }

    /// [`Mixing::graph`] without the spectral gap.
    pub(super) fn figures(&self) -> Graph {
        let ends: usize = self.neighbours.iter().map(Vec::len).sum();
        Graph { clients: self.clients() as u32, edges: ends as u64 / 2, spectral_gap: None }
    }

    /// One minus the second largest absolute eigenvalue.
    fn spectral_gap(&self) -> Result<Option<f64>> {
        let n = self.clients();
        if n > EIGEN_MAX {
            return Ok(None);
        }
        if n == 1 {
            return Ok(Some(1.0));
        }
        let mut matrix = vec![0.0; n * n];
        for i in 0..n {
            matrix[i * n + i] = self.own[i];
            for (j, weight) in &self.neighbours[i] {
                matrix[i * n + j.0 as usize] = *weight;
            }
        }
        // Ascending: the last is one, of the vector of ones.
        let values = symmetric_eigen(&matrix, n)?.values;
        let second = values[n - 2].abs().max(values[0].abs());
        Ok(Some((1.0 - second).max(0.0)))
    }
}

/// The mean of `W^2` over several matrices.
pub(super) struct Squares {
    clients: usize,
    count: u32,
    sum: Vec<f64>,
}

impl Squares {
    pub fn new(clients: usize) -> Self {
        let numbers = if clients <= EIGEN_MAX { clients * clients } else { 0 };
        Self { clients, count: 0, sum: vec![0.0; numbers] }
    }

    pub fn add(&mut self, mixing: &Mixing) {
        if self.sum.is_empty() {
            return;
        }
        self.count += 1;
        let entries = |i: usize| {
            let near = mixing.neighbours[i].iter().map(|(j, weight)| (j.0 as usize, *weight));
            near.chain([(i, mixing.own[i])])
        };
        for (i, row) in self.sum.chunks_exact_mut(self.clients).enumerate() {
            for (j, w_ij) in entries(i) {
                entries(j).for_each(|(k, w_jk)| row[k] += w_ij * w_jk);
            }
        }
    }

    /// One minus the root of the second largest eigenvalue.
    pub fn gap(mut self) -> Result<Option<f64>> {
        let n = self.clients;
        if self.sum.is_empty() || n < 2 {
            return Ok((n == 1).then_some(1.0));
        }
        let count = f64::from(self.count);
        self.sum.iter_mut().for_each(|x| *x /= count);
        let second = symmetric_eigen(&self.sum, n)?.values[n - 2];
        Ok(Some((1.0 - second.max(0.0).sqrt()).max(0.0)))
    }
}

/// A client without a path to the first.
pub fn unreached(clients: u32, edges: &[(u32, u32, Option<f64>)]) -> Option<u32> {
    let mut near = vec![Vec::new(); clients as usize];
    for (i, j, _) in edges.iter().filter(|(i, j, _)| (*i).max(*j) < clients) {
        near[*i as usize].push(*j);
        near[*j as usize].push(*i);
    }
    let (mut reached, mut next) = (vec![false; near.len()], vec![0]);
    while let Some(i) = next.pop().filter(|_| clients > 0) {
        if !std::mem::replace(&mut reached[i as usize], true) {
            next.extend(&near[i as usize]);
        }
    }
    reached.iter().position(|reached| !reached).map(|i| i as u32)
}

fn no_pair(i: u32, j: u32) -> Error {
    Error::config(format!("{i} and {j} are an invalid or repeated edge"))
}

fn not_stochastic(i: u32, sum: f64) -> Error {
    Error::config(format!(
        "the mixing matrix is not doubly stochastic: the weights of client {i} sum to {sum}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::{Graphs, Topology};
    use whimbrel_core::Key;

    fn fixed(topology: &Topology, weighting: Weighting, clients: u32) -> Result<Mixing> {
        match Graphs::fixed(topology, weighting, clients, Key::root(1))? {
            Graphs::Fixed(mixing, _) => Ok(mixing),
            Graphs::Redrawn { .. } => unreachable!(),
        }
    }

    /// The matrix is symmetric, and rows and columns sum to one.
    fn check(mixing: &Mixing) {
        for i in (0..mixing.clients() as u32).map(ClientId) {
            let near = mixing.neighbours(i);
            let sum = mixing.own(i) + near.iter().map(|(_, weight)| weight).sum::<f64>();
            assert!((sum - 1.0).abs() <= near.len() as f64 * f64::EPSILON, "row {i}: {sum}");
            for (j, weight) in near {
                assert!(mixing.neighbours(*j).contains(&(i, *weight)), "{i} and {j}");
            }
        }
    }

    #[test]
    fn rings_and_complete_graphs_are_doubly_stochastic_with_their_known_gaps() {
        for clients in [1, 2, 3, 4, 7, 16] {
            for weighting in [Weighting::Metropolis, Weighting::MaximumDegree] {
                let n = f64::from(clients);
                let of = |topology: &Topology| fixed(topology, weighting, clients).unwrap();
                let complete = of(&Topology::Complete);
                check(&complete);
                let gap = complete.graph().unwrap().spectral_gap.unwrap();
                // Every weight is 1/n: one round averages. Eigenvalues are off by a few rounding
                // errors per row.
                assert!((gap - 1.0).abs() <= 16.0 * n * f64::EPSILON, "{clients}: {gap}");
                let ring = of(&Topology::Ring);
                check(&ring);
                if clients >= 3 {
                    // A circulant matrix: eigenvalues (1 + 2 cos(2 pi k / n)) / 3.
                    let each = (1..clients).map(|k| {
                        (1.0 + 2.0 * (std::f64::consts::TAU * f64::from(k) / n).cos()) / 3.0
                    });
                    let known = 1.0 - each.map(f64::abs).fold(0.0, f64::max);
                    let gap = ring.graph().unwrap().spectral_gap.unwrap();
                    assert!((gap - known).abs() <= 16.0 * n * f64::EPSILON, "{gap}, {known}");
                }
            }
        }
    }

    #[test]
    fn weights_that_cannot_mix_are_refused() {
        let refused = |clients, edges: &[(u32, u32, f64)], why: &str| {
            let error = Mixing::from_edges(clients, edges.iter().copied()).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        };
        refused(2, &[(0, 1, 0.5), (1, 0, 0.5)], "invalid or repeated edge");
        refused(2, &[(0, 0, 0.5)], "invalid or repeated edge");
        refused(2, &[(0, 2, 0.5)], "invalid or repeated edge");
        refused(2, &[(0, 1, -0.5)], "must lie in (0, 1]");
        refused(2, &[(0, 1, f64::NAN)], "must lie in (0, 1]");
        refused(3, &[(0, 1, 0.7), (0, 2, 0.7)], "not doubly stochastic");
        refused(0, &[], "needs at least one client");
        let path = Mixing::from_edges(3, [(1, 2, 0.25), (0, 1, 0.5)]).unwrap();
        check(&path);
        assert_eq!(path.neighbours(ClientId(1)), [(ClientId(0), 0.5), (ClientId(2), 0.25)]);
    }

    #[test]
    fn edge_lists_are_connected_and_their_weights_sum_to_one() {
        let of = |clients, edges: &[(u32, u32, Option<f64>)], weighting| {
            fixed(&Topology::Edges(edges.to_vec()), weighting, clients)
        };
        let refused = |clients, edges: &[(u32, u32, Option<f64>)], weighting, why: &str| {
            let error = of(clients, edges, weighting).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        };
        let (metropolis, given) = (Weighting::Metropolis, Weighting::Given);
        refused(
            4,
            &[(0, 1, None), (2, 3, None)],
            metropolis,
            "not connected: no path joins client 2",
        );
        refused(2, &[(0, 1, None), (0, 5, None)], metropolis, "invalid or repeated edge");
        refused(2, &[(0, 1, Some(0.5))], metropolis, "gives clients 0 and 1 a weight");
        refused(2, &[(0, 1, None)], given, "has no weight");
        // The second row sums to 0.9.
        let short = [(0, 1, Some(0.4)), (0, 0, Some(0.6)), (1, 1, Some(0.5))];
        refused(2, &short, given, "not doubly stochastic: the weights of client 1 sum to 0.9");
        // A swap never ends.
        refused(2, &[(0, 1, Some(1.0))], given, "spectral gap 0");
        let good = of(2, &[(0, 1, Some(0.4)), (0, 0, Some(0.6))], given).unwrap();
        check(&good);
        // Eigenvalues 1 and 0.2.
        let gap = good.graph().unwrap().spectral_gap.unwrap();
        assert!((gap - 0.8).abs() <= 16.0 * f64::EPSILON, "{gap}");
    }
}
