//! Sums at the estimate: deviance, Pearson's statistic, binned probabilities, the client's own
//! coefficients, and products of scores.

use super::inference::Factored;
use super::kernels::{BLOCK, add_outer, add_rows, add_square, stride};
use super::{Family, Model, Predictor, Rows, Scaling};
use crate::ceiling_of_groups;
use whimbrel_core::Result;
use whimbrel_core::linalg::packed_len;
use whimbrel_core::math::ln;

/// Most steps of a client's own fit.
const ALONE_STEPS: u32 = 30;

/// The products of scores behind standard errors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Errors {
    /// None: the information alone.
    #[default]
    Model,
    /// Of each row with itself (HC0).
    Robust,
    /// Of each client's sum with itself.
    Clustered,
}

/// The sums that the last exchange asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Asked {
    pub errors: Errors,
    /// Whether each client also fits its rows alone.
    pub heterogeneity: bool,
    /// Whether weights are numbers of equal rows rather than precisions.
    pub frequencies: bool,
    /// Fewest rows in a bin of probabilities.
    pub min_group: usize,
}

impl Asked {
    /// The factor of a row's squared score: its squared weight, or the number of its equal rows.
    fn squared(&self, weight: f64) -> f64 {
        if self.frequencies { weight } else { weight * weight }
    }
}

/// The sum of the products of rows' scores.
struct Robust<'a> {
    products: &'a mut [f64],
    asked: Asked,
}

/// Bins of predicted probabilities.
pub const BINS: usize = 100;

/// Sums over rows at the estimate.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Misfit {
    pub deviance: f64,
    pub pearson: f64,
    /// `Σ w ln y` of the gamma family.
    pub log_y: f64,
    /// `Σ ln w`.
    pub log_w: f64,
}

impl Misfit {
    /// Number of sums.
    pub const LEN: usize = 4;

    pub fn of(sums: &[f64]) -> Self {
        Self { deviance: sums[0], pearson: sums[1], log_y: sums[2], log_w: sums[3] }
    }
}

impl Model {
    /// Lengths of the parts of the sums at the estimate: [`Misfit`], bins, own coefficients, products.
    pub fn misfit_parts(&self, asked: &Asked) -> [usize; 4] {
        let binned = self.family == Family::Binomial && !self.by_client;
        let products =
            if asked.errors == Errors::Model { 0 } else { packed_len(self.parameters()) };
        let own = if asked.heterogeneity { 4 * self.parameters() } else { 0 };
        [Misfit::LEN, if binned { 3 * BINS } else { 0 }, own, products]
    }

    /// The sums at the estimate, part after part. `score` is that of all rows.
    pub fn misfit(
        &self,
        rows: &Rows,
        scaling: &Scaling,
        theta: &[f64],
        asked: &Asked,
        score: &[f64],
    ) -> Result<Vec<f64>> {
        let parts = self.misfit_parts(asked);
        let mut sums = vec![0.0; parts.iter().sum()];
        let (misfit, rest) = sums.split_at_mut(parts[0]);
        let (bins, rest) = rest.split_at_mut(parts[1]);
        let (own, products) = rest.split_at_mut(parts[2]);
        if !bins.is_empty() {
            self.bin(rows, scaling, theta, asked.min_group, bins);
        }
        if let (true, Some((beta, variances))) =
            (asked.heterogeneity, self.alone(rows, scaling, theta)?)
        {
            for ((own, b), v) in own.chunks_exact_mut(4).zip(beta).zip(variances) {
                own.copy_from_slice(&[1.0, 1.0 / v, b / v, b * b / v]);
            }
        }
        if asked.errors == Errors::Clustered {
            add_outer(score, products);
        }
        let robust = (asked.errors == Errors::Robust).then_some(Robust { products, asked: *asked });
        match self.family {
            Family::Cox => {}
            Family::Multinomial { .. } => {
                self.multinomial_misfit(rows, scaling, theta, misfit, robust);
            }
            _ => self.single_misfit(rows, scaling, theta, misfit, robust),
        }
        Ok(sums)
    }

    /// Weights, weighted targets and weighted probabilities of each bin. Bins of fewer rows than
    /// `min_group` are joined with the next.
    fn bin(
        &self,
        rows: &Rows,
        scaling: &Scaling,
        theta: &[f64],
        min_group: usize,
        bins: &mut [f64],
    ) {
        let mut counts = [0; BINS];
        let eta = self.predict(rows, scaling, theta).swap_remove(0);
        for (row, (eta, y)) in eta.iter().zip(&rows.y).enumerate() {
            let (w, p) = (rows.weight(row), self.family.mean(*eta));
            let at = ((p * BINS as f64) as usize).min(BINS - 1);
            counts[at] += 1;
            bins[3 * at..].iter_mut().zip([w, w * y, w * p]).for_each(|(sum, x)| *sum += x);
        }
        let mut full: Option<usize> = None;
        for at in 0..BINS {
            let to = match counts[at] {
                count if count == 0 || count >= min_group => {
                    full = if count == 0 { full } else { Some(at) };
                    continue;
                }
                _ if at + 1 < BINS => at + 1,
                // The last bin joins the last full one.
                _ => full.unwrap_or(at),
            };
            if to != at {
                counts[to] += std::mem::take(&mut counts[at]);
                for part in 0..3 {
                    bins[3 * to + part] += std::mem::take(&mut bins[3 * at + part]);
                }
            }
        }
    }

    /// The coefficients and variances of these rows alone, by Newton steps from the common estimate; `None`
    /// if the rows do not determine them.
    fn alone(
        &self,
        rows: &Rows,
        scaling: &Scaling,
        theta: &[f64],
    ) -> Result<Option<(Vec<f64>, Vec<f64>)>> {
        let (p, mut theta) = (theta.len(), theta.to_vec());
        let mut first: Option<Vec<f64>> = None;
        for _ in 0..ALONE_STEPS {
            let sums = self.evaluate(rows, scaling, &theta)?;
            let Ok(factored) = Factored::new(&sums.information, p) else { return Ok(None) };
            let inverse = factored.inverse();
            let mut variances: Vec<f64> = (0..p).map(|i| inverse[i * p + i]).collect();
            let start = first.get_or_insert_with(|| variances.clone());
            let infinite = variances.iter().zip(start).any(|(v, first)| *v > 1e4 * *first);
            if infinite || sums.invalid > 0.0 {
                return Ok(None);
            }
            let step = factored.solve(&sums.score);
            let decrement: f64 = step.iter().zip(&sums.score).map(|(a, b)| a * b).sum();
            theta.iter_mut().zip(&step).for_each(|(theta, step)| *theta += step);
            if decrement > 1e-12 {
                continue;
            }
            if self.family.has_dispersion() {
                let mut misfit = [0.0; Misfit::LEN];
                self.single_misfit(rows, scaling, &theta, &mut misfit, None);
                let degrees = rows.len() as f64 - p as f64;
                variances.iter_mut().for_each(|v| *v *= misfit[1] / degrees);
            }
            let usable = variances.iter().all(|v| v.is_finite() && *v > 0.0);
            return Ok(usable.then_some((theta, variances)));
        }
        Ok(None)
    }

    fn single_misfit(
        &self,
        rows: &Rows,
        scaling: &Scaling,
        theta: &[f64],
        misfit: &mut [f64],
        robust: Option<Robust<'_>>,
    ) {
        let (q, alpha) = (self.columns(), self.alpha(theta));
        let Predictor { eta, scaling, silent } = self.predictor(rows, scaling, theta);
        if silent {
            return;
        }
        for (row, (eta, y)) in eta.iter().zip(&rows.y).enumerate() {
            let w = rows.weight(row);
            let (deviance, pearson) = self.family.misfit(*y, *eta, alpha);
            let log_y = if self.family == Family::Gamma { w * ln(*y) } else { 0.0 };
            let log_w = if w > 0.0 { ln(w) } else { 0.0 };
            let own = [w * deviance, w * pearson, log_y, log_w];
            misfit.iter_mut().zip(own).for_each(|(sum, x)| *sum += x);
        }
        let Some(Robust { products, asked }) = robust else { return };
        let stride = stride(q);
        let mut gram = vec![0.0; stride * stride];
        let [mut squares, mut cross] = [vec![0.0; rows.len()], vec![0.0; rows.len()]];
        for (at, (eta, y)) in eta.iter().zip(&rows.y).enumerate() {
            let Some(local) = self.family.local(*y, *eta, alpha) else { continue };
            let share = asked.squared(rows.weight(at));
            squares[at] = share * local.slope * local.slope;
            if self.family.has_alpha() {
                let own = Family::in_dispersion(*y, *eta, alpha).slope;
                cross[at] = share * local.slope * own;
                products[packed_len(q + 1) - 1] += share * own * own;
            }
        }
        rows.groups.settle(&mut squares);
        // Σ u u^T with u = slope z: a Gram matrix with squared slopes as weights.
        self.weighted(rows, &scaling, &squares, &mut gram);
        if self.family.has_alpha() {
            let mut z = self.room();
            for (at, cross) in cross.chunks(BLOCK).enumerate() {
                self.block(rows, &scaling, at * BLOCK, &mut z);
                let mut block = [0.0; BLOCK];
                block[..cross.len()].copy_from_slice(cross);
                add_rows(&z, stride, &block, &mut products[packed_len(q)..][..q]);
            }
        }
        add_square(&gram, q, (0, 0), products);
    }

    fn multinomial_misfit(
        &self,
        rows: &Rows,
        scaling: &Scaling,
        theta: &[f64],
        misfit: &mut [f64],
        mut robust: Option<Robust<'_>>,
    ) {
        let q = self.columns();
        let shares = self.shares(self.predict(rows, scaling, theta));
        let (mut z, mut s) = (self.room(), vec![0.0; self.parameters()]);
        let slope = |row: usize, class: usize| {
            f64::from(u8::from(rows.y[row] as usize == class)) - shares[class][row]
        };
        // The squared factor by which a row's slopes are lowered, under a smallest group.
        let mut lowered = vec![1.0; rows.len()];
        if let Some(Robust { asked, .. }) = robust.as_ref().filter(|_| rows.groups.least > 1) {
            let square = |row: usize| -> f64 {
                (1..shares.len()).map(|class| slope(row, class) * slope(row, class)).sum()
            };
            let squares: Vec<f64> =
                (0..rows.len()).map(|row| asked.squared(rows.weight(row)) * square(row)).collect();
            let most = ceiling_of_groups(&mut squares.clone(), rows.groups.least);
            let each = lowered.iter_mut().zip(squares).filter(|(_, square)| *square > most);
            each.for_each(|(lowered, square)| *lowered = most / square);
        }
        for from in (0..rows.len()).step_by(BLOCK) {
            let count = self.block(rows, scaling, from, &mut z);
            for at in 0..count {
                let (y, w) = (rows.y[from + at] as usize, rows.weight(from + at));
                misfit[0] -= 2.0 * w * ln(shares[y][from + at]);
                let Some(Robust { products, asked }) = &mut robust else { continue };
                let share = (asked.squared(w) * lowered[from + at]).sqrt();
                for (class, s) in s.chunks_exact_mut(q).enumerate() {
                    let slope = share * slope(from + at, class + 1);
                    s.iter_mut().zip(&z[at * stride(q)..]).for_each(|(s, z)| *s = slope * z);
                }
                add_outer(&s, products);
            }
        }
    }
}
