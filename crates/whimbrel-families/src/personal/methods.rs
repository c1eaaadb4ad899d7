//! The family's methods and the keys of their settings.

use super::decentralised::{MIXING, SCALING, TOPOLOGY};
use super::keys::{
    CONTROLLED, DECAY, FEDOPT, HEAVY_BALL, LOCAL_EPOCHS, MINIBATCHES, OPTIMISER, PLAIN, SAMPLING,
    SERVER, SERVER_STEP,
};
use super::own::OWN;
use crate::family::MethodKind;
use crate::gradient::keys::MOMENTUM;
use crate::job::PrivacyUnit;
use crate::job::method::length::{BATCH, EPOCHS, ROUNDS};
use crate::job::method::search::SEARCH;
use crate::job::method::step::STEP;
use crate::job::method::stop::{EVALUATE, STOP};
use crate::job::method::{ALLOW_DIVERGENCE, CHANNELS, MEMORY_MAX, WEIGHTS};
use crate::job::participation::PARTICIPATION;
use crate::job::preset::{PRESETS, with_presets};
use crate::predictions::OUTSIDE;
use std::fmt;
use std::sync::Arc;
use whimbrel_job::form::{BELOW_ONE, BOOLEAN, COUNT_U32, NOT_NEGATIVE, POSITIVE, SHARE, Table};
use whimbrel_job::key::{JobKey, Section};
use whimbrel_job::reader::{Read, Reader};
use whimbrel_job::writer::Writer;
use whimbrel_job::{define_keys, form, inline, integer, keys, table};
use whimbrel_methods::personal::{
    Apfl, Clustered, Ditto, FedAvg, FedMix, FedRep, Linkage, Local, LocalRule, Mocha, PFedMe,
    Sampling, Scaffold, ServerStep, Weighing,
};

/// The keys of local steps.
const STEPS: &[&JobKey] = &[&LOCAL_EPOCHS, &MINIBATCHES, &STEP, &DECAY, &OPTIMISER];
/// The keys of evaluation, stopping and limits.
const WATCH: &[&JobKey] = &[&EVALUATE, &STOP, &ALLOW_DIVERGENCE, &MEMORY_MAX, &SEARCH];
/// The keys of local training with a server.
const TRAINING: &[&JobKey] = keys! {
    &[&CHANNELS, &ROUNDS, &EPOCHS, &BATCH], STEPS, &[&PARTICIPATION, &SAMPLING, &SERVER_STEP, &WEIGHTS],
    WATCH, &[&OWN, &OUTSIDE],
};
/// The keys of local training without a server.
const NEIGHBOURS: &[&JobKey] = keys! {
    &[&ROUNDS, &BATCH], STEPS, &[&WEIGHTS, &EVALUATE, &STOP, &SEARCH, &TOPOLOGY, &MIXING, &SCALING],
};

/// Settings without keys.
macro_rules! fixed {
    ($rule:expr) => {
        const { &Table { section: Section::of(&[]), read: |_| Ok($rule), write: |_, _| {} } }
    };
}

/// A method: its word and keys, the form of its settings, and its defaults.
pub(super) struct RuleKind {
    method: MethodKind,
    settings: &'static dyn Settings,
    /// The server's step.
    pub server: &'static Table<ServerStep>,
    /// Default treatment of clients that are not sampled.
    pub sampling: Sampling,
}

/// The methods except `sgd`.
const ROWS: &[RuleKind] = &[
    private(rule(
        "fedmix",
        "a mixture of learners with each client's own weights (FedEM of Marfoq et al. 2021)",
        keys!(TRAINING, &[&COMPONENTS, &SEND_ABOVE, &UNSEEN_WEIGHTS]),
        &FEDMIX,
    )),
    private(rule(
        "fedavg",
        "one model, trained locally and averaged",
        TRAINING,
        fixed!(FedAvg::default()),
    )),
    private(rule(
        "fedavg+",
        "fedavg with one more local training before predictions",
        TRAINING,
        fixed!(FedAvg { fine_tune: true, ..FedAvg::default() }),
    )),
    private(rule(
        "fedprox",
        "fedavg with a proximal term towards the received model",
        keys!(TRAINING, &[&MU]),
        &FEDPROX,
    )),
    rule("local", "a separate model per client", TRAINING, fixed!(Local)),
    rule(
        "pfedme",
        "personal models around a shared one, by Moreau envelopes",
        keys!(TRAINING, &[&LAMBDA, &INNER_STEPS, &INNER_STEP]),
        &PFEDME,
    ),
    rule(
        "apfl",
        "interpolations of a personal and the shared model",
        keys!(TRAINING, &[&ALPHA, &ADAPTIVE]),
        &APFL,
    ),
    private(rule(
        "fedrep",
        "shared layers with personal heads",
        keys!(TRAINING, &[&HEAD_EPOCHS]),
        &FEDREP,
    )),
    private(rule(
        "ditto",
        "fedavg with personal models near the shared one",
        keys!(TRAINING, &[&LAMBDA]),
        &DITTO,
    )),
    RuleKind {
        server: &CONTROLLED,
        sampling: Sampling::Unbiased,
        ..rule(
            "scaffold",
            "fedavg with control variates against client drift",
            TRAINING,
            fixed!(Scaffold),
        )
    },
    RuleKind {
        server: &FEDOPT,
        ..private(rule(
            "fedopt",
            "fedavg with an adaptive optimiser on the server",
            keys!(TRAINING, &[&SERVER]),
            fixed!(FedAvg::default()),
        ))
    },
    rule(
        "clustered",
        "clusters of clients, which are split when their updates disagree",
        keys! { &[&ROUNDS, &EPOCHS, &BATCH], STEPS, &[&SPLIT, &PARTICIPATION, &WEIGHTS], WATCH },
        &CLUSTERED,
    ),
    rule(
        "mocha",
        "related linear models, one per client, with the hinge loss",
        keys!(&[&ROUNDS, &EPOCHS, &LOCAL_EPOCHS, &LAMBDA, &RELATION_EVERY, &PARTICIPATION], WATCH),
        &MOCHA,
    ),
    rule(
        "d-fedmix",
        "fedmix without a server: neighbours mix their components (D-FedEM of Marfoq et al. 2021)",
        keys!(NEIGHBOURS, &[&COMPONENTS, &UNSEEN_WEIGHTS]),
        &FEDMIX,
    ),
    rule("d-fedavg", "fedavg without a server", NEIGHBOURS, fixed!(FedAvg::default())),
    rule("d-fedprox", "fedprox without a server", keys!(NEIGHBOURS, &[&MU]), &FEDPROX),
    rule(
        "d-pfedme",
        "pfedme without a server",
        keys!(NEIGHBOURS, &[&LAMBDA, &INNER_STEPS, &INNER_STEP]),
        &PFEDME,
    ),
];

/// `sgd` and its presets for learners: the gradient of one minibatch per round.
const SGD: RuleKind = RuleKind {
    method: MethodKind {
        private: &[PrivacyUnit::Client],
        ..MethodKind::new(
            PRESETS[0].name,
            PRESETS[0].doc,
            keys! {
                &[&CHANNELS, &ROUNDS, &EPOCHS, &BATCH, &STEP, &DECAY, &MOMENTUM],
                &[&PARTICIPATION, &SAMPLING, &WEIGHTS], WATCH
            },
        )
    },
    settings: fixed!(FedAvg::default()),
    server: &HEAVY_BALL,
    sampling: Sampling::Unbiased,
};

/// Values of `kind` in `[method]`.
pub(super) static METHODS: [MethodKind; ROWS.len() + PRESETS.len()] = {
    let presets = with_presets(SGD.method);
    let mut all = [presets[0]; ROWS.len() + PRESETS.len()];
    let mut at = 0;
    while at < all.len() {
        all[at] = if at < ROWS.len() { ROWS[at].method } else { presets[at - ROWS.len()] };
        at += 1;
    }
    all
};

/// A method over local training with a plain server.
const fn rule(
    name: &'static str,
    doc: &'static str,
    keys: &'static [&'static JobKey],
    settings: &'static dyn Settings,
) -> RuleKind {
    RuleKind {
        method: MethodKind::new(name, doc, keys),
        settings,
        server: &PLAIN,
        sampling: Sampling::KeepOld,
    }
}

/// The same for rules whose uploads are bounded by clipping alone: one vector per client.
const fn private(kind: RuleKind) -> RuleKind {
    let method = MethodKind { private: &[PrivacyUnit::Client], ..kind.method };
    RuleKind { method, ..kind }
}

impl RuleKind {
    /// The row of an algorithm.
    pub fn of(algorithm: &str) -> &'static Self {
        ROWS.iter().find(|row| row.method.word.name == algorithm).unwrap_or(&SGD)
    }

    /// Whether the method has no server.
    pub fn has_neighbours(&self) -> bool {
        self.method.keys.iter().any(|key| key.name == TOPOLOGY.name)
    }

    /// Reads the method's settings.
    pub fn read(&'static self, reader: &Reader<'_>) -> Read<Rule> {
        Ok(Rule { kind: self, local: self.settings.read(reader)? })
    }
}

/// A method with its settings.
#[derive(Clone)]
pub struct Rule {
    pub(super) kind: &'static RuleKind,
    /// The clients' part.
    pub local: Arc<dyn LocalRule>,
}

impl Rule {
    /// The method's name in a job.
    pub fn method(&self) -> &'static str {
        self.kind.method.word.name
    }

    pub(super) fn write(&self, out: &mut Writer) {
        self.kind.settings.write(&*self.local, out);
    }
}

impl PartialEq for Rule {
    fn eq(&self, other: &Self) -> bool {
        self.method() == other.method() && self.local.equals(&*other.local)
    }
}

impl fmt::Debug for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {:?}", self.method(), self.local)
    }
}

/// The form of a method's settings in a job.
trait Settings: Sync {
    fn read(&self, reader: &Reader<'_>) -> Read<Arc<dyn LocalRule>>;
    fn write(&self, rule: &dyn LocalRule, out: &mut Writer);
}

impl<R: LocalRule> Settings for Table<R> {
    fn read(&self, reader: &Reader<'_>) -> Read<Arc<dyn LocalRule>> {
        Ok(Arc::new(Self::read(self, reader)?))
    }

    fn write(&self, rule: &dyn LocalRule, out: &mut Writer) {
        if let Some(rule) = rule.downcast_ref() {
            Self::write(self, rule, out);
        }
    }
}

table! {
    pub(super) FEDMIX: FedMix {
        /// number of components
        components: COMPONENTS = "components", integer!(usize, 1 to 1000), default;
        /// fedmix: clients train and send only components whose weight exceeds this, and always the
        /// largest; plain uplinks only
        send_above: SEND_ABOVE = "send_above", BELOW_ONE, default;
        /// mixture weights of clients that were not trained on
        weighing: UNSEEN_WEIGHTS = "unseen_weights", WEIGHINGS, default;
    }
}

table! {
    FEDPROX: FedAvg {
        /// fedprox: factor of half the squared distance to the received model
        mu: MU = "mu", NOT_NEGATIVE, default(FedAvg::PROX_MU);
        ..{ fine_tune: false }
    }
}

define_keys! {
    /// factor of half the squared distance between the personal and the shared model; for mocha
    /// factor of half the squared norm of the models
    LAMBDA = "lambda", POSITIVE, unset "15 for pfedme, 0.1 for ditto, 10 for mocha";
}

table! {
    PFEDME: PFedMe {
        & lambda: LAMBDA, POSITIVE, unset or PFedMe::default().lambda;
        /// pfedme: steps of the inner solver on each minibatch
        inner_steps: INNER_STEPS = "inner_steps", COUNT_U32, default;
        /// pfedme: step of the inner solver
        inner_rate: INNER_STEP = "inner_step", INNER_RATES, default;
    }
}

form! {
    INNER_RATES: Option<f64>, "a positive number or \"auto\"" {
        /// 1/(L + lambda), with L the smoothness of the client's loss at the initial model
        "auto" => None,
    }
    number POSITIVE => Some;
}

table! {
    APFL: Apfl {
        /// apfl: initial share of the personal model
        alpha: ALPHA = "alpha", SHARE, default;
        /// apfl: whether the share is learned
        adaptive: ADAPTIVE = "adaptive", BOOLEAN, default;
    }
}

table! {
    FEDREP: FedRep {
        /// fedrep: local trainings of the head per round, before that of the shared layers
        head_trainings: HEAD_EPOCHS = "head_epochs", COUNT_U32, default;
    }
}

table! {
    DITTO: Ditto {
        & lambda: LAMBDA, POSITIVE, unset or Ditto::default().lambda;
    }
}

table! {
    CLUSTERED: Clustered = "clustered", "criterion for splitting a cluster" {
        /// clustered: a cluster is split if its mean update is shorter than `below` and that of a
        /// member longer than `above`
        SPLIT = "split", inline!(SPLITS), default;
    }
}

table! {
    SPLITS: Clustered = "split", "criterion for splitting a cluster" {
        /// norm of the cluster's mean update
        stationary: BELOW = "below", POSITIVE, default;
        /// norm of a member's update
        apart: ABOVE = "above", POSITIVE, default;
        /// distance of two groups of updates, by which a cluster is bisected
        linkage: LINKAGE = "linkage", LINKAGES, default;
        /// a bisection is kept if this is below sqrt((1 - s)/2), s being the largest cosine
        /// similarity across it
        gamma_max: GAMMA_MAX = "gamma_max", BELOW_ONE, default;
    }
}

form! {
    LINKAGES: Linkage {
        /// the smallest: the bisection has the smallest similarity across
        "single" => Linkage::Single,
        /// the largest, as in published code
        "complete" => Linkage::Complete,
    }
}

table! {
    MOCHA: Mocha {
        & lambda: LAMBDA, POSITIVE, unset or Mocha::default().lambda;
        /// mocha: rounds between updates of the clients' relation
        relation_every: RELATION_EVERY = "relation_every", COUNT_U32, default;
    }
}

form! {
    WEIGHINGS: Weighing {
        /// E-steps until the weights converge
        "converged" => Weighing::Converged,
        /// one E-step from uniform weights, as in the paper
        "one-step" => Weighing::Once,
    }
}
