//! Regressions over labelled rows: least squares and logistic regression, with an optional penalty
//! and intercept, their smoothness constants and, where they are convex, their optima.
//!
//! With `n` rows `x_i` (a 1 at the end of each where there is an intercept) and targets `y_i`:
//!
//! | problem | `F(w)` | targets |
//! |---|---|---|
//! | [`LeastSquares`] | `(1/n) sum (1/2) (<x_i, w> - y_i)^2 + (ridge/2) ||w||^2` | numbers |
//! | [`Logistic`] | `(1/n) sum ln(1 + exp(-y_i <x_i, w>)) + (ridge/2) ||w||^2` | -1 or 1; or 0 or 1, read as -1 and 1 |
//!
//! The ridge is on every coordinate, the intercept's too, so that `F` is `ridge`-strongly convex.
//! In its place logistic regression may have [`Penalty::Bounded`], and then `F` is not convex: the
//! one problem here that is not.

mod examples;
mod kernels;
mod penalty;
mod solve;
mod spectrum;

pub use examples::Examples;
pub use penalty::Penalty;
pub use solve::{Optimum, solve};
pub use spectrum::{smoothness_of_mean, strong_convexity_of_mean};

use crate::Rows;
use kernels::BLOCK;
use whimbrel_core::{ClientData, Error, Result, math, vector};

/// A smooth function of a parameter `w`, as a mean over a client's rows.
///
/// Rows, parameters and outputs of the wrong length are refused, and so is a point at which the
/// result is not finite.
pub trait Problem: Send + Sync + 'static {
    /// Its name in a job.
    fn name(&self) -> &'static str;
    /// Checks a client's rows (at least one, finite values, targets the problem can use) and lays
    /// them out.
    fn bind(&self, data: &ClientData) -> Result<Examples>;
    /// The same for rows to predict, with targets or without; targets are not read.
    fn bind_features(&self, data: &ClientData) -> Result<Examples>;

    /// Writes the mean gradient over `rows` at `w`, the penalty's included, and returns the mean
    /// loss over those rows, the penalty's included. Allocates nothing once a thread is warm.
    fn gradient(&self, w: &[f64], data: &Examples, rows: Rows<'_>, out: &mut [f64]) -> Result<f64>;
    /// `F(w)` over every row.
    fn loss(&self, w: &[f64], data: &Examples) -> Result<f64>;
    /// Writes the product of the Hessian at `w` and `v`, over every row.
    fn hessian_vector(&self, w: &[f64], data: &Examples, v: &[f64], out: &mut [f64]) -> Result<()>;
    /// Adds `weight` times the Hessian at `w` to the lower triangle of a `d x d` matrix.
    fn add_hessian(&self, w: &[f64], data: &Examples, weight: f64, out: &mut [f64]) -> Result<()>;
    /// One prediction per row: the value, or the probability of class 1.
    fn predict(&self, w: &[f64], data: &Examples, out: &mut [f64]) -> Result<()>;

    /// Whether targets are two classes.
    fn has_classes(&self) -> bool;
    /// What is added to the rows' losses.
    fn penalty(&self) -> Penalty;
    /// Where `F` is not convex, so that no minimum is computed: a bound on `F(0) - inf F`.
    fn gap_at_zero(&self) -> Option<f64>;
    /// The largest second derivative of one row's loss along `<x, w>`.
    fn curvature(&self) -> f64;
    /// `L`: the gradient's Lipschitz constant, the curvature times the largest eigenvalue of
    /// `A^T A / n`, plus the penalty's; to 1e-10, relative. Infinite where squares overflow.
    fn smoothness(&self, data: &Examples) -> f64;
    /// The same with the Frobenius norm in place of the largest eigenvalue (`mcm-2021`'s step).
    fn frobenius(&self, data: &Examples) -> f64;
    /// `mu`: for least squares the smallest eigenvalue of `A^T A / n` plus the ridge, to 1e-10 of
    /// `L`; for logistic regression the ridge. Zero where `F` is not convex.
    fn strong_convexity(&self, data: &Examples) -> f64;
    /// Whether `w` proves that the unregularised loss has no minimiser on these rows: every row
    /// lies strictly on its own side, so that stretching `w` lowers the loss for ever.
    fn separates(&self, w: &[f64], data: &Examples) -> Result<bool>;
}

/// Linear regression by least squares.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LeastSquares {
    ridge: f64,
    intercept: bool,
}

/// Logistic regression with two classes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Logistic {
    penalty: Penalty,
    intercept: bool,
}

impl LeastSquares {
    /// Refuses a ridge that is negative or not finite.
    pub fn new(ridge: f64, intercept: bool) -> Result<Self> {
        Penalty::Ridge(ridge).checked()?;
        Ok(Self { ridge, intercept })
    }
}

impl Logistic {
    /// Refuses a ridge that is negative or not finite.
    pub fn new(ridge: f64, intercept: bool) -> Result<Self> {
        Self::penalised(Penalty::Ridge(ridge), intercept)
    }

    /// Refuses a penalty whose factor is negative or not finite.
    pub fn penalised(penalty: Penalty, intercept: bool) -> Result<Self> {
        Ok(Self { penalty: penalty.checked()?, intercept })
    }
}

/// What tells one loss of `<x, w>` from another.
trait Linear: Send + Sync + 'static {
    const NAME: &'static str;
    const CURVATURE: f64;
    /// Whether the loss curves by [`Self::CURVATURE`] everywhere.
    const QUADRATIC: bool;
    /// Whether targets are two classes.
    const CLASSES: bool;
    /// The loss of every row at `w = 0`, where that does not depend on the row.
    fn loss_at_zero() -> Option<f64>;
    /// Penalty and intercept.
    fn settings(&self) -> (Penalty, bool);
    /// Checks targets and makes them what the loss reads.
    fn targets(given: &[f64]) -> Result<Vec<f64>>;
    /// Products become derivatives, `losses` the losses.
    fn terms(z: &mut [f64; BLOCK], y: &[f64; BLOCK], losses: &mut [f64; BLOCK]);
    /// Products become second derivatives.
    fn curvatures(z: &mut [f64; BLOCK]);
    /// Products become predictions.
    fn predictions(z: &mut [f64]);
}

impl Linear for LeastSquares {
    const NAME: &'static str = "least-squares";
    const CURVATURE: f64 = 1.0;
    const QUADRATIC: bool = true;
    const CLASSES: bool = false;

    fn settings(&self) -> (Penalty, bool) {
        (Penalty::Ridge(self.ridge), self.intercept)
    }

    fn loss_at_zero() -> Option<f64> {
        None
    }

    fn targets(given: &[f64]) -> Result<Vec<f64>> {
        match given.iter().position(|y| !y.is_finite()) {
            None => Ok(given.to_vec()),
            Some(i) => Err(Error::data(format!(
                "row {}: the target is {}, which is not a finite number",
                i + 1,
                given[i]
            ))),
        }
    }

    fn terms(z: &mut [f64; BLOCK], y: &[f64; BLOCK], losses: &mut [f64; BLOCK]) {
        kernels::squared_terms(z, y, losses);
    }

    fn curvatures(z: &mut [f64; BLOCK]) {
        z.fill(1.0);
    }

    fn predictions(_: &mut [f64]) {}
}

impl Linear for Logistic {
    const NAME: &'static str = "logistic";
    const CURVATURE: f64 = 0.25;
    const QUADRATIC: bool = false;
    const CLASSES: bool = true;

    fn settings(&self) -> (Penalty, bool) {
        (self.penalty, self.intercept)
    }

    fn loss_at_zero() -> Option<f64> {
        Some(math::ln(2.0))
    }

    fn targets(given: &[f64]) -> Result<Vec<f64>> {
        let zero_one = given.contains(&0.0);
        let lower = if zero_one { 0.0 } else { -1.0 };
        let read = |(i, y): (usize, &f64)| match *y {
            1.0 => Ok(1.0),
            y if y == lower => Ok(-1.0),
            y => Err(Error::data(format!(
                "row {}: the target is {y}; logistic regression needs {}",
                i + 1,
                if zero_one { "0 or 1 where another row has 0" } else { "-1 or 1, or 0 or 1" }
            ))),
        };
        given.iter().enumerate().map(read).collect()
    }

    fn terms(z: &mut [f64; BLOCK], y: &[f64; BLOCK], losses: &mut [f64; BLOCK]) {
        kernels::logistic_terms(z, y, losses);
    }

    fn curvatures(z: &mut [f64; BLOCK]) {
        kernels::logistic_curvatures(z);
    }

    fn predictions(z: &mut [f64]) {
        kernels::sigmoid(z);
    }
}

impl<P: Linear> Problem for P {
    fn name(&self) -> &'static str {
        P::NAME
    }

    fn bind(&self, data: &ClientData) -> Result<Examples> {
        Examples::bind(data, self.settings().1, P::targets)
    }

    fn bind_features(&self, data: &ClientData) -> Result<Examples> {
        Examples::bind_features(data, self.settings().1)
    }

    fn gradient(&self, w: &[f64], data: &Examples, rows: Rows<'_>, out: &mut [f64]) -> Result<f64> {
        data.check(w, rows)?;
        check_length(out, data.dimension())?;
        let (mut total, mut y, mut losses) = (0.0, [0.0; BLOCK], [0.0; BLOCK]);
        data.transposed(w, rows, out, |chosen, z| {
            for (y, i) in y.iter_mut().zip(chosen) {
                *y = data.targets()[*i as usize];
            }
            P::terms(z, &y, &mut losses);
            total += kernels::sum(&losses[..chosen.len()]);
        });
        let count = match rows {
            Rows::All => data.rows(),
            Rows::These(chosen) => chosen.len(),
        };
        let mean = 1.0 / count as f64;
        vector::scale(out, mean);
        let penalty = self.penalty().add_gradient(w, out);
        finite(total * mean + penalty, out)
    }

    fn loss(&self, w: &[f64], data: &Examples) -> Result<f64> {
        data.check(w, Rows::All)?;
        let mut z = vec![0.0; data.rows()];
        data.products(w, &mut z);
        let (mut total, mut losses) = (0.0, [0.0; BLOCK]);
        let (mut block, mut y) = ([0.0; BLOCK], [0.0; BLOCK]);
        for (z, targets) in z.chunks(BLOCK).zip(data.targets().chunks(BLOCK)) {
            block[..z.len()].copy_from_slice(z);
            y[..z.len()].copy_from_slice(targets);
            P::terms(&mut block, &y, &mut losses);
            total += kernels::sum(&losses[..z.len()]);
        }
        finite(total / data.rows() as f64 + self.penalty().value(w), &[])
    }

    fn hessian_vector(&self, w: &[f64], data: &Examples, v: &[f64], out: &mut [f64]) -> Result<()> {
        data.check(w, Rows::All)?;
        data.check(v, Rows::All)?;
        check_length(out, data.dimension())?;
        let mut curvatures = vec![1.0; data.rows()];
        if !P::QUADRATIC {
            data.products(w, &mut curvatures);
        }
        let mut block = [0.0; BLOCK];
        data.transposed(v, Rows::All, out, |chosen, z| {
            let first = chosen[0] as usize;
            block[..chosen.len()].copy_from_slice(&curvatures[first..][..chosen.len()]);
            P::curvatures(&mut block);
            z.iter_mut().zip(&block).for_each(|(z, a)| *z *= a);
        });
        vector::scale(out, 1.0 / data.rows() as f64);
        let penalty = self.penalty();
        for ((out, v), x) in out.iter_mut().zip(v).zip(w) {
            *out += penalty.second_derivative(*x) * v;
        }
        finite(0.0, out).map(|_| ())
    }

    fn add_hessian(&self, w: &[f64], data: &Examples, weight: f64, out: &mut [f64]) -> Result<()> {
        data.check(w, Rows::All)?;
        let d = data.dimension();
        check_length(out, d * d)?;
        let mut curvatures = vec![1.0; data.rows()];
        if !P::QUADRATIC {
            data.products(w, &mut curvatures);
        }
        let share = weight / data.rows() as f64;
        data.add_outer(out, |chosen, a| {
            let first = chosen[0] as usize;
            a[..chosen.len()].copy_from_slice(&curvatures[first..][..chosen.len()]);
            P::curvatures(a);
            a.iter_mut().for_each(|a| *a *= share);
        });
        let penalty = self.penalty();
        (0..d).for_each(|j| out[j * d + j] += weight * penalty.second_derivative(w[j]));
        finite(0.0, out).map(|_| ())
    }

    fn predict(&self, w: &[f64], data: &Examples, out: &mut [f64]) -> Result<()> {
        data.check(w, Rows::All)?;
        check_length(out, data.rows())?;
        data.products(w, out);
        P::predictions(out);
        finite(0.0, out).map(|_| ())
    }

    fn has_classes(&self) -> bool {
        P::CLASSES
    }

    fn penalty(&self) -> Penalty {
        self.settings().0
    }

    fn gap_at_zero(&self) -> Option<f64> {
        // No penalty at zero, and neither it nor a row's loss is ever negative.
        if self.penalty().is_convex() { None } else { P::loss_at_zero() }
    }

    fn curvature(&self) -> f64 {
        P::CURVATURE
    }

    fn smoothness(&self, data: &Examples) -> f64 {
        P::CURVATURE * spectrum::largest(&[(1.0, data)]) + self.penalty().smoothness()
    }

    fn frobenius(&self, data: &Examples) -> f64 {
        P::CURVATURE * spectrum::frobenius(data) + self.penalty().smoothness()
    }

    fn strong_convexity(&self, data: &Examples) -> f64 {
        let smallest = if P::QUADRATIC { spectrum::smallest(&[(1.0, data)]) } else { 0.0 };
        smallest + self.penalty().strong_convexity()
    }

    fn separates(&self, w: &[f64], data: &Examples) -> Result<bool> {
        data.check(w, Rows::All)?;
        if P::QUADRATIC || self.penalty().strong_convexity() > 0.0 {
            return Ok(false);
        }
        let mut z = vec![0.0; data.rows()];
        data.products(w, &mut z);
        Ok(z.iter().zip(data.targets()).all(|(z, y)| z * y > 0.0))
    }
}

fn check_length(out: &[f64], wanted: usize) -> Result<()> {
    if out.len() == wanted {
        return Ok(());
    }
    Err(Error::internal(format!("room for {} numbers where {wanted} are written", out.len())))
}

fn finite(value: f64, others: &[f64]) -> Result<f64> {
    if value.is_finite() && vector::all_finite(others) {
        return Ok(value);
    }
    Err(Error::numerical("the loss or its derivatives at this point are not finite numbers"))
}
