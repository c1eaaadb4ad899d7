//! Families of models and methods: their job keys, and what is built from a job.
//!
//! A [`Family`](family::Family) is a folder and a word in `families!` below. Beside them stand what all share: [`job`] (the tables of a job file), [`load`] (rows), [`plan`] (stages)
//! and [`offer`] (a job as a client on a network gets it).

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

/// Declares families: a module each, whose `FAMILY` is registered.
macro_rules! families {
    ($($family:ident),+) => {
        $(pub mod $family;)+

        /// The families that come with the program. `whimbrel new` asks them in this order.
        static BUILT_IN: &[&dyn family::Family] = &[$(&$family::FAMILY),+];
    };
}

families! { table, bayes, personal, gradient, em }

pub use job::Job;
pub use offer::Offer;
pub use reference::{examples, reference};
pub use template::{DataFacts, Suggestion, TableFacts, template};
pub use whimbrel_job::{Error, Errors};
