//! Damped Newton steps of a penalised regression in an exponential family: the unknowns of one row
//! given the columns, of one column given the rows, of a new row, of a client's own effect.
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
/// A regression ends when no unknown moves by more than this, or after this number of steps: they
/// double the digits that are right.
const CHANGE_MIN: f64 = 1e-12;
const STEPS_MAX: u32 = 100;

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

/// `A += weight z z^T`, packed.
pub(super) fn add_square(a: &mut [f64], z: &[f64], weight: f64) {
    for k in 0..z.len() {
        for m in 0..=k {
            a[packed_index(k, m)] += weight * z[k] * z[m];
        }
    }
}
