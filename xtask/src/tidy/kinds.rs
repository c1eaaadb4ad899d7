//! Families: nothing outside a family's folder asks which model or method a job has.

use super::{Finding, Tree, mask};

const RULE: &str = "kinds";

/// Ways to ask.
const QUESTIONS: [&str; 8] = [
    "kind.algorithm ==",
    "kind.algorithm !=",
    "match job.model",
    "match self.model",
    "job.model ==",
    "job.model !=",
    ".fit_as",
    "MethodKind::",
];

/// Checks the sources of every crate but the families' own folders.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.files.iter().filter(|file| file.is_rust() && is_outside(&file.path)) {
        let code = mask::code_only(&file.text);
        let before_tests = code.lines().take_while(|line| !line.contains("#[cfg(test)]"));
        for (index, line) in before_tests.enumerate() {
            let question = QUESTIONS.iter().find(|question| line.contains(**question));
            if let Some(question) = question.filter(|_| !file.allows(RULE, index + 1)) {
                let what = format!(
                    "`{question}` asks which model or method it is: let the family answer (`Fit`)"
                );
                findings.push(Finding::at(RULE, file, index + 1, what));
            }
        }
    }
    findings
}

/// Sources that know no family: those of the crates above the methods, without the families.
fn is_outside(path: &str) -> bool {
    let folders = ["bayes/", "em/", "gradient/", "personal/", "table/"];
    let families = "crates/whimbrel-families/src/";
    let above = ["engine", "report", "net", "runs", "job"]
        .iter()
        .any(|name| path.starts_with(&format!("crates/whimbrel-{name}/src/")));
    let shared = path.strip_prefix(families);
    above
        || path.starts_with("crates/whimbrel/src/")
        || shared.is_some_and(|rest| !folders.iter().any(|folder| rest.starts_with(folder)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_outside_a_family_is_found_and_inside_it_is_not() {
        let asks = "fn f() { if job.method.kind.algorithm == EM {} }\n#[cfg(test)]\nmod tests {}\n";
        let places = |path: &str| check(&Tree::of(&[(path, asks)])).len();
        assert_eq!(places("crates/whimbrel/src/cli/view.rs"), 1);
        assert_eq!(places("crates/whimbrel-families/src/load/mod.rs"), 1);
        assert_eq!(places("crates/whimbrel-families/src/em/mod.rs"), 0);
        let only_in_tests = "#[cfg(test)]\nmod tests { fn f() { job.fit_as::<A>(); } }\n";
        assert_eq!(check(&Tree::of(&[("crates/whimbrel/src/a.rs", only_in_tests)])), []);
    }
}
