//! Laws of all networks.

use whimbrel_core::{Inputs, Key, Samples, Targets};
use whimbrel_nn::{
    Architecture, Batch, Learner, Network, Optimiser, OptimiserState, Role, Room, Tensor,
};

/// Samples that suit an architecture: pixels, or symbols for sequences.
pub(crate) fn samples(architecture: &Architecture, n: usize) -> Samples {
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

/// Gradient and losses of some samples from a given start.
fn gradient(
    network: &dyn Learner,
    w: &[f32],
    batch: Batch<'_>,
    weights: Option<&[f32]>,
    room: &mut Room,
) -> (Vec<f32>, Vec<f32>) {
    let (mut gradient, mut losses) = (vec![f32::NAN; w.len()], vec![f32::NAN; batch.len()]);
    network.gradient(w, batch, weights, Key::root(7), room, &mut gradient, &mut losses);
    (gradient, losses)
}

#[test]
fn the_head_is_the_last_dense_layer() {
    for architecture in small() {
        let network = architecture.build().unwrap();
        let heads: Vec<&str> = network
            .tensors()
            .iter()
            .filter(|tensor| tensor.role == Role::Head)
            .map(|tensor| tensor.name.as_str())
            .collect();
        assert_eq!(heads, ["head.weight", "head.bias"]);
    }
}

/// Without dropout, the head's part of the gradient equals that of the separate head on the activations below
/// it, bit for bit, as do losses and predictions; the key has no effect.
#[test]
fn a_head_by_itself_has_the_same_gradient() {
    for architecture in small() {
        let network = Architecture { dropout: false, ..architecture.clone() }.build().unwrap();
        let data = samples(&architecture, 150);
        let w = network.start(Key::root(1));
        let Some((head, inputs)) = network.head_on(&w, &data) else {
            let batch_norm = |tensor: &Tensor| tensor.role == Role::Statistic;
            assert!(network.tensors().iter().any(batch_norm), "{}", network.name());
            continue;
        };
        let places: Vec<u32> = (0..140).map(|i| (i * 7) % 150).collect();
        let (whole, losses) =
            gradient(&*network, &w, Batch::at(&data, &places), None, &mut Room::default());
        let z = &w[w.len() - head.parameters()..];
        let (mut alone, mut theirs) = (vec![f32::NAN; z.len()], vec![f32::NAN; places.len()]);
        let (batch, key) = (Batch::at(&inputs, &places), Key::root(8));
        head.gradient(z, batch, None, key, &mut Room::default(), &mut alone, &mut theirs);
        assert_eq!(alone, whole[w.len() - z.len()..], "{}", network.name());
        assert_eq!(theirs, losses, "{}", network.name());
        let predict = |learner: &dyn Learner, w: &[f32], samples: &Samples| {
            let mut all = vec![f32::NAN; samples.len() * learner.outputs()];
            learner.predict(w, Batch::all(samples), &mut Room::default(), &mut all);
            all
        };
        assert_eq!(
            predict(&*head, z, &inputs),
            predict(&*network, &w, &data),
            "{}",
            network.name()
        );
    }
}

/// Reused buffers, copied samples and repeated runs give the same bits.
#[test]
fn bits_depend_on_the_arguments_alone() {
    let mut used = Room::default();
    for architecture in small() {
        let network = architecture.build().unwrap();
        let data = samples(&architecture, 6);
        let w = network.start(Key::root(1));
        assert_eq!(w, network.start(Key::root(1)));
        assert_ne!(w, network.start(Key::root(2)));
        let places = [4u32, 0, 5];
        let fresh = gradient(&*network, &w, Batch::at(&data, &places), None, &mut Room::default());
        let again = gradient(&*network, &w, Batch::at(&data, &places), None, &mut used);
        let picked = data.at(&[4, 0, 5]);
        let copied = gradient(&*network, &w, Batch::all(&picked), None, &mut used);
        assert!(fresh == again && fresh == copied, "{}", network.name());
    }
}

/// In an evaluation a sample's loss does not depend on the others, and predictions are its
/// probabilities; without dropout and batch statistics it is the loss in training.
#[test]
fn evaluations_are_by_sample() {
    for architecture in small() {
        let network = architecture.build().unwrap();
        let data = samples(&architecture, 19);
        let w = network.start(Key::root(1));
        let mut room = Room::default();
        let (mut losses, mut alone) = (vec![0.0; 19], vec![0.0; 1]);
        network.losses(&w, Batch::all(&data), &mut room, &mut losses);
        let mut predictions = vec![0.0; 19 * network.outputs()];
        network.predict(&w, Batch::all(&data), &mut room, &mut predictions);
        let Targets::Classes { of, .. } = &data.targets else { unreachable!() };
        for j in 0..19 {
            network.losses(&w, Batch::at(&data, &[j as u32]), &mut room, &mut alone);
            assert_eq!(alone[0], losses[j], "{}", network.name());
            let p = &predictions[j * network.outputs()..][..network.outputs()];
            assert!((p.iter().sum::<f32>() - 1.0).abs() < 1e-6);
            assert!((-p[usize::from(of[j])].ln() - losses[j]).abs() < 1e-5 * (1.0 + losses[j]));
        }
        if ["mlp", "lenet", "lstm"].contains(&network.name()) {
            let (_, trained) = gradient(&*network, &w, Batch::all(&data), None, &mut room);
            assert_eq!(trained, losses, "{}", network.name());
        }
    }
}

/// The gradient of a batch that is taken in several chunks is the weighted mean over samples.
#[test]
fn gradients_of_long_batches_are_sums_over_chunks() {
    let architecture = &small()[0];
    let network = architecture.build().unwrap();
    // More than are computed at a time.
    let n = 168;
    let data = samples(architecture, n);
    let w = network.start(Key::root(1));
    let mut room = Room::default();
    let (whole, losses) = gradient(&*network, &w, Batch::all(&data), None, &mut room);
    let mut mean = vec![0.0f64; w.len()];
    for (j, whole_loss) in losses.iter().enumerate() {
        let (one, loss) = gradient(&*network, &w, Batch::at(&data, &[j as u32]), None, &mut room);
        assert_eq!(loss[0], *whole_loss);
        mean.iter_mut().zip(one).for_each(|(sum, g)| *sum += f64::from(g) / n as f64);
    }
    assert_eq!(whole.len(), mean.len());
    for (found, right) in whole.iter().zip(mean) {
        // Sums of 168 numbers of order 1 / 168 in `f32`.
        assert!((f64::from(*found) - right).abs() < 168.0 * 6e-8, "{found} {right}");
    }
    let (none, _) = gradient(&*network, &w, Batch::at(&data, &[]), None, &mut room);
    assert!(none.iter().all(|g| *g == 0.0));
}

/// Each network memorises six samples: its loss falls below a tenth of the logarithm of the number of
/// classes.
#[test]
fn every_network_overfits_a_handful_of_samples() {
    for architecture in small() {
        let network = architecture.build().unwrap();
        let data = samples(&architecture, 6);
        let mut w = network.start(Key::root(1));
        let (mut room, mut state) = (Room::default(), OptimiserState::default());
        let (mut gradient, mut losses) = (vec![0.0; w.len()], vec![0.0; 6]);
        let limit = 0.1 * (network.outputs() as f32).ln();
        let learnt = (0..300).any(|step| {
            let key = Key::root(5).child(step);
            let batch = Batch::all(&data);
            network.gradient(&w, batch, None, key, &mut room, &mut gradient, &mut losses);
            let tensors = network.tensors();
            Optimiser::adam(0.0).step(&mut state, 3e-3, None, tensors, &gradient, &mut w);
            losses.iter().sum::<f32>() / 6.0 < limit
        });
        assert!(learnt, "{}: {losses:?}", network.name());
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
            let network = architecture.build().unwrap();
            let data = samples(architecture, 6);
            let w = network.start(Key::root(1));
            let (_, losses) =
                gradient(&*network, &w, Batch::all(&data), None, &mut Room::default());
            (network.name(), losses.iter().sum::<f32>() / 6.0)
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
