//! One binary for all integration tests of the core.

mod sum;
