//! Keys of local training and of the server's step.

use crate::gradient::keys::MOMENTUM as SERVER_MOMENTUM;
use whimbrel_job::form::{ABOVE_ZERO, BELOW_ONE, COUNT_U32, NOT_NEGATIVE, POSITIVE, SHARE, Table};
use whimbrel_job::key::Section;
use whimbrel_job::{define_keys, form, inline, list, table};
use whimbrel_methods::personal::{Adaptive, FedOpt, Length, Sampling, ServerStep};
use whimbrel_nn::Optimiser;

/// Settings of local training.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Training {
    pub length: Length,
    /// Of the local step.
    pub decay: Decay,
    pub optimiser: Optimiser,
    /// Treatment of clients that are not sampled.
    pub sampling: Sampling,
}

/// Milestones of the local step.
#[derive(Clone, Debug, PartialEq)]
pub struct Decay {
    /// Factor at each milestone.
    pub factor: f64,
    /// Milestones as shares of the rounds.
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
        /// milestones at which the local step decreases
        decay: DECAY = "decay", inline!(DECAYS), default;
        /// optimiser of local steps; its state is reset every round
        optimiser: OPTIMISER = "optimiser", inline!(OPTIMISERS), default;
        /// treatment of clients that are not sampled
        sampling: SAMPLING = "sampling", SAMPLINGS,
            unset "\"keep-old\"; for scaffold and sgd \"unbiased\"" or Sampling::default();
    }
}

define_keys! {
    /// passes over a client's samples per round
    pub(super) LOCAL_EPOCHS = "local_epochs", COUNT_U32, default(Length::EPOCHS);
    /// local steps per round, in place of `local_epochs`
    pub(super) MINIBATCHES = "minibatches", COUNT_U32, unset "set by `local_epochs`";
}

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
    DECAYS: Decay = "decay", "milestones at which the local step decreases" {
        /// factor of the step at each milestone
        factor: FACTOR = "factor", ABOVE_ZERO, default;
        /// milestones as shares of the rounds, such as [0.5, 0.75]
        at: AT = "at", list!(SHARE, "a list of numbers from 0 to 1"), default;
    }
}

#[derive(Default)]
struct OptimiserKeys {
    adam: bool,
    momentum: f64,
    weight_decay: f64,
}

table! {
    OPTIMISER_KEYS: OptimiserKeys = "optimiser", "optimiser of local steps" {
        /// the rule
        adam: OPTIMISER_KIND = "kind", OPTIMISER_KINDS, default;
        /// heavy-ball momentum of sgd
        momentum: MOMENTUM = "momentum", BELOW_ONE, default;
        /// factor of half the squared norm of the parameters
        weight_decay: WEIGHT_DECAY = "weight_decay", NOT_NEGATIVE, default;
    }
}

form! {
    OPTIMISER_KINDS: bool {
        /// stochastic gradients with momentum
        "sgd" => false,
        /// Adam, with 0.9 and 0.999
        "adam" => true,
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

/// The shortest decimal number that parses to `x`.
fn short(x: f32) -> f64 {
    x.to_string().parse().unwrap_or(f64::from(x))
}

form! {
    pub(super) SAMPLINGS: Sampling {
        /// they enter the mean with the old model
        "keep-old" => Sampling::KeepOld,
        /// the mean is over the sampled clients only; plain uplinks
        "renormalise" => Sampling::Renormalise,
        /// sampled clients are weighted by the inverse of their probability
        "unbiased" => Sampling::Unbiased,
    }
}

form! {
    SERVER_KINDS: Adaptive {
        /// exponential averages (FedAdam)
        "adam" => Adaptive::Adam,
        /// additive moves of the second moment (FedYogi)
        "yogi" => Adaptive::Yogi,
        /// the sum of squares (FedAdagrad)
        "adagrad" => Adaptive::Adagrad,
    }
}

define_keys! {
    /// step of the server along the clients' mean change (beta of pfedme)
    pub(super) SERVER_STEP = "server_step", POSITIVE, unset "1; for fedopt 0.1";
    /// fedopt: optimiser of the server
    pub(super) SERVER = "server", inline!(SERVERS), default(FedOpt::default());
}

table! {
    SERVERS: FedOpt = "server", "optimiser of the server" {
        /// update of the second moment
        rule: SERVER_KIND = "kind", SERVER_KINDS, default;
        /// beta_1
        first: FIRST = "first", BELOW_ONE, default;
        /// beta_2
        second: SECOND = "second", BELOW_ONE, default;
        /// tau, added to the denominators
        floor: FLOOR = "floor", POSITIVE, default;
        ..from FedOpt::default()
    }
}

table! {
    pub(super) PLAIN: ServerStep::Plain { & step: SERVER_STEP, POSITIVE, unset or ServerStep::STEP; }
}

table! {
    pub(super) CONTROLLED: ServerStep::Scaffold { & step: SERVER_STEP, POSITIVE, unset or ServerStep::STEP; }
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
