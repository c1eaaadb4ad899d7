//! Families of models and methods: their job keys, and what is built from a job.

pub mod build;
pub mod completed;
pub mod exhibits;
pub mod failure;
pub mod load;
pub mod offer;
pub mod spec;
pub mod start;

mod reference;
mod template;

pub use offer::Offer;
pub use reference::{examples, reference};
pub use spec::Job;
pub use template::{DataFacts, TableFacts, template};
pub use whimbrel_job::{Error, Errors};
