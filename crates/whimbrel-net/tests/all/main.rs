//! A federation on loopback: coordinators and clients in one process, connections over TLS.

#[path = "../../../whimbrel-engine/tests/all/toy.rs"]
#[allow(dead_code)] // partly for the engine's own tests
mod toy;

mod authority;
mod damage;
mod fuzz;
mod hostile;
mod liar;
mod limits;
mod pki;
mod proxy;
mod raw_session;
mod registry;
mod relays;
mod restarts;
mod same_bits;
mod store;
mod support;
mod watch;
