//! The binary: the command line with the built-in families.

use std::process::ExitCode;
use whimbrel::parts::core::memory::KeepLarge;

#[global_allocator]
static MEMORY: KeepLarge = KeepLarge::new();

fn main() -> ExitCode {
    whimbrel::cli::main(&[])
}
