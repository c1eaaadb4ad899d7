//! `cargo xtask tidy`: rules beyond those of the compiler and clippy.
//!
//! A rule can be lifted in one place by a comment with the reason: `tidy: allow(NAME): why`, on the
//! line or the line above; for rules about a whole file, within its first lines. Findings show NAME
//! in brackets.

mod claims;
mod commands;
mod duplicates;
mod kinds;
mod layers;
mod licences;
mod links;
pub mod mask;
mod rust;
mod voice;
mod words;

pub use kinds::families;

use std::fmt;
use std::process::{Command, Stdio};

use crate::{Outcome, cargo};

/// Checks all rules and lists all findings.
pub fn run() -> Outcome {
    let tree = Tree::read()?;
    let metadata = cargo::metadata()?;
    let mut findings = Vec::new();
    findings.extend(layers::check(&metadata));
    findings.extend(licences::check(&metadata));
    findings.extend(duplicates::check(&metadata));
    findings.extend(words::check(&tree));
    findings.extend(rust::check(&tree));
    findings.extend(kinds::check(&tree));
    findings.extend(links::check(&tree));
    findings.extend(commands::check(&tree));
    findings.extend(claims::check(&tree));
    findings.extend(voice::check(&tree));
    findings.sort();
    for finding in &findings {
        eprintln!("{finding}");
    }
    match findings.len() {
        0 => {
            eprintln!(
                "xtask tidy: {} files and the dependency graph are in order",
                tree.files.len()
            );
            Ok(())
        }
        n => Err(format!("{n} finding(s)")),
    }
}

/// One broken rule.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Finding {
    /// A path with a line, or a crate.
    place: String,
    /// The rule's name, as in an allow marker.
    rule: &'static str,
    /// The problem and the remedy.
    what: String,
}

impl Finding {
    fn new(rule: &'static str, place: impl Into<String>, what: impl Into<String>) -> Self {
        Self { place: place.into(), rule, what: what.into() }
    }

    fn at(rule: &'static str, file: &File, line: usize, what: impl Into<String>) -> Self {
        Self::new(rule, format!("{}:{line}", file.path), what)
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: [{}] {}", self.place, self.rule, self.what)
    }
}

/// The text files of the project.
pub struct Tree {
    /// In order of path.
    pub files: Vec<File>,
    /// All paths, including those of other files.
    paths: Vec<String>,
}

/// One text file.
pub struct File {
    /// Relative to the root, with forward slashes.
    pub path: String,
    pub text: String,
}

impl Tree {
    /// The files that git tracks or would add; ignored and deleted files do not count.
    pub fn read() -> Result<Self, String> {
        let root = cargo::root();
        let output = Command::new("git")
            .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
            .current_dir(&root)
            .stdin(Stdio::null())
            .output()
            .map_err(|error| format!("could not start git, which lists the files: {error}"))?;
        if !output.status.success() {
            return Err(format!(
                "git ls-files: {}",
                String::from_utf8_lossy(&output.stderr).trim()
            ));
        }
        let listed = String::from_utf8_lossy(&output.stdout).into_owned();
        let mut paths: Vec<String> = listed
            .split_terminator('\0')
            .filter(|path| root.join(path).is_file())
            .map(str::to_owned)
            .collect();
        paths.sort();
        paths.dedup();
        let files = paths
            .iter()
            .filter_map(|path| {
                let bytes = std::fs::read(root.join(path)).ok()?;
                Some(File { path: path.clone(), text: String::from_utf8(bytes).ok()? })
            })
            .collect();
        Ok(Self { files, paths })
    }

    /// A tree of these (path, text) pairs.
    #[cfg(test)]
    pub fn of(files: &[(&str, &str)]) -> Self {
        let file =
            |(path, text): &(&str, &str)| File { path: (*path).into(), text: (*text).into() };
        Self {
            files: files.iter().map(file).collect(),
            paths: files.iter().map(|(path, _)| (*path).to_owned()).collect(),
        }
    }

    /// Whether a file or a folder of this name exists.
    fn holds(&self, path: &str) -> bool {
        let folder = format!("{path}/");
        path.is_empty() || self.paths.iter().any(|held| held == path || held.starts_with(&folder))
    }
}

impl File {
    /// The lines of `text`, this file's or a masked copy, that break a rule, unless a marker lifts it.
    fn faults(
        &self,
        rule: &'static str,
        text: &str,
        fault: impl Fn(&str) -> Option<String>,
    ) -> Vec<Finding> {
        let found = (1..).zip(text.lines()).filter_map(|(line, text)| Some((line, fault(text)?)));
        let found = found.filter(|(line, _)| !self.allows(rule, *line));
        found.map(|(line, what)| Finding::at(rule, self, line, what)).collect()
    }

    pub fn is_rust(&self) -> bool {
        self.path.ends_with(".rs")
    }

    fn is_markdown(&self) -> bool {
        self.path.ends_with(".md")
    }

    /// Whether a marker on line `number` (from 1) or on the line above lifts the rule there.
    fn allows(&self, rule: &str, number: usize) -> bool {
        let marker = format!("tidy: allow({rule}):");
        let above = number.saturating_sub(2);
        self.text.lines().skip(above).take(number - above).any(|line| line.contains(&marker))
    }

    /// Whether a marker within the first 20 lines lifts the rule for the whole file.
    fn allows_throughout(&self, rule: &str) -> bool {
        let marker = format!("tidy: allow({rule}):");
        self.text.lines().take(20).any(|line| line.contains(&marker))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_marker_lifts_its_rule_on_its_line_and_the_next() {
        let tree = Tree::of(&[("a.rs", "one\n// tidy: allow(words): why\nthree\nfour\n")]);
        let allowed: Vec<bool> = (1..=4).map(|n| tree.files[0].allows("words", n)).collect();
        assert_eq!(allowed, [false, true, true, false]);
        assert!(!tree.files[0].allows("unsafe", 2));
        assert!(tree.files[0].allows_throughout("words"));
    }

    #[test]
    fn a_tree_holds_files_and_folders() {
        let tree = Tree::of(&[("docs/guide/a.md", "")]);
        assert!(tree.holds("docs/guide/a.md") && tree.holds("docs/guide") && tree.holds(""));
        assert!(!tree.holds("docs/guide/b.md") && !tree.holds("docs/gui"));
    }
}
