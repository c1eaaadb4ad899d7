//! Eight numbers at once, with plain loops that compile to vector instructions at every level of
//! [`whimbrel_core::isa`].

use std::ops::{Add, AddAssign, Mul, Sub};
use std::sync::atomic::{Ordering, compiler_fence};

pub(crate) const LANES: usize = 8;

/// One number for each of eight rows, or for eight neighbouring columns of a row.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(C, align(64))]
pub(crate) struct Lane(pub [f64; LANES]);

impl Lane {
    pub const ZERO: Self = Self([0.0; LANES]);

    #[inline(always)]
    pub fn splat(x: f64) -> Self {
        Self([x; LANES])
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
    pub fn reciprocal(self) -> Self {
        let mut out = self;
        for x in &mut out.0 {
            *x = 1.0 / *x;
        }
        out
    }

    /// `self a + b`, rounded once.
    #[inline(always)]
    pub fn mul_add(mut self, a: Self, b: Self) -> Self {
        for ((x, a), b) in self.0.iter_mut().zip(a.0).zip(b.0) {
            *x = x.mul_add(a, b);
        }
        self
    }

    /// `self += a b`, each rounded once.
    #[inline(always)]
    pub fn add_product(&mut self, a: &Lane, b: &Lane) {
        for l in 0..LANES {
            self.0[l] = a.0[l].mul_add(b.0[l], self.0[l]);
        }
    }

    /// `self += a b` for a number `a`, each rounded once.
    #[inline(always)]
    pub fn add_scaled(&mut self, a: f64, b: &Lane) {
        for l in 0..LANES {
            self.0[l] = a.mul_add(b.0[l], self.0[l]);
        }
    }

    /// The sum of the eight numbers, always in the same order.
    #[inline(always)]
    pub fn sum(&self) -> f64 {
        let v = &self.0;
        ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7]))
    }
}

/// A compiler fence for the end of a loop body over lanes. It emits no instruction, but keeps the
/// compiler from vectorising across iterations, which would gather and scatter single numbers at up
/// to ten times the cost.
#[inline(always)]
pub(crate) fn one_lane_at_a_time() {
    compiler_fence(Ordering::SeqCst);
}

/// The numbers of all lanes, one after the other.
#[inline(always)]
pub(crate) fn flat_mut(lanes: &mut [Lane]) -> &mut [f64] {
    // SAFETY: `Lane` is `repr(C)` with one field of eight `f64`, 64 bytes at an alignment of 64, so
    // there is no padding; the pointer and the length come from a live exclusive borrow of the lanes.
    unsafe { std::slice::from_raw_parts_mut(lanes.as_mut_ptr().cast(), lanes.len() * LANES) }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flat_numbers_are_those_of_the_lanes() {
        let mut lanes = [Lane::splat(1.0), Lane([0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0])];
        let expected: Vec<f64> = lanes.iter().flat_map(|lane| lane.0).collect();
        assert_eq!(flat_mut(&mut lanes), expected);
        flat_mut(&mut lanes)[9] = -1.0;
        assert_eq!(lanes[1].0[1], -1.0);
        assert!(flat_mut(&mut []).is_empty());
        assert_eq!(size_of::<Lane>(), 64);
    }
}
