//! Groups of neighbouring rows.

use whimbrel_core::Key;
use whimbrel_methods::microaggregation::{Groups, surrogates};
use whimbrel_testkit::gap;

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

fn normal(count: usize, seed: u64) -> Vec<f64> {
    let mut values = vec![0.0; count];
    Key::root(seed).stream().fill_normal(&mut values);
    values
}

/// `Σ x` and the lower triangle of `Σ x x'`.
fn moments(values: &[f64], width: usize) -> Vec<f64> {
    let mut sums = vec![0.0; width];
    let mut products = Vec::new();
    values.chunks_exact(width).for_each(|x| sums.iter_mut().zip(x).for_each(|(s, x)| *s += x));
    for i in 0..width {
        let of = |j: usize| values.chunks_exact(width).map(|x| x[i] * x[j]).sum();
        products.extend((0..=i).map(of).collect::<Vec<f64>>());
    }
    [sums, products].concat()
}

/// Other rows of one group with the same mean and covariance, turned by a reflection of the rows that
/// keeps their sum, have the same surrogates: these tell nothing else of the rows.
#[test]
fn surrogates_depend_on_the_moments_of_a_group_alone() {
    let (rows, width) = (8, 3);
    let values = normal(rows * width, 5);
    // A unit vector of sum zero; a last one in it keeps the mean of the rows.
    let mut v = normal(rows, 6);
    let mean = v.iter().sum::<f64>() / rows as f64;
    v.iter_mut().for_each(|x| *x -= mean);
    let norm2: f64 = v.iter().map(|x| x * x).sum();
    let mut turned = values.clone();
    for j in 0..width {
        let along: f64 = (0..rows).map(|i| v[i] * values[i * width + j]).sum();
        (0..rows).for_each(|i| turned[i * width + j] -= 2.0 * along / norm2 * v[i]);
    }
    // Rounding errors of sums of eight numbers of size one.
    assert!(gap(&moments(&values, width), &moments(&turned, width)) < 1e-13);
    assert!(gap(&values, &turned) > 0.1);
    let of = |mut values: Vec<f64>| {
        surrogates(&mut values, width, 5).unwrap();
        values
    };
    assert!(gap(&of(values), &of(turned)) < 1e-12);
}

/// Surrogates keep the sum over all rows, and second moments up to the rounding of the axes: by a uniform
/// error of variance `1/192` of the variance within groups, in each of at most eight axes.
#[test]
fn surrogates_keep_moments() {
    for (rows, width, equal) in [(400, 2, false), (60, 12, false), (40, 3, true), (7, 4, false)] {
        let mut values = normal(rows * width, 9);
        // Columns that depend on each other, of other units.
        values.chunks_exact_mut(width).for_each(|x| x[1] = 1e6 * x[0]);
        if equal {
            values.fill(2.5);
        }
        let before = moments(&values, width);
        surrogates(&mut values, width, 5).unwrap();
        let after = moments(&values, width);
        let scale = |j: usize| if j == 1 && !equal { 1e6 } else { 1.0 };
        for j in 0..width {
            assert!((before[j] - after[j]).abs() < 1e-11 * rows as f64 * scale(j), "sum {j}");
            let square = width + j * (j + 1) / 2 + j;
            let error = (before[square] - after[square]).abs() / before[square];
            assert!(error < 0.1, "{rows} {width}: {error}");
        }
        assert!(values.iter().all(|x| x.is_finite()));
    }
}
