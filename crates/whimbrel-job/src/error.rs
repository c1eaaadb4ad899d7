//! Faults of a job file: message, place and hint.

use std::fmt;
use std::ops::Range;

/// Errors of one file that are shown; the others are counted.
pub const SHOWN_MAX: usize = 10;

/// Longer lines are cut to a window around the fault.
const EXCERPT_CHARS_MAX: usize = 100;
const EXCERPT_CHARS_BEFORE: usize = 40;

/// One fault of a job file.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{}", render(self))]
pub struct Error {
    /// Name of the job file, as given.
    pub file: String,
    /// `None` for a missing key or table that belongs to no line.
    pub place: Option<Place>,
    /// Path of the key: `method.step`.
    pub key: String,
    pub message: String,
    pub hint: Option<String>,
}

/// A stretch of one line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// From 1.
    pub line: usize,
    /// In characters, from 1.
    pub column: usize,
    /// Number of marked characters, at least 1.
    pub width: usize,
    /// The whole line.
    pub text: String,
}

/// All faults of one job file, in the order of its lines; those of whole tables are last.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{}", render_all(self))]
pub struct Errors {
    /// Never empty.
    pub errors: Vec<Error>,
}

impl Place {
    /// The place of a byte range; of several lines only the first is marked.
    pub fn locate(text: &str, span: Range<usize>) -> Self {
        let start = floor_char(text, span.start);
        let line_start = text[..start].rfind('\n').map_or(0, |at| at + 1);
        let line_end = text[start..].find('\n').map_or(text.len(), |at| start + at);
        let end = floor_char(text, span.end).clamp(start, line_end);
        Self {
            line: text[..start].matches('\n').count() + 1,
            column: text[line_start..start].chars().count() + 1,
            width: text[start..end].trim_end().chars().count().max(1),
            text: covered(text, line_start..line_end).trim_end().to_owned(),
        }
    }
}

/// A line with stars over its part of a string of several lines: a password in it may be on another
/// line than its URL.
fn covered(text: &str, line: Range<usize>) -> String {
    let (mut hidden, mut from) = (Vec::new(), 0);
    let opening = |from: usize| {
        let places =
            ["\"\"\"", "'''"].map(|quotes| Some((from + text[from..].find(quotes)?, quotes)));
        places.into_iter().flatten().min()
    };
    while let Some((begin, quotes)) = opening(from) {
        let inside = begin + quotes.len();
        let end = text[inside..].find(quotes).map_or(text.len(), |length| inside + length);
        hidden.extend(text[inside..end].contains('\n').then_some(inside..end));
        from = text.len().min(end + quotes.len());
    }
    let is_hidden = |at: usize| hidden.iter().any(|part| part.contains(&(line.start + at)));
    let characters = text[line.clone()].char_indices();
    characters.map(|(at, c)| if is_hidden(at) { '*' } else { c }).collect()
}

fn floor_char(text: &str, at: usize) -> usize {
    let mut at = at.min(text.len());
    while !text.is_char_boundary(at) {
        at -= 1;
    }
    at
}

fn render(error: &Error) -> String {
    let place = render_place(&error.file, error.place.as_ref());
    let mut out = format!("error: {}\n{place}", error.message);
    if let Some(hint) = &error.hint {
        out += &format!("\nhint: {hint}");
    }
    out
}

/// A place and its line, as messages show them.
pub(crate) fn render_place(file: &str, place: Option<&Place>) -> String {
    let mut out = format!("  --> {file}");
    if let Some(place) = place {
        let (excerpt, column) = excerpt(place);
        let number = place.line.to_string();
        let gutter = " ".repeat(number.len());
        let marked = place.width.min(excerpt.chars().count().saturating_sub(column)).max(1);
        out += &format!(":{}:{}\n", place.line, place.column);
        out += &format!("{gutter} |\n{number} | {excerpt}\n");
        out += &format!("{gutter} | {}{}", " ".repeat(column), "^".repeat(marked));
    }
    out
}

/// The line cut to one terminal row, and the column of the fault in it, from 0.
fn excerpt(place: &Place) -> (String, usize) {
    let clean: Vec<char> = masked(&place.text).chars().collect();
    let column = place.column - 1;
    if clean.len() <= EXCERPT_CHARS_MAX {
        return (clean.iter().collect(), column);
    }
    let from = column.saturating_sub(EXCERPT_CHARS_BEFORE).min(clean.len());
    let to = (from + EXCERPT_CHARS_MAX).min(clean.len());
    let (head, tail) =
        (if from > 0 { "..." } else { "" }, if to < clean.len() { "..." } else { "" });
    let window: String = clean[from..to].iter().collect();
    (format!("{head}{window}{tail}"), column - from + head.len())
}

/// A line as messages show it, with stars over all that may be a user and a password: between the first colon with its
/// slashes and the last @, and after `?` or `password` if these begin an option with a password.
pub(crate) fn masked(line: &str) -> String {
    let mut shown: Vec<char> = line.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    let mut cover = |range: Range<usize>| {
        for c in shown.get_mut(range).into_iter().flatten() {
            *c = '*';
        }
    };
    let chars: Vec<char> = line.chars().collect();
    if let Some(end) = chars.iter().rposition(|c| *c == '@')
        && let Some(colon) = chars[..end].iter().position(|c| *c == ':')
    {
        let slashes = chars[colon + 1..end].iter().take_while(|c| **c == '/').count();
        cover(colon + 1 + slashes..end);
    }
    let lower = line.to_ascii_lowercase();
    let option = lower.find("password").map(|at| at + "password".len());
    // Escapes could spell the word.
    let escaped = || lower.find('?').filter(|at| lower[*at..].contains('%')).map(|at| at + 1);
    if let Some(from) = option.or_else(escaped) {
        cover(line[..from].chars().count()..chars.len());
    }
    shown.into_iter().collect()
}

fn render_all(all: &Errors) -> String {
    let shown: Vec<String> = all.errors.iter().take(SHOWN_MAX).map(Error::to_string).collect();
    let mut out = shown.join("\n\n");
    if all.errors.len() > SHOWN_MAX {
        let rest = all.errors.len() - SHOWN_MAX;
        out += &format!("\n\nand {rest} more error{}", if rest == 1 { "" } else { "s" });
    }
    out
}

/// `a, b or c`.
pub fn one_of<T: fmt::Display>(items: &[T]) -> String {
    match items {
        [] => String::new(),
        [only] => only.to_string(),
        [head @ .., last] => {
            let head: Vec<String> = head.iter().map(T::to_string).collect();
            format!("{} or {last}", head.join(", "))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_counted_in_characters_and_stays_on_its_line() {
        let text = "a = 1\nπλ = [1,\n2]\n";
        let start = text.find('[').unwrap();
        let place = Place::locate(text, start..text.len());
        assert_eq!((place.line, place.column, place.width), (2, 6, 3));
        assert_eq!(place.text, "πλ = [1,");
        let end = Place::locate(text, text.len()..text.len());
        assert_eq!((end.line, end.column, end.width), (4, 1, 1));
    }

    #[test]
    fn excerpts_hide_credentials() {
        let at_h = "**********@h/d";
        for (line, shown) in [
            ("url = \"postgres://ada:s3cret@h/d\"", format!("url = \"postgres://{at_h}\"")),
            ("url = \"postgres://ada:s3cret@h/d", format!("url = \"postgres://{at_h}")),
            ("url = \"postgres:/ada:s3cret@h/d\"", format!("url = \"postgres:/{at_h}\"")),
            ("url = \"ada:s3cret@h\"", "url = \"ada:******@h\"".into()),
            ("url = 'pg://ada:/s3@c:ret@h'", "url = 'pg://*************@h'".into()),
            ("d = { s = \"sql\", u = \"x://a:s3cret@h\" }", {
                "d = { s = \"sql\", u = \"x://********@h\" }".into()
            }),
            ("url = \"pg://h/d?password=s3cret\"", "url = \"pg://h/d?password********".into()),
            ("url = \"pg://h/d?pass%77ord=s3\"", "url = \"pg://h/d?**************".into()),
            ("password = \"s3cret\"", "password***********".into()),
            ("mail = \"ada@h\" # a: b", "mail = \"ada@h\" # a: b".into()),
            ("path = \"C:/rows?.csv\"", "path = \"C:/rows?.csv\"".into()),
        ] {
            assert_eq!(masked(line), shown);
        }
        let text = "a = 1\nurl = '''pg://ada:s3cret\ns3cret@h''' x\n";
        let line = |word: &str| Place::locate(text, text.find(word).unwrap()..text.len()).text;
        assert_eq!(line("pg"), "url = '''***************");
        assert_eq!(line("x"), "********''' x");
        assert_eq!(line("a ="), "a = 1");
    }

    #[test]
    fn a_long_line_is_cut_around_the_fault() {
        let text = format!("{} x {}", "1".repeat(500), "2".repeat(500));
        let error = Error {
            file: "job.toml".into(),
            place: Some(Place::locate(&text, 501..502)),
            key: String::new(),
            message: "no".into(),
            hint: None,
        };
        let shown = error.to_string();
        let rows: Vec<&str> = shown.lines().collect();
        assert!(rows.iter().all(|row| row.chars().count() < 120), "{shown}");
        assert_eq!(rows[3].find('x'), rows[4].find('^'), "{shown}");
    }
}
