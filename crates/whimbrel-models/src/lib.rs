//! Latent-variable models: E-step, M-step, likelihood.
//!
//! Absent on purpose: clients, rounds, messages. A model sees rows, statistics and parameters.

pub mod calibration;
pub mod convex;
pub mod gmm;
pub mod kmeans;
mod lane;
pub mod lowrank;
pub mod mixed;
mod mixture;
pub mod prior;
pub mod sampler;

use whimbrel_core::{ClientData, Frame, Result, vector};

/// A model of the curved exponential family, as EM sees it: `p(y, z; theta)` is proportional to
/// `exp(<s(y, z), phi(theta)> - psi(theta))`.
///
/// Statistics, moments and travelling parameters are flat vectors, so channels can carry them.
pub trait LatentModel: Send + Sync + 'static {
    /// What a client holds, in the layout the E-step wants.
    type Data: Send + Sync + 'static;
    /// `theta`, with what the E-step needs computed once (Cholesky factors, log-determinants).
    type Parameters: Clone + Send + Sync + 'static;

    /// Checks a client's rows (shape, finite values, at least one) and lays them out.
    fn bind(&self, data: &ClientData) -> Result<Self::Data>;
    /// How many rows; for a stream, how many rows stand for it at enrolment and evaluation.
    fn rows(&self, data: &Self::Data) -> usize;
    /// For a stream, rows `from..from + count` as data of their own; `None` for a fixed table.
    fn window(&self, data: &Self::Data, from: u64, count: usize) -> Result<Option<Self::Data>>;

    /// `q`, the length of a statistic.
    fn statistic_len(&self) -> usize;
    /// Mean over the client's rows of what `T` or the start needs beside the statistic; may be
    /// empty, and has the same length for every client.
    fn moments(&self, data: &Self::Data) -> Result<Vec<f64>>;

    /// E-step: writes the mean over `rows` of `E[s(y, z) | y; theta]` and returns the mean
    /// log-likelihood of those rows.
    fn expect(
        &self,
        theta: &Self::Parameters,
        data: &Self::Data,
        rows: Rows<'_>,
        statistic: &mut [f64],
    ) -> Result<f64>;

    /// Writes the mean over `rows` of `E[s(y, z) | y; to] - E[s(y, z) | y; from]`: by how much the
    /// statistic of the same rows changes with the parameters. Models that lay rows out for each
    /// E-step do that once for both.
    fn expect_change(
        &self,
        from: &Self::Parameters,
        to: &Self::Parameters,
        data: &Self::Data,
        rows: Rows<'_>,
        change: &mut [f64],
    ) -> Result<()> {
        let mut before = vec![0.0; change.len()];
        self.expect(from, data, rows, &mut before)?;
        self.expect(to, data, rows, change)?;
        vector::axpy(change, -1.0, &before);
        Ok(())
    }

    /// `T(s) = argmin psi(theta) + R(theta) - <s, phi(theta)>`, clipped to its interior.
    fn maximize(&self, statistic: &[f64], moments: &[f64]) -> Result<Maximum<Self::Parameters>>;
    /// `R(theta)`.
    fn penalty(&self, theta: &Self::Parameters) -> f64;
    /// `phi(theta)`, of the statistic's length.
    fn natural(&self, theta: &Self::Parameters) -> Vec<f64>;

    /// What helps a fit that is degenerate, as one sentence's end.
    fn remedy(&self) -> &'static str {
        "use fewer components or take another start"
    }

    /// The frame of the complete-data Fisher information at `theta`, in which differences of
    /// statistics are well conditioned; none where the model has none.
    fn frame(&self, _theta: &Self::Parameters) -> Option<Box<dyn Frame>> {
        None
    }
    /// The same for differences of the coordinates in which `theta` travels.
    fn coordinates_frame(&self, _theta: &Self::Parameters) -> Option<Box<dyn Frame>> {
        None
    }
    /// How far the statistic may move along a direction inside the domain of `T`; none where the
    /// model cannot tell.
    fn reach(
        &self,
        _statistic: &[f64],
        _direction: &[f64],
        _moments: &[f64],
    ) -> Result<Option<Reach>> {
        Ok(None)
    }

    /// The mean negative log-likelihood of the simplest model of the kind, fitted to rows with this
    /// mean statistic and these moments: a fit that is worse failed. None where that is not known.
    fn baseline(&self, _statistic: &[f64], _moments: &[f64]) -> Option<f64> {
        None
    }

    /// How many coordinates `theta` has.
    fn coordinates_len(&self) -> usize;
    /// The coordinates in which `theta` travels. They are unconstrained, so that a compressed
    /// message still is a parameter.
    fn to_vector(&self, theta: &Self::Parameters) -> Vec<f64>;
    /// Back from the coordinates; refuses values outside the parameter space.
    #[allow(clippy::wrong_self_convention)]
    fn from_vector(&self, coordinates: &[f64]) -> Result<Self::Parameters>;
}

/// Which rows an E-step runs over.
#[derive(Clone, Copy, Debug)]
pub enum Rows<'a> {
    /// Every row once.
    All,
    /// These rows, in this order; repeats count again.
    These(&'a [u32]),
}

/// What an M-step found.
#[derive(Clone, Debug)]
pub struct Maximum<P> {
    /// `T(s)`.
    pub theta: P,
    /// How many clips were needed to stay in the domain of `T`.
    pub repairs: u32,
    /// Components whose weight is at its floor.
    pub dead: Vec<usize>,
}

/// Where a direction leads from a statistic: eigenvalues of the moment matrices of the direction
/// relative to those of the statistic. A step `gamma` stays in the domain of `T` while
/// `1 + gamma lowest > 0`.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Reach {
    /// The smallest, at most zero.
    pub lowest: f64,
    /// The largest, at least zero.
    pub highest: f64,
    /// Components whose matrix is not positive definite; they are left out.
    pub outside: Vec<usize>,
}

impl Reach {
    /// The eigenvalues of weights alone.
    pub(crate) fn of_weights(weights: &[f64], along: &[f64]) -> Self {
        let mut reach = Self::default();
        for (k, (weight, along)) in weights.iter().zip(along).enumerate() {
            let relative = (*weight > 0.0).then(|| vec![along / weight]);
            reach.add(k, relative);
        }
        reach
    }

    pub(crate) fn include(&mut self, eigenvalue: f64) {
        self.lowest = self.lowest.min(eigenvalue);
        self.highest = self.highest.max(eigenvalue);
    }

    /// The eigenvalues of component `k`, or that it is outside.
    pub(crate) fn add(&mut self, k: usize, eigenvalues: Option<Vec<f64>>) {
        match eigenvalues {
            Some(all) => all.into_iter().for_each(|x| self.include(x)),
            None => self.outside.push(k),
        }
    }
}
