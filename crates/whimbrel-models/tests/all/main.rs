//! The crate's integration tests, in one binary.

mod cases;
mod chains;
mod clip;
mod convex;
mod data;
mod em;
mod equivariance;
mod estep;
mod frame;
mod groups;
mod kmeans;
mod lowrank_cases;
mod lowrank_family;
mod lowrank_fit;
mod lowrank_intervals;
mod lowrank_solver;
mod lowrank_terms;
mod mixed;
mod mixed_em;
mod mstep;
mod optimum;
mod peers;
mod prior;
mod sampler;
mod start;
