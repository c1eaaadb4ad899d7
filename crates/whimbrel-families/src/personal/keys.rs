//! The family's keys of `[method]`.

use crate::gradient::keys::MOMENTUM as SERVER_MOMENTUM;
use whimbrel_job::key::{Key, Section, Word};
use whimbrel_job::named;
use whimbrel_job::reader::{Read, Reader, Shape, Value};
use whimbrel_job::writer::{Writer, inline, list, number, text};
use whimbrel_methods::personal::{
    Adaptive, Apfl, Ditto, FedAvg, FedMix, FedRep, Length, PFedMe, Sampling, ServerStep, Weighing,
};
use whimbrel_nn::Optimiser;

named! {
    /// What clients that are not sampled count for.
    pub(super) SAMPLINGS: Sampling {
        Sampling::KeepOld => "keep-old": "clients that are not sampled count with the old model",
        Sampling::Renormalise => "renormalise": "the mean is over the sampled clients; plain uplinks \
         only",
        Sampling::Unbiased => "unbiased": "a sampled client counts for the others too",
    }
}

named! {
    /// How an unseen client gets its weights.
    pub(super) WEIGHINGS: Weighing {
        Weighing::Converged => "converged": "E-steps until the weights stand still",
        Weighing::Once => "one-step": "one E-step from uniform weights, as in the paper",
    }
}

named! {
    /// How the server's second moment moves.
    pub(super) SERVERS: Adaptive {
        Adaptive::Adam => "adam": "exponential averages (FedAdam)",
        Adaptive::Yogi => "yogi": "additive moves of the second moment (FedYogi)",
        Adaptive::Adagrad => "adagrad": "the sum of squares (FedAdagrad)",
    }
}

pub(super) static COMPONENTS: Key =
    Key::default("components", "an integer from 1 to 1000", "3", "how many components are mixed");
pub(super) static SEND_ABOVE: Key = Key::default(
    "send_above",
    "a number from 0 to below 1",
    "0.0",
    "fedmix: a client trains and sends only components whose weight on it is above this (the largest \
     always); the server keeps the others as they are; plain uplinks only",
);
pub(super) static UNSEEN_WEIGHTS: Key = Key::default(
    "unseen_weights",
    "",
    "\"converged\"",
    "how a client that took no part in training gets its mixture weights",
)
.words(WEIGHINGS.words);
pub(super) static LOCAL_EPOCHS: Key = Key::default(
    "local_epochs",
    "an integer of at least 1",
    "1",
    "passes over a client's samples in a round",
);
pub(super) static MINIBATCHES: Key = Key::optional(
    "minibatches",
    "an integer of at least 1",
    "`local_epochs` decides",
    "local steps of a round, in place of `local_epochs`",
);
pub(super) static DECAY: Key = Key::default(
    "decay",
    "a table { factor, at }",
    "{ factor = 0.1, at = [] }",
    "milestones at which the local step falls",
)
.tables(&[&DECAY_SECTION]);
static FACTOR: Key = Key::default(
    "factor",
    "a number above 0 and at most 1",
    "0.1",
    "what the step is multiplied by",
);
static AT: Key = Key::default(
    "at",
    "a list of numbers from 0 to 1",
    "[]",
    "when: shares of the rounds, such as [0.5, 0.75]",
);
static DECAY_SECTION: Section = Section {
    name: "decay",
    doc: "milestones at which the local step falls",
    keys: &[&FACTOR, &AT],
    example: "",
};
pub(super) static OPTIMISER: Key = Key::default(
    "optimiser",
    "a table { kind, momentum, weight_decay }",
    "{ kind = \"sgd\", momentum = 0.0, weight_decay = 0.0 }",
    "the rule of local steps; its state starts anew in every round",
)
.tables(&[&OPTIMISER_SECTION]);
static OPTIMISER_KIND: Key = Key::default("kind", "", "\"sgd\"", "the rule").words(&[
    Word { name: "sgd", doc: "stochastic gradients with momentum" },
    Word { name: "adam", doc: "Adam, with 0.9 and 0.999" },
]);
static MOMENTUM: Key =
    Key::default("momentum", "a number from 0 to below 1", "0.0", "heavy-ball momentum of sgd");
static WEIGHT_DECAY: Key = Key::default(
    "weight_decay",
    "a number of at least 0",
    "0.0",
    "the factor of half the squared norm of the parameters",
);
static OPTIMISER_SECTION: Section = Section {
    name: "optimiser",
    doc: "the rule of local steps",
    keys: &[&OPTIMISER_KIND, &MOMENTUM, &WEIGHT_DECAY],
    example: "",
};
pub(super) static SAMPLING: Key = Key::optional(
    "sampling",
    "",
    "\"keep-old\"; for scaffold \"unbiased\"",
    "what clients that are not sampled count for",
)
.words(SAMPLINGS.words);
pub(super) static MU: Key = Key::default(
    "mu",
    "a number of at least 0",
    "0.01",
    "fedprox: the factor of half the squared distance to the received model",
);
pub(super) static LAMBDA: Key = Key::optional(
    "lambda",
    "a positive number",
    "15 for pfedme, 0.1 for ditto, 10 for mocha",
    "the factor of half the squared distance between the client's model and the shared one; of \
     mocha that of half the squared norm of the models",
);
pub(super) static INNER_STEPS: Key = Key::default(
    "inner_steps",
    "an integer of at least 1",
    "5",
    "pfedme: steps of the inner solver on each minibatch",
);
pub(super) static INNER_STEP: Key = Key::default(
    "inner_step",
    "a positive number or \"auto\"",
    "\"auto\"",
    "pfedme: the step of the inner solver; \"auto\": 1/(L + lambda), with L the smoothness of the \
     client's loss at the first model",
);
pub(super) static ALPHA: Key = Key::default(
    "alpha",
    "a number from 0 to 1",
    "0.5",
    "apfl: the first share of the client's own model",
);
pub(super) static ADAPTIVE: Key =
    Key::default("adaptive", "true or false", "true", "apfl: whether the share is learned");
pub(super) static HEAD_EPOCHS: Key = Key::default(
    "head_epochs",
    "an integer of at least 1",
    "10",
    "fedrep: local trainings of the head in a round, before the one of the shared layers",
);
pub(super) static SPLIT: Key = Key::default(
    "split",
    "a table { below, above }",
    "{ below = 0.4, above = 1.6 }",
    "clustered: a cluster is split where its mean update is shorter than `below` while a member's is \
     longer than `above`",
)
.tables(&[&SPLIT_SECTION]);
static BELOW: Key =
    Key::default("below", "a positive number", "0.4", "the norm of the cluster's mean update");
static ABOVE: Key =
    Key::default("above", "a positive number", "1.6", "the norm of a member's update");
static SPLIT_SECTION: Section =
    Section { name: "split", doc: "when a cluster is split", keys: &[&BELOW, &ABOVE], example: "" };
pub(super) static RELATION_EVERY: Key = Key::default(
    "relation_every",
    "an integer of at least 1",
    "10",
    "mocha: rounds between two updates of how clients are related",
);
pub(super) static SERVER_STEP: Key = Key::optional(
    "server_step",
    "a positive number",
    "1; for fedopt 0.1",
    "the server's step along the clients' mean change (beta of pfedme)",
);
pub(super) static SERVER: Key = Key::default(
    "server",
    "a table { kind, first, second, floor }",
    "{ kind = \"adam\", first = 0.9, second = 0.99, floor = 0.001 }",
    "fedopt: the server's optimiser, with its two averages and the floor of its denominators",
)
.tables(&[&SERVER_SECTION]);
static SERVER_KIND: Key =
    Key::default("kind", "", "\"adam\"", "how the second moment moves").words(SERVERS.words);
static FIRST: Key = Key::default("first", "a number from 0 to below 1", "0.9", "beta_1");
static SECOND: Key = Key::default("second", "a number from 0 to below 1", "0.99", "beta_2");
static FLOOR: Key =
    Key::default("floor", "a positive number", "0.001", "tau, which keeps steps finite");
static SERVER_SECTION: Section = Section {
    name: "server",
    doc: "the server's optimiser",
    keys: &[&SERVER_KIND, &FIRST, &SECOND, &FLOOR],
    example: "",
};

/// What a job asks of local training.
#[derive(Clone, Debug, PartialEq)]
pub struct Training {
    /// How long.
    pub length: Length,
    /// The rule of local steps.
    pub optimiser: Optimiser,
    /// What the step is multiplied by ...
    pub factor: f64,
    /// ... at these shares of the rounds.
    pub at: Vec<f64>,
    /// What clients that are not sampled count for.
    pub sampling: Sampling,
}

/// The method's own part.
#[derive(Clone, Debug, PartialEq)]
pub enum Rule {
    /// `fedmix`.
    FedMix(FedMix),
    /// `fedavg`, `fedprox`, `fedavg+`.
    FedAvg(FedAvg),
    /// `local`.
    Local,
    /// `pfedme`.
    PFedMe(PFedMe),
    /// `apfl`.
    Apfl(Apfl),
    /// `fedrep`.
    FedRep(FedRep),
    /// `ditto`.
    Ditto(Ditto),
    /// `scaffold`.
    Scaffold,
    /// `clustered`.
    Clustered {
        /// The norm of a cluster's mean update below which it is split ...
        below: f64,
        /// ... while a member's is above this.
        above: f64,
    },
    /// `mocha`.
    Mocha {
        /// The factor of half the squared norm of the models.
        lambda: f64,
        /// Rounds between updates of the relation.
        relation_every: u32,
    },
}

fn from_zero_below_one(v: &Value<'_>) -> Read<f64> {
    v.number(|x| (0.0..1.0).contains(&x))
}

impl Training {
    /// `one_step`: a round is one minibatch.
    pub(super) fn read(reader: &Reader<'_>, usual: Sampling, one_step: bool) -> Read<Self> {
        reader.refuse_both(&LOCAL_EPOCHS, &MINIBATCHES)?;
        let epochs = reader.read(&LOCAL_EPOCHS, |v| v.count_u32());
        let minibatches = reader.optional(&MINIBATCHES, |v| v.count_u32());
        let decay = reader.read(&DECAY, |v| {
            let decay = v.table(&DECAY_SECTION)?;
            let factor = decay.read(&FACTOR, |v| v.number(|x| x > 0.0 && x <= 1.0));
            let at = decay.read(&AT, |v| {
                v.list()?.iter().map(|v| v.number(|x| (0.0..=1.0).contains(&x))).collect()
            });
            Ok((factor?, at?))
        });
        let optimiser = reader.read(&OPTIMISER, read_optimiser);
        let sampling = reader.optional(&SAMPLING, |v| v.named(&SAMPLINGS));
        let (factor, at) = decay?;
        let length = match minibatches? {
            Some(steps) => Length::Steps(steps),
            None if one_step => Length::Steps(1),
            None => Length::Epochs(epochs?),
        };
        let sampling = sampling?.unwrap_or(usual);
        Ok(Self { length, optimiser: optimiser?, factor, at, sampling })
    }

    pub(super) fn write(&self, out: &mut Writer, takes: impl Fn(&Key) -> bool) {
        match self.length {
            Length::Epochs(epochs) => out.put(&LOCAL_EPOCHS, epochs.to_string()),
            Length::Steps(steps) if takes(&MINIBATCHES) => out.put(&MINIBATCHES, steps.to_string()),
            Length::Steps(_) => {}
        }
        let at = list(self.at.iter().map(|x| number(*x)));
        for (key, value) in [
            (&DECAY, inline([(FACTOR.name, number(self.factor)), (AT.name, at)])),
            (&OPTIMISER, write_optimiser(&self.optimiser)),
            (&SAMPLING, text(SAMPLINGS.name(self.sampling))),
        ] {
            if takes(key) {
                out.put(key, value);
            }
        }
    }
}

fn read_optimiser(v: Value<'_>) -> Read<Optimiser> {
    let table = v.table(&OPTIMISER_SECTION)?;
    let adam = table.read(&OPTIMISER_KIND, |v| match v.text()?.as_str() {
        "sgd" => Ok(false),
        "adam" => Ok(true),
        other => Err(v.unknown_word(other)),
    });
    let momentum = table.read(&MOMENTUM, |v| from_zero_below_one(&v));
    let weight_decay = table.read(&WEIGHT_DECAY, |v| v.number(|x| x >= 0.0));
    if let Ok(true) = adam {
        table.refuse_if_given(&MOMENTUM, "has no meaning for adam: its averages are 0.9 and 0.999");
    }
    let (momentum, weight_decay) = (momentum? as f32, weight_decay? as f32);
    Ok(match adam? {
        true => Optimiser::Adam { beta1: 0.9, beta2: 0.999, epsilon: 1e-8, weight_decay },
        false => Optimiser::Sgd { momentum, weight_decay },
    })
}

fn write_optimiser(optimiser: &Optimiser) -> String {
    match *optimiser {
        Optimiser::Sgd { momentum, weight_decay } => inline([
            (OPTIMISER_KIND.name, text("sgd")),
            (MOMENTUM.name, number(short(momentum))),
            (WEIGHT_DECAY.name, number(short(weight_decay))),
        ]),
        Optimiser::Adam { weight_decay, .. } => inline([
            (OPTIMISER_KIND.name, text("adam")),
            (WEIGHT_DECAY.name, number(short(weight_decay))),
        ]),
    }
}

/// The number that was written: the shortest that reads as this one.
fn short(x: f32) -> f64 {
    x.to_string().parse().unwrap_or(f64::from(x))
}

impl Rule {
    /// Reads the keys of a method.
    pub(super) fn read(method: &str, reader: &Reader<'_>) -> Read<Self> {
        Ok(match star_shaped(method) {
            super::FEDMIX => {
                let components = reader.read(&COMPONENTS, |v| v.integer(1..=1000));
                let weighing = reader.read(&UNSEEN_WEIGHTS, |v| v.named(&WEIGHINGS));
                let send_above = reader.read(&SEND_ABOVE, |v| from_zero_below_one(&v))?;
                let components = components? as usize;
                Self::FedMix(FedMix { components, weighing: weighing?, send_above })
            }
            super::LOCAL => Self::Local,
            super::FEDPROX => {
                let mu = reader.read(&MU, |v| v.number(|x| x >= 0.0))?;
                Self::FedAvg(FedAvg { mu, fine_tune: false })
            }
            super::FEDAVG_PLUS => Self::FedAvg(FedAvg { mu: 0.0, fine_tune: true }),
            super::PFEDME => {
                let lambda = reader.optional(&LAMBDA, |v| v.number(|x| x > 0.0));
                let inner_steps = reader.read(&INNER_STEPS, |v| v.count_u32());
                let inner_rate = reader.read(&INNER_STEP, |v| match v.shape() {
                    Shape::Text => match v.text()?.as_str() {
                        "auto" => Ok(None),
                        other => Err(v.unknown_word(other)),
                    },
                    _ => v.number(|x| x > 0.0).map(Some),
                });
                Self::PFedMe(PFedMe {
                    lambda: lambda?.unwrap_or(15.0),
                    inner_steps: inner_steps?,
                    inner_rate: inner_rate?,
                })
            }
            super::APFL => {
                let alpha = reader.read(&ALPHA, |v| v.number(|x| (0.0..=1.0).contains(&x)));
                let adaptive = reader.read(&ADAPTIVE, |v| v.boolean());
                Self::Apfl(Apfl { alpha: alpha?, adaptive: adaptive? })
            }
            super::FEDREP => {
                let head_trainings = reader.read(&HEAD_EPOCHS, |v| v.count_u32())?;
                Self::FedRep(FedRep { head_trainings })
            }
            super::DITTO => {
                let lambda = reader.optional(&LAMBDA, |v| v.number(|x| x > 0.0))?;
                Self::Ditto(Ditto { lambda: lambda.unwrap_or(0.1) })
            }
            super::SCAFFOLD => Self::Scaffold,
            super::CLUSTERED => reader.read(&SPLIT, |v| {
                let split = v.table(&SPLIT_SECTION)?;
                let below = split.read(&BELOW, |v| v.number(|x| x > 0.0));
                let above = split.read(&ABOVE, |v| v.number(|x| x > 0.0));
                Ok(Self::Clustered { below: below?, above: above? })
            })?,
            super::MOCHA => {
                let lambda = reader.optional(&LAMBDA, |v| v.number(|x| x > 0.0));
                let relation_every = reader.read(&RELATION_EVERY, |v| v.count_u32());
                let lambda = lambda?.unwrap_or(10.0);
                Self::Mocha { lambda, relation_every: relation_every? }
            }
            _ => Self::FedAvg(FedAvg { mu: 0.0, fine_tune: false }),
        })
    }

    pub(super) fn write(&self, out: &mut Writer, method: &str) {
        match self {
            Self::FedMix(fedmix) => {
                out.put(&COMPONENTS, fedmix.components.to_string());
                if star_shaped(method) == method {
                    out.put(&SEND_ABOVE, number(fedmix.send_above));
                }
                out.put(&UNSEEN_WEIGHTS, text(WEIGHINGS.name(fedmix.weighing)));
            }
            Self::FedAvg(fedavg) if star_shaped(method) == super::FEDPROX => {
                out.put(&MU, number(fedavg.mu))
            }
            Self::FedAvg(_) | Self::Local | Self::Scaffold => {}
            Self::PFedMe(pfedme) => {
                out.put(&LAMBDA, number(pfedme.lambda));
                out.put(&INNER_STEPS, pfedme.inner_steps.to_string());
                out.put(&INNER_STEP, pfedme.inner_rate.map_or_else(|| text("auto"), number));
            }
            Self::Apfl(apfl) => {
                out.put(&ALPHA, number(apfl.alpha));
                out.put(&ADAPTIVE, apfl.adaptive.to_string());
            }
            Self::FedRep(fedrep) => out.put(&HEAD_EPOCHS, fedrep.head_trainings.to_string()),
            Self::Ditto(ditto) => out.put(&LAMBDA, number(ditto.lambda)),
            Self::Clustered { below, above } => {
                let values = [(BELOW.name, number(*below)), (ABOVE.name, number(*above))];
                out.put(&SPLIT, inline(values));
            }
            Self::Mocha { lambda, relation_every } => {
                out.put(&LAMBDA, number(*lambda));
                out.put(&RELATION_EVERY, relation_every.to_string());
            }
        }
    }
}

/// The method with a server that does the same on a client.
fn star_shaped(method: &str) -> &str {
    method.strip_prefix("d-").unwrap_or(method)
}

/// Reads the server's step.
pub(super) fn read_server(method: &str, reader: &Reader<'_>) -> Read<ServerStep> {
    let step = reader.optional(&SERVER_STEP, |v| v.number(|x| x > 0.0));
    if method != super::FEDOPT {
        let step = step?.unwrap_or(1.0);
        return Ok(match method {
            super::SCAFFOLD => ServerStep::Scaffold { step },
            super::SGD => {
                let momentum = reader.read(&SERVER_MOMENTUM, |v| from_zero_below_one(&v))?;
                ServerStep::Momentum { momentum }
            }
            _ => ServerStep::Plain { step },
        });
    }
    reader.read(&SERVER, |v| {
        let table = v.table(&SERVER_SECTION)?;
        let rule = table.read(&SERVER_KIND, |v| v.named(&SERVERS));
        let first = table.read(&FIRST, |v| from_zero_below_one(&v));
        let second = table.read(&SECOND, |v| from_zero_below_one(&v));
        let floor = table.read(&FLOOR, |v| v.number(|x| x > 0.0));
        Ok(ServerStep::Adaptive {
            rule: rule?,
            step: step?.unwrap_or(0.1),
            first: first?,
            second: second?,
            floor: floor?,
        })
    })
}

pub(super) fn write_server(server: &ServerStep, out: &mut Writer, takes: impl Fn(&Key) -> bool) {
    match *server {
        ServerStep::Plain { step } | ServerStep::Scaffold { step } if takes(&SERVER_STEP) => {
            out.put(&SERVER_STEP, number(step));
        }
        ServerStep::Plain { .. } | ServerStep::Scaffold { .. } => {}
        ServerStep::Momentum { momentum } => out.put(&SERVER_MOMENTUM, number(momentum)),
        ServerStep::Adaptive { rule, step, first, second, floor } => {
            out.put(&SERVER_STEP, number(step));
            let values = [
                (SERVER_KIND.name, text(SERVERS.name(rule))),
                (FIRST.name, number(first)),
                (SECOND.name, number(second)),
                (FLOOR.name, number(floor)),
            ];
            out.put(&SERVER, inline(values));
        }
    }
}
