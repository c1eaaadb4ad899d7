//! Gaussian mixtures.

use super::estimator::{Estimator, Kind, kinds};
use super::rows::Rows;
use super::run::Run;
use super::settings::Setting;
use std::path::Path;
use whimbrel_families::em::EmFit;
use whimbrel_families::em::keys::covariance_name;
use whimbrel_families::failure::Result;
use whimbrel_families::family::Predictions;
use whimbrel_job::writer;
use whimbrel_models::gmm::Covariance;

/// A Gaussian mixture, fitted by federated EM (`fedem`).
///
/// ```
/// use whimbrel::{Codec, Covariance, GaussianMixture, Rows};
///
/// let around = |c: f64| {
///     Rows::from_rows((0..40).map(|i| [c + f64::from(i % 7) / 7.0, c - f64::from(i % 5) / 5.0]))
/// };
/// let clients = [around(0.0), around(4.0), around(0.1), around(4.1)];
/// let fit = GaussianMixture::new(2)
///     .covariance(Covariance::Full)
///     .uplink(Codec::dithering(8))
///     .participation(0.5)
///     .fit(&clients)?;
/// assert_eq!(fit.weights().len(), 2);
/// let components = fit.predict(&Rows::from_rows([[0.2, 0.0], [4.2, 4.0]]))?;
/// assert_ne!(components[0], components[1]);
/// # Ok::<(), whimbrel::Error>(())
/// ```
pub type GaussianMixture = Estimator<Gmm>;

kinds! {
    /// The kind of [`GaussianMixture`].
    Gmm = ("gmm", "fedem"), None, |run| MixtureFit: Ok(MixtureFit { run });
}

impl Estimator<Gmm> {
    /// A mixture of this many components.
    pub fn new(components: usize) -> Self {
        Self::start().set("model.components", components)
    }

    /// A mixture whose number of components is the one of lowest BIC among these.
    pub fn choose(components: impl IntoIterator<Item = usize>) -> Self {
        Self::start().set("model.components", components.into_iter().collect::<Vec<_>>())
    }

    /// The form of the covariances.
    pub fn covariance(self, covariance: Covariance) -> Self {
        let fitted = self.set("model.covariance", covariance_name(&covariance));
        let Covariance::Known(matrix) = covariance else { return fitted };
        let width = matrix.len().isqrt();
        let is_square = width * width == matrix.len();
        let rows = matrix.chunks(if is_square { width } else { matrix.len() }.max(1));
        let row = |row: &[f64]| writer::list(row.iter().map(|x| writer::number(*x)));
        fitted.set("model.known_covariance", Setting::toml(writer::list(rows.map(row))))
    }

    /// The number of starts that are compared before the fit.
    pub fn starts(self, starts: u32) -> Self {
        self.set("model.starts", starts)
    }

    /// Pooled EM, the reference for a federated fit: all rows in one place.
    pub fn pooled(self) -> Self {
        self.pool().method("em")
    }
}

/// A fitted Gaussian mixture.
pub struct MixtureFit {
    run: Run,
}

impl MixtureFit {
    /// The run: metrics, traffic, [`save`](Run::save).
    pub fn run(&self) -> &Run {
        &self.run
    }

    /// Opens the folder of a finished fit, written by [`Run::save`] or by `whimbrel run`.
    pub fn open(folder: impl AsRef<Path>) -> Result<Self> {
        Gmm::finish(Run::open_of(folder.as_ref(), |fit| fit.is::<EmFit>())?)
    }

    /// Bits sent by clients.
    pub fn bits_up(&self) -> u64 {
        self.run.bits_up()
    }

    /// The weights of the components.
    pub fn weights(&self) -> &[f64] {
        self.run.tensor("weights")
    }

    /// The mean of each component.
    pub fn means(&self) -> Vec<&[f64]> {
        let means = self.run.tensor("means");
        means.chunks_exact((means.len() / self.weights().len().max(1)).max(1)).collect()
    }

    /// The covariance matrix of each component, by rows. A matrix that all components share
    /// (`Tied` and `Known`) is repeated.
    pub fn covariances(&self) -> Vec<Vec<Vec<f64>>> {
        let components = self.weights().len();
        let width = self.run.tensor("means").len() / components.max(1);
        let (own, shared) = (self.run.tensor("covariances"), self.run.tensor("covariance"));
        let row = |k: usize, i: usize| -> Vec<f64> {
            if own.is_empty() {
                return shared[i * width..][..width].to_vec();
            }
            if own.len() > components * width {
                return own[(k * width + i) * width..][..width].to_vec();
            }
            // Variances only.
            (0..width).map(|j| if i == j { own[k * width + i] } else { 0.0 }).collect()
        };
        (0..components).map(|k| (0..width).map(|i| row(k, i)).collect()).collect()
    }

    /// The most probable component of each row, counted from 0.
    pub fn predict(&self, rows: &Rows) -> Result<Vec<usize>> {
        let found = self.run.predict(rows)?;
        let labels = found.columns.into_iter().find_map(|(_, column)| match column {
            Predictions::Labels { of, .. } => Some(of),
            _ => None,
        });
        Ok(labels.unwrap_or_default())
    }

    /// The probability of each component, one list per row.
    pub fn probabilities(&self, rows: &Rows) -> Result<Vec<Vec<f64>>> {
        let found = self.run.predict(rows)?;
        let each: Vec<Vec<f64>> =
            (1..=self.weights().len()).map(|k| found.numbers(&format!("p{k}"))).collect();
        Ok((0..rows.len()).map(|i| each.iter().map(|p| p[i]).collect()).collect())
    }

    /// The log-density of each row.
    pub fn log_density(&self, rows: &Rows) -> Result<Vec<f64>> {
        Ok(self.run.predict(rows)?.numbers("log_density"))
    }
}
