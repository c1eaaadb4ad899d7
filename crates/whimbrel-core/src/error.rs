//! One error type, its variants sorted by who must act.

use crate::ClientId;
use std::fmt::Display;

/// An error below the job file and the command line.
///
/// Every variant takes a hint, which is printed on a line of its own: [`Error::hint`].
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The job asks for something impossible: its author must change it.
    #[error("{what}{}", hint_line(hint))]
    Config { what: String, hint: Option<String> },
    /// The data cannot be used as they are: their owner must correct them.
    #[error("{}{what}{}", client_prefix(client), hint_line(hint))]
    Data { what: String, client: Option<ClientId>, hint: Option<String> },
    /// The arithmetic failed: a fit diverged, or a number is not finite.
    #[error("{}{what}{}", round_prefix(round), hint_line(hint))]
    Numerical { what: String, round: Option<u32>, hint: Option<String> },
    /// A message or a peer cannot be trusted: truncated, malformed, out of turn.
    #[error("{what}{}", hint_line(hint))]
    Peer { what: String, hint: Option<String> },
    /// A file could not be read or written.
    #[error("{path}: {what}{}", hint_line(hint))]
    Storage {
        path: String,
        what: String,
        /// Whether the file does not exist.
        missing: bool,
        hint: Option<String>,
    },
    /// A defect of Whimbrel itself.
    #[error("internal error: {what}; please report it{}", hint_line(hint))]
    Internal { what: String, hint: Option<String> },
}

/// The result type of the crates between the wire and the engine.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    pub fn config(what: impl Into<String>) -> Self {
        Self::Config { what: what.into(), hint: None }
    }

    pub fn data(what: impl Into<String>) -> Self {
        Self::Data { what: what.into(), client: None, hint: None }
    }

    pub fn numerical(what: impl Into<String>) -> Self {
        Self::Numerical { what: what.into(), round: None, hint: None }
    }

    pub fn peer(what: impl Into<String>) -> Self {
        Self::Peer { what: what.into(), hint: None }
    }

    pub fn storage(path: impl Display, what: impl Display) -> Self {
        let (path, what) = (path.to_string(), what.to_string());
        Self::Storage { path, what, missing: false, hint: None }
    }

    /// A failure to read a file, which may not exist.
    pub fn read(path: impl Display, cause: &std::io::Error) -> Self {
        let (path, what) = (path.to_string(), cause.to_string());
        let missing = cause.kind() == std::io::ErrorKind::NotFound;
        Self::Storage { path, what, missing, hint: None }
    }

    pub fn internal(what: impl Into<String>) -> Self {
        Self::Internal { what: what.into(), hint: None }
    }

    /// Adds the line `hint: ...`, with the remedy.
    #[must_use]
    pub fn hint(mut self, text: impl Into<String>) -> Self {
        *self.hint_mut() = Some(text.into());
        self
    }

    /// Rewrites the hint, if there is one.
    #[must_use]
    pub fn map_hint(mut self, rewrite: impl FnOnce(String) -> String) -> Self {
        let hint = self.hint_mut();
        *hint = hint.take().map(rewrite);
        self
    }

    fn hint_mut(&mut self) -> &mut Option<String> {
        let (Self::Config { hint, .. }
        | Self::Data { hint, .. }
        | Self::Numerical { hint, .. }
        | Self::Peer { hint, .. }
        | Self::Storage { hint, .. }
        | Self::Internal { hint, .. }) = self;
        hint
    }

    /// Names the place before the message, such as a file or a client by its name.
    #[must_use]
    pub fn within(mut self, place: impl Display) -> Self {
        let (Self::Config { what, .. }
        | Self::Data { what, .. }
        | Self::Numerical { what, .. }
        | Self::Peer { what, .. }
        | Self::Storage { what, .. }
        | Self::Internal { what, .. }) = &mut self;
        *what = format!("{place}: {what}");
        self
    }

    /// Names the client whose data the error is about (data errors only).
    #[must_use]
    pub fn of_client(mut self, id: ClientId) -> Self {
        if let Self::Data { client, .. } = &mut self {
            client.get_or_insert(id);
        }
        self
    }

    /// Names the round (numerical errors only).
    #[must_use]
    pub fn in_round(mut self, at: u32) -> Self {
        if let Self::Numerical { round, .. } = &mut self {
            round.get_or_insert(at);
        }
        self
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_variant_keeps_its_hint() {
        let errors = [
            Error::config("what"),
            Error::data("what"),
            Error::numerical("what"),
            Error::peer("what"),
            Error::storage("path", "what"),
            Error::internal("what"),
        ];
        for error in errors {
            let plain = error.clone().of_client(ClientId(3)).in_round(2).within("place");
            let hinted = error.hint("do this").of_client(ClientId(3)).in_round(2).within("place");
            assert_eq!(hinted.to_string(), format!("{plain}\nhint: do this"));
        }
    }

    #[test]
    fn the_client_and_the_round_nearest_to_the_cause_are_kept() {
        let data = Error::data("what").of_client(ClientId(3)).of_client(ClientId(4));
        assert_eq!(data.to_string(), "client 3: what");
        let numerical = Error::numerical("what").in_round(2).in_round(5);
        assert_eq!(numerical.to_string(), "round 2: what");
    }
}
