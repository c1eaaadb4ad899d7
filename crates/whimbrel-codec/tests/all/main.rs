//! One binary for all integration tests of the codecs.

mod format;
mod fuzz;
mod grid;
mod isa;
mod laws;
mod length;
mod omega;
mod subject;
mod uplink;
