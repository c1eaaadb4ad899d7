//! Rust source with comments and literals blanked, so that a search finds code only.

/// The same text, line for line and column for column (in characters), with all comments, strings and
/// character literals, including their marks, replaced by spaces.
pub fn code_only(text: &str) -> String {
    let source: Vec<char> = text.chars().collect();
    let mut out = String::with_capacity(text.len());
    let mut at = 0;
    while at < source.len() {
        match literal_or_comment(&source, at) {
            Some(end) => {
                out.extend(source[at..end].iter().map(|&c| if c == '\n' { '\n' } else { ' ' }));
                at = end;
            }
            None => {
                out.push(source[at]);
                at += 1;
            }
        }
    }
    out
}

/// The end of the literal or comment that starts at `at`; `None` if none starts there.
fn literal_or_comment(source: &[char], at: usize) -> Option<usize> {
    let next = source.get(at + 1).copied();
    match source[at] {
        '/' if next == Some('/') => Some(end_of_line(source, at)),
        '/' if next == Some('*') => Some(end_of_block(source, at)),
        '"' => Some(end_of_string(source, at + 1)),
        'r' if !follows_word(source, at) => raw_string(source, at),
        '\'' => character(source, at),
        _ => None,
    }
}

fn end_of_line(source: &[char], at: usize) -> usize {
    source[at..].iter().position(|&c| c == '\n').map_or(source.len(), |n| at + n)
}

/// Block comments nest.
fn end_of_block(source: &[char], at: usize) -> usize {
    let (mut depth, mut i) = (0, at);
    while i + 1 < source.len() {
        match (source[i], source[i + 1]) {
            ('/', '*') => (depth, i) = (depth + 1, i + 2),
            ('*', '/') => (depth, i) = (depth - 1, i + 2),
            _ => i += 1,
        }
        if depth == 0 {
            return i;
        }
    }
    source.len()
}

fn end_of_string(source: &[char], mut i: usize) -> usize {
    while i < source.len() {
        match source[i] {
            '\\' => i += 2,
            '"' => return i + 1,
            _ => i += 1,
        }
    }
    source.len()
}

/// `r"..."` and `r#"..."#`; a `b` or `c` before the `r` stays as code, which is harmless.
fn raw_string(source: &[char], at: usize) -> Option<usize> {
    let hashes = source[at + 1..].iter().take_while(|&&c| c == '#').count();
    let open = at + 1 + hashes;
    if source.get(open) != Some(&'"') {
        return None;
    }
    let closing = |&i: &usize| {
        source[i] == '"'
            && source[i + 1..].iter().take(hashes).filter(|&&c| c == '#').count() == hashes
    };
    Some((open + 1..source.len()).find(closing).map_or(source.len(), |i| i + 1 + hashes))
}

/// A character literal, as opposed to a lifetime or a label.
fn character(source: &[char], at: usize) -> Option<usize> {
    match source.get(at + 1)? {
        '\\' => source[at + 3..].iter().position(|&c| c == '\'').map(|n| at + 3 + n + 1),
        _ => (source.get(at + 2) == Some(&'\'')).then_some(at + 3),
    }
}

/// Whether the character before `at` belongs to the same word (a byte-string prefix does not).
fn follows_word(source: &[char], at: usize) -> bool {
    let word = |c: char| c.is_alphanumeric() || c == '_';
    match at.checked_sub(1).map(|i| source[i]) {
        Some('b' | 'c') => at >= 2 && word(source[at - 2]),
        Some(c) => word(c),
        None => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(text: &str) -> String {
        let code = code_only(text);
        assert_eq!(code.chars().count(), text.chars().count());
        assert_eq!(code.lines().count(), text.lines().count());
        code.split_whitespace().collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn comments_go_and_may_nest() {
        assert_eq!(kept("a // b\nc /* d /* e */ f\n */ g"), "a c g");
        assert_eq!(kept("a /// \"\nb"), "a b");
    }

    #[test]
    fn strings_go_with_their_escapes() {
        assert_eq!(kept(r#"a("x \" unsafe", "\\") b"#), "a( , ) b");
        assert_eq!(kept("a r#\"x \" y\"# b br\"z\\\" c"), "a b b c");
        assert_eq!(kept("for \"x\" é"), "for é");
    }

    #[test]
    fn characters_go_and_lifetimes_stay() {
        assert_eq!(kept(r"'a' '\'' '\u{1F}' '\\' b"), "b");
        assert_eq!(
            kept("fn f<'a>(x: &'a str) -> &'a str { '\"'; x }"),
            "fn f<'a>(x: &'a str) -> &'a str { ; x }"
        );
    }

    #[test]
    fn an_open_literal_ends_with_the_file() {
        assert_eq!(kept("a \"b"), "a");
        assert_eq!(kept("a /* b"), "a");
        assert_eq!(kept("a r#\"b\""), "a");
    }
}
