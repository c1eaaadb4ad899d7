//! A job from its text to its run's folder, for programs that embed this one: what `whimbrel run`
//! does, with a [`Listener`] in place of the terminal.

pub use crate::cli::execute::{Executed, Ready, parse_job, read_job};
pub use crate::cli::listener::Listener;
pub use crate::cli::predict::FinishedRun;
pub use crate::cli::report::names;
pub use crate::cli::search::settle;
pub use crate::cli::view::load as load_view;
