//! The functions behind the commands, for front ends: they report to a [`Listener`] and neither print,
//! nor read arguments, nor end the process.

mod check;
pub(crate) mod compare;
mod draft;
mod examples;
pub(crate) mod execute;
pub(crate) mod finished;
pub(crate) mod holdings;
pub(crate) mod inspect;
mod listener;
pub(crate) mod page;
pub(crate) mod search;
pub mod tracking;
pub(crate) mod view;

pub use check::{Checked, Costs, Findings};
pub use compare::{Compared, Comparison, compare};
pub use draft::{Wishes, draft};
pub use examples::Example;
pub use execute::{CarriedOut, Executed, Ready, Request, parse_job, read_job};
pub use finished::FinishedRun;
pub use holdings::inspect_job;
pub use inspect::inspect_file;
pub use listener::Listener;
pub use page::{names, side_by_side};
pub use search::settle;

use whimbrel_families::failure::{Failure, Result};

/// The largest number of threads.
const THREADS_MAX: usize = 1024;

/// The builder of a thread pool of this size.
pub fn threads_of(threads: usize) -> Result<rayon::ThreadPoolBuilder> {
    if !(1..=THREADS_MAX).contains(&threads) {
        return Err(Failure::config(format!(
            "the number of threads must be from 1 to {THREADS_MAX}"
        )));
    }
    Ok(rayon::ThreadPoolBuilder::new().num_threads(threads))
}
