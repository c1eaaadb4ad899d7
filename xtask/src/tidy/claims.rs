//! Tests named in documents must exist.

use super::{File, Finding, Tree};
use std::collections::BTreeSet;

const RULE: &str = "claims";
/// Documents that name tests, in backticks.
const DOCUMENTS: [&str; 2] = ["SECURITY.md", "ARCHITECTURE.md"];

/// Checks every name of a test.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let sources = tree.files.iter().filter(|file| file.path.ends_with(".rs"));
    let tests: BTreeSet<&str> = sources.flat_map(|file| tests(&file.text)).collect();
    let documents = tree.files.iter().filter(|file| DOCUMENTS.contains(&file.path.as_str()));
    documents.flat_map(|file| missing(file, &tests)).collect()
}

fn missing(file: &File, tests: &BTreeSet<&str>) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (number, line) in file.text.lines().enumerate() {
        for name in line.split('`').skip(1).step_by(2).filter(|name| is_test_name(name)) {
            if !tests.contains(name) {
                let what = format!("there is no test `{name}`");
                findings.push(Finding::at(RULE, file, number + 1, what));
            }
        }
    }
    findings
}

/// Names of tests are sentences: no other name in a document has three underscores.
fn is_test_name(name: &str) -> bool {
    let plain = name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_');
    plain && name.matches('_').count() >= 3
}

/// Names of the functions with a test attribute.
fn tests(text: &str) -> impl Iterator<Item = &str> {
    let after = text.split("test]\n").skip(1);
    after.filter_map(|rest| {
        let (_, name) = rest.split_once("fn ")?;
        name.split(['(', '<']).next()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_without_its_test_is_found() {
        let source = "#[test]\nfn it_holds_for_all_inputs() {}\n    #[tokio::test]\n    async fn and_this_is_so_too() {}\n\
                      fn not_a_test_at_all() {}\n";
        let names: BTreeSet<&str> = tests(source).collect();
        assert_eq!(names, ["and_this_is_so_too", "it_holds_for_all_inputs"].into());
        let text = "[`it_holds_for_all_inputs`, `and_this_is_so_too`]\n`not_a_test_at_all`, `write_atomically`\n";
        let file = File { path: "SECURITY.md".into(), text: text.into() };
        let found = missing(&file, &names);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].place, "SECURITY.md:2");
    }
}
