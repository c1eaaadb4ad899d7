//! Splits of rows over clients.

use crate::{dirichlet, read};
use proptest::prelude::*;
use whimbrel_core::Key;
use whimbrel_data::{ClientRows, Dataset, by_column, iid_rows};
use whimbrel_testkit::pairs;

fn labelled(rows: usize, classes: usize) -> Dataset {
    let mut text = String::from("label,x\n");
    (0..rows).for_each(|i| text.push_str(&format!("k{},{i}\n", i * 7 % classes)));
    read(&text).unwrap()
}

pub fn is_partition(parts: &[ClientRows], rows: usize) -> bool {
    let mut all: Vec<usize> = parts.iter().flat_map(|p| p.rows.iter().copied()).collect();
    all.sort_unstable();
    all == (0..rows).collect::<Vec<_>>()
        && parts.iter().all(|p| !p.rows.is_empty() && p.rows.is_sorted())
        && parts.is_sorted_by_key(|p| &p.name)
}

proptest! {
    #[test]
    fn every_row_goes_to_one_client_and_every_client_has_one(
        rows in 1usize..300,
        classes in 1usize..6,
        share in 0.0f64..1.0,
        alpha in prop_oneof![Just(1e-3), Just(0.1), Just(1.0), Just(1e6)],
        seed in any::<u64>(),
    ) {
        let data = labelled(rows, classes);
        let clients = 1 + (share * (rows - 1) as f64) as usize;
        let key = Key::root(seed);
        let even = iid_rows(rows, clients, key).unwrap();
        prop_assert!(is_partition(&even, rows));
        prop_assert_eq!(even.len(), clients);
        let sizes = even.iter().map(|c| c.rows.len());
        prop_assert!(sizes.clone().max().unwrap() - sizes.min().unwrap() <= 1);
        let uneven = dirichlet(&data, "label", clients, alpha, key).unwrap();
        prop_assert!(is_partition(&uneven, rows));
        prop_assert_eq!(uneven.len(), clients);
        prop_assert!(is_partition(&by_column(&data, "label").unwrap(), rows));
    }
}

#[test]
fn a_split_depends_on_its_key_alone() {
    let data = labelled(200, 4);
    let split = |seed| dirichlet(&data, "label", 9, 0.5, Key::root(seed)).unwrap();
    assert_eq!(split(3), split(3));
    assert_ne!(split(3), split(4));
    let split = |seed| iid_rows(200, 9, Key::root(seed)).unwrap();
    assert_eq!(split(3), split(3));
    assert_ne!(split(3), split(4));
}

#[test]
fn alpha_turns_from_one_client_per_class_to_alike() {
    let data = labelled(5000, 5);
    // The mean over clients of the largest class's share, weighted by size: 1 where every client
    // holds one class, 1/5 where all are alike.
    let purity = |alpha| {
        let clients = dirichlet(&data, "label", 10, alpha, Key::root(2)).unwrap();
        let largest = |rows: &[usize]| {
            let mut counts = [0usize; 5];
            rows.iter().for_each(|row| counts[row * 7 % 5] += 1);
            counts.into_iter().max().unwrap()
        };
        clients.iter().map(|c| largest(&c.rows)).sum::<usize>() as f64 / 5000.0
    };
    let (sharp, middle, flat) = (purity(0.01), purity(0.5), purity(1e5));
    assert!(sharp > 0.7, "{sharp}");
    assert!(sharp > middle && middle > flat, "{sharp} {middle} {flat}");
    assert!(flat < 0.21, "{flat}");
}

#[test]
fn columns_of_numbers_can_name_clients() {
    let data = read("site,x\n2.5,1\n10,2\n2.50,3\n-0,4\n0,5\n").unwrap();
    let clients = by_column(&data, "site").unwrap();
    let expected = [("0", vec![3, 4]), ("10", vec![1]), ("2.5", vec![0, 2])];
    for (client, (name, rows)) in pairs(&clients, expected) {
        assert_eq!((client.name.as_str(), &client.rows), (name, &rows));
    }
}
