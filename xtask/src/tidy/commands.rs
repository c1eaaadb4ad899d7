//! Commands in Markdown and module docs: their examples, benchmarks and job files exist.

use super::{File, Finding, Tree};

const RULE: &str = "commands";

/// Checks every line that has `-p CRATE` with `--example` or `--bench`, and every `jobs/...` path.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let files = tree.files.iter().filter(|file| file.is_markdown() || file.is_rust());
    let check = |file: &File| {
        let is_prose = |line: &str| file.is_markdown() || line.trim_start().starts_with("//!");
        file.faults(RULE, &file.text, |line| fault(tree, file, line).filter(|_| is_prose(line)))
    };
    files.flat_map(check).collect()
}

fn fault(tree: &Tree, file: &File, line: &str) -> Option<String> {
    let words: Vec<&str> = line.split_whitespace().map(|word| word.trim_matches('`')).collect();
    let after = |flag| words.iter().position(|w| *w == flag).and_then(|i| words.get(i + 1));
    for (flag, folder) in [("--example", "examples"), ("--bench", "benches")] {
        let (Some(of), Some(name)) = (after("-p"), after(flag)) else { continue };
        let name = name.trim_end_matches(['`', ',', '.', ';', ')']);
        let base = format!("crates/{of}/{folder}/{name}");
        if !tree.holds(&format!("{base}.rs")) && !tree.holds(&format!("{base}/main.rs")) {
            return Some(format!("{of} has no {flag} {name}"));
        }
    }
    if !file.is_markdown() {
        return None;
    }
    // The folder before the first wildcard must exist. `jobs/data` is the reader's.
    let jobs = words.iter().filter(|w| w.starts_with("jobs/") && !w.starts_with("jobs/data"));
    let fixed = jobs.map(|path| match path.split_once('*') {
        Some((before, _)) => before.rsplit_once('/').map_or("", |(folder, _)| folder),
        None => path.trim_end_matches(['`', ',', '.', ';', ')', ':', '/']),
    });
    let missing = fixed.into_iter().find(|path| !tree.holds(path))?;
    Some(format!("{missing} does not exist"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults(line: &str) -> usize {
        let files = [
            ("a.md", line),
            ("crates/x/examples/one.rs", ""),
            ("crates/x/benches/two/main.rs", ""),
            ("jobs/a/b.toml", ""),
        ];
        check(&Tree::of(&files)).len()
    }

    #[test]
    fn what_a_command_names_exists() {
        assert_eq!(faults("cargo run -p x --example one  # and\ncargo bench -p x --bench two"), 0);
        assert_eq!(faults("`cargo run --release -p x --example two`"), 1);
        assert_eq!(faults("`cargo bench -p x --bench one`"), 1);
        assert_eq!(faults("whimbrel run jobs/a/b.toml, or `jobs/a/*.toml`, or jobs/data/c.gz"), 0);
        assert_eq!(faults("whimbrel run jobs/a/c.toml\nwhimbrel run jobs/c/*.toml"), 2);
    }
}
