//! Learners supplied by a program: `kind = "own"` in `[model]`.
//!
//! A program that embeds this crate, such as the Python package, registers a learner by name with
//! [`OwnLearner::new`]; jobs can use it while the value lives. [`with_networks`] lets it replace the
//! built-in networks of one run, for example by the same networks on a GPU.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use whimbrel_core::{Error, Result};
use whimbrel_nn::{Architecture, Learner};

/// Builds a learner for a shape of inputs and a number of classes; 0 for numeric targets.
pub type Build = dyn Fn(&[usize], usize) -> Result<Arc<dyn Learner>> + Send + Sync;

static OFFERED: Mutex<BTreeMap<String, Arc<Build>>> = Mutex::new(BTreeMap::new());

/// A registered learner.
pub struct OwnLearner {
    name: String,
}

impl OwnLearner {
    /// Registers a learner under an unused name.
    pub fn new(name: &str, build: Arc<Build>) -> Result<Self> {
        let mut all = offered();
        if all.contains_key(name) {
            let what = format!("a learner of the name {name:?} is in use by another run");
            return Err(Error::config(what)
                .hint("give this one another name, and write it as `learner` in [model]"));
        }
        all.insert(name.into(), build);
        Ok(Self { name: name.into() })
    }
}

impl Drop for OwnLearner {
    fn drop(&mut self) {
        offered().remove(&self.name);
    }
}

fn offered() -> MutexGuard<'static, BTreeMap<String, Arc<Build>>> {
    OFFERED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Builds a registered learner.
pub(super) fn build(name: &str, shape: &[usize], classes: usize) -> Result<Arc<dyn Learner>> {
    let build = offered().get(name).cloned();
    let build = build.ok_or_else(|| {
        Error::config(format!("the program supplies no learner of the name {name:?}"))
            .hint("from Python: whimbrel.run(job, learner=...), whimbrel.Run(folder, learner=...)")
    })?;
    build(shape, classes)
}

/// Replaces a built-in network, given its description and itself.
pub type Replace = dyn Fn(&Architecture, Arc<dyn Learner>) -> Result<Arc<dyn Learner>>;

thread_local! {
    static NETWORKS: RefCell<Option<Box<Replace>>> = const { RefCell::new(None) };
}

/// Calls `work`; networks that jobs build meanwhile on this thread pass through `replace`.
pub fn with_networks<T>(replace: Box<Replace>, work: impl FnOnce() -> T) -> T {
    struct Until(Option<Box<Replace>>);
    impl Drop for Until {
        fn drop(&mut self) {
            NETWORKS.set(self.0.take());
        }
    }
    let _before = Until(NETWORKS.replace(Some(replace)));
    work()
}

/// The learner, or its replacement.
pub(super) fn replaced(
    architecture: &Architecture,
    learner: Arc<dyn Learner>,
) -> Result<Arc<dyn Learner>> {
    NETWORKS.with_borrow(|replace| match replace {
        Some(replace) => replace(architecture, learner),
        None => Ok(learner),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use whimbrel_nn::Linear;

    #[test]
    fn networks_are_replaced_on_this_thread_until_the_work_is_done() {
        let architecture = Architecture::new("mlp", &[3], 2);
        let count = || {
            let network = Arc::from(architecture.build().unwrap());
            replaced(&architecture, network).unwrap().parameters()
        };
        let plain = count();
        let linear = || Box::new(|_: &Architecture, _| Ok(Arc::new(Linear::new(3, true)) as _));
        assert_eq!(with_networks(linear(), count), 4);
        let elsewhere = || std::thread::spawn(|| NETWORKS.take().is_none()).join();
        assert!(with_networks(linear(), elsewhere).unwrap());
        assert_eq!(count(), plain);
    }

    #[test]
    fn a_name_is_taken_while_its_learner_lives() {
        let linear: Arc<Build> = Arc::new(|shape, _| Ok(Arc::new(Linear::new(shape[0], true))));
        let missing = build("test-own", &[3], 0).map(|_| ()).unwrap_err().to_string();
        assert!(missing.contains("\"test-own\""), "{missing}");
        let first = OwnLearner::new("test-own", linear.clone()).unwrap();
        assert!(OwnLearner::new("test-own", linear.clone()).is_err());
        assert_eq!(build("test-own", &[3], 0).unwrap().parameters(), 4);
        drop(first);
        assert!(build("test-own", &[3], 0).is_err());
        assert!(OwnLearner::new("test-own", linear).is_ok());
    }
}
