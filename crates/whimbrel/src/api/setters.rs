//! Messages in terms of setters in place of keys of the job file.

use whimbrel_job::writer;

/// Replaces each `key = value in [table]` by the setter that does the same.
pub(super) fn of_keys(text: &str) -> String {
    let (mut done, mut rest) = (String::new(), text);
    while let Some((before, after)) = rest.split_once(" = ") {
        let ends = after.match_indices([' ', '`', ',', ';']).map(|(at, _)| at);
        let end = ends.chain([after.len()]).find(|at| writer::is_value(&after[..*at]));
        let (value, tail) = after.split_at(end.unwrap_or(0));
        let start = before.rfind([' ', '(', '`']).map_or(0, |at| at + 1);
        let place = tail.split_once(" in [").and_then(|(words, after)| {
            let (table, after) = after.split_once(']')?;
            (end.is_some() && !words.contains(['=', ';'])).then_some((words, table, after))
        });
        if let Some((words, table, after)) = place {
            done += before[..start].trim_end_matches('`');
            done += &setter(table, before[start..].trim_matches('"'), value);
            done += words.trim_start_matches('`');
            rest = after;
        } else {
            done += before;
            done += " = ";
            done += value;
            rest = tail;
        }
    }
    (done + rest).replace("write `", "use `")
}

fn setter(table: &str, key: &str, value: &str) -> String {
    let inner = value.strip_prefix("{ ").and_then(|value| value.strip_suffix(" }"));
    let entries: Option<Vec<(&str, &str)>> =
        inner.and_then(|inner| inner.split(", ").map(|entry| entry.split_once(" = ")).collect());
    match (table, key, entries.as_deref()) {
        ("data", "standardize", _) if value == "true" => "`.standardize()`".into(),
        ("method", "kind", _) => format!("`.method({value})`"),
        ("schema", "target", _) => "`Rows::classes`".into(),
        (_, "codec", Some([("kind", kind), settings @ ..])) => {
            let settings: Vec<&str> = settings.iter().map(|(_, value)| *value).collect();
            let (kind, settings) = (kind.trim_matches('"'), settings.join(", "));
            format!("`.{table}(Codec::{kind}({settings}))`")
        }
        (_, _, Some([(below, value)])) => format!("`.set(\"{table}.{key}.{below}\", {value})`"),
        _ if value.starts_with(['[', '{']) => {
            format!("`.set(\"{table}.{key}\", Setting::toml({}))`", writer::text(value))
        }
        _ => format!("`.set(\"{table}.{key}\", {value})`"),
    }
}
