//! Damped Newton steps for penalised regressions in an exponential family: the unknowns of a row given
//! the columns, of a column given the rows, all effects given the factors, a new row, and a client's
//! personal effect.
//!
//! Every family satisfies `|psi'''| <= psi''`. For a Newton direction `delta` with decrement
//! `D = g^T delta` that changes no cell's `theta` by more than `m`,
//!
//! ```text
//! f(x - t delta) <= f(x) - D [t - (e^(t m) - t m - 1)/m^2],
//! ```
//!
//! and `t = ln(1 + m)/m` minimises the bound. This step needs no line search, never increases the
//! objective, and tends to a full Newton step. For a Gaussian `psi''' = 0`, and `t = 1` is exact.

use super::Family;
use whimbrel_core::linalg::{cholesky, packed_index, packed_len, solve_lower};
use whimbrel_core::linalg::{solve_lower_transposed, unpack};
use whimbrel_core::math::ln_1p;
use whimbrel_core::{Error, Result, vector};

/// Added to curvatures, relative to the largest, so that flat directions can be solved.
const CURVATURE_MIN: f64 = 1e-13;
/// A small regression stops when no unknown changes by more than this; any regression stops after
/// [`STEPS_MAX`] steps. Convergence is quadratic.
const CHANGE_MIN: f64 = 1e-12;
const STEPS_MAX: u32 = 100;
/// A step length above this counts as a full Newton step.
const WHOLE: f64 = 0.99;
/// Below this relative decrement a step reaches rounding level, and another would gain nothing.
const LAST: f64 = 1e-16;
/// Bounds of the relative squared residual at which conjugate gradients stop, and of their iterations.
const REST_MIN: f64 = 1e-12;
const REST_MAX: f64 = 1e-2;
const PRODUCTS_MAX: u32 = 500;

/// `ln(1 + m)/m`: the step length along a Newton direction that changes no `theta` by more than `m`.
pub(super) fn damping(family: Family, m: f64) -> f64 {
    if family == Family::Gaussian || m < 1e-8 { 1.0 } else { ln_1p(m) / m }
}

/// The Cholesky factor of a packed curvature plus the penalties on its diagonal.
pub(super) fn factorised(packed: &[f64], ridge: &[f64]) -> Result<Vec<f64>> {
    let q = ridge.len();
    let mut h = unpack(packed, q);
    let largest = (0..q).map(|k| h[k * q + k]).fold(0.0, f64::max);
    for (k, ridge) in ridge.iter().enumerate() {
        h[k * q + k] += ridge + CURVATURE_MIN * (largest + f64::MIN_POSITIVE.sqrt());
    }
    cholesky(&mut h, q)
        .map_err(|_| Error::numerical("a row or column of the table has no finite curvature"))?;
    Ok(h)
}

/// The Newton system of a small regression: gradient and packed curvature of the data, without the
/// penalties.
pub(super) struct System {
    pub g: Vec<f64>,
    pub h: Vec<f64>,
}

impl System {
    pub fn new(unknowns: usize) -> Self {
        Self { g: vec![0.0; unknowns], h: vec![0.0; packed_len(unknowns)] }
    }

    /// Takes one damped step of `x`; `reach` bounds the change of any cell's `theta` along a direction.
    /// Returns the direction and its decrement.
    pub fn step(
        &self,
        family: Family,
        ridge: &[f64],
        x: &mut [f64],
        reach: impl Fn(&[f64]) -> f64,
    ) -> Result<(Vec<f64>, f64)> {
        let q = x.len();
        let factor = factorised(&self.h, ridge)?;
        let mut delta = self.g.clone();
        delta.iter_mut().zip(ridge).zip(x.iter()).for_each(|((g, ridge), x)| *g += ridge * x);
        solve_lower(&factor, q, &mut delta);
        let decrement = vector::norm2_squared(&delta);
        solve_lower_transposed(&factor, q, &mut delta);
        vector::axpy(x, -damping(family, reach(&delta)), &delta);
        Ok((delta, decrement))
    }
}

/// One observation of a regression: regressors, the fixed part of `theta`, and the value.
pub(super) struct Case {
    pub z: Vec<f64>,
    pub offset: f64,
    pub y: f64,
}

/// Minimises `sum [psi(offset + <z, x>) - y <z, x>] + sum_k ridge_k x_k^2/2`, starting from `x`.
pub(super) fn regression(
    family: Family,
    terms: &[Case],
    ridge: &[f64],
    mut x: Vec<f64>,
) -> Result<Vec<f64>> {
    for _ in 0..STEPS_MAX {
        let mut system = System::new(x.len());
        for Case { z, offset, y } in terms {
            let mean = family.mean(offset + vector::dot(z, &x));
            vector::axpy(&mut system.g, mean - y, z);
            add_square(&mut system.h, z, family.variance(mean));
        }
        let reach = |delta: &[f64]| {
            terms.iter().map(|case| vector::dot(&case.z, delta).abs()).fold(0.0, f64::max)
        };
        let (delta, _) = system.step(family, ridge, &mut x, reach)?;
        if vector::norm_inf(&delta) < CHANGE_MIN {
            break;
        }
    }
    Ok(x)
}

/// A regression with many unknowns and a sparse design.
pub(super) struct Joint {
    family: Family,
    /// Number of unknowns per cell.
    width: usize,
    /// Index and regressor of each of them, cell after cell.
    design: Vec<(u32, f64)>,
    /// The fixed part of `theta`, the value, and the weight of each cell.
    cells: Vec<[f64; 3]>,
}

impl Joint {
    pub fn new(family: Family, width: usize) -> Self {
        Self { family, width, design: Vec::new(), cells: Vec::new() }
    }

    /// Adds a cell of weight `copies`.
    pub fn add(&mut self, z: impl Iterator<Item = (usize, f64)>, offset: f64, y: f64, copies: f64) {
        self.design.extend(z.map(|(k, z)| (k as u32, z)));
        self.cells.push([offset, y, copies]);
    }

    /// Takes damped steps of `x` until one is a full step or, with `to_the_end`, until rounding level.
    /// Returns the decrement of the first step. Directions come from conjugate gradients and are inexact:
    /// with `D = <g, delta>` and `B = <delta, H delta>`, `t = ln(1 + m D/B)/m` minimises the bound.
    pub fn solve(&self, ridge: &[f64], x: &mut [f64], to_the_end: bool) -> f64 {
        let (mut first, mut last) = (0.0, f64::INFINITY);
        for step in 0..STEPS_MAX {
            let mut g: Vec<f64> = ridge.iter().zip(&*x).map(|(ridge, x)| ridge * x).collect();
            let mut diagonal = ridge.to_vec();
            let mut weights = Vec::with_capacity(self.cells.len());
            // The scale of the decrement.
            let mut size = 0.0;
            for (z, [offset, y, copies]) in self.each() {
                let mean = self.family.mean(offset + along(z, x));
                let weight = copies * self.family.variance(mean);
                for (k, z) in z {
                    g[*k as usize] += copies * (mean - y) * z;
                    diagonal[*k as usize] += weight * z * z;
                }
                weights.push(weight);
                size += if self.family == Family::Gaussian { copies * y * y } else { weight };
            }
            // Collinear effects without a penalty have combinations of zero curvature.
            let each = ridge.iter().zip(&diagonal);
            let floors: Vec<f64> = each.map(|(ridge, d)| ridge + CURVATURE_MIN * d).collect();
            let delta = self.direction(&weights, &floors, [&g, &diagonal], size);
            let decrement = vector::dot(&g, &delta);
            let penalty = floors.iter().zip(&delta).map(|(floor, d)| floor * d * d);
            let (mut bent, mut reach) = (penalty.sum::<f64>(), 0.0f64);
            for ((z, _), weight) in self.each().zip(&weights) {
                let moved = along(z, &delta);
                bent += weight * moved * moved;
                reach = reach.max(moved.abs());
            }
            let share = decrement / bent;
            // Converged, or not finite.
            if !(decrement > 0.0 && share.is_finite()) {
                break;
            }
            let length = share * damping(self.family, share * reach);
            vector::axpy(x, -length, &delta);
            first = if step == 0 { decrement } else { first };
            // Full steps divide the decrement by more than two, until rounding level.
            let is_last = decrement < LAST * size || decrement > 0.5 * last;
            if length > WHOLE && (!to_the_end || is_last) {
                break;
            }
            last = decrement;
        }
        first
    }

    fn each(&self) -> impl Iterator<Item = (&[(u32, f64)], &[f64; 3])> {
        self.design.chunks_exact(self.width).zip(&self.cells)
    }

    /// `(sum weight z z^T + ridge)^-1 g` by conjugate gradients with a diagonal preconditioner. The
    /// tolerance decreases with the decrement, so that the steps converge superlinearly.
    fn direction(
        &self,
        weights: &[f64],
        ridge: &[f64],
        [g, diagonal]: [&[f64]; 2],
        size: f64,
    ) -> Vec<f64> {
        let scaled = |r: &[f64]| -> Vec<f64> {
            let each = r.iter().zip(diagonal);
            each.map(|(r, d)| if *d > 0.0 { r / d } else { 0.0 }).collect()
        };
        let (mut delta, mut rest) = (vec![0.0; g.len()], g.to_vec());
        let mut p = scaled(&rest);
        let mut rho = vector::dot(&rest, &p);
        let enough = rho * (rho / size).sqrt().clamp(REST_MIN, REST_MAX);
        for _ in 0..PRODUCTS_MAX {
            let mut bent: Vec<f64> = ridge.iter().zip(&p).map(|(ridge, p)| ridge * p).collect();
            for ((z, _), weight) in self.each().zip(weights) {
                let moved = weight * along(z, &p);
                z.iter().for_each(|(k, z)| bent[*k as usize] += moved * z);
            }
            let curvature = vector::dot(&p, &bent);
            if !(rho > enough && curvature > 0.0) {
                break;
            }
            let length = rho / curvature;
            vector::axpy(&mut delta, length, &p);
            vector::axpy(&mut rest, -length, &bent);
            let next = scaled(&rest);
            let rho_next = vector::dot(&rest, &next);
            vector::scale(&mut p, rho_next / rho);
            vector::axpy(&mut p, 1.0, &next);
            rho = rho_next;
        }
        delta
    }
}

/// `<z, x>`
#[inline(always)]
fn along(z: &[(u32, f64)], x: &[f64]) -> f64 {
    z.iter().map(|(k, z)| z * x[*k as usize]).sum()
}

/// `A += weight z z^T`, packed.
pub(super) fn add_square(a: &mut [f64], z: &[f64], weight: f64) {
    for k in 0..z.len() {
        for m in 0..=k {
            a[packed_index(k, m)] += weight * z[k] * z[m];
        }
    }
}
