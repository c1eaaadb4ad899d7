//! Generalised linear models and Cox's model: log-likelihood, score and information as sums over rows.
//!
//! Parameters are the coefficients of standardised columns, predictor after predictor, the intercept
//! first; the negative binomial's `ln alpha` is last. McCullagh and Nelder, *Generalized Linear Models*
//! (1989), chapter 2.

mod cox;
mod design;
mod family;
mod groups;
pub mod inference;
mod kernels;
mod misfit;

pub use design::{Design, Factor, Term};
pub use family::{Family, Local};
pub use groups::Groups;
pub use misfit::{Asked, BINS, Errors, Misfit};

use crate::Support;
use kernels::{BLOCK, add_gram, add_rows, stride};
use whimbrel_core::linalg::packed_len;
use whimbrel_core::{Error, Result, linalg, vector};

/// Complete rows of a client, in the columns of the design.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rows {
    /// Columns of the design without the intercept, row after row.
    pub x: Vec<f64>,
    pub width: usize,
    pub y: Vec<f64>,
    /// 1 for an event, 0 for a censored time; empty for other models, as the next two.
    pub event: Vec<f64>,
    pub offset: Vec<f64>,
    pub weight: Vec<f64>,
    /// Places in the table.
    pub kept: Vec<u32>,
    /// Rows with missing cells, which are left out.
    pub dropped: u64,
    /// The part of the log-likelihood that no parameter changes.
    pub constant: f64,
    pub groups: Groups,
}

impl Rows {
    pub fn len(&self) -> usize {
        self.kept.len()
    }

    pub fn is_empty(&self) -> bool {
        self.kept.is_empty()
    }

    fn weight(&self, row: usize) -> f64 {
        self.weight.get(row).copied().unwrap_or(1.0)
    }

    /// `(rows, Σ w, Σ w y, Σ w y²)`, with events for `y` if they are known.
    pub fn totals(&self) -> [f64; 4] {
        let mut totals = [self.len() as f64, 0.0, 0.0, 0.0];
        for (row, y) in self.y.iter().enumerate() {
            let (w, y) = (self.weight(row), self.event.get(row).unwrap_or(y));
            (totals[1], totals[2], totals[3]) =
                (totals[1] + w, totals[2] + w * y, totals[3] + w * y * y);
        }
        totals
    }

    /// `Σ w o` over the offsets.
    pub fn offsets(&self) -> f64 {
        self.offset.iter().enumerate().map(|(row, offset)| self.weight(row) * offset).sum()
    }

    /// Means of the design's columns, then sums of squared deviations from them.
    pub fn moments(&self) -> Vec<f64> {
        let (k, n) = (self.width, self.len() as f64);
        let mut moments = vec![0.0; 2 * k];
        let (means, squares) = moments.split_at_mut(k);
        if k == 0 || self.is_empty() {
            return moments;
        }
        self.x.chunks_exact(k).for_each(|row| vector::axpy(means, 1.0 / n, row));
        for row in self.x.chunks_exact(k) {
            for ((square, x), mean) in squares.iter_mut().zip(row).zip(&*means) {
                *square += (x - mean) * (x - mean);
            }
        }
        moments
    }
}

/// The standardisation `(x − mean) / scale` of the design's columns.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Scaling {
    pub means: Vec<f64>,
    pub scales: Vec<f64>,
}

/// A regression.
#[derive(Clone, Debug, PartialEq)]
pub struct Model {
    pub family: Family,
    pub design: Design,
    /// Whether each client has its own intercept, which it profiles out.
    pub by_client: bool,
}

/// Sums over the rows of a client.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sums {
    pub log_likelihood: f64,
    /// Rows outside the domain of the link.
    pub invalid: f64,
    pub score: Vec<f64>,
    /// Information, packed.
    pub information: Vec<f64>,
    /// `Σ |u| / max |u|` over the rows' derivatives by a predictor, first or second, the least of all: the
    /// number of rows that the sums rest on.
    pub support: f64,
}

/// The weights of rows in a sum.
#[derive(Clone, Copy, Default)]
struct Carried {
    mass: f64,
    largest: f64,
}

impl Carried {
    #[inline(always)]
    fn add(&mut self, weight: f64) {
        self.mass += weight.abs();
        self.largest = self.largest.max(weight.abs());
    }

    /// The number of rows behind the least supported sum.
    fn least(all: &[Self]) -> f64 {
        all.iter().map(|it| Support::new(it.mass, it.largest).rows).fold(f64::INFINITY, f64::min)
    }
}

/// A linear predictor of all rows: its values, and the client's own intercept.
struct Predictor {
    eta: Vec<f64>,
    scaling: Scaling,
    /// Whether the client's rows determine nothing: its own intercept is infinite.
    silent: bool,
}

impl Model {
    /// Number of columns of one predictor, with the intercept.
    fn columns(&self) -> usize {
        self.design.width() + usize::from(self.design.intercept)
    }

    /// Number of parameters.
    pub fn parameters(&self) -> usize {
        self.family.predictors() * self.columns() + usize::from(self.family.has_alpha())
    }

    /// Names of the parameters.
    pub fn names(&self) -> Vec<String> {
        let columns = self.design.names();
        let one: Vec<String> =
            self.design.intercept.then(|| "Intercept".into()).into_iter().chain(columns).collect();
        let mut names = match self.family {
            Family::Multinomial { .. } => {
                let classes = self.design.classes.iter().skip(1);
                classes.flat_map(|c| one.iter().map(move |name| format!("{c}: {name}"))).collect()
            }
            _ => one,
        };
        names.extend(self.family.has_alpha().then(|| "alpha".into()));
        names
    }

    /// Names of the parameters, then of the [reference levels](Self::references).
    pub fn labels(&self) -> Vec<String> {
        let mut labels = self.names();
        labels.extend(self.references().into_iter().map(|(name, ..)| name));
        labels
    }

    /// The reference level of each factor, by predictor: its name, the place of the intercept, and those of
    /// the other levels.
    pub fn references(&self) -> Vec<(String, Option<usize>, Vec<usize>)> {
        let (terms, intercepts) = (self.terms(), self.intercepts());
        let factors = self.design.terms.iter().zip(&terms).filter_map(|(term, (name, places))| {
            let [factor] = &term.factors[..] else { return None };
            Some((format!("{name}[{}]", factor.levels.get(factor.reference)?), places))
        });
        let each = factors.flat_map(|(level, places)| {
            let own = places.chunks(places.len() / self.family.predictors());
            own.enumerate().map(move |(c, own)| (c, level.clone(), own.to_vec()))
        });
        each.map(|(c, level, own)| {
            let class = self.design.classes.get(c + 1).filter(|_| self.family.predictors() > 1);
            let class = class.map_or(String::new(), |class| format!("{class}: "));
            let name = format!("{class}{level} (the reference level)");
            (name, intercepts.get(c).copied(), own)
        })
        .collect()
    }

    /// Places of the parameters of each term, with its name.
    pub fn terms(&self) -> Vec<(String, Vec<usize>)> {
        let (q, mut at) = (self.columns(), usize::from(self.design.intercept));
        let term = |term: &Term| {
            let own = at..at + term.width();
            at = own.end;
            let places =
                (0..self.family.predictors()).flat_map(|c| own.clone().map(move |j| c * q + j));
            (term.name.clone(), places.collect())
        };
        self.design.terms.iter().map(term).collect()
    }

    /// Places of the parameters of a column of the design.
    pub fn places(&self, column: usize) -> impl Iterator<Item = usize> {
        let (q, first) = (self.columns(), usize::from(self.design.intercept));
        (0..self.family.predictors()).map(move |c| c * q + first + column)
    }

    /// The column of the design that a parameter belongs to; `None` for intercepts and `ln alpha`.
    pub fn column(&self, parameter: usize) -> Option<usize> {
        let is_slope = parameter < self.family.predictors() * self.columns();
        let at = is_slope.then(|| parameter % self.columns())?;
        at.checked_sub(usize::from(self.design.intercept))
    }

    /// Places of the intercepts.
    pub fn intercepts(&self) -> Vec<usize> {
        let count = if self.design.intercept { self.family.predictors() } else { 0 };
        (0..count).map(|c| c * self.columns()).collect()
    }

    /// The scale of a parameter's column; `None` for intercepts and `ln alpha`.
    pub fn scale(&self, scaling: &Scaling, parameter: usize) -> Option<f64> {
        self.column(parameter).map(|column| scaling.scales[column])
    }

    /// The first parameters: the predictor is the mean target's, at the mean offset.
    pub fn start(&self, weights: f64, sum: f64, squares: f64, offset: f64) -> Result<Vec<f64>> {
        let mut theta = vec![0.0; self.parameters()];
        let mean = sum / weights;
        let one_valued = match self.family {
            Family::Cox if self.design.event.is_some() && mean == 0.0 => {
                let what = "there are no events: every time is censored";
                return Err(
                    Error::data(what).hint("`event` names the column that is 1 for an event")
                );
            }
            Family::Binomial => mean <= 0.0 || mean >= 1.0,
            Family::Poisson | Family::NegativeBinomial => mean <= 0.0,
            _ => false,
        };
        if one_valued {
            let what = format!(
                "the target {:?} has one value in all rows",
                self.design.columns[self.design.target]
            );
            return Err(Error::data(what));
        }
        if let (Some(first), true) = (self.intercepts().first(), self.family.predictors() == 1) {
            theta[*first] = self.family.link(mean) - offset;
        }
        if let (Some(last), true) = (theta.last_mut(), self.family.has_alpha()) {
            let excess = (squares / weights - mean * mean - mean) / (mean * mean);
            *last = whimbrel_core::math::ln(excess.max(0.05));
        }
        Ok(theta)
    }

    fn alpha(&self, theta: &[f64]) -> f64 {
        match theta.last() {
            Some(a) if self.family.has_alpha() => whimbrel_core::math::exp(*a),
            _ => 0.0,
        }
    }

    /// Log-likelihood, score and information at `theta`.
    pub fn evaluate(&self, rows: &Rows, scaling: &Scaling, theta: &[f64]) -> Result<Sums> {
        let p = self.parameters();
        if theta.len() != p
            || scaling.means.len() != rows.width
            || rows.width != self.design.width()
        {
            return Err(Error::peer("parameters of another model"));
        }
        let (score, information) = (vec![0.0; p], vec![0.0; packed_len(p)]);
        let mut sums = Sums { score, information, ..Sums::default() };
        match self.family {
            Family::Cox => cox::evaluate(rows, scaling, theta, &mut sums),
            Family::Multinomial { .. } => self.multinomial(rows, scaling, theta, &mut sums),
            _ => self.single(rows, scaling, theta, &mut sums),
        }
        Ok(sums)
    }

    /// Writes the standardised rows of a block, with the intercept's column, and returns their number.
    /// The block is filled up with zeros.
    fn block(&self, rows: &Rows, scaling: &Scaling, from: usize, z: &mut [f64]) -> usize {
        let (k, stride) = (rows.width, stride(self.columns()));
        let count = (rows.len() - from).min(BLOCK);
        z[count * stride..].fill(0.0);
        let x = &rows.x[from * k..][..count * k];
        let inverses: Vec<f64> = scaling.scales.iter().map(|scale| 1.0 / scale).collect();
        let (intercept, z) = (self.design.intercept, &mut z[..count * stride]);
        kernels::standardise(x, &scaling.means, &inverses, intercept, stride, z);
        count
    }

    /// Room for [`Self::block`].
    fn room(&self) -> Vec<f64> {
        vec![0.0; BLOCK * stride(self.columns())]
    }

    /// The coefficients of each predictor, padded like the rows of a block.
    fn padded(&self, theta: &[f64]) -> Vec<f64> {
        let q = self.columns();
        let pad = vec![0.0; stride(q) - q];
        let each = theta.chunks_exact(q.max(1)).take(self.family.predictors());
        each.flat_map(|beta| beta.iter().chain(&pad)).copied().collect()
    }

    /// The linear predictors of all rows, one after the other.
    pub fn predict(&self, rows: &Rows, scaling: &Scaling, theta: &[f64]) -> Vec<Vec<f64>> {
        let stride = stride(self.columns());
        let mut etas = vec![vec![0.0; rows.len()]; self.family.predictors()];
        let (mut z, beta) = (self.room(), self.padded(theta));
        for from in (0..rows.len()).step_by(BLOCK) {
            let count = self.block(rows, scaling, from, &mut z);
            for (eta, beta) in etas.iter_mut().zip(beta.chunks_exact(stride.max(1))) {
                linalg::matvec(&mut eta[from..from + count], &z[..count * stride], beta);
            }
        }
        for eta in &mut etas {
            eta.iter_mut().zip(&rows.offset).for_each(|(eta, offset)| *eta += offset);
        }
        etas
    }

    /// The predictor of one-dimensional families. With an intercept per client, that intercept maximises
    /// the client's likelihood, and columns are centred at their means weighted by the curvatures: sums
    /// over centred rows are the Schur complements of the intercept.
    fn predictor(&self, rows: &Rows, scaling: &Scaling, theta: &[f64]) -> Predictor {
        let mut eta = self.predict(rows, scaling, theta).swap_remove(0);
        let mut scaling = scaling.clone();
        if !self.by_client {
            return Predictor { eta, scaling, silent: false };
        }
        let [_, weights, sum, _] = rows.totals();
        let bounded = match self.family {
            Family::Binomial => sum > 0.0 && sum < weights,
            Family::Poisson => sum > 0.0,
            _ => weights > 0.0,
        };
        if !bounded {
            return Predictor { eta, scaling, silent: true };
        }
        self.profile(rows, &mut eta);
        // Differences from the first row: a column that is constant has its value for a mean, exactly.
        let first = &rows.x[..rows.width];
        let (mut total, mut means) = (0.0, vec![0.0; rows.width]);
        for (row, (eta, y)) in eta.iter().zip(&rows.y).enumerate() {
            let Some(local) = self.family.local(*y, *eta, 0.0) else { continue };
            let w = rows.weight(row) * local.curvature;
            total += w;
            let x = &rows.x[row * rows.width..][..rows.width];
            for ((mean, x), first) in means.iter_mut().zip(x).zip(first) {
                *mean += w * (x - first);
            }
        }
        means.iter_mut().zip(first).for_each(|(mean, first)| *mean = first + *mean / total);
        scaling.means = means;
        Predictor { eta, scaling, silent: false }
    }

    /// Adds the client's own intercept to its predictor, by Newton steps of at most 2.
    fn profile(&self, rows: &Rows, eta: &mut [f64]) {
        for _ in 0..100 {
            let (mut slope, mut curvature) = (0.0, 0.0);
            for (row, (eta, y)) in eta.iter().zip(&rows.y).enumerate() {
                let Some(local) = self.family.local(*y, *eta, 0.0) else { continue };
                slope += rows.weight(row) * local.slope;
                curvature += rows.weight(row) * local.curvature;
            }
            let step = slope / curvature;
            let step = if self.family == Family::Gaussian { step } else { step.clamp(-2.0, 2.0) };
            eta.iter_mut().for_each(|eta| *eta += step);
            if step * slope <= 1e-24 * curvature.max(1.0) {
                break;
            }
        }
    }

    fn single(&self, rows: &Rows, scaling: &Scaling, theta: &[f64], sums: &mut Sums) {
        let (q, stride, alpha) = (self.columns(), stride(self.columns()), self.alpha(theta));
        let own = self.by_client.then(|| self.predictor(rows, scaling, theta));
        if own.as_ref().is_some_and(|own| own.silent) {
            sums.support = f64::INFINITY;
            return;
        }
        let scaling = own.as_ref().map_or(scaling, |own| &own.scaling);
        let mut carried = [Carried::default(); 3];
        let (mut z, beta) = (self.room(), self.padded(theta));
        let mut gram = vec![0.0; stride * stride];
        let [mut eta, mut value, mut u, mut w, mut cross] = [[0.0; BLOCK]; 5];
        let mut weights = Vec::new();
        sums.log_likelihood = rows.constant;
        for from in (0..rows.len()).step_by(BLOCK) {
            let count = self.block(rows, scaling, from, &mut z);
            let (y, eta) = (&rows.y[from..from + count], &mut eta[..count]);
            if let Some(own) = &own {
                eta.copy_from_slice(&own.eta[from..from + count]);
            } else {
                linalg::matvec(eta, &z[..count * stride], &beta);
                let offsets = rows.offset.iter().skip(from);
                eta.iter_mut().zip(offsets).for_each(|(eta, offset)| *eta += offset);
            }
            [&mut u, &mut w, &mut cross].into_iter().for_each(|column| column[count..].fill(0.0));
            family::locals(self.family, alpha, y, eta, [&mut value, &mut u, &mut w]);
            for at in 0..count {
                let weight = rows.weight(from + at);
                if value[at].is_nan() {
                    (sums.invalid, cross[at]) = (sums.invalid + 1.0, 0.0);
                    continue;
                }
                sums.log_likelihood += weight * value[at];
                (u[at], w[at]) = (weight * u[at], weight * w[at]);
                carried[0].add(u[at]);
                carried[1].add(w[at]);
                if self.family.has_alpha() {
                    let own = Family::in_dispersion(y[at], eta[at], alpha);
                    carried[2].add(weight * own.slope);
                    sums.score[q] += weight * own.slope;
                    cross[at] = weight * own.cross;
                    sums.information[packed_len(q + 1) - 1] += weight * own.curvature;
                }
            }
            add_rows(&z, stride, &u, &mut sums.score[..q]);
            add_gram(&z, stride, &w, &mut gram);
            if self.family.has_alpha() {
                add_rows(&z, stride, &cross, &mut sums.information[packed_len(q)..][..q]);
            }
            if rows.groups.least > 0 {
                weights.extend_from_slice(&w[..count]);
            }
        }
        if rows.groups.least > 0 {
            let mut changes = weights.clone();
            rows.groups.settle(&mut changes);
            changes.iter_mut().zip(&weights).for_each(|(settled, w)| *settled -= w);
            self.weighted(rows, scaling, &changes, &mut gram);
        }
        kernels::add_square(&gram, q, (0, 0), &mut sums.information);
        sums.support = Carried::least(&carried);
    }

    /// Adds `Σ w z z^T` over all rows.
    fn weighted(&self, rows: &Rows, scaling: &Scaling, weights: &[f64], gram: &mut [f64]) {
        let mut z = self.room();
        for (at, weights) in weights.chunks(BLOCK).enumerate() {
            if weights.iter().all(|w| *w == 0.0) {
                continue;
            }
            self.block(rows, scaling, at * BLOCK, &mut z);
            let mut w = [0.0; BLOCK];
            w[..weights.len()].copy_from_slice(weights);
            add_gram(&z, stride(self.columns()), &w, gram);
        }
    }

    fn multinomial(&self, rows: &Rows, scaling: &Scaling, theta: &[f64], sums: &mut Sums) {
        let (q, classes) = (self.columns(), self.family.predictors());
        let shares = self.shares(self.predict(rows, scaling, theta));
        let grouped = rows.groups.least > 0;
        let mut carried = vec![Carried::default(); 2 * classes + 1];
        let (mut z, stride) = (self.room(), stride(q));
        let mut gram = vec![0.0; stride * stride];
        let mut column = [0.0; BLOCK];
        for from in (0..rows.len()).step_by(BLOCK) {
            let count = self.block(rows, scaling, from, &mut z);
            let shares = |class: usize, at: usize| shares[class][from + at];
            for at in 0..count {
                let y = rows.y[from + at] as usize;
                sums.log_likelihood +=
                    rows.weight(from + at) * whimbrel_core::math::ln(shares(y, at));
                let first = f64::from(u8::from(y == 0)) - shares(0, at);
                carried[2 * classes].add(rows.weight(from + at) * first);
            }
            column.fill(0.0);
            for a in 0..classes {
                for (at, x) in column[..count].iter_mut().enumerate() {
                    let hit = f64::from(u8::from(rows.y[from + at] as usize == a + 1));
                    *x = rows.weight(from + at) * (hit - shares(a + 1, at));
                    carried[2 * a].add(*x);
                }
                add_rows(&z, stride, &column, &mut sums.score[a * q..][..q]);
                for b in 0..=a {
                    if grouped {
                        break;
                    }
                    for (at, x) in column[..count].iter_mut().enumerate() {
                        let same = f64::from(u8::from(a == b));
                        let spread = shares(a + 1, at) * (same - shares(b + 1, at));
                        *x = rows.weight(from + at) * spread;
                    }
                    if a == b {
                        column[..count].iter().for_each(|x| carried[2 * a + 1].add(*x));
                    }
                    gram.fill(0.0);
                    add_gram(&z, stride, &column, &mut gram);
                    kernels::add_square(&gram, q, (a * q, b * q), &mut sums.information);
                }
            }
        }
        sums.support = Carried::least(&carried);
        if grouped {
            self.grouped_information(rows, scaling, &shares, &mut sums.information);
        }
    }

    /// The information of classes from `Σ w p_a p_b z z^T`, one such sum for each pair of classes: the
    /// blocks of the information and their differences.
    fn grouped_information(
        &self,
        rows: &Rows,
        scaling: &Scaling,
        shares: &[Vec<f64>],
        information: &mut [f64],
    ) {
        let (q, stride) = (self.columns(), stride(self.columns()));
        for a in 1..shares.len() {
            for b in 0..a {
                let pairs = shares[a].iter().zip(&shares[b]).enumerate();
                let mut weights: Vec<f64> =
                    pairs.map(|(row, (a, b))| rows.weight(row) * a * b).collect();
                rows.groups.settle(&mut weights);
                let mut gram = vec![0.0; stride * stride];
                self.weighted(rows, scaling, &weights, &mut gram);
                kernels::add_square(&gram, q, ((a - 1) * q, (a - 1) * q), information);
                if b > 0 {
                    kernels::add_square(&gram, q, ((b - 1) * q, (b - 1) * q), information);
                    gram.iter_mut().for_each(|x| *x = -*x);
                    kernels::add_square(&gram, q, ((a - 1) * q, (b - 1) * q), information);
                }
            }
        }
    }

    /// Probabilities of all classes, class after class, from the predictors of all but the first.
    pub fn shares(&self, etas: Vec<Vec<f64>>) -> Vec<Vec<f64>> {
        let rows = etas.first().map_or(0, Vec::len);
        let mut shares = vec![vec![0.0; rows]];
        shares.extend(etas);
        for row in 0..rows {
            let top = vector::largest(shares.iter().map(|eta| eta[row]));
            let mut sum = 0.0;
            for eta in &mut shares {
                eta[row] = whimbrel_core::math::exp(eta[row] - top);
                sum += eta[row];
            }
            shares.iter_mut().for_each(|share| share[row] /= sum);
        }
        shares
    }

    /// Parameters in the units of the data, and the matrix `T` with `theta_data = T theta` (for `alpha`
    /// its derivative), row after row.
    pub fn in_data_units(&self, scaling: &Scaling, theta: &[f64]) -> (Vec<f64>, Vec<f64>) {
        let (p, q, first) = (self.parameters(), self.columns(), usize::from(self.design.intercept));
        let mut map = vec![0.0; p * p];
        for c in 0..self.family.predictors() {
            for (j, (mean, scale)) in scaling.means.iter().zip(&scaling.scales).enumerate() {
                let at = c * q + first + j;
                map[at * p + at] = 1.0 / scale;
                if self.design.intercept {
                    map[c * q * p + at] = -mean / scale;
                }
            }
            if self.design.intercept {
                map[c * q * p + c * q] = 1.0;
            }
        }
        let mut data = vec![0.0; p];
        linalg::matvec(&mut data, &map, theta);
        if self.family.has_alpha() {
            let alpha = self.alpha(theta);
            (data[p - 1], map[p * p - 1]) = (alpha, alpha);
        }
        (data, map)
    }
}
