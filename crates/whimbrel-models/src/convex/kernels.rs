//! Loops over blocks of rows: products with a vector, weighted sums of rows, outer products, and
//! the losses' terms.
//!
//! Every sum has a fixed order that does not depend on the instruction-set level: a product adds
//! its columns in eight lanes, a weighted sum adds its rows one after the other.

use crate::lane::{LANES, Lane, one_lane_at_a_time};
use whimbrel_core::{kernel, math};

/// Rows handled at once: the terms of a loss are vectorised over them, and 32 rows of about 100
/// columns are still in the first cache when their weighted sum follows their products.
pub(super) const BLOCK: usize = 32;

/// Writes a vector into lanes, zeros after its end.
pub(super) fn pad(lanes: &mut Vec<Lane>, x: &[f64]) {
    lanes.clear();
    let (whole, rest) = x.as_chunks::<LANES>();
    lanes.extend(whole.iter().map(|chunk| Lane(*chunk)));
    if !rest.is_empty() {
        let mut last = Lane::ZERO;
        last.0[..rest.len()].copy_from_slice(rest);
        lanes.push(last);
    }
}

#[inline(always)]
fn row(lanes: &[Lane], per_row: usize, i: u32) -> &[Lane] {
    &lanes[i as usize * per_row..][..per_row]
}

/// `z[r] = <x_i, w>` for the `r`-th of at most [`BLOCK`] chosen rows `i`.
#[inline]
pub(super) fn dense_products(
    lanes: &[Lane],
    per_row: usize,
    chosen: &[u32],
    w: &[Lane],
    z: &mut [f64],
) {
    // In two kernels: where the compiler sees the sum over a lane, it spreads the products over
    // rows instead of columns.
    let mut sums = [Lane::ZERO; BLOCK];
    dense_lane_products(lanes, per_row, chosen, w, &mut sums);
    lane_sums(&sums, z);
}

kernel! {
    /// Products of the chosen rows and `w`, not yet summed over the eight lanes.
    fn dense_lane_products(
        lanes: &[Lane],
        per_row: usize,
        chosen: &[u32],
        w: &[Lane],
        sums: &mut [Lane; BLOCK],
    ) {
        assert!(chosen.len() <= BLOCK && w.len() == per_row, "lengths differ");
        // Four rows at a time share the loads of w and keep four sums going.
        let (fours, rest) = chosen.as_chunks::<4>();
        let (sum_fours, sum_rest) = sums.split_at_mut(4 * fours.len());
        for (four, sums) in fours.iter().zip(sum_fours.as_chunks_mut::<4>().0) {
            let [a, b, c, d] = four.map(|i| row(lanes, per_row, i));
            let mut s = [Lane::ZERO; 4];
            for ((((w, a), b), c), d) in w.iter().zip(a).zip(b).zip(c).zip(d) {
                s[0].add_product(a, w);
                s[1].add_product(b, w);
                s[2].add_product(c, w);
                s[3].add_product(d, w);
                one_lane_at_a_time();
            }
            *sums = s;
        }
        for (i, sum) in rest.iter().zip(sum_rest) {
            let mut s = Lane::ZERO;
            for (w, a) in w.iter().zip(row(lanes, per_row, *i)) {
                s.add_product(a, w);
                one_lane_at_a_time();
            }
            *sum = s;
        }
    }
}

kernel! {
    fn lane_sums(lanes: &[Lane; BLOCK], z: &mut [f64]) {
        for (z, lane) in z.iter_mut().zip(lanes) {
            *z = lane.sum();
        }
    }
}

kernel! {
    /// `out += sum_r c[r] x_i` over the chosen rows `i`, one row after the other.
    pub(super) fn dense_combine(
        lanes: &[Lane],
        per_row: usize,
        chosen: &[u32],
        c: &[f64],
        out: &mut [Lane],
    ) {
        assert!(chosen.len() == c.len() && out.len() == per_row, "lengths differ");
        // Four rows at a time: the output is loaded and stored once for them.
        let ((fours, rest), (c_fours, c_rest)) = (chosen.as_chunks::<4>(), c.as_chunks::<4>());
        for (four, k) in fours.iter().zip(c_fours) {
            let [a, b, c, d] = four.map(|i| row(lanes, per_row, i));
            for ((((out, a), b), c), d) in out.iter_mut().zip(a).zip(b).zip(c).zip(d) {
                let mut sum = *out;
                sum.add_scaled(k[0], a);
                sum.add_scaled(k[1], b);
                sum.add_scaled(k[2], c);
                sum.add_scaled(k[3], d);
                *out = sum;
                one_lane_at_a_time();
            }
        }
        for (i, k) in rest.iter().zip(c_rest) {
            for (out, a) in out.iter_mut().zip(row(lanes, per_row, *i)) {
                out.add_scaled(*k, a);
                one_lane_at_a_time();
            }
        }
    }
}

kernel! {
    /// `out += sum_r a[r] x_r x_r^T` over the rows of one block of at most [`BLOCK`], as rows of
    /// lanes; only lanes that meet the lower triangle are written.
    pub(super) fn dense_outer(block: &[Lane], per_row: usize, a: &[f64], out: &mut [Lane]) {
        assert!(block.len() == a.len() * per_row && a.len() <= BLOCK, "lengths differ");
        let mut scaled = [[0.0; 4]; BLOCK];
        for first in (0..per_row * LANES).step_by(4) {
            let (lane, at) = (first / LANES, first % LANES);
            for ((scaled, x), a) in scaled.iter_mut().zip(block.chunks_exact(per_row)).zip(a) {
                for (scaled, x) in scaled.iter_mut().zip(&x[lane].0[at..at + 4]) {
                    *scaled = a * x;
                }
                one_lane_at_a_time();
            }
            let out = &mut out[first * per_row..][..4 * per_row];
            let mut j = 0;
            while j + 2 <= lane + 1 {
                outer_tile::<2>(block, per_row, &scaled[..a.len()], j, out);
                j += 2;
            }
            if j <= lane {
                outer_tile::<1>(block, per_row, &scaled[..a.len()], j, out);
            }
        }
    }
}

/// Four rows by `W` lanes of the sum of outer products, kept in registers over the block.
#[inline(always)]
fn outer_tile<const W: usize>(
    block: &[Lane],
    per_row: usize,
    scaled: &[[f64; 4]],
    j: usize,
    out: &mut [Lane],
) {
    let mut tile = [[Lane::ZERO; W]; 4];
    for (x, s) in block.chunks_exact(per_row).zip(scaled) {
        let x = &x[j..j + W];
        for k in 0..4 {
            for l in 0..W {
                tile[k][l].add_scaled(s[k], &x[l]);
            }
        }
        one_lane_at_a_time();
    }
    for (row, tile) in out.chunks_exact_mut(per_row).zip(&tile) {
        for (out, tile) in row[j..j + W].iter_mut().zip(tile) {
            out.add_scaled(1.0, tile);
        }
    }
}

kernel! {
    /// Products `z` become residuals `z - y`; `losses` becomes half their squares.
    pub(super) fn squared_terms(
        z: &mut [f64; BLOCK],
        y: &[f64; BLOCK],
        losses: &mut [f64; BLOCK],
    ) {
        for ((z, y), loss) in z.iter_mut().zip(y).zip(losses) {
            let residual = *z - y;
            *z = residual;
            *loss = 0.5 * residual * residual;
        }
    }
}

kernel! {
    /// With `m = y z`: products `z` become `-y / (1 + e^m)`, the derivative of the loss; `losses`
    /// becomes `ln(1 + e^-m)`.
    pub(super) fn logistic_terms(
        z: &mut [f64; BLOCK],
        y: &[f64; BLOCK],
        losses: &mut [f64; BLOCK],
    ) {
        for ((z, y), loss) in z.iter_mut().zip(y).zip(losses) {
            let m = *z * y;
            // With e = e^-|m| nothing overflows: ln(1 + e^-m) = max(-m, 0) + ln(1 + e), and
            // 1 / (1 + e^m) is e / (1 + e) where m >= 0 and 1 / (1 + e) elsewhere.
            let e = math::exp(-m.abs());
            let u = 1.0 + e;
            let lost = e - (u - 1.0);
            let inverse = 1.0 / u;
            let over = if m < 0.0 { -m } else { 0.0 };
            *loss = over + (math::ln(u) + lost * inverse);
            let share = if m < 0.0 { inverse } else { e * inverse };
            *z = -y * share;
        }
    }
}

kernel! {
    /// Products `z` become `s (1 - s)` with `s = 1 / (1 + e^-z)`: the curvature of the loss.
    pub(super) fn logistic_curvatures(z: &mut [f64]) {
        for z in z {
            let e = math::exp(-z.abs());
            let inverse = 1.0 / (1.0 + e);
            *z = e * inverse * inverse;
        }
    }
}

kernel! {
    /// Every `z` becomes `1 / (1 + e^-z)`.
    pub(super) fn sigmoid(z: &mut [f64]) {
        for z in z {
            let e = math::exp(-z.abs());
            let inverse = 1.0 / (1.0 + e);
            *z = if *z < 0.0 { e * inverse } else { inverse };
        }
    }
}

kernel! {
    /// The sum in eight lanes.
    pub(super) fn sum(x: &[f64]) -> f64 {
        let (chunks, rest) = x.as_chunks::<LANES>();
        let mut sums = Lane::ZERO;
        for chunk in chunks {
            for (sum, x) in sums.0.iter_mut().zip(chunk) {
                *sum += x;
            }
        }
        for (sum, x) in sums.0.iter_mut().zip(rest) {
            *sum += x;
        }
        sums.sum()
    }
}
