//! `cargo xtask ci`: what must hold before a change lands, cheapest checks first.

use crate::{Outcome, cargo, test, tidy};
use std::process::Command;

type Step = (&'static str, fn() -> Outcome);

const STEPS: [Step; 5] = [
    ("format", || format(&["--check"])),
    ("tidy", tidy::run),
    ("clippy", clippy),
    ("documentation", documentation),
    ("test", || test::run(&[])),
];

/// Runs the steps in order and stops at the first that fails, naming it.
pub fn run() -> Outcome {
    for (number, (name, step)) in STEPS.iter().enumerate() {
        eprintln!("\n== {}/{}: {name}", number + 1, STEPS.len());
        step().map_err(|reason| format!("step `{name}` failed: {reason}"))?;
    }
    eprintln!("\nxtask ci: all {} steps passed", STEPS.len());
    Ok(())
}

/// `cargo fmt` for everything; by itself it does not find the modules that `families!` declares.
pub fn format(options: &[&str]) -> Outcome {
    cargo::run(&[&["fmt", "--all", "--"], options].concat())?;
    let tree = tidy::Tree::read()?;
    let folders = tidy::families(&tree).into_iter();
    let files: Vec<String> =
        folders.map(|name| format!("crates/whimbrel-families/src/{name}/mod.rs")).collect();
    let status = Command::new("rustfmt")
        .current_dir(cargo::root())
        .args(["--edition", "2024"])
        .args(options)
        .args(files)
        .status()
        .map_err(|error| format!("could not start rustfmt: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("rustfmt failed ({status})")) }
}

fn clippy() -> Outcome {
    let lint = ["clippy", "--workspace", "--all-targets", "--locked", "--profile", "ci"];
    cargo::run(&[&lint[..], &["--", "-D", "warnings"]].concat())
}

/// Same profile as clippy, so that dependencies are checked once for both.
fn documentation() -> Outcome {
    let doc = ["doc", "--workspace", "--no-deps", "--locked", "--profile", "ci"];
    cargo::run_with(&doc, &[("RUSTDOCFLAGS", "-D warnings")])
}
