//! K-means for initial mixtures: k-means++ (Arthur and Vassilvitskii, 2007), then Lloyd's steps, on rows or
//! on weighted centres. Results depend on the key alone, for any number of threads.

use crate::lane::{LANES, one_lane_at_a_time};
use rayon::prelude::*;
use whimbrel_core::{Error, Key, Result, Stream, kernel};

/// Number of rows above which restarts work on a coreset of this size.
const CORESET_ROWS: usize = 1 << 15;
/// Rows per parallel task.
const ROWS_TOGETHER: usize = 4096;

/// The result of k-means.
#[derive(Clone, Debug, PartialEq)]
pub struct Clusters {
    /// Centres, one after the other; fewer than requested if there are fewer distinct rows.
    pub centres: Vec<f64>,
    /// The weight of the rows nearest to each centre.
    pub counts: Vec<f64>,
    /// The centre nearest to each row; the first of ties.
    pub labels: Vec<u32>,
    /// The weighted sum of squared distances to the nearest centre.
    pub inertia: f64,
}

/// Clusters `rows` (row-major, `columns` wide) around at most `k` centres, with at most
/// `steps_max` of Lloyd's steps. `weights` holds one weight per row; `None` stands for weights of one.
pub fn kmeans(
    rows: &[f64],
    columns: usize,
    weights: Option<&[f64]>,
    k: usize,
    steps_max: usize,
    key: Key,
) -> Result<Clusters> {
    let ones;
    let weights = match weights {
        Some(weights) => weights,
        None => {
            ones = vec![1.0; rows.len() / columns.max(1)];
            &ones
        }
    };
    check(rows, columns, weights, k)?;
    let problem = Problem { rows, columns, weights };
    let centres = problem.spread_out(k, &mut key.stream());
    Ok(problem.lloyd(centres, steps_max))
}

/// The best of several runs of [`kmeans`] by inertia.
///
/// More than 32,768 rows are first reduced to a lightweight coreset of that size (Bachem, Lucic and
/// Krause, *Scalable k-means clustering via lightweight coresets*, 2018, Algorithm 1): the runs
/// cluster it, and one of Lloyd's steps over all rows follows from the best of them. The time is linear in
/// the number of rows, with a small factor.
pub fn best_of(
    restarts: u64,
    rows: &[f64],
    columns: usize,
    weights: &[f64],
    k: usize,
    steps_max: usize,
    key: Key,
) -> Result<Clusters> {
    check(rows, columns, weights, k)?;
    let best = |rows: &[f64], weights: &[f64]| -> Result<Clusters> {
        let run = |restart| kmeans(rows, columns, Some(weights), k, steps_max, key.child(restart));
        let found = (0..restarts).into_par_iter().map(run).collect::<Result<Vec<_>>>()?;
        let best = found.into_iter().reduce(|a, b| if b.inertia < a.inertia { b } else { a });
        best.ok_or_else(|| Error::internal("k-means was not run"))
    };
    if weights.len() <= CORESET_ROWS {
        return best(rows, weights);
    }
    let problem = Problem { rows, columns, weights };
    let (few, their_weights) = problem.coreset(CORESET_ROWS, &mut key.child(restarts).stream());
    Ok(problem.lloyd(best(&few, &their_weights)?.centres, 1))
}

fn check(rows: &[f64], columns: usize, weights: &[f64], k: usize) -> Result<()> {
    if columns == 0 || k == 0 {
        return Err(Error::config("k-means needs at least one column and one centre"));
    }
    if rows.is_empty() || rows.len() != weights.len() * columns {
        return Err(Error::data(format!(
            "{} values and {} weights are not rows of {columns} columns",
            rows.len(),
            weights.len()
        )));
    }
    if let Some(at) = rows.iter().position(|x| !x.is_finite()) {
        return Err(Error::data(format!(
            "row {}, column {} is not a finite number",
            at / columns + 1,
            at % columns + 1
        )));
    }
    let total: f64 = weights.iter().sum();
    if !(weights.iter().all(|w| *w >= 0.0) && total > 0.0 && total.is_finite()) {
        return Err(Error::data("weights of rows must be non-negative and not all zero"));
    }
    Ok(())
}

struct Problem<'a> {
    rows: &'a [f64],
    columns: usize,
    weights: &'a [f64],
}

struct Assignment {
    labels: Vec<u32>,
    inertia: f64,
}

impl Problem<'_> {
    /// Lloyd's steps from these centres.
    fn lloyd(&self, mut centres: Vec<f64>, steps_max: usize) -> Clusters {
        let mut found = self.assign(&centres);
        for _ in 0..steps_max {
            let moved = self.centres(&found.labels, &centres);
            if moved == centres {
                break;
            }
            centres = moved;
            found = self.assign(&centres);
        }
        let mut counts = vec![0.0; centres.len() / self.columns];
        for (label, weight) in found.labels.iter().zip(self.weights) {
            counts[*label as usize] += weight;
        }
        Clusters { centres, counts, labels: found.labels, inertia: found.inertia }
    }

    /// Rows drawn with probability `q = w / 2W + w d^2 / 2 sum(w d^2)`, where `d` is the distance
    /// to the mean, each with the weight `w / (size q)`: their inertia around any centres has the
    /// expectation of all rows'.
    fn coreset(&self, size: usize, stream: &mut Stream) -> (Vec<f64>, Vec<f64>) {
        let total: f64 = self.weights.iter().sum();
        let mean = self.centres(&vec![0; self.weights.len()], &vec![0.0; self.columns]);
        let spread: Vec<f64> = self
            .rows
            .par_chunks_exact(self.columns)
            .zip(self.weights)
            .with_min_len(ROWS_TOGETHER)
            .map(|(row, weight)| weight * distance(row, &mean))
            .collect();
        // If all rows are equal, probabilities are proportional to weights.
        let total_spread = spread.iter().sum::<f64>().max(f64::MIN_POSITIVE);
        let chance = |i: usize| 0.5 * self.weights[i] / total + 0.5 * spread[i] / total_spread;
        let mut sum = 0.0;
        let sums: Vec<f64> = (0..spread.len())
            .map(|i| {
                sum += chance(i);
                sum
            })
            .collect();
        let (mut rows, mut weights) = (Vec::new(), Vec::new());
        for _ in 0..size {
            let drawn = stream.uniform() * sum;
            let i = sums.partition_point(|sum| *sum <= drawn).min(sums.len() - 1);
            rows.extend_from_slice(self.row(i));
            weights.push(self.weights[i] / (size as f64 * chance(i)));
        }
        (rows, weights)
    }

    fn row(&self, i: usize) -> &[f64] {
        &self.rows[i * self.columns..][..self.columns]
    }

    /// K-means++: each next centre is a row drawn with probability proportional to its weight
    /// times its squared distance to the centres so far.
    fn spread_out(&self, k: usize, stream: &mut Stream) -> Vec<f64> {
        let mut centres = self.row(stream.categorical(self.weights)).to_vec();
        let mut mass: Vec<f64> = (0..self.weights.len())
            .map(|i| self.weights[i] * distance(self.row(i), &centres))
            .collect();
        while centres.len() < k * self.columns && mass.iter().any(|m| *m > 0.0) {
            let next = self.row(stream.categorical(&mass)).to_vec();
            for (i, mass) in mass.iter_mut().enumerate() {
                *mass = mass.min(self.weights[i] * distance(self.row(i), &next));
            }
            centres.extend(next);
        }
        centres
    }

    fn assign(&self, centres: &[f64]) -> Assignment {
        let count = centres.len() / self.columns;
        let mut packed = vec![[f64::INFINITY; LANES]; count.div_ceil(LANES) * self.columns];
        for (c, centre) in centres.chunks_exact(self.columns).enumerate() {
            let group = &mut packed[c / LANES * self.columns..][..self.columns];
            group.iter_mut().zip(centre).for_each(|(lane, x)| lane[c % LANES] = *x);
        }
        let rows = self.weights.len();
        let (mut labels, mut squares) = (vec![0; rows], vec![0.0; rows]);
        if rows <= ROWS_TOGETHER {
            nearest(self.rows, self.columns, &packed, &mut labels, &mut squares);
        } else {
            self.rows
                .par_chunks(ROWS_TOGETHER * self.columns)
                .zip(labels.par_chunks_mut(ROWS_TOGETHER))
                .zip(squares.par_chunks_mut(ROWS_TOGETHER))
                .for_each(|((rows, labels), squares)| {
                    nearest(rows, self.columns, &packed, labels, squares);
                });
        }
        let inertia = squares.iter().zip(self.weights).fold(0.0, |sum, (x, w)| sum + w * x);
        Assignment { labels, inertia }
    }

    /// The weighted mean of each centre's rows; a centre without weight is kept.
    fn centres(&self, labels: &[u32], old: &[f64]) -> Vec<f64> {
        let mut sums = vec![0.0; old.len()];
        let mut totals = vec![0.0; old.len() / self.columns];
        for (i, label) in labels.iter().enumerate() {
            let c = *label as usize;
            totals[c] += self.weights[i];
            for (sum, x) in sums[c * self.columns..].iter_mut().zip(self.row(i)) {
                *sum += self.weights[i] * x;
            }
        }
        for (at, sum) in sums.iter_mut().enumerate() {
            let total = totals[at / self.columns];
            *sum = if total > 0.0 { *sum / total } else { old[at] };
        }
        sums
    }
}

fn distance(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(x, y)| (x - y) * (x - y)).sum()
}

kernel! {
    /// The nearest centre of each row (the first of ties), and the squared distance to it. Centres come in
    /// groups of eight, column after column; sums are in the order of [`distance`].
    fn nearest(
        rows: &[f64],
        columns: usize,
        centres: &[[f64; LANES]],
        labels: &mut [u32],
        squares: &mut [f64],
    ) {
        for ((row, label), least) in rows.chunks_exact(columns).zip(labels).zip(squares) {
            (*label, *least) = (0, f64::INFINITY);
            for (first, group) in centres.chunks_exact(columns).enumerate() {
                let mut sums = [0.0; LANES];
                for (x, group) in row.iter().zip(group) {
                    for (sum, centre) in sums.iter_mut().zip(group) {
                        *sum += (x - centre) * (x - centre);
                    }
                    one_lane_at_a_time();
                }
                for (c, sum) in sums.into_iter().enumerate() {
                    if sum < *least {
                        (*label, *least) = ((first * LANES + c) as u32, sum);
                    }
                }
            }
        }
    }
}
