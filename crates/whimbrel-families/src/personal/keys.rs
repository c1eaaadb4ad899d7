//! The keys of `[method]` that the family's methods share: local training and the server's step.

use crate::gradient::keys::MOMENTUM as SERVER_MOMENTUM;
use whimbrel_job::form::{ABOVE_ZERO, BELOW_ONE, COUNT_U32, NOT_NEGATIVE, POSITIVE, SHARE, Table};
use whimbrel_job::key::{JobKey, Section};
use whimbrel_job::{form, inline, list, table};
use whimbrel_methods::personal::{Adaptive, Length, Sampling, ServerStep};
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
            unset "\"keep-old\"; for scaffold and sgd \"unbiased\"" or Sampling::KeepOld,
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
        let given = reader.optional_as(&SERVER_STEP, &POSITIVE);
        let mut server = reader.read_as(&SERVER, &inline!(SERVERS))?;
        if let (ServerStep::Adaptive { step, .. }, Some(given)) = (&mut server, given?) {
            *step = given;
        }
        Ok(server)
    },
    write: |server, out| {
        if let ServerStep::Adaptive { step, .. } = server {
            out.put(&SERVER_STEP, POSITIVE.write(step));
            out.put(&SERVER, SERVERS.inline(server));
        }
    },
};
