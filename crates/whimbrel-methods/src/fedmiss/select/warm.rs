//! Where the fit of a candidate starts, and the strongest ridge worth trying.

use super::search::Candidate;
use super::state::Server;
use crate::fedmiss::{self, FedMiss, Phase};
use whimbrel_core::{Key, linalg, vector};
use whimbrel_models::lowrank::{Factors, LowRank};

/// Steps of the power method; the largest singular value is wanted to a few percent.
const POWER_STEPS: usize = 60;
/// A component whose norm is below this share of the largest was put out by the last ridge.
const OUT: f64 = 1e-3;

/// The spectral norm of the mean residual `(1/n) sum_c (Y_c − ψ'(θ + e_c))`, at the optimum of rank 0:
/// the gradient of the fit with respect to `U V^T`. Above it, factors do not pay. The residual of an
/// observed cell is what its completed value is above its mean, times its copies.
pub(super) fn lambda_max(fit: &FedMiss, server: &fedmiss::Server) -> f64 {
    let expected = fit.model.expected(&server.factors);
    let n = server.members.len().max(1) as f64;
    let mut residual = vec![0.0; expected.len()];
    for (place, cell) in server.union.iter().enumerate() {
        let cell = *cell as usize;
        let above = server.s_hat[cell] - expected[cell];
        residual[cell] = above * fit.fewest_copies(server, place) / n;
    }
    spectral_norm(&residual, fit.model.columns())
}

/// `F` at the factors there are, less what does not depend on them. After a round without noise the
/// completed table holds the mean observation of each observed cell.
pub(super) fn objective(fit: &FedMiss, server: &fedmiss::Server) -> f64 {
    let (columns, family) = (fit.model.columns(), fit.model.family());
    let cells = server.union.iter().zip(&server.counts).map(|(cell, count)| {
        let cell = *cell as usize;
        let theta = server.factors.theta(cell / columns, cell % columns);
        f64::from(*count) * (family.psi(theta) - server.s_hat[cell] * theta)
    });
    let n = server.members.len().max(1) as f64;
    cells.sum::<f64>() / n + fit.model.penalty(&server.factors)
}

/// The largest singular value of a matrix, row after row.
fn spectral_norm(a: &[f64], columns: usize) -> f64 {
    let mut v = vec![0.0; columns];
    Key::root(POWER).stream().fill_normal(&mut v);
    let mut along = vec![0.0; a.len() / columns.max(1)];
    let mut size = 0.0;
    for _ in 0..POWER_STEPS {
        let norm = vector::norm2_squared(&v).sqrt();
        if norm == 0.0 {
            return 0.0;
        }
        vector::scale(&mut v, 1.0 / norm);
        linalg::matvec(&mut along, a, &v);
        size = vector::norm2_squared(&along).sqrt();
        v.fill(0.0);
        for (row, x) in a.chunks_exact(columns).zip(&along) {
            vector::axpy(&mut v, *x, row);
        }
    }
    size
}

/// The stream of the first direction.
const POWER: u64 = 0x5167;

/// The fit of this fold that is nearest to the candidate, brought to its rank: that of the same
/// rank tried last, else the smallest of the larger ones without its last components, else the
/// largest of the smaller ones with small random components added.
pub(super) fn start(model: &LowRank, candidate: &Candidate, server: &Server, key: Key) -> Factors {
    let first = &server.fresh[server.fold as usize].factors;
    let mut out = Factors::start(model, model.family().mean(first.intercept), key);
    let known = server.trials.iter().zip(&server.found);
    let known = known.filter(|(trial, _)| trial.candidate.effects == candidate.effects);
    let distance = |rank: usize| match rank.cmp(&candidate.rank) {
        std::cmp::Ordering::Equal => 0,
        std::cmp::Ordering::Greater => rank - candidate.rank,
        // Any larger one comes first.
        std::cmp::Ordering::Less => usize::MAX / 2 - rank,
    };
    // Of equals the last: its ridge is the nearest on a path.
    let known: Vec<_> = known.collect();
    let nearest = known.iter().rev().min_by_key(|(trial, _)| distance(trial.candidate.rank));
    let Some((_, nearest)) = nearest else { return out };
    out.intercept = nearest.intercept;
    out.row_effects.clone_from(&nearest.row_effects);
    out.column_effects.clone_from(&nearest.column_effects);
    copy_components(&mut out.u, candidate.rank, &nearest.u, nearest.rank as usize);
    copy_components(&mut out.v, candidate.rank, &nearest.v, nearest.rank as usize);
    out
}

/// Copies the components that both have, largest first, and leaves those alone that are out.
fn copy_components(to: &mut [f64], rank: usize, from: &[f64], from_rank: usize) {
    let norm2 =
        |k: usize| from.iter().skip(k).step_by(from_rank.max(1)).map(|x| x * x).sum::<f64>();
    let norms: Vec<f64> = (0..from_rank).map(norm2).collect();
    let largest = norms.iter().copied().fold(0.0, f64::max);
    for k in (0..rank.min(from_rank)).filter(|k| norms[*k] > OUT * OUT * largest) {
        let places = to.iter_mut().skip(k).step_by(rank);
        places.zip(from.iter().skip(k).step_by(from_rank)).for_each(|(to, from)| *to = *from);
    }
}

/// The fit of a fold from given factors on.
pub(super) fn restart(fit: &FedMiss, fresh: &fedmiss::Server, factors: Factors) -> fedmiss::Server {
    fedmiss::Server {
        phase: Phase::Fit,
        s_hat: fit.model.expected(&factors),
        down: fit.downlink.server(&factors.to_vector(&fit.model)),
        factors,
        ..fresh.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use whimbrel_core::method::Sender;
    use whimbrel_core::{Cell, ClientId, Method};
    use whimbrel_models::lowrank::{Effects, Family, Observed, Settings};

    #[test]
    fn the_spectral_norm_of_a_product_of_vectors() {
        // 3 x 2, rank one: |u||v| = 3 * 5.
        let (u, v) = ([1.0, 2.0, -2.0], [3.0, 4.0]);
        let a: Vec<f64> = u.iter().flat_map(|u| v.map(|v| u * v)).collect();
        assert!((spectral_norm(&a, 2) - 15.0).abs() < 1e-12);
        assert_eq!(spectral_norm(&[0.0; 6], 2), 0.0);
    }

    /// Three observers of one 12 x 6 table with a clear product, with effects of their own.
    fn observed(family: Family) -> Vec<Observed> {
        let one = |c: u64| {
            let mut stream = Key::root(7).fold(c).stream();
            let own = 0.6 * (c as f64 - 1.0);
            let mut cell = |i: u32| {
                let (row, column) = (i / 6, i % 6);
                let product = if (row % 2 == 0) == (column % 3 == 0) { 0.7 } else { -0.7 };
                let mean = family.mean(0.1 * f64::from(row) + product + own);
                Cell { row, column, value: family.draw(mean, 1.0, &mut stream) }
            };
            Observed { cells: (0..72).map(&mut cell).collect(), held_out: Vec::new() }
        };
        (0..3).map(one).collect()
    }

    /// Every round of a fit, with everyone.
    fn fitted(fit: &FedMiss, data: &[Observed]) -> fedmiss::Server {
        let key = Key::root(3);
        let enrolled = data.iter().map(|data| fit.enroll(data, key).unwrap());
        let (mut clients, summaries): (Vec<_>, Vec<_>) = enrolled.unzip();
        let ids = || (0..).map(ClientId);
        let mut server = fit.start(&mut ids().zip(summaries.iter().cloned()), key).unwrap();
        let mut peers = Vec::new();
        for (id, summary) in ids().zip(&summaries) {
            peers.push(fit.admit(&mut server, id, summary).unwrap());
        }
        while server.phase == Phase::Fit {
            let mut fold = fit.fold(&server);
            for (c, (client, data)) in clients.iter_mut().zip(data).enumerate() {
                let (peer, down) = fit.downlink(&server, &(), &peers[c], key).unwrap();
                let (next, up) = fit.local_step(client, &down, data, key).unwrap();
                let from = Sender { id: ClientId(c as u32), inclusion: 1.0, peer: &peer };
                fit.absorb(&mut fold, from, up).unwrap();
                (*client, peers[c]) = (next, peer);
            }
            server = fit.server_step(server, fold, key).unwrap();
        }
        server
    }

    #[test]
    fn factors_vanish_above_the_largest_ridge_and_not_below() {
        for family in Family::ALL {
            let data = observed(family);
            for personal in [false, true] {
                let fit = |rank: usize, lambda: f64, rounds: u32| {
                    let effects = Effects::RowColumn;
                    let settings =
                        Settings { rank, lambda, effects, ..Settings::new(12, 6, family) };
                    let model = LowRank::new(settings).unwrap();
                    let fit = FedMiss { personal, ..FedMiss::exact(model, rounds) };
                    let server = fitted(&fit, &data);
                    (fit, server)
                };
                let (rank_zero, server) = fit(0, 0.0, 200);
                let largest = lambda_max(&rank_zero, &server);
                let norm = |share: f64| {
                    let (_, server) = fit(2, share * largest, 600);
                    (vector::norm2_squared(&server.factors.u)
                        * vector::norm2_squared(&server.factors.v))
                    .sqrt()
                };
                let (above, below) = (norm(1.05), norm(0.9));
                assert!(above < 1e-6, "{family:?} {personal} {largest}: {above} {below}");
                assert!(below > 1e-2, "{family:?} {personal} {largest}: {above} {below}");
            }
        }
    }

    #[test]
    fn components_are_copied_unless_they_are_out() {
        // Two rows of three components, the second out.
        let from = [5.0, 1e-9, 2.0, 6.0, 1e-9, 3.0];
        let mut narrower = [0.1; 4];
        copy_components(&mut narrower, 2, &from, 3);
        assert_eq!(narrower, [5.0, 0.1, 6.0, 0.1]);
        let mut wider = [0.1; 8];
        copy_components(&mut wider, 4, &from, 3);
        assert_eq!(wider, [5.0, 0.1, 2.0, 0.1, 6.0, 0.1, 3.0, 0.1]);
        copy_components(&mut wider, 4, &[], 0);
    }
}
