//! The gradient family on least squares: reductions bit for bit, and linear convergence without
//! noise.

use crate::federation::{bernoulli, equal_terms, figure, finished, simulator_of};
use std::collections::BTreeMap;
use std::sync::Arc;
use whimbrel_codec::channel::{
    DownRule, Downlink, Memories, Preset, Reset, UpRule, Uplink, gradient_alpha,
};
use whimbrel_codec::{Codec, Norm};
use whimbrel_core::{ClientData, Erased, Key, Probability};
use whimbrel_data::LeastSquaresSpec;
use whimbrel_engine::{Faults, Participation};
use whimbrel_methods::federated::BindRows;
use whimbrel_methods::settings::Batch;
use whimbrel_methods::sgd::{Gradient, Reference, Server, Sgd, StepRule};
use whimbrel_models::convex::{Problem, solve};
use whimbrel_testkit::pairs;

const DIMS: usize = 20;
const CLIENTS: usize = 20;

/// The paper's toy set: clients alike, correlated columns.
pub fn examples(noise: f64) -> Vec<ClientData> {
    let spec = LeastSquaresSpec { clients: CLIENTS, dims: DIMS, noise, ..Default::default() };
    let drawn = spec.draw(Key::root(40)).unwrap();
    drawn.clients.into_iter().map(|(_, rows)| ClientData::Labelled(rows)).collect()
}

fn dither(levels: u32) -> Codec {
    Codec::dithering(levels, Norm::P(2), None).unwrap()
}

pub struct Setup {
    pub preset: Preset,
    pub up: Codec,
    pub down: Codec,
    pub groups: Option<u32>,
    pub memory: bool,
    pub batch: Batch,
    pub rounds: u32,
    pub over_l: f64,
}

impl Setup {
    pub fn of(preset: Preset) -> Self {
        Self {
            preset,
            up: dither(1),
            down: dither(1),
            groups: None,
            memory: true,
            batch: Batch::Full,
            rounds: 600,
            over_l: 0.5,
        }
    }

    pub fn method(&self, data: &[ClientData]) -> Arc<Erased<Sgd, BindRows>> {
        let problem = Problem::least_squares(0.0, false).unwrap();
        let bound: Vec<_> = data.iter().map(|d| problem.bind(d).unwrap()).collect();
        let weighted: Vec<_> = bound.iter().map(|e| (1.0 / CLIENTS as f64, e)).collect();
        let optimum = solve(&problem, &weighted, 1e-12).unwrap();
        let (up_compressed, down_compressed) = self.preset.compresses();
        let up = if up_compressed { self.up.clone() } else { Codec::Exact };
        let rule = match self.preset.uplink() {
            UpRule::Memory { .. } if !self.memory => UpRule::Plain,
            rule => rule.settled(gradient_alpha(up.omega(DIMS).unwrap_or(0.0))),
        };
        let down = if down_compressed { self.down.clone() } else { Codec::Exact };
        let omega = down.omega(DIMS).unwrap_or(0.0);
        let mut down_rule =
            self.preset.downlink().settled(gradient_alpha(omega), 1.0 / (1.0 + omega));
        if let (DownRule::Preserved { memories: Memories::Groups(groups @ 0), .. }, Some(given)) =
            (&mut down_rule, self.groups)
        {
            *groups = given;
        }
        let method = Sgd {
            oracle: Gradient {
                batch: self.batch,
                step: StepRule::OverSmoothness { factor: self.over_l, frobenius: false },
                reference: Some(Reference {
                    w: optimum.w,
                    f_star: optimum.f_star,
                    f_zero: optimum.f_zero,
                }),
                ..Gradient::new(problem, DIMS)
            },
            terms: equal_terms(
                Uplink::new(up, rule, DIMS).unwrap(),
                Downlink::new(down, down_rule, DIMS, false).unwrap(),
                self.rounds,
            ),
        };
        Arc::new(Erased(method, BindRows))
    }

    /// The final server state and the excess loss every 100 rounds.
    pub fn run(&self, data: &[ClientData], participation: Participation) -> (Server, Vec<f64>) {
        let faults = Faults::default();
        let mut simulator = simulator_of(self.method(data), data, 3, participation, faults);
        let mut excess = Vec::new();
        while let Some(done) = simulator.step().unwrap() {
            if done.round.is_some_and(|r| r.is_multiple_of(100)) {
                excess.push(figure(&mut simulator, "excess_loss"));
            }
        }
        (simulator.machine().server().downcast_ref::<Server>().unwrap().clone(), excess)
    }
}

fn everyone() -> Participation {
    Participation::Everyone
}

#[test]
fn without_noise_every_method_converges_linearly() {
    let data = examples(0.0);
    let mut slopes = BTreeMap::new();
    for preset in [
        Preset::Sgd,
        Preset::Diana,
        Preset::Artemis,
        Preset::Dore,
        Preset::Mcm,
        Preset::RandMcm,
        Preset::DoubleSqueeze,
        Preset::Ghost,
    ] {
        let (_, excess) = Setup::of(preset).run(&data, everyone());
        let last = excess.last().unwrap();
        // Scaled to a contraction, the codec of error feedback moves 1/(1 + omega) as far a round:
        // it is on its way, and the others have arrived.
        let limit = if preset == Preset::DoubleSqueeze { 1e-3 * excess[0] } else { 1e-12 };
        assert!(*last < limit, "{}: {last:e}", preset.name());
        slopes.insert(preset.name(), (excess[0].log10() - last.log10()) / 500.0);
    }
    let relative = |name: &str| slopes[name] / slopes["sgd"];
    assert!((relative("rand-mcm") - 1.0).abs() < 0.1, "{slopes:?}");
    assert!((relative("mcm") - 1.0).abs() < 0.25, "{slopes:?}");
}

/// What rounding to `f32` leaves out is relative to the difference that is sent, and differences
/// vanish.
#[test]
fn a_state_rounded_to_f32_on_its_way_down_is_no_obstacle() {
    let data = examples(0.0);
    for preset in [Preset::Artemis, Preset::Dore, Preset::Mcm, Preset::RandMcm] {
        let setup = Setup { down: Codec::ExactF32, ..Setup::of(preset) };
        let (_, excess) = setup.run(&data, everyone());
        let last = excess.last().unwrap();
        assert!(*last < 1e-12, "{}: {last:e}", preset.name());
    }
}

#[test]
fn reductions_hold_bit_for_bit() {
    let data = examples(0.3);
    let sampled = Batch::Sample { size: 10, replacement: true, local_steps: 1 };
    let of = |preset| Setup { batch: sampled, rounds: 60, ..Setup::of(preset) };
    let w = |setup: Setup| setup.run(&data, everyone()).0.global.w;
    let diana = w(of(Preset::Diana));
    assert_eq!(w(Setup { down: Codec::Exact, ..of(Preset::Mcm) }), diana);
    assert_eq!(w(Setup { down: Codec::Exact, ..of(Preset::RandMcm) }), diana);
    let qsgd = w(of(Preset::Qsgd));
    assert_eq!(w(Setup { memory: false, ..of(Preset::Diana) }), qsgd);
    assert_eq!(w(Setup { up: Codec::Exact, ..of(Preset::Qsgd) }), w(of(Preset::Sgd)));
    let mcm = w(of(Preset::Mcm));
    assert_eq!(w(Setup { groups: Some(1), ..of(Preset::RandMcmG) }), mcm);
    let rand = w(of(Preset::RandMcm));
    assert_eq!(w(Setup { groups: Some(CLIENTS as u32), ..of(Preset::RandMcmG) }), rand);
    assert_ne!(mcm, rand);
    assert_ne!(mcm, diana);
}

#[test]
fn with_noise_mcm_saturates_like_diana_and_artemis_higher() {
    let data = examples(0.5);
    let sampled = Batch::Sample { size: 5, replacement: true, local_steps: 1 };
    let plateau = |preset| {
        // A small step: the downlink's share of MCM's variance is of a higher order in it.
        let setup = Setup { batch: sampled, rounds: 6000, over_l: 0.05, ..Setup::of(preset) };
        let (_, excess) = setup.run(&data, everyone());
        excess[20..].iter().sum::<f64>() / (excess.len() - 20) as f64
    };
    let (diana, mcm, artemis) =
        (plateau(Preset::Diana), plateau(Preset::Mcm), plateau(Preset::Artemis));
    assert!(mcm < 2.0 * diana, "mcm {mcm:e}, diana {diana:e}");
    assert!(artemis > 2.0 * diana, "artemis {artemis:e}, diana {diana:e}");
}

#[test]
fn half_of_the_clients_a_round_is_enough_for_every_downlink() {
    let data = examples(0.0);
    let half = || Participation::Bernoulli(Probability::new(0.5).unwrap());
    for preset in [Preset::Diana, Preset::Artemis, Preset::Mcm, Preset::RandMcm, Preset::RandMcmG] {
        let setup = Setup { over_l: 0.2, rounds: 1500, groups: Some(4), ..Setup::of(preset) };
        let (_, excess) = setup.run(&data, half());
        let last = excess.last().unwrap();
        assert!(*last < 1e-12, "{}: {last:e}", preset.name());
    }
}

#[test]
fn a_single_memory_with_resets_converges() {
    let data = examples(0.0);
    let alpha = gradient_alpha(dither(1).omega(DIMS).unwrap());
    let single =
        DownRule::Preserved { alpha, memories: Memories::Single { reset: Reset::Every(18) } };
    let setup = Setup { over_l: 0.2, rounds: 1500, ..Setup::of(Preset::Mcm) };
    let mut method = setup.method(&data);
    Arc::get_mut(&mut method).expect("one owner").0.terms.downlink =
        Downlink::new(dither(1), single, DIMS, false).unwrap();
    let simulator = simulator_of(method.clone(), &data, 3, bernoulli(0.5), Faults::default());
    let server: Server = finished(simulator);
    let reference = method.0.oracle.reference.as_ref().unwrap();
    let gap: f64 = pairs(&server.global.w, &reference.w).map(|(a, b)| (a - b).powi(2)).sum();
    assert!(gap < 1e-6, "{gap:e}");
}
