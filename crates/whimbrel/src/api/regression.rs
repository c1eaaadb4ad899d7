//! Regressions by compressed gradients.

use super::estimator::{Estimator, Kind, kinds};
use super::rows::Rows;
use super::run::{Run, labels, numbers};
use std::path::Path;
use whimbrel_families::failure::Result;
use whimbrel_families::gradient::GradientFit;
use whimbrel_methods::sgd::Preset;

/// Linear regression by compressed gradients (`diana`).
///
/// ```
/// use whimbrel::{Codec, LinearRegression, Rows};
///
/// let row = |i: u32| [f64::from(i % 7) - 3.0, f64::from(i % 4)];
/// let client = || {
///     let target = |i| 2.0 * row(i)[0] - row(i)[1] + 0.5;
///     Rows::from_rows((0..50).map(row)).targets((0..50).map(target).collect::<Vec<_>>())
/// };
/// let fit = LinearRegression::new(400).standardize().uplink(Codec::dithering(4)).fit(&[client(), client()])?;
/// assert!((fit.coefficients()[0] - 2.0).abs() < 1e-3);
/// assert!((fit.intercept() - 0.5).abs() < 1e-2);
/// # Ok::<(), whimbrel::Error>(())
/// ```
pub type LinearRegression = Estimator<Linear>;

/// Logistic regression with two classes by compressed gradients (`diana`).
pub type LogisticRegression = Estimator<Logistic>;

kinds! {
    /// The kind of [`LinearRegression`].
    Linear = ("linear", "diana"), true, |run| RegressionFit: Ok(RegressionFit { run });
    /// The kind of [`LogisticRegression`].
    Logistic = ("logistic", "diana"), true, |run| RegressionFit: Ok(RegressionFit { run });
}

/// The kinds of regressions.
pub trait Regression: Kind {}
impl Regression for Linear {}
impl Regression for Logistic {}

impl<K: Regression> Estimator<K> {
    /// A regression trained for this many rounds.
    pub fn new(rounds: u32) -> Self {
        Self::start().rounds(rounds)
    }

    /// The channels of a published method, such as `Preset::Diana` or `Preset::Mcm`.
    pub fn preset(self, preset: Preset) -> Self {
        self.method(preset.name())
    }

    /// The penalty on the squared weights.
    pub fn ridge(self, ridge: f64) -> Self {
        self.set("model.ridge", ridge)
    }
}

/// A fitted regression.
pub struct RegressionFit {
    run: Run,
}

impl RegressionFit {
    /// The run: metrics, traffic, [`save`](Run::save).
    pub fn run(&self) -> &Run {
        &self.run
    }

    /// Opens the folder of a finished fit, written by [`Run::save`] or by `whimbrel run`.
    pub fn open(folder: impl AsRef<Path>) -> Result<Self> {
        Ok(Self { run: Run::open_of(folder.as_ref(), |fit| fit.is::<GradientFit>())? })
    }

    /// The coefficients in the units of the rows, in the order of the columns.
    pub fn coefficients(&self) -> Vec<f64> {
        let (means, scales) = self.standardization();
        let each = self.weights().iter().zip(&scales).map(|(weight, scale)| weight / scale);
        each.take(means.len()).collect()
    }

    /// The intercept in the units of the rows; 0 for a model without one.
    pub fn intercept(&self) -> f64 {
        let (means, _) = self.standardization();
        let shift: f64 = self.coefficients().iter().zip(&means).map(|(c, mean)| c * mean).sum();
        self.weights().get(means.len()).copied().unwrap_or_default() - shift
    }

    /// The fitted weights as the method holds them: of standardised columns where the rows were
    /// standardised, with the intercept last.
    pub fn weights(&self) -> &[f64] {
        self.run.tensor("weights")
    }

    /// The predicted number of each row, or the probability of the second class.
    pub fn predict(&self, rows: &Rows) -> Result<Vec<f64>> {
        let found = self.run.predict(rows)?;
        let name = if found.columns.len() > 1 { "probability" } else { "prediction" };
        numbers(&found, name)
    }

    /// The more probable class of each row.
    pub fn classes(&self, rows: &Rows) -> Result<Vec<String>> {
        labels(&self.run.predict(rows)?)
    }

    /// The mean and the scale that were taken out of each column.
    fn standardization(&self) -> (Vec<f64>, Vec<f64>) {
        let width = self.weights().len() - usize::from(self.run.flag("intercept"));
        let of = |key, none| {
            self.run.numbers("standardization", key).unwrap_or_else(|| vec![none; width])
        };
        (of("means", 0.0), of("scales", 1.0))
    }
}
