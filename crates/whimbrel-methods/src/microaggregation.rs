//! Microaggregation (Domingo-Ferrer and Mateo-Sanz 2002): groups of neighbouring rows that sums keep
//! whole.
//!
//! Rows are divided along their principal axis where the squared distances within both parts are
//! least, until a part has fewer than twice the smallest group. A part keeps at least a quarter of the
//! rows, so that the depth is logarithmic.

use crate::kmeans::distance2;
use whimbrel_core::vector;

/// Steps of the power iteration: the axis need not be accurate.
const AXIS_STEPS: usize = 8;

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
        let row = |at: &usize| &values[at * width..][..width];
        let (mut means, mut sizes) = (Vec::new(), Vec::new());
        let mut order: Vec<usize> = (0..rows).collect();
        // Parts of the order: the first row and the row after the last one.
        let mut left = vec![(0, rows)];
        while let Some((from, to)) = left.pop() {
            let own = &mut order[from..to];
            let mean = mean(own.iter().map(row), width);
            if own.len() >= 2 * rows_min {
                let at = from + divide(own, &row, &mean, rows_min);
                left.extend([(at, to), (from, at)]);
                continue;
            }
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
