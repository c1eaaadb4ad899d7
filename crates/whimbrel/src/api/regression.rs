//! Regressions by Newton's method, with inference, or by compressed gradients.

use super::estimator::{Estimator, Kind, kinds};
use super::rows::Rows;
use super::run::{Run, labels};
use std::path::Path;
use whimbrel_codec::channel::Preset;
use whimbrel_core::Error;
use whimbrel_families::failure::Result;
use whimbrel_families::family::{Predicted, Predictions};
use whimbrel_families::gradient::GradientFit;
use whimbrel_families::regression;
use whimbrel_families::regression::keys::GlmFamily;
use whimbrel_models::glm::inference::{Coefficient, Test};

/// Linear regression: by Newton's method the least-squares fit of the pooled rows, with standard errors.
///
/// ```
/// use whimbrel::{Codec, LinearRegression, Preset, Rows};
///
/// let row = |i: u32| [f64::from(i % 7) - 3.0, f64::from(i % 4)];
/// let client = || {
///     let target = |i| 2.0 * row(i)[0] - row(i)[1] + 0.5 + 0.1 * f64::from(i % 3);
///     Rows::from_rows((0..50).map(row)).targets((0..50).map(target))
/// };
/// let clients = [client(), client()];
/// let fit = LinearRegression::new().fit(&clients)?;
/// let slope = &fit.summary()?[1];
/// assert!(slope.low < 2.0 && 2.0 < slope.high && slope.p < 0.01);
///
/// // Compressed gradients reach the same coefficients in more rounds of smaller messages.
/// let by_gradients = LinearRegression::new().preset(Preset::Diana).rounds(400).standardize();
/// let again = by_gradients.uplink(Codec::dithering(4)).fit(&clients)?;
/// assert!((again.coefficients()?[0] - fit.coefficients()?[0]).abs() < 1e-3);
/// # Ok::<(), whimbrel::Error>(())
/// ```
pub type LinearRegression = Estimator<Linear>;

/// Logistic regression with two classes, by Newton's method or by compressed gradients.
pub type LogisticRegression = Estimator<Logistic>;

/// A generalised linear model by federated Fisher scoring (`newton`), equal to the fit of the pooled rows.
///
/// ```
/// use whimbrel::{Glm, GlmFamily, Rows};
///
/// let client = |from: u32| {
///     let rows = (from..from + 60).map(|i| [f64::from(i % 7), f64::from(i % 4)]);
///     let counts = (from..from + 60).map(|i| f64::from((i % 7) / 2 + (i * i) % 3));
///     Rows::from_rows(rows).targets(counts)
/// };
/// let fit = Glm::new(GlmFamily::Poisson).fit(&[client(0), client(60)])?;
/// let slope = &fit.summary()?[1];
/// assert!(slope.low > 0.0 && slope.p < 0.01);
/// # Ok::<(), whimbrel::Error>(())
/// ```
pub type Glm = Estimator<Generalised>;

/// Cox's proportional hazards model by Newton's method, with a baseline hazard of each client. The targets are
/// times.
///
/// ```
/// use whimbrel::{Cox, Rows};
///
/// let row = |i: u32| [f64::from(i % 7), f64::from(i % 3 != 0)];
/// let client = |from: u32| {
///     let times = (from..from + 40).map(|i| 9.0 - 0.6 * f64::from(i % 7) + f64::from((i * i) % 5));
///     Rows::from_rows((from..from + 40).map(row)).columns(["dose", "died"]).targets(times)
/// };
/// let fit = Cox::new("died").baseline(true).fit(&[client(0), client(40)])?;
/// let dose = &fit.summary()?[0];
/// assert!(dose.term == "dose" && dose.low > 0.0);
/// let [time, hazard] = fit.baseline("0")?[0];
/// assert!(time > 0.0 && hazard > 0.0);
/// # Ok::<(), whimbrel::Error>(())
/// ```
pub type Cox = Estimator<Hazards>;

kinds! {
    /// The kind of [`Cox`].
    Hazards = ("cox", "newton"), Some("cox"), |run| RegressionFit: Ok(RegressionFit { run });
    /// The kind of [`LinearRegression`].
    Linear = ("glm", "newton"), Some("glm"), |run| RegressionFit: Ok(RegressionFit { run });
    /// The kind of [`LogisticRegression`].
    Logistic = ("glm", "newton"), Some("glm"), |run| RegressionFit: Ok(RegressionFit { run });
    /// The kind of [`Glm`].
    Generalised = ("glm", "newton"), Some("glm"), |run| RegressionFit: Ok(RegressionFit { run });
}

/// The kinds of regressions. This trait is sealed.
pub trait Regression: Kind {}
impl Regression for Linear {}
impl Regression for Logistic {}
impl Regression for Generalised {}
impl Regression for Hazards {}

/// The kinds of regressions that gradient methods fit as well. This trait is sealed.
pub trait ByGradients: Regression {
    /// The family of the model, and its word under gradient methods.
    #[doc(hidden)]
    const FORMS: (GlmFamily, &'static str);
}

impl ByGradients for Linear {
    const FORMS: (GlmFamily, &'static str) = (GlmFamily::Gaussian, "linear");
}

impl ByGradients for Logistic {
    const FORMS: (GlmFamily, &'static str) = (GlmFamily::Binomial, "logistic");
}

impl<K: ByGradients> Estimator<K> {
    /// The maximum of the likelihood by Newton's method.
    #[expect(clippy::new_without_default, reason = "estimators are built by their constructors")]
    pub fn new() -> Self {
        let (family, model) = K::FORMS;
        Self::of(family).or_by_gradients(model)
    }

    /// Compressed gradients by a published method, such as `Preset::Diana` or `Preset::Mcm`;
    /// [`rounds`](Self::rounds) must be set.
    pub fn preset(self, preset: Preset) -> Self {
        self.method(preset.name())
    }
}

impl Estimator<Generalised> {
    /// A regression of this family with its usual link.
    pub fn new(family: GlmFamily) -> Self {
        Self::of(family)
    }
}

impl Estimator<Hazards> {
    /// Times to an event; the column `event` is 1 for an event and 0 for a censored time.
    pub fn new(event: &str) -> Self {
        Self::start().set("model.event", event)
    }

    /// Whether clients send the cumulative baseline hazards of their strata.
    pub fn baseline(self, send: bool) -> Self {
        self.set("model.baseline", send)
    }
}

impl<K: Regression> Estimator<K> {
    fn of(family: GlmFamily) -> Self {
        Self::start().set("model.family", family.name())
    }

    /// The penalty `ridge / 2` times the sum of the squared coefficients, without intercepts, beside the mean
    /// loss of a row.
    pub fn ridge(self, ridge: impl Into<f64>) -> Self {
        self.set("model.ridge", ridge.into())
    }

    /// Standard errors of Newton's method: `model`, `robust` or `clustered`.
    pub fn errors(self, by: &str) -> Self {
        self.set("method.errors", by)
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
        let run = Run::open_of(folder.as_ref(), |fit| {
            fit.is::<regression::RegressionFit>() || fit.is::<GradientFit>()
        })?;
        Ok(Self { run })
    }

    /// Estimate, standard error, test and interval of each coefficient in the units of the rows, intercept
    /// first, after Newton's method.
    pub fn summary(&self) -> Result<Vec<Coefficient>> {
        self.run.coefficients()
    }

    /// A likelihood-ratio test of each term, of a fit with `set("method.tests", true)`.
    pub fn tests(&self) -> Result<Vec<Test>> {
        self.run.tests()
    }

    /// The steps `[time, cumulative hazard]` of a client's baseline, of a fit with [`Cox::baseline`](Estimator::baseline).
    pub fn baseline(&self, client: &str) -> Result<&[[f64; 2]]> {
        let id = self.run.clients().iter().position(|name| name == client);
        let steps = id.map(|id| self.run.tensor(&format!("baseline.{id}"))).unwrap_or_default();
        match steps.as_chunks::<2>().0 {
            [] => {
                let error = Error::config(format!("the fit has no baseline of client `{client}`"));
                Err(error.hint("fit by `Cox` with `.baseline(true)`").into())
            }
            steps => Ok(steps),
        }
    }

    /// The coefficients in the units of the rows, in the order of the columns; for several classes, those
    /// of each class after the first.
    pub fn coefficients(&self) -> Result<Vec<f64>> {
        Ok(self.estimates()?.0)
    }

    /// The intercept in the units of the rows, 0 for a model without one; for several classes, that of
    /// the second, in byte order of their names.
    pub fn intercept(&self) -> Result<f64> {
        Ok(self.estimates()?.1)
    }

    /// The log-likelihood at the estimate of Newton's method.
    pub fn log_likelihood(&self) -> Option<f64> {
        self.run.tensor("log_likelihood").first().copied()
    }

    /// The mean of each row, which is the probability of the second of two classes in byte order of their names;
    /// of several classes the probability of the first; of [`Cox`] the relative hazard. [`Run::predict`] has the probabilities of all classes.
    pub fn predict(&self, rows: &Rows) -> Result<Vec<f64>> {
        let numbers = numeric(&self.run.predict(rows)?).into_iter().next();
        numbers.ok_or_else(|| Error::internal("a regression predicts numbers").into())
    }

    /// The most probable class of each row.
    pub fn classes(&self, rows: &Rows) -> Result<Vec<String>> {
        let found = self.run.predict(rows)?;
        let Some(classes) = self.run.classes().transpose()? else { return labels(&found) };
        let mut shares = numeric(&found);
        if let [second] = &shares[..]
            && found.columns[0].0 == "probability"
        {
            shares.insert(0, second.iter().map(|p| 1.0 - p).collect());
        }
        if shares.len() != classes.len() {
            let error = Error::config("this model does not predict classes");
            return Err(error.hint("`predict` predicts numbers").into());
        }
        let of = |row: usize| {
            let of_row = |class: &usize| shares[*class][row];
            if of_row(&0).is_nan() {
                return Err(Error::data(format!("row {}: a value is missing", row + 1)).into());
            }
            let likelier = |a: &usize, b: &usize| of_row(a).total_cmp(&of_row(b));
            Ok((0..classes.len())
                .max_by(likelier)
                .map(|at| classes[at].clone())
                .unwrap_or_default())
        };
        (0..found.rows()).map(of).collect()
    }

    /// The coefficients and the intercept in the units of the rows.
    fn estimates(&self) -> Result<(Vec<f64>, f64)> {
        if let Some(found) = self.run.estimates() {
            return found;
        }
        let weights = self.run.tensor("weights");
        let width = weights.len() - usize::from(self.run.flag("intercept"));
        let of = |key, none| {
            self.run.numbers("standardization", key).unwrap_or_else(|| vec![none; width])
        };
        let (means, scales) = (of("means", 0.0), of("scales", 1.0));
        let slopes: Vec<f64> = weights.iter().zip(&scales).map(|(w, scale)| w / scale).collect();
        let slopes = slopes[..width].to_vec();
        let shift: f64 = slopes.iter().zip(&means).map(|(c, mean)| c * mean).sum();
        Ok((slopes, weights.get(width).copied().unwrap_or_default() - shift))
    }
}

/// The numeric columns.
fn numeric(found: &Predicted) -> Vec<Vec<f64>> {
    let numeric = found.columns.iter().filter(|(_, of)| !matches!(of, Predictions::Labels { .. }));
    numeric.map(|(name, _)| found.numbers(name)).collect()
}
