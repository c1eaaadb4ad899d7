//! One binary for all integration tests of the learners.

mod affine;
mod levels;
mod networks;
