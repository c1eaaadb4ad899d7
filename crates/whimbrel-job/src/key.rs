//! The one definition of a job key: what it takes, what stands in for it, what it means.
//!
//! The definitions are data. The reader parses by them and takes defaults and
//! messages from them, the [`reference`](mod@crate::reference) page and a template
//! print them, and the resolved job writes its keys in their order.

use crate::error::one_of;

/// One key of a job file.
#[derive(Debug)]
pub struct JobKey {
    /// Its name in the file.
    pub name: &'static str,
    /// What it stands for, in one sentence.
    pub doc: &'static str,
    /// What stands in for it when it is left out.
    pub fallback: Fallback,
    /// Words with a meaning of their own.
    pub words: &'static [Word],
    /// Inline tables it takes.
    pub tables: &'static [&'static Section],
    /// The kinds it has a meaning for; `None`: all.
    pub only: Option<Only>,
    takes: &'static str,
}

/// What happens when a key is left out.
#[derive(Clone, Copy, Debug)]
pub enum Fallback {
    /// It is an error.
    Required,
    /// The value is computed or stays unset; the words say what then holds.
    Unset(&'static str),
    /// This TOML value is read in its place.
    Value(&'static str),
    /// The default of the type that the key belongs to, written as TOML.
    Of(fn() -> String),
}

/// A word that a key takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Word {
    /// The word.
    pub name: &'static str,
    /// What it asks for.
    pub doc: &'static str,
}

/// The kinds for which a key has a meaning, and why not for others.
#[derive(Clone, Copy, Debug)]
pub struct Only {
    /// The kinds.
    pub kinds: &'static [&'static str],
    /// Why the key has no meaning elsewhere.
    pub why: &'static str,
}

/// A table of keys.
#[derive(Debug)]
pub struct Section {
    /// Its name: the table's header for a table, a short description for an inline one.
    pub name: &'static str,
    /// What it is about.
    pub doc: &'static str,
    /// Its keys, in the order of the reference.
    pub keys: &'static [&'static JobKey],
    /// A table that parses.
    pub example: &'static str,
}

impl Section {
    /// Keys that are part of another table.
    pub const fn of(keys: &'static [&'static JobKey]) -> Self {
        Self { name: "", doc: "", keys, example: "" }
    }
}

impl JobKey {
    /// A key that must be given.
    pub const fn required(name: &'static str, takes: &'static str, doc: &'static str) -> Self {
        Self::new(name, takes, Fallback::Required, doc)
    }

    /// A key that may be left out, and what holds then.
    pub const fn optional(
        name: &'static str,
        takes: &'static str,
        unset: &'static str,
        doc: &'static str,
    ) -> Self {
        Self::new(name, takes, Fallback::Unset(unset), doc)
    }

    /// A key with a default, written as TOML.
    pub const fn default(
        name: &'static str,
        takes: &'static str,
        value: &'static str,
        doc: &'static str,
    ) -> Self {
        Self::new(name, takes, Fallback::Value(value), doc)
    }

    /// A key whose default is that of its type.
    pub const fn default_of(
        name: &'static str,
        takes: &'static str,
        value: fn() -> String,
        doc: &'static str,
    ) -> Self {
        Self::new(name, takes, Fallback::Of(value), doc)
    }

    const fn new(
        name: &'static str,
        takes: &'static str,
        fallback: Fallback,
        doc: &'static str,
    ) -> Self {
        Self { name, takes, doc, fallback, words: &[], tables: &[], only: None }
    }

    /// Gives it words.
    pub const fn words(mut self, words: &'static [Word]) -> Self {
        self.words = words;
        self
    }

    /// Gives it inline tables.
    pub const fn tables(mut self, tables: &'static [&'static Section]) -> Self {
        self.tables = tables;
        self
    }

    /// Limits it to some kinds.
    pub const fn only(mut self, kinds: &'static [&'static str], why: &'static str) -> Self {
        self.only = Some(Only { kinds, why });
        self
    }

    /// What the key takes, in words; a key of words alone lists them, one of a table alone its keys.
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

    /// Its words as they are written in the file.
    pub fn quoted_words(&self) -> Vec<String> {
        self.words.iter().map(|word| format!("\"{}\"", word.name)).collect()
    }

    /// Whether the key has a meaning for a kind.
    pub fn means_something_for(&self, kind: &str) -> bool {
        self.only.is_none_or(|only| only.kinds.contains(&kind))
    }
}
