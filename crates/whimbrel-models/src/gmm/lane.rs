//! Eight rows at once: one number for each, with plain loops that compile to vector instructions
//! at every level of [`whimbrel_core::isa`].

use std::ops::{Add, AddAssign, Mul, Sub};
use whimbrel_core::math;

/// Rows per tile.
pub(super) const LANES: usize = 8;

/// One number for each of the eight rows of a tile.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(C, align(64))]
pub(super) struct Lane(pub [f64; LANES]);

impl Lane {
    pub const ZERO: Self = Self([0.0; LANES]);

    /// The same number for every row.
    #[inline(always)]
    pub fn splat(x: f64) -> Self {
        Self([x; LANES])
    }

    #[inline(always)]
    fn map(mut self, f: impl Fn(f64) -> f64) -> Self {
        for x in &mut self.0 {
            *x = f(*x);
        }
        self
    }

    #[inline(always)]
    fn zip(mut self, other: Self, f: impl Fn(f64, f64) -> f64) -> Self {
        for (x, y) in self.0.iter_mut().zip(other.0) {
            *x = f(*x, y);
        }
        self
    }

    /// The larger of two numbers; `self` where they cannot be compared.
    #[inline(always)]
    pub fn max(self, other: Self) -> Self {
        self.zip(other, |x, y| if y > x { y } else { x })
    }

    #[inline(always)]
    pub fn exp(self) -> Self {
        self.map(math::exp)
    }

    #[inline(always)]
    pub fn ln(self) -> Self {
        self.map(math::ln)
    }

    #[inline(always)]
    pub fn reciprocal(self) -> Self {
        self.map(|x| 1.0 / x)
    }

    /// The sum over the eight rows, always added in the same order.
    #[inline(always)]
    pub fn sum(&self) -> f64 {
        let v = &self.0;
        ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7]))
    }
}

impl Add for Lane {
    type Output = Self;
    #[inline(always)]
    fn add(self, other: Self) -> Self {
        self.zip(other, |x, y| x + y)
    }
}

impl AddAssign for Lane {
    #[inline(always)]
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl Sub for Lane {
    type Output = Self;
    #[inline(always)]
    fn sub(self, other: Self) -> Self {
        self.zip(other, |x, y| x - y)
    }
}

impl Mul for Lane {
    type Output = Self;
    #[inline(always)]
    fn mul(self, other: Self) -> Self {
        self.zip(other, |x, y| x * y)
    }
}
