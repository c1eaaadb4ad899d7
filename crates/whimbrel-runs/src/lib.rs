//! Run folders: where a run is, what may be in it, and what is written there.

pub mod folder;

pub use folder::*;
