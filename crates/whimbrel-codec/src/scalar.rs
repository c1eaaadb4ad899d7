//! The two widths of vectors.

use crate::scratch::Scratch;
use whimbrel_core::sum::ExactSum;
use whimbrel_core::{Error, Result, Wire, kernel, vector};

/// Number of coordinates widened, quantised or written at a time: they fit the first-level cache together
/// with their random words.
pub(crate) const BLOCK: usize = 128;

/// `f64` or `f32`. Every operator computes in `f64`; narrower vectors are widened block by block,
/// and a result is rounded once.
pub trait Scalar:
    sealed::Sealed + Scratch + Wire + Copy + Default + PartialEq + std::fmt::Debug + Send + Sync
{
    /// Bytes per number at native width.
    #[doc(hidden)]
    const WIDTH: usize;
    /// The largest finite value.
    #[doc(hidden)]
    const LARGEST: f64;
    /// Powers of two from `2^EXPONENTS.0` to `2^EXPONENTS.1` are numbers of this type.
    #[doc(hidden)]
    const EXPONENTS: (i32, i32);

    /// The block as `f64`, converted into `room` if necessary.
    #[doc(hidden)]
    fn widen<'a>(block: &'a [Self], room: &'a mut [f64; BLOCK]) -> &'a [f64];
    /// Rounds to nearest.
    #[doc(hidden)]
    fn narrow(value: f64) -> Self;
    /// The same value in `f64`.
    #[doc(hidden)]
    fn wide(self) -> f64;
    /// `out = levels * step`.
    #[doc(hidden)]
    fn scale_levels(levels: &[i16], step: f64, out: &mut [Self]);
    /// One number from its `WIDTH` bytes, little-endian.
    #[doc(hidden)]
    fn take_one(bytes: &[u8]) -> Self;

    /// A vector of zeros.
    #[doc(hidden)]
    fn zeros(count: usize) -> Vec<Self>;
    /// `out = a - b`
    #[doc(hidden)]
    fn sub_into(out: &mut [Self], a: &[Self], b: &[Self]);
    /// `y += a x`
    #[doc(hidden)]
    fn axpy(y: &mut [Self], a: f64, x: &[Self]);
    /// `y = x + a y`
    #[doc(hidden)]
    fn scale_add(y: &mut [Self], a: f64, x: &[Self]);
    /// `value += memory` and `memory += a value`, both from the values before.
    #[doc(hidden)]
    fn apply(memory: &mut [Self], value: &mut [Self], a: f64);
    /// The sum of squares.
    #[doc(hidden)]
    fn norm2_squared(x: &[Self]) -> f64;
    /// The largest absolute value.
    #[doc(hidden)]
    fn norm_inf(x: &[Self]) -> f64;
    /// Adds `weight * x` to a sum over clients.
    #[doc(hidden)]
    fn add_to(sum: &mut ExactSum, x: &[Self], weight: f64) -> Result<()>;
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for f64 {}
    impl Sealed for f32 {}
}

impl Scalar for f64 {
    const WIDTH: usize = 8;
    const LARGEST: f64 = f64::MAX;
    const EXPONENTS: (i32, i32) = (-1074, 1023);

    #[inline]
    fn widen<'a>(block: &'a [Self], _: &'a mut [f64; BLOCK]) -> &'a [f64] {
        block
    }

    #[inline(always)]
    fn narrow(value: f64) -> Self {
        value
    }

    #[inline(always)]
    fn wide(self) -> f64 {
        self
    }

    fn scale_levels(levels: &[i16], step: f64, out: &mut [Self]) {
        scale_levels_f64(levels, step, out);
    }

    #[inline]
    fn take_one(bytes: &[u8]) -> Self {
        f64::from_le_bytes(bytes.try_into().expect("eight bytes"))
    }

    fn zeros(count: usize) -> Vec<Self> {
        vector::zeros(count)
    }

    fn sub_into(out: &mut [Self], a: &[Self], b: &[Self]) {
        vector::sub_into(out, a, b);
    }

    fn axpy(y: &mut [Self], a: f64, x: &[Self]) {
        vector::axpy(y, a, x);
    }

    fn scale_add(y: &mut [Self], a: f64, x: &[Self]) {
        vector::scale_add(y, a, x);
    }

    fn apply(memory: &mut [Self], value: &mut [Self], a: f64) {
        apply_f64(memory, value, a);
    }

    fn norm2_squared(x: &[Self]) -> f64 {
        vector::norm2_squared(x)
    }

    fn norm_inf(x: &[Self]) -> f64 {
        vector::norm_inf(x)
    }

    fn add_to(sum: &mut ExactSum, x: &[Self], weight: f64) -> Result<()> {
        sum.add(x, weight)
    }
}

impl Scalar for f32 {
    const WIDTH: usize = 4;
    const LARGEST: f64 = f32::MAX as f64;
    const EXPONENTS: (i32, i32) = (-149, 127);

    #[inline]
    fn widen<'a>(block: &'a [Self], room: &'a mut [f64; BLOCK]) -> &'a [f64] {
        for (wide, narrow) in room.iter_mut().zip(block) {
            *wide = f64::from(*narrow);
        }
        &room[..block.len()]
    }

    #[inline(always)]
    fn narrow(value: f64) -> Self {
        value as f32
    }

    #[inline(always)]
    fn wide(self) -> f64 {
        f64::from(self)
    }

    fn scale_levels(levels: &[i16], step: f64, out: &mut [Self]) {
        scale_levels_f32(levels, step, out);
    }

    #[inline]
    fn take_one(bytes: &[u8]) -> Self {
        f32::from_le_bytes(bytes.try_into().expect("four bytes"))
    }

    fn zeros(count: usize) -> Vec<Self> {
        vec![0.0; count]
    }

    fn sub_into(out: &mut [Self], a: &[Self], b: &[Self]) {
        sub_into_f32(out, a, b);
    }

    fn axpy(y: &mut [Self], a: f64, x: &[Self]) {
        axpy_f32(y, a, x);
    }

    fn scale_add(y: &mut [Self], a: f64, x: &[Self]) {
        scale_add_f32(y, a, x);
    }

    fn apply(memory: &mut [Self], value: &mut [Self], a: f64) {
        apply_f32(memory, value, a);
    }

    fn norm2_squared(x: &[Self]) -> f64 {
        let mut room = [0.0; BLOCK];
        x.chunks(BLOCK).map(|x| vector::norm2_squared(Self::widen(x, &mut room))).sum()
    }

    fn norm_inf(x: &[Self]) -> f64 {
        norm_inf_f32(x)
    }

    fn add_to(sum: &mut ExactSum, x: &[Self], weight: f64) -> Result<()> {
        sum.add_f32(x, weight)
    }
}

/// Refuses vectors with a coordinate that is not finite.
pub(crate) fn check_finite<T: Scalar>(x: &[T]) -> Result<()> {
    match first_nonfinite(x) {
        None => Ok(()),
        Some(i) => Err(Error::numerical(format!(
            "coordinate {i} of the vector to compress is {}, not a finite number",
            x[i].wide()
        ))),
    }
}

/// The index of the first infinity or NaN.
pub(crate) fn first_nonfinite<T: Scalar>(x: &[T]) -> Option<usize> {
    let mut room = [0.0; BLOCK];
    x.chunks(BLOCK).enumerate().find_map(|(n, block)| {
        let wide = T::widen(block, &mut room);
        if all_finite(wide) {
            return None;
        }
        wide.iter().position(|v| !v.is_finite()).map(|i| n * BLOCK + i)
    })
}

kernel! {
    fn scale_levels_f64(levels: &[i16], step: f64, out: &mut [f64]) {
        for (out, level) in out.iter_mut().zip(levels) {
            *out = f64::from(*level) * step;
        }
    }
}

kernel! {
    fn scale_levels_f32(levels: &[i16], step: f64, out: &mut [f32]) {
        for (out, level) in out.iter_mut().zip(levels) {
            *out = (f64::from(*level) * step) as f32;
        }
    }
}

kernel! {
    /// `ŵ = H + C(.)` in the place of the value, and `H += alpha C(.)`, in one pass over both.
    fn apply_f64(memory: &mut [f64], value: &mut [f64], alpha: f64) {
        for (m, v) in memory.iter_mut().zip(value) {
            let before = *m;
            *m += alpha * *v;
            *v += before;
        }
    }
}

kernel! {
    fn apply_f32(memory: &mut [f32], value: &mut [f32], alpha: f64) {
        for (m, v) in memory.iter_mut().zip(value) {
            let before = *m;
            *m = (f64::from(before) + alpha * f64::from(*v)) as f32;
            *v += before;
        }
    }
}

kernel! {
    fn sub_into_f32(out: &mut [f32], a: &[f32], b: &[f32]) {
        assert!(out.len() == a.len() && a.len() == b.len(), "lengths differ");
        for ((out, a), b) in out.iter_mut().zip(a).zip(b) {
            *out = a - b;
        }
    }
}

kernel! {
    fn axpy_f32(y: &mut [f32], a: f64, x: &[f32]) {
        assert_eq!(y.len(), x.len(), "lengths differ");
        for (y, x) in y.iter_mut().zip(x) {
            *y = (f64::from(*y) + a * f64::from(*x)) as f32;
        }
    }
}

kernel! {
    fn scale_add_f32(y: &mut [f32], a: f64, x: &[f32]) {
        assert_eq!(y.len(), x.len(), "lengths differ");
        for (y, x) in y.iter_mut().zip(x) {
            *y = (f64::from(*x) + a * f64::from(*y)) as f32;
        }
    }
}

kernel! {
    fn norm_inf_f32(x: &[f32]) -> f64 {
        // Without their sign bit, floating-point numbers are ordered like integers, NaN last.
        let largest = x.iter().fold(0, |largest, x| x.abs().to_bits().max(largest));
        f64::from(f32::from_bits(largest))
    }
}

kernel! {
    fn all_finite(x: &[f64]) -> bool {
        let mut fine = true;
        for v in x {
            fine &= v.abs() <= f64::MAX;
        }
        fine
    }
}
