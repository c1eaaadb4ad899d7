//! The published LIBSVM sets and their embeddings.

use crate::split::is_partition;
use whimbrel_core::{FeatureRows, Key, Labelled};
use whimbrel_data::{
    ClusterRule, Clustering, clusters, dense_rows, labelled_clients, read_embedding, read_libsvm,
    standardize, two_classes,
};
use whimbrel_testkit::data_file;

fn non_zeros(data: &Labelled) -> usize {
    match &data.rows {
        FeatureRows::Sparse { values, .. } => values.len(),
        FeatureRows::Dense(_) => panic!("LIBSVM text gives sparse rows"),
    }
}

#[test]
fn a9a_and_w8a_have_their_known_shapes() {
    // Rows, columns, non-zeros and rows of class +1, counted from the files by awk.
    let known = [
        ("a9a/a9a.gz", 32_561, 123, 451_592, 7_841),
        ("a9a/a9a.t.gz", 16_281, 123, 225_731, 3_846),
        ("w8a/w8a.gz", 49_749, 300, 579_586, 1_479),
        ("w8a/w8a.t.gz", 14_951, 300, 174_276, 454),
    ];
    for (name, rows, width, filled, positive) in known {
        let Some(path) = data_file(name) else { continue };
        let mut data = read_libsvm(&path, Some(width)).unwrap();
        assert_eq!((data.len(), data.width(), non_zeros(&data)), (rows, width, filled), "{name}");
        assert_eq!(data.targets.iter().filter(|y| **y == 1.0).count(), positive, "{name}");
        assert_eq!(two_classes(&mut data).unwrap(), [-1.0, 1.0]);
    }
}

#[test]
fn a9a_standardises_to_unit_variance() {
    let Some(path) = data_file("a9a/a9a.gz") else { return };
    let mut data = read_libsvm(&path, None).unwrap();
    let found = standardize(&mut data).unwrap();
    assert_eq!(found.constant, 0);
    let rows = data.len() as f64;
    let dense = dense_rows(&data).unwrap();
    let mut means = vec![0.0; 123];
    let mut squares = vec![0.0; 123];
    for row in dense.chunks_exact(123) {
        for j in 0..123 {
            means[j] += row[j] / rows;
            squares[j] += row[j] * row[j] / rows;
        }
    }
    assert!(means.iter().all(|m| m.abs() < 1e-9));
    assert!(squares.iter().all(|s| (s - 1.0).abs() < 1e-9));
}

#[test]
fn embeddings_split_a9a_and_w8a_into_twenty_clients() {
    for set in ["a9a", "w8a"] {
        let Some(path) = data_file(&format!("{set}/{set}.gz")) else { continue };
        let Some(picture) = data_file(&format!("{set}/{set}_tsne.f32le.gz")) else { continue };
        let data = read_libsvm(&path, None).unwrap();
        let (points, columns) = read_embedding(&picture, data.len()).unwrap();
        let message = read_embedding(&picture, data.len() + 1).unwrap_err().to_string();
        let both = format!("has {} rows, the data have {}", data.len(), data.len() + 1);
        assert!(message.contains(&both), "{message}");
        for rule in [ClusterRule::KMeans, ClusterRule::Mixture] {
            let clustering = Clustering { rule, ..Default::default() };
            let found = clusters(&points, columns, 20, &clustering, Key::root(1)).unwrap();
            assert!(is_partition(&found.clients, data.len()));
            let sizes: Vec<usize> = found.clients.iter().map(|c| c.rows.len()).collect();
            eprintln!("{set} {rule:?}: {} moves from {:?} to {sizes:?}", found.moves, found.found);
            assert!(sizes.iter().max() <= sizes.iter().map(|n| 10 * n).min().as_ref());
            let clients = labelled_clients(&data, &found.clients).unwrap();
            assert_eq!(clients.iter().map(|(_, c)| non_zeros(c)).sum::<usize>(), non_zeros(&data));
        }
    }
}
