//! A job from its text to its run's folder, for programs that embed this one: what the commands do,
//! with a [`Listener`] in place of the terminal.

pub use crate::cli::check::Checked;
pub use crate::cli::compare::{Compared, Comparison, compare};
pub use crate::cli::execute::{CarriedOut, Executed, Ready, Request, parse_job, read_job};
pub use crate::cli::inspect::figures as inspect_file;
pub use crate::cli::listener::Listener;
pub use crate::cli::new::draft;
pub use crate::cli::predict::FinishedRun;
pub use crate::cli::report::{names, side_by_side};
pub use crate::cli::search::settle;
pub use crate::cli::sources::job_figures as inspect_job;
pub use crate::cli::threads_of;
