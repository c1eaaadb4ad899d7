//! Groups of neighbouring rows.

use whimbrel_core::Key;
use whimbrel_methods::microaggregation::Groups;

/// Groups have from `rows_min` to `2 rows_min - 1` rows, also of equal rows, and hold all rows.
#[test]
fn groups_are_small_and_whole() {
    for (rows, rows_min, equal) in [(200, 5, false), (61, 7, true), (9, 5, false), (3, 5, false)] {
        let mut values = vec![1.0; 3 * rows];
        if !equal {
            Key::root(2).stream().fill_normal(&mut values);
        }
        let groups = Groups::new(values, 3, rows_min);
        let sizes: Vec<f64> = groups.each().map(|(_, (rows, _))| rows).collect();
        assert_eq!(sizes.iter().sum::<f64>(), rows as f64);
        let most = (2 * rows_min - 1) as f64;
        assert!(sizes.iter().all(|n| (rows_min.min(rows) as f64..=most).contains(n)), "{sizes:?}");
        let sum: f64 = groups.each().map(|(mean, (rows, _))| rows * mean[0]).sum();
        // Rounding of a sum of 200 numbers of size one.
        assert!((sum - groups.totals()[1]).abs() < 1e-11);
    }
}

/// Clusters far apart with at least a group each share no group.
#[test]
fn separate_clusters_stay_separate() {
    let mut values = vec![0.0; 2 * 90];
    Key::root(3).stream().fill_normal(&mut values);
    let at = |row: usize| [0.0, 40.0, 100.0][row % 3];
    values.chunks_exact_mut(2).enumerate().for_each(|(row, x)| x[1] += at(row));
    for (_, (rows, within)) in Groups::new(values, 2, 5).each() {
        // Squared distances within a cluster of standard normal rows, at most 9^2 each.
        assert!(within < 81.0 * rows, "{within}");
    }
}
