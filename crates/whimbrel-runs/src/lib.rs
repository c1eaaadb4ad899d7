//! Run folders: their location, content and files.

pub mod folder;

pub use folder::*;
