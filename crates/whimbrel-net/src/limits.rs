//! Bounds on the cost of unauthenticated connections and faulty clients.

use crate::proto::Kind;
use std::time::Duration;

/// Maximal bytes of a chunk.
pub const CHUNK_BYTES: usize = 256 << 10;

/// Maximal bytes of a gRPC frame: a chunk and its wrapping.
pub const FRAME_BYTES_MAX: usize = CHUNK_BYTES + 1024;

/// Maximal bytes of a message of this kind, given the job's `message_max`. The final delivery may be
/// longer, since it contains the metrics of all rounds.
pub fn message_bytes_max(kind: Kind, message_max: u64) -> u64 {
    match kind {
        Kind::Deliver => message_max.max(DELIVERY_BYTES_MAX),
        _ => message_max,
    }
}

const DELIVERY_BYTES_MAX: u64 = 1 << 30;

/// Descriptors reserved for other purposes: files of the run, the dashboard, the runtime.
const RESERVED: usize = 160;
/// Connections wanted, if descriptors suffice.
const CONNECTIONS: usize = 4096;

/// Raises the process's limit of descriptors and returns the number of connections that it allows.
#[cfg(unix)]
pub fn connections_by_descriptors() -> usize {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let wanted = (CONNECTIONS + RESERVED) as u64;
    let limit = getrlimit(Resource::Nofile);
    let most = limit.maximum.unwrap_or(u64::MAX);
    if limit.current.is_some_and(|now| now < wanted.min(most)) {
        let raised = Rlimit { current: Some(wanted.min(most)), maximum: limit.maximum };
        if let Err(error) = setrlimit(Resource::Nofile, raised) {
            tracing::warn!(%error, "the limit on open files cannot be raised");
        }
    }
    let now = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX).min(wanted) as usize;
    // Half of a small limit is reserved.
    now.saturating_sub(RESERVED).max(now / 2).clamp(1, CONNECTIONS)
}

#[cfg(not(unix))]
pub fn connections_by_descriptors() -> usize {
    CONNECTIONS
}

/// Limits and timeouts.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Concurrent connections, including handshakes.
    pub connections: usize,
    /// Bytes of a message that the method does not bound.
    pub message_bytes: u64,
    /// Total bytes of uploads in memory; one upload at a time may exceed it.
    pub upload_bytes: u64,
    /// Total bytes of messages being sent; one message may exceed it.
    pub download_bytes: u64,
    /// Wrong tokens per minute and host.
    pub enrolments_per_minute: u32,
    /// New sessions per minute and client.
    pub sessions_per_minute: u32,
    /// Refused uploads after which an exchange stops waiting for a client.
    pub refusals_per_exchange: u32,
    /// Duration of the TLS handshake.
    pub handshake: Duration,
    /// Time from the handshake to the first frame of a session.
    pub first_frame: Duration,
    /// Wait for the next chunk of an upload, and for sending one.
    pub stall: Duration,
    /// Duration of an upload, without waits for memory.
    pub upload: Duration,
    /// Delay behind the minimal rate of an upload that holds the turn while others wait.
    pub turn: Duration,
    /// Interval of heartbeats; after three intervals of silence a client is disconnected.
    pub heartbeat: Duration,
    /// Wait of a round for the summary of a late joiner.
    pub late_summary: Duration,
    /// Wait of a finished coordinator for clients that lack the model.
    pub linger: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: CONNECTIONS,
            message_bytes: 1 << 30,
            upload_bytes: 256 << 20,
            download_bytes: 256 << 20,
            enrolments_per_minute: 60,
            sessions_per_minute: 120,
            refusals_per_exchange: 3,
            handshake: Duration::from_secs(10),
            first_frame: Duration::from_secs(10),
            stall: Duration::from_secs(30),
            upload: Duration::from_secs(3600),
            turn: Duration::from_secs(30),
            heartbeat: Duration::from_secs(10),
            late_summary: Duration::from_secs(30),
            linger: Duration::from_secs(60),
        }
    }
}
