//! Rows in: what is refused, moments, streams; settings that are refused.

use crate::cases::{covariances, gap, model, parameters, rows};
use std::sync::Arc;
use whimbrel_core::{ClientData, Error, FeatureRows, Labelled, Result, RowStream, Table};
use whimbrel_models::gmm::{Covariance, Gmm, GmmPenalty, GmmSettings};
use whimbrel_models::{LatentModel, MixtureModel, Rows};

fn table(columns: &[&str], values: &[f64]) -> ClientData {
    let names = columns.iter().map(|c| c.to_string()).collect();
    ClientData::Table(Table::new(names, values.to_vec()).unwrap())
}

#[test]
fn unusable_tables_are_refused_with_the_place() {
    let model = model(2, 2, Covariance::Tied);
    let refuse = |data: ClientData| model.bind(&data).err().expect("must be refused").to_string();
    assert!(refuse(table(&["a", "b"], &[])).contains("no rows"));
    let wide = refuse(table(&["a", "b", "c"], &[1.0; 3]));
    assert!(wide.contains("3 columns (a, b, c)"), "{wide}");
    let nan = refuse(table(&["a", "dose"], &[1.0, 2.0, 3.0, f64::NAN]));
    assert!(nan.contains("row 2, column `dose`"), "{nan}");
    let inf = refuse(table(&["a", "dose"], &[1.0, 2.0, f64::INFINITY, 2.0]));
    assert!(inf.contains("row 2, column `a`"), "{inf}");
    let names = vec!["a".to_string(), "b".to_string()];
    let features = FeatureRows::Dense(vec![1.0, 2.0]);
    let labelled = Labelled::new(names, features, vec![1.0]).unwrap();
    assert!(refuse(ClientData::Labelled(labelled)).contains("targets"));
}

#[test]
fn moments_are_means_of_rows_and_products() {
    for (d, n) in [(1, 1), (2, 8), (3, 29), (5, 100)] {
        let settings =
            GmmSettings { want_moments: true, ..GmmSettings::new(2, d, Covariance::Full) };
        let model = Gmm::new(settings).unwrap();
        let values = rows(&model, &parameters(&model, 1.0), n, 12);
        let data = model.data_from_rows(&values).unwrap();
        assert_eq!((model.rows(&data), data.row(n - 1).as_slice()), (n, &values[(n - 1) * d..]));
        assert_eq!(data.values(), values);
        let mut expected = vec![0.0; model.moments_len()];
        for y in values.chunks(d) {
            let mut at = d;
            for i in 0..d {
                expected[i] += y[i] / n as f64;
                for j in 0..=i {
                    expected[at] += y[i] * y[j] / n as f64;
                    at += 1;
                }
            }
        }
        assert!(gap(&model.moments(&data).unwrap(), &expected) < 1e-13);
    }
    assert!(model(2, 3, Covariance::Full).moments_len() == 0);
}

struct Counting(Vec<String>);

impl RowStream for Counting {
    fn columns(&self) -> &[String] {
        &self.0
    }
    fn rows(&self, from: u64, count: usize, out: &mut Vec<f64>) -> Result<()> {
        for i in from..from + count as u64 {
            out.extend([i as f64, -(i as f64)]);
        }
        Ok(())
    }
}

#[test]
fn a_stream_is_stood_for_by_its_first_rows_and_read_through_windows() {
    let settings = GmmSettings { stream_rows: 30, ..GmmSettings::new(1, 2, Covariance::Tied) };
    let model = Gmm::new(settings).unwrap();
    let source = Arc::new(Counting(vec!["up".into(), "down".into()]));
    let stream = model.bind(&ClientData::Stream(source)).unwrap();
    assert_eq!(model.rows(&stream), 30);
    assert_eq!(model.moments(&stream).unwrap()[..2], [14.5, -14.5]);
    let window = model.window(&stream, 100, 3).unwrap().expect("a stream has windows");
    assert_eq!(model.rows(&window), 3);
    assert_eq!((window.row(0), window.row(2)), (vec![100.0, -100.0], vec![102.0, -102.0]));
    let fixed = model.data_from_rows(&[1.0, 2.0]).unwrap();
    assert!(model.window(&fixed, 0, 1).unwrap().is_none());
    let theta = model.parameters(&[1.0], &[0.0, 0.0], &[1.0, 0.0, 0.0, 1.0]).unwrap();
    let mut statistic = vec![0.0; 3];
    model.expect(&theta, &window, Rows::All, &mut statistic).unwrap();
    assert_eq!(statistic, [1.0, 101.0, -101.0]);
}

#[test]
fn impossible_settings_are_refused() {
    let good = GmmSettings::new(2, 2, Covariance::Tied);
    let penalty = |dirichlet| GmmPenalty { dirichlet, ..GmmPenalty::default() };
    let bad = [
        (GmmSettings { components: 0, ..good.clone() }, "0 components"),
        (GmmSettings { columns: 0, ..good.clone() }, "0 columns"),
        (GmmSettings { reg_covar: -1.0, ..good.clone() }, "reg_covar"),
        (GmmSettings { weight_floor: 0.3, ..good.clone() }, "weight_floor"),
        (GmmSettings { covariance_floor: 0.0, ..good.clone() }, "covariance_floor"),
        (GmmSettings { stream_rows: 0, ..good.clone() }, "stream_rows"),
        (GmmSettings { penalty: penalty(f64::NAN), ..good.clone() }, "dirichlet"),
        (GmmSettings::new(2, 2, Covariance::Known(vec![1.0; 3])), "2 x 2"),
        (GmmSettings::new(2, 2, Covariance::Known(vec![1.0, 2.0, 2.0, 1.0])), "definite"),
        (GmmSettings::new(2, 2, Covariance::Known(vec![1.0, 0.5, 0.0, 1.0])), "symmetric"),
    ];
    for (settings, word) in bad {
        let error = Gmm::new(settings).expect_err(word);
        assert!(
            matches!(error, Error::Config { .. }) && error.to_string().contains(word),
            "{error}"
        );
    }
}

#[test]
fn impossible_parameters_are_refused() {
    let model = model(2, 1, Covariance::Full);
    let refuse = |w: &[f64], m: &[f64], c: &[f64]| {
        let error = model.parameters(w, m, c).unwrap_err();
        assert!(matches!(error, Error::Config { .. }));
        error.to_string()
    };
    assert!(refuse(&[0.5, 0.4], &[0.0, 1.0], &[1.0, 1.0]).contains("sum to 0.9"));
    assert!(refuse(&[1.0, 0.0], &[0.0, 1.0], &[1.0, 1.0]).contains("component 2"));
    assert!(refuse(&[1.0], &[0.0, 1.0], &[1.0, 1.0]).contains("1 weights"));
    assert!(refuse(&[0.5, 0.5], &[0.0], &[1.0, 1.0]).contains("means"));
    assert!(refuse(&[0.5, 0.5], &[0.0, 1.0], &[1.0, -1.0]).contains("component 2"));
    assert!(refuse(&[0.5, 0.5], &[0.0, 1.0], &[1.0]).contains("full covariances"));
    for covariance in covariances(1) {
        let known = matches!(covariance, Covariance::Known(_));
        let other = crate::cases::model(2, 1, covariance);
        let wrong = other.parameters(&[0.5, 0.5], &[0.0, 1.0], &[7.0, 0.0, 1.0]).unwrap_err();
        assert!(!known || wrong.to_string().contains("known one"), "{wrong}");
    }
}
