//! Families: only a family's folder may ask which model or method a job has.

use super::{File, Finding, Tree, mask};

const RULE: &str = "kinds";

/// Expressions that ask.
const QUESTIONS: [&str; 9] = [
    "kind.algorithm ==",
    "kind.algorithm !=",
    "match job.model",
    "match self.model",
    "job.model ==",
    "job.model !=",
    ".fit_as",
    "MethodKind::",
    "Preset::",
];

/// The file that declares the families, as `families! { em, ... }`.
const DECLARED: &str = "crates/whimbrel-families/src/lib.rs";

/// Checks the sources of every crate but the families' own folders.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let families = families(tree);
    let outside = |file: &&File| file.is_rust() && is_outside(&file.path, &families);
    let fault = |line: &str| {
        let question = QUESTIONS.iter().find(|question| line.contains(**question))?;
        let what =
            format!("`{question}` asks for the model or method: let the family answer (`Fit`)");
        Some(what)
    };
    let check = |file: &File| {
        let code = mask::code_only(&file.text);
        let before_tests = code.split("#[cfg(test)]").next().unwrap_or_default();
        file.faults(RULE, before_tests, fault)
    };
    tree.files.iter().filter(outside).flat_map(check).collect()
}

/// The names of the families.
pub fn families(tree: &Tree) -> Vec<&str> {
    let declared = tree.files.iter().find(|file| file.path == DECLARED);
    let list = declared.and_then(|file| file.text.split_once("\nfamilies! {")?.1.split('}').next());
    list.map_or_else(Vec::new, |list| list.split(',').map(str::trim).collect())
}

/// Sources that must not know a family: those of the crates above the methods, without the families.
fn is_outside(path: &str, families: &[&str]) -> bool {
    let above = ["engine", "report", "net", "runs", "job"]
        .iter()
        .any(|name| path.starts_with(&format!("crates/whimbrel-{name}/src/")));
    let shared = path.strip_prefix("crates/whimbrel-families/src/");
    above
        || path.starts_with("crates/whimbrel/src/")
        || shared.is_some_and(|rest| {
            !rest.split_once('/').is_some_and(|(folder, _)| families.contains(&folder))
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_outside_a_family_is_found_and_inside_it_is_not() {
        let asks = "fn f() { if job.method.kind.algorithm == EM {} }\n#[cfg(test)]\nmod tests {}\n";
        let lib = (DECLARED, "mod job;\n\nfamilies! { table, em }\n");
        let places = |path: &str| check(&Tree::of(&[lib, (path, asks)])).len();
        assert_eq!(places("crates/whimbrel/src/cli/view.rs"), 1);
        assert_eq!(places("crates/whimbrel-families/src/load/mod.rs"), 1);
        assert_eq!(places("crates/whimbrel-families/src/em/mod.rs"), 0);
        let preset = [("crates/whimbrel-families/src/job/a.rs", "fn f() { Preset::Mcm }\n")];
        assert_eq!(check(&Tree::of(&preset)).len(), 1);
        let only_in_tests = "#[cfg(test)]\nmod tests { fn f() { job.fit_as::<A>(); } }\n";
        assert_eq!(check(&Tree::of(&[("crates/whimbrel/src/a.rs", only_in_tests)])), []);
    }
}
