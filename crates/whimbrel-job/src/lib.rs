//! Job files: keys, defaults, errors, and what is built from them.

pub mod error;
pub mod key;
pub mod spec;

mod reader;
mod reference;
mod resolve;
mod suggest;
mod template;

pub use error::{Error, Errors};
pub use reference::{examples, reference};
pub use spec::Job;
pub use template::{DataFacts, template};
