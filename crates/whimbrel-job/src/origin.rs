//! The text of a job file, kept so that later errors can quote its lines.

use crate::error::{Place, render_place};
use std::ops::Range;
use toml::de::{DeTable, DeValue};

/// The text and file name of a job. All origins compare equal, so that the equality of jobs ignores them.
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
    pub fn new(file: &str, text: &str) -> Self {
        Self { file: file.into(), text: text.into() }
    }

    /// The line of a key such as `data.client`, else of its innermost table in the file, as messages show
    /// it.
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

    /// The line of the first string value of a table that satisfies `is`. Values of `source` and `kind`
    /// are words of the program.
    pub fn line_where(&self, is: impl Fn(&str) -> bool) -> Option<String> {
        let root = DeTable::parse(&self.text).ok()?;
        let mut found = Vec::new();
        for item in root.get_ref().values().filter(|item| item.get_ref().is_table()) {
            texts(item.get_ref(), item.span(), &is, &mut found);
        }
        found.sort_by_key(|span| span.start);
        self.shown(found.into_iter().next()?)
    }

    fn shown(&self, span: Range<usize>) -> Option<String> {
        Some(render_place(&self.file, Some(&Place::locate(&self.text, span))))
    }
}

/// Keys whose values name neither columns nor files.
const WORDS: [&str; 2] = ["source", "kind"];

/// Collects the places of string values that satisfy `is`.
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
            let named = table.iter().filter(|(key, _)| !WORDS.contains(&&**key.get_ref()));
            named.for_each(|(_, item)| texts(item.get_ref(), item.span(), is, found));
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
        let ward = "name = \"csv\"\n[data]\nsource = \"csv\"\nclient = \"csv\"\n";
        let client = Origin::new("job.toml", ward).line_where(|text| text == "csv").unwrap();
        assert!(client.starts_with("  --> job.toml:4:10\n"), "{client}");
        assert_eq!(Origin::default().line_of("data.path"), None);
    }
}
