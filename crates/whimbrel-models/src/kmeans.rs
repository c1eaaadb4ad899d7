//! K-means for the start of a mixture: k-means++ (Arthur and Vassilvitskii, 2007), then Lloyd's
//! steps, on rows or on weighted centres. Equal keys give equal centres.

use whimbrel_core::{Error, Key, Result, Stream};

/// What k-means found.
#[derive(Clone, Debug, PartialEq)]
pub struct Clusters {
    /// Centres, one after the other; fewer than asked for where there are fewer distinct rows.
    pub centres: Vec<f64>,
    /// The weight of the rows nearest to each centre.
    pub counts: Vec<f64>,
    /// The centre nearest to each row (the first of equals).
    pub labels: Vec<u32>,
    /// The weighted sum of squared distances to the nearest centre.
    pub inertia: f64,
}

/// Clusters `rows` (row-major, `columns` wide) around at most `k` centres, with at most
/// `steps_max` of Lloyd's steps. `weights` counts each row that often; none counts each once.
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
    let mut centres = problem.spread_out(k, &mut key.stream());
    let mut found = problem.assign(&centres);
    for _ in 0..steps_max {
        let moved = problem.centres(&found.labels, &centres);
        if moved == centres {
            break;
        }
        centres = moved;
        found = problem.assign(&centres);
    }
    let mut counts = vec![0.0; centres.len() / columns];
    for (label, weight) in found.labels.iter().zip(weights) {
        counts[*label as usize] += weight;
    }
    Ok(Clusters { centres, counts, labels: found.labels, inertia: found.inertia })
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
        return Err(Error::data("weights of rows must not be negative, nor all zero"));
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
        let mut inertia = 0.0;
        let labels = (0..self.weights.len())
            .map(|i| {
                let (mut label, mut least) = (0, f64::INFINITY);
                for (c, centre) in centres.chunks_exact(self.columns).enumerate() {
                    let squared = distance(self.row(i), centre);
                    if squared < least {
                        (label, least) = (c as u32, squared);
                    }
                }
                inertia += self.weights[i] * least;
                label
            })
            .collect();
        Assignment { labels, inertia }
    }

    /// The weighted mean of each centre's rows; a centre without weight stays where it is.
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
