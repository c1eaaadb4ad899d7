//! The crate's integration tests, in one binary.

mod cases;
mod data;
mod em;
mod estep;
mod kmeans;
mod mstep;
mod peers;
mod start;
