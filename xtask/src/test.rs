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
    for path in missing(&data_folder()) {
        eprintln!("skipped: no data ({} does not exist)", path.display());
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

/// Published files that tests skip: those that the folder's list of sums names and that are absent,
/// or the list itself.
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
