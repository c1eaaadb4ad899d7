//! Learners trained on the clients: mixtures of learners, and the methods they are compared with.

pub mod decentralised;
pub mod keys;
pub mod own_learner;

pub(crate) mod model;
mod own;
mod plan;
pub(crate) mod predict;
mod results;

use crate::failure::Result;
use crate::family::{
    AdaptOptions, Adapted, Ended, Family, Fit, MethodKind, ModelKind, ModelUse, Predicted, Results,
    RunData, StagePlan, Tables, refuse,
};
use crate::gradient::keys::MOMENTUM;
use crate::job::method::length::{BATCH, EPOCHS, ROUNDS};
use crate::job::method::search::SEARCH;
use crate::job::method::step::STEP;
use crate::job::method::stop::{EVALUATE, STOP};
use crate::job::method::{ALLOW_DIVERGENCE, CHANNELS, MEMORY_MAX, WEIGHTS};
use crate::job::participation::PARTICIPATION;
use crate::job::preset::PRESETS;
use crate::job::{Job, MemoryStart, Step, UpRule};
use crate::load::{Layout, Loaded};
use crate::plan::{Common, Facts, Files};
use crate::predictions::OUTSIDE;
use crate::template::{DataFacts, Suggestion};
use decentralised::{MIXING, Neighbours, SCALING, TOPOLOGY};
use keys::{
    ADAPTIVE, ALPHA, COMPONENTS, DECAY, HEAD_EPOCHS, INNER_STEP, INNER_STEPS, LAMBDA, LOCAL_EPOCHS,
    MINIBATCHES, MU, OPTIMISER, RELATION_EVERY, Rule, SAMPLING, SEND_ABOVE, SERVER, SERVER_STEP,
    SPLIT, TRAINING, Training, UNSEEN_WEIGHTS,
};
use model::{LOGISTIC, MODELS, Model, SOFTMAX};
use own::{OWN, OwnTraining};
use plan::PersonalPlan;
use serde_json::{Map, Value};
use std::any::Any;
use std::path::{Path, PathBuf};
use whimbrel_core::method::Artifact;
use whimbrel_job::form::PATH;
use whimbrel_job::key::{JobKey, Word};
use whimbrel_job::reader::{Read, Source};
use whimbrel_job::writer::Writer;
use whimbrel_methods::personal::{Length, Sampling, ServerStep};
use whimbrel_methods::settings::Weights;
use whimbrel_methods::sgd::Preset;

/// Learners trained on the clients.
pub static FAMILY: Personal = Personal;

/// Learners trained on the clients.
pub struct Personal;

const FEDMIX: &str = "fedmix";
const FEDAVG: &str = "fedavg";
const FEDAVG_PLUS: &str = "fedavg+";
const FEDPROX: &str = "fedprox";
const LOCAL: &str = "local";
const PFEDME: &str = "pfedme";
const APFL: &str = "apfl";
const FEDREP: &str = "fedrep";
const DITTO: &str = "ditto";
const SCAFFOLD: &str = "scaffold";
const FEDOPT: &str = "fedopt";
const CLUSTERED: &str = "clustered";
const MOCHA: &str = "mocha";
const SGD: &str = "sgd";
const D_FEDMIX: &str = "d-fedmix";
const D_FEDAVG: &str = "d-fedavg";
const D_FEDPROX: &str = "d-fedprox";
const D_PFEDME: &str = "d-pfedme";

/// The keys of every method here, then the method's own.
macro_rules! keys {
    ($($own:expr),*) => {
        &[
            &CHANNELS, &ROUNDS, &EPOCHS, &BATCH, &LOCAL_EPOCHS, &MINIBATCHES, &STEP, &DECAY,
            &OPTIMISER, &PARTICIPATION, &SAMPLING, &SERVER_STEP, &WEIGHTS, &EVALUATE, &STOP,
            &ALLOW_DIVERGENCE, &MEMORY_MAX, &SEARCH, &OWN, &OUTSIDE, $($own),*
        ]
    };
}

/// `sgd` and its presets: one minibatch's gradient a round.
static SGD_KEYS: [&JobKey; 15] = [
    &CHANNELS,
    &ROUNDS,
    &EPOCHS,
    &BATCH,
    &STEP,
    &DECAY,
    &MOMENTUM,
    &PARTICIPATION,
    &SAMPLING,
    &WEIGHTS,
    &EVALUATE,
    &STOP,
    &ALLOW_DIVERGENCE,
    &MEMORY_MAX,
    &SEARCH,
];

/// The keys of every method without a server, then the method's own.
macro_rules! neighbour_keys {
    ($($own:expr),*) => {
        &[
            &ROUNDS, &BATCH, &LOCAL_EPOCHS, &MINIBATCHES, &STEP, &DECAY, &OPTIMISER, &WEIGHTS,
            &EVALUATE, &STOP, &SEARCH, &TOPOLOGY, &MIXING, &SCALING, $($own),*
        ]
    };
}

static METHODS: [MethodKind; 30] = [
    method(
        FEDMIX,
        "a mixture of learners with each client's own weights (FedEM of Marfoq et al. 2021)",
        keys![&COMPONENTS, &SEND_ABOVE, &UNSEEN_WEIGHTS],
    ),
    method(FEDAVG, "one model, trained locally and averaged", keys![]),
    method(FEDAVG_PLUS, "fedavg, with one more local training before a client predicts", keys![]),
    method(FEDPROX, "fedavg with a pull towards the received model", keys![&MU]),
    method(LOCAL, "a model for each client, and nothing shared", keys![]),
    method(
        PFEDME,
        "models of the clients' own around a shared one, by Moreau envelopes",
        keys![&LAMBDA, &INNER_STEPS, &INNER_STEP],
    ),
    method(
        APFL,
        "interpolations of each client's model and the shared one",
        keys![&ALPHA, &ADAPTIVE],
    ),
    method(FEDREP, "shared layers and a head of each client's own", keys![&HEAD_EPOCHS]),
    method(DITTO, "fedavg, and a model of each client's own near it", keys![&LAMBDA]),
    method(SCAFFOLD, "fedavg with control variates against client drift", keys![]),
    method(FEDOPT, "fedavg with an adaptive optimiser on the server", keys![&SERVER]),
    method(
        CLUSTERED,
        "clusters of clients, split where their updates point apart",
        &[
            &ROUNDS,
            &EPOCHS,
            &BATCH,
            &LOCAL_EPOCHS,
            &MINIBATCHES,
            &STEP,
            &DECAY,
            &OPTIMISER,
            &SPLIT,
            &PARTICIPATION,
            &WEIGHTS,
            &EVALUATE,
            &STOP,
            &ALLOW_DIVERGENCE,
            &MEMORY_MAX,
            &SEARCH,
        ],
    ),
    method(
        MOCHA,
        "related linear models, one for each client, by the hinge loss",
        &[
            &ROUNDS,
            &EPOCHS,
            &LOCAL_EPOCHS,
            &LAMBDA,
            &RELATION_EVERY,
            &PARTICIPATION,
            &EVALUATE,
            &STOP,
            &ALLOW_DIVERGENCE,
            &MEMORY_MAX,
            &SEARCH,
        ],
    ),
    method(
        D_FEDMIX,
        "fedmix without a server: neighbours mix their components (D-FedEM of Marfoq et al. 2021)",
        neighbour_keys![&COMPONENTS, &UNSEEN_WEIGHTS],
    ),
    method(D_FEDAVG, "fedavg without a server", neighbour_keys![]),
    method(D_FEDPROX, "fedprox without a server", neighbour_keys![&MU]),
    method(
        D_PFEDME,
        "pfedme without a server",
        neighbour_keys![&LAMBDA, &INNER_STEPS, &INNER_STEP],
    ),
    sgd(0),
    sgd(1),
    sgd(2),
    sgd(3),
    sgd(4),
    sgd(5),
    sgd(6),
    sgd(7),
    sgd(8),
    sgd(9),
    sgd(10),
    sgd(11),
    sgd(12),
];

/// `sgd`, or a preset of its channels: the gradient family's words, for learners.
const fn sgd(at: usize) -> MethodKind {
    let Word { name, doc } = PRESETS[at];
    MethodKind {
        algorithm: SGD,
        preset: if at == 0 { None } else { Some(Preset::at(at)) },
        names_presets: true,
        weights: Weights::Equal,
        ..method(name, doc, &SGD_KEYS)
    }
}

const fn method(
    name: &'static str,
    doc: &'static str,
    keys: &'static [&'static JobKey],
) -> MethodKind {
    MethodKind::new(name, doc, keys)
}

impl Family for Personal {
    fn name(&self) -> &'static str {
        "personal"
    }

    fn models(&self) -> &'static [ModelKind] {
        &MODELS
    }

    fn methods(&self) -> &'static [MethodKind] {
        &METHODS
    }

    /// Classes to predict: with clients of a file's own a mixture of learners, else one for all.
    fn suggest(&self, facts: Option<&DataFacts>) -> Option<Suggestion> {
        let facts = facts.filter(|facts| facts.target.is_some())?;
        let mut method_keys = vec![
            (&ROUNDS, "100".into()),
            (&BATCH, "32".into()),
            (&LOCAL_EPOCHS, "1".into()),
            (&STEP, "0.1".into()),
        ];
        if facts.client.is_some() {
            method_keys.insert(0, (&COMPONENTS, "2".into()));
        }
        Some(Suggestion {
            model: if facts.classes == 2 { LOGISTIC } else { SOFTMAX },
            method: if facts.client.is_some() { FEDMIX } else { FEDAVG },
            method_keys,
            ..Suggestion::default()
        })
    }

    fn read(&self, tables: &Tables<'_>) -> Read<Box<dyn Fit>> {
        let method = tables.method_kind.algorithm;
        let model = Model::read(tables.model_kind, tables.model);
        let training = TRAINING.read(tables.method).map(|mut training| {
            if matches!(method, SCAFFOLD | SGD) && !tables.method.has(&SAMPLING) {
                training.sampling = Sampling::Unbiased;
            }
            if method == SGD {
                training.length = Length::Steps(1);
            }
            training
        });
        let rule = Rule::read(method, tables.method);
        let server = keys::read_server(method, tables.method);
        let own = tables.method.read(&OWN, own::read_all);
        let outside = tables.method.optional_as(&OUTSIDE, &PATH);
        let neighbours = tables
            .method_kind
            .keys
            .iter()
            .any(|key| key.name == TOPOLOGY.name)
            .then(|| Neighbours::read(tables.method))
            .transpose();
        Ok(Box::new(PersonalFit {
            method,
            model: model?,
            training: training?,
            rule: rule?,
            server: server?,
            own: own?,
            outside: outside?,
            neighbours: neighbours?,
        }))
    }
}

/// What a job asks: a learner, and how it is trained.
#[derive(Clone, Debug, PartialEq)]
pub struct PersonalFit {
    method: &'static str,
    /// The learner.
    pub model: Model,
    /// Local training.
    pub training: Training,
    /// What the method does with it.
    pub rule: Rule,
    /// How the server moves.
    pub server: ServerStep,
    /// Clients that train in their own way.
    pub own: Vec<OwnTraining>,
    /// Images unlike the data, for the report.
    pub outside: Option<PathBuf>,
    /// The graph, of methods without a server.
    pub neighbours: Option<Neighbours>,
}

/// Reports what no method over learners takes.
pub(crate) fn check_learners(method: &str, job: &Job, source: &Source<'_>) {
    if job.method.stop.field_norm2.is_some() || job.method.stop.excess_loss.is_some() {
        source.report_at(
            &["method", "stop"],
            format!("{method} has neither a field nor a known minimum"),
            "stop with `patience`, or at a number of rounds",
        );
    }
    if let UpRule::Memory { start: MemoryStart::File(_), .. } = &job.uplink.rule {
        source.report_at(
            &["uplink", "start"],
            format!(
                "the memories of {method} start at the first uploads or at zero, not in a file"
            ),
            "write start = \"oracle\" or \"zero\"",
        );
    }
}

impl Fit for PersonalFit {
    fn describe(&self) -> String {
        match &self.rule {
            Rule::FedMix(fedmix) => {
                format!("{}, {} components", self.model.describe(), fedmix.components)
            }
            _ => self.model.describe(),
        }
    }

    fn write_model(&self, out: &mut Writer) {
        self.model.write(out);
    }

    fn write_method(&self, out: &mut Writer) {
        TRAINING.write(&self.training, out);
        self.rule.write(out);
        keys::write_server(&self.server, out);
        if !self.own.is_empty() {
            out.put(&OWN, own::write_all(&self.own));
        }
        if let Some(path) = &self.outside {
            out.put(&OUTSIDE, PATH.write(path));
        }
        if let Some(neighbours) = &self.neighbours {
            neighbours.write(out);
        }
    }

    fn check(&self, job: &Job, source: &Source<'_>) {
        let compresses = job.method.channels.is_some() || source.is_given(&["uplink", "rule"]);
        if self.method == SGD && !compresses && !job.uplink.codec.is_exact() {
            source.report_at(
                &["uplink", "codec"],
                "sgd compresses nothing: this codec would not be used",
                "take `codec` out, or compress with kind = \"qsgd\", \"diana\" or another preset",
            );
        }
        if !matches!(job.method.step, Step::Auto | Step::Constant(_)) {
            source.report_at(
                &["method", "step"],
                format!("the local step of {} is a number", self.method),
                "write a number, and milestones in `decay`",
            );
        }
        check_learners("local training", job, source);
        if let Some(neighbours) = &self.neighbours {
            neighbours.check(self.method, job, source);
        }
        let plain = job.uplink.rule == UpRule::Plain;
        if let Rule::FedMix(fedmix) = &self.rule
            && fedmix.send_above > 0.0
            && !plain
        {
            source.report_at(
                &["method", "send_above"],
                "components that are not sent are for plain uplinks: memories and error feedback \
                 are about all of them",
                "take `send_above` out, or compress without memories (channels = \"qsgd\")",
            );
        }
        if self.training.sampling == Sampling::Renormalise && !plain {
            source.report_at(
                &["method", "sampling"],
                "a mean over the sampled clients is for plain uplinks: memories and error feedback \
                 count on those who are not sampled",
                "write sampling = \"keep-old\" or \"unbiased\"",
            );
        }
        let compresses = !job.uplink.codec.is_exact() || !job.downlink.codec.is_exact();
        if self.method == SCAFFOLD && compresses {
            source.report_at(
                &["method", if job.method.channels.is_some() { "channels" } else { "kind" }],
                "the control variates of clients and server drift apart where messages lose something",
                "send exactly, or use kind = \"fedavg\" or \"fedprox\" over this channel",
            );
        }
        let alone = matches!(self.rule, Rule::Local | Rule::Clustered { .. } | Rule::Mocha { .. });
        if alone && compresses {
            source.report_at(
                &["method", "kind"],
                format!("{} sends what it sends exactly", self.method),
                "take the codecs out",
            );
        }
    }

    fn paths_mut(&mut self) -> Vec<&mut PathBuf> {
        let graph = self.neighbours.as_mut().map_or_else(Vec::new, Neighbours::paths_mut);
        graph.into_iter().chain(&mut self.outside).collect()
    }

    fn without_own(&self, run: &Path) -> Option<(String, String)> {
        let (Rule::FedAvg(rule), None) = (&self.rule, &self.neighbours) else { return None };
        let (method, run) = (self.method, run.display());
        Some(match rule.fine_tune {
            true => (
                format!(
                    "{method} keeps no personal model: a client makes its own from the shared one"
                ),
                format!(
                    "`whimbrel adapt {run} --data ROWS --out FOLDER` makes one from the client's rows, and \
                     `whimbrel predict {run} --client FOLDER` uses it"
                ),
            ),
            false => {
                (format!("{method} has one model for all clients"), "leave --client out".into())
            }
        })
    }

    fn check_served(&self, _: &Job) -> Result<()> {
        match self.neighbours {
            None => Ok(()),
            Some(_) => refuse(
                &format!("{} has no server: neighbours talk to each other", self.method),
                "simulate it with `whimbrel run`, or serve the method without `d-`",
            ),
        }
    }

    fn layout(&self) -> Layout {
        Layout::Samples { classes: self.model.classifies() }
    }

    fn plan(
        &self,
        common: &Common,
        facts: &Facts,
        rows: Option<&Loaded>,
        _: Files<'_>,
    ) -> Result<Box<dyn StagePlan>> {
        Ok(Box::new(PersonalPlan::new(common, self, facts, rows)?))
    }

    fn model_keys(&self, data: &RunData, _: &Artifact) -> Map<String, Value> {
        let mut keys = self.model.keys();
        let remembered = data.remembered.as_ref();
        let kept = remembered.and_then(|kept| kept.downcast_ref::<results::Remembered>());
        let shape = kept.map_or_else(|| vec![data.columns.len()], |r| r.kept.shape.clone());
        keys.insert("shape".into(), shape.into());
        keys
    }

    fn remember(&self, loaded: &Loaded) -> Option<Box<dyn Any + Send + Sync>> {
        results::remember(loaded)
    }

    fn results(&self, ended: &Ended<'_>) -> Result<Results> {
        results::results(self, ended)
    }

    fn predict(&self, model: &ModelUse<'_>, file: &Path) -> Result<Predicted> {
        predict::predict(self, model, file)
    }

    fn adapt(&self, run: &ModelUse<'_>, options: &AdaptOptions<'_>) -> Result<Adapted> {
        predict::adapt(self, run, options)
    }
}
