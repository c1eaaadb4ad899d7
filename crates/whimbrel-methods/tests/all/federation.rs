//! The federation of these tests, and a short way to run a method on it.

use std::collections::BTreeMap;
use std::sync::Arc;
use whimbrel_codec::channel::{DownRule, Downlink, UpRule, Uplink, em_alpha};
use whimbrel_codec::{Codec, Dithering, Norm};
use whimbrel_core::method::MetricValue;
use whimbrel_core::{ClientData, DynMethod, Erased, Key, Probability, Table};
use whimbrel_data::{Covariance as Spread, Heterogeneity, Mixture, MixtureSpec, Sizes};
use whimbrel_engine::keys::StageKeys;
use whimbrel_engine::{Faults, Federation, Participation, Simulator};
use whimbrel_methods::choice::MixtureChoice;
use whimbrel_methods::fedem::{
    AutoStep, Batch, Budget, DownNoise, Em, Estimator, FedEm, FirstMemories, Form, FrameKind,
    Server, Step, Weights,
};
use whimbrel_methods::federated::{BindRows, Terms};
use whimbrel_methods::mixture::{MixtureInitial, MixtureStart};
use whimbrel_methods::step::Schedule;
use whimbrel_models::LatentModel;
use whimbrel_models::gmm::{Covariance, Gmm, GmmSettings};

pub use whimbrel_testkit::relative_gap;

pub const TRUTH: [f64; 4] = [1.0, 0.3, 0.3, 0.8];

/// Clients with weights drawn from Dirichlet(0.2, 0.2), means (-1.5, 0) and (1.5, 1).
pub fn tables(clients: usize, rows: Sizes) -> Vec<Table> {
    let spec = MixtureSpec {
        clients,
        rows,
        weights: vec![0.5, 0.5],
        means: vec![vec![-1.5, 0.0], vec![1.5, 1.0]],
        covariance: Spread::Shared(vec![vec![1.0, 0.3], vec![0.3, 0.8]]),
        heterogeneity: Heterogeneity::dirichlet(0.2, 2),
    };
    let mixture = Arc::new(Mixture::new(spec, Key::root(77)).unwrap());
    mixture.tables().unwrap().into_iter().map(|(_, table)| table).collect()
}

pub fn unequal(clients: usize) -> Vec<Table> {
    tables(clients, Sizes::Given((0..clients).map(|i| 5 + (i * 7) % 30).collect()))
}

pub fn dither() -> Codec {
    Codec::Dithering(Dithering::new(1, Norm::P(2), None).unwrap())
}

/// A mixture of two components in the plane.
pub fn gmm(covariance: Covariance) -> Gmm {
    Gmm::new(GmmSettings::new(2, 2, covariance)).unwrap()
}

/// A choice among one to three components from two starts each.
pub fn choice(clusters: bool) -> MixtureChoice<Gmm> {
    let model = |k| {
        let mut settings = GmmSettings::new(k, 2, Covariance::Diagonal);
        settings.want_moments = true;
        Gmm::new(settings).unwrap()
    };
    MixtureChoice {
        models: (1..=3).map(model).collect(),
        starts: 2,
        clusters,
        rows_min: 5,
        privacy: Default::default(),
        log_scale: 0.0,
    }
}

/// Terms of equal weights whose memories start at the first value.
pub fn equal_terms(uplink: Uplink, downlink: Downlink, rounds: u32) -> Terms {
    Terms {
        uplinks: vec![uplink],
        own_uplinks: BTreeMap::new(),
        downlink,
        memories: FirstMemories::Oracle,
        weights: Weights::Equal,
        budget: Budget::Rounds(rounds),
        privacy: Default::default(),
    }
}

/// A start that is not the truth.
pub fn start(model: &Gmm) -> MixtureStart {
    let given: &[f64] = match model.settings().covariance {
        Covariance::Known(_) => &[],
        Covariance::Tied => &[1.5, 0.0, 0.0, 1.5],
        Covariance::Diagonal | Covariance::Spherical => &[1.5, 1.5, 1.5, 1.5],
        Covariance::Full => &[1.5, 0.0, 0.0, 1.5, 1.5, 0.0, 0.0, 1.5],
    };
    let theta = model.parameters(&[0.4, 0.6], &[-0.5, 0.4, 0.8, 0.2], given).unwrap();
    MixtureStart::Given(model.to_vector(&theta))
}

#[derive(Clone)]
pub struct Setup {
    pub covariance: Covariance,
    pub codec: Codec,
    pub memory: bool,
    pub alpha: Option<f64>,
    pub memories: FirstMemories,
    pub gamma: f64,
    pub rounds: u32,
    pub estimator: Estimator,
    pub batch: Batch,
    pub weights: Weights,
    pub form: Form,
    pub down: Option<(Codec, DownRule)>,
    pub frame: FrameKind,
    /// In place of `gamma`.
    pub auto: Option<AutoStep>,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            covariance: Covariance::Tied,
            codec: Codec::Exact,
            memory: true,
            alpha: None,
            memories: FirstMemories::Oracle,
            gamma: 1.0,
            rounds: 200,
            estimator: Estimator::Minibatch,
            batch: Batch::Full,
            weights: Weights::Samples,
            form: Form::Pair,
            down: None,
            frame: FrameKind::Raw,
            auto: None,
        }
    }
}

/// The automatic step of part of the clients, over a preserved downlink.
pub const AUTO: AutoStep = AutoStep {
    omega: 1.5,
    p: 0.6,
    spider: None,
    downlink: DownNoise::Preserved(1.0),
    falls: false,
    trusts: true,
};

/// FedEM over one-level dithering with step 0.1.
pub fn dithered(rounds: u32) -> Setup {
    Setup { codec: dither(), gamma: 0.1, rounds, ..Setup::default() }
}

impl Setup {
    pub fn typed(&self) -> FedEm<Gmm> {
        let mut settings = GmmSettings::new(2, 2, self.covariance.clone());
        settings.centred = self.frame == FrameKind::Fisher;
        let model = Gmm::new(settings).unwrap();
        let start = start(&model);
        self.fit(model, start)
    }

    /// The same for another mixture; the setup's covariance is not read.
    pub fn fit<M: whimbrel_models::MixtureModel>(&self, model: M, start: MixtureStart) -> FedEm<M> {
        let q = model.statistic_len();
        let alpha = self.alpha.unwrap_or_else(|| em_alpha(self.codec.omega(q).unwrap()));
        let rule = if self.memory { UpRule::Memory { alpha } } else { UpRule::Plain };
        FedEm {
            terms: Terms {
                budget: Budget::Rounds(self.rounds),
                privacy: Default::default(),
                weights: self.weights,
                memories: self.memories.clone(),
                uplinks: vec![Uplink::new(self.codec.clone(), rule, q).unwrap()],
                own_uplinks: BTreeMap::new(),
                downlink: match &self.down {
                    Some((codec, rule)) => {
                        let d = self.form.published_len(&model);
                        let blocks = self.form.blocks(&model);
                        let whole = Downlink::new(codec.clone(), *rule, d, false).unwrap();
                        whole.with_blocks(&blocks).unwrap()
                    }
                    None => Downlink::exact(self.form.published_len(&model)),
                },
            },
            oracle: Em {
                initial: MixtureInitial::plain(start),
                step: match self.auto {
                    Some(auto) => Step::Auto(auto),
                    None => Schedule::constant(self.gamma).unwrap().into(),
                },
                frame: self.frame,
                estimator: self.estimator,
                batch: self.batch,
                form: self.form,
                moments: None,
                private: None,
                model,
            },
        }
    }

    pub fn erased(&self) -> Arc<Erased<FedEm<Gmm>, BindRows>> {
        Arc::new(Erased(self.typed(), BindRows))
    }
}

pub fn bernoulli(p: f64) -> Participation {
    Participation::Bernoulli(Probability::new(p).unwrap())
}

pub fn keys() -> StageKeys {
    StageKeys::new(1, 0)
}

/// A simulation of clients with these rows.
pub fn simulator(
    method: Arc<dyn DynMethod>,
    tables: &[Table],
    participation: Participation,
    faults: Faults,
) -> Simulator {
    let data: Vec<ClientData> = tables.iter().cloned().map(ClientData::Table).collect();
    simulator_of(method, &data, 1, participation, faults)
}

/// A simulation of clients with any data.
pub fn simulator_of(
    method: Arc<dyn DynMethod>,
    data: &[ClientData],
    seed: u64,
    participation: Participation,
    faults: Faults,
) -> Simulator {
    let bound = data.iter().map(|data| method.bind(data).unwrap()).collect();
    let names = (0..data.len()).map(|i| format!("{i:03}")).collect();
    let (clients, keys) = (Arc::new(Federation::new(names, bound)), StageKeys::new(seed, 0));
    Simulator::start(method, clients, keys, participation, faults).unwrap()
}

/// The server's final state.
pub fn finished<S: Clone + 'static>(mut simulator: Simulator) -> S {
    while simulator.step().unwrap().is_some() {}
    simulator.machine().server().downcast_ref::<S>().unwrap().clone()
}

/// A figure of an evaluation.
pub fn figure(simulator: &mut Simulator, name: &str) -> f64 {
    let (metrics, _) = simulator.evaluate().unwrap();
    match metrics.iter().find(|metric| metric.name == name).map(|metric| &metric.value) {
        Some(MetricValue::Number(value)) => *value,
        other => panic!("{name}: {other:?}"),
    }
}

/// The server state after each round, and `field_norm2` at some rounds.
pub struct Trace {
    pub states: Vec<Server>,
    pub fields: Vec<(u32, f64)>,
}

/// Runs to the end and evaluates every `every` rounds.
pub fn run(
    setup: &Setup,
    tables: &[Table],
    participation: Participation,
    faults: Faults,
    every: u32,
) -> Trace {
    let mut simulator = simulator(setup.erased(), tables, participation, faults);
    let mut trace = Trace { states: Vec::new(), fields: Vec::new() };
    while let Some(done) = simulator.step().unwrap() {
        let Some(round) = done.round else { continue };
        let state = simulator.machine().server().downcast_ref::<Server>().unwrap();
        trace.states.push(state.clone());
        if every > 0 && round.is_multiple_of(every) {
            trace.fields.push((round, figure(&mut simulator, "field_norm2")));
        }
    }
    trace
}

/// The server state after each round, with everyone and without faults.
pub fn states(setup: &Setup, tables: &[Table]) -> Vec<Server> {
    let trace = run(setup, tables, Participation::Everyone, Faults::default(), 0);
    assert_eq!(trace.states.len(), setup.rounds as usize);
    trace.states
}
