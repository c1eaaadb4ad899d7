//! Microaggregation (Domingo-Ferrer and Mateo-Sanz 2002): groups of neighbouring rows that sums keep
//! whole, and [surrogates] for the rows of a group.
//!
//! Rows are divided along their principal axis where the squared distances within both parts are
//! least, until a part has fewer than twice the smallest group. A part keeps at least a quarter of the
//! rows, so that the depth is logarithmic.

use crate::kmeans::distance2;
use std::collections::BTreeMap;
use whimbrel_core::{Result, linalg, vector};

/// Steps of the power iteration: the axis need not be accurate.
const AXIS_STEPS: usize = 8;
/// The axes of a group are rounded to this share of the mean spread within groups.
const ROUNDING: f64 = 0.25;
/// The ridge of the mean covariance within groups, relative to its mean variance: columns may depend on
/// each other.
const RIDGE: f64 = 1e-9;

/// Groups of rows; each row is one if the smallest group is one row.
pub struct Groups {
    width: usize,
    /// `(rows, Σ x, Σ x²)` of all rows.
    totals: Vec<f64>,
    means: Vec<f64>,
    /// Rows and squared distances to the mean, by group.
    sizes: Vec<(f64, f64)>,
}

impl Groups {
    /// Groups of at least `rows_min` of the rows, or one of all rows if there are fewer.
    pub fn new(values: Vec<f64>, width: usize, rows_min: usize) -> Self {
        let rows = values.len() / width;
        let mut totals = vec![0.0; 1 + 2 * width];
        let (count, rest) = totals.split_at_mut(1);
        let (sums, squares) = rest.split_at_mut(width);
        count[0] = rows as f64;
        for row in values.chunks_exact(width) {
            vector::axpy(sums, 1.0, row);
            squares.iter_mut().zip(row).for_each(|(square, x)| *square += x * x);
        }
        if rows_min <= 1 {
            return Self { width, totals, means: values, sizes: vec![(1.0, 0.0); rows] };
        }
        let (mut means, mut sizes) = (Vec::new(), Vec::new());
        for own in divided(&values, width, rows_min) {
            let row = |at: &usize| &values[at * width..][..width];
            let mean = mean(own.iter().map(row), width);
            let within = own.iter().map(|at| distance2(row(at), &mean)).sum();
            sizes.push((own.len() as f64, within));
            means.extend(mean);
        }
        Self { width, totals, means, sizes }
    }

    /// `(rows, Σ x, Σ x²)` of all rows.
    pub fn totals(&self) -> &[f64] {
        &self.totals
    }

    /// The mean of each group, its rows and their squared distances to the mean.
    pub fn each(&self) -> impl Iterator<Item = (&[f64], (f64, f64))> {
        self.means.chunks_exact(self.width).zip(self.sizes.iter().copied())
    }
}

/// The rows of each group, of at least `rows_min` rows, or of all if there are fewer.
fn divided(values: &[f64], width: usize, rows_min: usize) -> Vec<Vec<usize>> {
    let row = |at: &usize| &values[at * width..][..width];
    let mut groups = Vec::new();
    let mut left = vec![(0..values.len() / width).collect::<Vec<usize>>()];
    while let Some(mut own) = left.pop() {
        if own.len() < 2 * rows_min {
            groups.push(own);
            continue;
        }
        let mean = mean(own.iter().map(row), width);
        let at = divide(&mut own, &row, &mean, rows_min);
        left.push(own.split_off(at));
        left.push(own);
    }
    groups
}

/// Replaces the rows of each group by as many surrogates with the same mean and, up to rounding, the same
/// covariance. Sums over surrogates, however they are weighted, are functions of the groups' sizes, means
/// and rounded covariances, and of the second moments of all rows.
///
/// In the units of the mean covariance within groups, a group's rows are its mean plus multiples of its
/// principal axes. Surrogates have the axes, rounded, and for the multiples the waves of a path.
pub fn surrogates(values: &mut [f64], width: usize, rows_min: usize) -> Result<()> {
    let rows = values.len() / width.max(1);
    if rows_min < 2 || rows == 0 {
        return Ok(());
    }
    let spreads = spreads(values, width);
    let scaled = values.iter().zip(spreads.iter().cycle()).map(|(x, spread)| x / spread).collect();
    let scaled: Vec<f64> = scaled;
    let groups = divided(&scaled, width, rows_min);
    let mut centred = scaled;
    let mut within = vec![0.0; width * width];
    for own in &groups {
        let mean = mean(own.iter().map(|at| &centred[at * width..][..width]), width);
        for at in own {
            let x = &mut centred[at * width..][..width];
            vector::axpy(x, -1.0, &mean);
            (0..width).for_each(|i| {
                vector::axpy(&mut within[i * width..][..=i], x[i] / rows as f64, &x[..=i]);
            });
        }
    }
    let variance = (0..width).map(|i| within[i * width + i]).sum::<f64>() / width as f64;
    // Groups of equal rows stay as they are.
    let ridge = if variance > 0.0 { RIDGE * variance } else { 1.0 };
    (0..width).for_each(|i| within[i * width + i] += ridge);
    linalg::cholesky(&mut within, width)?;
    let mut bases = BTreeMap::new();
    for own in &groups {
        let offsets: Vec<f64> =
            own.iter().flat_map(|at| &centred[at * width..][..width]).copied().collect();
        let axes = axes(offsets, width, &within)?;
        let basis = match bases.entry(own.len()) {
            std::collections::btree_map::Entry::Occupied(found) => found.into_mut(),
            std::collections::btree_map::Entry::Vacant(place) => place.insert(waves(own.len())?),
        };
        let mean = mean(own.iter().map(|at| &values[at * width..][..width]), width);
        for (place, at) in own.iter().enumerate() {
            let x = &mut values[at * width..][..width];
            x.copy_from_slice(&mean);
            for (axis, wave) in axes.chunks_exact(width).zip(basis.chunks_exact(own.len())) {
                let terms = x.iter_mut().zip(axis).zip(&spreads);
                terms.for_each(|((x, axis), spread)| *x += wave[place] * axis * spread);
            }
        }
    }
    Ok(())
}

/// Standard deviations of the columns, 1 for constants.
fn spreads(values: &[f64], width: usize) -> Vec<f64> {
    let mean = mean(values.chunks_exact(width), width);
    let mut squares = vec![0.0; width];
    for row in values.chunks_exact(width) {
        let terms = squares.iter_mut().zip(row).zip(&mean);
        terms.for_each(|((square, x), mean)| *square += (x - mean) * (x - mean));
    }
    let rows = (values.len() / width) as f64;
    squares
        .into_iter()
        .map(|square| (square / rows).sqrt())
        .map(|s| if s > 0.0 { s } else { 1.0 })
        .collect()
}

/// The principal axes of rows around their mean, each as long as the root of its sum of squares, rounded
/// in the units of the Cholesky factor `units`.
fn axes(mut offsets: Vec<f64>, width: usize, units: &[f64]) -> Result<Vec<f64>> {
    let rows = offsets.len() / width;
    offsets.chunks_exact_mut(width).for_each(|x| linalg::solve_lower(units, width, x));
    let row = |at: usize| &offsets[at * width..][..width];
    let products = (0..rows * rows).map(|at| vector::dot(row(at / rows), row(at % rows)));
    let eigen = linalg::symmetric_eigen(&products.collect::<Vec<f64>>(), rows)?;
    let unit = ROUNDING * (rows as f64).sqrt();
    let mut axes = Vec::new();
    for vector in eigen.vectors.chunks_exact(rows).rev().take(width.min(rows - 1)) {
        let mut axis = vec![0.0; width];
        (0..rows).for_each(|at| vector::axpy(&mut axis, vector[at], row(at)));
        let mut rounded: Vec<f64> = axis.iter().map(|x| (x / unit).round() * unit).collect();
        // The sign of an eigenvector would tell of the rows.
        if rounded.iter().find(|x| **x != 0.0).is_some_and(|x| *x < 0.0) {
            vector::scale(&mut rounded, -1.0);
        }
        axes.extend((0..width).map(|i| vector::dot(&units[i * width..][..=i], &rounded[..=i])));
    }
    Ok(axes)
}

/// Orthonormal vectors of this length whose sums are zero, slow ones first: the eigenvectors of a path's
/// Laplacian.
fn waves(length: usize) -> Result<Vec<f64>> {
    let mut laplacian = vec![0.0; length * length];
    for at in 1..length {
        let (own, before) = (at * length + at, (at - 1) * length + at - 1);
        laplacian[own] += 1.0;
        laplacian[before] += 1.0;
        laplacian[own - 1] = -1.0;
    }
    Ok(linalg::symmetric_eigen(&laplacian, length)?.vectors.split_off(length))
}

fn mean<'a>(rows: impl ExactSizeIterator<Item = &'a [f64]>, width: usize) -> Vec<f64> {
    let count = rows.len().max(1) as f64;
    let mut mean = vec![0.0; width];
    rows.for_each(|row| vector::axpy(&mut mean, 1.0, row));
    mean.iter_mut().for_each(|x| *x /= count);
    mean
}

/// Orders rows along their principal axis and returns the place of the best division.
fn divide<'a>(
    rows: &mut [usize],
    row: &impl Fn(&usize) -> &'a [f64],
    mean: &[f64],
    rows_min: usize,
) -> usize {
    let mut x = vec![0.0; mean.len()];
    let mut axis = x.clone();
    let far2 = |at: &usize| distance2(row(at), mean);
    if let Some(far) = rows.iter().max_by(|a, b| far2(a).total_cmp(&far2(b))) {
        vector::sub_into(&mut axis, row(far), mean);
    }
    for _ in 0..AXIS_STEPS {
        let norm = vector::norm2_squared(&axis).sqrt();
        let from = std::mem::replace(&mut axis, vec![0.0; mean.len()]);
        for at in rows.iter().filter(|_| norm > 0.0) {
            vector::sub_into(&mut x, row(at), mean);
            vector::axpy(&mut axis, vector::dot(&x, &from) / norm, &x);
        }
    }
    let place = |at: &usize| {
        vector::sub_into(&mut x, row(at), mean);
        (vector::dot(&x, &axis), *at)
    };
    let mut along: Vec<(f64, usize)> = rows.iter().map(place).collect();
    along.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
    rows.iter_mut().zip(&along).for_each(|(to, (_, at))| *to = *at);
    // The squares within are least where those between the parts, s²/n + s²/(N - n), are most.
    let (count, least) = (rows.len(), rows_min.max(rows.len() / 4));
    let (mut best, mut sum) = ((f64::NEG_INFINITY, least), 0.0);
    for (before, (x, _)) in along.iter().enumerate() {
        let between = sum * sum * (1.0 / before as f64 + 1.0 / (count - before) as f64);
        if (least..=count - least).contains(&before) && between > best.0 {
            best = (between, before);
        }
        sum += x;
    }
    best.1
}
