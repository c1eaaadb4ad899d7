//! The terminal as a listener of runs.

use super::execute::interrupt_flag;
use super::messages::{self, Progress};
use crate::run::Listener;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use whimbrel_engine::Observer;

/// Standard error, a progress bar and Ctrl-C.
pub struct Terminal;

impl Listener for Terminal {
    fn note(&self, text: &str) {
        messages::note(text);
    }

    fn warning(&self, text: &str) {
        messages::warning(text);
    }

    fn watch(&self, name: &str, rounds: Option<u32>, sends: bool) -> Box<dyn Observer + '_> {
        Box::new(Progress::new(name, rounds, sends))
    }

    fn interrupt(&self) -> Arc<AtomicBool> {
        interrupt_flag()
    }
}
