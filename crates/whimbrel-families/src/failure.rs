//! Errors of jobs, by who must act.

use crate::job::Job;
use std::path::Path;
use whimbrel_job::Errors;

/// An error of a job, its data or its run; `whimbrel` exports it as `Error`. `Debug` prints the message, as
/// `main` does.
#[derive(Clone, PartialEq, thiserror::Error)]
pub enum Failure {
    /// The job file is wrong.
    #[error(transparent)]
    Job(#[from] Errors),
    /// The data are wrong or do not match the job.
    #[error(transparent)]
    Data(#[from] whimbrel_data::Error),
    /// Errors of lower layers: settings, arithmetic, files.
    #[error(transparent)]
    Core(#[from] whimbrel_core::Error),
    /// An error caused by a key of the job file.
    #[error("{}", with_place(cause, at))]
    At { at: At, cause: Box<Failure> },
}

/// Remedies in words that all interfaces share. [`Failure::with_ways`] adds the option, the method or
/// the argument by which an interface carries them out.
pub mod remedy {
    pub const OTHER_FOLDER: &str = "choose another folder";
    pub const NAME_FOLDER: &str = "name the folder";
    pub const NEW_RUN: &str = "start a new run there";
    pub const RESUME: &str = "resume the run";
    pub const REPLACE: &str = "replace the run";
    pub const REPLACE_ALL: &str = "replace its runs";
    pub const OPEN: &str = "open the run";
    pub const NAME_CLIENT: &str = "name one of its clients";
    pub const NO_CLIENT: &str = "predict without a client";
    pub const ADAPT: &str = "fit a new client";
    pub const COMPLETE: &str = "complete the table";
    pub const ADD_ROWS: &str = "add new rows to the fitted table";
    pub const GIVE_FILE: &str = "give the client's file";
    pub const NO_CODECS: &str = "leave out the codecs";
    pub const BY_GRADIENTS: &str = "fit by gradients";
    pub const DROP_CONSTANT: &str = "drop constant columns";
    pub const STANDARDIZE: &str = "standardise the columns";
    pub const DRAFT: &str = "draft a job";
    pub use whimbrel_data::{NAME_LEVEL, NEEDS_TYPE};

    /// Keys of the job file that carry out these remedies.
    pub const KEYS: [(&str, &str); 5] = [
        (NO_CODECS, "[uplink] and [downlink]"),
        (BY_GRADIENTS, "kind = \"linear\" or \"logistic\" in [model]"),
        (DROP_CONSTANT, "drop_constant = true in [data.prepare]"),
        (STANDARDIZE, "standardize = true in [data]"),
        (NEEDS_TYPE, "[schema]"),
    ];
}

/// A place in a job file.
#[derive(Clone, Debug, PartialEq)]
pub enum At {
    /// A key, such as `data.client`.
    Key(&'static str),
    /// A line, as shown in messages.
    Line(String),
}

/// Attaches the key that caused an error.
pub trait AtKey<T> {
    /// Attaches the key, unless a key is attached already.
    fn at(self, key: &'static str) -> Result<T>;
}

impl<T, E: Into<Failure>> AtKey<T> for Result<T, E> {
    fn at(self, key: &'static str) -> Result<T> {
        self.map_err(|error| match error.into() {
            placed @ Failure::At { .. } => placed,
            cause => Failure::At { at: At::Key(key), cause: Box::new(cause) },
        })
    }
}

/// The message: `fn main() -> Result<(), Failure>` prints it after the word `Error`.
impl std::fmt::Debug for Failure {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let text = self.to_string();
        to.write_str(text.strip_prefix("error: ").unwrap_or(&text))
    }
}

impl Failure {
    /// The job or the arguments are wrong.
    pub fn config(what: impl Into<String>) -> Self {
        Self::Core(whimbrel_core::Error::config(what))
    }

    /// Exit code: 1 the run failed, 2 the job or the arguments are wrong, 3 the data are wrong, 4 a
    /// peer failed.
    pub fn exit_code(&self) -> u8 {
        use whimbrel_core::Error as Core;
        use whimbrel_data::Error as Data;
        match self {
            Self::Job(_) | Self::Data(Data::Config { .. } | Data::NoColumn { .. }) => 2,
            Self::Core(Core::Config { .. }) | Self::Data(Data::Core(Core::Config { .. })) => 2,
            Self::Data(_) | Self::Core(Core::Data { .. }) => 3,
            Self::Core(Core::Peer { .. }) => 4,
            Self::Core(_) => 1,
            Self::At { cause, .. } => cause.exit_code(),
        }
    }

    /// Whether a file does not exist.
    fn is_missing(&self) -> bool {
        use whimbrel_core::Error as Core;
        use whimbrel_data::Error as Data;
        match self {
            Self::Core(Core::Storage { missing, .. })
            | Self::Data(
                Data::Storage { missing, .. } | Data::Core(Core::Storage { missing, .. }),
            ) => *missing,
            Self::At { cause, .. } => cause.is_missing(),
            Self::Job(_) | Self::Core(_) | Self::Data(_) => false,
        }
    }

    /// Adds an interface's ways to the remedies in the hint: `resume the run (--resume)`.
    #[must_use]
    pub fn with_ways(self, ways: &[(&str, &str)]) -> Self {
        let add = |hint: String, (remedy, way): &(&str, &str)| {
            hint.replace(remedy, &format!("{remedy} ({way})"))
        };
        self.map_hint(|hint| ways.iter().fold(hint, add))
    }

    /// Rewrites the hint, if there is one.
    #[must_use]
    pub fn map_hint(self, rewrite: impl Fn(String) -> String) -> Self {
        match self {
            Self::Core(error) => Self::Core(error.map_hint(rewrite)),
            Self::Data(error) => Self::Data(error.map_hint(rewrite)),
            Self::At { at, cause } => Self::At { at, cause: Box::new(cause.map_hint(rewrite)) },
            Self::Job(mut errors) => {
                let hints = errors.errors.iter_mut().filter_map(|error| error.hint.as_mut());
                hints.for_each(|hint| *hint = rewrite(std::mem::take(hint)));
                Self::Job(errors)
            }
        }
    }

    /// Attaches the line of the job file that caused the error: the line of the key, or the line that
    /// names the missing column or file.
    #[must_use]
    pub fn placed(self, job: &Job) -> Self {
        use whimbrel_data::Error as Data;
        let line = match &self {
            Self::At { at: At::Key(key), .. } => job.origin.line_of(key),
            Self::Data(Data::NoColumn { column, .. }) => {
                job.origin.line_where(|text| text == column)
            }
            Self::Data(Data::Storage { path, .. }) => {
                let name = Path::new(path).file_name();
                job.origin.line_where(|text| name.is_some() && Path::new(text).file_name() == name)
            }
            _ => None,
        };
        let cause = match (self, &line) {
            (Self::At { at: At::Key(_), cause }, _) => cause,
            (other, Some(_)) => Box::new(other),
            (other, None) => return other,
        };
        match line {
            Some(line) => Self::At { at: At::Line(line), cause },
            None => *cause,
        }
    }
}

/// Inserts the place between the message and its hint.
fn with_place(cause: &Failure, at: &At) -> String {
    let (text, At::Line(line)) = (cause.to_string(), at) else { return cause.to_string() };
    match text.split_once("\nhint: ") {
        Some((what, hint)) => format!("{what}\n{line}\nhint: {hint}"),
        None if cause.is_missing() => {
            format!("{text}\n{line}\nhint: paths in a job are relative to the job file")
        }
        None => format!("{text}\n{line}"),
    }
}

/// The engine builds later stages of a plan and expects core errors.
impl From<Failure> for whimbrel_core::Error {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Core(error) => error,
            Failure::Data(error) => error.into(),
            Failure::Job(errors) => Self::config(errors.to_string()),
            Failure::At { cause, .. } => (*cause).into(),
        }
    }
}

pub type Result<T, E = Failure> = std::result::Result<T, E>;

#[cfg(test)]
mod tests {
    use super::*;
    use whimbrel_core::{ClientId, Error};

    #[test]
    fn each_interface_adds_its_ways_to_the_remedies() {
        let hint = format!("{}, or {}", remedy::OTHER_FOLDER, remedy::RESUME);
        let failure = Failure::from(Error::config("what").hint(hint));
        let placed = Failure::At { at: At::Key("data.path"), cause: Box::new(failure.clone()) };
        for failure in [failure, placed] {
            let text = failure.with_ways(&[(remedy::RESUME, "--resume")]).to_string();
            assert_eq!(text, "what\nhint: choose another folder, or resume the run (--resume)");
        }
    }

    #[test]
    fn hints_survive_every_conversion() {
        let errors = [
            Error::config("what"),
            Error::data("what"),
            Error::numerical("what"),
            Error::peer("what"),
            Error::storage("path", "what"),
            Error::internal("what"),
        ];
        for error in errors {
            let error = error.hint("do this").of_client(ClientId(1)).in_round(2);
            let text = error.to_string();
            assert!(text.ends_with("\nhint: do this"), "{text}");
            let failure = Failure::from(error.clone());
            assert_eq!(failure.to_string(), text);
            assert_eq!(Failure::Data(error.clone().into()).to_string(), text);
            let at = At::Line(" 3 | key = 1".into());
            let placed = Failure::At { at, cause: Box::new(failure) };
            let (what, hint) = text.split_once('\n').expect("a hint");
            assert_eq!(placed.to_string(), format!("{what}\n 3 | key = 1\n{hint}"));
            assert_eq!(Error::from(placed), error);
        }
    }
}
