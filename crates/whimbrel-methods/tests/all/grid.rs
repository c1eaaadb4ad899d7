//! Uploads on a shared grid: as many rounds as exact uploads, and sums in place of uploads.

use crate::federation::*;
use crate::invariants::check_memories;
use crate::{personal, sgd};
use std::collections::BTreeMap;
use whimbrel_codec::channel::{Preset, UpRule};
use whimbrel_codec::{Codec, Inclusion, SharedGrid};
use whimbrel_core::method::{Bind, Done, Sender};
use whimbrel_core::{ClientData, ClientId, Key, Method, Probability, Segment, Wire};
use whimbrel_data::Sizes;
use whimbrel_engine::{Faults, Participation, Protocol};
use whimbrel_methods::fedem::{AutoStep, DownNoise, FirstMemories, FrameKind};
use whimbrel_methods::federated::BindRows;
use whimbrel_methods::masked::Sums;
use whimbrel_methods::personal::FedAvg;
use whimbrel_testkit::pairs;

pub fn codec(bits: u32, clients: usize, inclusion: Inclusion) -> Codec {
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
    // The automatic step of a grid, for exact uploads too.
    let steps = |step: &str, codec: Codec| Setup {
        auto: (step == "auto").then(|| auto(&equal(16, 1.0), 1.0)),
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

/// Over openings and rounds, a sum of words is absorbed like the uploads.
#[test]
fn a_fold_of_one_sum_is_the_fold_of_its_uploads() {
    let codec = codec(16, 6, Inclusion::Equal(1.0));
    let method = Setup { codec, frame: FrameKind::Fisher, ..dithered(5) }.typed();
    let data: Vec<_> = unequal(6)
        .into_iter()
        .map(|table| BindRows.bind(&method, &ClientData::Table(table)).unwrap())
        .collect();
    let key = Key::root(8);
    let enrolled = data.iter().map(|data| method.enroll(data, key).unwrap());
    let (mut clients, summaries): (Vec<_>, Vec<_>) = enrolled.unzip();
    let ids = (0..6).map(ClientId);
    let mut server = method.start(&mut ids.clone().zip(summaries.clone()), key).unwrap();
    let mut peers: Vec<_> =
        ids.zip(&summaries).map(|(id, s)| method.admit(&mut server, id, s).unwrap()).collect();
    for exchange in 0..5 {
        let key = key.child(exchange);
        let (broadcast, mut each) = method.open(&server, &[]).unwrap();
        let (mut at_once, mut sums) = (each.clone(), Vec::<Segment>::new());
        for i in 0..6 {
            let (peer, down) = method.downlink(&server, &broadcast, &peers[i], key).unwrap();
            let key = key.child(i as u64);
            let Done { client, up, .. } =
                method.local_step(&clients[i], &down, &data[i], key).unwrap();
            for (at, segment) in method.words(&up).unwrap().into_iter().enumerate() {
                match sums.get_mut(at) {
                    None => sums.push(segment),
                    Some(sum) => add(sum, &segment),
                }
            }
            (peers[i], clients[i]) = (peer, client);
            let from = Sender { id: ClientId(i as u32), inclusion: 1.0, peer: &peers[i] };
            method.absorb(&mut each, from, up).unwrap();
        }
        for (i, peer) in peers.iter().enumerate() {
            let from = Sender { id: ClientId(i as u32), inclusion: 1.0, peer };
            method.absorb_sender(&mut at_once, from).unwrap();
        }
        method.absorb_words(&mut at_once, &sums).unwrap();
        assert!(at_once.to_bytes() == each.to_bytes(), "exchange {exchange}");
        server = method.server_step(server, at_once, key).unwrap();
    }
    assert_eq!(server.round, 4);
}

fn add(sum: &mut Segment, other: &Segment) {
    for (sum, word) in sum.words.iter_mut().zip(&other.words) {
        *sum = sum.wrapping_add(*word);
    }
}

/// Least squares without noise: Diana on a grid against exact gradients, for everyone and for samples.
#[test]
fn diana_on_a_grid_converges_like_exact_gradients() {
    let data = sgd::examples(0.0);
    for (p, participation) in [(1.0, Participation::Everyone), (0.5, bernoulli(0.5))] {
        let excess = |up| {
            let setup = sgd::Setup { up, rounds: 400, ..sgd::Setup::of(Preset::Diana) };
            setup.run(&data, participation.clone()).1
        };
        let exact = excess(Codec::Exact);
        let grid = excess(codec(16, data.len(), Inclusion::Equal(p)));
        println!("p = {p}: grid {grid:?}, exact {exact:?}");
        for (grid, exact) in pairs(&grid, &exact) {
            assert!(*grid < 10.0 * exact + 1e-20, "p = {p}: {grid:e}, exact {exact:e}");
        }
    }
}

/// Local training ends where it ends with exact uploads, with memories and without.
#[test]
fn fedavg_on_a_grid_follows_exact_uploads() {
    let data = personal::clients(true);
    let base = || personal::Setup::with_everyone(FedAvg { mu: 0.0, fine_tune: false }, 60, None);
    let exact = base().run(&data, Participation::Everyone);
    for rule in [UpRule::Plain, UpRule::Memory { alpha: 0.9 }] {
        let codec = codec(16, data.len(), Inclusion::Equal(1.0));
        let grid = base().over(codec, rule).run(&data, Participation::Everyone);
        let wide = |w: &[f32]| w.iter().map(|w| f64::from(*w)).collect::<Vec<_>>();
        let gap = relative_gap(&wide(&grid), &wide(&exact));
        println!("{rule:?}: {gap:e}");
        assert!(gap < 0.02, "{rule:?}: {gap:e}");
    }
}
