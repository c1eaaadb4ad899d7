//! The inner loops of the E-step, over blocks of tiles.
//!
//! Rows are vector lanes: one [`Lane`] is a number for each of eight rows, and every loop adds
//! lanes in a fixed order. So results depend neither on the instruction set nor on threads.
//!
//! Rows and whitened rows lie tile after tile, `y[t * columns + j]`; scores and responsibilities
//! component after component, `r[k * tiles + t]`.

use crate::lane::{LANES, Lane, flat_mut, one_lane_at_a_time};
use whimbrel_core::{kernel, math};

/// Rows of a triangular factor, or components, worked on together: their sums stay in registers.
pub(super) const GROUP: usize = 4;

/// Packs a lower-triangular `columns` x `columns` factor (lower triangle, row after row) for
/// [`triangular_products`]: groups of four rows, column after column, zeros above the diagonal.
pub(super) fn pack_panels(lower: &[f64], columns: usize, panels: &mut Vec<f64>) {
    for first in (0..columns).step_by(GROUP) {
        let row = |r: usize| if r < columns { &lower[r * (r + 1) / 2..][..=r] } else { &[] };
        let four: [&[f64]; GROUP] = std::array::from_fn(|r| row(first + r));
        for i in 0..(first + GROUP).min(columns) {
            panels.extend_from_slice(&four.map(|row| row.get(i).copied().unwrap_or(0.0)));
        }
    }
}

/// The length of what [`pack_panels`] appends.
pub(super) fn panels_len(columns: usize) -> usize {
    (0..columns).step_by(GROUP).map(|first| GROUP * (first + GROUP).min(columns)).sum()
}

kernel! {
    /// `W x` for a lower triangle `W` and eight vectors `x` at once, each sum in the order of the
    /// columns, as it would be alone.
    pub(super) fn triangular_products_of_eight(
        lower: &[f64],
        x: &[[f64; LANES]],
        out: &mut [[f64; LANES]],
    ) {
        let mut rest = lower;
        for (i, out) in out.iter_mut().enumerate() {
            let (row, next) = rest.split_at(i + 1);
            rest = next;
            let mut sums = [0.0; LANES];
            for (w, x) in row.iter().zip(x) {
                for (sum, x) in sums.iter_mut().zip(x) {
                    *sum += w * x;
                }
                one_lane_at_a_time();
            }
            *out = sums;
        }
    }
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
    /// Scores `ln pi_k + ln N(y; mu_k, Sigma)` of rows relative to the mixture's centre, under
    /// one covariance: each row is whitened once, and its squared distance to each whitened mean
    /// taken.
    pub(super) fn shared_scores(
        centred: &[Lane],
        columns: usize,
        panels: &[f64],
        whitened: &[f64],
        constants: &[f64],
        z: &mut [Lane],
        scores: &mut [Lane],
    ) {
        let (tiles, components) = (centred.len() / columns, constants.len());
        let z = &mut z[..columns.next_multiple_of(GROUP)];
        for t in 0..tiles {
            let y = &centred[t * columns..][..columns];
            let mut rest = panels;
            for (g, z) in z.as_chunks_mut::<GROUP>().0.iter_mut().enumerate() {
                let (panel, next) = rest.split_at(GROUP * ((g + 1) * GROUP).min(columns));
                rest = next;
                *z = triangular_products(y, panel, &[0.0; GROUP]);
            }
            let z = &z[..columns];
            let mut first = 0;
            while first < components {
                let (m, c) = (&whitened[first * columns..], &constants[first..]);
                let out = &mut scores[first * tiles + t..];
                first += match group_size(components - first) {
                    4 => distances::<4>(z, m, c, out, tiles),
                    2 => distances::<2>(z, m, c, out, tiles),
                    _ => distances::<1>(z, m, c, out, tiles),
                };
            }
        }
    }
}

kernel! {
    /// The same under one diagonal covariance per component, of rows as they are; `scales` are
    /// inverse deviations. Each tile is copied to `z` first: memory that might change keeps the
    /// compiler from mixing lanes, which costs more than the copy.
    pub(super) fn diagonal_scores(
        y: &[Lane],
        columns: usize,
        means: &[f64],
        scales: &[f64],
        constants: &[f64],
        z: &mut [Lane],
        scores: &mut [Lane],
    ) {
        let (tiles, components) = (y.len() / columns, constants.len());
        for t in 0..tiles {
            z[..columns].copy_from_slice(&y[t * columns..][..columns]);
            let y = &z[..columns];
            let mut first = 0;
            while first < components {
                let (m, w) = (&means[first * columns..], &scales[first * columns..]);
                let (c, out) = (&constants[first..], &mut scores[first * tiles + t..]);
                first += match group_size(components - first) {
                    4 => scaled_distances::<4>(y, m, w, c, out, tiles),
                    2 => scaled_distances::<2>(y, m, w, c, out, tiles),
                    _ => scaled_distances::<1>(y, m, w, c, out, tiles),
                };
            }
        }
    }
}

kernel! {
    /// The same under one full covariance per component, of rows relative to the mixture's
    /// centre. `offsets` are the whitened means, each padded to whole groups.
    pub(super) fn full_scores(
        centred: &[Lane],
        columns: usize,
        offsets: &[f64],
        panels: &[f64],
        constants: &[f64],
        scores: &mut [Lane],
    ) {
        let (tiles, components) = (centred.len() / columns, constants.len());
        let (size, padded) = (panels.len() / components, offsets.len() / components);
        for k in 0..components {
            let offset = &offsets[k * padded..][..padded];
            let panels = &panels[k * size..][..size];
            let scores = &mut scores[k * tiles..][..tiles];
            // A tile at a time: two at once make the compiler split the second into pieces.
            for (y, score) in centred.chunks_exact(columns).zip(scores) {
                *score = mahalanobis(y, panels, offset, constants[k]);
            }
        }
    }
}

kernel! {
    /// `out[t, j] = y[t, j] - centre[j]`.
    pub(super) fn centre_rows(y: &[Lane], centre: &[f64], out: &mut [Lane]) {
        let columns = centre.len();
        for (y, out) in y.chunks_exact(columns).zip(out.chunks_exact_mut(columns)) {
            for ((y, c), out) in y.iter().zip(centre).zip(out) {
                *out = *y - Lane::splat(*c);
                one_lane_at_a_time();
            }
        }
    }
}

/// One group of `W y - offset`, with `panel` the group's part of [`pack_panels`].
#[inline(always)]
fn triangular_products(y: &[Lane], panel: &[f64], offset: &[f64; GROUP]) -> [Lane; GROUP] {
    let mut sums = offset.map(|offset| Lane::splat(-offset));
    let panel = panel.as_chunks::<GROUP>().0;
    let (left, corner) = panel.split_at((panel.len() - 1) / GROUP * GROUP);
    for (w, y) in left.iter().zip(y) {
        for r in 0..GROUP {
            sums[r] = Lane::splat(w[r]).mul_add(*y, sums[r]);
        }
    }
    let y = &y[left.len()..];
    if let (Ok(corner), Some(y)) = (<&[[f64; GROUP]; GROUP]>::try_from(corner), y.first_chunk()) {
        let y: &[Lane; GROUP] = y;
        for c in 0..GROUP {
            for r in c..GROUP {
                sums[r] = Lane::splat(corner[c][r]).mul_add(y[c], sums[r]);
            }
        }
    } else {
        for (w, y) in corner.iter().zip(y) {
            for r in 0..GROUP {
                sums[r] = Lane::splat(w[r]).mul_add(*y, sums[r]);
            }
        }
    }
    sums
}

/// `constant - |W y - offset|^2 / 2`.
#[inline(always)]
fn mahalanobis(y: &[Lane], panels: &[f64], offset: &[f64], constant: f64) -> Lane {
    let mut rest = panels;
    let mut squares = Lane::ZERO;
    for (g, offset) in offset.as_chunks::<GROUP>().0.iter().enumerate() {
        let (panel, next) = rest.split_at(GROUP * ((g + 1) * GROUP).min(y.len()));
        rest = next;
        for z in triangular_products(y, panel, offset) {
            squares = z.mul_add(z, squares);
            one_lane_at_a_time();
        }
    }
    score(constant, squares)
}

/// `constant - squares / 2`.
#[inline(always)]
fn score(constant: f64, squares: Lane) -> Lane {
    Lane::splat(constant) - Lane::splat(0.5) * squares
}

#[inline(always)]
fn distances<const G: usize>(
    z: &[Lane],
    whitened: &[f64],
    constants: &[f64],
    scores: &mut [Lane],
    tiles: usize,
) -> usize {
    let m = rows_of::<G>(whitened, z.len());
    let mut sums = [Lane::ZERO; G];
    for (j, z) in z.iter().enumerate() {
        for r in 0..G {
            let difference = *z - Lane::splat(m[r][j]);
            sums[r] = difference.mul_add(difference, sums[r]);
            one_lane_at_a_time();
        }
    }
    for r in 0..G {
        scores[r * tiles] = score(constants[r], sums[r]);
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
    tiles: usize,
) -> usize {
    let (m, w) = (rows_of::<G>(means, y.len()), rows_of::<G>(scales, y.len()));
    let mut sums = [Lane::ZERO; G];
    for (j, y) in y.iter().enumerate() {
        for r in 0..G {
            let scaled = (*y - Lane::splat(m[r][j])) * Lane::splat(w[r][j]);
            sums[r] = scaled.mul_add(scaled, sums[r]);
            one_lane_at_a_time();
        }
    }
    for r in 0..G {
        scores[r * tiles] = score(constants[r], sums[r]);
    }
    G
}

/// The first rows of a matrix.
#[inline(always)]
fn rows_of<const G: usize>(matrix: &[f64], columns: usize) -> [&[f64]; G] {
    let mut rows = [matrix; G];
    for (r, row) in rows.iter_mut().enumerate() {
        *row = &matrix[r * columns..][..columns];
    }
    rows
}

kernel! {
    /// Turns each row's scores into responsibilities, by log-sum-exp, and notes its log-density.
    /// `totals` is as long as `log_density`.
    pub(super) fn responsibilities(
        scores: &mut [Lane],
        log_density: &mut [Lane],
        totals: &mut [Lane],
    ) {
        let tiles = log_density.len();
        for t in 0..tiles {
            let mut top = scores[t];
            for scores in scores.chunks_exact(tiles) {
                top = top.max(scores[t]);
            }
            for scores in scores.chunks_exact_mut(tiles) {
                scores[t] = scores[t] - top;
            }
            log_density[t] = top;
        }
        for score in flat_mut(scores) {
            *score = math::exp(*score);
        }
        for t in 0..tiles {
            let mut total = Lane::ZERO;
            for scores in scores.chunks_exact(tiles) {
                total += scores[t];
            }
            let share = total.reciprocal();
            for scores in scores.chunks_exact_mut(tiles) {
                scores[t] = scores[t] * share;
            }
            totals[t] = total;
        }
        for (log_density, total) in flat_mut(log_density).iter_mut().zip(flat_mut(totals)) {
            *log_density += math::ln(*total);
        }
    }
}

kernel! {
    /// `a -= b`.
    pub(super) fn subtract(a: &mut [Lane], b: &[Lane]) {
        for (a, b) in a.iter_mut().zip(b) {
            *a = *a - *b;
            one_lane_at_a_time();
        }
    }
}

kernel! {
    /// `sums[k] += sum_t a[k, t]`.
    pub(super) fn add_rows(a: &[Lane], tiles: usize, sums: &mut [Lane]) {
        for (a, sum) in a.chunks_exact(tiles).zip(sums) {
            for a in a {
                *sum += *a;
            }
        }
    }
}

kernel! {
    /// `sums[k, j] += sum_t r[k, t] y[t, j]`, in register tiles of two by four.
    pub(super) fn add_products(
        r: &[Lane],
        y: &[Lane],
        columns: usize,
        sums: &mut [Lane],
    ) {
        let tiles = y.len() / columns;
        let components = r.len() / tiles;
        for k in (0..components).step_by(2) {
            for j in (0..columns).step_by(GROUP) {
                let pair = [&r[k * tiles..], &r[(k + 1).min(components - 1) * tiles..]];
                let found = products(pair, j, columns, y);
                for (r, found) in found.iter().enumerate().take(components - k) {
                    for (c, found) in found.iter().enumerate().take(columns - j) {
                        sums[(k + r) * columns + j + c] += *found;
                    }
                }
            }
        }
    }
}

/// `sum_t a[r, t] y[t, j + .]` for rows of numbers per tile. Past the last column of `y` that column
/// stands in, so that there is one shape of loop; the caller leaves those sums out.
#[inline(always)]
fn products<const R: usize>(
    a: [&[Lane]; R],
    j: usize,
    columns: usize,
    y: &[Lane],
) -> [[Lane; GROUP]; R] {
    let js = clamped(j, columns);
    let tiles = y.len() / columns;
    let mut a = a;
    for a in &mut a {
        *a = &a[..tiles];
    }
    let mut sums = [[Lane::ZERO; GROUP]; R];
    for (t, y) in y.chunks_exact(columns).enumerate().take(tiles) {
        for r in 0..R {
            for c in 0..GROUP {
                sums[r][c] = a[r][t].mul_add(y[js[c]], sums[r][c]);
            }
        }
    }
    sums
}

#[inline(always)]
fn clamped(first: usize, count: usize) -> [usize; GROUP] {
    [first, (first + 1).min(count - 1), (first + 2).min(count - 1), (first + 3).min(count - 1)]
}

kernel! {
    /// `out[t, j] = y[t, j]^2`.
    pub(super) fn squares(y: &[Lane], out: &mut [Lane]) {
        out.copy_from_slice(y);
        for x in flat_mut(out) {
            *x *= *x;
        }
    }
}

kernel! {
    /// First and second moments of rows with weights `r[t]`: `first[j] += sum_t r_t y[t, j]`, and
    /// the lower triangle of `second += sum_t r_t y_t y_t^T`. `work` is as long as `y`.
    pub(super) fn add_moments(
        r: &[Lane],
        y: &[Lane],
        columns: usize,
        work: &mut [Lane],
        first: &mut [Lane],
        second: &mut [Lane],
    ) {
        let tiles = r.len();
        for (t, (r, y)) in r.iter().zip(y.chunks_exact(columns)).enumerate() {
            for (j, (y, sum)) in y.iter().zip(first.iter_mut()).enumerate() {
                let weighted = *r * *y;
                work[j * tiles + t] = weighted;
                *sum += weighted;
                one_lane_at_a_time();
            }
        }
        // Two rows by four columns: 16 registers of AVX2, and as many sums as AVX-512 keeps going.
        for i in (0..columns).step_by(2) {
            let last = (i + 1).min(columns - 1);
            let pair = [&work[i * tiles..], &work[last * tiles..]];
            for j in (0..=last).step_by(GROUP) {
                let found = products(pair, j, columns, y);
                for (r, found) in found.iter().enumerate().take(columns - i) {
                    let row = i + r;
                    for (c, found) in found.iter().enumerate().take((row + 1).saturating_sub(j)) {
                        second[row * (row + 1) / 2 + j + c] += *found;
                    }
                }
            }
        }
    }
}
