//! Whimbrel's command line with one more family.

mod family;
mod heavy_em;
mod location;

use std::process::ExitCode;

fn main() -> ExitCode {
    whimbrel::cli::main(&[&family::LOCATION])
}
