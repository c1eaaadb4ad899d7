//! A job from its text to what it leaves: what the commands do, with a [`Listener`] in place of the
//! terminal. Nothing here prints, reads arguments or ends the process; the command line stands on it.

pub(crate) mod check;
pub(crate) mod compare;
mod draft;
pub(crate) mod execute;
pub(crate) mod finished;
pub(crate) mod holdings;
pub(crate) mod inspect;
mod listener;
pub(crate) mod page;
pub(crate) mod search;
pub(crate) mod view;

pub use check::Checked;
pub use compare::{Compared, Comparison, compare};
pub use draft::draft;
pub use execute::{CarriedOut, Executed, Ready, Request, parse_job, read_job};
pub use finished::FinishedRun;
pub use holdings::inspect_job;
pub use inspect::inspect_file;
pub use listener::Listener;
pub use page::{names, side_by_side};
pub use search::settle;

use whimbrel::families::failure::{Failure, Result};

/// More threads than any machine has use for.
const THREADS_MAX: usize = 1024;

/// A pool of this number of threads.
pub fn threads_of(threads: usize) -> Result<rayon::ThreadPoolBuilder> {
    match (1..=THREADS_MAX).contains(&threads) {
        true => Ok(rayon::ThreadPoolBuilder::new().num_threads(threads)),
        false => Err(Failure::config(format!("--threads must be from 1 to {THREADS_MAX}"))),
    }
}
