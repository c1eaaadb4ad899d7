//! The file that a job was read from, to say later which of its lines asked for something.

use crate::error::{Place, render_place};
use std::ops::Range;
use toml::de::{DeTable, DeValue};

/// The text of a job and the name of its file. Two jobs that ask for the same are equal wherever they
/// were read, so all origins are.
#[derive(Clone, Debug, Default)]
pub struct Origin {
    file: String,
    text: String,
}

impl PartialEq for Origin {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Origin {
    /// Of a text that was parsed.
    pub fn new(file: &str, text: &str) -> Self {
        Self { file: file.into(), text: text.into() }
    }

    /// The line of a key such as `data.client`, or of the innermost table of it that the file has, as
    /// messages show it.
    pub fn line_of(&self, key: &str) -> Option<String> {
        let root = DeTable::parse(&self.text).ok()?;
        let (mut table, mut span) = (Some(root.get_ref()), None);
        for name in key.split('.') {
            let Some(item) = table.and_then(|table| table.get(name)) else { break };
            span = Some(item.span());
            table = item.get_ref().as_table();
        }
        self.shown(span?)
    }

    /// The line of the first text of the file for which `is` holds.
    pub fn line_where(&self, is: impl Fn(&str) -> bool) -> Option<String> {
        let root = DeTable::parse(&self.text).ok()?;
        let mut found = Vec::new();
        for item in root.get_ref().values() {
            texts(item.get_ref(), item.span(), &is, &mut found);
        }
        found.sort_by_key(|span| span.start);
        self.shown(found.into_iter().next()?)
    }

    fn shown(&self, span: Range<usize>) -> Option<String> {
        Some(render_place(&self.file, Some(&Place::locate(&self.text, span))))
    }
}

/// Where in `value` there are such texts.
fn texts(
    value: &DeValue<'_>,
    span: Range<usize>,
    is: &impl Fn(&str) -> bool,
    found: &mut Vec<Range<usize>>,
) {
    match value {
        DeValue::String(text) if is(text) => found.push(span),
        DeValue::Array(items) => {
            items.iter().for_each(|item| texts(item.get_ref(), item.span(), is, found));
        }
        DeValue::Table(table) => {
            table.values().for_each(|item| texts(item.get_ref(), item.span(), is, found));
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str =
        "[data]\npath = \"rows.csv\"\ncolumns = [\"a\", \"z\"]\n[model]\nkind = \"gmm\"\n";

    #[test]
    fn keys_and_texts_have_lines() {
        let origin = Origin::new("job.toml", TEXT);
        let key = origin.line_of("data.path").unwrap();
        assert!(key.starts_with("  --> job.toml:2:8\n"), "{key}");
        let missing = origin.line_of("model.components").unwrap();
        assert!(missing.starts_with("  --> job.toml:4:1\n"), "the table's own line: {missing}");
        let text = origin.line_where(|text| text == "z").unwrap();
        assert!(text.starts_with("  --> job.toml:3:17\n"), "{text}");
        assert_eq!(origin.line_where(|text| text == "y"), None);
        assert_eq!(Origin::default().line_of("data.path"), None);
    }
}
