//! The E-step: responsibilities from the observed cells, expectations of the missing ones.
//!
//! Rows are cut into chunks whose sums are added in a tree of fixed shape, as in the Gaussian mixture.

use super::numbers::Conditional;
use super::{Levels, Mixed, MixedData, MixedParameters};
use crate::mixture::{check_density, log_sum_exp, sum_tree};
use crate::{LatentModel, Rows, Support};
use std::borrow::Cow;
use whimbrel_core::{Error, Result};

/// Number of rows of a chunk.
const CHUNK_ROWS: usize = 512;

impl Mixed {
    pub(super) fn e_step(
        &self,
        theta: &MixedParameters,
        data: &MixedData,
        rows: Rows<'_>,
        statistic: &mut [f64],
    ) -> Result<f64> {
        if statistic.len() != self.statistic_len() || theta.weights.len() != self.components() {
            return Err(Error::internal("parameters or statistic belong to another mixture"));
        }
        let rows = in_order(data, rows)?;
        let chunks: Vec<&[u32]> = rows.chunks(CHUNK_ROWS).collect();
        let sum = |chunk: usize, out: &mut [f64]| {
            out.fill(0.0);
            // NaN is reported below.
            self.add_rows(theta, data, chunks[chunk], out).unwrap_or(f64::NAN)
        };
        let n = rows.len() as f64;
        let log_density = sum_tree(0..chunks.len(), &sum, statistic) / n;
        statistic.iter_mut().for_each(|x| *x /= n);
        check_density(log_density, statistic)?;
        Ok(log_density)
    }

    /// The support of each component, over all rows or, if smaller, over the rows in which some column
    /// is observed: a component's sum of a column rests on those. Columns that fewer than `group` rows have
    /// are skipped.
    pub(super) fn component_supports(
        &self,
        theta: &MixedParameters,
        data: &MixedData,
        rows: Rows<'_>,
        group: f64,
    ) -> Result<Vec<Support>> {
        let (k, width) = (self.components(), self.settings.columns.len() + 1);
        let (mut masses, mut largest) = (vec![0.0; k * width], vec![0.0f64; k * width]);
        // Of all the client's rows: in a minibatch a column may be rarer.
        let mut counts = vec![f64::INFINITY; 1];
        counts.resize(width, 0.0);
        for row in 0..data.rows() {
            for (count, cell) in counts[1..].iter_mut().zip(data.row(row)) {
                *count += f64::from(u8::from(!cell.is_nan()));
            }
        }
        let mut scorer = Scorer::new(self, theta);
        for row in in_order(data, rows)?.iter().map(|row| *row as usize) {
            scorer.score(data, row)?;
            let cells = data.row(row);
            let each = masses.chunks_exact_mut(width).zip(largest.chunks_exact_mut(width));
            for ((masses, largest), r) in each.zip(&scorer.scores) {
                let seen = [true].into_iter().chain(cells.iter().map(|cell| !cell.is_nan()));
                for ((mass, most), _) in masses.iter_mut().zip(largest).zip(seen).filter(|x| x.1) {
                    *mass += r;
                    *most = most.max(*r);
                }
            }
        }
        let of_component = |(masses, largest): (&[f64], &[f64])| {
            let each = masses.iter().zip(largest).zip(&counts);
            let each = each.filter(|(_, count)| **count >= group);
            let each = each.map(|((m, l), _)| Support::new(*m, *l).rows);
            Support { mass: masses[0], rows: each.fold(f64::INFINITY, f64::min) }
        };
        Ok(masses.chunks_exact(width).zip(largest.chunks_exact(width)).map(of_component).collect())
    }

    /// Adds the rows' expected statistics and returns their summed log-density.
    fn add_rows(
        &self,
        theta: &MixedParameters,
        data: &MixedData,
        rows: &[u32],
        out: &mut [f64],
    ) -> Result<f64> {
        let (k, d) = (self.components(), self.numbers.len());
        let (c, free, all) = (self.counts.len(), self.free_levels(), self.all_levels());
        let (gaussian, rest) = out.split_at_mut(self.gaussian_len());
        let (counts, levels) = rest.split_at_mut(k * c);
        let (first, moments) = gaussian.split_at_mut(k);
        let (means, second) = moments.split_at_mut(k * d);
        let size = second.len() / k;
        let mut scorer = Scorer::new(self, theta);
        // Weights of the rows of one pattern: each adds the covariance of its missing numbers.
        let mut weights = vec![0.0; k];
        let mut total = 0.0;
        for (at, row) in rows.iter().enumerate() {
            let row = *row as usize;
            total += scorer.score(data, row)?;
            let cells = data.row(row);
            for (component, r) in scorer.scores.iter().copied().enumerate() {
                first[component] += r;
                weights[component] += r;
                if d > 0 {
                    let numbers = &scorer.numbers[component * d..][..d];
                    let means = &mut means[component * d..][..d];
                    means.iter_mut().zip(numbers).for_each(|(m, x)| *m += r * x);
                    let second = &mut second[component * size..][..size];
                    let seen = &data.patterns[data.pattern[row] as usize];
                    scorer.conditionals[component].add_second(r, numbers, seen, second);
                }
                let rates = &theta.rates[component * c..][..c];
                for ((sum, j), rate) in
                    counts[component * c..][..c].iter_mut().zip(&self.counts).zip(rates)
                {
                    *sum += r * if cells[*j].is_nan() { *rate } else { cells[*j] };
                }
                let (mut from, expected) =
                    (component * free, &theta.levels[component * all..][..all]);
                for Levels { column, count, from: place } in &self.levels {
                    let sums = &mut levels[from..][..count - 1];
                    let cell = cells[*column];
                    if cell.is_nan() {
                        let expected = &expected[place + 1..][..count - 1];
                        sums.iter_mut().zip(expected).for_each(|(sum, p)| *sum += r * p);
                    } else if cell > 0.0 {
                        sums[cell as usize - 1] += r;
                    }
                    from += count - 1;
                }
            }
            let next = rows.get(at + 1).map(|row| data.pattern[*row as usize]);
            if d > 0 && next != Some(data.pattern[row]) {
                for (component, weight) in weights.iter_mut().enumerate() {
                    let second = &mut second[component * size..][..size];
                    scorer.conditionals[component].add_covariance(*weight, second);
                    *weight = 0.0;
                }
            }
        }
        Ok(total)
    }
}

/// The rows of an E-step, those of one pattern together.
fn in_order<'a>(data: &'a MixedData, rows: Rows<'_>) -> Result<Cow<'a, [u32]>> {
    match rows {
        Rows::All => Ok(Cow::Borrowed(&data.order)),
        Rows::These(chosen) => {
            if chosen.is_empty() || chosen.iter().any(|row| *row as usize >= data.rows()) {
                return Err(Error::internal("an E-step over no rows, or over unknown ones"));
            }
            let mut chosen = chosen.to_vec();
            chosen.sort_by_key(|row| data.pattern[*row as usize]);
            Ok(Cow::Owned(chosen))
        }
    }
}

/// Scores rows one by one; rows of one pattern should be consecutive.
pub(super) struct Scorer<'a> {
    model: &'a Mixed,
    theta: &'a MixedParameters,
    pattern: Option<u32>,
    pub(super) conditionals: Vec<Conditional>,
    /// The numbers of the last row, with missing ones at their conditional means, per component.
    pub(super) numbers: Vec<f64>,
    /// Responsibilities for the last row.
    pub(super) scores: Vec<f64>,
    room: Vec<f64>,
    rate_sums: Vec<f64>,
}

impl<'a> Scorer<'a> {
    pub(super) fn new(model: &'a Mixed, theta: &'a MixedParameters) -> Self {
        let (k, d, c) = (model.components(), model.numbers.len(), model.counts.len());
        Self {
            model,
            theta,
            pattern: None,
            conditionals: Vec::new(),
            numbers: vec![0.0; k * d],
            scores: vec![0.0; k],
            room: vec![0.0; 2 * d],
            rate_sums: (0..k).map(|k| theta.rates[k * c..][..c].iter().sum()).collect(),
        }
    }

    /// Returns the log-density of a row's observed cells, and stores responsibilities and completed
    /// numbers.
    pub(super) fn score(&mut self, data: &MixedData, row: usize) -> Result<f64> {
        let Self { model, theta, .. } = *self;
        let (d, c, all) = (model.numbers.len(), model.counts.len(), model.all_levels());
        let (cells, pattern) = (data.row(row), data.pattern[row]);
        let stale = self.conditionals.first().is_none_or(Conditional::has_pattern);
        if d > 0 && stale && self.pattern != Some(pattern) {
            self.conditionals = model.conditionals(theta, &data.patterns[pattern as usize])?;
            self.pattern = Some(pattern);
        }
        for k in 0..model.components() {
            let mut score = theta.log_weights[k];
            if d > 0 {
                let numbers = &mut self.numbers[k * d..][..d];
                numbers.iter_mut().zip(&model.numbers).for_each(|(x, j)| *x = cells[*j]);
                score += self.conditionals[k].complete(numbers, &mut self.room);
            }
            if c > 0 {
                score -= self.rate_sums[k];
                let logs = theta.log_rates[k * c..][..c].iter();
                let rates = theta.rates[k * c..][..c].iter();
                for ((j, log), rate) in model.counts.iter().zip(logs).zip(rates) {
                    let cell = cells[*j];
                    score += if cell.is_nan() { *rate } else { cell * log };
                }
            }
            let logs = &theta.log_levels[k * all..][..all];
            for Levels { column, from, .. } in &model.levels {
                let cell = cells[*column];
                if !cell.is_nan() {
                    score += logs[from + cell as usize];
                }
            }
            self.scores[k] = score;
        }
        Ok(log_sum_exp(&mut self.scores) - data.log_factorials[row])
    }
}
