//! The end of a fit without noise, and every round of one without factors: Newton steps over all
//! unknowns at once.
//!
//! EM holds a cell that nobody observed near its last value, and that hold is what makes it find
//! good factors from a poor start. It is also what makes it slow at the end: a cell whose mean is
//! extrapolated to a million holds like a million observations, and rows and columns that are
//! fitted in turn crawl along the valley between effects and factors. Once EM moves little, where
//! everything is penalised and the residuals are exact, what is left is to minimise the objective
//! of the observed cells, which the server then knows: by steps of a trust region, each found by
//! conjugate gradients (Steihaug, *SIAM J. Numer. Anal.* 20, 1983) with the rows' and columns' own
//! Newton systems as the preconditioner. A step is taken only if the objective falls.
//!
//! A table without factors has no poor starts: its objective is convex, and its observed cells are
//! all that counts. It is minimised so in every round, whatever the noise. Taking turns there would be
//! slow where few cells link rows and columns: if the sites of one year were never visited in
//! another, only the ridge on the effects says how the two compare, and a sweep closes a share of
//! the gap that is the ridge beside the data.

use super::alternating::centre;
use super::balance::balance;
use super::complete::{Exact, Push};
use super::objective::{Around, Joint, of_residuals, of_table};
use super::{Factors, LowRank};
use whimbrel_core::Result;

/// EM moves little when the mean square by which a sweep moves `theta`, weighted by the
/// information of the observed cells, is below this.
const NEAR: f64 = 1e-5;
/// Below so many times what rounding adds to it, a gradient is rounding error.
const ROUNDING: f64 = 16.0;
/// From below this one a step ends at rounding: a second one would be for nothing.
const LAST: f64 = 1e-16;
/// Conjugate gradients stop at this share of the gradient; close to the optimum the share shrinks,
/// so that steps converge faster than linearly.
const RESIDUAL_MAX: f64 = 0.1;
/// Hessian products of one step, and how many a round may have used before its last step.
const STEP_PRODUCTS_MAX: u32 = 500;
const ROUND_PRODUCTS_MAX: u32 = 1000;
/// Steps that a round tries.
const TRIALS_MAX: u32 = 40;
/// A step is taken if it keeps so much of what the quadratic model promised, and the region grows
/// if it keeps so much more.
const KEPT_MIN: f64 = 0.1;
const KEPT_WELL: f64 = 0.75;
/// After a step that is not taken the region shrinks to between these shares of its length.
const SHORTER_MIN: f64 = 0.02;
const SHORTER_MAX: f64 = 0.25;

/// Where a round's work ends.
pub(super) struct Found {
    pub factors: Factors,
    /// Whether nothing but the last digits changed. Balance and rotation are then what they were,
    /// and doing them again would only add rounding.
    pub still: bool,
}

/// Minimises the objective of the observed cells from `factors` on, as far as a round's work goes;
/// `decrement` is that of EM's first sweep from there. None where EM has further to go, and where
/// no step helped.
pub(super) fn minimise(
    model: &LowRank,
    s: &[f64],
    factors: &Factors,
    step: &Push<'_>,
    decrement: f64,
) -> Result<Option<Found>> {
    // Where copies differ the table holds what is wanted, with noise or without.
    let (cells, shrink, wanted) = match step.exact {
        _ if !step.push.uniform => (step.push, step.shrink, of_table(model, step.push, s)),
        Some(Exact { cells, shrink }) => (cells, shrink, of_residuals(model, cells, factors)),
        None => return Ok(None),
    };
    let joint = Joint::new(model, cells, shrink, wanted);
    let mut here = joint.around(factors.clone())?;
    // EM's objective counts each cell once, this one each observation.
    let decrement = decrement * shrink / step.shrink;
    if model.rank() > 0 && decrement > NEAR * here.information {
        return Ok(None);
    }
    // A first step may move theta by one.
    let mut radius = here.information.sqrt();
    let (mut products, mut helped, mut still) = (0, false, true);
    for _ in 0..TRIALS_MAX {
        if products >= ROUND_PRODUCTS_MAX {
            break;
        }
        let Some(tried) = inside(&joint, &here, radius) else {
            helped = true;
            break;
        };
        products += tried.products;
        let fall = -joint.change(&here, &tried.p);
        if fall >= KEPT_MIN * tried.promised && tried.promised > 0.0 {
            if tried.at_edge && fall >= KEPT_WELL * tried.promised {
                radius *= 2.0;
            }
            let mut x = here.x;
            x.add(1.0, &tried.p);
            here = joint.around(x)?;
            helped = true;
            still &= tried.mean_square < LAST;
            if tried.mean_square < LAST {
                break;
            }
        } else {
            // As far as the promise outweighs what rises with the square of the length.
            let share = (tried.promised / (tried.promised - fall)).max(0.0).sqrt();
            radius = tried.norm * (0.5 * share).clamp(SHORTER_MIN, SHORTER_MAX);
        }
    }
    if !helped {
        return Ok(None);
    }
    let mut factors = here.x;
    if !still {
        centre(model, &mut factors);
        balance(&mut factors)?;
    }
    Ok(Some(Found { factors, still }))
}

/// A step within the trust region.
struct Tried {
    p: Factors,
    /// Its norm in the preconditioner, in which the region is a ball.
    norm: f64,
    /// By how much the quadratic model falls.
    promised: f64,
    at_edge: bool,
    /// The mean square by which rows and columns would move `theta` one at a time.
    mean_square: f64,
    products: u32,
}

/// Minimises the quadratic model within `radius`; none where the gradient is rounding.
fn inside(joint: &Joint<'_>, here: &Around, radius: f64) -> Option<Tried> {
    let mut p = here.x.zeros();
    let mut residual = p.clone();
    residual.add(-1.0, &here.gradient);
    let mut direction = joint.precondition(here, &residual);
    // <residual, B^-1 residual>, and <p, p>, <p, direction>, <direction, direction> under B.
    let mut rho = residual.dot(&direction);
    let (mut pp, mut pd, mut dd) = (0.0, 0.0, rho);
    if rho.is_nan() || rho <= ROUNDING * here.rounding {
        return None;
    }
    let mean_square = rho / here.information;
    let share = mean_square.sqrt().sqrt().min(RESIDUAL_MAX);
    // Beyond rounding, conjugate gradients would only follow the rotations that leave f as it is.
    let enough = (share * share * rho).max(here.rounding);
    let (mut promised, mut products, mut at_edge) = (0.0, 0, false);
    let mut bent = p.clone();
    while products < STEP_PRODUCTS_MAX && rho > enough {
        joint.product(here, &direction, &mut bent);
        products += 1;
        let curvature = direction.dot(&bent);
        let newton = rho / curvature;
        let longer = pp + 2.0 * newton * pd + newton * newton * dd;
        at_edge = curvature <= 0.0 || longer >= radius * radius;
        let t = if at_edge {
            ((pd * pd + dd * (radius * radius - pp)).max(0.0).sqrt() - pd) / dd
        } else {
            newton
        };
        p.add(t, &direction);
        pp += 2.0 * t * pd + t * t * dd;
        promised += t * rho - 0.5 * t * t * curvature;
        if at_edge {
            break;
        }
        residual.add(-t, &bent);
        let next = joint.precondition(here, &residual);
        let rho_next = residual.dot(&next);
        let beta = rho_next / rho;
        direction.scale_add(beta, &next);
        pd = beta * (pd + t * dd);
        dd = rho_next + beta * beta * dd;
        rho = rho_next;
    }
    let norm = pp.max(0.0).sqrt();
    Some(Tried { p, norm, promised, at_edge, mean_square, products })
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
                    let step = Push { push: &push, gamma: 1.0, shrink: 10.0, exact: None };
                    model.advance(&mut s, &mut factors, step).unwrap();
                }
                let left = steepest(&model, &factors, &cells, 10.0);
                assert!(left < 1e-9, "{family:?}, {links} links: {left:e}");
            }
        }
    }
}
