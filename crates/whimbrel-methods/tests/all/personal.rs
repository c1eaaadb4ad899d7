//! Methods over local training: the battery, the same bits in every runner, and reductions.

use crate::fedmiss::{begun, cohort, dither};
use std::collections::BTreeMap;
use std::sync::Arc;
use whimbrel_codec::channel::{DownRule, Downlink, Memories, UpRule, Uplink};
use whimbrel_codec::{Codec, Inclusion};
use whimbrel_core::method::Artifact;
use whimbrel_core::{ClientData, DynMethod, Erased, Inputs, Key, Samples, Targets};
use whimbrel_engine::keys::StageKeys;
use whimbrel_engine::runner::Runner;
use whimbrel_engine::{Faults, Participation};
use whimbrel_methods::federated::{BindRows, FirstMemories, Terms};
use whimbrel_methods::personal::{
    Adaptive, Apfl, Clustered, ClusteredClients, Ditto, FedAvg, FedMix, FedOpt, FedRep, Length,
    Local, LocalRule, Mocha, MochaClients, OwnSolver, PFedMe, PerClient, Personal, PersonalMethod,
    Rates, Sampling, Scaffold, ServerStep, Shape, Solver, Weighing,
};
use whimbrel_methods::settings::{Budget, Weights};
use whimbrel_nn::{Learner, Linear, LinearRepresentation, Logistic, Optimiser};
use whimbrel_testkit::method::{MethodUnderTest, laws};
use whimbrel_testkit::pairs;
use whimbrel_testkit::runners::runners_agree;

const FEATURES: usize = 6;
const PLAIN: ServerStep = ServerStep::Plain { step: 1.0 };
pub(crate) const FEDAVG: FedAvg = FedAvg { mu: 0.0, fine_tune: false };

pub(crate) struct Setup {
    pub(crate) learner: Arc<dyn Learner>,
    rule: Arc<dyn LocalRule>,
    server: ServerStep,
    sampling: Sampling,
    participation: f64,
    codec: Codec,
    rule_up: UpRule,
    down: Option<DownRule>,
    rounds: u32,
    batch: Option<u32>,
    own_solver: Option<u32>,
}

impl Setup {
    fn of(rule: impl LocalRule) -> Self {
        Self {
            learner: Arc::new(Logistic::new(FEATURES, true)),
            rule: Arc::new(rule),
            server: PLAIN,
            sampling: Sampling::KeepOld,
            participation: 0.5,
            codec: Codec::Exact,
            rule_up: UpRule::Plain,
            down: None,
            rounds: 6,
            batch: Some(4),
            own_solver: None,
        }
    }

    /// The same with everyone in every round, full batches or minibatches.
    pub(crate) fn with_everyone(rule: impl LocalRule, rounds: u32, batch: Option<u32>) -> Self {
        Self { participation: 1.0, rounds, batch, ..Self::of(rule) }
    }

    /// The same over another uplink.
    pub(crate) fn over(self, codec: Codec, rule_up: UpRule) -> Self {
        Self { codec, rule_up, ..self }
    }

    pub(crate) fn method(&self) -> PersonalMethod {
        let blocks = self.rule.blocks(&Shape::new(&*self.learner));
        let d: usize = blocks.iter().sum();
        let downlink = match self.down {
            None => Downlink::exact(d),
            Some(rule) => Downlink::new(dither(4), rule, d, false).unwrap(),
        };
        self.training().over(Terms {
            uplinks: vec![Uplink::new(self.codec.clone(), self.rule_up, d).unwrap()],
            own_uplinks: BTreeMap::new(),
            downlink,
            memories: FirstMemories::Zero,
            weights: Weights::Samples,
            budget: Budget::Rounds(self.rounds),
            privacy: Default::default(),
        })
    }

    fn training(&self) -> Personal {
        Personal {
            learner: self.learner.clone(),
            rule: self.rule.clone(),
            solver: Solver {
                length: Length::Epochs(1),
                batch: self.batch,
                optimiser: Optimiser::PLAIN,
            },
            rates: Rates { initial: 0.5, factor: 0.5, at: vec![3] },
            server: self.server,
            sampling: self.sampling,
            participation: self.participation,
            own_solvers: vec![OwnSolver {
                solver: Solver {
                    length: Length::Steps(2),
                    batch: Some(3),
                    optimiser: Optimiser::PLAIN,
                },
                step_factor: 0.5,
            }],
            solver_of: self.own_solver.iter().map(|id| (*id, 1)).collect(),
            start: None,
        }
    }

    fn erased(&self) -> Arc<dyn DynMethod> {
        Arc::new(Erased(self.method(), BindRows))
    }

    /// The shared vector after all rounds.
    pub(crate) fn run(&self, data: &[ClientData], participation: Participation) -> Vec<f32> {
        delivered(self.erased(), data, participation).narrow[0].values.clone()
    }
}

/// The result of a run.
fn delivered(
    method: Arc<dyn DynMethod>,
    data: &[ClientData],
    participation: Participation,
) -> Artifact {
    let mut simulator = begun(method.clone(), data, 7, participation, Faults::default());
    while simulator.step().unwrap().is_some() {}
    method.artifact(simulator.machine().server()).unwrap()
}

/// Clients of 5 to 40 samples whose labels follow one of two opposite rules.
pub(crate) fn clients(classes: bool) -> Vec<ClientData> {
    let mut stream = Key::root(11).stream();
    let draw = |i: usize| {
        let n = 5 + 5 * i;
        let x: Vec<f32> = (0..n * FEATURES).map(|_| stream.normal() as f32).collect();
        let sign = if i.is_multiple_of(2) { 1.0 } else { -1.0 };
        let score = |row: &[f32]| sign * (2.0 * row[0] - row[1]);
        let scores = x.chunks(FEATURES).map(score);
        let targets = if classes {
            Targets::Classes { of: scores.map(|s| u16::from(s > 0.0)).collect(), count: 2 }
        } else {
            Targets::Values(scores.collect())
        };
        ClientData::Samples(Samples::new(vec![FEATURES], Inputs::Real(x), targets).unwrap())
    };
    (0..8).map(draw).collect()
}

pub(crate) fn mix(components: usize) -> FedMix {
    FedMix { components, weighing: Weighing::Converged, send_above: 0.0 }
}

fn setups() -> Vec<(&'static str, Setup)> {
    let memory =
        |setup: Setup| Setup { codec: dither(4), rule_up: UpRule::Memory { alpha: 0.2 }, ..setup };
    let adaptive = |rule| ServerStep::Adaptive(FedOpt { rule, ..FedOpt::default() });
    let mcm = DownRule::Preserved { alpha: 0.2, memories: Memories::Groups(1) };
    vec![
        ("fedmix", Setup::of(mix(3))),
        ("fedmix, a client's own solver", Setup { own_solver: Some(2), ..Setup::of(mix(3)) }),
        ("fedmix, adaptive", Setup::of(FedMix { send_above: 0.3, ..mix(3) })),
        (
            "sgd with momentum",
            Setup { server: ServerStep::Momentum { momentum: 0.5 }, ..Setup::of(FEDAVG) },
        ),
        ("fedmix over diana", memory(Setup::of(mix(2)))),
        ("fedmix over mcm", Setup { down: Some(mcm), ..memory(Setup::of(mix(2))) }),
        ("fedavg", Setup::of(FEDAVG)),
        (
            "fedavg on a grid",
            Setup::of(FEDAVG).over(
                crate::grid::codec(16, 8, Inclusion::Equal(0.5)),
                UpRule::Memory { alpha: 0.9 },
            ),
        ),
        ("fedavg, renormalised", Setup { sampling: Sampling::Renormalise, ..Setup::of(FEDAVG) }),
        ("fedprox", Setup::of(FedAvg { mu: 0.1, fine_tune: false })),
        ("fedavg+", Setup::of(FedAvg { mu: 0.0, fine_tune: true })),
        ("local", Setup::of(Local)),
        ("pfedme", Setup::of(PFedMe { lambda: 2.0, inner_steps: 3, inner_rate: None })),
        ("apfl", Setup::of(Apfl { alpha: 0.5, adaptive: true })),
        ("ditto", Setup::of(Ditto { lambda: 0.5 })),
        (
            "scaffold",
            Setup {
                server: ServerStep::Scaffold { step: 1.0 },
                sampling: Sampling::Unbiased,
                ..Setup::of(Scaffold)
            },
        ),
        ("fedadam", Setup { server: adaptive(Adaptive::Adam), ..Setup::of(FEDAVG) }),
        ("fedyogi", Setup { server: adaptive(Adaptive::Yogi), ..Setup::of(FEDAVG) }),
    ]
}

#[test]
fn every_method_passes_the_battery() {
    let data = clients(true);
    for (name, setup) in setups() {
        laws(&MethodUnderTest { name, method: &*setup.erased(), data: &data, exchanges: 4 });
    }
}

#[test]
fn the_same_bits_in_every_runner() {
    let data = clients(true);
    for (name, setup) in setups() {
        runners_agree(name, Erased(setup.method(), BindRows), &data);
    }
}

fn clustered() -> Erased<PerClient<ClusteredClients>, BindRows> {
    let settings = Clustered { stationary: 10.0, apart: 1e-3, ..Clustered::default() };
    let rule = ClusteredClients { training: Setup::of(settings.clone()).training(), settings };
    Erased(PerClient { rule, weights: Weights::Samples, budget: Budget::Rounds(6) }, BindRows)
}

fn mocha(passes: u32, relation_every: u32) -> Erased<PerClient<MochaClients>, BindRows> {
    let settings = Mocha { lambda: 1.0, relation_every };
    let mut training = Setup::of(settings.clone()).training();
    training.solver.length = Length::Epochs(passes);
    let rule = MochaClients { training, settings };
    Erased(PerClient { rule, weights: Weights::Samples, budget: Budget::Rounds(6) }, BindRows)
}

#[test]
fn clusters_and_related_models_pass_the_battery_in_every_runner() {
    let data = clients(true);
    let (c, m) = (clustered(), mocha(1, 2));
    laws(&MethodUnderTest { name: "clustered", method: &c, data: &data, exchanges: 4 });
    laws(&MethodUnderTest { name: "mocha", method: &m, data: &data, exchanges: 4 });
    runners_agree("clustered", c, &data);
    runners_agree("mocha", m, &data);
}

/// The first split separates the clients of two opposite rules.
#[test]
fn clusters_are_split_where_updates_point_apart() {
    let artifact = delivered(Arc::new(clustered()), &clients(true), Participation::Everyone);
    let cluster = &artifact.tensor("cluster").unwrap().values;
    for (i, c) in cluster.iter().enumerate() {
        let mut others = cluster.iter().enumerate().filter(|(j, _)| i % 2 != j % 2);
        assert!(others.all(|(_, other)| other != c), "{cluster:?}");
    }
}

/// With the identity as relation every client fits its own support vector machine: its dual
/// objective rises to the primal.
#[test]
fn related_models_start_as_support_vector_machines() {
    let data = clients(true);
    let artifact = delivered(Arc::new(mocha(50, 1000)), &data, Participation::Everyone);
    assert_eq!(artifact.narrow[0].values.len(), data.len() * (FEATURES + 1));
    for (data, w) in pairs(&data, artifact.narrow[0].values.chunks(FEATURES + 1)) {
        let ClientData::Samples(samples) = data else { panic!("samples") };
        let (Inputs::Real(x), Targets::Classes { of, .. }) = (&samples.inputs, &samples.targets)
        else {
            panic!("rows of two classes")
        };
        let primal = |w: &[f32]| {
            let hinge = |(x, y): (&[f32], &u16)| {
                let score: f32 = x.iter().zip(w).map(|(x, w)| x * w).sum();
                (1.0 - (2.0 * f32::from(*y) - 1.0) * (score + w[FEATURES])).max(0.0)
            };
            let hinges: f32 = x.chunks(FEATURES).zip(of).map(hinge).sum();
            hinges + 0.5 * w.iter().map(|w| w * w).sum::<f32>()
        };
        // No direction of a small step leads down by more than rounding.
        let here = primal(w);
        for j in 0..w.len() {
            for step in [-1e-2, 1e-2] {
                let mut beside = w.to_vec();
                beside[j] += step;
                assert!(primal(&beside) >= here - 1e-3 * here, "{here} {}", primal(&beside));
            }
        }
    }
}

/// After the last round every client has the model that the server computed from it.
#[test]
fn related_models_are_delivered() {
    let (data, method) = (clients(true), Arc::new(mocha(1, 2)));
    let mut simulator = begun(method.clone(), &data, 7, Participation::Everyone, Faults::default());
    while simulator.step().unwrap().is_some() {}
    let artifact = method.artifact(simulator.machine().server()).unwrap();
    let mut found = Vec::new();
    simulator
        .client_artifacts(&mut |_, own| {
            found.extend(own.narrow[0].values.clone());
            Ok(())
        })
        .unwrap();
    assert_eq!(found, artifact.narrow[0].values);
}

#[test]
fn regressions_mix_too() {
    let linear = Setup { learner: Arc::new(Linear::new(FEATURES, true)), ..Setup::of(mix(2)) };
    let linear = Setup { rounds: 60, batch: None, ..linear };
    let data = clients(false);
    let method = linear.erased();
    laws(&MethodUnderTest { name: "fedmix, linear", method: &*method, data: &data, exchanges: 4 });
    // Two opposite rules: both are found, and the noise that is left is small against the targets'.
    let w = linear.run(&data, Participation::Everyone);
    let (first, second) = (w[0] / w[FEATURES + 1], w[1] / w[0]);
    assert!((first + 1.0).abs() < 0.1 && (second + 0.5).abs() < 0.1, "{w:?}");
}

/// Without rounds the shared vector is the start: for `fedavg` and `fedrep` the method of moments from
/// the clients' sums, for `fedmix` components that differ.
#[test]
fn starts_are_found_from_the_clients_sums() {
    let learner = LinearRepresentation::new(FEATURES, 2);
    let data = clients(false);
    let mut sums = vec![0.0; learner.start_sums_len()];
    for client in &data {
        let ClientData::Samples(samples) = client else { unreachable!() };
        sums.iter_mut().zip(learner.start_sums(samples)).for_each(|(sum, x)| *sum += x);
    }
    let moments = learner.start_from(&sums, Key::root(0)).unwrap();
    let learner: Arc<dyn Learner> = Arc::new(learner);
    let start = |setup: Setup| {
        let setup = Setup { learner: learner.clone(), rounds: 0, ..setup };
        setup.run(&data, Participation::Everyone)
    };
    assert_eq!(start(Setup::of(FEDAVG)), moments);
    let fedrep = start(Setup::of(FedRep { head_trainings: 1 }));
    assert_eq!(fedrep, moments[..2 * FEATURES]);
    let mixed = start(Setup::of(mix(2)));
    assert_ne!(mixed[..moments.len()], mixed[moments.len()..2 * moments.len()]);
}

/// Fedavg is also fedprox without a proximal term, which makes a difference.
#[test]
fn fedmix_with_one_component_is_fedavg() {
    let data = clients(true);
    let fedavg = Setup::of(FEDAVG).run(&data, cohort(0.5));
    assert_eq!(Setup::of(mix(1)).run(&data, cohort(0.5)), fedavg);
    let fedprox = Setup::of(FedAvg { mu: 1.0, fine_tune: false });
    assert_ne!(fedprox.run(&data, cohort(0.5)), fedavg);
}

#[test]
fn with_everyone_all_rules_of_sampling_are_one() {
    let data = clients(true);
    let run = |sampling| {
        let setup = Setup { sampling, participation: 1.0, ..Setup::of(mix(2)) };
        setup.run(&data, Participation::Everyone)
    };
    assert_eq!(run(Sampling::KeepOld), run(Sampling::Unbiased));
    assert_eq!(run(Sampling::KeepOld), run(Sampling::Renormalise));
}

/// Full batches and one step: the server's step is a gradient step on the pooled loss.
#[test]
fn one_full_local_step_is_gradient_descent() {
    let data = clients(true);
    let setup = Setup { rounds: 1, batch: None, participation: 1.0, ..Setup::of(FEDAVG) };
    let after = setup.run(&data, Participation::Everyone);
    let w_0 = Logistic::new(FEATURES, true).start(StageKeys::new(7, 0).start().child(0));
    let learner = Logistic::new(FEATURES, true);
    let (mut expected, mut total) = (vec![0.0f64; w_0.len()], 0.0);
    for data in &data {
        let ClientData::Samples(samples) = data else { panic!("samples") };
        let n = samples.len();
        let (mut g, mut losses) = (vec![0.0; w_0.len()], vec![0.0; n]);
        let batch = whimbrel_nn::Batch::all(samples);
        let room = &mut whimbrel_nn::Room::default();
        learner.gradient(&w_0, batch, None, Key::root(0), room, &mut g, &mut losses);
        expected.iter_mut().zip(&g).for_each(|(e, g)| *e += n as f64 * f64::from(*g));
        total += n as f64;
    }
    assert_eq!(after.len(), w_0.len());
    for ((after, w), g) in pairs(pairs(after, &w_0), &expected) {
        let step = f64::from(*w) - 0.5 * g / total;
        // f32 gradients of up to 40 samples.
        assert!((f64::from(after) - step).abs() < 1e-5, "{after} {step}");
    }
}

#[test]
fn mixture_weights_stay_with_the_client() {
    let method = Setup::of(mix(2)).erased();
    let sent: Vec<String> = method.declare().disclosures.into_iter().map(|d| d.meaning).collect();
    assert!(
        sent.iter()
            .any(|meaning| meaning.contains("not the weights with which they are mixed here")),
        "{sent:?}"
    );
}
