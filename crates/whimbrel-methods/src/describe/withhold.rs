//! Rules of a smallest group `g`: every count that leaves a client is zero or at least `g`.
//!
//! - A client with fewer than `g` rows sends no figures.
//! - A column with 1 to `g - 1` missing cells counts as one with `g`: further cells, the last ones, are set
//!   aside, since numbers of rows and of observed cells would give the missing ones by subtraction.
//! - A column with fewer than `g` observed cells counts as empty, and so does a column of numbers in which
//!   1 to `g - 1` cells differ from the most frequent value: its mean would count them.
//! - Neighbouring bins and categories are merged ([`merged`]): an edge is given up if a side has 1 to
//!   `g - 1` rows, whichever. At least `g - 1` values remain possible for each merged count. Bins of numbers
//!   hold `g` rows each, the outermost ones included: empty bins would tell the smallest and the largest value.
//! - Mean and deviation of numbers are [rounded] in proportion to the mean's standard error.
//!
//! The last point needs `g` of at least 3: of two merged counts that sum to 2, each is 1.

use std::collections::BTreeSet;

/// Bits of a number below its exponent.
const MANTISSA: u32 = f64::MANTISSA_DIGITS - 1;

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

/// Mean and sum of squares of `count` values, the mean and the deviation rounded to a multiple of the largest
/// power of two below a quarter of the mean's standard error: `2 log2(4 sqrt(count))` bits and the scale.
pub fn rounded(count: f64, [mean, squares]: [f64; 2]) -> [f64; 2] {
    let deviation = (squares / (count - 1.0)).sqrt();
    let quarter = 0.25 * deviation / count.sqrt();
    if !quarter.is_normal() {
        return [mean, squares];
    }
    let unit = f64::from_bits(quarter.to_bits() >> MANTISSA << MANTISSA);
    let [mean, deviation] = [mean, deviation].map(|x| (x / unit).round() * unit);
    [mean, (count - 1.0) * deviation * deviation]
}

/// Merges neighbouring bins, each with `P` counts, until every count is zero or at least `group`: the
/// ends of the merged bins and their counts. Edges are tried in the order of a ruler (the middle, the
/// quarters, the eighths), so that clients tend to keep the same ones. If they are `filled`, each merged bin
/// holds a group. `None` if the totals are too small.
pub fn merged<const P: usize>(
    bins: &[[u64; P]],
    group: u64,
    filled: bool,
) -> Option<Vec<(usize, [u64; P])>> {
    let mut sums = vec![[0; P]];
    for bin in bins {
        let last = sums[sums.len() - 1];
        sums.push(std::array::from_fn(|part| last[part] + bin[part]));
    }
    let between = |from: usize, to: usize| -> [u64; P] {
        std::array::from_fn(|part| sums[to][part] - sums[from][part])
    };
    let needed = if filled && group > 1 { group } else { 0 };
    let fits = |from: usize, to: usize| {
        let counts = between(from, to);
        counts.iter().sum::<u64>() >= needed && counts.iter().all(|n| is_safe(*n, group))
    };
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

    /// Every table of four categories with at most 16 rows: the rule and the published counts
    /// leave as many values possible as promised.
    #[test]
    fn no_small_category_follows_from_the_published_ones() {
        for group in 3..=5_u64 {
            let mut possible = BTreeMap::<Vec<(usize, [u64; 1])>, Vec<_>>::new();
            let all =
                (0..17_u64.pow(4)).map(|n| [n % 17, n / 17 % 17, n / 289 % 17, n / 4913 % 17]);
            for counts in all.filter(|counts| counts.iter().sum::<u64>() <= 16) {
                let message = merged(&counts.map(|n| [n]), group, false).unwrap_or_default();
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
            let found = merged(&bins, group, false).unwrap();
            assert!(found.iter().all(|(_, n)| n.iter().all(|n| is_safe(*n, group))));
            let total = |part: usize| found.iter().map(|(_, n)| n[part]).sum::<u64>();
            assert_eq!(
                [total(0), total(1)],
                [0, 1].map(|p| bins.iter().map(|n| n[p]).sum::<u64>())
            );
            assert!(found.iter().any(|(end, _)| *end == 32), "{found:?}");
            assert_eq!(found.last().unwrap().0, 64);
        }
        assert_eq!(merged(&bins, 1, true).unwrap().len(), 64);
        assert_eq!(merged(&[[3], [1]], 5, false), None);
        // Few rows on one side do not hold back the edges of the other.
        assert_eq!(merged(&[[9], [9], [1], [2]], 5, false).unwrap(), [(1, [9]), (4, [12])]);
    }

    /// Bins of numbers are the same for all values within the outermost groups.
    #[test]
    fn bins_of_numbers_tell_neither_end_nor_gaps() {
        let ages = |ends: [usize; 2]| {
            let mut bins = vec![[0]; 120];
            (20..80).for_each(|age| bins[age] = [2]);
            ends.into_iter().for_each(|end| bins[end] = [1]);
            merged(&bins, 5, true).unwrap()
        };
        let found = ages([1, 119]);
        assert!(found.iter().all(|(_, n)| n[0] >= 5) && found.len() > 10, "{found:?}");
        for ends in [[18, 81], [7, 100], [19, 119]] {
            assert_eq!(ages(ends), found);
        }
    }

    /// Nearby columns have the same figures: these tell a few bits, and sums of whole numbers far more.
    #[test]
    fn figures_of_numbers_have_the_digits_of_their_error() {
        for count in [20.0, 245.0, 1e6] {
            let squares = 17.0 * 17.0 * (count - 1.0);
            let error = 17.0 / f64::sqrt(count);
            let found = |mean: f64| rounded(count, [mean, squares]);
            let means: BTreeSet<u64> = (0..1000)
                .map(|i| found(55.0 + error * f64::from(i) / 1000.0)[0].to_bits())
                .collect();
            assert!((4..=9).contains(&means.len()), "{count}: {}", means.len());
            for shift in [0.0, 0.2, 0.4] {
                let [mean, rounded] = found(55.0 + shift);
                assert!((mean - 55.0 - shift).abs() <= error / 8.0);
                assert!(((rounded / (count - 1.0)).sqrt() - 17.0).abs() <= error / 8.0);
            }
        }
        assert_eq!(rounded(30.0, [2.7, 0.0]), [2.7, 0.0]);
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
