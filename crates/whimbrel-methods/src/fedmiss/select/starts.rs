//! The start of a candidate's fit, and the strongest ridge worth trying.

use super::state::Table;
use crate::fedmiss::{self, FedMiss, Phase};
use whimbrel_core::Result;
use whimbrel_models::lowrank::{Factors, LowRank, Settings};

/// A component with a norm below this share of the largest was removed by the last ridge.
const OUT: f64 = 1e-3;

/// The smallest ridge at which rank 0 is optimal, from the optimum of rank 0. The residual of an
/// observed cell is its completed value less its mean, times its copies.
pub(super) fn lambda_max(fit: &FedMiss, server: &fedmiss::Server) -> Result<f64> {
    let residual = server.union.iter().enumerate().map(|(place, cell)| {
        let mean = fit.model.mean(&server.factors, fit.model.place(*cell));
        (server.s_hat[*cell as usize] - mean) * fit.fewest_copies(server, place)
    });
    let residual: Vec<f64> = residual.collect();
    let n = f64::from(server.clients.max(1));
    Ok(fit.model.lambda_max(&fit.on_table(server, &residual, None)?, n))
}

/// `F` at the current factors, up to a constant. After a round without noise the completed table holds
/// the mean observation of each observed cell.
pub(super) fn objective(fit: &FedMiss, server: &fedmiss::Server) -> f64 {
    let cells = server.union.iter().zip(&server.counts).map(|(cell, count)| {
        let [row, column] = fit.model.place(*cell);
        let theta = fit.model.theta(&server.factors, row, column);
        let loss = fit.model.family().psi(theta) - server.s_hat[*cell as usize] * theta;
        f64::from(*count) * loss
    });
    let n = f64::from(server.clients.max(1));
    cells.sum::<f64>() / n + fit.model.penalty(&server.factors)
}

/// The last fit of a split, at the rank of `model`: its remaining components, largest first, as far as
/// the rank allows, and the small random ones of `out` beyond them.
pub(super) fn nearest(
    model: &LowRank,
    settings: &Settings,
    found: &[Table],
    mut out: Factors,
) -> Result<Factors> {
    let Some(table) = found.last() else { return Ok(out) };
    let known = LowRank::new(table.candidate.of(settings))?;
    let nearest = Factors::from_vector(&known, &table.theta)?.separated()?;
    let (rank, from) = (model.rank(), known.rank());
    let size = |k: usize| nearest.u.iter().skip(k).step_by(from).map(|x| x * x).sum::<f64>();
    for k in (0..rank.min(from)).filter(|k| size(*k) > OUT * OUT * size(0)) {
        for (to, side) in [(&mut out.u, &nearest.u), (&mut out.v, &nearest.v)] {
            let places = to.iter_mut().skip(k).step_by(rank);
            places.zip(side.iter().skip(k).step_by(from)).for_each(|(to, from)| *to = *from);
        }
    }
    Ok(Factors { rank: rank as u32, u: out.u, v: out.v, ..nearest })
}

/// The fit of a split, restarted from given factors.
pub(super) fn restart(fit: &FedMiss, fresh: &fedmiss::Server, factors: Factors) -> fedmiss::Server {
    fedmiss::Server {
        phase: Phase::Fit,
        s_hat: fit.model.expected(&factors),
        down: fit.downlink.server(&factors.to_vector(&fit.model)),
        factors,
        ..fresh.clone()
    }
}
