//! A federation on loopback: coordinators and clients in one process, connections over TLS.

#[path = "../../../whimbrel-engine/tests/all/toy.rs"]
mod toy;

mod same_bits;
mod support;
