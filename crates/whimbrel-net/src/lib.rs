//! Federations on a network: the coordinator, which runs a job's rounds, and its clients.
//!
//! The engine runs the rounds. This crate carries its messages (gRPC over TLS 1.3), authenticates
//! peers ([`registry`], [`tls`]), keeps the commit rule on both ends ([`wal`], [`client::slots`]),
//! and bounds the cost of unauthenticated connections ([`limits`]).
//!
//! | side | module | content |
//! |---|---|---|
//! | coordinator | [`coordinator`] | rounds: requests, collection of answers, durability, acknowledgements |
//! | | [`events`] | queue of events from connections to the coordinator's thread |
//! | | [`service`], [`listen`] | one connection: handshake, authentication, frames, limits |
//! | | [`unauthenticated`] | limits on unauthenticated connections |
//! | | [`upload_memory`] | memory for uploads, reserved as bytes arrive |
//! | | [`registry`], [`members`] | list of clients: invitations, certificates, standings |
//! | | [`inspection`], [`repair`] | integrity of a run's files, and their repair |
//! | | [`durable_run`], [`wal`] | checkpoint, and the log of exchanges since then |
//! | | [`dashboard`] | status page and Prometheus metrics |
//! | | [`status`], [`audit`] | status snapshot; audit log |
//! | relay | [`relay`] | one connection to the coordinator for the clients of a site |
//! | client | [`client`] | enrolment, reconnection, computation, staging before upload |
//! | both | [`invitation`], [`tls`], [`frames`] | shared protocol definitions |
//!
//! Deliberately absent: types of methods, printing, and state that moves before it is durable.

pub mod audit;
pub mod client;
pub mod coordinator;
pub mod dashboard;
pub mod durable_run;
pub mod events;
pub mod frames;
pub mod inspection;
pub mod invitation;
pub mod limits;
pub mod listen;
pub mod members;
pub mod registry;
pub mod relay;
pub mod repair;
pub mod service;
pub mod status;
pub mod tls;
pub mod unauthenticated;
pub mod upload_memory;
pub mod wal;

pub use invitation::Invitation;
pub use limits::Limits;

/// Messages of the protocol, generated from `proto/federation.proto`.
#[allow(missing_docs)]
pub mod proto {
    tonic::include_proto!("whimbrel.v1");
}

/// Protocol version.
pub const PROTOCOL: u32 = 1;

/// Farewell of a client whose user, or whose own checks, declined the job.
pub(crate) const DECLINED: &str = "declined";

/// Beginning of the farewell of a coordinator whose job failed.
pub const JOB_FAILED: &str = "the job failed: ";
