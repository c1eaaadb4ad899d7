//! Definitions of job keys: values, default and meaning.
//!
//! The reader parses by these definitions and takes defaults and messages from them, the
//! [`reference`](mod@crate::reference) pages and the template print them, and the resolved job lists its
//! keys in their order.

use crate::error::one_of;

/// One key of a job file.
#[derive(Debug)]
pub struct JobKey {
    pub name: &'static str,
    /// The meaning, in one sentence.
    pub doc: &'static str,
    /// The rule for an absent key.
    pub fallback: Fallback,
    /// Words among its values.
    pub words: &'static [Word],
    /// Inline tables among its values.
    pub tables: &'static [&'static Section],
    /// Restriction to some kinds; `None`: valid for all.
    pub only: Option<Only>,
    takes: &'static str,
}

/// The rule for an absent key.
#[derive(Clone, Copy, Debug)]
pub enum Fallback {
    /// The job is refused.
    Required,
    /// Computed later or unset, as this text explains.
    Unset(&'static str),
    /// The default as TOML.
    Default(fn() -> String),
}

/// A word that a key accepts, with its meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Word {
    pub name: &'static str,
    pub doc: &'static str,
}

/// Restriction of a key to some kinds of a table.
#[derive(Clone, Copy, Debug)]
pub struct Only {
    pub kinds: &'static [&'static str],
    /// The reason, for messages.
    pub why: &'static str,
}

/// A table of keys.
#[derive(Debug)]
pub struct Section {
    /// The header of a table, the key of an inline table.
    pub name: &'static str,
    pub doc: &'static str,
    /// In the order of the reference.
    pub keys: &'static [&'static JobKey],
    /// An example for the reference, which the tests parse; may be empty.
    pub example: &'static str,
}

impl Section {
    /// Keys that are listed with those of another table.
    pub const fn of(keys: &'static [&'static JobKey]) -> Self {
        Self { name: "", doc: "", keys, example: "" }
    }
}

impl JobKey {
    /// A required key.
    pub const fn required(name: &'static str, takes: &'static str, doc: &'static str) -> Self {
        Self::new(name, takes, Fallback::Required, doc)
    }

    /// An optional key; `unset` describes the behaviour without it.
    pub const fn optional(
        name: &'static str,
        takes: &'static str,
        unset: &'static str,
        doc: &'static str,
    ) -> Self {
        Self::new(name, takes, Fallback::Unset(unset), doc)
    }

    /// A key with a default as TOML.
    pub const fn default(
        name: &'static str,
        takes: &'static str,
        value: fn() -> String,
        doc: &'static str,
    ) -> Self {
        Self::new(name, takes, Fallback::Default(value), doc)
    }

    const fn new(
        name: &'static str,
        takes: &'static str,
        fallback: Fallback,
        doc: &'static str,
    ) -> Self {
        Self { name, takes, doc, fallback, words: &[], tables: &[], only: None }
    }

    pub const fn words(mut self, words: &'static [Word]) -> Self {
        self.words = words;
        self
    }

    pub const fn tables(mut self, tables: &'static [&'static Section]) -> Self {
        self.tables = tables;
        self
    }

    /// Restricts the key to some kinds.
    pub const fn only(mut self, kinds: &'static [&'static str], why: &'static str) -> Self {
        self.only = Some(Only { kinds, why });
        self
    }

    /// Description of the accepted values: the form's text, else the table's keys, else the words.
    pub fn takes(&self) -> String {
        match (self.takes, self.tables) {
            ("", [table, ..]) => {
                let names: Vec<&str> = table.keys.iter().map(|key| key.name).collect();
                format!("a table {{ {} }}", names.join(", "))
            }
            ("", []) => one_of(&self.quoted_words()),
            (takes, _) => takes.to_owned(),
        }
    }

    /// The words in quotes, as in a job file.
    pub fn quoted_words(&self) -> Vec<String> {
        self.words.iter().map(|word| format!("\"{}\"", word.name)).collect()
    }

    pub fn applies_to(&self, kind: &str) -> bool {
        self.only.is_none_or(|only| only.kinds.contains(&kind))
    }
}
