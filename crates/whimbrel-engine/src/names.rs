//! Client names as names of folders and files: `clients/<folder_name(name)>/`.

use crate::client::sha256;
use whimbrel_core::wire::hex;

/// The longest readable part.
const LENGTH_MAX: usize = 60;

/// A distinct name for each client name that every file system accepts: a plain name is unchanged;
/// any other becomes its readable part and a hash. No two results differ by case alone.
pub fn folder_name(name: &str) -> String {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '_';
    if !name.is_empty() && name.len() <= LENGTH_MAX && name.chars().all(plain) && !reserved(name) {
        return name.into();
    }
    let lower = name.chars().flat_map(char::to_lowercase);
    let readable: String = lower.map(|c| if plain(c) { c } else { '_' }).take(LENGTH_MAX).collect();
    let hash = hex(&sha256(name.as_bytes())[..16]);
    format!("{readable}~{hash}")
}

/// Names that some systems reserve for devices.
fn reserved(name: &str) -> bool {
    let numbered = |stem| name.strip_prefix(stem).is_some_and(|n| n.len() == 1);
    matches!(name, "con" | "prn" | "aux" | "nul") || numbered("com") || numbered("lpt")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::path::{Component, Path};

    #[test]
    fn plain_names_stay_and_hostile_ones_stay_inside_their_folder() {
        assert_eq!(folder_name("ward-7_b"), "ward-7_b");
        assert!(folder_name("Ward 7").starts_with("ward_7~"), "{}", folder_name("Ward 7"));
        let long = "x".repeat(100_000);
        let hostile = [
            "",
            ".",
            "..",
            "../",
            "../../etc/passwd",
            "/etc/passwd",
            "a/b",
            "a\\b",
            "c:\\x",
            "con",
            "com1",
            "nul",
            "~",
            "a~b",
            "a\0b",
            "a\nb",
            "-",
            "%2e%2e",
            "é",
            "e\u{301}",
            "ß",
            "SS",
            "İ",
            "i\u{307}",
            "ward",
            "Ward",
            "WARD",
            "ward ",
            "ward.",
            "𝓌ard",
            "\u{202e}drow",
            &long,
            &long[1..],
        ];
        let mut seen = BTreeSet::new();
        for name in hostile {
            let folder = folder_name(name);
            assert!(seen.insert(folder.to_lowercase()), "{name:?} collides as {folder:?}");
            assert!(folder.len() <= 100 && folder.is_ascii(), "{folder:?}");
            let mut parts = Path::new(&folder).components();
            assert!(matches!(parts.next(), Some(Component::Normal(_))), "{folder:?}");
            assert!(parts.next().is_none() && !reserved(&folder), "{folder:?}");
            assert!(!folder.ends_with(['.', ' ']) && !folder.contains(['/', '\\', ':', '\0']));
        }
    }
}
