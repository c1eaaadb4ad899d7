//! Clients as clusters, and embeddings.

use crate::gzipped;
use crate::split::is_partition;
use proptest::prelude::*;
use whimbrel_core::Key;
use whimbrel_data::{ClusterRule, Clustered, Clustering, Error, clusters, read_embedding};

const RULES: [ClusterRule; 2] = [ClusterRule::KMeans, ClusterRule::Mixture];

fn sizes(found: &Clustered) -> Vec<usize> {
    found.clients.iter().map(|c| c.rows.len()).collect()
}

/// Normal clouds of these sizes, 100 apart on a line; cloud by cloud.
fn clouds(counts: &[usize], seed: u64) -> Vec<f64> {
    let mut stream = Key::root(seed).stream();
    let mut points = Vec::new();
    for (c, count) in counts.iter().enumerate() {
        for _ in 0..*count {
            points.extend([100.0 * c as f64 + stream.normal(), stream.normal()]);
        }
    }
    points
}

#[test]
fn clouds_become_clients() {
    let counts = [30, 60, 45, 100];
    let points = clouds(&counts, 1);
    for rule in RULES {
        let clustering = Clustering { rule, ..Default::default() };
        let found = clusters(&points, 2, 4, &clustering, Key::root(2)).unwrap();
        assert_eq!(found.moves, 0);
        let mut starts: Vec<Vec<usize>> = found.clients.into_iter().map(|c| c.rows).collect();
        starts.sort();
        assert_eq!(starts[1], (30..90).collect::<Vec<_>>(), "{rule:?}");
        assert_eq!(starts.iter().map(Vec::len).collect::<Vec<_>>(), counts, "{rule:?}");
    }
}

#[test]
fn a_mixture_tells_a_tight_cloud_inside_a_wide_one_from_its_edge() {
    // Two centres cannot separate concentric clouds; two components can.
    let mut stream = Key::root(3).stream();
    let mut points = Vec::new();
    for i in 0..4000 {
        let scale = if i < 2000 { 0.1 } else { 10.0 };
        points.extend([scale * stream.normal() + f64::from(i >= 2000), scale * stream.normal()]);
    }
    let tight = |rule| {
        let clustering = Clustering { rule, ..Default::default() };
        let found = clusters(&points, 2, 2, &clustering, Key::root(4)).unwrap();
        let inside = |c: &whimbrel_data::ClientRows| c.rows.iter().filter(|r| **r < 2000).count();
        found.clients.iter().map(|c| inside(c) as f64 / c.rows.len() as f64).fold(0.0, f64::max)
    };
    assert!(tight(ClusterRule::Mixture) > 0.98);
    assert!(tight(ClusterRule::KMeans) < 0.9);
}

#[test]
fn half_of_the_largest_goes_to_the_smallest_the_nearest_half() {
    // 200 and 4 rows: 4 x 10 < 200, so 100 move, and they are those on the small cloud's side.
    let points = clouds(&[200, 4], 5);
    let clustering = Clustering { rule: ClusterRule::KMeans, ..Default::default() };
    let found = clusters(&points, 2, 2, &clustering, Key::root(6)).unwrap();
    let mut before = found.found.clone();
    before.sort_unstable();
    assert_eq!((before, found.moves), (vec![4, 200], 1));
    let mixed = found.clients.iter().find(|c| c.rows.contains(&203)).unwrap();
    let other = found.clients.iter().find(|c| !c.rows.contains(&203)).unwrap();
    assert_eq!((mixed.rows.len(), other.rows.len()), (104, 100));
    let distance = |row: &usize| {
        let (x, y) = (points[2 * row] - 100.0, points[2 * row + 1]);
        (x * x + y * y).sqrt()
    };
    // The small cloud's centre is within 2 of (100, 0): half a unit each way, four times over.
    let farthest = mixed.rows.iter().map(distance).fold(0.0, f64::max);
    let nearest = other.rows.iter().map(distance).fold(f64::INFINITY, f64::min);
    assert!(farthest < nearest + 0.2, "{farthest} {nearest}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn every_row_goes_to_one_client_within_the_ratio(
        counts in prop::collection::vec(1usize..60, 1..6),
        copies in 0usize..100,
        share in 0.0f64..1.0,
        ratio_max in 2.0f64..12.0,
        mixture in any::<bool>(),
        seed in any::<u64>(),
    ) {
        // With many equal rows there are fewer clusters than clients.
        let mut points = clouds(&counts, seed);
        points.extend([7.0, -3.0].repeat(copies));
        let rows = points.len() / 2;
        let clients = 1 + (share * (rows.min(30) - 1) as f64) as usize;
        let rule = RULES[usize::from(mixture)];
        let clustering = Clustering { rule, ratio_max };
        let key = Key::root(seed);
        let found = clusters(&points, 2, clients, &clustering, key).unwrap();
        prop_assert!(is_partition(&found.clients, rows));
        let sizes = sizes(&found);
        prop_assert_eq!(sizes.len(), clients);
        prop_assert_eq!(found.found.iter().sum::<usize>(), rows);
        let (least, most) = (sizes.iter().min().unwrap(), sizes.iter().max().unwrap());
        prop_assert!(*most as f64 <= ratio_max * *least as f64, "{:?}", sizes);
        prop_assert_eq!(clusters(&points, 2, clients, &clustering, key).unwrap(), found);
    }
}

#[test]
fn impossible_clusters_are_refused() {
    let points = clouds(&[3], 1);
    let ask = |points: &[f64], columns, clients, ratio_max| {
        let clustering = Clustering { rule: ClusterRule::KMeans, ratio_max };
        clusters(points, columns, clients, &clustering, Key::root(1)).unwrap_err().to_string()
    };
    assert!(ask(&points, 2, 4, 10.0).contains("3 rows, which cannot be split over 4 clients"));
    assert!(ask(&points, 4, 1, 10.0).contains("6 numbers are not points of 4 columns"));
    assert!(ask(&points, 2, 2, 1.5).contains("within a ratio of 1.5"));
    assert!(ask(&[1.0, f64::NAN], 1, 2, 10.0).contains("not a finite number"));
}

#[test]
fn embeddings_are_raw_or_npy_and_must_have_the_rows_of_the_data() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, bytes: &[u8]| {
        let path = folder.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        path
    };
    let raw: Vec<u8> = [1.5f32, -2.0, 0.25, 8.0].iter().flat_map(|x| x.to_le_bytes()).collect();
    let expected = (vec![1.5, -2.0, 0.25, 8.0], 2);
    assert_eq!(read_embedding(write("raw", &raw), 2).unwrap(), expected);
    assert_eq!(read_embedding(write("packed", &gzipped(&raw)), 2).unwrap(), expected);
    let message = read_embedding(write("raw", &raw), 3).unwrap_err().to_string();
    assert!(message.contains("the embedding has 2 rows, the data have 3"), "{message}");
    let message = read_embedding(write("odd", &raw[..12]), 2).unwrap_err().to_string();
    assert!(message.contains("12 bytes are not whole rows"), "{message}");
    let nan = [raw[..12].to_vec(), f32::NAN.to_le_bytes().to_vec()].concat();
    let message = read_embedding(write("nan", &nan), 2).unwrap_err().to_string();
    assert!(message.contains("row 2, number 2 is not finite"), "{message}");
    let header = format!("{:<69}\n", "{'descr': '<f4', 'fortran_order': False, 'shape': (1, 4)}");
    let npy = [b"\x93NUMPY\x01\x00\x46\x00", header.as_bytes(), &raw].concat();
    assert_eq!(read_embedding(write("npy", &npy), 1).unwrap().1, 4);
    let message = read_embedding(write("npy", &npy), 2).unwrap_err().to_string();
    assert!(message.contains("the embedding has 1 rows, the data have 2"), "{message}");
    assert!(matches!(read_embedding(folder.path().join("none"), 1), Err(Error::Storage { .. })));
}
