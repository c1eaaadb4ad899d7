//! Gaussian mixtures.

use super::estimator::{Estimator, Kind, sealed::Sealed};
use super::rows::Rows;
use super::run::Run;
use super::settings::Setting;
use whimbrel::families::em::keys::covariance_name;
use whimbrel::families::failure::Result;
use whimbrel::families::family::{Predicted, Predictions};
use whimbrel::job::writer;
use whimbrel::models::gmm::Covariance;

/// A Gaussian mixture by federated EM (`fedem`).
///
/// ```
/// use whimbrel::{Codec, GaussianMixture, Rows};
/// let at = |c: f64| Rows::from_rows((0..40).map(|i| [c + f64::from(i % 7) / 7.0, c - f64::from(i % 5) / 5.0]));
/// let clients = [at(0.0), at(4.0), at(0.1), at(4.1)];
/// let fit = GaussianMixture::new(2).uplink(Codec::dithering(8)).fit(&clients)?;
/// assert_eq!(fit.weights().len(), 2);
/// let labels = fit.predict(&Rows::from_rows([[0.2, 0.0], [4.2, 4.0]]))?;
/// assert_ne!(labels[0], labels[1]);
/// # Ok::<(), whimbrel::Error>(())
/// ```
pub type GaussianMixture = Estimator<Gmm>;

/// See [`GaussianMixture`].
#[derive(Clone, Debug, PartialEq)]
pub enum Gmm {}

impl Sealed for Gmm {}

impl Kind for Gmm {
    type Fit = MixtureFit;
    const WORDS: (&'static str, &'static str) = ("gmm", "fedem");

    fn finish(run: Run) -> Result<MixtureFit> {
        Ok(MixtureFit { run })
    }
}

impl Estimator<Gmm> {
    /// This many components.
    pub fn new(components: usize) -> Self {
        Self::usual().set("model.components", components)
    }

    /// As many components as the lowest BIC of these asks for.
    pub fn choose(components: impl IntoIterator<Item = usize>) -> Self {
        Self::usual().set("model.components", components.into_iter().collect::<Vec<_>>())
    }

    /// The form of the covariances.
    pub fn covariance(self, covariance: Covariance) -> Self {
        let fitted = self.set("model.covariance", covariance_name(&covariance));
        match covariance {
            Covariance::Known(matrix) => {
                let rows = matrix.chunks(matrix.len().isqrt().max(1));
                let row = |row: &[f64]| writer::list(row.iter().map(|x| writer::number(*x)));
                fitted.set("model.known_covariance", Setting::toml(writer::list(rows.map(row))))
            }
            _ => fitted,
        }
    }

    /// How many starts are tried before the fit.
    pub fn starts(self, starts: u32) -> Self {
        self.set("model.starts", starts)
    }

    /// Pooled EM, as if one client held everything: what a federated fit is compared with.
    pub fn pooled(mut self) -> Self {
        self.pooled = true;
        self.method("em")
    }
}

/// A fitted mixture.
pub struct MixtureFit {
    run: Run,
}

impl MixtureFit {
    /// The run that it comes from: rounds, bits, figures, `save`.
    pub fn run(&self) -> &Run {
        &self.run
    }

    /// Bits that clients sent.
    pub fn bits_up(&self) -> u64 {
        self.run.bits_up()
    }

    /// The weights of the components.
    pub fn weights(&self) -> &[f64] {
        self.run.tensor("weights")
    }

    /// The mean of each component.
    pub fn means(&self) -> impl ExactSizeIterator<Item = &[f64]> {
        let means = self.run.tensor("means");
        means.chunks_exact((means.len() / self.weights().len().max(1)).max(1))
    }

    /// The covariances, component after component and row after row: one matrix where they are tied or
    /// known, variances where they are diagonal.
    pub fn covariances(&self) -> &[f64] {
        match self.run.tensor("covariances") {
            [] => self.run.tensor("covariance"),
            all => all,
        }
    }

    /// The likeliest component of each row, from 0.
    pub fn predict(&self, rows: &Rows) -> Result<Vec<usize>> {
        let found = self.run.predict(rows)?;
        let of = |column: &(String, Predictions)| match column {
            (_, Predictions::Labels { of, .. }) => Some(of.clone()),
            _ => None,
        };
        Ok(found.columns.iter().find_map(of).unwrap_or_default())
    }

    /// The probability of each component, a list for each row.
    pub fn probabilities(&self, rows: &Rows) -> Result<Vec<Vec<f64>>> {
        let found = self.run.predict(rows)?;
        let each: Vec<Vec<f64>> =
            (1..=self.weights().len()).map(|k| wide(&found, &format!("p{k}"))).collect();
        Ok((0..rows.len()).map(|i| each.iter().map(|p| p[i]).collect()).collect())
    }

    /// The log-density of each row.
    pub fn log_density(&self, rows: &Rows) -> Result<Vec<f64>> {
        Ok(wide(&self.run.predict(rows)?, "log_density"))
    }
}

/// A column of numbers.
pub(super) fn wide(found: &Predicted, name: &str) -> Vec<f64> {
    match found.columns.iter().find(|(known, _)| known == name) {
        Some((_, Predictions::Wide(values))) => values.clone(),
        Some((_, Predictions::Narrow(values))) => values.iter().map(|x| f64::from(*x)).collect(),
        _ => Vec::new(),
    }
}

/// A column of labels, by name.
pub(super) fn labels(found: Predicted) -> Vec<String> {
    let of = |(_, column)| match column {
        Predictions::Labels { of, names } => {
            Some(of.into_iter().map(|at: usize| names[at].clone()).collect())
        }
        _ => None,
    };
    found.columns.into_iter().find_map(of).unwrap_or_default()
}
