//! Sums over blocks of rows.

use whimbrel_core::kernel;

/// Rows of a block.
pub(super) const BLOCK: usize = 256;
/// Rows that are added together, with their sums in registers.
const TOGETHER: usize = 8;

kernel! {
    /// Adds `Σ w_r z_r z_r^T`, packed, over the rows of a block.
    pub(super) fn add_gram(z: &[f64], q: usize, w: &[f64], out: &mut [f64]) {
        if q == 0 {
            return;
        }
        for (z, w) in z.chunks_exact(TOGETHER * q).zip(w.chunks_exact(TOGETHER)) {
            let mut at = 0;
            for i in 0..q {
                let n = i + 1;
                let rows: [&[f64]; TOGETHER] = std::array::from_fn(|r| &z[r * q..][..n]);
                let own: [f64; TOGETHER] = std::array::from_fn(|r| w[r] * rows[r][i]);
                let out = &mut out[at..][..n];
                for j in 0..n {
                    let mut sum = out[j];
                    for r in 0..TOGETHER {
                        sum = own[r].mul_add(rows[r][j], sum);
                    }
                    out[j] = sum;
                }
                at += n;
            }
        }
    }
}

kernel! {
    /// Writes `(x − mean) inverse` of each row, after a one if there is an intercept.
    pub(super) fn standardise(
        x: &[f64],
        means: &[f64],
        inverses: &[f64],
        intercept: bool,
        z: &mut [f64],
    ) {
        let k = means.len();
        let first = usize::from(intercept);
        for (row, z) in z.chunks_exact_mut((k + first).max(1)).enumerate() {
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
    pub(super) fn add_rows(z: &[f64], q: usize, u: &[f64], out: &mut [f64]) {
        if q == 0 {
            return;
        }
        for (z, u) in z.chunks_exact(TOGETHER * q).zip(u.chunks_exact(TOGETHER)) {
            let rows: [&[f64]; TOGETHER] = std::array::from_fn(|r| &z[r * q..][..q]);
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

/// Adds a packed symmetric block at these rows and columns of a packed matrix.
pub(super) fn add_square(block: &[f64], q: usize, (row, column): (usize, usize), out: &mut [f64]) {
    for i in 0..q {
        let most = if row == column { i + 1 } else { q };
        for j in 0..most {
            let from = whimbrel_core::linalg::packed_index(i, j);
            out[whimbrel_core::linalg::packed_index(row + i, column + j)] += block[from];
        }
    }
}
