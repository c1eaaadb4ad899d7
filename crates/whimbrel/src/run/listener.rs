//! Receivers of a run's messages: the terminal, or a program that embeds the library.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use whimbrel_engine::Observer;

/// Receives the messages of a run, and may interrupt it.
pub trait Listener {
    /// A note.
    fn note(&self, text: &str);
    /// A warning.
    fn warning(&self, text: &str);
    /// An observer of the run `name` with this number of rounds, if known; `sends` is false for pooled
    /// methods, which send nothing.
    fn watch(&self, name: &str, rounds: Option<u32>, sends: bool) -> Box<dyn Observer + '_>;
    /// A flag that ends the run after the current exchange, with its state saved.
    fn interrupt(&self) -> Arc<AtomicBool>;
}
