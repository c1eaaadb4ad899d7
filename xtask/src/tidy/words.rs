//! Banned words: markers of unfinished work, paths and hosts of one machine, documents outside the
//! repository, and words that the vocabulary replaces.

use super::rust::has_word;
use super::{File, Finding, Tree};

const RULE: &str = "words";

/// Exempt files: the lock file names its registry, licences are not ours to edit, and this file holds
/// the list.
const EXEMPT: [&str; 4] =
    ["Cargo.lock", "LICENSE-MIT", "LICENSE-APACHE", "xtask/src/tidy/words.rs"];

/// Markers of unfinished work.
const UNFINISHED: [&str; 4] = ["TODO", "FIXME", "XXX", "HACK"];
const UNFINISHED_CALLS: [&str; 3] = ["todo!(", "unimplemented!(", "dbg!("];
/// First folders of paths that exist on one machine only.
const FOLDERS: [&str; 4] = ["/home/", "/root/", "/work/", "/Users/"];
/// Settings that send a build to one network's package mirror.
const MIRRORS: [&str; 5] =
    ["artifactory", "index-url", "index_url", "replace-with", "index.crates.io"];
/// Documents outside the repository.
const ELSEWHERE: [&str; 5] = ["DESIGN.md", "FIDELITY", "STYLE.md", "KERNELS.md", "seed 00"];
/// Words and their replacements, in prose only (Markdown and doc comments): dependencies use some of
/// them for their types.
const VOCABULARY: [(&str, &str); 8] = [
    ("worker", "client"),
    ("workers", "clients"),
    ("agent", "client"),
    ("agents", "clients"),
    ("strategy", "method"),
    ("strategies", "methods"),
    ("active set", "cohort"),
    ("compressor", "codec, or channel"),
];

/// Checks every text file, line by line.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let files = tree.files.iter().filter(|file| !EXEMPT.contains(&file.path.as_str()));
    files.flat_map(check_file).collect()
}

fn check_file(file: &File) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (index, line) in file.text.lines().enumerate() {
        let number = index + 1;
        let mut faults = faults(line);
        if file.is_markdown() || (file.is_rust() && is_doc_comment(line)) {
            faults.extend(vocabulary(line));
        }
        if !faults.is_empty() && !file.allows(RULE, number) {
            findings.extend(faults.into_iter().map(|what| Finding::at(RULE, file, number, what)));
        }
    }
    findings
}

fn faults(line: &str) -> Vec<String> {
    let lower = line.to_lowercase();
    let unfinished = UNFINISHED
        .iter()
        .filter(|word| has_word(line, word))
        .chain(UNFINISHED_CALLS.iter().filter(|call| line.contains(**call)))
        .map(|word| format!("`{word}` marks unfinished work"));
    let folders = FOLDERS
        .iter()
        .filter(|folder| starts_a_path(line, folder))
        .map(|folder| format!("a path under `{folder}` exists on one machine only"));
    let mirrors = MIRRORS
        .iter()
        .filter(|word| lower.contains(**word))
        .map(|word| format!("`{word}` belongs in a user's own settings"));
    let elsewhere = ELSEWHERE
        .iter()
        .filter(|word| line.contains(**word))
        .map(|word| format!("`{word}` is not in the repository"))
        .chain(
            numbered_issue(&lower).then(|| "a numbered issue is not in the repository".to_owned()),
        );
    unfinished.chain(folders).chain(mirrors).chain(elsewhere).collect()
}

fn vocabulary(line: &str) -> Vec<String> {
    let lower = line.to_lowercase();
    VOCABULARY
        .iter()
        .filter(|(word, _)| has_word(&lower, word))
        .map(|(word, right)| format!("`{word}`: the word here is {right}"))
        .collect()
}

fn is_doc_comment(line: &str) -> bool {
    let line = line.trim_start();
    line.starts_with("///") || line.starts_with("//!")
}

/// Whether `folder` stands at the beginning of a path, not inside a longer one.
fn starts_a_path(line: &str, folder: &str) -> bool {
    line.match_indices(folder).any(|(at, _)| {
        !line[..at].ends_with(|c: char| c.is_alphanumeric() || "_-.~*>})".contains(c))
    })
}

/// "issue 12", "issue #12".
fn numbered_issue(lower: &str) -> bool {
    lower.match_indices("issue ").any(|(at, found)| {
        let rest = lower[at + found.len()..].trim_start_matches('#');
        rest.starts_with(|c: char| c.is_ascii_digit())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(path: &str, text: &str) -> usize {
        check(&Tree::of(&[(path, text)])).len()
    }

    #[test]
    fn unfinished_work_is_found_anywhere() {
        for line in ["// TODO later", "# FIXME", "todo!()", "    dbg!(x)", "HACK: y", "XXX"] {
            assert_eq!(count("a.toml", line), 1, "{line}");
        }
        assert_eq!(count("a.sh", "mktemp -d run.XXXXXX; hacksaw; mastodon"), 0);
    }

    #[test]
    fn paths_of_one_machine_are_found_at_their_start() {
        for line in
            ["cd /home/ada/x", "\"/work/data\"", "file:///work/x", "path=/root/x", "`/Users/ada`"]
        {
            assert_eq!(count("a.md", line), 1, "{line}");
        }
        let inside = "docs/work/a.md, ./home/x, ${DIR}/work/x, https://a.example/home/x";
        assert_eq!(count("a.md", inside), 0);
    }

    #[test]
    fn mirrors_and_outside_notes_are_found() {
        assert_eq!(count("pip.conf", "extra-index-url = https://packages.example"), 1);
        assert_eq!(count("a.rs", "// see DESIGN.md"), 1);
        assert_eq!(count("a.md", "fixed in Issue #12"), 1);
        assert_eq!(count("a.md", "an issue with two sides"), 0);
    }

    #[test]
    fn vocabulary_holds_in_prose_and_not_in_code() {
        assert_eq!(count("a.md", "Each Worker sends"), 1);
        assert_eq!(count("a.rs", "/// one of the agents"), 1);
        assert_eq!(count("a.rs", "use proptest::strategy::Strategy;"), 0);
        assert_eq!(count("a.md", "networker"), 0);
        assert_eq!(count("a.md", "worker <!-- tidy: allow(words): a quotation -->"), 0);
    }

    #[test]
    fn the_list_itself_and_the_lock_file_are_exempt() {
        assert_eq!(count("xtask/src/tidy/words.rs", "TODO"), 0);
        assert_eq!(count("Cargo.lock", "index.crates.io"), 0);
    }
}
