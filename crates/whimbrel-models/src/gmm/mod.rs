//! Gaussian mixtures with a known, tied, diagonal, spherical or full covariance.
//!
//! Reference for `known` and `tied`: Dieuleveut, Fort, Moulines and Robin, *Federated-EM with
//! heterogeneity mitigation and variance reduction* (2021), App. F.1, equations (56) to (62);
//! `diagonal` and `full` are the usual extensions, with the second moments of every component in
//! the statistic. `spherical` has the statistic of `diagonal`; its M-step averages the variances.
//!
//! | paper | here | meaning |
//! |---|---|---|
//! | `L`, `p` | `components` K, `columns` d | sizes |
//! | `s^(1)` | `statistic[..K]` | mean responsibility of each component |
//! | `s^(2)` | the next K x d | mean of responsibility times row |
//! | | the last K x d or K x d(d+1)/2 | the same with squares (`diagonal`) or the lower triangle of `y y^T`, row after row (`full`) |
//! | `N^-1 sum Y Y^T` | `moments[d..]` | pooled second moment, lower triangle (`tied`) |
//! | `T`, (60) to (62) | [`maximize`](LatentModel::maximize) | M-step |
//! | `phi`, (56) and (59) | [`natural`](LatentModel::natural) | natural parameter |
//!
//! Beyond the paper: `T` is clipped to an interior (weights and eigenvalues of covariances are
//! floored, and each clip is counted), a ridge may be added to covariances, and penalties enter
//! `T` in closed form (see [`GmmPenalty`]).
//!
//! Statistics are raw moments, as federated sums require. On data far from the origin `T` therefore loses
//! about `2 log10(|mean| / sd)` of its 16 digits; the E-step does not. Centre such columns.

mod baseline;
mod clip;
mod coordinates;
mod data;
mod estep;
mod factor;
mod frame;
mod kernels;
mod max_step;
mod mstep;
mod parameters;
mod predict;
mod second_moments;
mod start;

pub use data::GmmData;
pub use parameters::GmmParameters;
pub use predict::{GmmPrediction, GmmSample};

use crate::lane::Lane;
use crate::{LatentModel, Maximum, Rows, StepRange};
use estep::{Scratch, score_block};
use whimbrel_core::{ClientData, Error, Frame, Result};

/// The covariance structure of the components.
#[derive(Clone, Debug, PartialEq)]
pub enum Covariance {
    /// Given (row-major, `columns` x `columns`), not fitted.
    Known(Vec<f64>),
    /// One for all components, fitted.
    Tied,
    /// One diagonal matrix per component.
    Diagonal,
    /// One variance per component for all columns, as standardised where `standardize` is set.
    Spherical,
    /// One matrix per component.
    Full,
}

impl Covariance {
    /// Whether components have variances and no correlations.
    pub fn is_diagonal(&self) -> bool {
        matches!(self, Self::Diagonal | Self::Spherical)
    }
}

/// The penalty `R(theta)`; all zero by default.
///
/// `R = -dirichlet sum_k ln pi_k + (wishart_degrees / 2) ln det Sigma + (wishart_scale / 2) tr
/// Sigma^-1`, the last two once for a tied covariance, per component for diagonal and full ones,
/// and not at all for a known one.
#[derive(Clone, Copy, Debug, PartialEq, Default)]
pub struct GmmPenalty {
    /// Added to each component's mean responsibility before weights are normalised.
    pub dirichlet: f64,
    /// The weight that the inverse-Wishart penalty adds to a component's.
    pub wishart_degrees: f64,
    /// The multiple of the identity that it adds to a component's scatter.
    pub wishart_scale: f64,
}

/// The settings of a Gaussian mixture.
#[derive(Clone, Debug, PartialEq)]
pub struct GmmSettings {
    pub components: usize,
    pub columns: usize,
    pub covariance: Covariance,
    /// Added to the diagonal of fitted covariances, as in scikit-learn; default 0, so that `T` is exactly
    /// the paper's.
    pub reg_covar: f64,
    /// Whether `reg_covar` is a share of each column's variance over all components, so that units do
    /// not matter; default false. Not for known and tied covariances.
    pub relative: bool,
    /// The smallest weight; default 1e-10.
    pub weight_floor: f64,
    /// The smallest variance of a fitted covariance in any direction, with each column in units of its
    /// pooled standard deviation; default 1e-10.
    pub covariance_floor: f64,
    /// The penalty; default none.
    pub penalty: GmmPenalty,
    /// Whether clients send pooled moments for the start even if `T` does not need them; default false.
    pub want_moments: bool,
    /// Whether the M-step of a tied covariance uses moments about the pooled mean. This is equivalent for
    /// exact statistics, and keeps compression noise independent of the columns' distance from zero.
    /// Default false.
    pub centred: bool,
    /// Number of rows that represent a stream at enrolment and evaluation; default 1000.
    pub stream_rows: usize,
}

impl Default for GmmSettings {
    /// One component, with the columns still unset.
    fn default() -> Self {
        Self::new(1, 0, Covariance::Tied)
    }
}

impl GmmSettings {
    /// The defaults for a mixture of this size.
    pub fn new(components: usize, columns: usize, covariance: Covariance) -> Self {
        Self {
            components,
            columns,
            covariance,
            reg_covar: 0.0,
            relative: false,
            weight_floor: 1e-10,
            covariance_floor: 1e-10,
            penalty: GmmPenalty::default(),
            want_moments: false,
            centred: false,
            stream_rows: 1000,
        }
    }

    /// Whether every variance is positive whatever the rows are.
    pub fn is_regularised(&self) -> bool {
        matches!(self.covariance, Covariance::Known(_))
            || self.reg_covar > 0.0
            || self.penalty.wishart_scale > 0.0
    }

    fn check(&self) -> Result<()> {
        if self.components == 0 || self.columns == 0 {
            return Err(Error::config(format!(
                "a mixture of {} components over {} columns is empty",
                self.components, self.columns
            ))
            .hint("both must be at least 1"));
        }
        let not_negative = [
            ("reg_covar", self.reg_covar),
            ("penalty.dirichlet", self.penalty.dirichlet),
            ("penalty.wishart_degrees", self.penalty.wishart_degrees),
            ("penalty.wishart_scale", self.penalty.wishart_scale),
        ];
        for (name, value) in not_negative {
            if !(value >= 0.0 && value.is_finite()) {
                return Err(Error::config(format!("{name} = {value} must be zero or positive")));
            }
        }
        if !(self.weight_floor > 0.0 && self.weight_floor * self.components as f64 <= 0.5) {
            return Err(Error::config(format!(
                "weight_floor = {} must be positive and at most {} for {} components",
                self.weight_floor,
                0.5 / self.components as f64,
                self.components
            )));
        }
        if !(self.covariance_floor > 0.0 && self.covariance_floor < 1.0) {
            return Err(Error::config(format!(
                "covariance_floor = {} must lie between 0 and 1",
                self.covariance_floor
            )));
        }
        if self.stream_rows == 0 {
            return Err(Error::config("stream_rows must be at least 1"));
        }
        Ok(())
    }
}

/// A Gaussian mixture model: [`LatentModel`] with the settings fixed.
#[derive(Clone, Debug)]
pub struct Gmm {
    settings: GmmSettings,
    /// The known covariance; `None` if it is fitted.
    known: Option<Known>,
}

/// A covariance that is given.
#[derive(Clone, Debug)]
struct Known {
    packed: Vec<f64>,
    inverse: factor::InverseFactor,
}

impl Gmm {
    /// Checks the settings.
    pub fn new(settings: GmmSettings) -> Result<Self> {
        settings.check()?;
        let known = match &settings.covariance {
            Covariance::Known(matrix) => {
                let packed = parameters::pack_symmetric(matrix, settings.columns)
                    .map_err(|e| Error::config(format!("known covariance: {e}")))?;
                let inverse = factor::inverse_factor(&packed, settings.columns)
                    .map_err(|e| Error::config(format!("known covariance: {e}")))?;
                Some(Known { packed, inverse })
            }
            _ => None,
        };
        Ok(Self { settings, known })
    }

    pub fn settings(&self) -> &GmmSettings {
        &self.settings
    }

    pub fn components(&self) -> usize {
        self.settings.components
    }

    pub fn columns(&self) -> usize {
        self.settings.columns
    }

    /// The lower triangle of the known covariance; empty if it is fitted.
    fn known_triangle(&self) -> Vec<f64> {
        self.known.as_ref().map_or_else(Vec::new, |known| known.packed.clone())
    }

    /// Length of the lower triangle of a covariance.
    fn triangle(&self) -> usize {
        self.columns() * (self.columns() + 1) / 2
    }

    /// Second moments per component in the statistic.
    fn second_len(&self) -> usize {
        match self.settings.covariance {
            Covariance::Known(_) | Covariance::Tied => 0,
            Covariance::Diagonal | Covariance::Spherical => self.columns(),
            Covariance::Full => self.triangle(),
        }
    }
}

impl LatentModel for Gmm {
    fn remedy(&self) -> &'static str {
        "use fewer components, set reg_covar, take another start, or write standardize = true in [data] \
         where columns differ in scale or lie far from zero"
    }

    type Data = GmmData;
    type Parameters = GmmParameters;

    fn bind(&self, data: &ClientData) -> Result<GmmData> {
        self.bind_client(data)
    }

    fn rows(&self, data: &GmmData) -> usize {
        data.rows()
    }

    fn window(&self, data: &GmmData, from: u64, count: usize) -> Result<Option<GmmData>> {
        data.source.as_ref().map(|source| self.read(source, from, count)).transpose()
    }

    fn statistic_len(&self) -> usize {
        self.components() * (1 + self.columns() + self.second_len())
    }

    fn moments(&self, data: &GmmData) -> Result<Vec<f64>> {
        Ok(self.moments_of(data))
    }

    fn expect(
        &self,
        theta: &GmmParameters,
        data: &GmmData,
        rows: Rows<'_>,
        statistic: &mut [f64],
    ) -> Result<f64> {
        self.check_call(theta, data, rows, statistic.len())?;
        self.mean_over(data, rows, statistic, |block, scratch| score_block(theta, block, scratch))
    }

    fn expect_clipped(
        &self,
        theta: &GmmParameters,
        data: &GmmData,
        bound: f64,
        statistic: &mut [f64],
    ) -> Result<()> {
        self.check_call(theta, data, Rows::All, statistic.len())?;
        let score = |block: &[Lane], scratch: &mut Scratch| {
            clip::score_clipped(theta, bound, block, scratch)
        };
        self.mean_over(data, Rows::All, statistic, score).map(|_| ())
    }

    fn clipped_rounding(
        &self,
        theta: &GmmParameters,
        rows: usize,
        bound: f64,
        state: Option<&[f64]>,
    ) -> f64 {
        clip::rounding(theta, rows, bound, state)
    }

    fn expect_change(
        &self,
        from: &GmmParameters,
        to: &GmmParameters,
        data: &GmmData,
        rows: Rows<'_>,
        change: &mut [f64],
    ) -> Result<()> {
        for theta in [from, to] {
            self.check_call(theta, data, rows, change.len())?;
        }
        let score =
            |block: &[Lane], scratch: &mut Scratch| self.score_change([from, to], block, scratch);
        self.mean_over(data, rows, change, score).map(|_| ())
    }

    fn maximize(&self, statistic: &[f64], moments: &[f64]) -> Result<Maximum<GmmParameters>> {
        self.m_step(statistic, moments)
    }

    fn penalty(&self, theta: &GmmParameters) -> f64 {
        self.penalty_of(theta)
    }

    fn natural(&self, theta: &GmmParameters) -> Vec<f64> {
        theta.natural()
    }

    fn expected(&self, theta: &GmmParameters) -> Option<Vec<f64>> {
        // In the frame at `theta`, only the weights differ from zero.
        let mut statistic = vec![0.0; self.statistic_len()];
        statistic.iter_mut().zip(theta.weights()).for_each(|(s, weight)| *s = weight.sqrt());
        frame::FisherFrame::at(theta).inverse(&mut statistic);
        Some(statistic)
    }

    fn frame(&self, theta: &GmmParameters) -> Option<Box<dyn Frame>> {
        Some(Box::new(frame::FisherFrame::at(theta)))
    }

    fn coordinates_frame(&self, theta: &GmmParameters) -> Option<Box<dyn Frame>> {
        Some(Box::new(frame::CoordinatesFrame::at(theta)))
    }

    fn step_range(
        &self,
        statistic: &[f64],
        direction: &[f64],
        moments: &[f64],
    ) -> Result<Option<StepRange>> {
        self.step_range_of(statistic, direction, moments).map(Some)
    }

    fn baseline(&self, statistic: &[f64], moments: &[f64]) -> Option<f64> {
        self.one_gaussian(statistic, moments)
    }

    fn coordinates_len(&self) -> usize {
        let fixed = self.components() * (1 + self.columns());
        fixed + if self.known.is_none() { self.covariance_len() } else { 0 }
    }

    fn to_vector(&self, theta: &GmmParameters) -> Vec<f64> {
        self.coordinates_of(theta)
    }

    fn from_vector(&self, coordinates: &[f64]) -> Result<GmmParameters> {
        self.parameters_at(coordinates)
    }
}
