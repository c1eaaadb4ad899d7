//! Personal models.

use super::estimator::{Estimator, kinds};
use super::rows::Rows;
use super::run::{Run, labels, numbers};
use std::any::Any;
use std::path::Path;
use whimbrel_core::method::Artifact;
use whimbrel_families::bayes::SoulFit;
use whimbrel_families::failure::Result;
use whimbrel_families::family::Predicted;
use whimbrel_families::personal::PersonalFit as Learners;

/// A mixture of learners with mixture weights per client (`fedmix`), or by
/// [`personal`](Estimator::personal) the learners of another personal method, such as `ditto` or `apfl`. The
/// learner predicts classes or numbers, as the rows have them ([`learner`](Estimator::learner)).
///
/// ```
/// use whimbrel::{MixtureOfLearners, Rows};
///
/// // Two kinds of clients: the class follows the sign of the first column, or its opposite.
/// let client = |flipped: bool| {
///     let row = |i: u32| [f64::from(i % 9) - 4.2, f64::from(i % 5)];
///     let class = move |i| (row(i)[0] > 0.0) != flipped;
///     Rows::from_rows((0..60).map(row)).classes((0..60).map(class))
/// };
/// let named = |c: u32| client(c % 2 == 1).named(format!("ward-{c}"));
/// let clients: Vec<Rows> = (0..8).map(named).collect();
/// let fit = MixtureOfLearners::new(2, 100).learner("logistic").fit(&clients)?;
/// println!("{:?}", fit.client("ward-1")?.weights());
/// // A client that took no part in training.
/// let late = fit.adapt(&client(true))?;
/// assert_eq!(late.classes(&Rows::from_rows([[3.0, 1.0]]))?, ["false"]);
/// # Ok::<(), whimbrel::Error>(())
/// ```
pub type MixtureOfLearners = Estimator<FedMix>;

/// A regression with a posterior for each client, sampled by Langevin kernels (`fedsoul`).
///
/// ```
/// use whimbrel::{BayesianRegression, Rows};
///
/// let row = |i: u32| [f64::from(i % 7) - 3.0];
/// let client = |c: u32| {
///     let target = move |i| 2.0 * row(i)[0] + 0.1 * f64::from((i + c) % 3);
///     Rows::from_rows((0..40).map(row)).targets((0..40).map(target).collect::<Vec<_>>())
/// };
/// let fit = BayesianRegression::new(50).fit(&[client(0), client(1), client(2)])?;
/// let [low, high] = fit.client("1")?.intervals(&Rows::from_rows([[1.0]]))?[0];
/// assert!(low < high);
/// # Ok::<(), whimbrel::Error>(())
/// ```
pub type BayesianRegression = Estimator<FedSoul>;

kinds! {
    /// The kind of [`MixtureOfLearners`].
    FedMix = ("softmax", "fedmix"), Some("linear"), |run| PersonalFit: Ok(PersonalFit { run });
    /// The kind of [`BayesianRegression`].
    FedSoul = ("linear", "fedsoul"), Some("linear"), |run| PersonalFit: Ok(PersonalFit { run });
}

impl Estimator<FedMix> {
    /// A mixture of this many components, trained for this many rounds.
    pub fn new(components: usize, rounds: u32) -> Self {
        Self::start().set("method.components", components).rounds(rounds)
    }

    /// The learners of a personal method without components, by its name in a job file (`ditto`, `apfl`, `local`),
    /// trained for this many rounds.
    pub fn personal(method: &str, rounds: u32) -> Self {
        Self::start().method(method).rounds(rounds)
    }

    /// The learner, by its name in a job file: `linear` for numbers, `logistic` for two classes, `softmax`,
    /// `mlp` and others for several. The default is `softmax` for classes and `linear` for numbers.
    pub fn learner(self, name: &str) -> Self {
        self.set("model.kind", name)
    }

    /// The number of passes over a client's rows in a round.
    pub fn local_epochs(self, epochs: u32) -> Self {
        self.set("method.local_epochs", epochs)
    }
}

impl Estimator<FedSoul> {
    /// Chains that run for this many rounds.
    pub fn new(rounds: u32) -> Self {
        Self::start().rounds(rounds)
    }
}

/// A fit with a personal model for each client.
pub struct PersonalFit {
    run: Run,
}

impl PersonalFit {
    /// The run: metrics, traffic, [`save`](Run::save).
    pub fn run(&self) -> &Run {
        &self.run
    }

    /// Opens the folder of a finished fit, written by [`Run::save`] or by `whimbrel run`.
    pub fn open(folder: impl AsRef<Path>) -> Result<Self> {
        let is_one = |fit: &dyn Any| fit.is::<Learners>() || fit.is::<SoulFit>();
        Ok(Self { run: Run::open_of(folder.as_ref(), is_one)? })
    }

    /// The model of a client that took part. Clients without a name are called by
    /// their position with leading zeros ([`Rows::named`]).
    pub fn client(&self, name: &str) -> Result<Personal<'_>> {
        Ok(Personal { run: &self.run, own: self.run.own(name)?.clone() })
    }

    /// The model of a client unseen in training, fitted to its rows and their targets.
    pub fn adapt(&self, rows: &Rows) -> Result<Personal<'_>> {
        rows.need_targets()?;
        Ok(Personal { run: &self.run, own: self.run.adapt(rows)?.artifact })
    }
}

/// One client's model.
pub struct Personal<'a> {
    run: &'a Run,
    own: Artifact,
}

impl Personal<'_> {
    /// The client's mixture weights; empty for methods without a mixture.
    pub fn weights(&self) -> &[f64] {
        self.own.tensor("weights").map_or(&[], |tensor| &tensor.values)
    }

    /// Samples of the client's posterior: of a regression the coefficients in the order of the columns, then the
    /// intercept. None for methods without a posterior.
    pub fn samples(&self) -> Vec<&[f32]> {
        let samples = self.own.narrow.iter().find(|tensor| tensor.name == "samples");
        let width = samples.and_then(|tensor| tensor.shape.last()).map_or(1, |n| *n as usize);
        samples.map_or(&[][..], |tensor| &tensor.values).chunks_exact(width.max(1)).collect()
    }

    /// The most probable class of each row.
    pub fn classes(&self, rows: &Rows) -> Result<Vec<String>> {
        labels(&self.predict_all(rows)?)
    }

    /// The predicted number of each row.
    pub fn predict(&self, rows: &Rows) -> Result<Vec<f64>> {
        numbers(&self.predict_all(rows)?, "prediction", "numbers")
    }

    /// 90 % prediction intervals `[low, high]`, for posteriors over numbers.
    pub fn intervals(&self, rows: &Rows) -> Result<Vec<[f64; 2]>> {
        let found = self.predict_all(rows)?;
        let of = |name| numbers(&found, name, "intervals");
        let (low, high) = (of("low_90")?, of("high_90")?);
        Ok(low.into_iter().zip(high).map(|(low, high)| [low, high]).collect())
    }

    /// All predicted columns.
    pub fn predict_all(&self, rows: &Rows) -> Result<Predicted> {
        self.run.predict_with(Some(&self.own), rows)
    }
}
