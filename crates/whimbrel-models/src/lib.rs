//! Latent-variable models: E-step, M-step, likelihood.
//!
//! Deliberately absent: clients, rounds, messages. A model works on rows, statistics and parameters.

pub mod calibration;
pub mod convex;
pub mod distributions;
pub mod glm;
pub mod gmm;
pub mod kmeans;
mod lane;
pub mod lowrank;
pub mod mixed;
mod mixture;
pub mod prior;
pub mod sampler;
pub mod survival;

pub use mixture::MixtureModel;
use whimbrel_core::{ClientData, Error, Frame, Result, vector};

/// A model of the curved exponential family for EM: `p(y, z; theta)` is proportional to
/// `exp(<s(y, z), phi(theta)> - psi(theta))`.
///
/// Statistics, moments and transmitted parameters are flat vectors, so that channels can carry them.
pub trait LatentModel: Send + Sync + 'static {
    /// A client's data, in the layout of the E-step.
    type Data: Send + Sync + 'static;
    /// `theta`, with quantities precomputed for the E-step (Cholesky factors, log-determinants).
    type Parameters: Clone + Send + Sync + 'static;

    /// Checks a client's rows (shape, finite values, at least one) and lays them out.
    fn bind(&self, data: &ClientData) -> Result<Self::Data>;
    /// Number of rows; for a stream, the number of rows that represent it at enrolment and evaluation.
    fn rows(&self, data: &Self::Data) -> usize;
    /// Rows `from..from + count` of a stream; `None` for a fixed table.
    fn window(&self, data: &Self::Data, from: u64, count: usize) -> Result<Option<Self::Data>>;

    /// `q`, the length of a statistic.
    fn statistic_len(&self) -> usize;
    /// Mean over the client's rows of the moments that `T` or the start needs beside the statistic; may be
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

    /// A bound of the rounding errors, in each coordinate of the [frame](Self::frame), of the sum over
    /// `rows` rows of [`LatentModel::expect_clipped`] less `state`; infinite if none is known. It
    /// depends on no row.
    fn clipped_rounding(
        &self,
        _theta: &Self::Parameters,
        _rows: usize,
        _bound: f64,
        _state: Option<&[f64]>,
    ) -> f64 {
        f64::INFINITY
    }

    /// E-step over all rows with a bounded influence of each: a row's statistic is multiplied by
    /// `min(1, bound/|u|)`, where `u` are its coordinates in the [frame](Self::frame) at `theta`.
    /// The mean's divisor is still the number of rows, so that a row moves the sum by at most
    /// `bound` in the frame.
    fn expect_clipped(
        &self,
        theta: &Self::Parameters,
        data: &Self::Data,
        bound: f64,
        statistic: &mut [f64],
    ) -> Result<()> {
        let frame = self.frame(theta);
        let frame =
            frame.ok_or_else(|| Error::config("this model has no frame to clip rows in"))?;
        statistic.fill(0.0);
        let (rows, mut one) = (self.rows(data), vec![0.0; statistic.len()]);
        for row in 0..rows as u32 {
            self.expect(theta, data, Rows::These(&[row]), &mut one)?;
            let mut coordinates = one.clone();
            frame.forward(&mut coordinates);
            let norm = vector::norm2_squared(&coordinates).sqrt();
            vector::axpy(statistic, (bound / norm).min(1.0) / rows as f64, &one);
        }
        Ok(())
    }

    /// The support of each component over the rows; an error if the model does not count them. Columns
    /// observed in fewer than `group` rows do not count: the client consents to their sums at enrolment.
    fn supports(
        &self,
        _theta: &Self::Parameters,
        _data: &Self::Data,
        _rows: Rows<'_>,
        _group: f64,
    ) -> Result<Vec<Support>> {
        Err(Error::config("this model does not count the rows behind its statistic")
            .hint("take `min_group` out of [privacy]"))
    }
    /// The parameters without the components that are `false` here: their responsibilities are zero,
    /// and those of the others are renormalised.
    fn restricted(&self, theta: &Self::Parameters, _kept: &[bool]) -> Self::Parameters {
        theta.clone()
    }

    /// E-step over the components that at least `group` rows determine: the others are left out, least
    /// mass first, and the responsibilities of the rest renormalised, so that the released sums still
    /// add up to the moments of the rows and nothing can be learned by subtraction. Returns the mean
    /// log-likelihood of the rows under the components that remain.
    fn expect_supported(
        &self,
        theta: &Self::Parameters,
        data: &Self::Data,
        rows: Rows<'_>,
        group: Option<u32>,
        statistic: &mut [f64],
    ) -> Result<Supported> {
        let Some(group) = group.filter(|group| *group > 1) else {
            let log_likelihood = self.expect(theta, data, rows, statistic)?;
            return Ok(Supported { log_likelihood, left_out: 0 });
        };
        let least = f64::from(group) * rows.most_repeats();
        let mut supports = self.supports(theta, data, rows, least)?;
        let mut kept = vec![true; supports.len()];
        let mut within = None;
        while supports.iter().any(|support| support.rows < least) {
            let weak = || (0..kept.len()).filter(|k| supports[*k].rows < least);
            let lightest = weak().min_by(|a, b| supports[*a].mass.total_cmp(&supports[*b].mass));
            let lost: Vec<usize> =
                weak().filter(|k| Some(*k) == lightest || supports[*k].mass < FAR).collect();
            lost.into_iter().for_each(|k| kept[k] = false);
            if kept.iter().all(|kept| !kept) {
                return Err(Error::data(format!(
                    "no sum over these rows rests on {group} of them, as min_group asks"
                ))
                .hint(
                    "a client needs at least min_group rows, and as many values in each column",
                ));
            }
            let theta = within.insert(self.restricted(theta, &kept));
            supports = self.supports(theta, data, rows, least)?;
        }
        let theta = within.as_ref().unwrap_or(theta);
        let log_likelihood = self.expect(theta, data, rows, statistic)?;
        let left_out = kept.iter().filter(|kept| !**kept).count() as u32;
        Ok(Supported { log_likelihood, left_out })
    }

    /// Writes the mean over `rows` of `E[s(y, z) | y; to] - E[s(y, z) | y; from]`, the change of the
    /// statistic with the parameters. Models that prepare rows for each E-step do it once for both.
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

    /// M-step: `T(s) = argmin psi(theta) + R(theta) - <s, phi(theta)>`, clipped to the interior.
    fn maximize(&self, statistic: &[f64], moments: &[f64]) -> Result<Maximum<Self::Parameters>>;
    /// `R(theta)`.
    fn penalty(&self, theta: &Self::Parameters) -> f64;
    /// `phi(theta)`, of the statistic's length.
    fn natural(&self, theta: &Self::Parameters) -> Vec<f64>;

    /// `E[s(y, z); theta]`, the statistic that the model expects; `None` if unknown.
    fn expected(&self, _theta: &Self::Parameters) -> Option<Vec<f64>> {
        None
    }

    /// Advice for a degenerate fit, as the end of a sentence.
    fn remedy(&self) -> &'static str {
        "use fewer components or take another start"
    }

    /// The frame of the complete-data Fisher information at `theta`, in which differences of
    /// statistics are well conditioned; `None` if the model has none.
    fn frame(&self, _theta: &Self::Parameters) -> Option<Box<dyn Frame>> {
        None
    }
    /// The frame for differences of the coordinates of [`to_vector`](Self::to_vector).
    fn coordinates_frame(&self, _theta: &Self::Parameters) -> Option<Box<dyn Frame>> {
        None
    }
    /// The range of steps of the statistic along a direction inside the domain of `T`; `None` if unknown.
    fn step_range(
        &self,
        _statistic: &[f64],
        _direction: &[f64],
        _moments: &[f64],
    ) -> Result<Option<StepRange>> {
        Ok(None)
    }

    /// The mean negative log-likelihood of the simplest model of the kind, fitted to rows with this mean
    /// statistic and these moments; a worse fit has failed. `None` if unknown.
    fn baseline(&self, _statistic: &[f64], _moments: &[f64]) -> Option<f64> {
        None
    }

    /// Length of [`to_vector`](Self::to_vector).
    fn coordinates_len(&self) -> usize;
    /// `theta` in unconstrained coordinates, so that a compressed message is still a valid parameter.
    fn to_vector(&self, theta: &Self::Parameters) -> Vec<f64>;
    /// The inverse of [`to_vector`](Self::to_vector); refuses values outside the parameter space.
    #[allow(clippy::wrong_self_convention)]
    fn from_vector(&self, coordinates: &[f64]) -> Result<Self::Parameters>;
}

/// The rows of an E-step.
#[derive(Clone, Copy, Debug)]
pub enum Rows<'a> {
    All,
    /// These rows, in this order, with repeats.
    These(&'a [u32]),
}

impl Rows<'_> {
    /// The number of times that the most frequent row is repeated: its weight counts as often.
    pub(crate) fn most_repeats(self) -> f64 {
        let Self::These(chosen) = self else { return 1.0 };
        let mut sorted = chosen.to_vec();
        sorted.sort_unstable();
        let repeats = sorted.chunk_by(|a, b| a == b).map(<[u32]>::len).max();
        repeats.unwrap_or(1) as f64
    }
}

/// The rows behind a sum, with the weights `r` of the rows in it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Support {
    /// `sum r`.
    pub mass: f64,
    /// `sum r / max r`: the number of rows that carry the sum. Infinite if all weights are zero.
    pub rows: f64,
}

impl Support {
    /// The support from the sum of the weights and the largest of them.
    pub fn new(mass: f64, largest: f64) -> Self {
        Self { mass, rows: if largest > 0.0 { mass / largest } else { f64::INFINITY } }
    }
}

/// The largest `c` with `sum min(x, c) >= group c` for non-negative numbers, which it sorts; infinite if no
/// number is above it.
pub(crate) fn ceiling_of_groups(x: &mut [f64], group: u32) -> f64 {
    x.sort_unstable_by(f64::total_cmp);
    let group = f64::from(group);
    let mut below: f64 = x.iter().sum();
    // With `lowered` of them at c the sum is group c, so c = below / (group - lowered).
    for (lowered, largest) in x.iter().rev().enumerate() {
        let left = group - lowered as f64;
        if below >= left * largest {
            return if lowered == 0 { f64::INFINITY } else { below / left };
        }
        below -= largest;
    }
    0.0
}

/// The mass, in rows, below which a component lies far from all rows of a client: leaving it out
/// changes the others' responsibilities by less than this.
const FAR: f64 = 1e-6;

/// The result of an E-step over supported components.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Supported {
    pub log_likelihood: f64,
    /// The number of components that too few rows determine.
    pub left_out: u32,
}

/// The result of an M-step.
#[derive(Clone, Debug)]
pub struct Maximum<P> {
    /// `T(s)`.
    pub theta: P,
    /// Number of clips needed to stay in the domain of `T`.
    pub repairs: u32,
    /// Components with their weight at the floor.
    pub dead: Vec<usize>,
}

/// The range of the eigenvalues of a direction's moment matrices relative to those of the statistic. A
/// step `gamma` stays in the domain of `T` while `1 + gamma lowest > 0`.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct StepRange {
    /// The smallest eigenvalue, at most zero.
    pub lowest: f64,
    /// The largest eigenvalue, at least zero.
    pub highest: f64,
    /// Components whose matrix is not positive definite; they are excluded.
    pub outside: Vec<usize>,
}

impl StepRange {
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

    /// Includes the eigenvalues of component `k`; `None` marks it as outside.
    pub(crate) fn add(&mut self, k: usize, eigenvalues: Option<Vec<f64>>) {
        match eigenvalues {
            Some(all) => all.into_iter().for_each(|x| self.include(x)),
            None => self.outside.push(k),
        }
    }
}
