//! Least-squares federations: `y = <x, w_i> + noise`.
//!
//! The toy sets of Philippenko and Dieuleveut (*Preserved central model for faster bidirectional
//! compression in distributed settings*, 2021, section 5): 20 identical clients, without noise (for
//! a linear rate) or with noise. The text leaves the dimension and the law of rows open. Rows per
//! client, correlation, noise level and `w` follow the published code; the dimension is 20, and the
//! constant 2 that the code adds to every target is left out, since `w` has no intercept. The
//! code's noisy set adds one number per client; here, as in the text, every row has its own noise.
//!
//! Row `r` of client `i` depends on the key, `i` and `r` only.

use crate::split::client_name;
use crate::{Error, Result};
use whimbrel_core::{FeatureRows, Key, Labelled, math};

/// A least-squares federation to draw. Default: the noise-free toy set; with `noise: 0.4`, the noisy
/// one.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LeastSquaresSpec {
    /// Default 20.
    pub clients: usize,
    /// Rows per client; default 200.
    pub rows: usize,
    /// Columns; default 20.
    pub dims: usize,
    /// The correlation of neighbouring columns: the covariance of columns `a` and `b` is
    /// `correlation^|a - b|`; default 0.6.
    pub correlation: f64,
    /// The standard deviation of the noise on each row's target; default 0.
    pub noise: f64,
    /// The standard deviation of each coordinate of `w_i - w`; default 0: clients alike.
    pub heterogeneity: f64,
}

/// A drawn federation.
#[derive(Debug, Clone, PartialEq)]
pub struct LeastSquares {
    /// The clients' names and rows.
    pub clients: Vec<(String, Labelled)>,
    /// The coefficients `w`, the mean of the clients' `w_i`.
    pub w: Vec<f64>,
}

impl Default for LeastSquaresSpec {
    fn default() -> Self {
        Self { clients: 20, rows: 200, dims: 20, correlation: 0.6, noise: 0.0, heterogeneity: 0.0 }
    }
}

impl LeastSquaresSpec {
    /// Draws the clients' rows around `w_j = (-1)^(j+1) exp(-j / 10)`, `j` from 0. Without noise
    /// and heterogeneity `w` minimises every client's loss.
    pub fn draw(&self, key: Key) -> Result<LeastSquares> {
        self.check()?;
        let sign = |j: usize| if j.is_multiple_of(2) { -1.0 } else { 1.0 };
        let w: Vec<f64> = (0..self.dims).map(|j| sign(j) * math::exp(-(j as f64) / 10.0)).collect();
        let clients = (0..self.clients)
            .map(|i| Ok((client_name(i, self.clients), self.client(i, &w, key)?)))
            .collect::<Result<_>>()?;
        Ok(LeastSquares { clients, w })
    }

    fn client(&self, i: usize, w: &[f64], key: Key) -> Result<Labelled> {
        let mut own = key.child(tag::COEFFICIENTS).child(i as u64).stream();
        let w_i: Vec<f64> = w.iter().map(|w| w + self.heterogeneity * own.normal()).collect();
        let rows_key = key.child(tag::ROWS).child(i as u64);
        let mut values = vec![0.0; self.rows * self.dims];
        let mut targets = Vec::with_capacity(self.rows);
        let fresh = (1.0 - self.correlation * self.correlation).sqrt();
        for (r, x) in values.chunks_exact_mut(self.dims).enumerate() {
            let mut stream = rows_key.child(r as u64).stream();
            // x_0 = z_0, x_j = rho x_{j-1} + sqrt(1 - rho^2) z_j has covariance rho^|a - b|.
            stream.fill_normal(x);
            for j in 1..x.len() {
                x[j] = self.correlation * x[j - 1] + fresh * x[j];
            }
            let clean: f64 = x.iter().zip(&w_i).map(|(x, w)| x * w).sum();
            targets.push(clean + self.noise * stream.normal());
        }
        let columns = (1..=self.dims).map(|j| format!("x{j}")).collect();
        Ok(Labelled::new(columns, FeatureRows::Dense(values), targets)?)
    }

    fn check(&self) -> Result<()> {
        let refuse = |what: String, hint: &str| Err(Error::config(what).hint(hint));
        let Self { clients, rows, dims, correlation, noise, heterogeneity } = *self;
        if clients == 0 || rows == 0 || dims == 0 {
            let what = format!("{clients} clients with {rows} rows of {dims} columns are empty");
            return refuse(what, "all three must be positive");
        }
        if !(correlation > -1.0 && correlation < 1.0) {
            let what = format!("correlation = {correlation} is not the correlation of two columns");
            return refuse(what, "give a number between -1 and 1");
        }
        for (name, value) in [("noise", noise), ("heterogeneity", heterogeneity)] {
            if !(value >= 0.0 && value.is_finite()) {
                let what = format!("{name} = {value} is not a standard deviation");
                return refuse(what, "give zero or a positive number");
            }
        }
        Ok(())
    }
}

/// Key tags.
mod tag {
    pub const COEFFICIENTS: u64 = 1;
    pub const ROWS: u64 = 2;
}
