//! Reference pages generated from the definitions of keys.

use crate::key::{Fallback, JobKey, Section, Word};

/// One page: a file of the reference.
pub struct Page {
    /// File name without its ending.
    pub name: String,
    pub title: String,
    pub parts: Vec<KeyList>,
}

/// A list of keys under a heading.
#[derive(Default)]
pub struct KeyList {
    /// Empty for a page of one part.
    pub heading: String,
    pub doc: String,
    pub keys: Vec<Row>,
    /// Words of `kind` that this part explains.
    pub kinds: Vec<Word>,
    pub example: &'static str,
}

/// A key as a row of a table.
pub struct Row {
    pub key: &'static JobKey,
    /// The kinds to which the key is restricted, or those that lack it; empty: no restriction.
    pub kinds: Vec<&'static str>,
    /// Whether `kinds` are those that lack the key.
    pub except: bool,
}

impl Row {
    /// A key that `able` of `all` kinds take, by the shorter of both lists.
    pub fn among(key: &'static JobKey, able: &[&'static str], all: &[&'static str]) -> Self {
        let except = 2 * able.len() > all.len();
        let named = all.iter().filter(|kind| able.contains(kind) != except);
        Self { key, kinds: named.copied().collect(), except }
    }
}

impl KeyList {
    /// All keys of a table.
    pub fn of(section: &'static Section) -> Self {
        let Section { doc, keys, example, .. } = section;
        Self { doc: (*doc).to_owned(), keys: rows(keys), example, ..Self::default() }
    }
}

/// Rows of keys with the restrictions of their definitions.
pub fn rows(keys: &[&'static JobKey]) -> Vec<Row> {
    let kinds = |key: &JobKey| key.only.map_or(Vec::new(), |only| only.kinds.to_vec());
    keys.iter().map(|key| Row { key, kinds: kinds(key), except: false }).collect()
}

/// Renders the pages as Markdown. Inner tables and words are explained once, on the first page that has
/// them; others link there. `unset` describes the behaviour without a key where it depends on the method.
pub fn render(pages: &[Page], unset: &dyn Fn(&JobKey) -> Option<String>) -> Vec<String> {
    let mut shown = Shown { tables: Vec::new(), words: Vec::new(), unset };
    pages.iter().map(|page| shown.page(page)).collect()
}

/// The examples of tables and of the tables within them.
pub fn examples(sections: &[&'static Section]) -> Vec<&'static str> {
    let mut all: Vec<&'static Section> = sections.to_vec();
    let mut at = 0;
    while at < all.len() {
        for inner in all[at].keys.iter().flat_map(|key| key.tables) {
            if !all.iter().any(|known| same(known, inner)) {
                all.push(inner);
            }
        }
        at += 1;
    }
    all.iter().map(|section| section.example).filter(|example| !example.is_empty()).collect()
}

fn same(one: &Section, other: &Section) -> bool {
    (one.name, one.doc) == (other.name, other.doc)
}

/// Tables and words that are already explained, with the page's name and title.
struct Shown<'a> {
    tables: Vec<(&'static Section, String)>,
    words: Vec<(Word, String)>,
    unset: &'a dyn Fn(&JobKey) -> Option<String>,
}

impl Shown<'_> {
    fn page(&mut self, page: &Page) -> String {
        let link = format!("[{}]({}.md)", page.title, page.name);
        let mut out = format!("# {}\n", page.title);
        for part in &page.parts {
            if !part.heading.is_empty() {
                out += &format!("\n## {}\n", part.heading);
            }
            out += &format!("\n{}\n", part.doc);
            out += &self.list("kind", &part.kinds, &link);
            if !part.keys.is_empty() {
                out += &self.table(&part.keys);
            }
            out += &self.details(part.keys.iter().map(|row| row.key), &link);
            out += &example(part.example);
        }
        out
    }

    fn table(&self, rows: &[Row]) -> String {
        let mut out = String::from("\n| key | values | default | meaning |\n|---|---|---|---|\n");
        for Row { key, kinds, except } in rows {
            let fallback = match key.fallback {
                Fallback::Required => "**required**".to_owned(),
                Fallback::Unset(words) => (self.unset)(key).unwrap_or_else(|| words.to_owned()),
                Fallback::Default(value) => format!("`{}`", value()),
            };
            let (name, takes) = (key.name, cell(&key.takes()));
            let (fallback, doc, only) =
                (cell(&fallback), cell(key.doc), restriction(kinds, *except));
            out += &format!("| `{name}` | {takes} | {fallback} | {doc}{only} |\n");
        }
        out
    }

    /// Words and inner tables of keys.
    fn details(&mut self, keys: impl Iterator<Item = &'static JobKey>, link: &str) -> String {
        let keys: Vec<&'static JobKey> = keys.collect();
        let mut out = String::new();
        for key in &keys {
            out += &self.list(key.name, key.words, link);
        }
        for inner in keys.iter().flat_map(|key| key.tables) {
            match self.tables.iter().find(|(known, _)| same(known, inner)) {
                Some((_, home)) if home == link => {}
                Some((_, home)) => out += &format!("\nKeys of `{}`: {home}.\n", inner.name),
                None => {
                    self.tables.push((inner, link.to_owned()));
                    out += &format!("\n### `{}`: {}\n", inner.name, inner.doc);
                    out += &self.table(&rows(inner.keys));
                    out += &example(inner.example);
                    out += &self.details(inner.keys.iter().copied(), link);
                }
            }
        }
        out
    }

    /// A list of words with their meanings, or a link to it.
    fn list(&mut self, key: &str, words: &[Word], link: &str) -> String {
        let known = |word: &Word| self.words.iter().find(|(known, _)| known == word);
        let mut homes: Vec<&str> = Vec::new();
        for (_, home) in words.iter().filter_map(known) {
            if !homes.contains(&home.as_str()) {
                homes.push(home);
            }
        }
        if words.iter().all(|word| known(word).is_some()) {
            homes.retain(|home| *home != link);
            return match &homes[..] {
                [] => String::new(),
                homes => format!("\nWords of `{key}`: {}.\n", homes.join(", ")),
            };
        }
        self.words.extend(words.iter().map(|word| (*word, link.to_owned())));
        let lines = words.iter().map(|word| format!("- `\"{}\"`: {}\n", word.name, word.doc));
        format!("\n`{key}`:\n\n{}", lines.collect::<String>())
    }
}

fn restriction(kinds: &[&str], except: bool) -> String {
    let names = kinds.join("`, `");
    match kinds {
        [] => String::new(),
        _ if except => format!(" (not `{names}`)"),
        _ => format!(" (`{names}` only)"),
    }
}

fn example(text: &str) -> String {
    if text.is_empty() { String::new() } else { format!("\n```toml\n{text}```\n") }
}

/// Text that fits in a cell of a table.
fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}
