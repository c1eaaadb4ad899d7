//! An independent EM for mixtures over tables with gaps: no shared code, sums over observed cells for
//! independent columns, Gauss-Jordan elimination for full covariances.

use whimbrel_models::mixed::{ColumnKind, Mixed, MixedParameters, Numeric};

/// A mean and a covariance.
type Moments = (Vec<f64>, Vec<f64>);

/// Parameters, component after component.
#[derive(Clone)]
pub struct Naive {
    pub kinds: Vec<ColumnKind>,
    pub full: bool,
    pub weights: Vec<f64>,
    /// `[component][column]`: a mean or rate, or probabilities.
    pub cells: Vec<Vec<Vec<f64>>>,
    /// `[component]`: the covariance of the numbers, row-major.
    pub covariances: Vec<Vec<f64>>,
}

impl Naive {
    /// The parameters of a model.
    pub fn of(model: &Mixed, theta: &MixedParameters) -> Self {
        let kinds = model.columns().to_vec();
        let k = model.components();
        let (c, all) = (theta.rates().len() / k, theta.levels().len() / k);
        let own = |k: usize| {
            let (mut number, mut count, mut level) = (0, 0, 0);
            let cell = |kind: &ColumnKind| match kind {
                ColumnKind::Number => {
                    number += 1;
                    vec![theta.gaussian().unwrap().mean(k)[number - 1]]
                }
                ColumnKind::Count => {
                    count += 1;
                    vec![theta.rates()[k * c + count - 1]]
                }
                ColumnKind::Levels(levels) => {
                    level += levels;
                    theta.levels()[k * all + level - levels..][..*levels].to_vec()
                }
            };
            kinds.iter().map(cell).collect()
        };
        let gaussian = theta.gaussian();
        Self {
            full: model.settings().numeric == Numeric::Full,
            weights: theta.weights().to_vec(),
            cells: (0..k).map(own).collect(),
            covariances: (0..k).map(|k| gaussian.map_or(vec![], |g| g.covariance(k))).collect(),
            kinds,
        }
    }

    fn numbers(&self) -> Vec<usize> {
        (0..self.kinds.len()).filter(|j| self.kinds[*j] == ColumnKind::Number).collect()
    }

    /// The log-density of the observed cells, the responsibilities, and for every component the
    /// conditional mean and covariance of all numbers.
    pub fn row(&self, cells: &[f64]) -> (f64, Vec<f64>, Vec<Moments>) {
        let numbers = self.numbers();
        let mut scores = Vec::new();
        let mut moments = Vec::new();
        for k in 0..self.weights.len() {
            let mut score = self.weights[k].ln();
            for (j, kind) in self.kinds.iter().enumerate().filter(|(j, _)| !cells[*j].is_nan()) {
                let (x, own) = (cells[j], &self.cells[k][j]);
                score += match kind {
                    ColumnKind::Number => 0.0,
                    ColumnKind::Count => {
                        let factorial: f64 = (1..=x as u64).map(|i| (i as f64).ln()).sum();
                        x * own[0].ln() - own[0] - factorial
                    }
                    ColumnKind::Levels(_) => own[x as usize].ln(),
                };
            }
            let mean: Vec<f64> = numbers.iter().map(|j| self.cells[k][*j][0]).collect();
            let row: Vec<f64> = numbers.iter().map(|j| cells[*j]).collect();
            let (density, moment) = conditional(&row, &mean, &self.covariances[k]);
            scores.push(score + density);
            moments.push(moment);
        }
        let top = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = scores.iter().map(|s| (s - top).exp()).sum();
        let r = scores.iter().map(|s| (s - top).exp() / sum).collect();
        (top + sum.ln(), r, moments)
    }

    /// One EM step; returns the mean log-likelihood before it.
    pub fn step(&mut self, rows: &[f64]) -> f64 {
        let (width, numbers, k) = (self.kinds.len(), self.numbers(), self.weights.len());
        let d = numbers.len();
        let n = rows.len() / width;
        let mut total = 0.0;
        let mut weight = vec![0.0; k];
        let mut observed = vec![vec![0.0; width]; k];
        let mut sums: Vec<Vec<Vec<f64>>> =
            self.cells.iter().map(|c| c.iter().map(|x| vec![0.0; x.len()]).collect()).collect();
        let mut squares = vec![vec![0.0; d * d]; k];
        for cells in rows.chunks_exact(width) {
            let (density, r, moments) = self.row(cells);
            total += density;
            for k in 0..k {
                weight[k] += r[k];
                let (mean, covariance) = &moments[k];
                for (at, j) in numbers.iter().enumerate() {
                    if self.full || !cells[*j].is_nan() {
                        observed[k][*j] += r[k];
                        sums[k][*j][0] += r[k] * mean[at];
                        for other in 0..d {
                            let both = mean[at] * mean[other] + covariance[at * d + other];
                            squares[k][at * d + other] += r[k] * both;
                        }
                    }
                }
                for (j, kind) in self.kinds.iter().enumerate() {
                    match kind {
                        _ if cells[j].is_nan() => continue,
                        ColumnKind::Number => continue,
                        ColumnKind::Count => sums[k][j][0] += r[k] * cells[j],
                        ColumnKind::Levels(_) => sums[k][j][cells[j] as usize] += r[k],
                    }
                    observed[k][j] += r[k];
                }
            }
        }
        for k in 0..k {
            self.weights[k] = weight[k] / n as f64;
            for j in 0..width {
                self.cells[k][j] = sums[k][j].iter().map(|s| s / observed[k][j]).collect();
            }
            for (a, i) in numbers.iter().enumerate() {
                for (b, j) in numbers.iter().enumerate() {
                    let centred = squares[k][a * d + b] / observed[k][*i]
                        - self.cells[k][*i][0] * self.cells[k][*j][0];
                    self.covariances[k][a * d + b] =
                        if self.full || a == b { centred } else { 0.0 };
                }
            }
        }
        total / n as f64
    }
}

/// The log-density of what is observed of a normal row, and the conditional mean and covariance of all
/// of it.
fn conditional(row: &[f64], mean: &[f64], covariance: &[f64]) -> (f64, (Vec<f64>, Vec<f64>)) {
    let d = row.len();
    let seen: Vec<usize> = (0..d).filter(|j| !row[*j].is_nan()).collect();
    let o = seen.len();
    let block: Vec<f64> =
        seen.iter().flat_map(|i| seen.iter().map(move |j| covariance[i * d + j])).collect();
    let (inverse, determinant) = inverse(block, o);
    let shift: Vec<f64> = seen.iter().map(|j| row[*j] - mean[*j]).collect();
    let weighed: Vec<f64> =
        (0..o).map(|i| (0..o).map(|j| inverse[i * o + j] * shift[j]).sum()).collect();
    let square: f64 = weighed.iter().zip(&shift).map(|(w, s)| w * s).sum();
    let density = -0.5 * (o as f64 * std::f64::consts::TAU.ln() + determinant.ln() + square);
    let filled = (0..d)
        .map(|j| {
            let explained = seen.iter().zip(&weighed).map(|(i, w)| covariance[j * d + i] * w);
            if row[j].is_nan() { mean[j] + explained.sum::<f64>() } else { row[j] }
        })
        .collect();
    let mut left = vec![0.0; d * d];
    for a in (0..d).filter(|j| row[*j].is_nan()) {
        for b in (0..d).filter(|j| row[*j].is_nan()) {
            let mut explained = 0.0;
            for (i, x) in seen.iter().enumerate() {
                for (j, y) in seen.iter().enumerate() {
                    explained += covariance[a * d + x] * inverse[i * o + j] * covariance[b * d + y];
                }
            }
            left[a * d + b] = covariance[a * d + b] - explained;
        }
    }
    (density, (filled, left))
}

/// The inverse and the determinant.
fn inverse(mut a: Vec<f64>, d: usize) -> (Vec<f64>, f64) {
    let mut out: Vec<f64> = (0..d * d).map(|n| f64::from(u8::from(n % (d + 1) == 0))).collect();
    let mut determinant = 1.0;
    for i in 0..d {
        let pivot = a[i * d + i];
        determinant *= pivot;
        for j in 0..d {
            a[i * d + j] /= pivot;
            out[i * d + j] /= pivot;
        }
        for row in (0..d).filter(|row| *row != i) {
            let factor = a[row * d + i];
            for j in 0..d {
                a[row * d + j] -= factor * a[i * d + j];
                out[row * d + j] -= factor * out[i * d + j];
            }
        }
    }
    (out, determinant)
}
