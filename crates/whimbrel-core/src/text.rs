//! Display of a peer's text, and names that can be displayed.

/// Maximal length of a displayed text.
const CHARS_MAX: usize = 1000;
/// Maximal length of a client's name, which appears in tables, logs and names of folders.
pub const NAME_BYTES_MAX: usize = 200;

/// A peer's text, truncated, with control, invisible and bidirectional characters escaped.
pub fn printable(words: &str) -> String {
    let mut shown = String::new();
    for c in words.chars().take(CHARS_MAX) {
        if is_shown(c) {
            shown.push(c);
        } else {
            shown.extend(c.escape_default());
        }
    }
    shown
}

/// Whether a character is displayed as it is: false for control characters (line ends included),
/// characters without width and those that change the writing direction.
pub fn is_shown(c: char) -> bool {
    let hidden = matches!(c,
        '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}');
    !c.is_control() && !hidden
}

/// A count with its noun: `1 row`, `2 rows`.
pub fn counted(n: usize, noun: &str) -> String {
    format!("{n} {noun}{}", if n == 1 { "" } else { "s" })
}

/// Whether a text can be the name of a client or relay.
pub fn is_name(text: &str) -> bool {
    !text.is_empty() && text.len() <= NAME_BYTES_MAX && text.chars().all(is_shown)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_displayed_as_they_are() {
        let long = "n".repeat(NAME_BYTES_MAX);
        assert!(is_name("ward 7") && is_name("Zoë") && is_name(&long));
        for bad in ["", "a\nb", "a\u{200b}b", "\u{202e}a", &format!("{long}n")] {
            assert!(!is_name(bad), "{bad:?}");
        }
    }

    #[test]
    fn terminal_controls_are_escaped() {
        assert_eq!(printable("too few rows\u{1b}[2J\n"), "too few rows\\u{1b}[2J\\n");
        assert_eq!(printable("a\u{202e}b\u{200b}c\u{9b}8m"), "a\\u{202e}b\\u{200b}c\\u{9b}8m");
        assert_eq!(printable("Zoë, 東京"), "Zoë, 東京");
        assert_eq!(printable(&"é".repeat(5000)).chars().count(), CHARS_MAX);
    }
}
