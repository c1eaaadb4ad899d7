//! What can go wrong with data, sorted by who must act.

use crate::BadRow;

/// An error of a reader, a split or a generator.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The job asks for something these data cannot give (a column that is not there, more clients
    /// than rows): whoever wrote the job must change it.
    #[error("{what}{}", hint_line(hint))]
    Config {
        /// What is wrong.
        what: String,
        /// What would be right.
        hint: Option<String>,
    },
    /// The job names a column that is not there.
    #[error("{file} has no column {column:?}\nhint: {hint}")]
    NoColumn {
        /// The file.
        file: String,
        /// The column.
        column: String,
        /// What would be right.
        hint: String,
    },
    /// The file as a whole is not in the form it should have: whoever made it must export it anew.
    #[error("{file}{}: {what}{}", line_suffix(line), hint_line(hint))]
    Format {
        /// The file.
        file: String,
        /// The line at which it was noticed, counted from 1, for text files.
        line: Option<u64>,
        /// What is wrong.
        what: String,
        /// What would be right.
        hint: Option<String>,
    },
    /// Some rows cannot be used: whoever holds the data must mend them.
    #[error("{}", rows_message(file, listed, *count, hint))]
    Rows {
        /// The file.
        file: String,
        /// The first bad rows, at most [`LISTED_MAX`](crate::LISTED_MAX).
        listed: Vec<BadRow>,
        /// How many rows are bad in all.
        count: usize,
        /// What would be right.
        hint: Option<String>,
    },
    /// A file could not be opened or read.
    #[error("{path}: {what}")]
    Storage {
        /// The file.
        path: String,
        /// What is wrong.
        what: String,
    },
    /// An error from below.
    #[error(transparent)]
    Core(#[from] whimbrel_core::Error),
}

/// The result type of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    pub(crate) fn config(what: impl Into<String>) -> Self {
        Self::Config { what: what.into(), hint: None }
    }

    pub(crate) fn format(file: &str, what: impl Into<String>) -> Self {
        Self::Format { file: file.into(), line: None, what: what.into(), hint: None }
    }

    pub(crate) fn storage(path: &str, cause: &std::io::Error) -> Self {
        Self::Storage { path: path.into(), what: cause.to_string() }
    }

    pub(crate) fn at_line(mut self, at: u64) -> Self {
        if let Self::Format { line, .. } = &mut self {
            *line = Some(at);
        }
        self
    }

    pub(crate) fn hint(mut self, text: impl Into<String>) -> Self {
        if let Self::Config { hint, .. } | Self::Format { hint, .. } | Self::Rows { hint, .. } =
            &mut self
        {
            *hint = Some(text.into());
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
            Error::Storage { path, what } => Self::Storage { path, what },
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
