//! Linear, logistic and softmax regression against their definitions in `f64`.

use whimbrel_core::{Inputs, Key, Samples, Targets, vector};
use whimbrel_nn::{Batch, Learner, Linear, Logistic, Room, Softmax};

/// Some samples.
fn samples(n: usize, features: usize, targets: Targets) -> Samples {
    let mut stream = Key::root(3).stream();
    let values = (0..n * features).map(|_| (stream.uniform() * 4.0 - 2.0) as f32).collect();
    Samples::new(vec![features], Inputs::Real(values), targets).unwrap()
}

fn classes(n: usize, count: usize) -> Targets {
    let mut stream = Key::root(4).stream();
    Targets::Classes { of: (0..n).map(|_| stream.below(count as u64) as u16).collect(), count }
}

/// The losses in `f64`, from the definition.
fn reference(name: &str, outputs: usize, w: &[f64], samples: &Samples) -> Vec<f64> {
    let Inputs::Real(values) = &samples.inputs else { unreachable!() };
    let width = samples.width();
    let intercept = w.len() > outputs * width;
    (0..samples.len())
        .map(|j| {
            let x = &values[j * width..][..width];
            let score = |c: usize| {
                let dot: f64 = x.iter().zip(&w[c * width..]).map(|(x, w)| f64::from(*x) * w).sum();
                dot + if intercept { w[outputs * width + c] } else { 0.0 }
            };
            let class = |j: usize| match &samples.targets {
                Targets::Classes { of, .. } => usize::from(of[j]),
                Targets::Values(_) => unreachable!(),
            };
            match name {
                "linear" => match &samples.targets {
                    Targets::Values(y) => 0.5 * (score(0) - f64::from(y[j])).powi(2),
                    Targets::Classes { .. } => unreachable!(),
                },
                "logistic" => (1.0 + score(0).exp()).ln() - class(j) as f64 * score(0),
                _ => {
                    let sum: f64 = (0..outputs).map(|c| score(c).exp()).sum();
                    sum.ln() - score(class(j))
                }
            }
        })
        .collect()
}

/// Losses, gradients and weights against the definition, for rows of every remainder.
fn check_against_the_definition(learner: &dyn Learner, scores: usize, samples: &Samples) {
    learner.check(samples).unwrap();
    let mut stream = Key::root(5).stream();
    let w: Vec<f32> = (0..learner.parameters()).map(|_| stream.uniform() as f32 - 0.5).collect();
    let n = samples.len();
    let weights: Vec<f32> = (0..n).map(|_| stream.uniform() as f32).collect();
    let mut room = Room::default();
    let (mut gradient, mut losses) = (vec![f32::NAN; w.len()], vec![f32::NAN; n]);
    let batch = Batch::all(samples);
    let key = Key::root(0);
    learner.gradient(&w, batch, Some(&weights), key, &mut room, &mut gradient, &mut losses);
    let mut evaluated = vec![f32::NAN; n];
    learner.losses(&w, batch, &mut room, &mut evaluated);
    assert_eq!(losses, evaluated);

    let mut w: Vec<f64> = w.iter().map(|w| f64::from(*w)).collect();
    let right = reference(learner.name(), scores, &w, samples);
    // A score is a sum of at most 40 products below 1, each rounded to 2^-24; the square of the linear
    // loss, at most 1600 / 2, doubles that.
    assert_eq!(losses.len(), right.len());
    for (loss, right) in losses.iter().zip(&right) {
        assert!(
            (f64::from(*loss) - right).abs() < 40.0 * 6e-8 * 40.0 * (1.0 + right),
            "{loss} {right}"
        );
    }
    for i in 0..w.len() {
        let at = w[i];
        let mut mean = |w_i: f64| {
            w[i] = w_i;
            let losses = reference(learner.name(), scores, &w, samples);
            let sum: f64 = losses.iter().zip(&weights).map(|(l, q)| l * f64::from(*q)).sum();
            sum / n as f64
        };
        // The third derivative is below 2^3 times 1, the step 1e-4: its term is below 1e-7.
        let right = (mean(at + 1e-4) - mean(at - 1e-4)) / 2e-4;
        w[i] = at;
        let found = f64::from(gradient[i]);
        assert!((found - right).abs() < 2e-5 * (1.0 + right.abs()), "{i}: {found} {right}");
    }
}

#[test]
fn losses_and_gradients_are_those_of_the_definition() {
    for (n, features) in [(1, 1), (5, 7), (9, 16), (6, 37), (300, 3)] {
        for intercept in [false, true] {
            let mut stream = Key::root(6).stream();
            let values = Targets::Values((0..n).map(|_| stream.uniform() as f32).collect());
            let linear = Linear::new(features, intercept);
            check_against_the_definition(&linear, 1, &samples(n, features, values));
            let two = samples(n, features, classes(n, 2));
            check_against_the_definition(&Logistic::new(features, intercept), 1, &two);
            for count in [2, 3, 7] {
                let many = samples(n, features, classes(n, count));
                let softmax = Softmax::new(features, count, intercept);
                check_against_the_definition(&softmax, count, &many);
            }
        }
    }
}

#[test]
fn all_losses_at_once_are_the_losses_one_by_one() {
    let data = samples(301, 21, classes(301, 2));
    for learner in [&Logistic::new(21, true) as &dyn Learner, &Softmax::new(21, 3, true)] {
        let mut stream = Key::root(8).stream();
        let mut draw = || -> Vec<f32> {
            (0..learner.parameters()).map(|_| stream.uniform() as f32 - 0.5).collect()
        };
        let all = [draw(), draw(), draw(), draw(), draw()];
        let views: Vec<&[f32]> = all.iter().map(Vec::as_slice).collect();
        let (mut room, mut together) = (Room::default(), vec![0.0; 5 * 301]);
        learner.losses_of_all(&views, Batch::all(&data), &mut room, &mut together);
        assert_eq!(all.len(), 5);
        for (w, together) in all.iter().zip(together.chunks_exact(301)) {
            let mut alone = vec![0.0; 301];
            learner.losses(w, Batch::all(&data), &mut room, &mut alone);
            assert_eq!(alone, together);
        }
    }
}

#[test]
fn places_and_bytes_mean_the_rows_they_name() {
    let bytes: Vec<u8> = (0..30).map(|i| (i * 37 % 256) as u8).collect();
    let real = bytes.iter().map(|x| f32::from(*x) / 255.0).collect();
    let targets = Targets::Classes { of: vec![0, 1, 2, 1, 0, 2], count: 3 };
    let of_bytes = Samples::new(vec![5], Inputs::Bytes(bytes), targets.clone()).unwrap();
    let of_reals = Samples::new(vec![5], Inputs::Real(real), targets).unwrap();
    let learner = Softmax::new(5, 3, true);
    let w: Vec<f32> = (0..18).map(|i| (i as f32 * 0.7).sin()).collect();
    let places = [4u32, 0, 5, 5];
    let mut found = Vec::new();
    for samples in [&of_bytes, &of_reals] {
        let mut room = Room::default();
        let (mut gradient, mut losses) = (vec![0.0; 18], vec![0.0; 4]);
        let batch = Batch::at(samples, &places);
        let key = Key::root(0);
        learner.gradient(&w, batch, None, key, &mut room, &mut gradient, &mut losses);
        let mut predictions = vec![0.0; 12];
        learner.predict(&w, batch, &mut room, &mut predictions);
        found.push((gradient, losses, predictions));
    }
    assert_eq!(found[0], found[1]);
    let picked = of_reals.at(&[4, 0, 5, 5]);
    let (mut room, mut losses) = (Room::default(), vec![0.0; 4]);
    learner.losses(&w, Batch::all(&picked), &mut room, &mut losses);
    assert_eq!(losses, found[0].1);
    for (j, p) in found[0].2.chunks_exact(3).enumerate() {
        // Rounding of three quotients; the loss is minus the logarithm of the class's probability.
        assert!((p.iter().sum::<f32>() - 1.0).abs() < 4e-7);
        let class = [0, 0, 2, 2][j];
        assert!((-p[class].ln() - losses[j]).abs() < 1e-6);
    }
}

#[test]
fn other_data_are_refused_by_name() {
    let learner = Logistic::new(3, true);
    let refused = |samples: &Samples| learner.check(samples).unwrap_err().to_string();
    assert!(refused(&samples(4, 2, classes(4, 2))).contains("takes 3 features, the data have 2"));
    assert!(refused(&samples(4, 3, classes(4, 3))).contains("2 classes, the data have 3"));
    assert!(refused(&samples(1, 3, Targets::Values(vec![1.0]))).contains("not numbers"));
    let symbols = Samples::new(vec![3], Inputs::Symbols(vec![1, 2, 3]), classes(1, 2)).unwrap();
    assert!(refused(&symbols).contains("not symbols"));
    assert!(Linear::new(3, false).check(&samples(4, 3, classes(4, 2))).is_err());
}

#[test]
fn predictions_of_two_classes_sum_to_one_at_any_score() {
    let data =
        Samples::new(vec![1], Inputs::Real(vec![-200.0, -1.0, 0.0, 1.0, 200.0]), classes(5, 2))
            .unwrap();
    let mut predictions = vec![0.0; 10];
    Logistic::new(1, false).predict(
        &[1.0],
        Batch::all(&data),
        &mut Room::default(),
        &mut predictions,
    );
    assert_eq!(predictions[..2], [1.0, 0.0]);
    assert_eq!(predictions[4..6], [0.5, 0.5]);
    assert_eq!(predictions[8..], [0.0, 1.0]);
    assert!((predictions[7] - 0.731_058_6).abs() < 1e-6 && predictions[2] == predictions[7]);
}

/// Along random directions, near zero and far from it.
#[test]
fn the_largest_curvature_bounds_that_of_the_losses() {
    let n = 40;
    let targets = Targets::Values((0..n).map(|j| j as f32 / 10.0).collect());
    let learners: [(Box<dyn Learner>, Samples); 3] = [
        (Box::new(Linear::new(5, true)), samples(n, 5, targets)),
        (Box::new(Logistic::new(5, true)), samples(n, 5, classes(n, 2))),
        (Box::new(Softmax::new(5, 3, false)), samples(n, 5, classes(n, 3))),
    ];
    for (learner, samples) in &learners {
        let bound = learner.largest_curvature(samples).unwrap();
        let mut stream = Key::root(6).stream();
        let (batch, mut room) = (Batch::all(samples), Room::default());
        let d = learner.parameters();
        let mut slope = |w: &[f64], v: &[f64]| -> f64 {
            let (mut gradient, mut losses) = (vec![0.0f32; d], vec![0.0f32; n]);
            let w: Vec<f32> = w.iter().map(|w| *w as f32).collect();
            let key = Key::root(0);
            learner.gradient(&w, batch, None, key, &mut room, &mut gradient, &mut losses);
            gradient.iter().zip(v).map(|(g, v)| n as f64 * f64::from(*g) * v).sum()
        };
        let mut largest = 0.0f64;
        for draw in 0..200 {
            let size = if draw % 2 == 0 { 0.01 } else { 1.0 };
            let w: Vec<f64> = (0..d).map(|_| size * stream.normal()).collect();
            let v: Vec<f64> = (0..d).map(|_| stream.normal()).collect();
            let moved = |step: f64| w.iter().zip(&v).map(|(w, v)| w + step * v).collect::<Vec<_>>();
            let along = (slope(&moved(1e-2), &v) - slope(&moved(-1e-2), &v)) / 2e-2;
            largest = largest.max(along / vector::norm2_squared(&v));
        }
        // Gradients have single precision; random directions see a part of the largest eigenvalue.
        assert!(largest <= bound * (1.0 + 1e-3), "{}: {largest} {bound}", learner.name());
        assert!(largest > 0.1 * bound, "{}: {largest} {bound}", learner.name());
    }
}
