//! Methods at work: reductions, invariants, equal bits in every runner, and the heterogeneous
//! federation on which naive methods stall.

mod attacks;
mod battery;
mod bayes;
mod candidates;
mod consent;
mod decentralised;
mod delivered;
mod downlinks;
mod federation;
mod fedmiss;
mod fedmiss_codecs;
mod fedmiss_effects;
mod fedmiss_exact;
mod fedmiss_optimum;
mod fedmiss_steps;
mod frames;
mod grid;
mod grouped;
mod heterogeneous;
mod invariants;
mod masked;
mod mixed;
mod newton;
mod non_convex;
mod oracle;
mod own_uplinks;
mod personal;
mod private;
mod reductions;
mod runners;
mod selection;
mod sgd;
mod theory;
mod variance;
mod widths;
