//! `cargo xtask book`: the pages of `docs/` as a book in `target/book`.
//!
//! mdBook is taken from the path, else from `target/mdbook`, where it is installed once (some minutes).
//! The pages are plain Markdown and need no book; CI does not build it.

use std::process::{Command, Stdio};

use crate::{Outcome, cargo};

const CACHE: &str = "target/mdbook";

/// Builds the book; a machine that cannot install mdBook gets a message and no error.
pub fn build() -> Outcome {
    let cached = cargo::root().join(CACHE).join("bin/mdbook").display().to_string();
    let runs = |name: &&str| {
        let mut version = Command::new(name);
        version.arg("--version").stdin(Stdio::null()).output().is_ok_and(|o| o.status.success())
    };
    if !["mdbook", &cached].iter().any(runs) {
        eprintln!("xtask book: installing mdBook once, into {CACHE}");
        let install = ["install", "mdbook", "--locked", "--no-default-features", "--root", CACHE];
        if let Err(error) = cargo::run(&install) {
            eprintln!("xtask book: skipped, since mdBook cannot be installed: {error}");
            return Ok(());
        }
    }
    let found = ["mdbook", &cached].into_iter().find(|name| runs(name));
    let name = found.ok_or_else(|| format!("{cached} does not start"))?;
    cargo::run_command(Command::new(name).args(["build", "docs"]), "mdbook build docs")
}
