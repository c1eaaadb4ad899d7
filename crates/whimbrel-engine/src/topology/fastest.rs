//! Weights with the fastest consensus.
//!
//! S. Boyd, P. Diaconis, L. Xiao, *Fastest mixing Markov chain on a graph*, SIAM Review 46 (2004):
//! the second largest eigenvalue modulus `mu(W)` is convex in the weights of the edges, and
//! minimised by the projected subgradient method of their section 5. With `u` a unit eigenvector of
//! `mu = lambda_2`, the subgradient of edge `(i, j)` is `-(u_i - u_j)^2`; of `mu = -lambda_n`,
//! `(u_i - u_j)^2`.

use whimbrel_core::linalg::symmetric_eigen;
use whimbrel_core::{Key, Result, vector};

/// Subgradient steps.
const STEPS: u32 = 400;
/// Dimension of the Krylov space: with at most that number of clients, eigenvalues are exact.
const KRYLOV: usize = 60;
/// The seed of the first Krylov vector.
const START: u64 = 0xFA57;

/// Minimises `mu` over the weights of these edges from given ones.
pub(super) fn weights(clients: usize, pairs: &[(u32, u32)], first: Vec<f64>) -> Result<Vec<f64>> {
    if clients < 3 {
        // Two clients agree at once with halves.
        return Ok(vec![0.5; pairs.len()]);
    }
    let graph = Edges { clients, pairs };
    let length = vector::norm2_squared(&first).sqrt();
    let mut near = vec![Vec::new(); clients];
    for (at, (i, j)) in pairs.iter().enumerate() {
        near[*i as usize].push(at);
        near[*j as usize].push(at);
    }
    let (mut p, mut best, mut best_mu) = (first.clone(), first, f64::INFINITY);
    let mut guess = vec![0.0; clients];
    Key::root(START).stream().fill_normal(&mut guess);
    for k in 1..=STEPS {
        let (mu, sign, u) = graph.slowest(&p, &guess)?;
        if mu < best_mu {
            best.clone_from(&p);
            best_mu = mu;
        }
        let mut g: Vec<f64> = pairs
            .iter()
            .map(|(i, j)| {
                let apart = u[*i as usize] - u[*j as usize];
                -sign * apart * apart
            })
            .collect();
        // Steps of length |p_0| / (4 sqrt(k)): they diverge in sum and vanish.
        let size = vector::norm2_squared(&g).sqrt();
        if size == 0.0 {
            break;
        }
        vector::scale(&mut g, 0.25 * length / (size * f64::from(k).sqrt()));
        p.iter_mut().zip(&g).for_each(|(p, g)| *p = (*p - g).max(0.0));
        near.iter().for_each(|incident| shrink(&mut p, incident));
        // The next space holds this step's vector.
        guess.iter_mut().zip(&u).for_each(|(guess, u)| *guess = 0.5 * *guess + u);
    }
    Ok(best)
}

/// Projects the weights around a client to a sum of at most one, non-negative.
fn shrink(p: &mut [f64], incident: &[usize]) {
    loop {
        let positive = || incident.iter().copied().filter(|at| p[*at] > 0.0);
        let (count, sum) = (positive().count() as f64, positive().map(|at| p[at]).sum::<f64>());
        let excess = sum - 1.0;
        if excess <= 0.0 {
            return;
        }
        let least = positive().map(|at| p[at]).fold(f64::INFINITY, f64::min);
        // The last subtraction may leave a rounding error above one.
        let delta = least.min(excess / count).max(f64::EPSILON);
        for at in incident {
            p[*at] = (p[*at] - delta).max(0.0);
        }
    }
}

struct Edges<'a> {
    clients: usize,
    pairs: &'a [(u32, u32)],
}

impl Edges<'_> {
    /// `W x = x - sum_l p_l (x_i - x_j)(e_i - e_j)`.
    fn apply(&self, p: &[f64], x: &[f64]) -> Vec<f64> {
        let mut y = x.to_vec();
        for ((i, j), p) in self.pairs.iter().zip(p) {
            let (i, j) = (*i as usize, *j as usize);
            let flow = p * (x[i] - x[j]);
            y[i] -= flow;
            y[j] += flow;
        }
        y
    }

    /// The largest eigenvalue modulus orthogonal to the vector of ones, its sign, and its vector,
    /// by Lanczos's method with full reorthogonalisation.
    fn slowest(&self, p: &[f64], guess: &[f64]) -> Result<(f64, f64, Vec<f64>)> {
        let steps = KRYLOV.min(self.clients - 1);
        let mut basis: Vec<Vec<f64>> = Vec::with_capacity(steps);
        let (mut diagonal, mut beside) = (Vec::new(), Vec::new());
        let mut next = guess.to_vec();
        while basis.len() < steps {
            let norm = orthogonalise(&mut next, &basis);
            // The space is closed under W.
            if norm < 1e-10 {
                break;
            }
            if !basis.is_empty() {
                beside.push(norm);
            }
            vector::scale(&mut next, 1.0 / norm);
            let image = self.apply(p, &next);
            diagonal.push(vector::dot(&image, &next));
            basis.push(std::mem::replace(&mut next, image));
        }
        let m = basis.len();
        let mut t = vec![0.0; m * m];
        for i in 0..m {
            t[i * m + i] = diagonal[i];
            if i + 1 < m {
                t[i * m + i + 1] = beside[i];
                t[(i + 1) * m + i] = beside[i];
            }
        }
        let eigen = symmetric_eigen(&t, m)?;
        let at = if eigen.values[m - 1] >= -eigen.values[0] { m - 1 } else { 0 };
        let mut u = vec![0.0; self.clients];
        for (vector, y) in basis.iter().zip(&eigen.vectors[at * m..]) {
            vector::axpy(&mut u, *y, vector);
        }
        Ok((eigen.values[at].abs(), eigen.values[at].signum(), u))
    }
}

/// Orthogonalises against the vector of ones and a basis, twice against rounding; returns the norm.
fn orthogonalise(x: &mut [f64], basis: &[Vec<f64>]) -> f64 {
    for _ in 0..2 {
        let mean = x.iter().sum::<f64>() / x.len() as f64;
        x.iter_mut().for_each(|x| *x -= mean);
        for known in basis {
            let along = vector::dot(x, known);
            vector::axpy(x, -along, known);
        }
    }
    vector::norm2_squared(x).sqrt()
}

#[cfg(test)]
mod tests {
    use crate::topology::{Graphs, Topology, Weighting};
    use whimbrel_core::Key;

    fn gap(topology: &Topology, weighting: Weighting, clients: u32) -> f64 {
        let graphs = Graphs::fixed(topology, weighting, clients, Key::root(5)).unwrap();
        let Graphs::Fixed(_, graph) = graphs else { unreachable!() };
        graph.spectral_gap.unwrap()
    }

    /// Subgradient steps come within a few hundredths of the optimum and never end worse than they
    /// start.
    const NEAR: f64 = 0.03;

    #[test]
    fn paths_and_rings_come_near_their_known_optima() {
        let path = |n: u32| Topology::Edges((1..n).map(|i| (i - 1, i, None)).collect());
        for n in [4, 8] {
            // Weights of one half: mu = cos(pi/n) (Boyd, Diaconis, Sun & Xiao 2006).
            let known = 1.0 - (std::f64::consts::PI / f64::from(n)).cos();
            let found = gap(&path(n), Weighting::FastestMixing, n);
            assert!(found > (1.0 - NEAR) * known, "path of {n}: {found}, {known}");
            assert!(found <= known * (1.0 + 1e-9), "path of {n}: {found}, {known}");
            // On an even ring all weights are 1/(3 - c) with c = cos(2 pi/n): 1 - mu = 2 (1 - c)/(3 - c).
            let c = (std::f64::consts::TAU / f64::from(n)).cos();
            let known = 2.0 * (1.0 - c) / (3.0 - c);
            let found = gap(&Topology::Ring, Weighting::FastestMixing, n);
            assert!(found > (1.0 - NEAR) * known, "ring of {n}: {found}, {known}");
            assert!(found <= known * (1.0 + 1e-9), "ring of {n}: {found}, {known}");
        }
    }

    #[test]
    fn it_beats_metropolis_on_random_graphs_also_where_the_krylov_space_is_smaller() {
        for (clients, p) in [(30, 0.2), (100, 0.1)] {
            let random = Topology::ErdosRenyi { p };
            let [fastest, metropolis] = [Weighting::FastestMixing, Weighting::Metropolis]
                .map(|weighting| gap(&random, weighting, clients));
            assert!(fastest > 1.2 * metropolis, "{clients}: {fastest}, {metropolis}");
        }
    }

    #[test]
    fn two_clients_agree_at_once() {
        let gap = gap(&Topology::Ring, Weighting::FastestMixing, 2);
        assert!((gap - 1.0).abs() <= 16.0 * f64::EPSILON, "{gap}");
    }
}
