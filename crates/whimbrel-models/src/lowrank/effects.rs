//! Row and column effects of a table without factors, all at once.
//!
//! Alternating between rows and columns is slow where few cells link them: if the sites of one year
//! were never visited in another, only the ridge on the effects says how the two compare, and each
//! sweep closes a share of the gap that is the ridge beside the data. Without factors `T` is convex
//! and its observed cells are all that counts, so Newton's own direction is at hand:
//!
//! ```text
//! H delta = g,    H = [[1'W1, 1'W, 1'W], [W1, R + ridge, W], [W'1, W', C + ridge]]
//! ```
//!
//! in `(mu, a, b)`, with `W` the curvatures of the observed cells, `R` and `C` their sums over rows
//! and columns. Conjugate gradients solve it; for what they return, `delta^T H delta = g^T delta` as
//! for the exact direction, so the same damping is sure to descend.

use super::adapt::damping;
use super::complete::Push;
use super::{Factors, Family, LowRank};
use whimbrel_core::vector;

/// Newton steps of one call.
const STEPS_MAX: u32 = 20;
/// They end once the decrement is this small beside the sum of the means, the objective's size.
const ROUNDING: f64 = 1e-22;
/// Conjugate gradients end when the residual has fallen by this factor, or after so many steps.
const RESIDUAL: f64 = 1e-10;
const DIRECTIONS_MAX: usize = 400;
/// `S` is clipped this far inside the range of the means.
const EPSILON: f64 = 1e-12;

/// Newton steps on the effects, from where they are. `s` is the completed table, and only cells
/// with copies of their own count.
pub(super) fn polish(model: &LowRank, s: &[f64], factors: &mut Factors, step: Push<'_>) {
    let mut system = System::new(model, s, &step);
    for _ in 0..STEPS_MAX {
        let size = system.linearise(model, factors);
        let delta = system.direction();
        let decrement = vector::dot(&delta, &system.gradient);
        if decrement.is_nan() || decrement <= ROUNDING * size {
            break;
        }
        let t = damping(model.family(), system.reach(&delta));
        system.unknowns.subtract(factors, t, &delta);
    }
}

/// Where each unknown is among `(mu, a, b)`; sides without effects have none.
struct Unknowns {
    row: bool,
    column: bool,
    /// Where `b` begins.
    columns_at: usize,
    count: usize,
}

impl Unknowns {
    /// The places of the effects that a cell has, beside the intercept at 0.
    fn of(&self, row: usize, column: usize) -> impl Iterator<Item = usize> + use<> {
        let row = self.row.then_some(1 + row);
        let column = self.column.then_some(self.columns_at + column);
        row.into_iter().chain(column)
    }

    fn subtract(&self, factors: &mut Factors, t: f64, delta: &[f64]) {
        factors.intercept -= t * delta[0];
        let (rows, columns) = delta[1..].split_at(self.columns_at - 1);
        if self.row {
            vector::axpy(&mut factors.row_effects, -t, rows);
        }
        if self.column {
            vector::axpy(&mut factors.column_effects, -t, columns);
        }
    }
}

/// An observed cell.
struct Observation {
    row: usize,
    column: usize,
    copies: f64,
    /// `S`.
    value: f64,
    /// `copies psi''`.
    curvature: f64,
}

struct System {
    unknowns: Unknowns,
    cells: Vec<Observation>,
    ridge: f64,
    gradient: Vec<f64>,
    diagonal: Vec<f64>,
}

impl System {
    fn new(model: &LowRank, s: &[f64], step: &Push<'_>) -> Self {
        let effects = model.settings().effects;
        let columns_at = 1 + if effects.has_row() { model.rows() } else { 0 };
        let count = columns_at + if effects.has_column() { model.columns() } else { 0 };
        let unknowns =
            Unknowns { row: effects.has_row(), column: effects.has_column(), columns_at, count };
        // As in the sweeps, `S` is kept inside the range of the means.
        let (low, high) = match model.family() {
            Family::Gaussian => (f64::NEG_INFINITY, f64::INFINITY),
            Family::Poisson => (EPSILON, f64::INFINITY),
            Family::Bernoulli => (EPSILON, 1.0 - EPSILON),
        };
        let cells = step.push.observed().map(|(row, column, copies)| {
            let value = s[row * model.columns() + column].clamp(low, high);
            Observation { row, column, copies, value, curvature: 0.0 }
        });
        Self {
            cells: cells.collect(),
            ridge: step.shrink * model.settings().lambda_effects,
            gradient: vec![0.0; count],
            diagonal: vec![0.0; count],
            unknowns,
        }
    }

    /// Gradient and curvatures at the factors; the sum of the means.
    fn linearise(&mut self, model: &LowRank, factors: &Factors) -> f64 {
        let family = model.family();
        let Self { unknowns, cells, gradient, diagonal, ridge } = self;
        let penalised = factors.row_effects.iter().filter(|_| unknowns.row);
        let penalised = penalised.chain(factors.column_effects.iter().filter(|_| unknowns.column));
        gradient[0] = 0.0;
        gradient[1..].iter_mut().zip(penalised).for_each(|(g, effect)| *g = *ridge * effect);
        diagonal.fill(*ridge);
        diagonal[0] = 0.0;
        let mut size = 0.0;
        for cell in cells {
            let mean = family.mean(factors.theta(cell.row, cell.column));
            let slope = cell.copies * (mean - cell.value);
            cell.curvature = cell.copies * family.variance(mean);
            size += cell.copies * mean.abs();
            for at in std::iter::once(0).chain(unknowns.of(cell.row, cell.column)) {
                gradient[at] += slope;
                diagonal[at] += cell.curvature;
            }
        }
        size
    }

    /// `H x`.
    fn times(&self, x: &[f64]) -> Vec<f64> {
        let mut out: Vec<f64> = x.iter().map(|x| self.ridge * x).collect();
        out[0] = 0.0;
        for cell in &self.cells {
            let places = || std::iter::once(0).chain(self.unknowns.of(cell.row, cell.column));
            let push = cell.curvature * places().map(|at| x[at]).sum::<f64>();
            places().for_each(|at| out[at] += push);
        }
        out
    }

    /// `H^-1 g` by conjugate gradients, preconditioned with the diagonal. An effect without any
    /// curvature stays where it is.
    fn direction(&self) -> Vec<f64> {
        let scaled = |r: &[f64]| -> Vec<f64> {
            let each = r.iter().zip(&self.diagonal);
            each.map(|(r, d)| if *d > 0.0 { r / d } else { 0.0 }).collect()
        };
        let mut x = vec![0.0; self.unknowns.count];
        let mut r = self.gradient.clone();
        let mut z = scaled(&r);
        let mut p = z.clone();
        let mut rz = vector::dot(&r, &z);
        let enough = RESIDUAL * RESIDUAL * rz;
        for _ in 0..DIRECTIONS_MAX.min(2 * self.unknowns.count) {
            if rz.is_nan() || rz <= enough {
                break;
            }
            let hp = self.times(&p);
            let curvature = vector::dot(&p, &hp);
            if curvature.is_nan() || curvature <= 0.0 {
                break;
            }
            let alpha = rz / curvature;
            vector::axpy(&mut x, alpha, &p);
            vector::axpy(&mut r, -alpha, &hp);
            z = scaled(&r);
            let next = vector::dot(&r, &z);
            p.iter_mut().zip(&z).for_each(|(p, z)| *p = z + (next / rz) * *p);
            rz = next;
        }
        x
    }

    /// The most by which `delta` moves an observed cell.
    fn reach(&self, delta: &[f64]) -> f64 {
        let moved = self.cells.iter().map(|cell| {
            let own = self.unknowns.of(cell.row, cell.column);
            (delta[0] + own.map(|at| delta[at]).sum::<f64>()).abs()
        });
        moved.fold(0.0, f64::max)
    }
}

#[cfg(test)]
mod tests {
    use crate::lowrank::{Effects, Factors, Family, LowRank, Push, Settings, Sparse};
    use whimbrel_core::Key;

    const ROWS: usize = 30;
    const COLUMNS: usize = 6;

    /// The first rows were seen in the first columns and the others in the others; `links` rows in
    /// all of them. Values grow with the row.
    fn cells(family: Family, links: usize) -> Vec<(u64, f64)> {
        let mut stream = Key::root(7).stream();
        let mut all = Vec::new();
        for row in 0..ROWS {
            for column in 0..COLUMNS {
                let half = (row < ROWS / 2) == (column < COLUMNS / 2);
                if half || row < links {
                    let theta = 0.1 * row as f64 - 0.3 * column as f64;
                    let value = family.draw(family.mean(theta), 0.5, &mut stream);
                    all.push(((row * COLUMNS + column) as u64, value));
                }
            }
        }
        all
    }

    /// The largest slope of the objective, in any of the intercept and the effects.
    fn steepest(model: &LowRank, factors: &Factors, cells: &[(u64, f64)], shrink: f64) -> f64 {
        let ridge = shrink * model.settings().lambda_effects;
        let mut slopes = vec![0.0];
        slopes.extend(factors.row_effects.iter().map(|a| ridge * a));
        slopes.extend(factors.column_effects.iter().map(|b| ridge * b));
        for (cell, value) in cells {
            let (row, column) = (*cell as usize / COLUMNS, *cell as usize % COLUMNS);
            let slope = model.family().mean(factors.theta(row, column)) - value;
            [0, 1 + row, 1 + ROWS + column].into_iter().for_each(|at| slopes[at] += slope);
        }
        slopes.into_iter().fold(0.0, |most, slope| f64::max(most, slope.abs()))
    }

    #[test]
    fn effects_of_weakly_linked_halves_are_found_in_three_rounds() {
        for family in Family::ALL {
            for links in [0, 1, ROWS] {
                let effects = Effects::RowColumn;
                let settings =
                    Settings { effects, rank: 0, ..Settings::new(ROWS, COLUMNS, family) };
                let model = LowRank::new(settings).unwrap();
                let cells = cells(family, links);
                let mut factors = Factors::start(&model, 0.5, Key::root(1));
                let mut s = model.expected(&factors);
                for _ in 0..3 {
                    let residual = |(cell, value): &(u64, f64)| {
                        let (row, column) = (*cell as usize / COLUMNS, *cell as usize % COLUMNS);
                        (*cell, value - family.mean(factors.theta(row, column)), 1.0)
                    };
                    let residuals: Vec<_> = cells.iter().map(residual).collect();
                    let push = Sparse::with_copies(&model, residuals.into_iter()).unwrap();
                    let step = Push { push: &push, gamma: 1.0, shrink: 10.0 };
                    model.advance(&mut s, &mut factors, &mut Vec::new(), step).unwrap();
                }
                let left = steepest(&model, &factors, &cells, 10.0);
                assert!(left < 1e-9, "{family:?}, {links} links: {left:e}");
            }
        }
    }
}
