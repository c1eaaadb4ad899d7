//! The commands of README and guides, run literally and in order in a copy of the repository's files.
//!
//! Every `sh` block of a page is executed in one shell; a `text` block must be part of the output of
//! the block before it. A comment on the line above a block changes that:
//!
//! | comment | meaning |
//! |---|---|
//! | `<!-- skip: REASON -->` | the block is not executed, or not compared |
//! | `<!-- file: NAME -->` | the block is written to a file |
//! | `<!-- fails -->` | the last command of the block ends with an error |
//! | `<!-- terminal -->` | the block runs beside the following ones, and is answered `yes`; `<!-- terminal: FILE -->` waits for the file first. The next block without this comment waits for all of them |
//!
//! Shown lines occur in order, with the same words. A word `...` stands for any words of the line, a
//! line `...` for any lines; times (`12 ms`) and rules (`----`) are not compared. Coordinators listen on
//! free ports instead of the pages' fixed ones, so that test suites on one machine do not collide.

use crate::support::Sandbox;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

/// Each page runs from the repository's root.
fn follow(page: &str) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let text = fs::read_to_string(root.join(page)).unwrap_or_else(|e| panic!("{page}: {e}"));
    let blocks = blocks(page, &text);
    let clone = Sandbox::new();
    copy(&root.join("jobs"), &clone.path("jobs"));
    copy(&root.join("examples"), &clone.path("examples"));
    fs::create_dir(clone.path(".bin")).unwrap();
    clone.write(".bin/cargo", CARGO);
    clone.write(".bin/whimbrel", &WHIMBREL.replace("PROGRAM", env!("CARGO_BIN_EXE_whimbrel")));
    clone.write("script.sh", &script(&blocks, &clone.path("")));
    let path =
        format!("{}:{}", clone.path(".bin").display(), std::env::var("PATH").unwrap_or_default());
    let programs = [".bin/cargo", ".bin/whimbrel"].map(|name| clone.path(name));
    Command::new("chmod").arg("+x").args(programs).status().unwrap();
    let mut shell = Command::new("bash");
    shell.arg("script.sh").current_dir(clone.path("")).stdin(Stdio::null());
    shell.env("PATH", path).env("WHIMBREL_CACHE", clone.path(".cache")).env_remove("COLUMNS");
    let status = shell.status().expect("bash starts");
    let output = |n: usize| fs::read_to_string(clone.path(&format!(".out-{n}")));
    let mut last = String::new();
    for (n, block) in blocks.iter().enumerate() {
        match block.action {
            Action::Run | Action::Fail | Action::Beside(_) => {
                last = output(n)
                    .unwrap_or_else(|_| panic!("{page}:{}: not reached after\n{last}", block.line));
            }
            Action::Compare => {
                if let Err(missing) = shows(&last, &block.text) {
                    panic!("{page}:{}: `{missing}` is not in\n{last}", block.line);
                }
            }
            Action::Write(_) | Action::Skip => {}
        }
    }
    assert!(status.success(), "{page}: the last command failed:\n{last}");
}

/// Stands for cargo: the program is built, and need not be installed.
const CARGO: &str = "#!/bin/sh\ncase \"$*\" in\n  'run --release') exec whimbrel ;;\n  \
    'run --release -- '*) shift 3; exec whimbrel \"$@\" ;;\n  'install --path '*) exit 0 ;;\nesac\n\
    echo \"unexpected: cargo $*\"; exit 1\n";

/// The program, with free ports.
const WHIMBREL: &str = "#!/bin/sh\ncase $1 in\n  \
    serve) exec 'PROGRAM' \"$@\" --listen 127.0.0.1:0 --dashboard 127.0.0.1:0 ;;\nesac\n\
    exec 'PROGRAM' \"$@\"\n";

/// A fenced block of a page.
struct Block {
    line: usize,
    text: String,
    action: Action,
}

enum Action {
    Run,
    Fail,
    Beside(Option<String>),
    Write(String),
    Compare,
    Skip,
}

fn blocks(page: &str, text: &str) -> Vec<Block> {
    let lines: Vec<&str> = text.lines().collect();
    let mut found = Vec::new();
    let mut at = 0;
    while at < lines.len() {
        let Some(language) = lines[at].strip_prefix("```") else {
            at += 1;
            continue;
        };
        let end = (at + 1..lines.len()).find(|i| lines[*i] == "```").expect("an end of the block");
        let mark = at.checked_sub(1).and_then(|before| lines[before].strip_prefix("<!-- "));
        let mark = mark.map_or("", |mark| mark.trim_end_matches(" -->"));
        let action = match (language, mark.split_once(": ").unwrap_or((mark, ""))) {
            (_, ("skip", reason)) if !reason.is_empty() => Action::Skip,
            (_, ("file", name)) => Action::Write(name.into()),
            ("sh", ("fails", "")) => Action::Fail,
            ("sh", ("terminal", "")) => Action::Beside(None),
            ("sh", ("terminal", file)) => Action::Beside(Some(file.into())),
            ("sh", ("", _)) => Action::Run,
            ("text", ("", _)) => Action::Compare,
            ("sh" | "text", _) => panic!("{page}:{}: unknown comment `{mark}`", at + 1),
            _ => Action::Skip,
        };
        let text = lines[at + 1..end].join("\n") + "\n";
        found.push(Block { line: at + 1, text, action });
        at = end + 1;
    }
    found
}

/// One script: folders that a block enters stay entered.
fn script(blocks: &[Block], clone: &Path) -> String {
    let mut script = String::from("set -e\ntrap 'kill $(jobs -p) 2>/dev/null || true' EXIT\n");
    for (n, Block { text, action, .. }) in blocks.iter().enumerate() {
        let out = format!("{}/.out-{n}", clone.display());
        script += &match action {
            Action::Run => {
                format!("for job in $(jobs -p); do wait $job; done\n{{\n{text}}} > {out} 2>&1\n")
            }
            Action::Fail => format!("if (\nset -e\n{text}) > {out} 2>&1; then exit 1; fi\n"),
            Action::Beside(file) => {
                let wait = file.as_ref().map_or(String::new(), |file| {
                    format!("for i in $(seq 300); do test -s {file} && break; sleep 0.1; done\n")
                });
                format!("{wait}(\nset -e\n{text}) > {out} 2>&1 < <(yes yes) &\n")
            }
            Action::Write(name) => format!("cat > {name} << 'END OF FILE'\n{text}END OF FILE\n"),
            Action::Compare | Action::Skip => String::new(),
        };
    }
    script
}

/// Whether the lines of `shown` occur in the output, one after the other; the first missing line
/// otherwise.
fn shows<'a>(output: &str, shown: &'a str) -> Result<(), &'a str> {
    let lines: Vec<Vec<&str>> = output.lines().map(words).collect();
    let mut from = 0;
    let mut anywhere = true;
    for line in shown.lines().filter(|line| !words(line).is_empty()) {
        let wanted = words(line);
        if wanted == ["..."] {
            anywhere = true;
            continue;
        }
        let rest = lines.iter().enumerate().skip(from).filter(|(_, line)| !line.is_empty());
        let mut rest = rest.take(if anywhere { usize::MAX } else { 1 });
        let found = rest.find(|(_, line)| agree(line, &wanted)).ok_or(line)?;
        from = found.0 + 1;
        anywhere = false;
    }
    Ok(())
}

/// The words of a line, without rules and times.
fn words(line: &str) -> Vec<&str> {
    let all: Vec<&str> = line.split_whitespace().collect();
    let is_number = |word: &str| word.parse::<f64>().is_ok();
    let is_time = |i: usize| {
        let unit = |word: &&str| ["ns", "µs", "ms", "s", "min", "h"].contains(word);
        (is_number(all[i]) && all.get(i + 1).is_some_and(unit))
            || (i > 0 && unit(&all[i]) && is_number(all[i - 1]))
    };
    let is_rule = |word: &str| word.len() > 2 && word.chars().all(|c| c == '-');
    (0..all.len()).filter(|i| !is_time(*i) && !is_rule(all[*i])).map(|i| all[i]).collect()
}

fn agree(line: &[&str], wanted: &[&str]) -> bool {
    match (line, wanted) {
        (_, ["..."]) => true,
        ([], []) => true,
        (_, ["...", rest @ ..]) => (0..line.len()).any(|i| agree(&line[i..], rest)),
        ([first, line @ ..], [same, wanted @ ..]) => first == same && agree(line, wanted),
        _ => false,
    }
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap_or_else(|e| panic!("{}: {e}", from.display())) {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).unwrap();
        }
    }
}

/// One test for each page, so that they run side by side.
macro_rules! pages {
    ($($name:ident: $page:literal;)*) => {
        const PAGES: &[&str] = &[$($page),*];
        $(
            #[test]
            fn $name() {
                follow($page);
            }
        )*
    };
}

pages! {
    the_readme_runs: "README.md";
    comparing_methods_runs: "docs/guide/comparing-methods.md";
    parquet_and_sql_runs: "docs/guide/parquet-and-sql.md";
    data_for_learners_runs: "docs/guide/data-for-learners.md";
    describing_data_runs: "docs/guide/describing-data.md";
    first_federation_runs: "docs/guide/first-federation.md";
    first_run_runs: "docs/guide/first-run.md";
    flower_runs: "docs/guide/flower.md";
    imputing_a_table_runs: "docs/guide/imputing-a-table.md";
    mixed_tables_runs: "docs/guide/mixed-tables.md";
    own_models_runs: "docs/guide/own-models.md";
    personal_models_runs: "docs/guide/personal-models.md";
    preparing_data_runs: "docs/guide/preparing-data.md";
    python_runs: "docs/guide/python.md";
    questions_runs: "docs/guide/questions.md";
    ray_runs: "docs/guide/ray.md";
    reading_the_report_runs: "docs/guide/reading-the-report.md";
    regression_runs: "docs/guide/regression.md";
    relays_runs: "docs/guide/relays.md";
    resume_runs: "docs/guide/resume.md";
    rust_runs: "docs/guide/rust.md";
    three_hospitals_runs: "docs/guide/three-hospitals.md";
    two_hospitals_runs: "docs/guide/two-hospitals.md";
    your_own_csv_runs: "docs/guide/your-own-csv.md";
}

#[test]
fn every_guide_is_among_the_pages() {
    let guides = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guide");
    for entry in fs::read_dir(guides).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let page = format!("docs/guide/{name}");
        assert!(!name.ends_with(".md") || PAGES.contains(&page.as_str()), "{page} is not followed");
    }
}

#[test]
fn shown_lines_must_occur_in_order_with_the_same_words() {
    let output =
        "note\nrun  objective  time\n---  ----  ----\nem  3.25  50 ms\n\nend of 7 rounds\n";
    for right in [
        "run objective time\nem  3.25  9.1 s\n",
        "note\n...\nend of ...\n",
        "em ...\n",
        "end ... rounds\n",
    ] {
        assert_eq!(shows(output, right), Ok(()), "{right}");
    }
    for wrong in ["em 3.26 50 ms\n", "note\nem 3.25 50 ms\n", "end of 7\n", "em 3.25 1 ms\nnote\n"]
    {
        assert!(shows(output, wrong).is_err(), "{wrong}");
    }
}
