//! The family's keys of `[method]`.

use crate::gradient::keys::MOMENTUM as SERVER_MOMENTUM;
use whimbrel_job::form::{
    ABOVE_ZERO, BELOW_ONE, BOOLEAN, COUNT_U32, NOT_NEGATIVE, POSITIVE, SHARE, Table,
};
use whimbrel_job::key::{JobKey, Section};
use whimbrel_job::reader::{Read, Reader};
use whimbrel_job::writer::Writer;
use whimbrel_job::{form, inline, integer, list, table};
use whimbrel_methods::personal::{
    Adaptive, Apfl, Ditto, FedAvg, FedMix, FedRep, Length, PFedMe, Sampling, ServerStep, Weighing,
};
use whimbrel_nn::Optimiser;

/// What a job asks of local training.
#[derive(Clone, Debug, PartialEq)]
pub struct Training {
    /// How long.
    pub length: Length,
    /// When the local step falls.
    pub decay: Decay,
    /// The rule of local steps.
    pub optimiser: Optimiser,
    /// What clients that are not sampled count for.
    pub sampling: Sampling,
}

/// Milestones at which the local step falls.
#[derive(Clone, Debug, PartialEq)]
pub struct Decay {
    /// What the step is multiplied by ...
    pub factor: f64,
    /// ... at these shares of the rounds.
    pub at: Vec<f64>,
}

table! {
    pub(super) TRAINING: Training {
        + length: LENGTH;
        decay: DECAY = "decay", inline!(DECAYS), default "{ factor = 0.1, at = [] }",
            "milestones at which the local step falls";
        optimiser: OPTIMISER = "optimiser", inline!(OPTIMISERS),
            default "{ kind = \"sgd\", momentum = 0.0, weight_decay = 0.0 }",
            "the rule of local steps; its state starts anew in every round";
        sampling: SAMPLING = "sampling", SAMPLINGS,
            unset "\"keep-old\"; for scaffold \"unbiased\"" or Sampling::KeepOld,
            "what clients that are not sampled count for";
    }
}

/// `local_epochs`.
pub(super) static LOCAL_EPOCHS: JobKey =
    COUNT_U32.default("local_epochs", "1", "passes over a client's samples in a round");
/// `minibatches`.
pub(super) static MINIBATCHES: JobKey = COUNT_U32.unset(
    "minibatches",
    "`local_epochs` decides",
    "local steps of a round, in place of `local_epochs`",
);

/// Passes or steps.
const LENGTH: Table<Length> = Table {
    section: Section::of(const { &[&LOCAL_EPOCHS, &MINIBATCHES] }),
    read: |reader| {
        reader.refuse_both(&LOCAL_EPOCHS, &MINIBATCHES)?;
        let epochs = reader.read_as(&LOCAL_EPOCHS, &COUNT_U32);
        let steps = reader.optional_as(&MINIBATCHES, &COUNT_U32)?;
        steps.map_or_else(|| epochs.map(Length::Epochs), |steps| Ok(Length::Steps(steps)))
    },
    write: |length, out| match length {
        Length::Epochs(epochs) => out.put(&LOCAL_EPOCHS, epochs.to_string()),
        Length::Steps(steps) => out.put(&MINIBATCHES, steps.to_string()),
    },
};

table! {
    DECAYS: Decay = "decay", "milestones at which the local step falls" {
        factor: FACTOR = "factor", ABOVE_ZERO, default "0.1", "what the step is multiplied by";
        at: AT = "at", list!(SHARE, "a list of numbers from 0 to 1"), default "[]",
            "when: shares of the rounds, such as [0.5, 0.75]";
    }
}

struct OptimiserKeys {
    adam: bool,
    momentum: f64,
    weight_decay: f64,
}

table! {
    OPTIMISER_KEYS: OptimiserKeys = "optimiser", "the rule of local steps" {
        adam: OPTIMISER_KIND = "kind", OPTIMISER_KINDS, default "\"sgd\"", "the rule";
        momentum: MOMENTUM = "momentum", BELOW_ONE, default "0.0", "heavy-ball momentum of sgd";
        weight_decay: WEIGHT_DECAY = "weight_decay", NOT_NEGATIVE, default "0.0",
            "the factor of half the squared norm of the parameters";
    }
}

form! {
    OPTIMISER_KINDS: bool {
        false => "sgd": "stochastic gradients with momentum",
        true => "adam": "Adam, with 0.9 and 0.999",
    }
}

const OPTIMISERS: Table<Optimiser> = Table {
    section: OPTIMISER_KEYS.section,
    read: |reader| {
        let OptimiserKeys { adam, momentum, weight_decay } = OPTIMISER_KEYS.read(reader)?;
        let (momentum, weight_decay) = (momentum as f32, weight_decay as f32);
        if !adam {
            return Ok(Optimiser::Sgd { momentum, weight_decay });
        }
        reader
            .refuse_if_given(&MOMENTUM, "has no meaning for adam: its averages are 0.9 and 0.999");
        Ok(Optimiser::Adam { beta1: 0.9, beta2: 0.999, epsilon: 1e-8, weight_decay })
    },
    write: |optimiser, out| {
        let (adam, momentum, weight_decay) = match *optimiser {
            Optimiser::Sgd { momentum, weight_decay } => (false, momentum, weight_decay),
            Optimiser::Adam { weight_decay, .. } => (true, 0.0, weight_decay),
        };
        if adam {
            out.skip(&[&MOMENTUM]);
        }
        let (momentum, weight_decay) = (short(momentum), short(weight_decay));
        OPTIMISER_KEYS.write(&OptimiserKeys { adam, momentum, weight_decay }, out);
    },
};

/// The number that was written: the shortest that reads as this one.
fn short(x: f32) -> f64 {
    x.to_string().parse().unwrap_or(f64::from(x))
}

form! {
    /// What clients that are not sampled count for.
    pub(super) SAMPLINGS: Sampling {
        Sampling::KeepOld => "keep-old": "clients that are not sampled count with the old model",
        Sampling::Renormalise => "renormalise": "the mean is over the sampled clients; plain uplinks \
         only",
        Sampling::Unbiased => "unbiased": "a sampled client counts for the others too",
    }
}

form! {
    /// How an unseen client gets its weights.
    pub(super) WEIGHINGS: Weighing {
        Weighing::Converged => "converged": "E-steps until the weights stand still",
        Weighing::Once => "one-step": "one E-step from uniform weights, as in the paper",
    }
}

form! {
    /// How the server's second moment moves.
    SERVER_KINDS: Adaptive {
        Adaptive::Adam => "adam": "exponential averages (FedAdam)",
        Adaptive::Yogi => "yogi": "additive moves of the second moment (FedYogi)",
        Adaptive::Adagrad => "adagrad": "the sum of squares (FedAdagrad)",
    }
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

table! {
    pub(super) FEDMIX: FedMix {
        components: COMPONENTS = "components", integer!(usize, 1 to 1000), default "3",
            "how many components are mixed";
        send_above: SEND_ABOVE = "send_above", BELOW_ONE, default "0.0",
            "fedmix: a client trains and sends only components whose weight on it is above this (the largest \
             always); the server keeps the others as they are; plain uplinks only";
        weighing: UNSEEN_WEIGHTS = "unseen_weights", WEIGHINGS, default "\"converged\"",
            "how a client that took no part in training gets its mixture weights";
    }
}

table! {
    pub(super) FEDPROX: FedAvg {
        mu: MU = "mu", NOT_NEGATIVE, default "0.01",
            "fedprox: the factor of half the squared distance to the received model";
        ..{ fine_tune: false }
    }
}

/// `lambda`.
pub(super) static LAMBDA: JobKey = POSITIVE.unset(
    "lambda",
    "15 for pfedme, 0.1 for ditto, 10 for mocha",
    "the factor of half the squared distance between the client's model and the shared one; of \
     mocha that of half the squared norm of the models",
);

table! {
    pub(super) PFEDME: PFedMe {
        & lambda: LAMBDA, POSITIVE, unset or 15.0;
        inner_steps: INNER_STEPS = "inner_steps", COUNT_U32, default "5",
            "pfedme: steps of the inner solver on each minibatch";
        inner_rate: INNER_STEP = "inner_step", INNER_RATES, default "\"auto\"",
            "pfedme: the step of the inner solver";
    }
}

form! {
    INNER_RATES: Option<f64>, "a positive number or \"auto\"" {
        None => "auto": "1/(L + lambda), with L the smoothness of the client's loss at the first model",
    }
    number POSITIVE => Some;
}

table! {
    pub(super) APFL: Apfl {
        alpha: ALPHA = "alpha", SHARE, default "0.5", "apfl: the first share of the client's own model";
        adaptive: ADAPTIVE = "adaptive", BOOLEAN, default "true", "apfl: whether the share is learned";
    }
}

table! {
    pub(super) FEDREP: FedRep {
        head_trainings: HEAD_EPOCHS = "head_epochs", COUNT_U32, default "10",
            "fedrep: local trainings of the head in a round, before the one of the shared layers";
    }
}

table! {
    DITTO: Ditto {
        & lambda: LAMBDA, POSITIVE, unset or 0.1;
    }
}

/// `split`.
pub(super) static SPLIT: JobKey = inline!(CLUSTERED).default(
    "split",
    "{ below = 0.4, above = 1.6 }",
    "clustered: a cluster is split where its mean update is shorter than `below` while a member's is \
     longer than `above`",
);

table! {
    CLUSTERED: Rule::Clustered = "split", "when a cluster is split" {
        below: BELOW = "below", POSITIVE, default "0.4", "the norm of the cluster's mean update";
        above: ABOVE = "above", POSITIVE, default "1.6", "the norm of a member's update";
    }
}

table! {
    pub(super) MOCHA: Rule::Mocha {
        & lambda: LAMBDA, POSITIVE, unset or 10.0;
        relation_every: RELATION_EVERY = "relation_every", COUNT_U32, default "10",
            "mocha: rounds between two updates of how clients are related";
    }
}

impl Rule {
    /// Reads the keys of a method.
    pub(super) fn read(method: &str, reader: &Reader<'_>) -> Read<Self> {
        let plain = FedAvg { mu: 0.0, fine_tune: false };
        // A method without a server does the same on a client.
        Ok(match method.strip_prefix("d-").unwrap_or(method) {
            super::FEDMIX => Self::FedMix(FEDMIX.read(reader)?),
            super::LOCAL => Self::Local,
            super::FEDPROX => Self::FedAvg(FEDPROX.read(reader)?),
            super::FEDAVG_PLUS => Self::FedAvg(FedAvg { fine_tune: true, ..plain }),
            super::PFEDME => Self::PFedMe(PFEDME.read(reader)?),
            super::APFL => Self::Apfl(APFL.read(reader)?),
            super::FEDREP => Self::FedRep(FEDREP.read(reader)?),
            super::DITTO => Self::Ditto(DITTO.read(reader)?),
            super::SCAFFOLD => Self::Scaffold,
            super::CLUSTERED => reader.read_as(&SPLIT, &inline!(CLUSTERED))?,
            super::MOCHA => MOCHA.read(reader)?,
            _ => Self::FedAvg(plain),
        })
    }

    pub(super) fn write(&self, out: &mut Writer) {
        match self {
            Self::FedMix(fedmix) => FEDMIX.write(fedmix, out),
            Self::FedAvg(fedavg) => FEDPROX.write(fedavg, out),
            Self::Local | Self::Scaffold => {}
            Self::PFedMe(pfedme) => PFEDME.write(pfedme, out),
            Self::Apfl(apfl) => APFL.write(apfl, out),
            Self::FedRep(fedrep) => FEDREP.write(fedrep, out),
            Self::Ditto(ditto) => DITTO.write(ditto, out),
            Self::Clustered { .. } => out.put(&SPLIT, CLUSTERED.inline(self)),
            Self::Mocha { .. } => MOCHA.write(self, out),
        }
    }
}

/// `server_step`.
pub(super) static SERVER_STEP: JobKey = POSITIVE.unset(
    "server_step",
    "1; for fedopt 0.1",
    "the server's step along the clients' mean change (beta of pfedme)",
);
/// `server`.
pub(super) static SERVER: JobKey = inline!(SERVERS).default(
    "server",
    "{ kind = \"adam\", first = 0.9, second = 0.99, floor = 0.001 }",
    "fedopt: the server's optimiser, with its two averages and the floor of its denominators",
);

table! {
    SERVERS: ServerStep::Adaptive = "server", "the server's optimiser" {
        rule: SERVER_KIND = "kind", SERVER_KINDS, default "\"adam\"", "how the second moment moves";
        first: FIRST = "first", BELOW_ONE, default "0.9", "beta_1";
        second: SECOND = "second", BELOW_ONE, default "0.99", "beta_2";
        floor: FLOOR = "floor", POSITIVE, default "0.001", "tau, which keeps steps finite";
        ..{ step: 0.1 }
    }
}

/// Reads the server's step.
pub(super) fn read_server(method: &str, reader: &Reader<'_>) -> Read<ServerStep> {
    let given = reader.optional_as(&SERVER_STEP, &POSITIVE)?;
    let mut server = match method {
        super::FEDOPT => reader.read_as(&SERVER, &inline!(SERVERS))?,
        super::SCAFFOLD => ServerStep::Scaffold { step: 1.0 },
        super::SGD => {
            ServerStep::Momentum { momentum: reader.read_as(&SERVER_MOMENTUM, &BELOW_ONE)? }
        }
        _ => ServerStep::Plain { step: 1.0 },
    };
    if let Some(given) = given
        && let ServerStep::Plain { step }
        | ServerStep::Scaffold { step }
        | ServerStep::Adaptive { step, .. } = &mut server
    {
        *step = given;
    }
    Ok(server)
}

pub(super) fn write_server(server: &ServerStep, out: &mut Writer) {
    match server {
        ServerStep::Plain { step } | ServerStep::Scaffold { step } => {
            out.put(&SERVER_STEP, POSITIVE.write(step));
        }
        ServerStep::Momentum { momentum } => {
            out.put(&SERVER_MOMENTUM, BELOW_ONE.write(momentum));
        }
        ServerStep::Adaptive { step, .. } => {
            out.put(&SERVER_STEP, POSITIVE.write(step));
            out.put(&SERVER, SERVERS.inline(server));
        }
    }
}
