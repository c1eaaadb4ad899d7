//! Generalised linear models and Cox's model: log-likelihood, score and information as sums over rows.
//!
//! Parameters are the coefficients of standardised columns, predictor after predictor, the intercept
//! first; the negative binomial's `ln alpha` is last. McCullagh and Nelder, *Generalized Linear Models*
//! (1989), chapter 2.

mod cox;
mod design;
mod family;
pub mod inference;
mod kernels;
mod misfit;

pub use design::{Design, Factor, Term};
pub use family::{Family, Local};
pub use misfit::{Asked, BINS, Errors, Misfit};

use kernels::{BLOCK, add_gram, add_rows};
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

    /// `(rows, Σ w, Σ w y, Σ w y²)`.
    pub fn totals(&self) -> [f64; 4] {
        let mut totals = [self.len() as f64, 0.0, 0.0, 0.0];
        for (row, y) in self.y.iter().enumerate() {
            let w = self.weight(row);
            (totals[1], totals[2], totals[3]) =
                (totals[1] + w, totals[2] + w * y, totals[3] + w * y * y);
        }
        totals
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
    /// `Σ |u| / max |u|` over the rows' derivatives: the number of rows that the sums rest on.
    pub support: f64,
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

    /// Places of the intercepts.
    pub fn intercepts(&self) -> Vec<usize> {
        let count = if self.design.intercept { self.family.predictors() } else { 0 };
        (0..count).map(|c| c * self.columns()).collect()
    }

    /// The scale of a parameter's column; `None` for intercepts and `ln alpha`.
    pub fn scale(&self, scaling: &Scaling, parameter: usize) -> Option<f64> {
        if parameter >= self.family.predictors() * self.columns() {
            return None;
        }
        let column =
            (parameter % self.columns()).checked_sub(usize::from(self.design.intercept))?;
        Some(scaling.scales[column])
    }

    /// The first parameters, at the mean target.
    pub fn start(&self, weights: f64, sum: f64, squares: f64) -> Result<Vec<f64>> {
        let mut theta = vec![0.0; self.parameters()];
        let mean = sum / weights;
        let one_valued = match self.family {
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
            theta[*first] = self.family.link(mean);
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
        let (k, q) = (rows.width, self.columns());
        let count = (rows.len() - from).min(BLOCK);
        z[count * q..].fill(0.0);
        let x = &rows.x[from * k..][..count * k];
        let inverses: Vec<f64> = scaling.scales.iter().map(|scale| 1.0 / scale).collect();
        let intercept = self.design.intercept;
        kernels::standardise(x, &scaling.means, &inverses, intercept, &mut z[..count * q]);
        count
    }

    /// The linear predictors of all rows, one after the other.
    pub fn predict(&self, rows: &Rows, scaling: &Scaling, theta: &[f64]) -> Vec<Vec<f64>> {
        let q = self.columns();
        let mut etas = vec![vec![0.0; rows.len()]; self.family.predictors()];
        let mut z = vec![0.0; BLOCK * q];
        for from in (0..rows.len()).step_by(BLOCK) {
            let count = self.block(rows, scaling, from, &mut z);
            for (eta, beta) in etas.iter_mut().zip(theta.chunks(q.max(1))) {
                if q > 0 {
                    linalg::matvec(&mut eta[from..from + count], &z[..count * q], beta);
                }
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
        let (mut total, mut means) = (0.0, vec![0.0; rows.width]);
        for (row, (eta, y)) in eta.iter().zip(&rows.y).enumerate() {
            let Some(local) = self.family.local(*y, *eta, 0.0) else { continue };
            let w = rows.weight(row) * local.curvature;
            total += w;
            vector::axpy(&mut means, w, &rows.x[row * rows.width..][..rows.width]);
        }
        vector::scale(&mut means, 1.0 / total);
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
        let (q, alpha) = (self.columns(), self.alpha(theta));
        let Predictor { eta, scaling, silent } = self.predictor(rows, scaling, theta);
        if silent {
            sums.support = f64::INFINITY;
            return;
        }
        let (mut largest, mut total) = (0.0f64, 0.0);
        let mut z = vec![0.0; BLOCK * q];
        let [mut u, mut w, mut cross] = [[0.0; BLOCK]; 3];
        for from in (0..rows.len()).step_by(BLOCK) {
            let count = self.block(rows, &scaling, from, &mut z);
            [&mut u, &mut w, &mut cross].into_iter().for_each(|column| column.fill(0.0));
            for at in 0..count {
                let (y, eta, weight) = (rows.y[from + at], eta[from + at], rows.weight(from + at));
                let Some(local) = self.family.local(y, eta, alpha) else {
                    sums.invalid += 1.0;
                    continue;
                };
                sums.log_likelihood += weight * local.log_likelihood;
                (u[at], w[at]) = (weight * local.slope, weight * local.curvature);
                (largest, total) = (largest.max(u[at].abs()), total + u[at].abs());
                if self.family.has_alpha() {
                    let own = Family::in_dispersion(y, eta, alpha);
                    sums.score[q] += weight * own.slope;
                    cross[at] = weight * own.cross;
                    sums.information[packed_len(q + 1) - 1] += weight * own.curvature;
                }
            }
            add_rows(&z, q, &u, &mut sums.score[..q]);
            add_gram(&z, q, &w, &mut sums.information[..packed_len(q)]);
            if self.family.has_alpha() {
                add_rows(&z, q, &cross, &mut sums.information[packed_len(q)..][..q]);
            }
        }
        sums.support = if largest > 0.0 { total / largest } else { f64::INFINITY };
    }

    fn multinomial(&self, rows: &Rows, scaling: &Scaling, theta: &[f64], sums: &mut Sums) {
        let (q, classes) = (self.columns(), self.family.predictors());
        let shares = self.shares(self.predict(rows, scaling, theta));
        let (mut largest, mut total) = (0.0f64, 0.0);
        let mut z = vec![0.0; BLOCK * q];
        let mut gram = vec![0.0; packed_len(q)];
        let mut column = [0.0; BLOCK];
        for from in (0..rows.len()).step_by(BLOCK) {
            let count = self.block(rows, scaling, from, &mut z);
            let shares = |class: usize, at: usize| shares[class][from + at];
            for at in 0..count {
                let y = rows.y[from + at] as usize;
                sums.log_likelihood +=
                    rows.weight(from + at) * whimbrel_core::math::ln(shares(y, at));
                let distance = rows.weight(from + at) * (1.0 - shares(y, at));
                (largest, total) = (largest.max(distance), total + distance);
            }
            column.fill(0.0);
            for a in 0..classes {
                for (at, x) in column[..count].iter_mut().enumerate() {
                    let hit = f64::from(u8::from(rows.y[from + at] as usize == a + 1));
                    *x = rows.weight(from + at) * (hit - shares(a + 1, at));
                }
                add_rows(&z, q, &column, &mut sums.score[a * q..][..q]);
                for b in 0..=a {
                    for (at, x) in column[..count].iter_mut().enumerate() {
                        let same = f64::from(u8::from(a == b));
                        let spread = shares(a + 1, at) * (same - shares(b + 1, at));
                        *x = rows.weight(from + at) * spread;
                    }
                    gram.fill(0.0);
                    add_gram(&z, q, &column, &mut gram);
                    kernels::add_square(&gram, q, (a * q, b * q), &mut sums.information);
                }
            }
        }
        sums.support = if largest > 0.0 { total / largest } else { f64::INFINITY };
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
