//! `cargo xtask ci`: the checks of a change, cheapest first.

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

/// Runs the steps in order; stops at the first failure.
pub fn run() -> Outcome {
    for (number, (name, step)) in STEPS.iter().enumerate() {
        eprintln!("\n== {}/{}: {name}", number + 1, STEPS.len());
        step().map_err(|reason| format!("step `{name}` failed: {reason}"))?;
    }
    eprintln!("\nxtask ci: all {} steps passed", STEPS.len());
    Ok(())
}

/// Formats everything. `cargo fmt` alone misses the modules that `families!` declares.
pub fn format(options: &[&str]) -> Outcome {
    cargo::run(&[&["fmt", "--all", "--"], options].concat())?;
    let tree = tidy::Tree::read()?;
    let folders = tidy::families(&tree).into_iter();
    let files: Vec<String> =
        folders.map(|name| format!("crates/whimbrel-families/src/{name}/mod.rs")).collect();
    let mut rustfmt = Command::new("rustfmt");
    cargo::run_command(
        rustfmt.args(["--edition", "2024"]).args(options).args(files),
        "rustfmt the families",
    )
}

fn clippy() -> Outcome {
    let lint = ["clippy", "--workspace", "--all-targets", "--locked", "--profile", "ci"];
    cargo::run(&[&lint[..], &cargo::FULL, &["--", "-D", "warnings"]].concat())
}

/// The same profile as clippy, so that both share the checked dependencies.
fn documentation() -> Outcome {
    let doc = ["doc", "--workspace", "--no-deps", "--locked", "--profile", "ci"];
    cargo::run_with(&[&doc[..], &cargo::FULL].concat(), &[("RUSTDOCFLAGS", "-D warnings")])
}
