//! The reference page of the job file, made of the definitions.

use crate::key::{Fallback, Key, Section, Word};
use crate::spec::SECTIONS;

const HEAD: &str = "# The job file

A job file says what to fit, on what data, and how. It is [TOML](https://toml.io). Unknown keys,
wrong types and impossible values are errors that show the line and what would be right; a key
that has no meaning for the chosen kind is an error too. File names are relative to the job file.

This page is generated from the definitions that the parser uses.

";

/// The smallest job around an example of one table.
const AROUND: [(&str, &str); 3] = [
    ("data", "[data]\nsource = \"mixture\"\n"),
    ("model", "[model]\nkind = \"gmm\"\ncomponents = 2\n"),
    ("method", "[method]\nkind = \"fedem\"\nrounds = 100\n"),
];

/// The page `docs/reference/job-file.md`.
pub fn reference() -> String {
    let mut out = HEAD.to_owned();
    out += "A whole job:\n\n```toml\n";
    out += &complete(SECTIONS[0].example);
    out += "```\n";
    let mut shown = Shown::default();
    for section in SECTIONS {
        out += &match section.name {
            "" => "\n## The top\n".to_owned(),
            name => format!("\n## `[{name}]`\n"),
        };
        out += &format!("\n{}\n\n", section.doc);
        out += &table(section);
        out += &shown.words(section);
        for key in section.keys {
            for inner in key.tables {
                if shown.is_new_table(inner) {
                    out += &format!("\n### `{}`: {}\n\n", inner.name, inner.doc);
                    out += &table(inner);
                    out += &shown.words(inner);
                    out += &example(inner);
                }
            }
        }
        out += &example(section);
    }
    out
}

/// Every example of the page as a whole job.
pub fn examples() -> Vec<String> {
    let inner = SECTIONS.iter().flat_map(|s| s.keys.iter().flat_map(|key| key.tables.iter()));
    let mut shown = Shown::default();
    let sections = SECTIONS.iter().chain(inner.filter(|inner| shown.is_new_table(inner)));
    sections.filter(|s| !s.example.is_empty()).map(|s| complete(s.example)).collect()
}

/// An example with the tables that it leaves out.
fn complete(example: &str) -> String {
    let mut out = example.to_owned();
    for (name, table) in AROUND {
        if !example.contains(&format!("[{name}]")) {
            out += &format!("\n{table}");
        }
    }
    out
}

fn table(section: &Section) -> String {
    let mut out = String::from("| key | takes | if left out | meaning |\n|---|---|---|---|\n");
    for key in section.keys {
        let fallback = match key.fallback {
            Fallback::Required => "**required**".to_owned(),
            Fallback::Unset(words) => words.to_owned(),
            Fallback::Value("{}") if section.name.is_empty() => "all defaults".to_owned(),
            Fallback::Value(value) => format!("`{value}`"),
        };
        out += &format!(
            "| `{}` | {} | {} | {}{} |\n",
            key.name,
            cell(&key.takes()),
            cell(&fallback),
            cell(key.doc),
            only(key)
        );
    }
    out
}

fn only(key: &Key) -> String {
    let kinds: Vec<String> =
        key.only.iter().flat_map(|only| only.kinds).map(|kind| format!("`{kind}`")).collect();
    if kinds.is_empty() { String::new() } else { format!(" ({} only)", kinds.join(", ")) }
}

/// What the page already has: several keys take the same codecs.
#[derive(Default)]
struct Shown {
    tables: Vec<*const Section>,
    words: Vec<Word>,
}

impl Shown {
    fn is_new_table(&mut self, table: &'static Section) -> bool {
        let new = !self.tables.contains(&std::ptr::from_ref(table));
        if new {
            self.tables.push(table);
        }
        new
    }

    /// The words of a section's keys, one list for each key whose words are not explained yet.
    fn words(&mut self, section: &Section) -> String {
        let mut out = String::new();
        for key in section.keys.iter().filter(|key| !key.words.is_empty()) {
            if key.words.iter().all(|word| self.words.contains(word)) {
                continue;
            }
            self.words.extend(key.words);
            out += &format!("\n`{}`:\n\n", key.name);
            for word in key.words {
                out += &format!("- `\"{}\"`: {}\n", word.name, word.doc);
            }
        }
        out
    }
}

fn example(section: &Section) -> String {
    if section.example.is_empty() {
        return String::new();
    }
    format!("\n```toml\n{}```\n", section.example)
}

/// Text that fits in a cell of a table.
fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}
