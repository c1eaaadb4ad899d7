//! Regressions by gradients, and their posteriors.

use super::estimator::{Estimator, Kind, sealed::Sealed};
use super::mixture::{labels, wide};
use super::rows::Rows;
use super::run::Run;
use whimbrel::families::failure::Result;
use whimbrel::methods::sgd::Preset;

/// Linear regression by compressed gradients (`diana`).
pub type LinearRegression = Estimator<Linear>;
/// Logistic regression with two classes by compressed gradients (`diana`).
pub type LogisticRegression = Estimator<Logistic>;

/// See [`LinearRegression`].
#[derive(Clone, Debug, PartialEq)]
pub enum Linear {}
/// See [`LogisticRegression`].
#[derive(Clone, Debug, PartialEq)]
pub enum Logistic {}

impl Sealed for Linear {}
impl Sealed for Logistic {}

/// Kinds of regressions.
pub trait Regression: Kind {}
impl Regression for Linear {}
impl Regression for Logistic {}

impl Kind for Linear {
    type Fit = RegressionFit;
    const WORDS: (&'static str, &'static str) = ("linear", "diana");
    fn finish(run: Run) -> Result<RegressionFit> {
        Ok(RegressionFit { run })
    }
}

impl Kind for Logistic {
    type Fit = RegressionFit;
    const WORDS: (&'static str, &'static str) = ("logistic", "diana");
    fn finish(run: Run) -> Result<RegressionFit> {
        Ok(RegressionFit { run })
    }
}

impl<K: Regression> Estimator<K> {
    /// A regression that takes this many rounds.
    pub fn new(rounds: u32) -> Self {
        Self::usual().rounds(rounds)
    }

    /// The channels of a paper: `Preset::Diana`, `Preset::Mcm`.
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
    /// The run that it comes from.
    pub fn run(&self) -> &Run {
        &self.run
    }

    /// The coefficients, the intercept last where there is one.
    pub fn weights(&self) -> &[f64] {
        self.run.tensor("weights")
    }

    /// The predicted number of each row; of classes the probability of the second one.
    pub fn predict(&self, rows: &Rows) -> Result<Vec<f64>> {
        let found = self.run.predict(rows)?;
        let name = if found.columns.len() > 1 { "probability" } else { "prediction" };
        Ok(wide(&found, name))
    }

    /// The likelier class of each row; empty where numbers are predicted.
    pub fn classes(&self, rows: &Rows) -> Result<Vec<String>> {
        Ok(labels(self.run.predict(rows)?))
    }
}
