//! One binary for all integration tests of masked sums.

mod bytes;
mod drops;
mod federation;
mod lies;
mod refusals;
