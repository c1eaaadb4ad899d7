//! Damped Newton steps of a penalised regression in an exponential family: the unknowns of one row
//! given the columns, of one column given the rows, of all effects given the factors, of a new row, of
//! a client's own effect.
//!
//! Every family has `|psi'''| <= psi''`, so for a Newton direction `delta` with decrement
//! `D = g^T delta` that moves no cell by more than `m`,
//!
//! ```text
//! f(x - t delta) <= f(x) - D [t - (e^(t m) - t m - 1)/m^2],
//! ```
//!
//! and the bound is lowest at `t = ln(1 + m)/m`: a step that needs no line search, never increases
//! the objective, and tends to Newton's own. For a Gaussian `psi''' = 0`, and `t = 1` is exact.

use super::Family;
use whimbrel_core::linalg::{cholesky, packed_index, packed_len, solve_lower};
use whimbrel_core::linalg::{solve_lower_transposed, unpack};
use whimbrel_core::math::ln_1p;
use whimbrel_core::{Error, Result, vector};

/// Added to curvatures, relative to their largest: a direction without any is not a Newton step.
const CURVATURE_MIN: f64 = 1e-13;
/// A regression of few unknowns ends when none moves by more than this, any after this number of steps:
/// they double the digits that are right.
const CHANGE_MIN: f64 = 1e-12;
const STEPS_MAX: u32 = 100;
/// A step that is damped less than this is near the end.
const WHOLE: f64 = 0.99;
/// From below this mean square a step ends at rounding: a second one would be for nothing.
const LAST: f64 = 1e-16;
/// Conjugate gradients stop between these shares of the gradient's square, or after so many products.
const REST_MIN: f64 = 1e-12;
const REST_MAX: f64 = 1e-2;
const PRODUCTS_MAX: u32 = 500;

/// `ln(1 + m)/m`: the step along a Newton direction that moves no cell by more than `m`.
pub(super) fn damping(family: Family, m: f64) -> f64 {
    if family == Family::Gaussian || m < 1e-8 { 1.0 } else { ln_1p(m) / m }
}

/// The Cholesky factor of a packed curvature with the penalties on its diagonal.
pub(super) fn factorised(packed: &[f64], ridge: &[f64]) -> Result<Vec<f64>> {
    let q = ridge.len();
    let mut h = unpack(packed, q);
    let largest = (0..q).map(|k| h[k * q + k]).fold(0.0, f64::max);
    for (k, ridge) in ridge.iter().enumerate() {
        h[k * q + k] += ridge + CURVATURE_MIN * (largest + f64::MIN_POSITIVE.sqrt());
    }
    match cholesky(&mut h, q) {
        Ok(()) => Ok(h),
        Err(_) => Err(Error::numerical("a row or column of the table has no finite curvature")),
    }
}

/// The Newton system of a few unknowns: gradient and packed curvature of the data, without
/// penalties.
pub(super) struct System {
    pub g: Vec<f64>,
    pub h: Vec<f64>,
}

impl System {
    pub fn new(unknowns: usize) -> Self {
        Self { g: vec![0.0; unknowns], h: vec![0.0; packed_len(unknowns)] }
    }

    /// One damped step of `x`; `reach` bounds how far a direction moves a cell. The direction and
    /// its decrement.
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

/// A cell of a regression: its design, the part of `theta` that is fixed, and its value.
pub(super) struct Case {
    pub z: Vec<f64>,
    pub offset: f64,
    pub y: f64,
}

/// The `x` that minimises `sum [psi(offset + <z, x>) - y <z, x>] + sum_k ridge_k x_k^2/2`, from `x`
/// on.
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

/// A regression with many unknowns, of which each cell has a few.
pub(super) struct Joint {
    family: Family,
    /// How many unknowns a cell has.
    width: usize,
    /// Which these are and what they are multiplied with, cell after cell.
    design: Vec<(u32, f64)>,
    /// The fixed part of `theta`, what is wanted, and how often.
    cells: Vec<[f64; 3]>,
}

impl Joint {
    pub fn new(family: Family, width: usize) -> Self {
        Self { family, width, design: Vec::new(), cells: Vec::new() }
    }

    /// Adds a cell that counts `copies` times.
    pub fn add(&mut self, z: impl Iterator<Item = (usize, f64)>, offset: f64, y: f64, copies: f64) {
        self.design.extend(z.map(|(k, z)| (k as u32, z)));
        self.cells.push([offset, y, copies]);
    }

    /// Damped steps of `x` until one is whole or, `to_the_end`, until rounding is all that is left; the
    /// decrement of the first. Directions are found by conjugate gradients and not quite Newton's: with
    /// `D = <g, delta>` and `B = <delta, H delta>` the bound is lowest at `t = ln(1 + m D/B)/m`.
    pub fn solve(&self, ridge: &[f64], x: &mut [f64], to_the_end: bool) -> f64 {
        let (mut first, mut last) = (0.0, f64::INFINITY);
        for step in 0..STEPS_MAX {
            let mut g: Vec<f64> = ridge.iter().zip(&*x).map(|(ridge, x)| ridge * x).collect();
            let mut diagonal = ridge.to_vec();
            let mut weights = Vec::with_capacity(self.cells.len());
            // Beside which a mean square by which `theta` moves is large or small.
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
            // Where effects are collinear and free of a penalty, some combinations have no curvature.
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
            // Nothing is left to gain, or nothing is finite.
            if !(decrement > 0.0 && share.is_finite()) {
                break;
            }
            let length = share * damping(self.family, share * reach);
            vector::axpy(x, -length, &delta);
            first = if step == 0 { decrement } else { first };
            // Whole steps divide the decrement by more than two, until rounding is all that is left.
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

    /// `(sum weight z z^T + ridge)^-1 g` by conjugate gradients on its diagonal's scale, the closer the less
    /// there is to gain: so steps converge faster than linearly.
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
