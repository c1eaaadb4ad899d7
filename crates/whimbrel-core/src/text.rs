//! Text of a peer, made safe for display.

/// The maximum of characters of a peer's text.
const CHARS_MAX: usize = 1000;

/// A peer's text of bounded length. Characters that control a terminal, or that hide or reorder
/// text, are escaped.
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

/// Whether a character is shown unchanged: control characters (line breaks included), characters of
/// zero width and those that change the direction of writing are not.
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
    fn a_peers_words_do_nothing_to_a_terminal() {
        assert_eq!(printable("too few rows\u{1b}[2J\n"), "too few rows\\u{1b}[2J\\n");
        assert_eq!(printable("a\u{202e}b\u{200b}c\u{9b}8m"), "a\\u{202e}b\\u{200b}c\\u{9b}8m");
        assert_eq!(printable("Zoë, 東京"), "Zoë, 東京");
        assert_eq!(printable(&"é".repeat(5000)).chars().count(), CHARS_MAX);
    }
}
