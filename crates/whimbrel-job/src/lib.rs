//! The machinery of job files: keys with one definition each, a reader that knows lines, a writer.
//!
//! A [`JobKey`](key::JobKey) is defined once; the [`reader`] parses by it and takes defaults and messages from
//! it, the [`writer`] writes it, the reference page prints it. No table of a job is known here.

pub mod error;
pub mod form;
pub mod key;
pub mod matrix;
pub mod origin;
pub mod reader;
pub mod reference;
pub mod writer;

mod suggest;

pub use error::{Error, Errors};
pub use origin::Origin;
