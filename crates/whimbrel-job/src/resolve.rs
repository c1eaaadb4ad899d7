//! The resolved job: every default written out, in the order of the definitions.

use crate::key::{Key, Section};
use crate::spec::Job;

impl Job {
    /// The job as a file with every default written out; it parses back to an equal job.
    ///
    /// ```
    /// let text = "[data]\nsource = \"mixture\"\n[model]\nkind = \"gmm\"\ncomponents = 2\n\
    ///             [method]\nkind = \"fedem\"\nrounds = 10\n";
    /// let job = whimbrel_job::Job::parse(text, "job.toml").unwrap();
    /// assert_eq!(whimbrel_job::Job::parse(&job.to_toml(), "other.toml").unwrap(), job);
    /// ```
    pub fn to_toml(&self) -> String {
        let mut out = Writer::default();
        self.write(&mut out);
        out.text
    }
}

/// Writes tables and keys.
#[derive(Default)]
pub(crate) struct Writer {
    text: String,
}

impl Writer {
    pub fn table(&mut self, section: &Section) {
        self.text += &format!("\n[{}]\n", section.name);
    }

    pub fn put(&mut self, key: &Key, value: impl AsRef<str>) {
        self.text += &format!("{} = {}\n", key.name, value.as_ref());
    }
}

/// A number that reads back to the same bits.
pub(crate) fn number(x: f64) -> String {
    format!("{x:?}")
}

/// A quoted string, valid as a value and as a key.
pub(crate) fn text(raw: &str) -> String {
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

pub(crate) fn list(items: impl IntoIterator<Item = String>) -> String {
    format!("[{}]", items.into_iter().collect::<Vec<_>>().join(", "))
}

/// An inline table.
pub(crate) fn inline<'a>(entries: impl IntoIterator<Item = (&'a str, String)>) -> String {
    let entries: Vec<String> =
        entries.into_iter().map(|(name, value)| format!("{name} = {value}")).collect();
    if entries.is_empty() { "{}".to_owned() } else { format!("{{ {} }}", entries.join(", ")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_and_numbers_read_back() {
        for raw in ["plain", "a \"b\" \\ c", "tab\tline\nbell\u{7}\u{85}", "πλ", ""] {
            let value: toml::Table = format!("x = {}", text(raw)).parse().unwrap();
            assert_eq!(value["x"].as_str(), Some(raw));
        }
        for x in [0.1, 1e-10, 1e300, -0.0, 5e-324, 1.0, 123456789.125] {
            let value: toml::Table = format!("x = {}", number(x)).parse().unwrap();
            assert_eq!(value["x"].as_float().map(f64::to_bits), Some(x.to_bits()));
        }
    }
}
