//! Models that are a client's own.

use super::estimator::{Estimator, Kind, sealed::Sealed};
use super::mixture::{labels, wide};
use super::rows::Rows;
use super::run::Run;
use whimbrel::core::method::Artifact;
use whimbrel::families::failure::Result;
use whimbrel::families::family::Predicted;

/// A mixture of learners with each client's own weights (`fedmix`), or another method of personal models.
pub type MixtureOfLearners = Estimator<FedMix>;
/// A model with a posterior for each client (`fedsoul`).
pub type BayesianRegression = Estimator<FedSoul>;

/// See [`MixtureOfLearners`].
#[derive(Clone, Debug, PartialEq)]
pub enum FedMix {}
/// See [`BayesianRegression`].
#[derive(Clone, Debug, PartialEq)]
pub enum FedSoul {}

impl Sealed for FedMix {}
impl Sealed for FedSoul {}

impl Kind for FedMix {
    type Fit = PersonalFit;
    const WORDS: (&'static str, &'static str) = ("softmax", "fedmix");
    fn finish(run: Run) -> Result<PersonalFit> {
        Ok(PersonalFit { run })
    }
}

impl Kind for FedSoul {
    type Fit = PersonalFit;
    const WORDS: (&'static str, &'static str) = ("linear", "fedsoul");
    fn finish(run: Run) -> Result<PersonalFit> {
        Ok(PersonalFit { run })
    }
}

impl Estimator<FedMix> {
    /// This many components, trained for this many rounds.
    pub fn new(components: usize, rounds: u32) -> Self {
        Self::usual().set("method.components", components).rounds(rounds)
    }

    /// The learner, by its word in a job: `linear`, `softmax`, `mlp`, `cnn`.
    pub fn learner(self, word: &str) -> Self {
        self.set("model.kind", word)
    }

    /// Passes over a client's rows in a round.
    pub fn local_epochs(self, epochs: u32) -> Self {
        self.set("method.local_epochs", epochs)
    }
}

impl Estimator<FedSoul> {
    /// A posterior after this many rounds.
    pub fn new(rounds: u32) -> Self {
        Self::usual().rounds(rounds)
    }
}

/// A fit in which each client has a model of its own.
pub struct PersonalFit {
    run: Run,
}

impl PersonalFit {
    /// The run that it comes from.
    pub fn run(&self) -> &Run {
        &self.run
    }

    /// The model of a client that took part.
    pub fn client(&self, name: &str) -> Result<Personal<'_>> {
        Ok(Personal { run: &self.run, own: self.run.own_of(name)?.clone() })
    }

    /// The model of a client that did not, fitted to its rows.
    pub fn adapt(&self, rows: &Rows) -> Result<Personal<'_>> {
        Ok(Personal { run: &self.run, own: self.run.adapt(rows)?.artifact })
    }
}

/// One client's model.
pub struct Personal<'a> {
    run: &'a Run,
    own: Artifact,
}

impl Personal<'_> {
    /// What is the client's own: weights of components, samples, models.
    pub fn own(&self) -> &Artifact {
        &self.own
    }

    /// Its weights of a mixture's components.
    pub fn weights(&self) -> &[f64] {
        self.own.tensor("weights").map_or(&[], |tensor| &tensor.values)
    }

    /// Samples of its posterior, where it has one.
    pub fn samples(&self) -> impl Iterator<Item = &[f32]> {
        let found = self.own.narrow.iter().find(|tensor| tensor.name == "samples");
        let width = found.and_then(|tensor| tensor.shape.last()).map_or(1, |n| *n as usize);
        found.map_or(&[][..], |tensor| &tensor.values).chunks_exact(width.max(1))
    }

    /// The likeliest class of each row.
    pub fn classes(&self, rows: &Rows) -> Result<Vec<String>> {
        Ok(labels(self.table(rows)?))
    }

    /// The predicted number of each row.
    pub fn predict(&self, rows: &Rows) -> Result<Vec<f64>> {
        Ok(wide(&self.table(rows)?, "prediction"))
    }

    /// The ends of intervals that hold 90 % of new targets, of posteriors over numbers.
    pub fn intervals(&self, rows: &Rows) -> Result<Vec<[f64; 2]>> {
        let found = self.table(rows)?;
        let (low, high) = (wide(&found, "low_90"), wide(&found, "high_90"));
        Ok(low.into_iter().zip(high).map(|(low, high)| [low, high]).collect())
    }

    /// Everything that is predicted, by name.
    pub fn table(&self, rows: &Rows) -> Result<Predicted> {
        self.run.predict_by(Some(&self.own), rows)
    }
}
