//! Families of models and methods: their job keys, and the stages built from a job.
//!
//! A [`Family`](family::Family) is a folder and a word in `families!` below. All families share
//! [`job`] (the tables of a job file), [`load`] (rows), [`plan`] (stages) and [`offer`] (a job as
//! sent to a client on a network).

pub mod failure;
pub mod family;
pub mod files;
pub mod job;
pub mod load;
pub mod offer;
pub mod plan;
pub mod registry;
pub mod uncertainty;

mod predictions;
mod reference;
mod template;
mod usage;

/// Declares a module for each family and registers its `FAMILY`.
macro_rules! families {
    ($($family:ident),+) => {
        $(pub mod $family;)+

        /// The built-in families, in the order in which `whimbrel new` asks them.
        static BUILT_IN: &[&family::Family] = &[$(&$family::FAMILY),+];
    };
}

families! { table, bayes, personal, describe, regression, gradient, em }

pub use job::Job;
pub use offer::Offer;
pub use reference::{examples, reference};
pub use template::{DataFacts, Suggestion, TableFacts, template};
pub use whimbrel_job::{Error, Errors};
