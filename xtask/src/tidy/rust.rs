//! Rules about Rust files: length of files and functions, printing, ignored tests, unsafe code,
//! matches on booleans.

use super::{File, Finding, Tree, mask};

const LINES_MAX: usize = 600;
/// The most lines of a function, a screen.
const FUNCTION_MAX: usize = 80;
/// The most lines between a `SAFETY:` comment and its `unsafe` (attributes come between).
const SAFETY_REACH: usize = 6;
/// The calls that write to a terminal.
const PRINTS: [&str; 5] = ["println!", "eprintln!", "print!", "eprint!", "dbg!"];

/// Checks every Rust file of the project.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let files = tree.files.iter().filter(|file| file.is_rust());
    let each = |file| check_file(file).into_iter().chain(booleans(file)).chain(functions(file));
    files.flat_map(each).collect()
}

/// Functions that do not fit on a screen. In formatted sources the indent of the `fn` is that of its
/// last line.
fn functions(file: &File) -> Vec<Finding> {
    let code = mask::code_only(&file.text);
    let lines: Vec<&str> = code.lines().map(str::trim_end).collect();
    let indent = |line: &str| line.len() - line.trim_start().len();
    let length = |first: usize| {
        let ends = |line: &&str| {
            indent(line) == indent(lines[first]) && (line.ends_with('}') || line.ends_with(';'))
        };
        1 + lines[first..].iter().position(ends).unwrap_or(0)
    };
    let heads = (0..lines.len()).filter(|&at| is_head(lines[at]));
    let long = heads.map(|at| (at + 1, length(at))).filter(|&(_, length)| length > FUNCTION_MAX);
    let long = long.filter(|&(number, _)| !file.allows("function", number));
    let what =
        |length| format!("a function of {length} lines; cut it into steps of {FUNCTION_MAX}");
    long.map(|(number, length)| Finding::at("function", file, number, what(length))).collect()
}

/// Whether a line begins a function: `fn` after nothing but its visibility and qualifiers.
fn is_head(line: &str) -> bool {
    let qualifies = |word: &str| {
        word.starts_with("pub") || ["const", "async", "unsafe", "extern"].contains(&word)
    };
    line.split_whitespace().find(|word| !qualifies(word)) == Some("fn")
}

/// Arms of a `match` whose pattern is `true`: one per match.
fn booleans(file: &File) -> Vec<Finding> {
    let what = || "a `match` on a boolean: write `if`".to_owned();
    let is_arm = |line: &str| line.trim_start().starts_with("true =>");
    file.faults("boolean", &mask::code_only(&file.text), |line| is_arm(line).then(what))
}

fn check_file(file: &File) -> Vec<Finding> {
    let mut findings = Vec::new();
    findings.extend(length(file));
    let code = mask::code_only(&file.text);
    let original: Vec<&str> = file.text.lines().collect();
    for (index, line) in code.lines().enumerate() {
        let number = index + 1;
        let broken = [
            ("print", prints(line).filter(|_| is_library(&file.path))),
            (
                "ignore",
                line.replace(' ', "")
                    .contains("#[ignore]")
                    .then(|| "an ignored test says why: #[ignore = \"needs ...\"]".to_owned()),
            ),
            (
                "unsafe",
                (has_word(line, "unsafe") && !explained(&original, index))
                    .then(|| "`unsafe` without a `SAFETY:` comment just above it".to_owned()),
            ),
        ];
        for (rule, what) in broken {
            if let Some(what) = what.filter(|_| !file.allows(rule, number)) {
                findings.push(Finding::at(rule, file, number, what));
            }
        }
    }
    findings
}

fn length(file: &File) -> Option<Finding> {
    let lines = file.text.lines().count();
    let what = format!("{lines} lines; a file above {LINES_MAX} is usually two ideas");
    (lines > LINES_MAX && !file.allows_throughout("length"))
        .then(|| Finding::at("length", file, lines, what))
}

/// Sources of the crates that never print: all but the binary's. Tests, examples, benchmarks and
/// build scripts are outside `src`.
fn is_library(path: &str) -> bool {
    let mut parts = path.split('/');
    parts.next() == Some("crates")
        && parts.next().is_some_and(|name| name != "whimbrel")
        && parts.next() == Some("src")
}

fn prints(line: &str) -> Option<String> {
    let call = PRINTS.iter().find(|call| {
        line.match_indices(**call).any(|(at, _)| !line[..at].ends_with(is_word_character))
    })?;
    Some(format!("`{call}` in a library crate: only the binary writes to the terminal"))
}

fn explained(lines: &[&str], index: usize) -> bool {
    lines[index.saturating_sub(SAFETY_REACH)..=index]
        .iter()
        .any(|line| line.contains("SAFETY:") || line.contains("# Safety"))
}

/// Whether `word` occurs in `line` as a whole word.
pub fn has_word(line: &str, word: &str) -> bool {
    line.match_indices(word).any(|(at, _)| {
        !line[..at].ends_with(is_word_character)
            && !line[at + word.len()..].starts_with(is_word_character)
    })
}

fn is_word_character(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(path: &str, text: &str) -> Vec<(&'static str, String)> {
        let tree = Tree::of(&[(path, text)]);
        check(&tree).into_iter().map(|finding| (finding.rule, finding.place)).collect()
    }

    #[test]
    fn libraries_do_not_print_and_the_rest_may() {
        let text = "fn f() {\n    eprintln!(\"x\");\n}\n";
        let found = ("print", "crates/whimbrel-core/src/a.rs:2".to_owned());
        assert_eq!(rules("crates/whimbrel-core/src/a.rs", text), [found]);
        for path in
            ["crates/whimbrel/src/main.rs", "crates/whimbrel-core/benches/a.rs", "xtask/src/a.rs"]
        {
            assert_eq!(rules(path, text), []);
        }
        assert_eq!(rules("crates/whimbrel-core/src/a.rs", "// println!(1)\nmy_println!(1);\n"), []);
    }

    #[test]
    fn long_files_are_found_and_may_give_a_reason() {
        assert_eq!(rules("a.rs", &"\n".repeat(600)), []);
        assert_eq!(rules("a.rs", &"\n".repeat(601)), [("length", "a.rs:601".to_owned())]);
        let list = format!("// tidy: allow(length): a list\n{}", "\n".repeat(601));
        assert_eq!(rules("a.rs", &list), []);
    }

    #[test]
    fn long_functions_are_found_and_may_give_a_reason() {
        let of = |head: &str, lines: usize| {
            format!("{head} {{\n{}    if x {{\n    }}\n}}\n", "    a();\n".repeat(lines - 4))
        };
        for head in ["fn f()", "pub async fn f(\n    x: u8,\n)", "pub(crate) const fn f<T>()"] {
            let fits = FUNCTION_MAX - head.matches('\n').count();
            assert_eq!(rules("a.rs", &of(head, fits)), [], "{head}");
            let found = [("function", "a.rs:1".to_owned())];
            assert_eq!(rules("a.rs", &of(head, fits + 1)), found, "{head}");
        }
        let declared = format!("    fn f(\n        x: u8,\n    );\n{}", "a();\n".repeat(90));
        assert_eq!(rules("a.rs", &declared), []);
        let list = format!("// tidy: allow(function): a list\n{}", of("fn f()", 99));
        assert_eq!(rules("a.rs", &list), []);
    }

    #[test]
    fn matches_on_booleans_are_found() {
        let text = "match x {\n    true => 1,\n    false => 2,\n}\n";
        assert_eq!(rules("a.rs", text), [("boolean", "a.rs:2".to_owned())]);
        assert_eq!(rules("a.rs", "match x {\n    (true, _) => 1,\n}\n"), []);
    }

    #[test]
    fn ignored_tests_give_a_reason() {
        assert_eq!(rules("a.rs", "#[ignore = \"slow\"]\nfn a() {}\n"), []);
        assert_eq!(rules("a.rs", "#[ignore]\nfn a() {}\n"), [("ignore", "a.rs:1".to_owned())]);
    }

    #[test]
    fn unsafe_code_is_explained() {
        assert_eq!(rules("a.rs", "x();\nunsafe { f() }\n"), [("unsafe", "a.rs:2".to_owned())]);
        assert_eq!(rules("a.rs", "// SAFETY: checked\n#[cfg(unix)]\nunsafe { f() }\n"), []);
        assert_eq!(rules("a.rs", "#![deny(unsafe_op_in_unsafe_fn)]\n// unsafe\n"), []);
        let far = format!("// SAFETY: x\n{}unsafe {{}}\n", "a();\n".repeat(7));
        assert_eq!(rules("a.rs", &far), [("unsafe", "a.rs:9".to_owned())]);
        let lifted = "// tidy: allow(unsafe): an example\nunsafe {}\n";
        assert_eq!(rules("a.rs", lifted), []);
    }
}
