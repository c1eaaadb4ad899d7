//! A federation on a network: the coordinator that runs a job's rounds, and the clients that join.
//!
//! The round logic is the engine's: this crate carries its messages (gRPC over TLS 1.3), knows who
//! may speak ([`registry`], [`tls`]), keeps the one commit rule on both ends ([`wal`],
//! [`client::slots`]), and bounds what a stranger can cost ([`limits`]).
//!
//! | side | module | does |
//! |---|---|---|
//! | coordinator | [`coordinator`] | feeds the engine's machine: asks, gathers, makes durable, acknowledges |
//! | | [`events`] | events from connections, in one queue for the coordinator's thread |
//! | | [`service`], [`listen`] | one connection: handshake, who is it, frames, limits |
//! | | [`upload_memory`] | memory for uploads, as their bytes arrive |
//! | | [`registry`] | invitations and the keys they are bound to |
//! | | [`inspection`] | whether what was kept is whole, and what can be repaired |
//! | | [`wal`] | exchanges since the last checkpoint, framed and checksummed |
//! | | [`dashboard`] | the page for people, and figures for Prometheus |
//! | | [`status`], [`audit`] | what is going on, for people; what happened, for the record |
//! | client | [`client`] | enrols, reconnects, computes, stages before it uploads |
//! | both | [`invitation`], [`tls`], [`frames`] | what the two ends agree on |
//!
//! Absent on purpose: any method's types, printing, and any state that moves before it is durable.

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
pub mod repair;
pub mod service;
pub mod status;
mod step;
pub mod strangers;
pub mod tls;
pub mod upload_memory;
pub mod wal;

pub use invitation::Invitation;
pub use limits::Limits;
/// The protocol's messages, made from `proto/federation.proto`.
#[allow(missing_docs)]
pub mod proto {
    tonic::include_proto!("whimbrel.v1");
}

/// The version of the protocol that this program speaks.
pub const PROTOCOL: u32 = 1;

/// What a coordinator's last word to its clients begins with where the job failed.
pub const JOB_FAILED: &str = "the job failed: ";
