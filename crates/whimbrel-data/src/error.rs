//! Errors of data, by who must act.

use crate::BadRow;

/// An error of a reader, a split or a generator.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The job does not fit the data (more clients than rows, say): its author must change it.
    #[error("{what}{}", hint_line(hint))]
    Config { what: String, hint: Option<String> },
    /// The job names a column that does not exist.
    #[error("{file} has no column {column:?}\nhint: {hint}")]
    NoColumn { file: String, column: String, hint: String },
    /// The file as a whole has the wrong form: its author must export it again.
    #[error("{file}{}: {what}{}", line_suffix(line), hint_line(hint))]
    Format {
        file: String,
        /// The line, counted from 1, for text files.
        line: Option<u64>,
        what: String,
        hint: Option<String>,
    },
    /// Some rows cannot be used: the holder of the data must correct them.
    #[error("{}", rows_message(file, listed, *count, hint))]
    Rows {
        file: String,
        /// The first bad rows, at most [`LISTED_MAX`](crate::LISTED_MAX).
        listed: Vec<BadRow>,
        /// The number of bad rows.
        count: usize,
        hint: Option<String>,
    },
    /// A file could not be opened or read.
    #[error("{path}: {what}{}", hint_line(hint))]
    Storage {
        path: String,
        what: String,
        /// Whether the file does not exist.
        missing: bool,
        hint: Option<String>,
    },
    #[error(transparent)]
    Core(#[from] whimbrel_core::Error),
}

pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    pub(crate) fn config(what: impl Into<String>) -> Self {
        Self::Config { what: what.into(), hint: None }
    }

    pub(crate) fn format(file: &str, what: impl Into<String>) -> Self {
        Self::Format { file: file.into(), line: None, what: what.into(), hint: None }
    }

    pub(crate) fn storage(path: &str, cause: &std::io::Error) -> Self {
        let missing = cause.kind() == std::io::ErrorKind::NotFound;
        Self::Storage { path: path.into(), what: cause.to_string(), missing, hint: None }
    }

    pub(crate) fn at_line(mut self, at: u64) -> Self {
        if let Self::Format { line, .. } = &mut self {
            *line = Some(at);
        }
        self
    }

    pub(crate) fn hint(mut self, text: impl Into<String>) -> Self {
        match &mut self {
            Self::Config { hint, .. }
            | Self::Format { hint, .. }
            | Self::Rows { hint, .. }
            | Self::Storage { hint, .. } => *hint = Some(text.into()),
            Self::NoColumn { hint, .. } => *hint = text.into(),
            Self::Core(error) => *error = error.clone().hint(text),
        }
        self
    }

    /// Rewrites the hint, if there is one.
    #[must_use]
    pub fn map_hint(mut self, rewrite: impl FnOnce(String) -> String) -> Self {
        match &mut self {
            Self::Config { hint, .. }
            | Self::Format { hint, .. }
            | Self::Rows { hint, .. }
            | Self::Storage { hint, .. } => *hint = hint.take().map(rewrite),
            Self::NoColumn { hint, .. } => *hint = rewrite(std::mem::take(hint)),
            Self::Core(error) => *error = error.clone().map_hint(rewrite),
        }
        self
    }
}

impl From<Error> for whimbrel_core::Error {
    fn from(error: Error) -> Self {
        match error {
            Error::Config { what, hint } => Self::Config { what, hint },
            Error::NoColumn { file, column, hint } => {
                Self::Config { what: format!("{file} has no column {column:?}"), hint: Some(hint) }
            }
            Error::Storage { path, what, missing, hint } => {
                Self::Storage { path, what, missing, hint }
            }
            Error::Core(inner) => inner,
            other => Self::data(other.to_string()),
        }
    }
}

fn hint_line(hint: &Option<String>) -> String {
    hint.as_ref().map(|h| format!("\nhint: {h}")).unwrap_or_default()
}

fn line_suffix(line: &Option<u64>) -> String {
    line.map(|l| format!(": line {l}")).unwrap_or_default()
}

fn rows_message(file: &str, listed: &[BadRow], count: usize, hint: &Option<String>) -> String {
    let noun = if count == 1 { "row" } else { "rows" };
    let mut text = format!("{file}: {count} {noun} cannot be used");
    for row in listed {
        text.push_str(&format!("\n  {row}"));
    }
    if count > listed.len() {
        text.push_str(&format!("\n  and {} more", count - listed.len()));
    }
    text + &hint_line(hint)
}
