//! `cargo xtask ci`: what must hold before a change lands, cheapest checks first.

use crate::{Outcome, cargo, test, tidy};

type Step = (&'static str, fn() -> Outcome);

const STEPS: [Step; 5] = [
    ("format", || cargo::run(&["fmt", "--all", "--check"])),
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

fn clippy() -> Outcome {
    let lint = ["clippy", "--workspace", "--all-targets", "--locked", "--profile", "ci"];
    cargo::run(&[&lint[..], &["--", "-D", "warnings"]].concat())
}

/// Same profile as clippy, so that dependencies are checked once for both.
fn documentation() -> Outcome {
    let doc = ["doc", "--workspace", "--no-deps", "--locked", "--profile", "ci"];
    cargo::run_with(&doc, &[("RUSTDOCFLAGS", "-D warnings")])
}
