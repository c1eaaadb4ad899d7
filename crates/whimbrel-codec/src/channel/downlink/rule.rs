//! What a downlink compresses and keeps.

use crate::channel::Auto;

/// What is compressed, and what is kept.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum DownRule<C = f64> {
    /// Nothing is compressed.
    Exact,
    /// Updates are compressed, and the server takes what clients decode for its own state.
    Degraded {
        /// What happens to the compression error.
        feedback: Feedback<C>,
    },
    /// Updates are compressed, and the server keeps its exact state all the same.
    Detached,
    /// The difference to a memory is compressed, and the server keeps its exact state.
    Preserved {
        /// The memory's step.
        alpha: C,
        /// Whose memories.
        memories: Memories,
    },
    /// The client computes at the server's previous state plus the compressed update: it needs the
    /// exact bytes of that state and exists for comparison only.
    Ghost,
}

impl DownRule<Auto> {
    /// The rule with this memory step and this share of the error, where it gives none.
    pub fn settled(self, alpha: f64, share: f64) -> DownRule {
        match self {
            Self::Exact => DownRule::Exact,
            Self::Degraded { feedback } => DownRule::Degraded {
                feedback: match feedback {
                    Feedback::Off => Feedback::Off,
                    Feedback::Contractive => Feedback::Contractive,
                    Feedback::Share(given) => Feedback::Share(given.unwrap_or(share)),
                },
            },
            Self::Detached => DownRule::Detached,
            Self::Preserved { alpha: given, memories } => {
                DownRule::Preserved { alpha: given.unwrap_or(alpha), memories }
            }
            Self::Ghost => DownRule::Ghost,
        }
    }
}

/// Error feedback on a degraded downlink.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Feedback<C = f64> {
    /// The error is forgotten.
    Off,
    /// All of it is added to the next update; an unbiased codec is scaled to a contraction.
    Contractive,
    /// This share of it is added to the next update, and the codec is used as it is (Dore).
    Share(C),
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
        /// When all memories are set to the mean.
        reset: Reset,
    },
}

/// When the memories of single clients are set to their mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reset {
    /// Every `4 sqrt(d)` rounds, for vectors of length `d`.
    Auto,
    /// Once in this number of rounds.
    Every(u32),
    /// Never.
    Never,
}
