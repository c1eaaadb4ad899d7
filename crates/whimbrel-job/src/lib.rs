//! Job files: keys, defaults, errors, and what is built from them.

pub mod build;
pub mod completed;
pub mod error;
pub mod failure;
pub mod key;
pub mod load;
pub mod offer;
pub mod rundir;
pub mod spec;
pub mod start;

mod reader;
mod reference;
mod resolve;
mod suggest;
mod template;

pub use error::{Error, Errors};
pub use offer::Offer;
pub use reference::{examples, reference};
pub use spec::Job;
pub use template::{DataFacts, TableFacts, template};
