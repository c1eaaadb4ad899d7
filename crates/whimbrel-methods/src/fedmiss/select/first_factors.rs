//! Where the fit of a candidate starts, and the strongest ridge worth trying.

use super::state::Table;
use crate::fedmiss::{self, FedMiss, Phase};
use whimbrel_core::Result;
use whimbrel_models::lowrank::{Factors, LowRank, Settings};

/// A component whose norm is below this share of the largest was put out by the last ridge.
const OUT: f64 = 1e-3;

/// The smallest ridge at which rank 0 is optimal, from the optimum of rank 0. The residual of an
/// observed cell is what its completed value is above its mean, times its copies.
pub(super) fn lambda_max(fit: &FedMiss, server: &fedmiss::Server) -> Result<f64> {
    let columns = fit.model.columns();
    let residual = server.union.iter().enumerate().map(|(place, cell)| {
        let cell = *cell as usize;
        let mean = fit.model.family().mean(server.factors.theta(cell / columns, cell % columns));
        (server.s_hat[cell] - mean) * fit.fewest_copies(server, place)
    });
    let residual: Vec<f64> = residual.collect();
    let n = f64::from(server.clients.max(1));
    Ok(fit.model.lambda_max(&fit.with_counts(server, &residual)?, n))
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
    let n = f64::from(server.clients.max(1));
    cells.sum::<f64>() / n + fit.model.penalty(&server.factors)
}

/// The fit of a fold that is nearest to a model, brought to its rank: that of the same rank found
/// last, else the smallest of the larger ones without its last components, else the largest of the
/// smaller ones with the small random components of `out`.
pub(super) fn nearest(
    model: &LowRank,
    settings: &Settings,
    found: &[Table],
    mut out: Factors,
) -> Result<Factors> {
    let rank = model.rank();
    let distance = |table: &&Table| match table.candidate.rank {
        // Any larger one comes first.
        smaller if smaller < rank => usize::MAX / 2 - smaller,
        larger => larger - rank,
    };
    let same = |table: &&Table| table.candidate.effects == model.settings().effects;
    // Of equals the last: its ridge is the nearest on a path.
    let Some(table) = found.iter().filter(same).rev().min_by_key(distance) else { return Ok(out) };
    let known = LowRank::new(table.candidate.of(settings))?;
    let nearest = Factors::from_vector(&known, &table.theta)?;
    copy_components(&mut out.u, rank, &nearest.u, known.rank());
    copy_components(&mut out.v, rank, &nearest.v, known.rank());
    Ok(Factors { rank: rank as u32, u: out.u, v: out.v, ..nearest })
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
    use whimbrel_core::{Cell, ClientId, Key, Method, vector};
    use whimbrel_models::lowrank::{Effects, Family, Observed, Settings};

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
                let largest = lambda_max(&rank_zero, &server).unwrap();
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
