//! Networks against their definitions in `f64`, and laws of all networks.

use super::*;
use crate::{Architecture, Optimiser, OptimiserState};

/// Samples that suit an architecture: pixels, or symbols for sequences.
fn samples(architecture: &Architecture, n: usize) -> Samples {
    let mut stream = Key::root(11).stream();
    let width: usize = architecture.shape.iter().product();
    let inputs = if architecture.kind == "lstm" {
        let symbols = architecture.symbols.unwrap_or(architecture.classes) as u64;
        Inputs::Symbols((0..n * width).map(|_| stream.below(symbols) as u16).collect())
    } else {
        Inputs::Bytes((0..n * width).map(|_| stream.below(256) as u8).collect())
    };
    let count = architecture.classes;
    let of = (0..n).map(|_| stream.below(count as u64) as u16).collect();
    Samples::new(architecture.shape.clone(), inputs, Targets::Classes { of, count }).unwrap()
}

/// Every network, small enough for its definition.
fn small() -> Vec<Architecture> {
    let lstm = Architecture { hidden: vec![12], ..Architecture::new("lstm", &[7], 9) };
    let mlp = Architecture { hidden: vec![20, 11], ..Architecture::new("mlp", &[9], 4) };
    vec![
        mlp,
        Architecture::new("cnn", &[1, 8, 9], 5),
        Architecture::new("lenet", &[1, 28, 28], 4),
        Architecture::new("mobilenet-v2", &[3, 32, 32], 4),
        Architecture::new("resnet-18", &[3, 8, 8], 4),
        lstm,
    ]
}

fn network(architecture: &Architecture) -> Network {
    let Architecture { shape, classes, hidden, .. } = architecture;
    let image = || [shape[0], shape[1], shape[2]];
    match architecture.kind.as_str() {
        "mlp" => Network::mlp(shape[0], hidden, *classes),
        "cnn" => Network::cnn(image(), *classes),
        "lenet" => Network::lenet(image(), *classes),
        "mobilenet-v2" => Network::mobilenet_v2(image(), *classes),
        "resnet-18" => Network::resnet_18(image(), *classes),
        _ => Network::lstm(shape[0], *classes, architecture.embedding, hidden[0], *classes),
    }
}

/// The losses of all samples in `f64`, as in training.
fn reference(network: &Network, w: &[f64], samples: &Samples, key: Key) -> Vec<f64> {
    let Targets::Classes { of, .. } = &samples.targets else { unreachable!() };
    let chunk = Chunk { batch: Batch::all(samples), from: 0, count: samples.len() };
    let pass = chunk.pass(true, key.child(0));
    let n = pass.padded;
    let mut x = vec![0.0; network.input.len() * n];
    chunk.read(&mut x, n);
    let x: Vec<f64> = x.into_iter().map(f64::from).collect();
    let scores = network.chain.reference(pass, w, &x);
    let score = |class: usize, j: usize| scores[class * n + j];
    let loss = |j: usize| {
        let sum: f64 = (0..network.classes).map(|c| score(c, j).exp()).sum();
        sum.ln() - score(usize::from(of[j]), j)
    };
    (0..samples.len()).map(loss).collect()
}

/// Gradient and losses of some samples from a given start.
fn gradient(
    network: &Network,
    w: &[f32],
    batch: Batch<'_>,
    weights: Option<&[f32]>,
    room: &mut Room,
) -> (Vec<f32>, Vec<f32>) {
    let (mut gradient, mut losses) = (vec![f32::NAN; w.len()], vec![f32::NAN; batch.len()]);
    network.gradient(w, batch, weights, Key::root(7), room, &mut gradient, &mut losses);
    (gradient, losses)
}

/// The norm of a step of central differences.
const STEP: f64 = 1e-6;

/// Losses, and derivatives along random directions that move one tensor each, against the definition.
#[test]
fn losses_and_gradients_are_those_of_the_definition() {
    for architecture in small() {
        let network = network(&architecture);
        let data = samples(&architecture, 5);
        network.check(&data).unwrap();
        let w = network.start(Key::root(1));
        let q = [0.9, 0.1, 0.5, 1.0, 0.3];
        let (found, losses) =
            gradient(&network, &w, Batch::all(&data), Some(&q), &mut Room::default());
        let wide: Vec<f64> = w.iter().map(|w| f64::from(*w)).collect();
        let key = Key::root(7);
        let right = reference(&network, &wide, &data, key);
        // Twenty to fifty layers of `f32`, each adding about 1e-6 of its numbers' size.
        assert_eq!(losses.len(), right.len());
        for (loss, right) in losses.iter().zip(&right) {
            let error = (f64::from(*loss) - right).abs();
            assert!(error < 1e-4 * (1.0 + right), "{}: {loss} {right}", network.name);
        }
        let mean = |w: &[f64]| -> f64 {
            let losses = reference(&network, w, &data, key);
            losses.iter().zip(&q).map(|(l, q)| l * f64::from(*q)).sum::<f64>() / 5.0
        };
        // At most a dozen tensors: the definition is slow.
        let every = network.tensors.len().div_ceil(12);
        let (mut from, mut stream) = (0, Key::root(3).stream());
        for (t, tensor) in network.tensors.iter().enumerate() {
            let to = from + tensor.len();
            let place = from..to;
            from = to;
            if tensor.role == Role::Statistic || t % every != every / 2 {
                continue;
            }
            // A short step, since batch norms of few samples bend the loss sharply and rectified
            // numbers have kinks; rounding errs by about 1e-14 / 1e-6.
            let step = STEP / (tensor.len() as f64).sqrt();
            let direction: Vec<f64> =
                place.clone().map(|_| if stream.uniform() < 0.5 { step } else { -step }).collect();
            let moved = |sign: f64| {
                let mut w = wide.clone();
                w[place.clone()].iter_mut().zip(&direction).for_each(|(w, d)| *w += sign * d);
                mean(&w)
            };
            let right = (moved(1.0) - moved(-1.0)) / (2.0 * STEP);
            let part = &found[place.clone()];
            let along: f64 = part.iter().zip(&direction).map(|(g, d)| f64::from(*g) * d).sum();
            let norm = part.iter().map(|g| f64::from(*g).powi(2)).sum::<f64>().sqrt();
            let error = (along / STEP - right).abs();
            assert!(
                error < 2e-3 * norm + 1e-6,
                "{} {}: {} {right}, norm {norm}",
                network.name,
                tensor.name,
                along / STEP
            );
        }
    }
}

#[test]
fn the_head_is_the_last_dense_layer() {
    for architecture in small() {
        let network = network(&architecture);
        let heads: Vec<&str> = network
            .tensors
            .iter()
            .filter(|tensor| tensor.role == Role::Head)
            .map(|tensor| tensor.name.as_str())
            .collect();
        assert_eq!(heads, ["head.weight", "head.bias"]);
        let statistics = network.tensors.iter().any(|tensor| tensor.role == Role::Statistic);
        assert_eq!(statistics, network.mixes_samples);
    }
}

/// Without dropout, the head's part of the gradient equals that of the separate head on the activations below
/// it, bit for bit, as do losses and predictions; the key has no effect.
#[test]
fn a_head_by_itself_has_the_same_gradient() {
    for architecture in small() {
        let network = network(&architecture).with_dropout(false);
        let data = samples(&architecture, 150);
        let w = network.start(Key::root(1));
        let Some((head, inputs)) = network.head_on(&w, &data) else {
            assert!(network.mixes_samples, "{}", network.name);
            continue;
        };
        let places: Vec<u32> = (0..140).map(|i| (i * 7) % 150).collect();
        let (whole, losses) =
            gradient(&network, &w, Batch::at(&data, &places), None, &mut Room::default());
        let z = &w[w.len() - head.parameters()..];
        let (mut alone, mut theirs) = (vec![f32::NAN; z.len()], vec![f32::NAN; places.len()]);
        let (batch, key) = (Batch::at(&inputs, &places), Key::root(8));
        head.gradient(z, batch, None, key, &mut Room::default(), &mut alone, &mut theirs);
        assert_eq!(alone, whole[w.len() - z.len()..], "{}", network.name);
        assert_eq!(theirs, losses, "{}", network.name);
        let predict = |learner: &dyn Learner, w: &[f32], samples: &Samples| {
            let mut all = vec![f32::NAN; samples.len() * learner.outputs()];
            learner.predict(w, Batch::all(samples), &mut Room::default(), &mut all);
            all
        };
        assert_eq!(predict(&*head, z, &inputs), predict(&network, &w, &data), "{}", network.name);
    }
}

/// Reused buffers, copied samples and repeated runs give the same bits.
#[test]
fn bits_depend_on_the_arguments_alone() {
    let mut used = Room::default();
    for architecture in small() {
        let network = network(&architecture);
        let data = samples(&architecture, 6);
        let w = network.start(Key::root(1));
        assert_eq!(w, network.start(Key::root(1)));
        assert_ne!(w, network.start(Key::root(2)));
        let places = [4u32, 0, 5];
        let fresh = gradient(&network, &w, Batch::at(&data, &places), None, &mut Room::default());
        let again = gradient(&network, &w, Batch::at(&data, &places), None, &mut used);
        let picked = data.at(&[4, 0, 5]);
        let copied = gradient(&network, &w, Batch::all(&picked), None, &mut used);
        assert!(fresh == again && fresh == copied, "{}", network.name);
    }
}

/// In an evaluation a sample's loss does not depend on the others, and predictions are its
/// probabilities; without dropout and batch statistics it is the loss in training.
#[test]
fn evaluations_are_by_sample() {
    for architecture in small() {
        let network = network(&architecture);
        let data = samples(&architecture, 19);
        let w = network.start(Key::root(1));
        let mut room = Room::default();
        let (mut losses, mut alone) = (vec![0.0; 19], vec![0.0; 1]);
        network.losses(&w, Batch::all(&data), &mut room, &mut losses);
        let mut predictions = vec![0.0; 19 * network.classes];
        network.predict(&w, Batch::all(&data), &mut room, &mut predictions);
        let Targets::Classes { of, .. } = &data.targets else { unreachable!() };
        for j in 0..19 {
            network.losses(&w, Batch::at(&data, &[j as u32]), &mut room, &mut alone);
            assert_eq!(alone[0], losses[j], "{}", network.name);
            let p = &predictions[j * network.classes..][..network.classes];
            assert!((p.iter().sum::<f32>() - 1.0).abs() < 1e-6);
            assert!((-p[usize::from(of[j])].ln() - losses[j]).abs() < 1e-5 * (1.0 + losses[j]));
        }
        if ["mlp", "lenet", "lstm"].contains(&network.name) {
            let (_, trained) = gradient(&network, &w, Batch::all(&data), None, &mut room);
            assert_eq!(trained, losses, "{}", network.name);
        }
    }
}

/// The gradient of a batch that is taken in several chunks is the weighted mean over samples.
#[test]
fn gradients_of_long_batches_are_sums_over_chunks() {
    let architecture = &small()[0];
    let network = network(architecture);
    let n = CHUNK + 40;
    let data = samples(architecture, n);
    let w = network.start(Key::root(1));
    let mut room = Room::default();
    let (whole, losses) = gradient(&network, &w, Batch::all(&data), None, &mut room);
    let mut mean = vec![0.0f64; w.len()];
    for (j, whole_loss) in losses.iter().enumerate() {
        let (one, loss) = gradient(&network, &w, Batch::at(&data, &[j as u32]), None, &mut room);
        assert_eq!(loss[0], *whole_loss);
        mean.iter_mut().zip(one).for_each(|(sum, g)| *sum += f64::from(g) / n as f64);
    }
    assert_eq!(whole.len(), mean.len());
    for (found, right) in whole.iter().zip(mean) {
        // Sums of 168 numbers of order 1 / 168 in `f32`.
        assert!((f64::from(*found) - right).abs() < 168.0 * 6e-8, "{found} {right}");
    }
    let (none, _) = gradient(&network, &w, Batch::at(&data, &[]), None, &mut room);
    assert!(none.iter().all(|g| *g == 0.0));
}

/// Each network memorises six samples: its loss falls below a tenth of the logarithm of the number of
/// classes.
#[test]
fn every_network_overfits_a_handful_of_samples() {
    for architecture in small() {
        let network = network(&architecture);
        let data = samples(&architecture, 6);
        let mut w = network.start(Key::root(1));
        let (mut room, mut state) = (Room::default(), OptimiserState::default());
        let (mut gradient, mut losses) = (vec![0.0; w.len()], vec![0.0; 6]);
        let limit = 0.1 * (network.classes as f32).ln();
        let learnt = (0..300).any(|step| {
            let key = Key::root(5).child(step);
            let batch = Batch::all(&data);
            network.gradient(&w, batch, None, key, &mut room, &mut gradient, &mut losses);
            let tensors = network.tensors();
            Optimiser::adam(0.0).step(&mut state, 3e-3, None, tensors, &gradient, &mut w);
            losses.iter().sum::<f32>() / 6.0 < limit
        });
        assert!(learnt, "{}: {losses:?}", network.name);
    }
}

#[test]
fn other_inputs_are_refused_by_name() {
    let cnn = Network::cnn([1, 28, 28], 10);
    let image = |shape: &[usize]| samples(&Architecture::new("cnn", shape, 10), 2);
    let refused = cnn.check(&image(&[3, 32, 32])).unwrap_err().to_string();
    assert!(
        refused.contains("takes images of 1 x 28 x 28, the data have [3, 32, 32]"),
        "{refused}"
    );
    assert!(cnn.check(&image(&[1, 28, 28])).is_ok());
    let eleven = samples(&Architecture::new("cnn", &[1, 28, 28], 11), 2);
    assert!(cnn.check(&eleven).unwrap_err().to_string().contains("10 classes, the data have 11"));
    let lstm = Network::lstm(7, 5, 8, 4, 9);
    let sequences = samples(&Architecture::new("lstm", &[7], 9), 20);
    let refused = lstm.check(&sequences).unwrap_err().to_string();
    assert!(refused.contains("knows 5 symbols; sample"), "{refused}");
    assert!(lstm.check(&image(&[1, 28, 28])).is_err());
}

/// First mean losses, which fix the initialisation, the draws and the order of every sum.
#[test]
fn first_losses_are_golden() {
    let found: Vec<(&str, f32)> = small()
        .iter()
        .map(|architecture| {
            let network = network(architecture);
            let data = samples(architecture, 6);
            let w = network.start(Key::root(1));
            let (_, losses) = gradient(&network, &w, Batch::all(&data), None, &mut Room::default());
            (network.name, losses.iter().sum::<f32>() / 6.0)
        })
        .collect();
    let golden = [
        ("mlp", 1.3346205),
        ("cnn", 1.6352304),
        ("lenet", 1.4100949),
        ("mobilenet-v2", 1.3914887),
        ("resnet-18", 0.95630956),
        ("lstm", 2.1358755),
    ];
    assert_eq!(found, golden);
}
