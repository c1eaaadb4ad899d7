//! The command line: arguments, messages, exit codes.

mod cli;

use clap::Parser;
use std::process::ExitCode;

fn main() -> ExitCode {
    let args = cli::args::Args::parse();
    match cli::dispatch(&args) {
        Ok(code) => ExitCode::from(code),
        Err(failure) => {
            cli::messages::failure(&failure);
            ExitCode::from(failure.exit_code())
        }
    }
}
