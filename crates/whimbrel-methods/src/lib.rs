//! Federated methods, one file per family, each reading like its pseudo-code.
//!
//! Deliberately absent: threads, files, clocks, transports. A method is pure steps over explicit
//! state; its runners (simulator, network, Python) live in crates above. The one call outward is that
//! of [`masked::Watch`], which tells a program of rosters.

pub mod bayes;
pub mod choice;
pub mod clustering;
pub mod describe;
pub mod fedem;
pub mod federated;
pub mod fedmiss;
pub mod guard;
pub mod kmeans;
pub mod lloyd;
pub mod masked;
pub mod measures;
pub mod microaggregation;
pub mod mixture;
pub mod newton;
mod no_evaluation;
pub mod one_shot;
pub mod personal;
pub mod pooled;
pub mod prepare;
pub mod settings;
pub mod sgd;
pub mod spider;
pub mod step;
pub mod theory;
