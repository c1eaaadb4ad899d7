//! Elementwise loops of several layers.

use whimbrel_core::kernel;

/// Partial sums of a sum: element i goes to sum `i % 32`.
const PARTIAL: usize = 32;

kernel! {
    /// Zeroes the derivative where the output of `max(x, 0)` is not positive.
    pub(crate) fn mask_positive(dy: &mut [f32], y: &[f32]) {
        assert_eq!(dy.len(), y.len(), "lengths differ");
        for (dy, y) in dy.iter_mut().zip(y) {
            *dy = if *y > 0.0 { *dy } else { 0.0 };
        }
    }
}

kernel! {
    /// `y = max(y + x, 0)`, or without the maximum.
    pub(crate) fn add_to(y: &mut [f32], x: &[f32], positive: bool) {
        assert_eq!(y.len(), x.len(), "lengths differ");
        if positive {
            for (y, x) in y.iter_mut().zip(x) {
                let sum = *y + x;
                *y = if sum < 0.0 { 0.0 } else { sum };
            }
        } else {
            for (y, x) in y.iter_mut().zip(x) {
                *y += x;
            }
        }
    }
}

/// Adds the sum of each run of `length` numbers to `sums`.
pub(crate) fn add_row_sums(x: &[f32], length: usize, sums: &mut [f32]) {
    for (x, total) in x.chunks_exact(length).zip(sums) {
        *total += sum(x);
    }
}

kernel! {
    /// The sum.
    pub(crate) fn sum(x: &[f32]) -> f32 {
        let (chunks, rest) = x.as_chunks::<PARTIAL>();
        let mut sums = [0.0; PARTIAL];
        for chunk in chunks {
            for l in 0..PARTIAL {
                sums[l] += chunk[l];
            }
        }
        for (sum, x) in sums.iter_mut().zip(rest) {
            *sum += x;
        }
        halves(sums)
    }
}

/// The sum of partial sums, in halves.
#[inline(always)]
pub(crate) fn halves(mut sums: [f32; PARTIAL]) -> f32 {
    let mut half = PARTIAL / 2;
    while half > 0 {
        for l in 0..half {
            sums[l] += sums[l + half];
        }
        half /= 2;
    }
    sums[0]
}
