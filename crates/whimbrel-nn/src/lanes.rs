//! Sixteen `f32` at a time, at every instruction-set level.
//!
//! Kernels that keep many partial sums in registers are written once over [`Lanes`] and compiled for
//! each level by [`lanes_kernel!`]; loops that the compiler vectorises by itself use
//! [`whimbrel_core::kernel!`]. A lane's arithmetic is the same at every level: the level changes the
//! speed and never the bits.

/// Sixteen numbers in registers.
///
/// # Safety
/// The methods of `V3` and `V4` execute AVX2 and AVX-512 instructions without a check. [`lanes_kernel!`]
/// alone names these types, after `isa::level` has found their instructions; every other function is
/// generic over `Lanes` and reachable only from there. Pointers must be valid for 16 numbers, in
/// `load_part` and `store_part` for `n`.
pub(crate) trait Lanes: Copy {
    /// Whether the registers hold sixteen partial sums and their operands.
    const MANY: bool;
    // SAFETY: of all methods, see the trait.
    unsafe fn zero() -> Self;
    unsafe fn splat(x: f32) -> Self;
    unsafe fn load(from: *const f32) -> Self;
    /// The first `n` of sixteen numbers, then zeros.
    unsafe fn load_part(from: *const f32, n: usize) -> Self;
    unsafe fn store(self, to: *mut f32);
    /// Writes the first `n` numbers.
    // SAFETY: see the trait.
    unsafe fn store_part(self, to: *mut f32, n: usize);
    /// `self b + c`, rounded once.
    unsafe fn fma(self, b: Self, c: Self) -> Self;
    /// The larger of each number and zero; NaN stays NaN.
    unsafe fn positive(self) -> Self;
    /// The sum: lanes are added in halves, quarters, eighths, pairs.
    // SAFETY: see the trait.
    unsafe fn sum(self) -> f32;
    /// The sums of sixteen vectors.
    #[inline(always)]
    unsafe fn sums(all: [[Self; 4]; 4]) -> [[f32; 4]; 4] {
        // SAFETY: `sum` needs the same instructions as this method.
        all.map(|row| row.map(|x| unsafe { x.sum() }))
    }
}

/// Lanes in portable code.
#[derive(Clone, Copy)]
pub(crate) struct Plain([f32; 16]);

impl Lanes for Plain {
    const MANY: bool = false;

    // SAFETY: portable code; unsafe by the trait's signature alone.
    #[inline(always)]
    unsafe fn zero() -> Self {
        Self([0.0; 16])
    }
    // SAFETY: portable code; unsafe by the trait's signature alone.
    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        Self([x; 16])
    }
    // SAFETY: 16 valid numbers at the pointer, by the trait's contract.
    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        Self(unsafe { from.cast::<[f32; 16]>().read_unaligned() })
    }
    // SAFETY: `n` valid numbers at the pointer, by the trait's contract.
    #[inline(always)]
    unsafe fn load_part(from: *const f32, n: usize) -> Self {
        let mut all = [0.0; 16];
        for (l, x) in all.iter_mut().enumerate().take(n) {
            *x = unsafe { *from.add(l) };
        }
        Self(all)
    }
    // SAFETY: 16 valid numbers at the pointer, by the trait's contract.
    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        unsafe { to.cast::<[f32; 16]>().write_unaligned(self.0) };
    }
    // SAFETY: `n` valid numbers at the pointer, by the trait's contract.
    #[inline(always)]
    unsafe fn store_part(self, to: *mut f32, n: usize) {
        for (l, x) in self.0.iter().enumerate().take(n) {
            unsafe { *to.add(l) = *x };
        }
    }
    // SAFETY: portable code; unsafe by the trait's signature alone.
    #[inline(always)]
    unsafe fn fma(self, b: Self, c: Self) -> Self {
        Self(std::array::from_fn(|l| self.0[l].mul_add(b.0[l], c.0[l])))
    }
    // SAFETY: portable code; unsafe by the trait's signature alone.
    #[inline(always)]
    unsafe fn positive(self) -> Self {
        Self(self.0.map(|x| if x < 0.0 { 0.0 } else { x }))
    }
    // SAFETY: portable code; unsafe by the trait's signature alone.
    #[inline(always)]
    unsafe fn sum(self) -> f32 {
        let mut x = self.0;
        for half in [8, 4, 2, 1] {
            for l in 0..half {
                x[l] += x[l + half];
            }
        }
        x[0]
    }
}

#[cfg(target_arch = "x86_64")]
pub(crate) use x86::{V3, V4};

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::Lanes;
    use std::arch::x86_64::*;

    /// Lanes of AVX2.
    #[derive(Clone, Copy)]
    pub(crate) struct V3(__m256, __m256);

    /// Lanes of AVX-512.
    #[derive(Clone, Copy)]
    pub(crate) struct V4(__m512);

    /// The mask of the first `n` of eight.
    // SAFETY: AVX2; called by the methods of `V3` alone.
    #[inline(always)]
    unsafe fn first(n: usize) -> __m256i {
        const MASK: [i32; 16] = [-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0];
        // SAFETY: the offset is at most 8, so eight of the sixteen numbers follow it.
        unsafe { _mm256_loadu_si256(MASK.as_ptr().add(8 - n.min(8)).cast()) }
    }

    /// The sum of eight numbers, in the order of the plain lanes.
    // SAFETY: AVX2; called by the methods of `V3` and `V4` alone.
    #[inline(always)]
    unsafe fn sum_of_eight(x: __m256) -> f32 {
        unsafe {
            let x = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps::<1>(x));
            let x = _mm_add_ps(x, _mm_movehl_ps(x, x));
            _mm_cvtss_f32(_mm_add_ss(x, _mm_shuffle_ps::<1>(x, x)))
        }
    }
    impl Lanes for V3 {
        const MANY: bool = false;

        // SAFETY: AVX2, by the trait's contract.
        #[inline(always)]
        unsafe fn zero() -> Self {
            unsafe { Self(_mm256_setzero_ps(), _mm256_setzero_ps()) }
        }
        // SAFETY: AVX2, by the trait's contract.
        #[inline(always)]
        unsafe fn splat(x: f32) -> Self {
            unsafe { Self(_mm256_set1_ps(x), _mm256_set1_ps(x)) }
        }
        // SAFETY: AVX2 and 16 valid numbers, by the trait's contract.
        #[inline(always)]
        unsafe fn load(from: *const f32) -> Self {
            unsafe { Self(_mm256_loadu_ps(from), _mm256_loadu_ps(from.add(8))) }
        }
        // SAFETY: AVX2 and `n` valid numbers (masked lanes are not accessed), by the trait's contract.
        #[inline(always)]
        unsafe fn load_part(from: *const f32, n: usize) -> Self {
            unsafe {
                let low = _mm256_maskload_ps(from, first(n));
                let high = _mm256_maskload_ps(from.wrapping_add(8), first(n.saturating_sub(8)));
                Self(low, high)
            }
        }
        // SAFETY: AVX2 and 16 valid numbers, by the trait's contract.
        #[inline(always)]
        unsafe fn store(self, to: *mut f32) {
            unsafe {
                _mm256_storeu_ps(to, self.0);
                _mm256_storeu_ps(to.add(8), self.1);
            }
        }
        // SAFETY: AVX2 and `n` valid numbers (masked lanes are not accessed), by the trait's contract.
        #[inline(always)]
        unsafe fn store_part(self, to: *mut f32, n: usize) {
            unsafe {
                _mm256_maskstore_ps(to, first(n), self.0);
                _mm256_maskstore_ps(to.wrapping_add(8), first(n.saturating_sub(8)), self.1);
            }
        }
        // SAFETY: AVX2, by the trait's contract.
        #[inline(always)]
        unsafe fn fma(self, b: Self, c: Self) -> Self {
            unsafe { Self(_mm256_fmadd_ps(self.0, b.0, c.0), _mm256_fmadd_ps(self.1, b.1, c.1)) }
        }
        // SAFETY: AVX2, by the trait's contract.
        #[inline(always)]
        unsafe fn positive(self) -> Self {
            unsafe {
                let zero = _mm256_setzero_ps();
                Self(_mm256_max_ps(zero, self.0), _mm256_max_ps(zero, self.1))
            }
        }
        // SAFETY: AVX2, by the trait's contract.
        #[inline(always)]
        unsafe fn sum(self) -> f32 {
            unsafe { sum_of_eight(_mm256_add_ps(self.0, self.1)) }
        }
    }

    impl Lanes for V4 {
        const MANY: bool = true;

        // SAFETY: AVX-512, by the trait's contract.
        #[inline(always)]
        unsafe fn zero() -> Self {
            unsafe { Self(_mm512_setzero_ps()) }
        }
        // SAFETY: AVX-512, by the trait's contract.
        #[inline(always)]
        unsafe fn splat(x: f32) -> Self {
            unsafe { Self(_mm512_set1_ps(x)) }
        }
        // SAFETY: AVX-512 and 16 valid numbers, by the trait's contract.
        #[inline(always)]
        unsafe fn load(from: *const f32) -> Self {
            unsafe { Self(_mm512_loadu_ps(from)) }
        }
        // SAFETY: AVX-512 and `n` valid numbers (masked lanes are not accessed), by the trait's contract.
        #[inline(always)]
        unsafe fn load_part(from: *const f32, n: usize) -> Self {
            unsafe { Self(_mm512_maskz_loadu_ps(mask(n), from)) }
        }
        // SAFETY: AVX-512 and 16 valid numbers, by the trait's contract.
        #[inline(always)]
        unsafe fn store(self, to: *mut f32) {
            unsafe { _mm512_storeu_ps(to, self.0) }
        }
        // SAFETY: AVX-512 and `n` valid numbers (masked lanes are not accessed), by the trait's contract.
        #[inline(always)]
        unsafe fn store_part(self, to: *mut f32, n: usize) {
            unsafe { _mm512_mask_storeu_ps(to, mask(n), self.0) }
        }
        // SAFETY: AVX-512, by the trait's contract.
        #[inline(always)]
        unsafe fn fma(self, b: Self, c: Self) -> Self {
            unsafe { Self(_mm512_fmadd_ps(self.0, b.0, c.0)) }
        }
        // SAFETY: AVX-512, by the trait's contract.
        #[inline(always)]
        unsafe fn positive(self) -> Self {
            unsafe { Self(_mm512_max_ps(_mm512_setzero_ps(), self.0)) }
        }
        // SAFETY: AVX-512, by the trait's contract.
        #[inline(always)]
        unsafe fn sum(self) -> f32 {
            unsafe {
                let high = _mm512_extractf32x8_ps::<1>(self.0);
                sum_of_eight(_mm256_add_ps(_mm512_castps512_ps256(self.0), high))
            }
        }
        // SAFETY: AVX-512, by the trait's contract.
        #[inline(always)]
        unsafe fn sums(all: [[Self; 4]; 4]) -> [[f32; 4]; 4] {
            let [a, b, c, d] = all;
            unsafe {
                // Quarters of every row's four vectors, then pairs of rows, then both pairs.
                let [a, b, c, d] = [quarters(a), quarters(b), quarters(c), quarters(d)];
                let ab =
                    _mm512_add_ps(_mm512_shuffle_ps::<0x44>(a, b), _mm512_shuffle_ps::<0xEE>(a, b));
                let cd =
                    _mm512_add_ps(_mm512_shuffle_ps::<0x44>(c, d), _mm512_shuffle_ps::<0xEE>(c, d));
                let sums = _mm512_add_ps(
                    _mm512_shuffle_ps::<0x88>(ab, cd),
                    _mm512_shuffle_ps::<0xDD>(ab, cd),
                );
                let mut found = [[0.0; 4]; 4];
                _mm512_storeu_ps(found.as_mut_ptr().cast(), sums);
                let mut out = [[0.0; 4]; 4];
                for (j, column) in found.iter().enumerate() {
                    for (i, sum) in column.iter().enumerate() {
                        out[i][j] = *sum;
                    }
                }
                out
            }
        }
    }

    /// Four partial sums of each of four vectors: halves, then quarters.
    // SAFETY: AVX-512; called by the methods of `V4` alone.
    #[inline(always)]
    unsafe fn quarters([a, b, c, d]: [V4; 4]) -> __m512 {
        unsafe {
            let ab = _mm512_add_ps(
                _mm512_shuffle_f32x4::<0x44>(a.0, b.0),
                _mm512_shuffle_f32x4::<0xEE>(a.0, b.0),
            );
            let cd = _mm512_add_ps(
                _mm512_shuffle_f32x4::<0x44>(c.0, d.0),
                _mm512_shuffle_f32x4::<0xEE>(c.0, d.0),
            );
            let low = _mm512_shuffle_f32x4::<0x88>(ab, cd);
            _mm512_add_ps(low, _mm512_shuffle_f32x4::<0xDD>(ab, cd))
        }
    }

    /// The mask of the first `n` of sixteen.
    #[inline(always)]
    fn mask(n: usize) -> __mmask16 {
        ((1u32 << n.min(16)) - 1) as __mmask16
    }
}

/// Compiles a function over [`Lanes`] for every level and calls the one in use: `$name` is the safe
/// entry point, `$body` an `#[inline(always)]` function over the lanes.
macro_rules! lanes_kernel {
    ($(#[$meta:meta])* $vis:vis fn $name:ident($($arg:ident : $ty:ty),* $(,)?) = $body:ident) => {
        $(#[$meta])*
        #[allow(clippy::too_many_arguments)]
        $vis fn $name($($arg: $ty),*) {
            // SAFETY: called below, where the level is V3.
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma,bmi1,bmi2,lzcnt,popcnt")]
            #[allow(clippy::too_many_arguments)]
            unsafe fn v3($($arg: $ty),*) {
                // SAFETY: this function enables the instructions of its lanes.
                unsafe { $body::<$crate::lanes::V3>($($arg),*) }
            }
            // SAFETY: called below, where the level is V4.
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma,bmi1,bmi2,lzcnt,popcnt,avx512f,avx512dq,avx512bw,avx512vl,avx512cd")]
            #[allow(clippy::too_many_arguments)]
            unsafe fn v4($($arg: $ty),*) {
                // SAFETY: this function enables the instructions of its lanes.
                unsafe { $body::<$crate::lanes::V4>($($arg),*) }
            }

            match whimbrel_core::isa::level() {
                // SAFETY: `level` returns V3 or V4 only where the processor has every feature
                // that the function enables.
                #[cfg(target_arch = "x86_64")]
                whimbrel_core::isa::Isa::V4 => unsafe { v4($($arg),*) },
                // SAFETY: as above.
                #[cfg(target_arch = "x86_64")]
                whimbrel_core::isa::Isa::V3 => unsafe { v3($($arg),*) },
                // SAFETY: plain lanes need no instruction beyond the target's.
                _ => unsafe { $body::<$crate::lanes::Plain>($($arg),*) },
            }
        }
    };
}
pub(crate) use lanes_kernel;
