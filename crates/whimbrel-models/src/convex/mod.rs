//! Regressions over labelled rows: least squares and logistic regression, with an optional penalty
//! and intercept, their smoothness constants and, where they are convex, their optima.
//!
//! With `n` rows `x_i` (a 1 at the end of each where there is an intercept) and targets `y_i`:
//!
//! | problem | `F(w)` | targets |
//! |---|---|---|
//! | [`Problem::least_squares`] | `(1/n) sum (1/2) (<x_i, w> - y_i)^2 + (ridge/2) ||w||^2` | numbers |
//! | [`Problem::logistic`] | `(1/n) sum ln(1 + exp(-y_i <x_i, w>)) + (ridge/2) ||w||^2` | -1 or 1; or 0 or 1, read as -1 and 1 |
//!
//! The ridge acts on every coordinate, so that `F` is `ridge`-strongly convex, unless the intercept is
//! left out of it ([`Problem::with_free_intercept`]).
//! Logistic regression may have [`Penalty::Bounded`] instead of a ridge; `F` is then not convex.

mod examples;
mod kernels;
mod penalty;
mod solve;
mod spectrum;

pub use examples::Examples;
pub use penalty::Penalty;
pub use solve::{Optimum, solve};

use crate::{Rows, Support};
use kernels::BLOCK;
use whimbrel_core::{ClientData, Error, Result, math, vector};

/// A regression: a smooth function of a parameter `w`, as a mean over a client's rows.
///
/// Rows, parameters and outputs of the wrong length are refused, and so is a point at which the
/// result is not finite.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Problem {
    loss: Loss,
    penalty: Penalty,
    intercept: bool,
    /// Whether the penalty leaves the intercept out.
    free: bool,
}

impl Problem {
    /// Linear regression by least squares; refuses a ridge that is negative or not finite.
    pub fn least_squares(ridge: f64, intercept: bool) -> Result<Self> {
        let penalty = Penalty::Ridge(ridge).checked()?;
        Ok(Self { loss: Loss::Squares, penalty, intercept, free: false })
    }

    /// Logistic regression with two classes and a ridge.
    pub fn logistic(ridge: f64, intercept: bool) -> Result<Self> {
        Self::penalised_logistic(Penalty::Ridge(ridge), intercept)
    }

    /// Logistic regression with any penalty; refuses a factor that is negative or not finite.
    pub fn penalised_logistic(penalty: Penalty, intercept: bool) -> Result<Self> {
        Ok(Self { loss: Loss::Logistic, penalty: penalty.checked()?, intercept, free: false })
    }

    /// The same problem without a penalty on the intercept.
    #[must_use]
    pub fn with_free_intercept(self) -> Self {
        Self { free: self.intercept, ..self }
    }

    /// The coefficients that the penalty acts on.
    fn penalised<'a>(&self, w: &'a [f64]) -> &'a [f64] {
        &w[..w.len() - usize::from(self.free)]
    }

    /// The problem's name in a job.
    pub fn name(&self) -> &'static str {
        match self.loss {
            Loss::Squares => "least-squares",
            Loss::Logistic => "logistic",
        }
    }

    /// Checks a client's rows (at least one, finite values, targets that the loss accepts) and lays
    /// them out.
    pub fn bind(&self, data: &ClientData) -> Result<Examples> {
        Examples::bind(data, self.intercept, |given| self.loss.targets(given))
    }

    /// Checks and lays out rows to predict, with targets or without; targets are not read.
    pub fn bind_features(&self, data: &ClientData) -> Result<Examples> {
        Examples::bind_features(data, self.intercept)
    }

    /// Writes the mean gradient over `rows` at `w` and returns the mean loss over those rows, the
    /// penalty included in both. Allocates nothing once a thread is warm.
    pub fn gradient(
        &self,
        w: &[f64],
        data: &Examples,
        rows: Rows<'_>,
        out: &mut [f64],
    ) -> Result<f64> {
        let count = match rows {
            Rows::All => data.rows(),
            Rows::These(chosen) => chosen.len(),
        };
        let loss = self.sum_of_gradients(w, data, rows, count as f64, out, |_, _| {})?;
        finite(loss, out)
    }

    /// The gradient with a bounded influence of each row: a row's gradient, without the penalty, is
    /// multiplied by `min(1, bound/norm)`. The sum over `rows` is divided by `count`.
    pub fn clipped_gradient(
        &self,
        w: &[f64],
        data: &Examples,
        (rows, count): (Rows<'_>, f64),
        bound: f64,
        out: &mut [f64],
    ) -> Result<f64> {
        let loss = self.sum_of_gradients(w, data, rows, count, out, |chosen, slopes| {
            for (slope, row) in slopes.iter_mut().zip(chosen) {
                // The gradient of a row is its slope times its features. One that is not finite counts
                // as zero: a failure would tell of single rows.
                let norm = slope.abs() * data.row_norm(*row);
                *slope = if norm.is_finite() { *slope * (bound / norm).min(1.0) } else { 0.0 };
            }
        })?;
        finite(0.0, out)?;
        Ok(loss)
    }

    /// The sum of gradients over `count`; `adjust` may change the slopes `d loss / d <x, w>` of a
    /// block of rows.
    fn sum_of_gradients(
        &self,
        w: &[f64],
        data: &Examples,
        rows: Rows<'_>,
        count: f64,
        out: &mut [f64],
        adjust: impl Fn(&[u32], &mut [f64]),
    ) -> Result<f64> {
        data.check(w, rows)?;
        check_length(out, data.dimension())?;
        let (mut total, mut y, mut losses) = (0.0, [0.0; BLOCK], [0.0; BLOCK]);
        data.transposed(w, rows, out, |chosen, z| {
            for (y, i) in y.iter_mut().zip(chosen) {
                *y = data.targets()[*i as usize];
            }
            self.loss.terms(z, &y, &mut losses);
            adjust(chosen, &mut z[..chosen.len()]);
            total += kernels::sum(&losses[..chosen.len()]);
        });
        let mean = 1.0 / count;
        vector::scale(out, mean);
        let penalty = self.penalty.add_gradient(self.penalised(w), out);
        Ok(total * mean + penalty)
    }

    /// The support of the gradient over `rows` at `w`: each row weighs the norm of its own gradient.
    pub fn gradient_support(&self, w: &[f64], data: &Examples, rows: Rows<'_>) -> Result<Support> {
        data.check(w, rows)?;
        let (mut y, mut losses) = ([0.0; BLOCK], [0.0; BLOCK]);
        let (mut mass, mut largest) = (0.0, 0.0f64);
        data.each_product(w, rows, |chosen, z| {
            for (y, i) in y.iter_mut().zip(chosen) {
                *y = data.targets()[*i as usize];
            }
            self.loss.terms(z, &y, &mut losses);
            for (c, i) in z.iter().zip(chosen) {
                let norm = c.abs() * data.row_norm(*i);
                mass += norm;
                largest = largest.max(norm);
            }
        });
        Ok(Support::new(mass, largest * rows.most_repeats()))
    }

    /// `F(w)` over every row.
    pub fn loss(&self, w: &[f64], data: &Examples) -> Result<f64> {
        data.check(w, Rows::All)?;
        let mut z = vec![0.0; data.rows()];
        data.products(w, &mut z);
        let (mut total, mut losses) = (0.0, [0.0; BLOCK]);
        let (mut block, mut y) = ([0.0; BLOCK], [0.0; BLOCK]);
        for (z, targets) in z.chunks(BLOCK).zip(data.targets().chunks(BLOCK)) {
            block[..z.len()].copy_from_slice(z);
            y[..z.len()].copy_from_slice(targets);
            self.loss.terms(&mut block, &y, &mut losses);
            total += kernels::sum(&losses[..z.len()]);
        }
        finite(total / data.rows() as f64 + self.penalty.value(self.penalised(w)), &[])
    }

    /// `F(w)` over every row, with the largest losses lowered to the point where the sum is `group`
    /// times the largest: a lower bound that no smaller number of rows determines.
    pub fn loss_of_groups(&self, w: &[f64], data: &Examples, group: u32) -> Result<f64> {
        data.check(w, Rows::All)?;
        let mut each = Vec::with_capacity(data.rows());
        let (mut y, mut losses) = ([0.0; BLOCK], [0.0; BLOCK]);
        data.each_product(w, Rows::All, |chosen, z| {
            for (y, i) in y.iter_mut().zip(chosen) {
                *y = data.targets()[*i as usize];
            }
            self.loss.terms(z, &y, &mut losses);
            each.extend_from_slice(&losses[..chosen.len()]);
        });
        finite(mean_of_groups(&mut each, group) + self.penalty.value(self.penalised(w)), &[])
    }

    /// Writes the product of the Hessian at `w` and `v`, over every row.
    pub fn hessian_vector(
        &self,
        w: &[f64],
        data: &Examples,
        v: &[f64],
        out: &mut [f64],
    ) -> Result<()> {
        data.check(w, Rows::All)?;
        data.check(v, Rows::All)?;
        check_length(out, data.dimension())?;
        let curvatures = self.curvatures(w, data);
        data.transposed(v, Rows::All, out, |chosen, z| {
            let own = &curvatures[chosen[0] as usize..];
            z.iter_mut().zip(own).for_each(|(z, a)| *z *= a);
        });
        vector::scale(out, 1.0 / data.rows() as f64);
        for ((out, v), x) in out.iter_mut().zip(v).zip(self.penalised(w)) {
            *out += self.penalty.second_derivative(*x) * v;
        }
        finite(0.0, out).map(|_| ())
    }

    /// Adds `weight` times the Hessian at `w` to the lower triangle of a `d x d` matrix.
    pub fn add_hessian(
        &self,
        w: &[f64],
        data: &Examples,
        weight: f64,
        out: &mut [f64],
    ) -> Result<()> {
        data.check(w, Rows::All)?;
        let d = data.dimension();
        check_length(out, d * d)?;
        let curvatures = self.curvatures(w, data);
        let share = weight / data.rows() as f64;
        data.add_outer(out, |chosen, a| {
            let own = &curvatures[chosen[0] as usize..];
            a.iter_mut().zip(own).for_each(|(a, own)| *a = own * share);
        });
        for (j, x) in self.penalised(w).iter().enumerate() {
            out[j * d + j] += weight * self.penalty.second_derivative(*x);
        }
        finite(0.0, out).map(|_| ())
    }

    /// The second derivative of each row's loss along `<x, w>`.
    fn curvatures(&self, w: &[f64], data: &Examples) -> Vec<f64> {
        let mut curvatures = vec![1.0; data.rows()];
        if self.loss == Loss::Logistic {
            data.products(w, &mut curvatures);
            kernels::logistic_curvatures(&mut curvatures);
        }
        curvatures
    }

    /// One prediction per row: the value, or the probability of class 1.
    pub fn predict(&self, w: &[f64], data: &Examples, out: &mut [f64]) -> Result<()> {
        data.check(w, Rows::All)?;
        check_length(out, data.rows())?;
        data.products(w, out);
        if self.loss == Loss::Logistic {
            kernels::sigmoid(out);
        }
        finite(0.0, out).map(|_| ())
    }

    /// Whether targets are two classes.
    pub fn has_classes(&self) -> bool {
        self.loss == Loss::Logistic
    }

    /// The penalty on the coefficients.
    pub fn penalty(&self) -> Penalty {
        self.penalty
    }

    /// A bound on `F(0) - inf F` where `F` is not convex, so that no minimum is computed; `None`
    /// where it is convex.
    pub fn gap_at_zero(&self) -> Option<f64> {
        // Only logistic regression takes such a penalty. Every row's loss is ln 2 at zero, the penalty
        // is zero there, and neither is ever negative.
        (!self.penalty.is_convex()).then(|| math::ln(2.0))
    }

    /// The largest second derivative of one row's loss along `<x, w>`.
    pub fn curvature(&self) -> f64 {
        match self.loss {
            Loss::Squares => 1.0,
            Loss::Logistic => 0.25,
        }
    }

    /// `L`, the Lipschitz constant of the gradient: the curvature times the largest eigenvalue of
    /// `A^T A / n`, plus the penalty's; to a relative accuracy of 1e-10. Infinite where squares
    /// overflow.
    pub fn smoothness(&self, data: &Examples) -> f64 {
        self.curvature() * spectrum::largest(&[(1.0, data)]) + self.penalty.smoothness()
    }

    /// `L` with the Frobenius norm in place of the largest eigenvalue (the step of `mcm-2021`).
    pub fn frobenius(&self, data: &Examples) -> f64 {
        self.curvature() * spectrum::frobenius(data) + self.penalty.smoothness()
    }

    /// `mu`: for least squares the smallest eigenvalue of `A^T A / n` plus the ridge, to 1e-10 of
    /// `L`; for logistic regression the ridge. A ridge that leaves the intercept out adds nothing. Zero
    /// where `F` is not convex.
    pub fn strong_convexity(&self, data: &Examples) -> f64 {
        let smallest = match self.loss {
            Loss::Squares => spectrum::smallest(&[(1.0, data)]),
            Loss::Logistic => 0.0,
        };
        if self.free { smallest } else { smallest + self.penalty.strong_convexity() }
    }

    /// Whether `w` proves that the unpenalised loss has no minimiser on these rows: `w` separates the
    /// classes strictly, so that scaling it up lowers the loss without end.
    pub fn separates(&self, w: &[f64], data: &Examples) -> Result<bool> {
        data.check(w, Rows::All)?;
        if self.loss == Loss::Squares || self.penalty.strong_convexity() > 0.0 {
            return Ok(false);
        }
        let mut z = vec![0.0; data.rows()];
        data.products(w, &mut z);
        Ok(z.iter().zip(data.targets()).all(|(z, y)| z * y > 0.0))
    }
}

/// The loss of one row as a function of `<x, w>`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Loss {
    Squares,
    Logistic,
}

impl Loss {
    /// Checks targets and converts them to the form that the loss reads.
    fn targets(self, given: &[f64]) -> Result<Vec<f64>> {
        let zero_one = given.contains(&0.0);
        let lower = if zero_one { 0.0 } else { -1.0 };
        let read = |(i, y): (usize, &f64)| match (self, *y) {
            (Self::Squares, y) if y.is_finite() => Ok(y),
            (Self::Squares, y) => Err(Error::data(format!(
                "row {}: the target is {y}, which is not a finite number",
                i + 1
            ))),
            (Self::Logistic, 1.0) => Ok(1.0),
            (Self::Logistic, y) if y == lower => Ok(-1.0),
            (Self::Logistic, y) => Err(Error::data(format!(
                "row {}: the target is {y}; logistic regression needs {}",
                i + 1,
                if zero_one { "0 or 1 where another row has 0" } else { "-1 or 1, or 0 or 1" }
            ))),
        };
        given.iter().enumerate().map(read).collect()
    }

    /// Replaces products by derivatives and writes the losses.
    fn terms(self, z: &mut [f64; BLOCK], y: &[f64; BLOCK], losses: &mut [f64; BLOCK]) {
        match self {
            Self::Squares => kernels::squared_terms(z, y, losses),
            Self::Logistic => kernels::logistic_terms(z, y, losses),
        }
    }
}

/// The mean of non-negative numbers, those above [`ceiling_of_groups`] lowered to it.
fn mean_of_groups(x: &mut [f64], group: u32) -> f64 {
    let most = crate::ceiling_of_groups(x, group);
    x.iter().map(|x| x.min(most)).sum::<f64>() / x.len() as f64
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
