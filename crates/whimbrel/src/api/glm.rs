//! Regressions with inference.

use super::estimator::{Estimator, Kind, sealed::Sealed};
use super::rows::Rows;
use super::run::{Run, numbers};
use std::path::Path;
use whimbrel_families::failure::Result;
use whimbrel_families::regression::RegressionFit;
use whimbrel_families::regression::keys::FamilyKey;
use whimbrel_models::glm::inference::Coefficient;

/// A generalised linear model by federated Fisher scoring (`newton`), equal to the fit of the pooled rows.
///
/// ```
/// use whimbrel::{Glm, GlmFamily, Rows};
///
/// let client = |from: u32| {
///     let rows = (from..from + 60).map(|i| [f64::from(i % 7), f64::from(i % 4)]);
///     let counts = (from..from + 60).map(|i| f64::from((i % 7) / 2 + (i * i) % 3));
///     Rows::from_rows(rows).targets(counts.collect::<Vec<_>>())
/// };
/// let fit = Glm::new(GlmFamily::Poisson).fit(&[client(0), client(60)])?;
/// let slope = &fit.coefficients()?[1];
/// assert!(slope.low > 0.0 && slope.p < 0.01);
/// # Ok::<(), whimbrel::Error>(())
/// ```
pub type Glm = Estimator<GlmKind>;

/// The kind of [`Glm`].
#[derive(Clone, Debug, PartialEq)]
pub enum GlmKind {}

impl Sealed for GlmKind {}

impl Kind for GlmKind {
    type Fit = GlmFit;
    const WORDS: (&'static str, &'static str) = ("glm", "newton");
    const TARGETS: bool = true;

    fn finish(run: Run) -> Result<GlmFit> {
        Ok(GlmFit { run })
    }
}

impl Estimator<GlmKind> {
    /// A regression of this family with its usual link.
    pub fn new(family: FamilyKey) -> Self {
        Self::start().set("model.family", family.name())
    }

    /// Standard errors: `model`, `robust` or `clustered`.
    pub fn errors(self, by: &str) -> Self {
        self.set("method.errors", by)
    }
}

/// A fitted regression.
pub struct GlmFit {
    run: Run,
}

impl GlmFit {
    /// The run: metrics, traffic, [`save`](Run::save).
    pub fn run(&self) -> &Run {
        &self.run
    }

    /// Opens the folder of a finished fit, written by [`Run::save`] or by `whimbrel run`.
    pub fn open(folder: impl AsRef<Path>) -> Result<Self> {
        Ok(Self { run: Run::open_of(folder.as_ref(), |fit| fit.is::<RegressionFit>())? })
    }

    /// Estimate, standard error, test and interval of each coefficient, in the units of the rows.
    pub fn coefficients(&self) -> Result<Vec<Coefficient>> {
        self.run.coefficients()
    }

    /// The log-likelihood at the estimate.
    pub fn log_likelihood(&self) -> f64 {
        self.run.tensor("log_likelihood").first().copied().unwrap_or(f64::NAN)
    }

    /// The mean of each row; of binomial targets the probability of the second class.
    pub fn predict(&self, rows: &Rows) -> Result<Vec<f64>> {
        let found = self.run.predict(rows)?;
        let name = found.columns.first().map_or("", |(name, _)| name.as_str());
        numbers(&found, name)
    }
}
