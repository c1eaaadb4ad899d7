//! Spelling suggestions.

/// The candidate nearest to `written`, at most one edit away per three letters. An edit inserts, deletes,
/// replaces or transposes letters.
pub fn nearest<'a>(
    written: &str,
    candidates: impl IntoIterator<Item = &'a str>,
) -> Option<&'a str> {
    let written: String = written.chars().flat_map(char::to_lowercase).take(64).collect();
    candidates
        .into_iter()
        .map(|candidate| (strsim::osa_distance(&written, candidate), candidate))
        .filter(|(edits, candidate)| {
            let letters = candidate.chars().count();
            *edits <= (letters.max(written.chars().count()) / 3).max(1) && *edits < letters
        })
        .min_by_key(|(edits, _)| *edits)
        .map(|(_, candidate)| candidate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suggests_slips_and_nothing_else() {
        let methods = ["em", "dem", "fedem"];
        assert_eq!(nearest("fedme", methods), Some("fedem"));
        assert_eq!(nearest("FedEM", methods), Some("fedem"));
        assert_eq!(nearest("adam", methods), None);
        assert_eq!(nearest("x", methods), None);
        assert_eq!(nearest("", methods), None);
    }
}
