//! Families of models and methods: their job keys, and what is built from a job.
//!
//! A [`Family`](family::Family) is a folder and one line in the [`registry`]: `em`, `gradient`, `table`,
//! `personal`, `bayes`.
//! Beside them stand what all share: [`job`] (the tables of a job file), [`load`] (rows), [`plan`] (stages)
//! and [`offer`] (a job as a client on a network gets it).

pub mod bayes;
pub mod em;
pub mod failure;
pub mod family;
pub mod files;
pub mod gradient;
pub mod job;
pub mod load;
pub mod offer;
pub mod personal;
pub mod plan;
pub mod registry;
pub mod table;
pub mod uncertainty;

mod predictions;
mod reference;
mod template;

pub use job::Job;
pub use offer::Offer;
pub use reference::{examples, reference};
pub use template::{DataFacts, Suggestion, TableFacts, template};
pub use whimbrel_job::{Error, Errors};
