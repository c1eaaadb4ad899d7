//! The public graph whose edges carry masks and shares.

use super::keys::{Hash, hash};
use whimbrel_core::{ClientId, wire};

/// Cohorts up to this size are complete graphs.
const COMPLETE_MAX: usize = 30;

/// Degrees by cohort size, for one tenth of the cohort lost and one tenth colluding. The first three
/// are those of the design; the others follow the same rule: a loss of one tenth leaves any client
/// with fewer than two thirds of its holders with probability below 1e-5.
const DEGREES: [(usize, usize); 5] =
    [(100, 28), (300, 52), (1_000, 70), (10_000, 84), (usize::MAX, 96)];

/// A cohort in a circle whose order no one chooses; neighbours are the clients nearest on either
/// side. It is symmetric, and connected because adjacent clients are neighbours (Bell et al., CCS
/// 2020, with a Harary graph).
#[derive(Clone)]
pub(super) struct Graph {
    circle: Vec<ClientId>,
}

wire!(Graph { circle });

impl Graph {
    pub(super) fn new(run: &Hash, exchange: u32, cohort: &[ClientId]) -> Self {
        let seed = hash("mask graph", &(*run, (exchange, cohort.to_vec())));
        let mut circle = cohort.to_vec();
        if cohort.len() > COMPLETE_MAX {
            circle.sort_by_cached_key(|id| hash("mask place", &(seed, *id)));
        }
        Self { circle }
    }

    /// The number of neighbours of every client.
    pub(super) fn degree(&self) -> usize {
        let n = self.circle.len();
        let of_size = |&(size, degree): &(usize, usize)| (n <= size).then_some(degree);
        if n <= COMPLETE_MAX { n - 1 } else { DEGREES.iter().find_map(of_size).unwrap_or(n - 1) }
    }

    /// The neighbours of a client of the cohort, ascending.
    pub(super) fn neighbours(&self, of: ClientId) -> Vec<ClientId> {
        let n = self.circle.len();
        let at = self.circle.iter().position(|&id| id == of).expect("a client of the cohort");
        let nearest = |step| [self.circle[(at + step) % n], self.circle[(at + n - step) % n]];
        let mut near: Vec<_> = (1..=self.degree().div_ceil(2)).flat_map(nearest).collect();
        near.sort_unstable();
        near.dedup();
        near
    }

    /// The holders of a client's shares, ascending: its neighbours and itself.
    pub(super) fn holders(&self, of: ClientId) -> Vec<ClientId> {
        let mut holders = self.neighbours(of);
        holders.insert(holders.partition_point(|&id| id < of), of);
        holders
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cohort(n: u32) -> Vec<ClientId> {
        (0..n).map(|i| ClientId(3 * i + 1)).collect()
    }

    #[test]
    fn graphs_are_regular_symmetric_and_connected() {
        for n in [3, 4, 5, 10, 30, 31, 40, 100, 101, 301, 1001] {
            let cohort = cohort(n);
            let graph = Graph::new(&[1; 32], 7, &cohort);
            for &id in &cohort {
                let near = graph.neighbours(id);
                assert_eq!(near.len(), graph.degree(), "{n}");
                assert!(near.is_sorted() && !near.contains(&id));
                assert!(near.iter().all(|&j| graph.neighbours(j).contains(&id)));
            }
            let mut reached = vec![cohort[0]];
            let mut next = 0;
            while let Some(&id) = reached.get(next) {
                next += 1;
                for j in graph.neighbours(id) {
                    if !reached.contains(&j) {
                        reached.push(j);
                    }
                }
            }
            assert_eq!(reached.len(), cohort.len());
        }
    }

    #[test]
    fn sparse_graphs_are_drawn_anew_for_each_exchange_cohort_and_run() {
        let near = |run: u8, exchange, n: u32| {
            Graph::new(&[run; 32], exchange, &cohort(n)).neighbours(ClientId(1))
        };
        assert_eq!(near(1, 7, 100), near(1, 7, 100));
        assert_ne!(near(1, 7, 100), near(1, 8, 100));
        assert_ne!(near(1, 7, 100), near(2, 7, 100));
        assert_ne!(near(1, 7, 100), near(1, 7, 99));
    }
}
