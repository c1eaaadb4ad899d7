//! `cargo xtask test`: every test of the workspace.

use crate::tidy::{Tree, mask};
use crate::{Outcome, cargo, python};
use std::path::{Path, PathBuf};

/// Runs unit, integration and documentation tests whose name contains one of `filters` (all
/// without any).
pub fn run(filters: &[String]) -> Outcome {
    let filters: Vec<&str> = filters.iter().map(String::as_str).collect();
    if cargo::has_subcommand("nextest") {
        let nextest = ["nextest", "run", "--workspace", "--cargo-profile", "ci"];
        cargo::run(&[&nextest[..], &filters].concat())?;
        documentation(&filters)?;
    } else {
        eprintln!("cargo-nextest is not installed: using `cargo test`");
        let test = ["test", "--workspace", "--profile", "ci"];
        // `cargo test` takes one filter; the others go to the test programs, which take several.
        cargo::run(&[&test[..], &["--"], &filters].concat())?;
    }
    if filters.is_empty() {
        python::test()?;
    }
    for skipped in left_out(&Tree::read()?) {
        eprintln!("left out: {skipped}");
    }
    // Test runners hide what a passing test prints.
    if !data_folder().is_dir() {
        eprintln!("skipped: no data ({} does not exist)", data_folder().display());
    }
    let which = if filters.is_empty() { "all tests" } else { "the chosen tests" };
    eprintln!("xtask test: {which} passed");
    Ok(())
}

/// Where `whimbrel_testkit::data_file` looks.
fn data_folder() -> PathBuf {
    let beside = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/data");
    std::env::var_os("WHIMBREL_DATA").map_or_else(beside, PathBuf::from)
}

fn documentation(filters: &[&str]) -> Outcome {
    let test = ["test", "--doc", "--workspace", "--profile", "ci"];
    cargo::run(&[&test[..], &["--"], filters].concat())
}

/// Tests that do not run by default, with the reason written beside them (a Python package that
/// is not part of a Rust tool chain, say).
fn left_out(tree: &Tree) -> Vec<String> {
    let mut found = Vec::new();
    for file in tree.files.iter().filter(|file| file.is_rust()) {
        let code = mask::code_only(&file.text);
        for (number, (line, plain)) in file.text.lines().zip(code.lines()).enumerate() {
            if plain.contains("#[ignore =")
                && let Some(reason) = line.split('"').nth(1)
            {
                found.push(format!("{}:{}: {reason}", file.path, number + 1));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ignored_test_is_listed_with_its_reason() {
        let text = "// #[ignore = \"not this\"]\n#[test]\n#[ignore = \"needs numpy\"]\nfn a() {}\n";
        let tree = Tree::of(&[("crates/a/tests/b.rs", text)]);
        assert_eq!(left_out(&tree), ["crates/a/tests/b.rs:3: needs numpy"]);
    }
}
