//! Learners: models whose parameters are one flat vector of `f32`, with hand-derived gradients, losses
//! for each sample and a weight for each sample.
//!
//! Absent on purpose: federation, threads, files, and automatic differentiation.

mod learner;

pub use learner::{Batch, Learner, Role, Room, Tensor};
