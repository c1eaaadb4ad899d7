//! Uploads on a shared grid: as many rounds as exact uploads, and sums in place of uploads.

use crate::federation::*;
use crate::invariants::check_memories;
use crate::{personal, sgd};
use std::collections::BTreeMap;
use whimbrel_codec::channel::{DownRule, Memories};
use whimbrel_codec::{Codec, Inclusion, SharedGrid};
use whimbrel_core::{ClientData, ClientId, Key, Method, Probability};
use whimbrel_data::Sizes;
use whimbrel_engine::{Faults, Participation, Protocol};
use whimbrel_methods::fedem::{AutoStep, DownNoise, FirstMemories, Form, FrameKind};
use whimbrel_methods::federated::{ExchangeKind, Split, Up};
use whimbrel_methods::sgd::Preset;
use whimbrel_models::gmm::Covariance;

fn codec(bits: u32, clients: usize, inclusion: Inclusion) -> Codec {
    Codec::Grid(SharedGrid::new(bits).unwrap().among(clients as u32, inclusion))
}

fn auto(codec: &Codec, p: f64) -> AutoStep {
    let omega = codec.omega(1).unwrap();
    let downlink = DownNoise::None;
    AutoStep { omega, p, spider: None, downlink, falls: false, trusts: omega > 0.0 || p < 1.0 }
}

/// The first evaluated round at which `||h||²` is below 1e-20, every ten rounds.
fn rounds_to_the_end(setup: &Setup, participation: Participation) -> u32 {
    let tables = tables(100, Sizes::Equal(100));
    let fields = run(setup, &tables, participation, Faults::default(), 10).fields;
    let arrived = fields.iter().find(|(_, norm2)| *norm2 < 1e-20);
    arrived.unwrap_or_else(|| panic!("{:?}: {:?}", setup.codec, fields.last())).0
}

/// 100 heterogeneous clients, as in `heterogeneous.rs`: 16 bits leave each client 327 levels, 11 bits 10.
#[test]
fn a_grid_needs_no_more_rounds_than_exact_uploads() {
    let base = Setup { frame: FrameKind::Fisher, gamma: 0.1, rounds: 600, ..Setup::default() };
    let equal = |bits, p| codec(bits, 100, Inclusion::Equal(p));
    let steps = |step: &str, codec: Codec| Setup {
        auto: (step == "auto").then(|| auto(&codec, 1.0)),
        codec,
        ..base.clone()
    };
    for step in ["0.1", "auto"] {
        let exact = rounds_to_the_end(&steps(step, Codec::Exact), Participation::Everyone);
        for bits in [16, 11] {
            let setup = steps(step, equal(bits, 1.0));
            let rounds = rounds_to_the_end(&setup, Participation::Everyone);
            println!("step {step}, {bits} bits: {rounds} rounds, exact {exact}");
            assert!(rounds <= exact + 10, "step {step}, {bits} bits: {rounds}, exact {exact}");
        }
    }
    // Half of the clients a round.
    let sampled = || Participation::Bernoulli(Probability::new(0.5).unwrap());
    let exact = rounds_to_the_end(&steps("0.1", Codec::Exact), sampled());
    let rounds = rounds_to_the_end(&steps("0.1", equal(16, 0.5)), sampled());
    println!("half of the clients: {rounds} rounds, exact {exact}");
    assert!(rounds <= exact + exact / 5, "half of the clients: {rounds}, exact {exact}");
}

/// With lost uploads, late joiners, empty cohorts and every way to open memories.
#[test]
fn memories_of_both_ends_agree() {
    let tables = unequal(12);
    let late = Faults {
        lost: 0.3,
        late: BTreeMap::from([(ClientId(3), 10), (ClientId(7), 25)]),
        ..Faults::default()
    };
    let each: Vec<f64> = (0..12).map(|i| 0.3 + 0.05 * f64::from(i)).collect();
    let probability = |p: &f64| Probability::new(*p).unwrap();
    let unequal = Participation::PerClient {
        each: each.iter().map(probability).collect(),
        others: probability(&0.3),
    };
    let given = FirstMemories::Given(vec![0.5, -0.25, 1.0, 2.0, -1.0, 0.125]);
    for memories in [FirstMemories::Oracle, FirstMemories::Zero, given] {
        for (participation, inclusion, faults) in [
            (bernoulli(0.05), Inclusion::Equal(0.05), Faults::default()),
            (Participation::Fixed(4), Inclusion::Fixed(4), late.clone()),
            (Participation::Everyone, Inclusion::Equal(1.0), late.clone()),
            (
                unequal.clone(),
                Inclusion::Each { each: each.clone(), others: 0.3 },
                Faults::default(),
            ),
        ] {
            let codec = codec(16, 12, inclusion);
            let setup = Setup { codec, memories: memories.clone(), ..dithered(50) };
            let mut simulator = simulator(setup.erased(), &tables, participation, faults);
            while simulator.step().unwrap().is_some() {
                check_memories(&simulator);
            }
            assert_eq!(simulator.machine().round(), 50);
        }
    }
}
