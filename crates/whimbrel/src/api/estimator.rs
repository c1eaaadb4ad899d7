//! The settings that all estimators share, and `fit`.

use super::by_setters;
use super::progress::{Progress, Watch};
use super::rows::{Federation, Rows};
use super::run::Run;
use super::settings::{Codec, Draft, Setting};
use std::marker::PhantomData;
use std::ops::ControlFlow;
use whimbrel_core::Error;
use whimbrel_families::failure::Result;
use whimbrel_families::load::Layout;
use whimbrel_families::plan::Minima;

/// A model together with the federated method that fits it.
///
/// The constructors are those of [`GaussianMixture`](super::GaussianMixture) and the other
/// estimators. An estimator holds what was set; everything else has the job file's default.
#[derive(Clone, Debug, PartialEq)]
#[must_use = "an estimator does nothing until `fit`"]
pub struct Estimator<K> {
    draft: Draft,
    pooled: bool,
    kind: PhantomData<K>,
}

/// The kinds of estimators. This trait is sealed.
pub trait Kind: sealed::Sealed {
    /// The type of the fit.
    type Fit;
    /// The job file's words for the model and its default method.
    #[doc(hidden)]
    const WORDS: (&'static str, &'static str);
    /// The model's word for targets that are numbers; `None` for models without targets.
    #[doc(hidden)]
    const NUMBERS: Option<&'static str>;
    #[doc(hidden)]
    fn finish(run: Run) -> Result<Self::Fit>;
}

pub(super) mod sealed {
    pub trait Sealed {}
}

/// Declares kinds by the words of model and method, the model's word for targets that are numbers, and
/// the fit of a run.
macro_rules! kinds {
    ($($(#[$doc:meta])* $kind:ident = $words:expr, $numbers:expr, |$run:ident| $fit:ty: $made:expr;)+) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq)]
        pub enum $kind {}

        impl super::estimator::sealed::Sealed for $kind {}

        impl super::Kind for $kind {
            type Fit = $fit;
            const WORDS: (&'static str, &'static str) = $words;
            const NUMBERS: Option<&'static str> = $numbers;
            fn finish($run: Run) -> Result<$fit> {
                $made
            }
        }
    )+};
}
pub(super) use kinds;

impl<K: Kind> Estimator<K> {
    pub(super) fn start() -> Self {
        Self { draft: Draft::new(K::WORDS.1), pooled: false, kind: PhantomData }
    }

    /// The word of the same model under gradient methods.
    pub(super) fn or_by_gradients(mut self, model: &'static str) -> Self {
        self.draft.gradient = Some(model);
        self
    }

    pub(super) fn pool(mut self) -> Self {
        self.pooled = true;
        self
    }

    /// Sets any key of the job file, written `table.key`: `set("method.memory_max", "8GB")`.
    pub fn set(mut self, key: &str, value: impl Into<Setting>) -> Self {
        self.draft.set(key, value);
        self
    }

    /// The seed of all random draws.
    pub fn seed(self, seed: u64) -> Self {
        self.set("seed", seed)
    }

    /// The federated method, by its name in a job file: `vr-fedem`, `mcm`, `ditto`.
    pub fn method(self, name: &str) -> Self {
        self.set("method.kind", name)
    }

    /// The number of rounds.
    pub fn rounds(self, rounds: u32) -> Self {
        self.set("method.rounds", rounds)
    }

    /// The probability that a client takes part in a round.
    pub fn participation(self, probability: f64) -> Self {
        self.set("method.participation", probability)
    }

    /// The number of clients drawn for each round.
    pub fn cohort(self, clients: u32) -> Self {
        self.set("method.participation", Setting::toml(format!("{{ size = {clients} }}")))
    }

    /// The number of rows in a minibatch.
    pub fn batch(self, rows: u32) -> Self {
        self.set("method.batch", rows)
    }

    /// A constant step size.
    pub fn step(self, step: impl Into<f64>) -> Self {
        self.set("method.step", step.into())
    }

    /// Evaluates the metrics every this many rounds.
    pub fn evaluate_every(self, rounds: u32) -> Self {
        self.set("method.evaluate", Setting::toml(format!("{{ every = {rounds} }}")))
    }

    /// The codec of messages from clients.
    pub fn uplink(self, codec: Codec) -> Self {
        self.set("uplink.codec", codec)
    }

    /// The codec of messages to clients.
    pub fn downlink(self, codec: Codec) -> Self {
        self.set("downlink.codec", codec)
    }

    /// Scales each column to mean 0 and variance 1 over the rows of all clients.
    pub fn standardize(self) -> Self {
        self.set("data.standardize", true)
    }

    /// The fractions of each client's rows that are held out for validation and for tests; Newton's method, which
    /// evaluates no rows, refuses them.
    pub fn held_out(self, validation: f64, test: f64) -> Self {
        self.set("data.validation", validation).set("data.test", test)
    }

    /// The job that [`fit`](Self::fit) runs on these rows, with every default written out.
    pub fn to_toml(&self, clients: &[Rows]) -> Result<String> {
        Ok(self.job(&Federation::new(clients)?)?.to_toml())
    }

    /// Fits the model to the rows of these clients, in this process.
    pub fn fit(&self, clients: &[Rows]) -> Result<K::Fit> {
        self.fit_with(clients, |_| ControlFlow::Continue(()))
    }

    /// Fits with a callback after each round and each evaluation, the first at round 0. `Break` ends the
    /// fit there, and it is returned as it stands.
    pub fn fit_with(
        &self,
        clients: &[Rows],
        mut watch: impl FnMut(&Progress<'_>) -> ControlFlow<()> + Send,
    ) -> Result<K::Fit> {
        let watch: &mut Watch<'_> = &mut watch;
        let rows = Federation::new(clients)?;
        let run = Run::in_memory(self.job(&rows)?, Minima::IfNeeded, watch);
        K::finish(run.map_err(|failure| by_setters(rows.by_client(failure)))?)
    }

    fn job(&self, rows: &Federation<'_>) -> Result<whimbrel_families::Job> {
        if K::NUMBERS.is_some() {
            rows.first.need_targets()?;
        } else if rows.first.has_targets() {
            let error = Error::data("this model fits rows without targets, and these have targets");
            return Err(error.hint("leave out `Rows::targets` and `Rows::classes`").into());
        }
        let model = K::NUMBERS.filter(|_| rows.first.has_numbers()).unwrap_or(K::WORDS.0);
        let job = self.draft.clone().job(rows, model, self.pooled)?;
        if rows.first.has_numbers() && matches!(job.fit.layout(), Layout::Samples { classes: true })
        {
            let what = format!("`{}` predicts classes, and the targets are numbers", job.model);
            let hint = "give classes by `Rows::classes`, or predict numbers by the model `linear`";
            return Err(Error::data(what).hint(hint).into());
        }
        Ok(job)
    }
}
