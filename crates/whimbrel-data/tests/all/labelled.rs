//! Rows with targets: made from tables, split, standardised, hashed.

use crate::read;
use whimbrel_core::{FeatureRows, Key, Labelled, Table};
use whimbrel_data::{
    Classes, Features, LeastSquares, LeastSquaresSpec, Source, by_feature, dense_rows,
    hash_labelled, iid_rows, labelled_clients, read_libsvm, standardize, standardize_table,
    take_rows, two_classes,
};
use whimbrel_testkit::pairs;

fn sparse() -> Labelled {
    let text = b"1 1:2 3:4\n0\n1 2:6\n0 1:1 2:1 3:1\n";
    read_libsvm(Source::bytes("t", text), None).unwrap()
}

fn dense(data: &Labelled) -> Labelled {
    Labelled { rows: FeatureRows::Dense(dense_rows(data).unwrap()), ..data.clone() }
}

#[test]
fn a_column_of_a_table_becomes_the_target() {
    let data = read("y,a,b,ward\n1.5,1,2,n\n-2,3,4,s\n").unwrap();
    let rows = data.labelled("y", &Features::All { except: &[] }).unwrap();
    assert_eq!(rows.columns, ["a", "b"]);
    assert_eq!(rows.rows, FeatureRows::Dense(vec![1.0, 2.0, 3.0, 4.0]));
    assert_eq!(rows.targets, [1.5, -2.0]);
    // Text is ranked by its names, whatever comes first.
    let rows = data.labelled("ward", &Features::Listed(&["b".to_string()])).unwrap();
    assert_eq!((&rows.columns[..], &rows.targets[..]), (&["b".to_string()][..], &[0.0, 1.0][..]));
    assert_eq!(data.class_names("ward").unwrap(), ["n", "s"]);
    let both = ["a".to_string(), "y".to_string()];
    let message = data.labelled("y", &Features::Listed(&both)).unwrap_err().to_string();
    assert!(message.contains("column \"y\" is the target"), "{message}");
    let gap = read("y,a\n1,1\nNA,2\n").unwrap();
    let message = gap.labelled("y", &Features::All { except: &[] }).unwrap_err().to_string();
    assert!(message.contains("1 row cannot be used"), "{message}");
}

#[test]
fn two_values_become_two_classes_and_nothing_else_does() {
    let mut data = sparse();
    assert_eq!(two_classes(&mut data).unwrap(), [0.0, 1.0]);
    assert_eq!(data.targets, [1.0, -1.0, 1.0, -1.0]);
    data.targets[0] = 7.0;
    let message = two_classes(&mut data).unwrap_err().to_string();
    assert!(message.contains("more than two values, [-1.0, 1.0, 7.0]"), "{message}");
    data.targets = vec![3.0; 4];
    assert!(two_classes(&mut data).unwrap_err().to_string().contains("every target is 3"));
}

#[test]
fn taking_rows_is_the_same_dense_and_sparse() {
    let data = sparse();
    let rows = [3, 0, 0, 1];
    let taken = take_rows(&data, &rows).unwrap();
    assert_eq!(taken.targets, [0.0, 1.0, 1.0, 0.0]);
    assert_eq!(dense(&taken), take_rows(&dense(&data), &rows).unwrap());
    assert!(take_rows(&data, &[4]).is_err());
}

#[test]
fn a_feature_can_name_the_clients() {
    let data = sparse();
    let clients = by_feature(&data, "f1").unwrap();
    let seen: Vec<(&str, &[usize])> =
        clients.iter().map(|c| (c.name.as_str(), &c.rows[..])).collect();
    assert_eq!(seen, [("0", &[1usize, 2][..]), ("1", &[3]), ("2", &[0])]);
    assert_eq!(by_feature(&dense(&data), "f1").unwrap(), clients);
    assert!(by_feature(&data, "f9").unwrap_err().to_string().contains("\"f1\" to \"f3\""));
}

#[test]
fn targets_without_classes_are_not_spread_by_class() {
    let message = Classes::of_values((0..1500).map(f64::from)).unwrap_err().to_string();
    assert!(message.contains("more than 1000 values"), "{message}");
}

#[test]
fn standardised_columns_have_mean_zero_and_variance_one() {
    // Far from the origin, and a constant whose mean is not exact in binary.
    let mut stream = Key::root(4).stream();
    let values: Vec<f64> =
        (0..3000).flat_map(|_| [1e6 + stream.normal(), 0.1, 3.0 * stream.normal()]).collect();
    let names: Vec<String> = ["a", "b", "c"].map(String::from).into();
    let mut table = Table::new(names, values.clone()).unwrap();
    let found = standardize_table(&mut table).unwrap();
    assert_eq!((found.constant, found.scales[1], found.means[1]), (1, 1.0, 0.1));
    for j in 0..3 {
        let column = || table.values.iter().skip(j).step_by(3);
        let mean = column().sum::<f64>() / 3000.0;
        let square = column().map(|x| x * x).sum::<f64>() / 3000.0;
        // Column a holds numbers near 1e6, whose last digit is 1e-10.
        assert!(mean.abs() < 1e-9, "{j}: {mean}");
        assert!((square - if j == 1 { 0.0 } else { 1.0 }).abs() < 1e-9, "{j}: {square}");
    }
    // New rows are moved by the old moments.
    let mut new = Table::new(table.columns.to_vec(), values[..6].to_vec()).unwrap();
    found.apply_table(&mut new).unwrap();
    assert_eq!(new.values, table.values[..6]);
    new.columns = new.columns.iter().rev().cloned().collect();
    let message = found.apply_table(&mut new).unwrap_err().to_string();
    assert!(message.contains("column 1 is \"c\", expected \"a\""), "{message}");
}

#[test]
fn sparse_rows_standardise_to_what_dense_ones_do() {
    let (mut a, mut b) = (sparse(), dense(&sparse()));
    let found = standardize(&mut a).unwrap();
    assert_eq!(standardize(&mut b).unwrap(), found);
    assert_eq!(a, b);
    // Column 1 holds 2, 0, 0, 1: mean 3/4, variance 11/16.
    assert_eq!(found.means[0], 0.75);
    assert!((found.scales[0] - (11.0f64 / 16.0).sqrt()).abs() < 1e-15);
    let mut again = sparse();
    found.apply(&mut again).unwrap();
    assert_eq!(again, a);
    let mut infinite = dense(&sparse());
    if let FeatureRows::Dense(values) = &mut infinite.rows {
        values[0] = f64::INFINITY;
    }
    assert!(standardize(&mut infinite).is_err());
}

#[test]
fn hashes_tell_targets_features_and_clients_apart() {
    let data = sparse();
    let parts = iid_rows(4, 2, Key::root(1)).unwrap();
    let base = labelled_clients(&data, &parts).unwrap();
    let mut variants = vec![base.clone(); 5];
    variants[1][0].0.push('x');
    variants[2][0].1.targets[0] += 1.0;
    variants[3][0].1.columns[0].push('x');
    variants[4][0].1 = dense(&base[0].1);
    variants.push(vec![("all".into(), data)]);
    let mut hashes: Vec<String> = variants.iter().map(|v| hash_labelled(v)).collect();
    assert_eq!(hashes[0], hash_labelled(&base));
    hashes.sort();
    hashes.dedup();
    assert_eq!(hashes.len(), variants.len());
}

#[test]
fn the_noise_free_toy_set_is_solved_by_its_coefficients() {
    let LeastSquares { clients, w } = LeastSquaresSpec::default().draw(Key::root(3)).unwrap();
    assert_eq!((clients.len(), clients[0].1.len(), w.len()), (20, 200, 20));
    assert_eq!((w[0], w[10]), (-1.0, -whimbrel_core::math::exp(-1.0)));
    assert!(residuals(&clients, &w).iter().flatten().all(|e| *e == 0.0));
}

#[test]
fn noise_is_drawn_for_every_row() {
    let spec = LeastSquaresSpec { noise: 0.4, ..Default::default() };
    let LeastSquares { clients, w } = spec.draw(Key::root(3)).unwrap();
    let each = residuals(&clients, &w);
    for errors in &each {
        assert!(errors.iter().any(|e| (e - errors[0]).abs() > 0.1));
    }
    // 4000 errors: the variance 0.16 has a standard error of 0.16 sqrt(2 / 4000) = 0.0036; five
    // of them are passed with probability 6e-7.
    let all: Vec<f64> = each.into_iter().flatten().collect();
    let variance = all.iter().map(|e| e * e).sum::<f64>() / all.len() as f64;
    assert!((variance - 0.16).abs() < 5.0 * 0.0036, "{variance}");
}

#[test]
fn clients_differ_by_the_heterogeneity_asked_for_and_columns_correlate() {
    let spec = LeastSquaresSpec { heterogeneity: 0.5, rows: 1000, ..Default::default() };
    let LeastSquares { clients, w } = spec.draw(Key::root(5)).unwrap();
    let alike =
        LeastSquaresSpec { rows: 1000, ..Default::default() }.draw(Key::root(5)).unwrap().clients;
    assert_eq!(clients[7].1.rows, alike[7].1.rows);
    // <x, w_i - w> has variance 0.25 E|x|^2 = 5 over the draw of w_i.
    let all: Vec<f64> = residuals(&clients, &w).into_iter().flatten().collect();
    let variance = all.iter().map(|e| e * e).sum::<f64>() / all.len() as f64;
    assert!(variance > 2.0 && variance < 10.0, "{variance}");
    let (mut near, mut far, mut count) = (0.0, 0.0, 0.0);
    for (_, data) in &clients {
        let FeatureRows::Dense(values) = &data.rows else { panic!("not dense") };
        for x in values.chunks_exact(20) {
            near += x[4] * x[5];
            far += x[4] * x[6];
            count += 1.0;
        }
    }
    // 20,000 products of deviation about 1.2: a standard error of 0.0083.
    assert!((near / count - 0.6).abs() < 0.042, "{}", near / count);
    assert!((far / count - 0.36).abs() < 0.042, "{}", far / count);
}

#[test]
fn fewer_clients_and_rows_are_the_head_of_more() {
    let spec = LeastSquaresSpec { noise: 0.4, ..Default::default() };
    let many = spec.draw(Key::root(9)).unwrap().clients;
    let few =
        LeastSquaresSpec { clients: 11, rows: 50, ..spec }.draw(Key::root(9)).unwrap().clients;
    for ((_, few), (_, many)) in pairs(&few, &many[..11]) {
        assert_eq!(few, &take_rows(many, &(0..50).collect::<Vec<_>>()).unwrap());
    }
    for bad in [
        LeastSquaresSpec { clients: 0, ..spec },
        LeastSquaresSpec { correlation: 1.0, ..spec },
        LeastSquaresSpec { noise: -1.0, ..spec },
        LeastSquaresSpec { heterogeneity: f64::NAN, ..spec },
    ] {
        assert!(bad.draw(Key::root(9)).is_err(), "{bad:?}");
    }
}

/// `y - <x, w>` by client, the product summed as it was drawn.
fn residuals(clients: &[(String, Labelled)], w: &[f64]) -> Vec<Vec<f64>> {
    let of = |data: &Labelled| {
        let rows = dense_rows(data).unwrap();
        let fits = rows.chunks_exact(w.len());
        let fits = fits.map(|x| x.iter().zip(w).map(|(x, w)| x * w).sum::<f64>());
        fits.zip(&data.targets).map(|(fit, y)| y - fit).collect()
    };
    clients.iter().map(|(_, data)| of(data)).collect()
}
