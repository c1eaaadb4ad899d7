//! The minimiser of a weighted mean of clients' losses, to a given norm of the gradient.
//!
//! Newton's method from zero, with a line search. Up to [`DENSE_MAX`] coordinates the Hessian is
//! formed and factored; a shift of a few ulps of its diagonal carries the factorisation over
//! directions in which the loss does not change, and those are removed from the result. Above
//! [`DENSE_MAX`], conjugate gradients, which stay in the span of the rows, find the step from products
//! with the Hessian. For least squares the second and later steps are iterative refinement.

use super::{Examples, Problem, spectrum};
use crate::Rows;
use rayon::prelude::*;
use whimbrel_core::{Error, Result, linalg, vector};

/// The widest Hessian that is formed.
const DENSE_MAX: usize = spectrum::DENSE_MAX;
const ITERATIONS_MAX: u32 = 200;
/// Steps allowed once the gradient has reached rounding level but is still above the tolerance.
const POLISH_MAX: u32 = 10;
/// Clients are summed in this number of groups for any number of threads.
const GROUPS: usize = 16;
/// Shift of the Hessian's diagonal, relative to upper bounds of its entries. With these bounds scaled
/// to 1, a step leaves `SHIFT / (SHIFT + e)` of the error along an eigenvalue `e`. A shift relative to
/// the entries themselves would be too small where a loss has become flat: rounding errors of the
/// gradient would grow along directions in which no row has a component.
const SHIFT: f64 = 1e-14;

/// The result of [`solve`].
#[derive(Clone, Debug, PartialEq)]
pub struct Optimum {
    /// The minimiser; where there are several, the shortest.
    pub w: Vec<f64>,
    /// `F(w)`.
    pub f_star: f64,
    /// `F(0)`.
    pub f_zero: f64,
    /// The Euclidean norm of the gradient at `w`. Above the tolerance only where rounding allows
    /// no less: at most `16 eps (trace ||w|| + ||grad F(0)||)`, with `trace` of the Hessian.
    pub gradient_norm: f64,
}

/// Minimises `sum_c weight_c F_c(w)` until the gradient's norm is at most `tolerance`. The weights
/// sum to one.
///
/// Linearly separable classes have no minimiser without a ridge, which is an error. Where only some
/// directions are separated (a rare feature that occurs in one class), the infimum is not attained
/// either, but the gradient does reach the tolerance and `f_star` exceeds the infimum by a similarly
/// small amount.
pub fn solve(problem: &Problem, clients: &[(f64, &Examples)], tolerance: f64) -> Result<Optimum> {
    if !problem.penalty().is_convex() {
        return Err(Error::config("the loss is not convex: its minimum is not computed"));
    }
    let mean = Mean::new(problem, clients)?;
    if !(tolerance > 0.0 && tolerance.is_finite()) {
        return Err(Error::config(format!("tolerance = {tolerance} is not a positive number")));
    }
    let trace: f64 = mean.diagonal.iter().sum();
    let mut point = mean.at(vec![0.0; mean.dimension])?;
    let (at_zero, f_zero, mut polished) = (point.norm, point.f, 0);
    for _ in 0..ITERATIONS_MAX {
        let size = trace * vector::norm2_squared(&point.w).sqrt() + at_zero;
        let rounding = point.norm <= 16.0 * f64::EPSILON * size;
        polished += u32::from(rounding);
        let next = if point.norm <= tolerance || polished > POLISH_MAX {
            None
        } else {
            mean.search(&point, &mean.newton_step(&point)?)?
        };
        match next {
            // Where rounding is all that is left, steps go on only as long as they help.
            Some(next) if !rounding || next.helps(&point) => point = next,
            _ if rounding || point.norm <= tolerance => {
                mean.refuse_separated(&point)?;
                let Point { w, f, norm, .. } = mean.shortest(point, tolerance)?;
                return Ok(Optimum { w, f_star: f, f_zero, gradient_norm: norm });
            }
            _ => break,
        }
    }
    mean.refuse_separated(&point)?;
    Err(Error::numerical(format!(
        "no minimiser was found: the gradient's norm is still {:e} at a parameter of norm {:e}\n\
         hint: set a ridge, or standardise the columns",
        point.norm,
        vector::norm2_squared(&point.w).sqrt()
    )))
}

/// The function to minimise.
struct Mean<'a> {
    problem: &'a Problem,
    clients: Vec<(f64, &'a Examples)>,
    dimension: usize,
    /// Upper bounds of the Hessian's diagonal at any point.
    diagonal: Vec<f64>,
}

/// A parameter with the value and the gradient there.
struct Point {
    w: Vec<f64>,
    f: f64,
    gradient: Vec<f64>,
    norm: f64,
}

impl Point {
    fn helps(&self, before: &Point) -> bool {
        self.norm <= 0.5 * before.norm || self.f <= before.f * (1.0 - 1e-12)
    }
}

impl<'a> Mean<'a> {
    fn new(problem: &'a Problem, clients: &[(f64, &'a Examples)]) -> Result<Self> {
        let Some((_, first)) = clients.first() else {
            return Err(Error::config("a mean over no clients has no minimiser"));
        };
        let dimension = first.dimension();
        for (i, (weight, data)) in clients.iter().enumerate() {
            if data.dimension() != dimension {
                return Err(Error::data(format!(
                    "client {} has dimension {}, client 1 has {dimension}",
                    i + 1,
                    data.dimension()
                )));
            }
            if !(*weight >= 0.0 && weight.is_finite()) {
                return Err(Error::config(format!("client {} has the weight {weight}", i + 1)));
            }
        }
        let total: f64 = clients.iter().map(|(weight, _)| weight).sum();
        if (total - 1.0).abs() > 1e-9 {
            return Err(Error::config(format!("the clients' weights sum to {total}, not to 1")));
        }
        let clients: Vec<_> = clients.iter().filter(|(weight, _)| *weight > 0.0).copied().collect();
        let mut diagonal = vec![problem.penalty().smoothness(); dimension];
        for (weight, data) in &clients {
            vector::axpy(&mut diagonal, weight * problem.curvature(), &data.mean_squares());
        }
        Ok(Self { problem, clients, dimension, diagonal })
    }

    /// The sum over clients of a vector that `add` adds to, in a fixed order.
    fn sum(
        &self,
        len: usize,
        add: impl Fn(f64, &Examples, &mut [f64]) -> Result<()> + Sync,
    ) -> Result<Vec<f64>> {
        let per_group = self.clients.len().div_ceil(GROUPS);
        let groups: Result<Vec<Vec<f64>>> = self
            .clients
            .par_chunks(per_group)
            .map(|group| {
                let mut sum = vec![0.0; len];
                for (weight, data) in group {
                    add(*weight, data, &mut sum)?;
                }
                Ok(sum)
            })
            .collect();
        let mut total = vec![0.0; len];
        groups?.iter().for_each(|group| vector::axpy(&mut total, 1.0, group));
        Ok(total)
    }

    fn at(&self, w: Vec<f64>) -> Result<Point> {
        let d = self.dimension;
        let mut gradient = self.sum(d + 1, |weight, data, sum| {
            let mut one = vec![0.0; d];
            let f = self.problem.gradient(&w, data, Rows::All, &mut one)?;
            vector::axpy(&mut sum[..d], weight, &one);
            sum[d] += weight * f;
            Ok(())
        })?;
        let f = gradient.pop().unwrap_or(f64::NAN);
        let norm = vector::norm2_squared(&gradient).sqrt();
        if !(f.is_finite() && norm.is_finite()) {
            return Err(Error::numerical("the loss or its gradient is not finite"));
        }
        Ok(Point { w, f, gradient, norm })
    }

    /// An approximate solution of `H p = -g`.
    fn newton_step(&self, point: &Point) -> Result<Vec<f64>> {
        if self.dimension > DENSE_MAX {
            return self.conjugate_step(point);
        }
        let d = self.dimension;
        let hessian = self.sum(d * d, |weight, data, sum| {
            self.problem.add_hessian(&point.w, data, weight, sum)
        })?;
        let mut shift = SHIFT;
        while shift < 1.0 {
            let mut factor = hessian.clone();
            for (j, bound) in self.diagonal.iter().enumerate() {
                // A column of zeros has no gradient either: any pivot leaves its step at zero.
                factor[j * d + j] += if *bound == 0.0 { 1.0 } else { shift * bound };
            }
            if linalg::cholesky(&mut factor, d).is_ok() {
                let mut step: Vec<f64> = point.gradient.iter().map(|g| -g).collect();
                linalg::solve_lower(&factor, d, &mut step);
                linalg::solve_lower_transposed(&factor, d, &mut step);
                return Ok(step);
            }
            shift *= 10.0;
        }
        Err(Error::numerical("the Hessian of the mean loss is not positive semi-definite"))
    }

    /// Conjugate gradients until the residual is small beside the gradient.
    fn conjugate_step(&self, point: &Point) -> Result<Vec<f64>> {
        let d = self.dimension;
        let wanted = point.norm * point.norm.sqrt().min(0.1);
        let mut step = vec![0.0; d];
        let mut residual: Vec<f64> = point.gradient.iter().map(|g| -g).collect();
        let mut direction = residual.clone();
        let mut square = vector::norm2_squared(&residual);
        for _ in 0..10 * d {
            if square.sqrt() <= wanted {
                break;
            }
            let image = self.sum(d, |weight, data, sum| {
                let mut one = vec![0.0; d];
                self.problem.hessian_vector(&point.w, data, &direction, &mut one)?;
                vector::axpy(sum, weight, &one);
                Ok(())
            })?;
            let curvature = vector::dot(&direction, &image);
            if curvature <= f64::MIN_POSITIVE {
                break;
            }
            vector::axpy(&mut step, square / curvature, &direction);
            vector::axpy(&mut residual, -square / curvature, &image);
            let before = std::mem::replace(&mut square, vector::norm2_squared(&residual));
            vector::scale(&mut direction, square / before);
            vector::axpy(&mut direction, 1.0, &residual);
        }
        Ok(step)
    }

    /// The first of the steps 1, 1/2, 1/4, ... that lowers the value as Armijo asks or, where values no
    /// longer differ beyond rounding, the gradient's norm.
    fn search(&self, point: &Point, step: &[f64]) -> Result<Option<Point>> {
        let slope = vector::dot(&point.gradient, step);
        let mut t = 1.0;
        while t > 1e-12 {
            let mut w = point.w.clone();
            vector::axpy(&mut w, t, step);
            match self.at(w) {
                Ok(next) => {
                    let level = point.f + 8.0 * f64::EPSILON * point.f.abs();
                    let lower = slope < 0.0 && next.f <= point.f + 1e-4 * t * slope;
                    if (lower && next.f < point.f) || (next.f <= level && next.norm < point.norm) {
                        return Ok(Some(next));
                    }
                }
                Err(Error::Numerical { .. }) => {}
                Err(other) => return Err(other),
            }
            t *= 0.5;
        }
        Ok(None)
    }

    /// Removes the part of a point along directions in which no row has a component, if the gradient
    /// stays as small.
    fn shortest(&self, point: Point, tolerance: f64) -> Result<Point> {
        if self.dimension > DENSE_MAX || self.problem.penalty().strong_convexity() > 0.0 {
            return Ok(point);
        }
        let mut w = point.w.clone();
        for direction in spectrum::null_space(&self.clients)?.chunks_exact(self.dimension) {
            let along = vector::dot(direction, &w);
            vector::axpy(&mut w, -along, direction);
        }
        let shorter = self.at(w)?;
        Ok(if shorter.norm <= point.norm.max(tolerance) { shorter } else { point })
    }

    fn refuse_separated(&self, point: &Point) -> Result<()> {
        for (_, data) in &self.clients {
            if !self.problem.separates(&point.w, data)? {
                return Ok(());
            }
        }
        Err(Error::numerical(
            "the loss has no minimiser: a hyperplane separates the two classes, so that a longer \
             parameter is always better",
        )
        .hint("set a ridge"))
    }
}
