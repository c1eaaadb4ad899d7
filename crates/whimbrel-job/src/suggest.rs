//! The nearest right spelling.

/// The candidate closest to what was written, if it is close enough to be a slip: one edit
/// for every three letters, where an edit inserts, drops, replaces or swaps neighbouring letters.
pub(crate) fn nearest<'a>(
    written: &str,
    candidates: impl IntoIterator<Item = &'a str>,
) -> Option<&'a str> {
    let written: Vec<char> = written.chars().flat_map(char::to_lowercase).take(64).collect();
    candidates
        .into_iter()
        .map(|candidate| (distance(&written, &candidate.chars().collect::<Vec<_>>()), candidate))
        .filter(|(edits, candidate)| {
            let letters = candidate.chars().count();
            *edits <= (letters.max(written.len()) / 3).max(1) && *edits < letters
        })
        .min_by_key(|(edits, _)| *edits)
        .map(|(_, candidate)| candidate)
}

/// Edits between two words (optimal string alignment).
fn distance(a: &[char], b: &[char]) -> usize {
    let mut before = vec![0; b.len() + 1];
    let mut last: Vec<usize> = (0..=b.len()).collect();
    for i in 1..=a.len() {
        let mut row = vec![i; b.len() + 1];
        for j in 1..=b.len() {
            let replaced = last[j - 1] + usize::from(a[i - 1] != b[j - 1]);
            row[j] = replaced.min(last[j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                row[j] = row[j].min(before[j - 2] + 1);
            }
        }
        before = std::mem::replace(&mut last, row);
    }
    last[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_insertions_drops_replacements_and_swaps() {
        let edits = |a: &str, b: &str| {
            distance(&a.chars().collect::<Vec<_>>(), &b.chars().collect::<Vec<_>>())
        };
        assert_eq!(edits("step", "step"), 0);
        assert_eq!(edits("stpe", "step"), 1);
        assert_eq!(edits("steps", "step"), 1);
        assert_eq!(edits("stp", "step"), 1);
        assert_eq!(edits("stop", "step"), 1);
        assert_eq!(edits("", "step"), 4);
        assert_eq!(edits("kitten", "sitting"), 3);
    }

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
