//! The vector instructions of kernels.
//!
//! Kernels are plain loops with a fixed order of additions and explicit fused products (`mul_add`);
//! the [`kernel!`](crate::kernel) macro compiles each for three levels and picks one at run time.
//! So the level changes the speed and never the bits: a test runs every kernel at every level and
//! compares.

use std::sync::atomic::{AtomicU8, Ordering};

/// An instruction-set level of x86-64; other machines have only the first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u8)]
pub enum Isa {
    /// The baseline of the architecture.
    Baseline = 1,
    /// AVX2 and fused multiply-add (`x86-64-v3`).
    V3 = 3,
    /// AVX-512 (`x86-64-v4`).
    V4 = 4,
}

impl Isa {
    /// The level's name, as written in a run's summary and read from `WHIMBREL_ISA`.
    pub fn name(self) -> &'static str {
        match self {
            Self::V4 => "x86-64-v4",
            Self::V3 => "x86-64-v3",
            Self::Baseline if cfg!(target_arch = "x86_64") => "x86-64",
            Self::Baseline => std::env::consts::ARCH,
        }
    }

    fn from_name(name: &str) -> Option<Self> {
        [Self::Baseline, Self::V3, Self::V4].into_iter().find(|l| l.name() == name)
    }
}

static LEVEL: AtomicU8 = AtomicU8::new(0);

/// The level in use: the best of the machine, or the lower one in `WHIMBREL_ISA`.
#[inline]
pub fn level() -> Isa {
    match LEVEL.load(Ordering::Relaxed) {
        1 => Isa::Baseline,
        3 => Isa::V3,
        4 => Isa::V4,
        _ => first_look(),
    }
}

/// Pins the level, at most to the best of the machine; returns the level in use.
pub fn pin(wanted: Isa) -> Isa {
    let level = wanted.min(detect());
    LEVEL.store(level as u8, Ordering::Relaxed);
    level
}

#[cold]
fn first_look() -> Isa {
    let wanted = std::env::var("WHIMBREL_ISA").ok().and_then(|name| Isa::from_name(name.trim()));
    pin(wanted.unwrap_or(Isa::V4))
}

#[cfg(target_arch = "x86_64")]
fn detect() -> Isa {
    let v3 = is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("fma")
        && is_x86_feature_detected!("bmi1")
        && is_x86_feature_detected!("bmi2")
        && is_x86_feature_detected!("lzcnt")
        && is_x86_feature_detected!("popcnt");
    let v4 = v3
        && is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("avx512cd");
    if v4 {
        Isa::V4
    } else if v3 {
        Isa::V3
    } else {
        Isa::Baseline
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn detect() -> Isa {
    Isa::Baseline
}

/// Compiles one plain function for every instruction-set level and calls the one in use.
///
/// The body is ordinary safe Rust: loops that the compiler can vectorise. Functions it calls must
/// be `#[inline(always)]` to be compiled for the level too. `f64::mul_add` is one instruction at
/// the levels above the baseline of x86-64 and a call of the C library's `fma` on it (and outside
/// of kernels): the same bits, many times as slow.
#[macro_export]
macro_rules! kernel {
    ($(#[$meta:meta])* $vis:vis fn $name:ident($($arg:ident : $ty:ty),* $(,)?) $(-> $ret:ty)? $body:block) => {
        $(#[$meta])*
        #[inline]
        #[allow(clippy::too_many_arguments)]
        $vis fn $name($($arg: $ty),*) $(-> $ret)? {
            #[inline(always)]
            #[allow(clippy::too_many_arguments)]
            fn plain($($arg: $ty),*) $(-> $ret)? $body

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma,bmi1,bmi2,lzcnt,popcnt")]
            #[allow(clippy::too_many_arguments)]
            fn v3($($arg: $ty),*) $(-> $ret)? {
                plain($($arg),*)
            }

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma,bmi1,bmi2,lzcnt,popcnt,avx512f,avx512dq,avx512bw,avx512vl,avx512cd")]
            #[allow(clippy::too_many_arguments)]
            fn v4($($arg: $ty),*) $(-> $ret)? {
                plain($($arg),*)
            }

            match $crate::isa::level() {
                // SAFETY: `level` returns V3 or V4 only where the processor has every feature
                // that the function enables.
                #[cfg(target_arch = "x86_64")]
                $crate::isa::Isa::V4 => unsafe { v4($($arg),*) },
                // SAFETY: as above.
                #[cfg(target_arch = "x86_64")]
                $crate::isa::Isa::V3 => unsafe { v3($($arg),*) },
                _ => plain($($arg),*),
            }
        }
    };
}
