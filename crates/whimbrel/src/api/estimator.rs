//! What every estimator has: settings that are keys of a job, and `fit`.

use super::rows::{Federation, Rows};
use super::run::{Progress, Run, Watch};
use super::settings::{Codec, Draft, Setting};
use std::marker::PhantomData;
use std::ops::ControlFlow;
use whimbrel::families::failure::Result;

/// A model and the federated method that fits it, as they will be fitted: nothing is set but what a
/// caller set, so that everything else is as in a job file that does not say it.
///
/// Made by [`GaussianMixture`](super::GaussianMixture) and its like. Settings are checked by [`fit`](Self::fit).
#[derive(Clone, Debug, PartialEq)]
#[must_use = "settings do nothing until `fit`"]
pub struct Estimator<K> {
    pub(crate) draft: Draft,
    pub(crate) pooled: bool,
    kind: PhantomData<K>,
}

/// What an estimator fits. Not to be implemented elsewhere.
pub trait Kind: sealed::Sealed {
    /// The result.
    type Fit;
    /// What a job calls the model and the usual method.
    #[doc(hidden)]
    const WORDS: (&'static str, &'static str);
    /// Makes the result of a run.
    #[doc(hidden)]
    fn finish(run: Run) -> Result<Self::Fit>;
}

pub(crate) mod sealed {
    pub trait Sealed {}
}

impl<K: Kind> Estimator<K> {
    pub(crate) fn usual() -> Self {
        let (model, method) = K::WORDS;
        Self { draft: Draft::new(model, method), pooled: false, kind: PhantomData }
    }

    /// Sets any key of a job, as `table.key`: `set("method.memory_max", "8GB")`.
    pub fn set(mut self, key: &str, value: impl Into<Setting>) -> Self {
        self.draft.set(key, value);
        self
    }

    /// The seed of everything drawn: the same rows and the same seed give the same bits.
    pub fn seed(self, seed: u64) -> Self {
        self.set("seed", seed)
    }

    /// The method, by its word in a job: `vr-fedem`, `mcm`, `ditto`.
    pub fn method(self, word: &str) -> Self {
        self.set("method.kind", word)
    }

    /// How many rounds the fit takes.
    pub fn rounds(self, rounds: u32) -> Self {
        self.set("method.rounds", rounds)
    }

    /// The probability with which a client takes part in a round.
    pub fn participation(self, probability: f64) -> Self {
        self.set("method.participation", probability)
    }

    /// How many clients take part in a round.
    pub fn cohort(self, clients: u32) -> Self {
        self.set("method.participation", Setting::toml(format!("{{ size = {clients} }}")))
    }

    /// Rows of a minibatch.
    pub fn batch(self, rows: u32) -> Self {
        self.set("method.batch", rows)
    }

    /// A constant step size.
    pub fn step(self, step: f64) -> Self {
        self.set("method.step", step)
    }

    /// How what clients send is compressed.
    pub fn uplink(self, codec: Codec) -> Self {
        self.set("uplink.codec", codec)
    }

    /// How what they are sent is compressed.
    pub fn downlink(self, codec: Codec) -> Self {
        self.set("downlink.codec", codec)
    }

    /// Scales each column to mean 0 and variance 1 over all clients' rows.
    pub fn standardize(self) -> Self {
        self.set("data.standardize", true)
    }

    /// The shares of each client's rows that are for validation and for tests.
    pub fn held_out(self, validation: f64, test: f64) -> Self {
        self.set("data.validation", validation).set("data.test", test)
    }

    /// The job that [`fit`](Self::fit) runs, with every default written out.
    pub fn to_toml(&self, clients: &[Rows]) -> Result<String> {
        Ok(self.draft.clone().job(&Federation::new(clients)?, self.pooled)?.to_toml())
    }

    /// Fits it to the rows that these clients hold, in this process.
    pub fn fit(&self, clients: &[Rows]) -> Result<K::Fit> {
        self.fit_with(clients, |_| ControlFlow::Continue(()))
    }

    /// The same, with a callback after every round; `Break` ends the fit there.
    pub fn fit_with(
        &self,
        clients: &[Rows],
        mut watch: impl FnMut(&Progress<'_>) -> ControlFlow<()>,
    ) -> Result<K::Fit> {
        let job = self.draft.clone().job(&Federation::new(clients)?, self.pooled)?;
        let watch: &mut Watch<'_> = &mut watch;
        K::finish(Run::of(job, watch)?)
    }
}
