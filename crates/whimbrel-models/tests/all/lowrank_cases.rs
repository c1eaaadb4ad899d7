//! Fits of tables that the tests share.

use whimbrel_core::Key;
use whimbrel_models::lowrank::{
    Calibration, Factors, Group, LowRank, LowRankFit, Residuals, TableStep,
};

/// Rounds of exact residuals from a start with this mean: every observed cell has one copy, and so have
/// the others with `uniform`.
pub fn rounds(
    model: &LowRank,
    mut factors: Factors,
    cells: &[(u64, f64)],
    (clients, uniform, count): (f64, bool, usize),
) -> Factors {
    let mut s = model.expected(&factors);
    for _ in 0..count {
        let residual =
            |(cell, y): &(u64, f64)| (*cell, y - model.mean(&factors, model.place(*cell)));
        let residuals = cells.iter().map(residual);
        let residuals = if uniform {
            Residuals::new(model, residuals, 1.0)
        } else {
            Residuals::with_copies(model, residuals.map(|(cell, value)| (cell, value, 1.0)))
        };
        let unobserved = if uniform { 0.0 } else { 0.05 };
        let residuals = &residuals.unwrap();
        let step = TableStep { residuals, gamma: 1.0, clients, unobserved, full: false };
        model.advance(&mut s, &mut factors, step).unwrap();
    }
    factors
}

/// Rounds from the start of key 1.
pub fn fitted(model: &LowRank, cells: &[(u64, f64)], clients: f64, count: usize) -> Factors {
    let start = Factors::start(model, 0.5, Key::root(1));
    rounds(model, start, cells, (clients, false, count))
}

/// A fit without ceiling, calibration and posteriors, whose lines were observed twenty times.
pub fn bare(model: LowRank, factors: Factors, clients: u32) -> LowRankFit {
    let observations = [vec![20; model.rows()], vec![20; model.columns()]];
    let (ceiling, calibration, uncertainty) = (None, None, None);
    LowRankFit { model, factors, ceiling, clients, observations, calibration, uncertainty }
}

/// A calibration with groups of these last octaves and quantiles.
pub fn calibration(dispersion: f64, groups: &[(u32, f64)], calibrated: bool) -> Calibration {
    let group = |(last, quantile): &(u32, f64)| Group {
        class: 4,
        last: *last,
        quantile: *quantile,
        dispersion,
    };
    let groups = groups.iter().map(group).collect();
    Calibration { dispersion, groups, calibrated, coverage: None, doubtful: false }
}
