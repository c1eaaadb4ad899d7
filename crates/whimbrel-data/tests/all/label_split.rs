//! Splits by label against their laws.

use whimbrel_core::Key;
use whimbrel_data::{Classes, ClientRows, LabelSplit};

const FINE: usize = 20;
const EACH: usize = 100;

fn label(row: usize) -> usize {
    row % FINE
}

fn fine() -> Classes {
    Classes::of_values((0..FINE * EACH).map(|row| label(row) as f64)).unwrap()
}

/// Four labels in each of five coarse classes.
fn coarse() -> Classes {
    Classes::of_values((0..FINE * EACH).map(|row| (label(row) / 4) as f64)).unwrap()
}

fn deal(split: LabelSplit, clients: usize, seed: u64) -> Vec<ClientRows> {
    let dealt = split.deal(fine(), Some(&coarse()), clients, Key::root(seed)).unwrap();
    let mut rows: Vec<usize> = dealt.iter().flat_map(|client| &client.rows).copied().collect();
    rows.sort_unstable();
    assert_eq!(rows, (0..FINE * EACH).collect::<Vec<_>>(), "every row goes to one client");
    assert!(dealt.iter().all(|client| !client.rows.is_empty()));
    assert_eq!(dealt, split.deal(fine(), Some(&coarse()), clients, Key::root(seed)).unwrap());
    dealt
}

fn labels(client: &ClientRows) -> Vec<usize> {
    let mut labels: Vec<usize> = client.rows.iter().map(|row| label(*row)).collect();
    labels.sort_unstable();
    labels.dedup();
    labels
}

#[test]
fn shards_are_equal_and_of_few_labels() {
    for client in deal(LabelSplit::Shards { per_client: 2 }, 20, 1) {
        assert_eq!(client.rows.len(), 100);
        // 40 shards of 50 rows, none across two labels.
        assert!(labels(&client).len() <= 2, "{:?}", labels(&client));
    }
}

#[test]
fn clients_have_as_many_classes_as_asked_and_share_them_equally() {
    let dealt = deal(LabelSplit::Classes { per_client: 3 }, 30, 2);
    let mut holders = [0; FINE];
    for client in &dealt {
        let own = labels(client);
        assert_eq!(own.len(), 3, "{own:?}");
        own.iter().for_each(|label| holders[*label] += 1);
    }
    assert!(holders.iter().all(|n| [4, 5].contains(n)), "{holders:?}");
    for client in &dealt {
        for own in labels(client) {
            let rows = client.rows.iter().filter(|row| label(**row) == own).count();
            assert!([EACH / holders[own], EACH / holders[own] + 1].contains(&rows));
        }
    }
}

#[test]
fn grouped_labels_go_together() {
    let split = LabelSplit::Dirichlet { alpha: 1e-3, clusters: Some(4) };
    // At this concentration each group has one client; the others are given one row each.
    let dealt = deal(split, 8, 3);
    let large: Vec<&ClientRows> = dealt.iter().filter(|client| client.rows.len() > 1).collect();
    assert!(large.len() <= 4);
    for client in large {
        assert_eq!(labels(client).len() % 5, 0, "{:?}", labels(client));
    }
}

#[test]
fn pachinko_gives_equal_clients_with_few_coarse_classes() {
    let share = |alpha: f64, beta: f64| {
        let dealt = deal(LabelSplit::Pachinko { alpha, beta }, 40, 4);
        let largest = |client: &ClientRows, of: &dyn Fn(usize) -> usize, count: usize| {
            let mut counts = vec![0; count];
            client.rows.iter().for_each(|row| counts[of(label(*row))] += 1);
            *counts.iter().max().unwrap() as f64 / client.rows.len() as f64
        };
        assert!(dealt.iter().all(|client| client.rows.len() == 50));
        // The first clients draw while nothing has run out.
        let mean = |of: &dyn Fn(usize) -> usize, count| {
            dealt[..20].iter().map(|client| largest(client, of, count)).sum::<f64>() / 20.0
        };
        (mean(&|label| label / 4, 5), mean(&|label| label, FINE))
    };
    let (coarse, fine) = share(0.1, 10.0);
    // Dirichlet(0.1) over five: the largest weight is above 0.8 on average; Dirichlet(10) over four
    // shares it nearly equally.
    assert!(coarse > 0.75 && fine < 0.45 * coarse, "{coarse} {fine}");
    let (coarse, fine) = share(0.1, 0.1);
    assert!(coarse > 0.75 && fine > 0.6 * coarse, "{coarse} {fine}");
    let (coarse, _) = share(100.0, 10.0);
    assert!(coarse < 0.4, "{coarse}");
}

#[test]
fn what_cannot_be_dealt_is_refused() {
    let refused = |split: LabelSplit, clients| {
        split.deal(fine(), Some(&coarse()), clients, Key::root(1)).unwrap_err().to_string()
    };
    for (split, clients, wanted) in [
        (LabelSplit::Shards { per_client: 30 }, 100, "cannot be cut into 100 x 30 shards"),
        (LabelSplit::Classes { per_client: 21 }, 10, "21 classes for each client"),
        (LabelSplit::Classes { per_client: 1 }, 10, "leave some of 20 out"),
        (LabelSplit::Classes { per_client: 20 }, 101, "has 100 rows for 101 clients"),
        (LabelSplit::Dirichlet { alpha: 1.0, clusters: Some(21) }, 5, "into 21 groups"),
        (LabelSplit::Pachinko { alpha: 0.0, beta: 1.0 }, 5, "alpha = 0"),
        (LabelSplit::Pachinko { alpha: 1.0, beta: f64::NAN }, 5, "beta = NaN"),
        (LabelSplit::Shards { per_client: 1 }, 2001, "cannot be split over 2001 clients"),
    ] {
        let message = refused(split, clients);
        assert!(message.contains(wanted), "{message}");
    }
    let split = LabelSplit::Pachinko { alpha: 1.0, beta: 1.0 };
    let message = split.deal(fine(), None, 5, Key::root(1)).unwrap_err().to_string();
    assert!(message.contains("needs a coarse class"), "{message}");
    let crossed =
        Classes::of_values((0..FINE * EACH).map(|row| f64::from(row as u32 / 3))).unwrap();
    let message = split.deal(fine(), Some(&crossed), 5, Key::root(1)).unwrap_err().to_string();
    assert!(message.contains("rows 1 and 21 have one label"), "{message}");
}
