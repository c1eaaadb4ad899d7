//! The binary: the command line with the built-in families.

use std::process::ExitCode;

fn main() -> ExitCode {
    whimbrel::cli::main(&[])
}
