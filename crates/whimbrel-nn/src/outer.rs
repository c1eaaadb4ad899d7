//! Sums of outer products over samples, `C += A B^T` with samples along the rows of A and B: the
//! derivatives of weights. Element k of a row goes to partial sum `k % 16` of its block.

use crate::lanes::{Lanes, lanes_kernel};
use crate::rows::dots;

/// Numbers of the smaller operand that stay in cache while the larger one is read.
const NEAR: usize = 1 << 17;
/// The longest block of a row.
const LONGEST: usize = 2048;

/// Rows of numbers, each as long as there are samples.
#[derive(Clone, Copy)]
pub(crate) struct Strips<'a> {
    pub values: &'a [f32],
    pub rows: usize,
    /// Distance between rows.
    pub stride: usize,
}

/// The matrix C, with the element of rows i and j of the operands at `i row + j column`.
pub(crate) struct Sums<'a> {
    pub values: &'a mut [f32],
    pub row: usize,
    pub column: usize,
}

/// Adds the product of every row of `a` with every row of `b`, over the first `n` numbers.
pub(crate) fn add_outer(a: Strips<'_>, b: Strips<'_>, n: usize, c: Sums<'_>) {
    if a.rows >= b.rows {
        add_outer_larger(a, b, n, c);
    } else {
        add_outer_larger(b, a, n, Sums { row: c.column, column: c.row, ..c });
    }
}

lanes_kernel! {
    fn add_outer_larger(a: Strips<'_>, b: Strips<'_>, n: usize, c: Sums<'_>) = add_outer_of
}

/// # Safety
/// The instructions of `L` must be available: call only from a [`lanes_kernel!`].
#[inline(always)]
unsafe fn add_outer_of<L: Lanes>(a: Strips<'_>, b: Strips<'_>, n: usize, mut c: Sums<'_>) {
    let holds = |s: &Strips<'_>| s.rows == 0 || s.values.len() >= (s.rows - 1) * s.stride + n;
    assert!(holds(&a) && holds(&b), "strips are too short");
    let side = if L::MANY { 4 } else { 2 };
    let longest = (NEAR / b.rows.max(1)).clamp(128, LONGEST) / 16 * 16;
    for from in (0..n).step_by(longest) {
        let length = (n - from).min(longest);
        let mut i = 0;
        while i < a.rows {
            let rows = if a.rows - i >= side { side } else { 1 };
            let mut j = 0;
            while j < b.rows {
                let columns = if b.rows - j >= side { side } else { 1 };
                let at = [i, j, from];
                // SAFETY: the assert above gives both strips `n >= from + length` numbers in all of their
                // rows, and the tile's rows exist; instructions by contract.
                unsafe {
                    match (rows, columns) {
                        (4, 4) => tile::<L, 4, 4>(a, b, at, length, &mut c),
                        (4, _) => tile::<L, 4, 1>(a, b, at, length, &mut c),
                        (2, 2) => tile::<L, 2, 2>(a, b, at, length, &mut c),
                        (2, _) => tile::<L, 2, 1>(a, b, at, length, &mut c),
                        (_, 4) => tile::<L, 1, 4>(a, b, at, length, &mut c),
                        (_, 2) => tile::<L, 1, 2>(a, b, at, length, &mut c),
                        _ => tile::<L, 1, 1>(a, b, at, length, &mut c),
                    }
                }
                j += columns;
            }
            i += rows;
        }
    }
}

/// # Safety
/// The instructions of `L` must be available, and the strips must hold `length` numbers from `at[2]` on in
/// R rows from `at[0]` and C rows from `at[1]`.
#[inline(always)]
unsafe fn tile<L: Lanes, const R: usize, const C: usize>(
    a: Strips<'_>,
    b: Strips<'_>,
    at: [usize; 3],
    length: usize,
    c: &mut Sums<'_>,
) {
    let [i, j, from] = at;
    // SAFETY: every pointer starts `length` valid numbers of a row, by this function's contract.
    let dots = unsafe {
        let rows = std::array::from_fn(|r| a.values.as_ptr().add((i + r) * a.stride + from));
        let columns = std::array::from_fn(|l| b.values.as_ptr().add((j + l) * b.stride + from));
        dots::<L, R, C>(rows, columns, length)
    };
    for (r, dots) in dots.iter().enumerate() {
        for (l, dot) in dots.iter().enumerate() {
            c.values[(i + r) * c.row + (j + l) * c.column] += dot;
        }
    }
}
