//! Who is whose neighbour where there is no server, and with which weight neighbours mix.

use std::collections::BTreeSet;
use whimbrel_core::decentralised::Graph;
use whimbrel_core::linalg::symmetric_eigen;
use whimbrel_core::{ClientId, Error, Result};

/// Beyond so many clients the eigenvalues of the mixing matrix are not computed.
const EIGEN_MAX: usize = 1024;

/// A graph over the clients.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Topology {
    /// Each client and the next, in id order, the last with the first.
    Ring,
    /// Everyone with everyone.
    Complete,
}

/// How neighbours weigh each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Weighting {
    /// `1 / (1 + max(degrees of both))` (Metropolis and Hastings; Xiao & Boyd, 2004).
    Metropolis,
    /// `1 / (1 + largest degree)` on every edge.
    Uniform,
}

/// A connected graph with symmetric, doubly stochastic weights.
#[derive(Clone, PartialEq, Debug)]
pub struct Mixing {
    own: Vec<f64>,
    /// In id order.
    neighbours: Vec<Vec<(ClientId, f64)>>,
}

impl Topology {
    /// Pairs of neighbours among so many clients, the lower id first.
    pub fn edges(self, clients: u32) -> Vec<(u32, u32)> {
        match self {
            Self::Complete => {
                (0..clients).flat_map(|i| (i + 1..clients).map(move |j| (i, j))).collect()
            }
            Self::Ring => match clients {
                0 | 1 => Vec::new(),
                2 => vec![(0, 1)],
                _ => (1..clients).map(|i| (i - 1, i)).chain([(0, clients - 1)]).collect(),
            },
        }
    }
}

impl Mixing {
    /// The weights of a topology.
    pub fn new(topology: Topology, weighting: Weighting, clients: u32) -> Result<Self> {
        let edges = topology.edges(clients);
        let mut degrees = vec![0u32; clients as usize];
        for (i, j) in &edges {
            degrees[*i as usize] += 1;
            degrees[*j as usize] += 1;
        }
        let largest = degrees.iter().copied().max().unwrap_or(0);
        let weigh = |(i, j): (u32, u32)| {
            let degree = match weighting {
                Weighting::Metropolis => degrees[i as usize].max(degrees[j as usize]),
                Weighting::Uniform => largest,
            };
            (i, j, 1.0 / (1.0 + f64::from(degree)))
        };
        Self::from_edges(clients, edges.into_iter().map(weigh))
    }

    /// Weights of given edges, each named once; what a client does not give to its neighbours it
    /// gives to itself, so that every row and column sums to one. Refuses a graph that is not
    /// connected, and weights that are not positive or sum to more than one.
    pub fn from_edges(
        clients: u32,
        edges: impl IntoIterator<Item = (u32, u32, f64)>,
    ) -> Result<Self> {
        if clients == 0 {
            return Err(Error::config("a graph needs a client"));
        }
        let mut neighbours = vec![Vec::new(); clients as usize];
        let mut seen = BTreeSet::new();
        for (i, j, weight) in edges {
            if i == j || i.max(j) >= clients || !seen.insert((i.min(j), i.max(j))) {
                return Err(Error::config(format!("{i} and {j} are no new pair of neighbours")));
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
            // A sum of so many rounded weights may exceed one by its rounding.
            if given > 1.0 + near.len() as f64 * f64::EPSILON {
                return Err(Error::config(format!("the weights of client {i} sum to {given}")));
            }
            own.push((1.0 - given).max(0.0));
        }
        let mixing = Self { own, neighbours };
        mixing.check_connected()?;
        Ok(mixing)
    }

    /// How many clients.
    pub fn clients(&self) -> usize {
        self.own.len()
    }

    /// What a client keeps of its own.
    pub fn own(&self, id: ClientId) -> f64 {
        self.own[id.0 as usize]
    }

    /// A client's neighbours with their weights, in id order.
    pub fn neighbours(&self, id: ClientId) -> &[(ClientId, f64)] {
        &self.neighbours[id.0 as usize]
    }

    /// The graph in figures.
    pub fn graph(&self) -> Result<Graph> {
        let ends: usize = self.neighbours.iter().map(Vec::len).sum();
        Ok(Graph {
            clients: self.clients() as u32,
            edges: ends as u64 / 2,
            spectral_gap: self.spectral_gap()?,
        })
    }

    /// One less the second largest absolute eigenvalue.
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

    fn check_connected(&self) -> Result<()> {
        let mut reached = vec![false; self.clients()];
        let mut next = vec![ClientId(0)];
        while let Some(id) = next.pop() {
            if !std::mem::replace(&mut reached[id.0 as usize], true) {
                next.extend(self.neighbours(id).iter().map(|(id, _)| *id));
            }
        }
        match reached.iter().position(|reached| !reached) {
            None => Ok(()),
            Some(i) => Err(Error::config(format!("no path joins client {i} to client 0"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rows and columns sum to one, and what `i` gives to `j` it gets back.
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
            for weighting in [Weighting::Metropolis, Weighting::Uniform] {
                let n = f64::from(clients);
                let complete = Mixing::new(Topology::Complete, weighting, clients).unwrap();
                check(&complete);
                let gap = complete.graph().unwrap().spectral_gap.unwrap();
                // Every weight is 1/n: one round averages. Eigenvalues are off by a few rounding
                // errors per row.
                assert!((gap - 1.0).abs() <= 16.0 * n * f64::EPSILON, "{clients}: {gap}");
                let ring = Mixing::new(Topology::Ring, weighting, clients).unwrap();
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
    fn graphs_that_cannot_mix_are_refused() {
        let refused = |clients, edges: &[(u32, u32, f64)], why: &str| {
            let error = Mixing::from_edges(clients, edges.iter().copied()).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        };
        refused(4, &[(0, 1, 0.5), (2, 3, 0.5)], "no path joins client 2");
        refused(2, &[(0, 1, 0.5), (1, 0, 0.5)], "no new pair");
        refused(2, &[(0, 0, 0.5)], "no new pair");
        refused(2, &[(0, 2, 0.5)], "no new pair");
        refused(2, &[(0, 1, -0.5)], "must lie in (0, 1]");
        refused(2, &[(0, 1, f64::NAN)], "must lie in (0, 1]");
        refused(3, &[(0, 1, 0.7), (0, 2, 0.7)], "sum to 1.4");
        refused(0, &[], "needs a client");
        let path = Mixing::from_edges(3, [(1, 2, 0.25), (0, 1, 0.5)]).unwrap();
        check(&path);
        assert_eq!(path.neighbours(ClientId(1)), [(ClientId(0), 0.5), (ClientId(2), 0.25)]);
    }
}
