//! Who is told how a run goes, and can end it: the terminal, or a program that embeds this one.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use whimbrel::engine::Observer;

/// Hears what a run has to say.
pub trait Listener {
    /// Something worth knowing.
    fn note(&self, text: &str);
    /// Something to look at.
    fn warning(&self, text: &str);
    /// Watches a run with its number of rounds, where that is known; with `sends`, its bits are of
    /// interest.
    fn watch(&self, name: &str, rounds: Option<u32>, sends: bool) -> Box<dyn Observer + '_>;
    /// Once set, the run ends after the exchange under way, and its state is saved.
    fn interrupt(&self) -> Arc<AtomicBool>;
}
