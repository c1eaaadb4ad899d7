//! The keys of `[method]` that the family's methods share: local training and the server's step.

use crate::gradient::keys::MOMENTUM as SERVER_MOMENTUM;
use whimbrel_job::form::{ABOVE_ZERO, BELOW_ONE, COUNT_U32, NOT_NEGATIVE, POSITIVE, SHARE, Table};
use whimbrel_job::key::{JobKey, Section};
use whimbrel_job::{form, inline, list, table};
use whimbrel_methods::personal::{Adaptive, FedOpt, Length, Sampling, ServerStep};
use whimbrel_nn::Optimiser;

/// What a job asks of local training.
#[derive(Clone, Debug, Default, PartialEq)]
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

impl Default for Decay {
    fn default() -> Self {
        Self { factor: 0.1, at: Vec::new() }
    }
}

table! {
    pub(super) TRAINING: Training {
        + length: LENGTH;
        decay: DECAY = "decay", inline!(DECAYS), default,
            "milestones at which the local step falls";
        optimiser: OPTIMISER = "optimiser", inline!(OPTIMISERS), default,
            "the rule of local steps; its state starts anew in every round";
        sampling: SAMPLING = "sampling", SAMPLINGS,
            unset "\"keep-old\"; for scaffold and sgd \"unbiased\"" or Sampling::default(),
            "what clients that are not sampled count for";
    }
}

/// `local_epochs`.
pub(super) static LOCAL_EPOCHS: JobKey = COUNT_U32.default(
    "local_epochs",
    || COUNT_U32.write(&1),
    "passes over a client's samples in a round",
);
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
        factor: FACTOR = "factor", ABOVE_ZERO, default, "what the step is multiplied by";
        at: AT = "at", list!(SHARE, "a list of numbers from 0 to 1"), default,
            "when: shares of the rounds, such as [0.5, 0.75]";
    }
}

#[derive(Default)]
struct OptimiserKeys {
    adam: bool,
    momentum: f64,
    weight_decay: f64,
}

table! {
    OPTIMISER_KEYS: OptimiserKeys = "optimiser", "the rule of local steps" {
        adam: OPTIMISER_KIND = "kind", OPTIMISER_KINDS, default, "the rule";
        momentum: MOMENTUM = "momentum", BELOW_ONE, default, "heavy-ball momentum of sgd";
        weight_decay: WEIGHT_DECAY = "weight_decay", NOT_NEGATIVE, default,
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
        Ok(Optimiser::adam(weight_decay))
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
    /// How the server's second moment moves.
    SERVER_KINDS: Adaptive {
        Adaptive::Adam => "adam": "exponential averages (FedAdam)",
        Adaptive::Yogi => "yogi": "additive moves of the second moment (FedYogi)",
        Adaptive::Adagrad => "adagrad": "the sum of squares (FedAdagrad)",
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
    || SERVERS.inline(&FedOpt::default()),
    "fedopt: the server's optimiser, with its two averages and the floor of its denominators",
);

table! {
    SERVERS: FedOpt = "server", "the server's optimiser" {
        rule: SERVER_KIND = "kind", SERVER_KINDS, default, "how the second moment moves";
        first: FIRST = "first", BELOW_ONE, default, "beta_1";
        second: SECOND = "second", BELOW_ONE, default, "beta_2";
        floor: FLOOR = "floor", POSITIVE, default, "tau, which keeps steps finite";
        ..from FedOpt::default()
    }
}

table! {
    pub(super) PLAIN: ServerStep::Plain { & step: SERVER_STEP, POSITIVE, unset or 1.0; }
}

table! {
    pub(super) CONTROLLED: ServerStep::Scaffold { & step: SERVER_STEP, POSITIVE, unset or 1.0; }
}

table! {
    pub(super) HEAVY_BALL: ServerStep::Momentum { & momentum: SERVER_MOMENTUM, BELOW_ONE, default; }
}

/// The server's optimiser, and its step.
pub(super) const FEDOPT: Table<ServerStep> = Table {
    section: Section::of(const { &[&SERVER_STEP, &SERVER] }),
    read: |reader| {
        let step = reader.optional_as(&SERVER_STEP, &POSITIVE);
        let server = reader.read_as(&SERVER, &inline!(SERVERS))?;
        Ok(ServerStep::Adaptive(FedOpt { step: step?.unwrap_or(server.step), ..server }))
    },
    write: |server, out| {
        if let ServerStep::Adaptive(server) = server {
            out.put(&SERVER_STEP, POSITIVE.write(&server.step));
            out.put(&SERVER, SERVERS.inline(server));
        }
    },
};
