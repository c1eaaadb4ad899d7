//! What a stranger, or a client that went wrong, can cost a coordinator at most.

use crate::proto::Kind;
use std::time::Duration;

/// Bytes of one chunk.
pub const CHUNK_BYTES: usize = 256 << 10;

/// The most bytes of one gRPC frame that is read; a frame is a chunk and its wrapping.
pub const FRAME_BYTES_MAX: usize = CHUNK_BYTES + 1024;

/// The most bytes of a message of this kind, where `message_max` is the job's. What is handed out at
/// the end holds the metrics of all rounds beside the model, which no job foresees: it may be longer.
pub fn message_bytes_max(kind: Kind, message_max: u64) -> u64 {
    match kind {
        Kind::Deliver => message_max.max(DELIVERY_BYTES_MAX),
        _ => message_max,
    }
}

const DELIVERY_BYTES_MAX: u64 = 1 << 30;

/// Descriptors that connections leave to everything else: the run's files, the registry, the
/// dashboard's visitors, the runtime.
const RESERVED: usize = 160;
/// Connections that are tried for, where descriptors allow it.
const CONNECTIONS: usize = 4096;

/// Raises the process's limit of descriptors as far as it may, and says how many connections it
/// leaves room for.
#[cfg(unix)]
pub fn connections_by_descriptors() -> usize {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let wanted = (CONNECTIONS + RESERVED) as u64;
    let limit = getrlimit(Resource::Nofile);
    let most = limit.maximum.unwrap_or(u64::MAX);
    if limit.current.is_some_and(|now| now < wanted.min(most)) {
        let raised = Rlimit { current: Some(wanted.min(most)), maximum: limit.maximum };
        if let Err(error) = setrlimit(Resource::Nofile, raised) {
            tracing::warn!(%error, "the limit of open files cannot be raised");
        }
    }
    let now = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX).min(wanted) as usize;
    // Half of a small limit is left to the rest.
    now.saturating_sub(RESERVED).max(now / 2).clamp(1, CONNECTIONS)
}

/// Where there is no such limit.
#[cfg(not(unix))]
pub fn connections_by_descriptors() -> usize {
    CONNECTIONS
}

/// Caps and timeouts.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Connections at the same time, those that still shake hands included.
    pub connections: usize,
    /// A message that the method itself does not bound.
    pub message_bytes: u64,
    /// Bytes of uploads that are being received or wait to be folded, together; one upload at a time
    /// may go on beyond that.
    pub upload_bytes: u64,
    /// Bytes of messages that are on their way down, together; one message may be longer.
    pub download_bytes: u64,
    /// Wrong tokens per minute from one host; beyond that none of its is looked at.
    pub enrolments_per_minute: u32,
    /// Sessions that one client may begin per minute.
    pub sessions_per_minute: u32,
    /// Refused uploads of one client before an exchange no longer waits for it.
    pub refusals_per_exchange: u32,
    /// TLS and HTTP/2 handshake.
    pub handshake: Duration,
    /// From the handshake to the first frame of a session.
    pub first_frame: Duration,
    /// The longest wait for the next chunk of an upload, and for room to send one.
    pub stall: Duration,
    /// The longest that one upload may take, whatever its length; waiting for memory not counted.
    pub upload: Duration,
    /// By how much an upload that has the turn may fall behind while others wait for it.
    pub turn: Duration,
    /// How often a client must be heard from; after three times as long it is taken for lost.
    pub heartbeat: Duration,
    /// How long a round waits for the summary of a client that joins late.
    pub late_summary: Duration,
    /// How long a finished coordinator waits for clients that have not fetched the model.
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
