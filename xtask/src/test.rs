//! `cargo xtask test`: the tests of the workspace.

use crate::tidy::{Tree, mask};
use crate::{Outcome, cargo, python};

/// Crates that `--quick` leaves out: their tests start processes, or need Python.
const SLOW: [&str; 4] = ["whimbrel", "whimbrel-net", "whimbrel-py", "own-family"];

/// Runs the tests whose name contains a filter, or all without filters. `--quick` runs only unit
/// tests and laws.
pub fn run(arguments: &[String]) -> Outcome {
    let arguments = arguments.iter().map(String::as_str);
    let (options, filters): (Vec<&str>, Vec<&str>) = arguments.partition(|a| a.starts_with("--"));
    let quick = options.contains(&"--quick");
    if let Some(unknown) = options.iter().find(|option| **option != "--quick") {
        return Err(format!("unknown option `{unknown}`; the only one is `--quick`"));
    }
    eprintln!("{}", announcement(quick, &filters));
    let skipped = Skipped::new();
    let mut packages = vec!["--workspace"];
    if quick {
        packages.extend(SLOW.iter().flat_map(|name| ["--exclude", name]));
    } else {
        packages.extend(cargo::FULL);
    }
    if cargo::has_subcommand("nextest") {
        let nextest = ["nextest", "run", "--cargo-profile", "ci"];
        cargo::run_with(&[&nextest[..], &packages, &filters].concat(), &skipped.variables())?;
        if !quick {
            documentation(&filters)?;
        }
    } else {
        eprintln!("cargo-nextest is not installed: using `cargo test`");
        let test = ["test", "--profile", "ci"];
        // `cargo test` takes one filter; the others go to the test programs, which take several.
        let test = [&test[..], &packages, &["--"], &filters].concat();
        cargo::run_with(&test, &skipped.variables())?;
    }
    if filters.is_empty() && !quick {
        python::test()?;
    }
    for ignored in left_out(&Tree::read()?) {
        eprintln!("left out: {ignored}");
    }
    for line in skipped.lines() {
        eprintln!("skipped: {line}");
    }
    let which = if filters.is_empty() && !quick { "all tests" } else { "the chosen tests" };
    eprintln!("xtask test: {which} passed");
    Ok(())
}

/// The work ahead and its duration, for the terminal.
fn announcement(quick: bool, filters: &[&str]) -> String {
    match (quick, filters) {
        (true, _) => format!(
            "builds and runs unit tests and laws, without {} and documentation tests; some minutes",
            SLOW.join(", ")
        ),
        (false, []) => "builds and runs all tests: the workspace, its documentation, the Python \
                        package; about 25 minutes from scratch on two busy cores (`cargo xtask test \
                        --quick`: unit tests and laws only)"
            .into(),
        (false, _) => format!("builds all tests and runs those named {}", filters.join(" or ")),
    }
}

/// The list of tests that cannot run on this machine; `None` in continuous integration (`CI=true`),
/// where they fail.
struct Skipped(Option<String>);

impl Skipped {
    fn new() -> Self {
        let in_ci = std::env::var("CI").is_ok_and(|ci| !ci.is_empty() && ci != "false");
        let list = cargo::root().join("target/skipped-tests");
        let _ = std::fs::remove_file(&list);
        Self((!in_ci).then(|| list.display().to_string()))
    }

    /// The variable that `whimbrel_testkit::skipped` reads.
    fn variables(&self) -> Vec<(&str, &str)> {
        self.0.iter().map(|list| ("WHIMBREL_SKIPPED", list.as_str())).collect()
    }

    fn lines(&self) -> Vec<String> {
        let text = self.0.as_ref().and_then(|list| std::fs::read_to_string(list).ok());
        let mut lines: Vec<String> = text.unwrap_or_default().lines().map(str::to_owned).collect();
        lines.sort();
        lines
    }
}

fn documentation(filters: &[&str]) -> Outcome {
    let test = ["test", "--doc", "--workspace", "--profile", "ci"];
    cargo::run(&[&test[..], &cargo::FULL, &["--"], filters].concat())
}

/// Ignored tests with their reasons.
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
    fn the_announcement_names_what_is_left_out() {
        assert!(announcement(true, &[]).contains("without whimbrel, whimbrel-net"));
        assert!(announcement(false, &[]).contains("25 minutes"));
        assert!(announcement(false, &["em", "gmm"]).ends_with("those named em or gmm"));
    }

    #[test]
    fn an_ignored_test_is_listed_with_its_reason() {
        let text = "// #[ignore = \"not this\"]\n#[test]\n#[ignore = \"needs numpy\"]\nfn a() {}\n";
        let tree = Tree::of(&[("crates/a/tests/b.rs", text)]);
        assert_eq!(left_out(&tree), ["crates/a/tests/b.rs:3: needs numpy"]);
    }
}
