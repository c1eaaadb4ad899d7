//! One error type, its variants sorted by who must act.

use crate::ClientId;

/// What can go wrong below the job file and the command line.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The job asks for something impossible: its author must change it.
    #[error("{what}{}", hint_line(hint))]
    Config {
        /// What is wrong.
        what: String,
        /// What would be right.
        hint: Option<String>,
    },
    /// The data cannot be used as they are: their owner must correct them.
    #[error("{}{what}", client_prefix(client))]
    Data {
        /// What is wrong.
        what: String,
        /// Whose data, where known.
        client: Option<ClientId>,
    },
    /// The arithmetic left the numbers it can work with.
    #[error("{}{what}", round_prefix(round))]
    Numerical {
        /// What is wrong.
        what: String,
        /// The round in which it was seen, where known.
        round: Option<u32>,
    },
    /// A message or a peer cannot be trusted: truncated, malformed, out of turn.
    #[error("{what}")]
    Peer {
        /// What is wrong.
        what: String,
    },
    /// A file could not be read or written.
    #[error("{path}: {what}")]
    Storage {
        /// The file or folder.
        path: String,
        /// What is wrong.
        what: String,
    },
    /// A defect of Whimbrel itself.
    #[error("internal error: {what}; please report it")]
    Internal {
        /// What was found broken.
        what: String,
    },
}

/// The result type of the crates between the wire and the engine.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// The job asks for something impossible.
    pub fn config(what: impl Into<String>) -> Self {
        Self::Config { what: what.into(), hint: None }
    }

    /// The data cannot be used.
    pub fn data(what: impl Into<String>) -> Self {
        Self::Data { what: what.into(), client: None }
    }

    /// The arithmetic failed.
    pub fn numerical(what: impl Into<String>) -> Self {
        Self::Numerical { what: what.into(), round: None }
    }

    /// A message is malformed.
    pub fn peer(what: impl Into<String>) -> Self {
        Self::Peer { what: what.into() }
    }

    /// A file could not be read or written.
    pub fn storage(path: impl std::fmt::Display, what: impl std::fmt::Display) -> Self {
        Self::Storage { path: path.to_string(), what: what.to_string() }
    }

    /// A defect of this program.
    pub fn internal(what: impl Into<String>) -> Self {
        Self::Internal { what: what.into() }
    }

    /// The same error with a line that says what would be right (configuration errors only).
    #[must_use]
    pub fn hint(self, text: impl Into<String>) -> Self {
        match self {
            Self::Config { what, .. } => Self::Config { what, hint: Some(text.into()) },
            other => other,
        }
    }

    /// The same error, naming the client whose data or message it is about.
    #[must_use]
    pub fn of_client(self, id: ClientId) -> Self {
        match self {
            Self::Data { what, client: None } => Self::Data { what, client: Some(id) },
            other => other,
        }
    }

    /// The same error, naming the round (numerical errors only).
    #[must_use]
    pub fn in_round(self, at: u32) -> Self {
        match self {
            Self::Numerical { what, round: None } => Self::Numerical { what, round: Some(at) },
            other => other,
        }
    }
}

fn hint_line(hint: &Option<String>) -> String {
    hint.as_ref().map(|h| format!("\nhint: {h}")).unwrap_or_default()
}

fn client_prefix(client: &Option<ClientId>) -> String {
    client.map(|id| format!("client {}: ", id.0)).unwrap_or_default()
}

fn round_prefix(round: &Option<u32>) -> String {
    round.map(|k| format!("round {k}: ")).unwrap_or_default()
}
