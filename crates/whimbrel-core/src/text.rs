//! Display of a peer's text.

/// Maximal length of a displayed text.
const CHARS_MAX: usize = 1000;

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terminal_controls_are_escaped() {
        assert_eq!(printable("too few rows\u{1b}[2J\n"), "too few rows\\u{1b}[2J\\n");
        assert_eq!(printable("a\u{202e}b\u{200b}c\u{9b}8m"), "a\\u{202e}b\\u{200b}c\\u{9b}8m");
        assert_eq!(printable("Zoë, 東京"), "Zoë, 東京");
        assert_eq!(printable(&"é".repeat(5000)).chars().count(), CHARS_MAX);
    }
}
