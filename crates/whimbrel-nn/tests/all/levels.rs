//! The only test that pins the instruction-set level: every kernel gives the same bits at each.

use crate::networks::samples;
use whimbrel_core::Key;
use whimbrel_core::isa::{self, Isa};
use whimbrel_nn::{Architecture, Batch, Room};

/// Losses, gradients and predictions of small learners that use every layer, as bits.
fn fingerprint() -> Vec<u32> {
    let lstm = Architecture { hidden: vec![9], ..Architecture::new("lstm", &[3], 5) };
    let mlp = Architecture { hidden: vec![10], ..Architecture::new("mlp", &[7], 3) };
    let all = [
        Architecture::new("logistic", &[37], 2),
        Architecture::new("softmax", &[21], 7),
        mlp,
        Architecture::new("cnn", &[1, 6, 7], 3),
        Architecture::new("mobilenet-v2", &[1, 4, 4], 2),
        lstm,
    ];
    let mut bits = Vec::new();
    for architecture in all {
        let learner = architecture.build().unwrap();
        let samples = samples(&architecture, 3);
        let key = Key::root(1);
        let mut w = learner.start(key);
        let mut stream = key.stream();
        w.iter_mut().for_each(|w| *w += 0.1 * stream.uniform() as f32);
        let (mut room, batch) = (Room::default(), Batch::all(&samples));
        let (mut gradient, mut losses) = (vec![0.0; w.len()], vec![0.0; 3]);
        learner.gradient(&w, batch, None, key, &mut room, &mut gradient, &mut losses);
        let mut predictions = vec![0.0; 3 * learner.outputs()];
        learner.predict(&w, batch, &mut room, &mut predictions);
        bits.extend(gradient.iter().chain(&losses).chain(&predictions).map(|x| x.to_bits()));
    }
    bits
}

#[test]
fn every_level_gives_the_same_bits() {
    let used = isa::level();
    isa::pin(Isa::Baseline);
    let plain = fingerprint();
    for wanted in [Isa::V3, Isa::V4] {
        let level = isa::pin(wanted);
        assert!(fingerprint() == plain, "{} differs from the baseline", level.name());
    }
    isa::pin(used);
}
