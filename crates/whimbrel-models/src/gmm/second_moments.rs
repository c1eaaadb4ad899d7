//! Second moments of all components at once: `sum_n r_nk y_n y_n^T`, lower triangles.
//!
//! The triangle is cut into blocks of two rows by four columns. For each block the products `y_ni y_nj`
//! are formed once and weighted for every component: a matrix product with its sums in registers. Each
//! sum adds rows in order, so bits do not depend on the number of components processed together, which
//! may vary with the number of registers.

use super::kernels::GROUP;
use crate::lane::{LANES, Lane, one_lane_at_a_time};
use whimbrel_core::isa::{self, Isa};
use whimbrel_core::kernel;

/// Buffers for a block of rows, and the sums.
#[derive(Default)]
pub(super) struct SecondMoments {
    /// Rows one after the other, each padded with zeros to groups of four columns.
    rows: Vec<[f64; GROUP]>,
    /// Weights, row after row within a group of components.
    weights: Vec<f64>,
    /// Products of one block of the triangle, row after row.
    products: Vec<Lane>,
    /// A lane for each block of the triangle and each component.
    sums: Vec<Lane>,
}

impl SecondMoments {
    /// Sets the sums to zero.
    pub fn clear(&mut self, components: usize, columns: usize) {
        self.sums.clear();
        self.sums.resize(blocks(columns).count() * components, Lane::ZERO);
    }

    /// Adds a block of rows with weights `r[k * tiles + t]`.
    pub fn add(&mut self, r: &[Lane], y: &[Lane], columns: usize) {
        let rows = y.len() / columns * LANES;
        self.rows.resize(rows * columns.div_ceil(GROUP), [0.0; GROUP]);
        self.weights.resize(r.len() * LANES, 0.0);
        self.products.resize(rows, Lane::ZERO);
        transpose(y, columns, &mut self.rows);
        pack_weights(r, rows / LANES, &mut self.weights);
        add_blocks(&self.weights, &self.rows, columns, &mut self.products, &mut self.sums);
    }

    /// Writes the lower triangles, component after component.
    pub fn triangles(&self, columns: usize, out: &mut [f64]) {
        let size = columns * (columns + 1) / 2;
        let components = out.len() / size;
        for ((i, j), sums) in blocks(columns).zip(self.sums.chunks_exact(components)) {
            for (out, sum) in out.chunks_exact_mut(size).zip(sums) {
                for (row, four) in (i..columns).zip(sum.0.as_chunks::<GROUP>().0) {
                    let places = (row + 1).saturating_sub(j).min(GROUP);
                    out[row * (row + 1) / 2 + j..][..places].copy_from_slice(&four[..places]);
                }
            }
        }
    }
}

/// First row and first column of each block of the triangle.
#[inline(always)]
fn blocks(columns: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..columns).step_by(2).flat_map(|i| (0..=i).step_by(GROUP).map(move |j| (i, j)))
}

/// Number of the remaining components processed together: one accumulator of eight numbers each, plus two
/// operands, must fit the registers.
#[inline(always)]
fn group_size(left: usize) -> usize {
    let most = if isa::level() == Isa::V4 { 12 } else { 6 };
    match left.min(most) {
        1 => 1,
        even_or_odd => even_or_odd / 2 * 2,
    }
}

kernel! {
    fn transpose(y: &[Lane], columns: usize, rows: &mut [[f64; GROUP]]) {
        let width = columns.div_ceil(GROUP);
        for (tile, rows) in y.chunks_exact(columns).zip(rows.chunks_exact_mut(width * LANES)) {
            for (at, four) in tile.chunks(GROUP).enumerate() {
                if let Ok(four) = <&[Lane; GROUP]>::try_from(four) {
                    for (row, out) in rows.chunks_exact_mut(width).enumerate() {
                        out[at] = [four[0].0[row], four[1].0[row], four[2].0[row], four[3].0[row]];
                    }
                } else {
                    for (row, out) in rows.chunks_exact_mut(width).enumerate() {
                        let mut padded = [0.0; GROUP];
                        for (x, lane) in padded.iter_mut().zip(four) {
                            *x = lane.0[row];
                        }
                        out[at] = padded;
                    }
                }
            }
        }
    }
}

kernel! {
    fn pack_weights(r: &[Lane], tiles: usize, packed: &mut [f64]) {
        let (mut left, mut room) = (r, packed);
        while !left.is_empty() {
            let size = group_size(left.len() / tiles);
            let (group, others) = left.split_at(size * tiles);
            let (packed, free) = room.split_at_mut(size * tiles * LANES);
            (left, room) = (others, free);
            for (k, r) in group.chunks_exact(tiles).enumerate() {
                for (r, packed) in r.iter().zip(packed.chunks_exact_mut(size * LANES)) {
                    for (r, packed) in r.0.iter().zip(packed.chunks_exact_mut(size)) {
                        packed[k] = *r;
                    }
                }
            }
        }
    }
}

kernel! {
    fn add_blocks(
        weights: &[f64],
        rows: &[[f64; GROUP]],
        columns: usize,
        products: &mut [Lane],
        sums: &mut [Lane],
    ) {
        let width = columns.div_ceil(GROUP);
        let count = products.len();
        let components = weights.len() / count;
        let mut sums = sums;
        for i in (0..columns).step_by(2) {
            for j in 0..=i / GROUP {
                for (row, product) in rows.chunks_exact(width).zip(products.iter_mut()) {
                    let (a, b) = (row[i / GROUP][i % GROUP], row[i / GROUP][i % GROUP + 1]);
                    let y = row[j];
                    *product = Lane([
                        a * y[0], a * y[1], a * y[2], a * y[3],
                        b * y[0], b * y[1], b * y[2], b * y[3],
                    ]);
                    one_lane_at_a_time();
                }
                let (mut left, next) = sums.split_at_mut(components);
                sums = next;
                let mut weights = weights;
                while !left.is_empty() {
                    let size = group_size(left.len());
                    let (own, others) = weights.split_at(size * count);
                    let (found, behind) = left.split_at_mut(size);
                    (weights, left) = (others, behind);
                    match size {
                        12 => weigh::<12>(own, products, found),
                        10 => weigh::<10>(own, products, found),
                        8 => weigh::<8>(own, products, found),
                        6 => weigh::<6>(own, products, found),
                        4 => weigh::<4>(own, products, found),
                        2 => weigh::<2>(own, products, found),
                        _ => weigh::<1>(own, products, found),
                    }
                }
            }
        }
    }
}

/// `sums[k] += sum_n weights[n, k] products[n]`.
#[inline(always)]
fn weigh<const G: usize>(weights: &[f64], products: &[Lane], sums: &mut [Lane]) {
    let mut found = [Lane::ZERO; G];
    for (weights, product) in weights.as_chunks::<G>().0.iter().zip(products) {
        let product = *product;
        for k in 0..G {
            found[k] = Lane::splat(weights[k]).mul_add(product, found[k]);
        }
    }
    for (sum, found) in sums.iter_mut().zip(found) {
        *sum += found;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whole numbers, whose sums are exact in any order: every shape must give the plain sums.
    #[test]
    fn second_moments_are_those_of_the_rows() {
        for (columns, components) in [(1, 1), (2, 3), (3, 2), (5, 7), (8, 13), (20, 10), (21, 25)] {
            for tiles in [1, 3, 8] {
                let value = |n: usize, j: usize| ((n * 7 + j * 5 + n * j) % 11) as f64 - 5.0;
                let weight = |n: usize, k: usize| ((n * 3 + k * 2 + n * k) % 7) as f64;
                let lane = |t: usize, of: &dyn Fn(usize) -> f64| {
                    Lane(std::array::from_fn(|l| of(t * LANES + l)))
                };
                let mut y = Vec::new();
                for t in 0..tiles {
                    y.extend((0..columns).map(|j| lane(t, &|n| value(n, j))));
                }
                let mut r = Vec::new();
                for k in 0..components {
                    r.extend((0..tiles).map(|t| lane(t, &|n| weight(n, k))));
                }
                let mut moments = SecondMoments::default();
                moments.clear(components, columns);
                moments.add(&r, &y, columns);
                moments.add(&r, &y, columns);
                let size = columns * (columns + 1) / 2;
                let mut found = vec![f64::NAN; components * size];
                moments.triangles(columns, &mut found);
                let mut expected = Vec::new();
                for k in 0..components {
                    for (i, j) in (0..columns).flat_map(|i| (0..=i).map(move |j| (i, j))) {
                        let each =
                            (0..tiles * LANES).map(|n| weight(n, k) * value(n, i) * value(n, j));
                        expected.push(2.0 * each.sum::<f64>());
                    }
                }
                assert_eq!(found, expected, "{columns} columns, {components}, {tiles} tiles");
            }
        }
    }
}
