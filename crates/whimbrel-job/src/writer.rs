//! Writes job files.

use crate::key::{JobKey, Section};
use toml::de::DeTable;

/// Writes tables and keys.
#[derive(Default)]
pub struct Writer {
    text: String,
    /// Only these keys are written; `None`: all.
    keys: Option<&'static [&'static JobKey]>,
    /// Keys restricted to other kinds are omitted.
    kind: Option<&'static str>,
    skipped: Vec<&'static str>,
}

impl Writer {
    pub fn finish(self) -> String {
        self.text
    }

    /// The text as an inline table.
    pub fn finish_inline(self) -> String {
        let entries = self.text.trim_end().replace('\n', ", ");
        if entries.is_empty() { "{}".to_owned() } else { format!("{{ {entries} }}") }
    }

    /// Begins a table.
    pub fn table(&mut self, section: &Section) {
        *self = Self { text: std::mem::take(&mut self.text), ..Self::default() };
        self.text += &format!("\n[{}]\n", section.name);
    }

    /// Restricts output to these keys, until the next table.
    pub fn only(&mut self, keys: &'static [&'static JobKey]) {
        self.keys = Some(keys);
    }

    /// Restricts output to keys of a kind, until the next table.
    pub fn only_for(&mut self, kind: &'static str) {
        self.kind = Some(kind);
    }

    /// Omits these keys, until the next table.
    pub fn skip(&mut self, keys: &[&JobKey]) {
        self.skipped.extend(keys.iter().map(|key| key.name));
    }

    /// Writes a key that the user names.
    pub fn put_named(&mut self, name: &str, value: &str) {
        self.text += &format!("{} = {value}\n", key(name));
    }

    /// Writes a key with its value as TOML.
    pub fn put(&mut self, key: &JobKey, value: impl AsRef<str>) {
        let taken = self.keys.is_none_or(|keys| keys.iter().any(|known| known.name == key.name))
            && self.kind.is_none_or(|kind| key.applies_to(kind))
            && !self.skipped.contains(&key.name);
        if taken {
            self.text += &format!("{} = {}\n", key.name, value.as_ref());
        }
    }
}

/// A number with enough digits to parse to the same bits.
pub fn number(x: f64) -> String {
    format!("{x:?}").to_lowercase()
}

/// A quoted string, valid as a value and as a key.
pub fn text(raw: &str) -> String {
    let mut out = String::from("\"");
    for c in raw.chars() {
        match c {
            '"' => out += "\\\"",
            '\\' => out += "\\\\",
            '\n' => out += "\\n",
            '\t' => out += "\\t",
            c if c.is_control() => out += &format!("\\u{:04X}", c as u32),
            c => out.push(c),
        }
    }
    out + "\""
}

/// Whether the text is a single TOML value.
pub fn is_value(text: &str) -> bool {
    DeTable::parse(&format!("x = {text}")).is_ok_and(|table| table.get_ref().len() == 1)
}

/// An array of TOML values.
pub fn list(items: impl IntoIterator<Item = String>) -> String {
    format!("[{}]", items.into_iter().collect::<Vec<_>>().join(", "))
}

/// A key, quoted if it needs it.
pub fn key(name: &str) -> String {
    let is_bare = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    let bare = !name.is_empty() && name.chars().all(is_bare);
    if bare { name.to_owned() } else { text(name) }
}

/// An inline table.
pub fn inline<'a>(entries: impl IntoIterator<Item = (&'a str, String)>) -> String {
    let entry = |(name, value): (&str, String)| format!("{} = {value}", key(name));
    let entries: Vec<String> = entries.into_iter().map(entry).collect();
    if entries.is_empty() { "{}".to_owned() } else { format!("{{ {} }}", entries.join(", ")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_whole_and_alone() {
        for text in ["1", "nan", "\"a\"", "[1,\n2]", "{ every = 10 }"] {
            assert!(is_value(text), "{text}");
        }
        for text in ["", "a", "{ every", "1\ny = 2", "1\n[z]", "\"a"] {
            assert!(!is_value(text), "{text}");
        }
    }

    #[test]
    fn strings_and_numbers_read_back() {
        for raw in ["plain", "a \"b\" \\ c", "tab\tline\nbell\u{7}\u{85}", "πλ", ""] {
            let value: toml::Table = format!("x = {}", text(raw)).parse().unwrap();
            assert_eq!(value["x"].as_str(), Some(raw));
        }
        for x in [0.1, 1e-10, 1e300, -0.0, 5e-324, 1.0, 123456789.125, f64::NAN, f64::NEG_INFINITY]
        {
            let value: toml::Table = format!("x = {}", number(x)).parse().unwrap();
            assert_eq!(value["x"].as_float().map(f64::to_bits), Some(x.to_bits()));
        }
    }
}
