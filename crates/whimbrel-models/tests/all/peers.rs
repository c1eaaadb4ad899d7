//! Against scikit-learn: stored fits, made by `peers/gmm.py`, from the same start.

use crate::cases::{e_step, gap};
use whimbrel_models::LatentModel;
use whimbrel_models::gmm::{Covariance, Gmm, GmmSettings};

/// The rows of the script, bit for bit.
fn rows(count: usize, columns: usize, components: usize) -> Vec<f64> {
    let mut state = 12345u64;
    let mut out = Vec::new();
    for i in 0..count {
        for j in 0..columns {
            let mut total = 0.0;
            for _ in 0..12 {
                state = (1_103_515_245 * state + 12345) % (1 << 31);
                total += state as f64 / (1u64 << 31) as f64;
            }
            let cluster = (i % components) as f64;
            let shift = 2.5 * cluster * if j % 2 == 0 { 1.0 } else { -1.0 };
            out.push(0.5 * (1.0 + cluster) * (total - 6.0) + shift);
        }
    }
    out
}

#[test]
fn em_ends_where_scikit_learn_ends() {
    let mut cases = 0;
    for line in include_str!("../peers/gmm.txt").lines().filter(|l| !l.starts_with('#')) {
        let words: Vec<&str> = line.split(' ').collect();
        let numbers: Vec<f64> = words[1..].iter().map(|w| w.parse().unwrap()).collect();
        let (d, components, iterations) =
            (numbers[0] as usize, numbers[1] as usize, numbers[3] as usize);
        let covariance = match words[0] {
            "tied" => Covariance::Tied,
            "diag" => Covariance::Diagonal,
            "spherical" => Covariance::Spherical,
            _ => Covariance::Full,
        };
        let settings =
            GmmSettings { reg_covar: numbers[2], ..GmmSettings::new(components, d, covariance) };
        let model = Gmm::new(settings).unwrap();
        let values = rows(400, d, components);
        let means: Vec<f64> =
            (0..components).flat_map(|k| values[8 * k * d..][..d].to_vec()).collect();
        let one: Vec<f64> = match words[0] {
            "diag" | "spherical" => vec![1.0; d],
            _ => (0..d * d).map(|i| if i % (d + 1) == 0 { 1.0 } else { 0.0 }).collect(),
        };
        let start = if words[0] == "tied" { one } else { one.repeat(components) };
        let weights = vec![1.0 / components as f64; components];
        let mut theta = model.parameters(&weights, &means, &start).unwrap();

        let data = model.data_from_rows(&values).unwrap();
        let moments = model.moments(&data).unwrap();
        for _ in 0..iterations {
            let (statistic, _) = e_step(&model, &theta, &data);
            let found = model.maximize(&statistic, &moments).unwrap();
            assert_eq!(found.repairs, 0);
            theta = found.theta;
        }
        let (_, fit) = e_step(&model, &theta, &data);

        let (expected, parameters) = numbers[4..].split_first().unwrap();
        let (weights, rest) = parameters.split_at(components);
        let (means, covariances) = rest.split_at(components * d);
        let found: Vec<f64> = match words[0] {
            "tied" => theta.covariance(0),
            "diag" => (0..components)
                .flat_map(|k| {
                    let matrix = theta.covariance(k);
                    (0..d).map(move |j| matrix[j * (d + 1)]).collect::<Vec<_>>()
                })
                .collect(),
            "spherical" => (0..components).map(|k| theta.covariance(k)[0]).collect(),
            _ => (0..components).flat_map(|k| theta.covariance(k)).collect(),
        };
        let name = words[..5].join(" ");
        assert!((fit - expected).abs() < 1e-10 * expected.abs(), "{name}: {fit} {expected}");
        assert!(gap(theta.weights(), weights) < 1e-8, "{name}");
        assert!(gap(theta.means(), means) < 1e-8, "{name}");
        assert!(gap(&found, covariances) < 1e-8, "{name}");
        cases += 1;
    }
    assert_eq!(cases, 24);
}
