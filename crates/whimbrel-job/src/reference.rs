//! Reference pages generated from the definitions of keys.

use crate::key::{Fallback, JobKey, Section, Word};

/// The kinds to which a key of a section is restricted; empty: none.
pub type Limits<'a> = dyn Fn(&Section, &JobKey) -> Vec<&'static str> + 'a;

/// The behaviour without a key, where it depends on the method.
pub type Unset<'a> = dyn Fn(&JobKey) -> Option<String> + 'a;

/// Renders sections as Markdown, each inner table and each list of words once.
pub struct Page<'a> {
    sections: &'a [&'static Section],
}

impl<'a> Page<'a> {
    /// A page of these tables, in this order.
    pub fn new(sections: &'a [&'static Section]) -> Self {
        Self { sections }
    }

    /// The page, after its head; `limits` tells the kinds that a key of a section is limited to.
    pub fn text(&self, head: &str, limits: &Limits<'_>, unset: &Unset<'_>) -> String {
        let mut out = head.to_owned();
        let mut shown = Shown::default();
        for section in self.sections {
            out += &match section.name {
                "" => "\n## The top\n".to_owned(),
                name => format!("\n## `[{name}]`\n"),
            };
            out += &format!("\n{}\n\n", section.doc);
            out += &table(section, limits, unset);
            out += &shown.words(section);
            for inner in shown.new_tables(section) {
                out += &format!("\n### `{}`: {}\n\n", inner.name, inner.doc);
                out += &table(inner, limits, unset);
                out += &shown.words(inner);
                out += &example(inner);
            }
            out += &example(section);
        }
        out
    }

    /// Every example on the page.
    pub fn examples(&self) -> Vec<&'static str> {
        let mut shown = Shown::default();
        let inner: Vec<_> = self.sections.iter().flat_map(|s| shown.new_tables(s)).collect();
        let all = self.sections.iter().chain(&inner).map(|section| section.example);
        all.filter(|example| !example.is_empty()).collect()
    }
}

fn table(section: &Section, limits: &Limits<'_>, unset: &Unset<'_>) -> String {
    let mut out = String::from("| key | takes | if left out | meaning |\n|---|---|---|---|\n");
    for key in section.keys {
        let fallback = match key.fallback {
            Fallback::Required => "**required**".to_owned(),
            Fallback::Unset(words) => unset(key).unwrap_or_else(|| words.to_owned()),
            Fallback::Default(value) => match value().as_str() {
                "{}" if section.name.is_empty() => "all defaults".to_owned(),
                value => format!("`{value}`"),
            },
        };
        out += &format!(
            "| `{}` | {} | {} | {}{} |\n",
            key.name,
            cell(&key.takes()),
            cell(&fallback),
            cell(key.doc),
            only(section, key, limits)
        );
    }
    out
}

fn only(section: &Section, key: &JobKey, limits: &Limits<'_>) -> String {
    let own = key.only.iter().flat_map(|only| only.kinds).copied();
    let kinds: Vec<String> =
        own.chain(limits(section, key)).map(|kind| format!("`{kind}`")).collect();
    if kinds.is_empty() { String::new() } else { format!(" ({} only)", kinds.join(", ")) }
}

/// Tables and words that are already explained.
#[derive(Default)]
struct Shown {
    tables: Vec<(&'static str, &'static str)>,
    words: Vec<Word>,
}

impl Shown {
    /// The tables within a section, at any depth, that the page does not have yet.
    fn new_tables(&mut self, section: &Section) -> Vec<&'static Section> {
        let mut new = Vec::new();
        for inner in section.keys.iter().flat_map(|key| key.tables) {
            if !self.tables.contains(&(inner.name, inner.doc)) {
                self.tables.push((inner.name, inner.doc));
                new.push(*inner);
                new.extend(self.new_tables(inner));
            }
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
