//! Progress of a run, reported to a callback that may stop it.

use crate::run::Listener;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use whimbrel_core::method::Artifact;
use whimbrel_engine::runner::Done;
use whimbrel_engine::{Observer, Row, StageRules};

/// The state of a run after a round or an evaluation.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Progress<'a> {
    /// The stage under way: `fit`, or a stage before it such as `k-means`.
    pub stage: &'a str,
    /// The number of rounds of this stage that are done.
    pub round: u32,
    /// The planned number of rounds, where it is known.
    pub rounds: Option<u32>,
    row: Option<&'a Row>,
}

impl Progress<'_> {
    /// Whether the metrics of this round were evaluated.
    pub fn is_evaluation(&self) -> bool {
        self.row.is_some()
    }

    /// A metric of this round by its key, such as `objective`; `None` where it was not evaluated.
    pub fn metric(&self, key: &str) -> Option<f64> {
        self.row.and_then(|row| row.number(key))
    }
}

/// A callback; `Break` stops the run.
pub(super) type Watch<'a> = dyn FnMut(&Progress<'_>) -> ControlFlow<()> + Send + 'a;

/// Calls back after each round and each evaluation, and keeps the metrics and the personal artifacts.
pub(super) struct Watching<'a> {
    call: Box<dyn FnMut(&Progress<'_>) + 'a>,
    stage: &'static str,
    fit_rounds: Option<u32>,
    rounds: Option<u32>,
    round: u32,
    /// Ends the fit, once it is set, as if its budget were spent.
    pub ends: Option<Arc<AtomicBool>>,
    pub history: Vec<Map<String, Value>>,
    pub own: BTreeMap<String, Artifact>,
}

impl<'a> Watching<'a> {
    pub fn new(fit_rounds: Option<u32>, call: impl FnMut(&Progress<'_>) + 'a) -> Self {
        Self {
            call: Box::new(call),
            stage: "",
            fit_rounds,
            rounds: None,
            round: 0,
            ends: None,
            history: Vec::new(),
            own: BTreeMap::new(),
        }
    }

    fn report(&mut self, row: Option<&Row>) {
        let (stage, round, rounds) = (self.stage, self.round, self.rounds);
        (self.call)(&Progress { stage, round, rounds, row });
    }
}

impl Observer for Watching<'_> {
    fn stage(&mut self, stage: &StageRules, index: usize, of: usize) {
        (self.stage, self.round) = (stage.name, 0);
        self.rounds = self.fit_rounds.filter(|_| index + 1 == of);
    }

    fn exchange(&mut self, done: &Done) {
        if let Some(round) = done.round {
            self.round = round;
            self.report(None);
        }
    }

    fn row(&mut self, row: &Row) {
        self.history.push(row.to_json());
        self.report(Some(row));
    }

    fn ends(&self) -> bool {
        self.ends.as_ref().is_some_and(|ends| ends.load(Ordering::Relaxed))
    }

    fn client_artifact(&mut self, name: &str, own: Artifact) -> whimbrel_core::Result<()> {
        self.own.insert(name.to_owned(), own);
        Ok(())
    }
}

/// A listener over a callback. Notes and warnings are left to the run's summary.
pub(super) struct Callback<'a> {
    watch: Mutex<&'a mut Watch<'a>>,
    stop: Arc<AtomicBool>,
}

impl<'a> Callback<'a> {
    pub fn new(watch: &'a mut Watch<'a>) -> Self {
        Self { watch: Mutex::new(watch), stop: Arc::default() }
    }

    fn call(&self, progress: &Progress<'_>) {
        let mut watch = self.watch.lock().unwrap_or_else(PoisonError::into_inner);
        if watch(progress).is_break() {
            self.stop.store(true, Ordering::Relaxed);
        }
    }

    /// An observer of one run.
    pub fn observer(&self, rounds: Option<u32>) -> Watching<'_> {
        Watching::new(rounds, |progress| self.call(progress))
    }
}

impl Listener for Callback<'_> {
    fn note(&self, _: &str) {}

    fn warning(&self, _: &str) {}

    fn watch(&self, _: &str, rounds: Option<u32>, _: bool) -> Box<dyn Observer + '_> {
        Box::new(self.observer(rounds))
    }

    fn interrupt(&self) -> Arc<AtomicBool> {
        self.stop.clone()
    }
}

/// A listener that ignores everything.
pub(super) struct Silent;

impl Listener for Silent {
    fn note(&self, _: &str) {}

    fn warning(&self, _: &str) {}

    fn watch(&self, _: &str, _: Option<u32>, _: bool) -> Box<dyn Observer + '_> {
        Box::new(Watching::new(None, |_| ()))
    }

    fn interrupt(&self) -> Arc<AtomicBool> {
        Arc::default()
    }
}
