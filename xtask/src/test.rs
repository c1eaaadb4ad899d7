//! `cargo xtask test`: the tests of the workspace.

use crate::tidy::{Tree, mask};
use crate::{Outcome, cargo, python};
use std::path::{Path, PathBuf};

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
    let mut packages = vec!["--workspace"];
    if quick {
        packages.extend(SLOW.iter().flat_map(|name| ["--exclude", name]));
    }
    if cargo::has_subcommand("nextest") {
        let nextest = ["nextest", "run", "--cargo-profile", "ci"];
        cargo::run(&[&nextest[..], &packages, &filters].concat())?;
        if !quick {
            documentation(&filters)?;
        }
    } else {
        eprintln!("cargo-nextest is not installed: using `cargo test`");
        let test = ["test", "--profile", "ci"];
        // `cargo test` takes one filter; the others go to the test programs, which take several.
        cargo::run(&[&test[..], &packages, &["--"], &filters].concat())?;
    }
    if filters.is_empty() && !quick {
        python::test()?;
    }
    for skipped in left_out(&Tree::read()?) {
        eprintln!("left out: {skipped}");
    }
    // Test runners hide the output of passing tests.
    for path in missing(&data_folder()) {
        eprintln!("skipped: no data ({} does not exist)", path.display());
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

/// The folder of `whimbrel_testkit::data_file`.
fn data_folder() -> PathBuf {
    let beside = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/data");
    std::env::var_os("WHIMBREL_DATA").map_or_else(beside, PathBuf::from)
}

/// Published files that are absent, so that their tests are skipped: files in the folder's list of
/// sums, or the list itself.
fn missing(folder: &Path) -> Vec<PathBuf> {
    let list = folder.join("SHA256SUMS");
    let Ok(sums) = std::fs::read_to_string(&list) else { return vec![list] };
    let names = sums.lines().filter_map(|line| line.split_once("  "));
    let paths = names.map(|(_, name)| folder.join(name.trim_start_matches("./")));
    paths.filter(|path| !path.exists()).collect()
}

fn documentation(filters: &[&str]) -> Outcome {
    let test = ["test", "--doc", "--workspace", "--profile", "ci"];
    cargo::run(&[&test[..], &["--"], filters].concat())
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
    fn absent_data_are_listed_one_by_one() {
        let folder = std::env::temp_dir().join(format!("whimbrel-data-{}", std::process::id()));
        std::fs::create_dir_all(folder.join("birds")).unwrap();
        assert_eq!(missing(&folder), [folder.join("SHA256SUMS")]);
        std::fs::write(folder.join("birds/counts.csv"), "").unwrap();
        let sums = "00  ./birds/counts.csv\n01  ./birds/sites.csv\n02  ./a9a/a9a.gz\n";
        std::fs::write(folder.join("SHA256SUMS"), sums).unwrap();
        assert_eq!(missing(&folder), [folder.join("birds/sites.csv"), folder.join("a9a/a9a.gz")]);
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn an_ignored_test_is_listed_with_its_reason() {
        let text = "// #[ignore = \"not this\"]\n#[test]\n#[ignore = \"needs numpy\"]\nfn a() {}\n";
        let tree = Tree::of(&[("crates/a/tests/b.rs", text)]);
        assert_eq!(left_out(&tree), ["crates/a/tests/b.rs:3: needs numpy"]);
    }
}
