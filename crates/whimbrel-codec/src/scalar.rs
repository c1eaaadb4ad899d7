//! The two widths a vector may have.

use whimbrel_core::{Error, Result, kernel};

/// How many coordinates are widened, quantised or written at a time: they stay in the first-level
/// cache together with their random words.
pub(crate) const BLOCK: usize = 128;

/// `f64` or `f32`. Every operator computes in `f64`; narrower vectors are widened block by block.
pub trait Scalar: sealed::Sealed + Copy + Default + PartialEq + std::fmt::Debug {
    /// Bytes per number at native width.
    #[doc(hidden)]
    const WIDTH: usize;
    /// The largest finite value.
    #[doc(hidden)]
    const LARGEST: f64;
    /// Powers of two from `2^EXPONENTS.0` to `2^EXPONENTS.1` are numbers of this type.
    #[doc(hidden)]
    const EXPONENTS: (i32, i32);

    /// The block as `f64`, in `room` where it has to be converted.
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
    /// Appends the native bytes, little end first.
    #[doc(hidden)]
    fn put_all(x: &[Self], out: &mut Vec<u8>);
    /// Reads one of the numbers that [`put_all`](Self::put_all) wrote; the slice has `WIDTH` bytes.
    #[doc(hidden)]
    fn take(bytes: &[u8]) -> Self;
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

    fn put_all(x: &[Self], out: &mut Vec<u8>) {
        let start = out.len();
        out.resize(start + x.len() * Self::WIDTH, 0);
        for (bytes, v) in out[start..].chunks_exact_mut(Self::WIDTH).zip(x) {
            bytes.copy_from_slice(&v.to_le_bytes());
        }
    }

    #[inline]
    fn take(bytes: &[u8]) -> Self {
        f64::from_le_bytes(bytes.try_into().expect("eight bytes"))
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

    fn put_all(x: &[Self], out: &mut Vec<u8>) {
        let start = out.len();
        out.resize(start + x.len() * Self::WIDTH, 0);
        for (bytes, v) in out[start..].chunks_exact_mut(Self::WIDTH).zip(x) {
            bytes.copy_from_slice(&v.to_le_bytes());
        }
    }

    #[inline]
    fn take(bytes: &[u8]) -> Self {
        f32::from_le_bytes(bytes.try_into().expect("four bytes"))
    }
}

/// Refuses vectors with a coordinate that is not a number one can add.
pub(crate) fn check_finite<T: Scalar>(x: &[T]) -> Result<()> {
    match first_nonfinite(x) {
        None => Ok(()),
        Some(i) => Err(Error::numerical(format!(
            "coordinate {i} of the vector to compress is {}, not a finite number",
            x[i].wide()
        ))),
    }
}

/// Where the first infinity or NaN stands.
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
    fn all_finite(x: &[f64]) -> bool {
        let mut fine = true;
        for v in x {
            fine &= v.abs() <= f64::MAX;
        }
        fine
    }
}
