//! The verdict on a run.

use std::fmt;
use whimbrel_core::Error;

/// The verdict on a run.
#[derive(Clone, PartialEq, Debug)]
pub enum Ending {
    /// A measure reached its declared goal.
    Converged(String),
    /// The budget is spent or a rule of the job was met: by which, the distance from the goal and the
    /// remedy.
    Stopped(String),
    /// The model is degenerate: its declared defects.
    Degenerate(String),
    /// Interrupted; the state is saved.
    Interrupted,
    /// The arithmetic failed; metrics and journal up to there are kept.
    Failed(Error),
}

impl Ending {
    /// The word of summaries, tables and reports: `converged`, `stopped`, `degenerate` or `diverged`.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Converged(_) => "converged",
            Self::Stopped(_) | Self::Interrupted => "stopped",
            Self::Degenerate(_) => "degenerate",
            Self::Failed(_) => "diverged",
        }
    }

    /// The reason behind the word.
    pub fn detail(&self) -> String {
        match self {
            Self::Converged(why) | Self::Stopped(why) | Self::Degenerate(why) => why.clone(),
            Self::Interrupted => "interrupted by the user".into(),
            Self::Failed(error) => error.to_string(),
        }
    }

    /// Whether the run ended by itself or by a rule of the job.
    pub fn is_over(&self) -> bool {
        matches!(self, Self::Converged(_) | Self::Stopped(_))
    }
}

/// `converged: relative field 3e-12 after 90 rounds`, `stopped after 50 rounds`.
impl fmt::Display for Ending {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mark = if matches!(self, Self::Stopped(_)) { "" } else { ":" };
        write!(to, "{}{mark} {}", self.word(), self.detail())
    }
}
