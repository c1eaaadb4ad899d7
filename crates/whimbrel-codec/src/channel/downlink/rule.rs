//! The rules of a downlink.

use crate::channel::Auto;

/// The rule of a downlink: the compressed vector, and the state of both ends.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum DownRule<C = f64> {
    /// No compression.
    Exact,
    /// Updates are compressed, and the server continues with the decoded state.
    Degraded { feedback: Feedback<C> },
    /// Updates are compressed, but the server keeps its exact state.
    Detached,
    /// The difference to a memory is compressed, and the server keeps its exact state.
    Preserved {
        /// The memory step.
        alpha: C,
        memories: Memories,
    },
    /// The client computes at the server's previous state plus the compressed update. It needs that state
    /// exactly, so the rule is for comparison only.
    Ghost,
}

impl DownRule<Auto> {
    /// Fills in the memory step and the share of the error if they are automatic.
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
    /// No feedback.
    Off,
    /// The whole error is added to the next update; an unbiased codec is scaled to a contraction.
    Contractive,
    /// This share of the error is added to the next update; the codec is not scaled (Dore).
    Share(C),
}

/// The memories of a preserved downlink.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memories {
    /// One memory per group; client `i` belongs to group `i` modulo the number of groups.
    Groups(u32),
    /// One memory per client, on both ends.
    PerClient,
    /// One memory per client on its end; the server keeps their mean.
    Single { reset: Reset },
}

/// The reset of all clients' memories to their mean.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reset {
    /// Every `4 sqrt(d)` rounds, for vectors of length `d`.
    #[default]
    Auto,
    /// Every this number of rounds.
    Every(u32),
    Never,
}
