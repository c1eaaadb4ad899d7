//! The end of a fit without noise, and every round of one without factors: Newton steps over all
//! unknowns at once.
//!
//! EM holds an unobserved cell near its last value. That finds good factors from a poor start
//! and is slow at the end, where rows and columns fitted in turn crawl along the valley between effects
//! and factors. Once EM moves little, where everything is penalised and the residuals are exact, the
//! objective of the observed cells itself is minimised: by steps of a trust region, each found by
//! conjugate gradients (Steihaug, *SIAM J. Numer. Anal.* 20, 1983) with the rows' and columns' own
//! Newton systems as the preconditioner. A step is taken only if the objective falls. Without factors
//! the objective is convex, and every round minimises it so, whatever the noise.

use super::alternating::centre;
use super::complete::Push;
use super::objective::{Around, Joint, of_residuals, of_table};
use super::{Factors, LowRank};
use whimbrel_core::Result;

/// EM moves little when the mean square by which a sweep moves `theta`, weighted by the
/// information of the observed cells, is below this.
const NEAR: f64 = 1e-5;
/// A gradient below this multiple of its rounding error is taken for zero.
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

/// Minimises the objective of the observed cells from `factors` on, as far as a round's work goes;
/// `decrement` is that of EM's first sweep from there. None where EM has further to go, and where
/// no step helped.
pub(super) fn minimise(
    model: &LowRank,
    s: &[f64],
    factors: &Factors,
    step: &Push<'_>,
    decrement: f64,
) -> Result<Option<Factors>> {
    // Where copies differ the table holds what is wanted, with noise or without.
    let (cells, wanted) = match step.exact {
        _ if !step.push.uniform => (step.push, of_table(model, step.push, s)),
        Some(cells) => (cells, of_residuals(model, cells, factors)),
        None => return Ok(None),
    };
    let joint = Joint::new(model, cells, step.clients, wanted);
    let mut here = joint.around(factors.clone())?;
    // EM's objective counts each cell once, this one each observation.
    let decrement = decrement * step.clients / step.shrink();
    if model.rank() > 0 && decrement > NEAR * here.information {
        return Ok(None);
    }
    // A first step may move theta by one.
    let mut radius = here.information.sqrt();
    let (mut products, mut helped) = (0, false);
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
    centre(model, &mut factors);
    factors.balance();
    Ok(Some(factors))
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
    let mut p = here.gradient.scaled(0.0);
    let mut residual = here.gradient.scaled(-1.0);
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
    while products < STEP_PRODUCTS_MAX && rho > enough {
        let bent = joint.product(here, &direction);
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
        direction = direction.scaled(beta);
        direction.add(1.0, &next);
        pd = beta * (pd + t * dd);
        dd = rho_next + beta * beta * dd;
        rho = rho_next;
    }
    let norm = pp.max(0.0).sqrt();
    Some(Tried { p, norm, promised, at_edge, mean_square, products })
}
