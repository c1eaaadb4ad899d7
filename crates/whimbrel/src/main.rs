//! The binary: the command line with the built-in families.

use mimalloc::MiMalloc;
use std::process::ExitCode;

#[global_allocator]
static MEMORY: MiMalloc = MiMalloc;

fn main() -> ExitCode {
    whimbrel::cli::main(&[])
}
