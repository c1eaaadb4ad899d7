//! Rules of a smallest group `g`: every count that leaves a client is zero or at least `g`.
//!
//! - A client with fewer than `g` rows sends no figures.
//! - A column with 1 to `g - 1` missing cells counts as one with `g`: further cells, the last ones, are set
//!   aside, since numbers of rows and of observed cells would give the missing ones by subtraction.
//! - A column with fewer than `g` observed cells counts as empty, and so does a column of numbers in which
//!   1 to `g - 1` cells differ from the most frequent value: its mean would count them.
//! - Neighbouring bins and categories are merged ([`merged`]): an edge is given up if a side has 1 to
//!   `g - 1` rows, whichever. At least `g - 1` values remain possible for each merged count.
//!
//! The last point needs `g` of at least 3: of two merged counts that sum to 2, each is 1.

use std::collections::BTreeSet;

/// Whether a count may leave.
fn is_safe(count: u64, group: u64) -> bool {
    count == 0 || count >= group
}

/// The number of items that count, of `observed` ones in `rows`.
pub fn counted(observed: usize, rows: usize, group: usize) -> usize {
    let missing = rows - observed;
    let left = if missing == 0 || missing >= group { observed } else { rows.saturating_sub(group) };
    if left < group { 0 } else { left }
}

/// Whether few cells differ from the most frequent value.
pub fn is_almost_constant(values: &[f64], group: usize) -> bool {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let most = sorted.chunk_by(|a, b| a == b).map(<[f64]>::len).max().unwrap_or(0);
    !is_safe((values.len() - most) as u64, group as u64)
}

/// Merges neighbouring bins, each with `P` counts, until every count is zero or at least `group`: the
/// ends of the merged bins and their counts. Edges are tried in the order of a ruler (the middle, the
/// quarters, the eighths), so that clients tend to keep the same ones. `None` if the totals are too small.
pub fn merged<const P: usize>(bins: &[[u64; P]], group: u64) -> Option<Vec<(usize, [u64; P])>> {
    let mut sums = vec![[0; P]];
    for bin in bins {
        let last = sums[sums.len() - 1];
        sums.push(std::array::from_fn(|part| last[part] + bin[part]));
    }
    let between = |from: usize, to: usize| -> [u64; P] {
        std::array::from_fn(|part| sums[to][part] - sums[from][part])
    };
    let fits = |from: usize, to: usize| between(from, to).iter().all(|n| is_safe(*n, group));
    if !fits(0, bins.len()) {
        return None;
    }
    let mut kept = BTreeSet::from([0, bins.len()]);
    let mut edges: Vec<usize> = (1..bins.len()).collect();
    edges.sort_by_key(|edge| std::cmp::Reverse(edge.trailing_zeros()));
    for edge in edges {
        let below = kept.range(..edge).next_back().copied().unwrap_or(0);
        let above = kept.range(edge..).next().copied().unwrap_or(bins.len());
        if fits(below, edge) && fits(edge, above) {
            kept.insert(edge);
        }
    }
    let ends: Vec<usize> = kept.into_iter().collect();
    Some(ends.windows(2).map(|pair| (pair[1], between(pair[0], pair[1]))).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    /// Every table of four categories with at most 16 rows: whoever knows the rule and the published
    /// counts is left with as many values as promised.
    #[test]
    fn no_small_category_follows_from_the_published_ones() {
        for group in 3..=5_u64 {
            let mut possible = BTreeMap::<Vec<(usize, [u64; 1])>, Vec<_>>::new();
            let all =
                (0..17_u64.pow(4)).map(|n| [n % 17, n / 17 % 17, n / 289 % 17, n / 4913 % 17]);
            for counts in all.filter(|counts| counts.iter().sum::<u64>() <= 16) {
                let message = merged(&counts.map(|n| [n]), group).unwrap_or_default();
                possible.entry(message).or_default().push(counts);
            }
            for (message, tables) in possible {
                assert!(message.iter().all(|(_, n)| is_safe(n[0], group)));
                for at in 0..4 {
                    let values: BTreeSet<u64> = tables.iter().map(|table| table[at]).collect();
                    let small = values.iter().any(|n| (1..group).contains(n));
                    let many = values.len() as u64 >= group - 1;
                    assert!(!small || many, "{message:?}: category {at} is {values:?}");
                }
            }
        }
    }

    #[test]
    fn merged_bins_hold_groups_and_keep_shared_edges() {
        let bins: Vec<[u64; 2]> = (0..64).map(|i| [i * i % 7, i % 3]).collect();
        for group in [1, 3, 5, 20] {
            let found = merged(&bins, group).unwrap();
            assert!(found.iter().all(|(_, n)| n.iter().all(|n| is_safe(*n, group))));
            let total = |part: usize| found.iter().map(|(_, n)| n[part]).sum::<u64>();
            assert_eq!(
                [total(0), total(1)],
                [0, 1].map(|p| bins.iter().map(|n| n[p]).sum::<u64>())
            );
            assert!(found.iter().any(|(end, _)| *end == 32), "{found:?}");
            assert_eq!(found.last().unwrap().0, 64);
        }
        assert_eq!(merged(&bins, 1).unwrap().len(), 64);
        assert_eq!(merged(&[[3], [1]], 5), None);
        // Few rows on one side do not hold back the edges of the other.
        assert_eq!(merged(&[[9], [9], [1], [2]], 5).unwrap(), [(1, [9]), (4, [12])]);
    }

    #[test]
    fn few_missing_cells_cannot_be_counted() {
        assert_eq!(
            [0, 1, 4, 5, 9].map(|missing| counted(50 - missing, 50, 5)),
            [50, 45, 45, 45, 41]
        );
        assert_eq!([4, 0].map(|observed| counted(observed, 50, 5)), [0, 0]);
        assert_eq!((counted(6, 7, 5), counted(6, 7, 1)), (0, 6));
        let mut values = vec![0.0; 40];
        assert!(!is_almost_constant(&values, 5));
        values[..3].fill(1.0);
        assert!(is_almost_constant(&values, 5) && !is_almost_constant(&values, 3));
    }
}
