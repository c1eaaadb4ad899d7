//! K-means on rows and on weighted centres.

use whimbrel_core::Key;
use whimbrel_models::kmeans::{best_of, kmeans};

/// Three tight clusters of 20 rows around (0, 0), (10, 0) and (0, 10).
fn clusters() -> Vec<f64> {
    (0..60)
        .flat_map(|i| {
            let (dx, dy) = (0.1 * ((i * 7) % 5) as f64, 0.1 * ((i * 3) % 4) as f64);
            [[dx, dy], [10.0 + dx, dy], [dx, 10.0 + dy]][i % 3]
        })
        .collect()
}

#[test]
fn separate_clusters_are_found_from_every_key() {
    for seed in 0..20 {
        let found = kmeans(&clusters(), 2, None, 3, 50, Key::root(seed)).unwrap();
        assert_eq!(found.counts, [20.0; 3]);
        let labels: Vec<u32> = found.labels[..3].to_vec();
        for (i, label) in found.labels.iter().enumerate() {
            assert_eq!(*label, labels[i % 3]);
        }
        let mean_x = clusters().chunks(6).map(|six| six[0]).sum::<f64>() / 20.0;
        let first = labels[0] as usize;
        assert!((found.centres[2 * first] - mean_x).abs() < 1e-12);
        assert_eq!(found, kmeans(&clusters(), 2, None, 3, 50, Key::root(seed)).unwrap());
    }
}

#[test]
fn steps_never_raise_the_inertia_and_weights_count_as_repeats() {
    let rows: Vec<f64> = (0..200).map(|i| ((i * i) % 97) as f64).collect();
    let inertia: Vec<f64> = (0..8)
        .map(|steps| kmeans(&rows, 1, None, 5, steps, Key::root(4)).unwrap().inertia)
        .collect();
    assert!(inertia.windows(2).all(|w| w[1] <= w[0]), "{inertia:?}");
    assert!(inertia[7] < inertia[0]);

    // Two far pairs of points: the optimum is the weighted mean of each pair.
    let points = [0.0, 1.0, 100.0, 101.0];
    let found = kmeans(&points, 1, Some(&[3.0, 1.0, 1.0, 1.0]), 2, 50, Key::root(1)).unwrap();
    let mut centres = found.centres.clone();
    centres.sort_by(f64::total_cmp);
    assert_eq!(centres, [0.25, 100.5]);
    assert_eq!(found.counts.iter().sum::<f64>(), 6.0);
}

#[test]
fn fewer_distinct_rows_give_fewer_centres() {
    let found = kmeans(&[1.0, 1.0, 2.0, 1.0], 1, None, 3, 10, Key::root(1)).unwrap();
    assert_eq!(found.centres.len(), 2);
    assert_eq!(found.inertia, 0.0);
    assert!(kmeans(&[], 1, None, 1, 1, Key::root(1)).is_err());
    assert!(kmeans(&[f64::NAN], 1, None, 1, 1, Key::root(1)).is_err());
    assert!(kmeans(&[1.0], 1, Some(&[0.0]), 1, 1, Key::root(1)).is_err());
}

/// 60,000 weighted rows, more than the coreset holds, in ten clusters of unit variance around the
/// corners of a lattice of side 20. An optimum has an inertia per weight near 2, two columns of
/// variance one; a start that misses a cluster has at least 20 more (a tenth of the rows lie 20
/// away at least, halved where their centre is shared).
#[test]
fn many_rows_are_clustered_by_a_coreset() {
    let mut stream = Key::root(7).stream();
    let (mut rows, mut weights) = (Vec::new(), Vec::new());
    for i in 0..60_000_u32 {
        let (x, y) = (20.0 * f64::from(i % 10 % 4), 20.0 * f64::from(i % 10 / 4));
        rows.extend([x + stream.normal(), y + stream.normal()]);
        weights.push(f64::from(1 + i % 3));
    }
    let total: f64 = weights.iter().sum();
    let found = best_of(10, &rows, 2, &weights, 10, 100, Key::root(3)).unwrap();
    assert_eq!(found.labels.len(), 60_000);
    assert_eq!(found.counts.iter().sum::<f64>(), total);
    // Standard error of the mean of 60,000 squared distances, weights included, below 0.01.
    assert!((found.inertia / total - 2.0).abs() < 0.05, "{}", found.inertia / total);
    for threads in [1, 3] {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        let again = pool.install(|| best_of(10, &rows, 2, &weights, 10, 100, Key::root(3)));
        assert_eq!(again.unwrap(), found);
    }
}

#[test]
fn the_best_of_several_runs_is_kept() {
    let rows: Vec<f64> = (0..200).map(|i| ((i * i) % 97) as f64).collect();
    let run = |i| kmeans(&rows, 1, Some(&[1.0; 200]), 8, 50, Key::root(4).child(i)).unwrap();
    let least = (0..6).map(run).map(|found| found.inertia).reduce(f64::min);
    let best = best_of(6, &rows, 1, &[1.0; 200], 8, 50, Key::root(4)).unwrap();
    assert_eq!(Some(best.inertia), least);
    assert!(run(0).inertia > best.inertia, "the first run is the best: the test says nothing");
}
