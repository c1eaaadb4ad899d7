//! Voice: a doc comment names its subject first.

use super::{File, Finding, Tree};

const RULE: &str = "voice";
/// Words that do not open a doc comment.
const OPENERS: [&str; 8] = ["What", "Who", "Whom", "Whose", "Where", "How", "Whoever", "Whatever"];

/// Checks the doc comments of all crates and of xtask.
pub fn check(tree: &Tree) -> Vec<Finding> {
    tree.files.iter().filter(|file| is_source(file)).flat_map(openers).collect()
}

fn is_source(file: &File) -> bool {
    let mut parts = file.path.split('/');
    let in_crate = parts.next() == Some("crates") && parts.nth(1) == Some("src");
    file.is_rust() && (in_crate || file.path.starts_with("xtask/"))
}

fn openers(file: &File) -> Vec<Finding> {
    let what = |line: &str| format!("name the subject first: {}", line.trim());
    file.faults(RULE, &file.text, |line| is_opener(line).then(|| what(line)))
}

/// Whether a line is a doc comment that opens with one of the words, or is just "It.".
fn is_opener(line: &str) -> bool {
    let line = line.trim_start();
    let Some(text) = line.strip_prefix("///").or_else(|| line.strip_prefix("//!")) else {
        return false;
    };
    let text = text.trim_start();
    let word = text.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or_default();
    OPENERS.contains(&word) || (line.starts_with("///") && text == "It.")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn openers_are_known_by_their_first_word() {
        for line in ["/// What it is.", "    //! How: so", "///Where's", "/// It."] {
            assert!(is_opener(line), "{line}");
        }
        for line in ["// What", "/// Whatsoever", "/// It is.", "//! It.", "/// The What"] {
            assert!(!is_opener(line), "{line}");
        }
    }

    #[test]
    fn openers_in_sources_are_findings_unless_allowed() {
        let text = "/// What it is.\nfn f() {}\n";
        let found = |path: &str, text: &str| check(&Tree::of(&[(path, text)])).len();
        assert_eq!(found("crates/a/src/b.rs", text), 1);
        assert_eq!(found("xtask/src/b.rs", text), 1);
        assert_eq!(found("crates/a/tests/b.rs", text), 0);
        let lifted = format!("// tidy: allow(voice): a quotation\n{text}");
        assert_eq!(found("crates/a/src/b.rs", &lifted), 0);
    }
}
