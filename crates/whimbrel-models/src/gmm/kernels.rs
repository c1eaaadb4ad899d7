//! The inner loops of the E-step, over blocks of tiles.
//!
//! Rows are vector lanes: one [`Lane`] is a number for each of eight rows, and every loop adds
//! lanes in a fixed order. So results depend neither on the instruction set nor on threads.

use super::lane::Lane;
use whimbrel_core::kernel;

/// Rows of a triangular factor, or components, worked on together: their sums stay in registers.
pub(super) const GROUP: usize = 4;

/// Packs a lower-triangular `columns` x `columns` factor (lower triangle, row after row) for
/// [`triangular_product`]: groups of four rows, column after column, zeros above the diagonal.
pub(super) fn pack_panels(lower: &[f64], columns: usize, panels: &mut Vec<f64>) {
    for first in (0..columns).step_by(GROUP) {
        for i in 0..(first + GROUP).min(columns) {
            for row in first..first + GROUP {
                let inside = row < columns && i <= row;
                panels.push(if inside { lower[row * (row + 1) / 2 + i] } else { 0.0 });
            }
        }
    }
}

/// The length of what [`pack_panels`] appends.
pub(super) fn panels_len(columns: usize) -> usize {
    (0..columns).step_by(GROUP).map(|first| GROUP * (first + GROUP).min(columns)).sum()
}

/// Packs a `components` x `columns` matrix so that [`for_groups`] reads it in order: groups of
/// four components (then two, then one), column after column.
pub(super) fn pack_components(matrix: &[f64], components: usize, columns: usize) -> Vec<f64> {
    let mut packed = Vec::with_capacity(matrix.len());
    let mut first = 0;
    while first < components {
        let size = group_size(components - first);
        for j in 0..columns {
            packed.extend((first..first + size).map(|k| matrix[k * columns + j]));
        }
        first += size;
    }
    packed
}

#[inline(always)]
fn group_size(left: usize) -> usize {
    match left {
        4.. => 4,
        2 | 3 => 2,
        _ => 1,
    }
}

kernel! {
    /// Scores `ln pi_k + ln N(y; mu_k, Sigma)` under one covariance: the row is whitened once,
    /// and its squared distance to each whitened mean taken. `work` holds two rows.
    pub(super) fn shared_scores(
        tiles: &[Lane],
        centre: &[f64],
        panels: &[f64],
        whitened: &[f64],
        constants: &[f64],
        work: &mut [Lane],
        scores: &mut [Lane],
    ) {
        let (columns, components) = (centre.len(), constants.len());
        let (centred, z) = work.split_at_mut(columns);
        for (tile, scores) in tiles.chunks_exact(columns).zip(scores.chunks_exact_mut(components)) {
            subtract(tile, centre, centred);
            triangular_product(panels, centred, z);
            let z = &z[..columns];
            let mut first = 0;
            while first < components {
                let rest = &whitened[first * columns..];
                first += match group_size(components - first) {
                    4 => distances::<4>(z, rest, &constants[first..], &mut scores[first..]),
                    2 => distances::<2>(z, rest, &constants[first..], &mut scores[first..]),
                    _ => distances::<1>(z, rest, &constants[first..], &mut scores[first..]),
                };
            }
        }
    }
}

kernel! {
    /// The same under one diagonal covariance per component; `scales` are inverse deviations.
    pub(super) fn diagonal_scores(
        tiles: &[Lane],
        columns: usize,
        means: &[f64],
        scales: &[f64],
        constants: &[f64],
        scores: &mut [Lane],
    ) {
        let components = constants.len();
        for (tile, scores) in tiles.chunks_exact(columns).zip(scores.chunks_exact_mut(components)) {
            let mut first = 0;
            while first < components {
                let (m, w) = (&means[first * columns..], &scales[first * columns..]);
                let (c, out) = (&constants[first..], &mut scores[first..]);
                first += match group_size(components - first) {
                    4 => scaled_distances::<4>(tile, m, w, c, out),
                    2 => scaled_distances::<2>(tile, m, w, c, out),
                    _ => scaled_distances::<1>(tile, m, w, c, out),
                };
            }
        }
    }
}

kernel! {
    /// The same under one full covariance per component.
    pub(super) fn full_scores(
        tiles: &[Lane],
        columns: usize,
        means: &[f64],
        panels: &[f64],
        constants: &[f64],
        work: &mut [Lane],
        scores: &mut [Lane],
    ) {
        let components = constants.len();
        let size = panels.len() / components;
        let (centred, z) = work.split_at_mut(columns);
        for k in 0..components {
            let mean = &means[k * columns..][..columns];
            let panels = &panels[k * size..][..size];
            for (t, tile) in tiles.chunks_exact(columns).enumerate() {
                subtract(tile, mean, centred);
                triangular_product(panels, centred, z);
                let mut squares = Lane::ZERO;
                for z in &z[..columns] {
                    squares += *z * *z;
                }
                scores[t * components + k] = score(constants[k], squares);
            }
        }
    }
}

/// `constant - squares / 2`.
#[inline(always)]
fn score(constant: f64, squares: Lane) -> Lane {
    Lane::splat(constant) - Lane::splat(0.5) * squares
}

#[inline(always)]
fn subtract(tile: &[Lane], centre: &[f64], out: &mut [Lane]) {
    for ((y, c), out) in tile.iter().zip(centre).zip(out) {
        *out = *y - Lane::splat(*c);
    }
}

/// `z = W y` with `W` from [`pack_panels`]; `z` is as long as `y`, rounded up to whole groups.
#[inline(always)]
fn triangular_product(panels: &[f64], y: &[Lane], z: &mut [Lane]) {
    let mut rest = panels;
    for (g, z) in z.as_chunks_mut::<GROUP>().0.iter_mut().enumerate() {
        let width = ((g + 1) * GROUP).min(y.len());
        let (panel, next) = rest.split_at(width * GROUP);
        rest = next;
        let mut sums = [Lane::ZERO; GROUP];
        for (w, y) in panel.as_chunks::<GROUP>().0.iter().zip(y) {
            for r in 0..GROUP {
                sums[r] += Lane::splat(w[r]) * *y;
            }
        }
        *z = sums;
    }
}

#[inline(always)]
fn distances<const G: usize>(
    z: &[Lane],
    whitened: &[f64],
    constants: &[f64],
    scores: &mut [Lane],
) -> usize {
    let mut sums = [Lane::ZERO; G];
    for (z, m) in z.iter().zip(whitened.as_chunks::<G>().0) {
        for r in 0..G {
            let difference = *z - Lane::splat(m[r]);
            sums[r] += difference * difference;
        }
    }
    for r in 0..G {
        scores[r] = score(constants[r], sums[r]);
    }
    G
}

#[inline(always)]
fn scaled_distances<const G: usize>(
    y: &[Lane],
    means: &[f64],
    scales: &[f64],
    constants: &[f64],
    scores: &mut [Lane],
) -> usize {
    let mut sums = [Lane::ZERO; G];
    for ((y, m), w) in y.iter().zip(means.as_chunks::<G>().0).zip(scales.as_chunks::<G>().0) {
        for r in 0..G {
            let scaled = (*y - Lane::splat(m[r])) * Lane::splat(w[r]);
            sums[r] += scaled * scaled;
        }
    }
    for r in 0..G {
        scores[r] = score(constants[r], sums[r]);
    }
    G
}

kernel! {
    /// Turns each row's scores into responsibilities, by log-sum-exp, and notes its log-density.
    pub(super) fn responsibilities(scores: &mut [Lane], components: usize, log_density: &mut [Lane]) {
        for (scores, out) in scores.chunks_exact_mut(components).zip(log_density) {
            let mut top = scores[0];
            for score in &scores[1..] {
                top = top.max(*score);
            }
            let mut total = Lane::ZERO;
            for score in scores.iter_mut() {
                *score = (*score - top).exp();
                total += *score;
            }
            let share = total.reciprocal();
            for score in scores.iter_mut() {
                *score = *score * share;
            }
            *out = top + total.ln();
        }
    }
}

kernel! {
    /// `sums[k] += sum_t a[t, k]` for tiles of `columns` lanes.
    pub(super) fn add_columns(a: &[Lane], columns: usize, sums: &mut [Lane]) {
        for tile in a.chunks_exact(columns) {
            for (sum, a) in sums.iter_mut().zip(tile) {
                *sum += *a;
            }
        }
    }
}

kernel! {
    /// `sums[k, j] += sum_t a[t, k] b[t, j]`, in register tiles of two by four.
    pub(super) fn add_products(
        a: &[Lane],
        a_columns: usize,
        b: &[Lane],
        b_columns: usize,
        sums: &mut [Lane],
    ) {
        for k in (0..a_columns).step_by(2) {
            for j in (0..b_columns).step_by(GROUP) {
                let tile = products::<2>(a, a_columns, k, b, b_columns, j);
                for r in 0..(a_columns - k).min(2) {
                    for c in 0..(b_columns - j).min(GROUP) {
                        sums[(k + r) * b_columns + j + c] += tile[r][c];
                    }
                }
            }
        }
    }
}

/// `sum_t a[t, k + r] b[t, j + c]` for `R` by four columns. Past an edge the last column stands in,
/// so that there is one shape of loop; the caller leaves those sums out.
#[inline(always)]
fn products<const R: usize>(
    a: &[Lane],
    a_columns: usize,
    k: usize,
    b: &[Lane],
    b_columns: usize,
    j: usize,
) -> [[Lane; GROUP]; R] {
    let (mut ks, mut js) = ([0; R], [0; GROUP]);
    for r in 0..R {
        ks[r] = (k + r).min(a_columns - 1);
    }
    for c in 0..GROUP {
        js[c] = (j + c).min(b_columns - 1);
    }
    let mut sums = [[Lane::ZERO; GROUP]; R];
    for (a, b) in a.chunks_exact(a_columns).zip(b.chunks_exact(b_columns)) {
        for r in 0..R {
            for c in 0..GROUP {
                sums[r][c] += a[ks[r]] * b[js[c]];
            }
        }
    }
    sums
}

kernel! {
    /// `out[t, j] = y[t, j]^2`.
    pub(super) fn squares(y: &[Lane], out: &mut [Lane]) {
        for (out, y) in out.iter_mut().zip(y) {
            *out = *y * *y;
        }
    }
}

kernel! {
    /// First and second moments of one component: `first[j] += sum_t r_t y[t, j]`, and the lower
    /// triangle of `second += sum_t r_t y_t y_t^T`, where `r_t` is column `k` of
    /// `responsibilities`. `work` is at least as long as `y`.
    pub(super) fn add_component_moments(
        responsibilities: &[Lane],
        components: usize,
        k: usize,
        y: &[Lane],
        columns: usize,
        work: &mut [Lane],
        first: &mut [Lane],
        second: &mut [Lane],
    ) {
        let weighted = &mut work[..y.len()];
        for ((r, y), u) in responsibilities
            .chunks_exact(components)
            .zip(y.chunks_exact(columns))
            .zip(weighted.chunks_exact_mut(columns))
        {
            for ((u, y), sum) in u.iter_mut().zip(y).zip(first.iter_mut()) {
                *u = r[k] * *y;
                *sum += *u;
            }
        }
        for i in (0..columns).step_by(GROUP) {
            for j in (0..=i).step_by(GROUP) {
                let tile = products::<GROUP>(weighted, columns, i, y, columns, j);
                for r in 0..(columns - i).min(GROUP) {
                    let row = i + r;
                    for c in 0..(row + 1 - j).min(GROUP) {
                        second[row * (row + 1) / 2 + j + c] += tile[r][c];
                    }
                }
            }
        }
    }
}
