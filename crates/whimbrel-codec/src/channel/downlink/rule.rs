//! What a downlink compresses and keeps.

/// What is compressed, and what is kept.
#[derive(Clone, Debug, PartialEq)]
pub enum DownRule {
    /// Nothing is compressed.
    Exact,
    /// Updates are compressed, and the server takes what clients decode for its own state.
    Degraded {
        /// What happens to the compression error.
        feedback: Feedback,
    },
    /// Updates are compressed, and the server keeps its exact state all the same.
    Detached,
    /// The difference to a memory is compressed, and the server keeps its exact state.
    Preserved {
        /// The memory's step.
        alpha: f64,
        /// Whose memories.
        memories: Memories,
    },
    /// The client computes at the server's previous state plus the compressed update: it needs the
    /// exact bytes of that state and exists for comparison only.
    Ghost,
}

/// Error feedback on a degraded downlink.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Feedback {
    /// The error is forgotten.
    Off,
    /// All of it is added to the next update; an unbiased codec is scaled to a contraction.
    Contractive,
    /// This share of it is added to the next update, and the codec is used as it is (Dore).
    Share(f64),
}

/// Whose memories a preserved downlink keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memories {
    /// Groups of clients (by id, in turn) with one memory each; one group is everyone.
    Groups(u32),
    /// One per client, on both ends.
    PerClient,
    /// One per client on its own end, their mean on the server.
    Single {
        /// Rounds after which all memories are set to the mean.
        reset: Option<u32>,
    },
}
