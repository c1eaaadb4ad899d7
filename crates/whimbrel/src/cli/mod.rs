//! One file per command.

pub mod args;
mod check;
mod compare;
mod demo;
mod execute;
mod inspect;
pub mod messages;
mod new;
mod predict;
mod report;
mod view;

use args::{Args, Command, DataCommand};
use whimbrel::core::Error;
use whimbrel::job::failure::{Failure, Result};

/// Runs what was asked for; the exit code of a command that went well, or was interrupted.
pub fn dispatch(args: &Args) -> Result<u8> {
    if args.out.is_some() && args.command.is_some() {
        let error = Error::config("--out before a command is the demonstration's")
            .hint("write it after the command");
        return Err(error.into());
    }
    set_threads(args.threads)?;
    match &args.command {
        None => demo::demo(args.out.as_deref()),
        Some(Command::Run(run)) => execute::run_command(run),
        Some(Command::Compare(compare)) => compare::compare_command(compare),
        Some(Command::Check { job, json }) => check::check_command(job, *json),
        Some(Command::New { data, out }) => new::new_command(data.as_deref(), out.as_deref()),
        Some(Command::Report { runs, out, json }) => {
            report::report_command(runs, out.as_deref(), *json)
        }
        Some(Command::Predict(predict)) => predict::predict_command(predict),
        Some(Command::Data(DataCommand::Inspect { file, client, json })) => {
            inspect::inspect_command(file, client.as_deref(), *json)
        }
    }
}

/// `--threads`, else `RAYON_NUM_THREADS` (which rayon reads itself), else all cores.
fn set_threads(threads: Option<usize>) -> Result<()> {
    let Some(threads) = threads else { return Ok(()) };
    if threads == 0 {
        return Err(Failure::config("--threads must be at least 1"));
    }
    rayon::ThreadPoolBuilder::new()
        .num_threads(threads)
        .build_global()
        .map_err(|e| Failure::config(format!("--threads {threads}: {e}")))
}
