//! Sums over blocks of rows.

use whimbrel_core::kernel;

/// Rows of a block.
pub(super) const BLOCK: usize = 256;
/// Rows, and columns, that are added together, with their sums in registers.
const TOGETHER: usize = 4;

/// Numbers from a row of a block to the next: its columns, padded with zeros.
pub(super) fn stride(columns: usize) -> usize {
    columns.next_multiple_of(TOGETHER)
}

kernel! {
    /// Adds `Σ w_r z_r z_r^T` over the rows of a block, to the lower triangle of a square matrix of
    /// `stride` rows; above the diagonal it is undefined.
    pub(super) fn add_gram(z: &[f64], stride: usize, w: &[f64], out: &mut [f64]) {
        if stride == 0 {
            return;
        }
        for (z, w) in z.chunks_exact(TOGETHER * stride).zip(w.as_chunks::<TOGETHER>().0) {
            for i in (0..stride).step_by(TOGETHER) {
                let n = i + TOGETHER;
                let mut rows = [z; TOGETHER];
                let mut own = [[0.0; TOGETHER]; TOGETHER];
                for r in 0..TOGETHER {
                    rows[r] = &z[r * stride..][..n];
                    for c in 0..TOGETHER {
                        own[c][r] = w[r] * rows[r][i + c];
                    }
                }
                let (out_0, rest) = out[i * stride..].split_at_mut(stride);
                let (out_1, rest) = rest.split_at_mut(stride);
                let (out_2, out_3) = rest.split_at_mut(stride);
                let (out_0, out_1) = (&mut out_0[..n], &mut out_1[..n]);
                let (out_2, out_3) = (&mut out_2[..n], &mut out_3[..n]);
                for j in 0..n {
                    let z = [rows[0][j], rows[1][j], rows[2][j], rows[3][j]];
                    let mut sums = [out_0[j], out_1[j], out_2[j], out_3[j]];
                    for c in 0..TOGETHER {
                        for r in 0..TOGETHER {
                            sums[c] = own[c][r].mul_add(z[r], sums[c]);
                        }
                    }
                    [out_0[j], out_1[j], out_2[j], out_3[j]] = sums;
                }
            }
        }
    }
}

kernel! {
    /// Writes `(x − mean) inverse` of each row, after a one if there is an intercept. Padding is kept.
    pub(super) fn standardise(
        x: &[f64],
        means: &[f64],
        inverses: &[f64],
        intercept: bool,
        stride: usize,
        z: &mut [f64],
    ) {
        let k = means.len();
        let first = usize::from(intercept);
        for (row, z) in z.chunks_exact_mut(stride.max(1)).enumerate() {
            if intercept {
                z[0] = 1.0;
            }
            let (x, z) = (&x[row * k..][..k], &mut z[first..][..k]);
            for j in 0..k {
                z[j] = (x[j] - means[j]) * inverses[j];
            }
        }
    }
}

kernel! {
    /// Adds `Σ u_r z_r` over the rows of a block.
    pub(super) fn add_rows(z: &[f64], stride: usize, u: &[f64], out: &mut [f64]) {
        let q = out.len();
        if q == 0 {
            return;
        }
        for (z, u) in z.chunks_exact(TOGETHER * stride).zip(u.as_chunks::<TOGETHER>().0) {
            let mut rows = [z; TOGETHER];
            for r in 0..TOGETHER {
                rows[r] = &z[r * stride..][..q];
            }
            for j in 0..q {
                let mut sum = out[j];
                for r in 0..TOGETHER {
                    sum = u[r].mul_add(rows[r][j], sum);
                }
                out[j] = sum;
            }
        }
    }
}

kernel! {
    /// Adds `s s^T`, packed.
    pub(super) fn add_outer(s: &[f64], out: &mut [f64]) {
        let mut at = 0;
        for (i, own) in s.iter().enumerate() {
            for (out, other) in out[at..].iter_mut().zip(&s[..=i]) {
                *out = own.mul_add(*other, *out);
            }
            at += i + 1;
        }
    }
}

/// Adds the first `q` rows and columns of [`add_gram`]'s matrix at these of a packed matrix.
pub(super) fn add_square(square: &[f64], q: usize, (row, column): (usize, usize), out: &mut [f64]) {
    for i in 0..q {
        let most = if row == column { i + 1 } else { q };
        for j in 0..most {
            let from = i.max(j) * stride(q) + i.min(j);
            out[whimbrel_core::linalg::packed_index(row + i, column + j)] += square[from];
        }
    }
}
