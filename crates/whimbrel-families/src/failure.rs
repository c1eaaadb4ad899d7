//! Why a job could not be carried out, and who must act.

use whimbrel_job::Errors;

/// Anything that ends a command.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Failure {
    /// The job file is wrong.
    #[error(transparent)]
    Job(#[from] Errors),
    /// The data are wrong, or the job asks of them what they do not have.
    #[error(transparent)]
    Data(#[from] whimbrel_data::Error),
    /// Everything below: settings that cannot be, arithmetic, files.
    #[error(transparent)]
    Core(#[from] whimbrel_core::Error),
}

impl Failure {
    /// The job or the arguments are wrong.
    pub fn config(what: impl Into<String>) -> Self {
        Self::Core(whimbrel_core::Error::config(what))
    }

    /// The process's exit code: 1 the run failed, 2 the job or the arguments are wrong, 3 the data
    /// are wrong, 4 a peer.
    pub fn exit_code(&self) -> u8 {
        use whimbrel_core::Error as Core;
        use whimbrel_data::Error as Data;
        match self {
            Self::Job(_) | Self::Data(Data::Config { .. }) => 2,
            Self::Core(Core::Config { .. }) | Self::Data(Data::Core(Core::Config { .. })) => 2,
            Self::Data(_) | Self::Core(Core::Data { .. }) => 3,
            Self::Core(Core::Peer { .. }) => 4,
            Self::Core(_) => 1,
        }
    }
}

/// For a plan that is settled only between two stages, where the engine asks for it.
impl From<Failure> for whimbrel_core::Error {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Core(error) => error,
            Failure::Data(error) => error.into(),
            Failure::Job(errors) => Self::config(errors.to_string()),
        }
    }
}

/// The result type of everything that carries a job out.
pub type Result<T, E = Failure> = std::result::Result<T, E>;
